"""What the decoding rules need to know of the logits, computed where the logits are.

The greedy rules look at the text tokens only through three numbers: the best token, its logit, and the log of the
summed exponentials of all. With them, a step brings some 1,600 numbers to Python and not 51,864; the full logits stay
with the executor and are fetched when a step does need them (sampling, the first step).

The vocabulary, in the order of ids:  text 0 .. eot | eot and other special tokens | timestamps
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from candlewick import nn, ops
from candlewick.tensor import Tensor

NEVER = -1e9  # added to the logit of a token that may not come; finite, so that no executor meets inf - inf


class Readout(nn.Module):
    """logits -> logits as they are, and text and special tokens apart, with the suppressed ones out of the way."""

    def __init__(self, n_vocab: int, eot: int, suppress: Iterable[int] = ()) -> None:
        self.n_vocab, self.eot = n_vocab, eot
        mask = np.zeros(n_vocab, np.float32)
        mask[list(suppress)] = NEVER
        self.suppress = nn.Constant(mask)

    def __call__(self, logits: Tensor) -> dict[str, Tensor]:
        """logits (batch, n_vocab) -> see the comments below"""
        allowed = logits + self.suppress
        text = ops.slice(allowed, axis=1, start=0, stop=self.eot)  # (batch, eot)
        top = ops.max(text, axis=1, keepdims=True)  # (batch, 1)
        return {
            "logits": logits,  # (batch, n_vocab)
            "text_token": ops.argmax(text, axis=1),  # (batch,) i32
            "text_max": top,  # (batch, 1)
            "text_sum": top + ops.log(ops.sum(ops.exp(text - top), axis=1, keepdims=True)),  # (batch, 1)
            "special": ops.slice(allowed, axis=1, start=self.eot, stop=self.n_vocab),  # (batch, n_vocab - eot)
        }
