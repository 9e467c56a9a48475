"""From logits to the next token.

The order is llama.cpp's: repeat penalty, top-k, top-p, min-p, temperature, draw. Most steps need only the few best logits
that the Program brings back (`programs.TOP`); `Sampler.pick` says None where they do not settle it, and then all logits are
looked at. Both ways compute with the same float64 numbers in the same order, so the same logits give the same text.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import neg

import numpy as np

from candlewick.options import OptionError

FEW = 2048  # candidates up to which sums are made in Python
MAX_SEED = 2**53 - 1  # what JSON and JavaScript hold exactly


@dataclass(frozen=True)
class GenerateOptions:
    """What a person may choose."""

    max_tokens: int = 256
    temperature: float = 0.7  # 0 is greedy: always the most probable token
    top_k: int = 40  # only the k most probable tokens; 0: all
    top_p: float = 0.95  # only the most probable tokens that together have this probability; 1: all
    min_p: float = 0.05  # only tokens at least this fraction as probable as the most probable one; 0: all
    repeat_penalty: float = 1.1  # logits of recent tokens are divided by it where positive, multiplied where negative; 1: none
    repeat_last_n: int = 64  # how many tokens, of prompt and answer, are recent; -1: all
    seed: int | None = None  # None takes a random one; the result names it
    stop: tuple[str, ...] = ()  # strings that end the answer; they are not shown
    greedy: bool = False  # as temperature 0
    ignore_end: bool = False  # go on behind a token that ends the answer (to measure a fixed number of tokens)

    def __post_init__(self) -> None:
        several = isinstance(self.stop, Iterable) and not isinstance(self.stop, str)
        object.__setattr__(self, "stop", tuple(self.stop) if several else (self.stop,))
        rules = {"max_tokens": (int, 1, math.inf), "temperature": (float, 0, 1e6), "top_k": (int, 0, math.inf),
                 "top_p": (float, 0, 1), "min_p": (float, 0, 1), "repeat_penalty": (float, 1e-3, 1e3),
                 "repeat_last_n": (int, -1, math.inf)}
        if self.seed is not None:
            rules["seed"] = (int, 0, MAX_SEED)
        for name, (kind, low, high) in rules.items():
            value = getattr(self, name)
            right = type(value) is int or (kind is float and type(value) is float)
            if not (right and low <= value <= high):
                what = "a whole number" if kind is int else "a number"
                limits = f"from {low} to {high}" if high < math.inf else f"from {low} on"
                raise OptionError(f"{{{name}}}: wanted {what} {limits}, got {{got}}", got=str(value)[:40])
        if not all(isinstance(s, str) and s for s in self.stop):
            raise OptionError("{stop}: wanted strings that are not empty, got {got}", got=str(list(self.stop))[:80])

    @property
    def is_greedy(self) -> bool:
        return self.greedy or self.temperature == 0


class SplitMix64:
    """Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators": the same numbers everywhere for one seed."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def next(self) -> int:
        """64 random bits."""
        mask = 0xFFFFFFFFFFFFFFFF
        self.state = z = (self.state + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def random(self) -> float:
        """From 0 to below 1, in steps of 2 ** -53."""
        return (self.next() >> 11) * 2.0**-53


def random_seed() -> int:
    """32 bits from the system."""
    return int.from_bytes(os.urandom(4), "little")


class Sampler:
    """Picks the tokens of one answer."""

    def __init__(self, options: GenerateOptions, seed: int, prompt: Sequence[int]) -> None:
        self.options, self._rng = options, SplitMix64(seed)
        self._penalty = float(options.repeat_penalty) if options.repeat_last_n else 1.0
        n = options.repeat_last_n
        self._recent: deque[int] = deque(prompt, None if n < 0 else n)
        self._counts = Counter(self._recent)
        self._greedy = options.is_greedy

    def accept(self, token: int) -> None:
        """The token is part of the text now."""
        recent, counts = self._recent, self._counts
        if self._penalty == 1.0:
            return
        if len(recent) == recent.maxlen:
            oldest = recent[0]
            counts[oldest] -= 1
            if not counts[oldest]:
                del counts[oldest]
        recent.append(token)
        counts[token] += 1

    # ---- picking ------------------------------------------------------------------------------------------------

    def pick(self, ids: Sequence[int], top: Sequence[float], log_sum: float, n_vocab: int) -> int | None:
        """ids, top: the largest logits, best first; log_sum: log(sum(exp)) of all -> a token, or None: ask with all logits."""
        o, greedy = self.options, self._greedy
        wanted = 1 if greedy else o.top_k or n_vocab
        if self._penalty != 1.0 and self._counts:
            found = self._penalise(ids, top, min(wanted, n_vocab), n_vocab)
            if found is None:
                return None
            ids, top = found
        elif wanted > len(ids) < n_vocab:
            return None if o.top_k else self._pick_of_all(ids, top, log_sum)
        return ids[0] if greedy else self._draw(ids[:wanted], top[:wanted], None)

    def _penalise(
        self, ids: Sequence[int], top: Sequence[float], wanted: int, n_vocab: int
    ) -> tuple[list[int], list[float]] | None:
        """The `wanted` best behind the repeat penalty, best first; None if others than the given ones may be among them."""
        penalty, counts = self._penalty, self._counts
        if penalty < 1.0:
            return None  # any token may have moved up
        kept, moved = [], []
        for x, token in zip(top, ids):
            if token in counts:
                moved.append((-x / penalty if x > 0 else -x * penalty, token))
            else:
                kept.append((-x, token))
                if len(kept) == wanted:
                    break  # what comes behind was lower, and moves no higher
        found = sorted(kept + moved)[:wanted]
        if len(kept) < wanted and len(ids) < n_vocab and (len(found) < wanted or -found[-1][0] <= top[-1]):
            return None
        return [token for _, token in found], [-x for x, _ in found]

    def _pick_of_all(self, ids: Sequence[int], top: Sequence[float], log_sum: float) -> int | None:
        """Without top-k all tokens are candidates; top-p or min-p may still leave no more than the given ones."""
        o, best = self.options, top[0]
        total = math.exp(log_sum - best)
        few = o.min_p > 0 and best + math.log(o.min_p) > top[-1]
        if few or (o.top_p < 1 and sum(math.exp(x - best) for x in top) >= o.top_p * total * (1 + 1e-9)):
            return self._draw(ids, top, total)
        return None

    def pick_from(self, logits: np.ndarray) -> int:
        """logits (n_vocab,) -> a token."""
        scores = logits.astype(np.float64)
        if self._penalty != 1.0 and self._counts:
            recent = np.fromiter(self._counts, np.int64, len(self._counts))
            x = scores[recent]
            scores[recent] = np.where(x > 0, x / self._penalty, x * self._penalty)
        if self._greedy:
            return int(scores.argmax())
        o, n, best = self.options, len(scores), scores.max()
        total = None if o.top_k else float(np.exp(scores - best).sum())
        if o.top_k:
            return self._draw_from(scores, min(o.top_k, n), total)
        if o.min_p > 0:
            return self._draw_from(scores, int((scores >= best + math.log(o.min_p) - 1e-6).sum()), total)
        if o.top_p < 1:  # the few that count are mostly among the first
            few = min(FEW, n)
            enough = float(np.exp(np.partition(scores, n - few)[n - few :] - best).sum()) >= o.top_p * total * (1 + 1e-9)
            return self._draw_from(scores, few if enough else n, total)
        with np.errstate(over="ignore"):
            sums = np.cumsum(np.exp((scores - best) / o.temperature))
        at = int(np.searchsorted(sums, self._rng.random() * sums[-1], side="right"))
        return min(at, int(np.flatnonzero(np.diff(sums, prepend=0.0))[-1]))  # rounding may put the point at the very end

    def _draw_from(self, scores: np.ndarray, k: int, total: float | None) -> int:
        """One of the k best of all scores."""
        low = np.partition(scores, len(scores) - k)[len(scores) - k]
        ids = np.flatnonzero(scores >= low)
        ids = ids[np.argsort(-scores[ids], kind="stable")][:k]
        if k <= FEW:
            return self._draw(ids.tolist(), scores[ids].tolist(), total)
        return self._draw_many(ids, scores[ids], total)

    def _draw(self, ids: Sequence[int], scores: Sequence[float], total: float | None) -> int:
        """Of candidates, best first. total: sum of exp(score - best) of all that top-p is a part of, if those are more."""
        o = self.options
        best = scores[0]
        n = len(ids)
        if o.min_p > 0:
            n = max(1, bisect_right(scores, -best - math.log(o.min_p), key=neg))
            if n == 1:
                return ids[0]
        if o.top_p < 1:
            weights = [math.exp(x - best) for x in scores]
            limit = o.top_p * (sum(weights) if total is None else total)
            passed = 0.0
            for i in range(n):
                passed += weights[i]
                if passed >= limit:
                    n = i + 1
                    break
        t = o.temperature
        sums, passed = [], 0.0
        for x in scores[:n]:
            passed += math.exp((x - best) / t)
            sums.append(passed)
        point = self._rng.random() * passed
        return ids[min(bisect_right(sums, point), n - 1)]  # rounding may put the point at the very end

    def _draw_many(self, ids: np.ndarray, scores: np.ndarray, total: float | None) -> int:
        """As _draw, for as many candidates as a vocabulary has."""
        o = self.options
        n = len(ids)
        if o.min_p > 0:
            n = max(1, int((scores >= scores[0] + math.log(o.min_p)).sum()))
        if o.top_p < 1:
            sums = np.cumsum(np.exp(scores - scores[0]))
            n = min(n, int(np.searchsorted(sums, o.top_p * (sums[-1] if total is None else total))) + 1)
        with np.errstate(over="ignore"):
            sums = np.cumsum(np.exp((scores[:n] - scores[0]) / o.temperature))
        at = int(np.searchsorted(sums, self._rng.random() * sums[-1], side="right"))
        return int(ids[min(at, n - 1)])


class StopStrings:
    """Text as it grows -> what of it may be shown: nothing that may yet turn out to be a stop string."""

    def __init__(self, stop: Iterable[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """-> (text to show now, the stop string that was met)"""
        if not self._stop:
            return text, None
        text = self._held + text
        met = [(at, s) for s in self._stop if (at := text.find(s)) >= 0]
        if met:
            at, word = min(met)
            self._held = ""
            return text[:at], word
        keep = max((n for s in self._stop for n in range(1, min(len(s), len(text) + 1)) if text.endswith(s[:n])), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """What was held back and is no stop string after all."""
        held, self._held = self._held, ""
        return held
