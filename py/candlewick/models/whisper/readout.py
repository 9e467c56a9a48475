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
        self.only_text = nn.Constant(np.where(np.arange(n_vocab) < eot, mask, np.float32(NEVER)))
        self.numbers = nn.Constant(np.arange(n_vocab - timestamp_begin, dtype=np.float32)[None])

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

    def candidates(self, logits: Tensor, first: Tensor, k: int) -> dict[str, Tensor]:
        """logits (n, n_vocab), first (n, 1): the first timestamp that may come, from 0 on -> logits, and candidates (n, ...):
        of text, of special tokens, of timestamps each the places of the k best (or as many as there are), their logits, and
        log(sum(e^x)) of all.
        """
        text = logits + self.only_text  # not a slice: parts of rows would be copied for each op
        tail = ops.slice(logits, axis=1, start=self.eot, stop=self.n_vocab)
        tail = tail + ops.slice(self.suppress, axis=0, start=self.eot, stop=self.n_vocab)
        special = ops.slice(tail, axis=1, start=0, stop=self.timestamp_begin - self.eot)
        times = ops.slice(tail, axis=1, start=self.timestamp_begin - self.eot, stop=tail.shape[1])
        times = times + ops.minimum(self.numbers - first, 0.0) * -NEVER
        found: list[Tensor] = []
        for x in (text, special, times):
            ids = ops.top_k(x, k=min(k, x.shape[1]))
            found += [ops.cast(ids, dtype="f32"), ops.take(x, ids), ops.log_sum_exp(x, axis=1, keepdims=True)]
        return {"logits": logits, "candidates": ops.concat(found, axis=1)}

    def brief(self, x: Tensor) -> list[Tensor]:
        """x (batch, n) -> place of the largest (a float, exact below 2^24), the largest, log(sum(e^x)), each (batch, 1)"""
        place = ops.cast(ops.argmax(x, axis=1), dtype="f32").reshape(x.shape[0], 1)
        return [place, ops.max(x, axis=1, keepdims=True), ops.log_sum_exp(x, axis=1, keepdims=True)]
