"""What the decoding rules need to know of the logits, computed where the logits are.

The greedy rules look at the text tokens, and at the special ones, only through three numbers: the best token, its logit, and
the log of the summed exponentials of all. With them, a step brings some 1,500 numbers to Python and not 51,864, and leaves it
little to do; the full logits stay with the executor and are fetched when a step does need them (sampling, the first step).

The vocabulary, in the order of ids:  text 0 .. eot | eot and other special tokens .. timestamp_begin | timestamps
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from candlewick import nn, ops
from candlewick.tensor import Tensor

NEVER = -1e9  # added to the logit of a token that may not come; finite, so that no executor meets inf - inf


class Readout(nn.Module):
    """logits -> logits as they are, and in short; the suppressed ones are out of the way there."""

    def __init__(self, n_vocab: int, eot: int, timestamp_begin: int, suppress: Iterable[int] = ()) -> None:
        self.n_vocab, self.eot, self.timestamp_begin = n_vocab, eot, timestamp_begin
        mask = np.zeros(n_vocab, np.float32)
        mask[list(suppress)] = NEVER
        self.suppress = nn.Constant(mask)

    def __call__(self, logits: Tensor) -> dict[str, Tensor]:
        """logits (batch, n_vocab) -> see the comments below"""
        allowed = logits + self.suppress
        text = ops.slice(allowed, axis=1, start=0, stop=self.eot)  # (batch, eot)
        special = ops.slice(allowed, axis=1, start=self.eot, stop=self.timestamp_begin)
        return {
            "logits": logits,  # (batch, n_vocab)
            "best": ops.concat([*self.brief(text), *self.brief(special)], axis=1),  # (batch, 6)
            "times": ops.slice(allowed, axis=1, start=self.timestamp_begin, stop=self.n_vocab),  # (batch, the rest)
        }

    def brief(self, x: Tensor) -> list[Tensor]:
        """x (batch, n) -> place of the largest (a float, exact below 2^24), the largest, log(sum(e^x)), each (batch, 1)"""
        place = ops.cast(ops.argmax(x, axis=1), dtype="f32").reshape(x.shape[0], 1)
        return [place, ops.max(x, axis=1, keepdims=True), ops.log_sum_exp(x, axis=1, keepdims=True)]
