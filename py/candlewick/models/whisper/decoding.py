"""From logits to the tokens of one window: the rules of the reference (github.com/openai/whisper, decoding.py).

A step asks `Rules.allowed` which tokens may come now, and picks one of them: the best (`greedy`, which needs only the
few numbers of `Readout`), or a random one at a temperature (`sample`, which needs all logits).
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from candlewick.executors import Executor
from candlewick.models.whisper.programs import CHUNK
from candlewick.models.whisper.readout import NEVER
from candlewick.models.whisper.tokenizer import Tokenizer

GREEDY = ("best", "times")  # outputs of a decoder run that `greedy` reads


@dataclass(frozen=True)
class Allowed:
    """Which tokens may come next: text, special tokens (the end is one), and timestamps first .. stop."""

    text: bool
    special: bool
    first: int
    stop: int


@dataclass(frozen=True)
class Rules:
    """What a transcript may look like."""

    eot: int
    timestamp_begin: int
    n_vocab: int
    suppress: Sequence[int]  # never
    blank: Sequence[int]  # not as the first token
    timestamps: bool = True
    last_initial: int | None = 50  # the first timestamp is at most this many steps of 20 ms into the window

    def allowed(self, tokens: Sequence[int]) -> Allowed:
        """tokens: what has been decoded of this window so far.

        A segment stands between two timestamps: they come in pairs except at both ends, they never go back, and a
        segment is never empty. The transcript begins with one.
        """
        begin, end = self.timestamp_begin, self.n_vocab
        if not self.timestamps:
            return Allowed(True, True, end, end)
        if not tokens:
            stop = end if self.last_initial is None else min(end, begin + self.last_initial + 1)
            return Allowed(False, False, begin, stop)
        last = next((t for t in reversed(tokens) if t >= begin), begin - 1)
        if tokens[-1] < begin:
            return Allowed(True, True, last + 1, end)  # inside a segment: go on, or close it
        if len(tokens) > 1 and tokens[-2] < begin:
            return Allowed(False, True, last, end)  # closed: the next one opens, or it is the end
        return Allowed(True, True, end, end)  # opened: text

    # ---- picking, each -> (token, its log-probability) ----------------------------------------------------------

    def greedy(self, step: Mapping[str, np.ndarray], allowed: Allowed) -> tuple[int, float]:
        """The most probable allowed token; step: the outputs GREEDY of the decoder."""
        text_token, text, text_sum, special_token, special, special_sum = step["best"][0].tolist()
        candidates, sums = [], []
        if allowed.text:
            candidates.append((text, int(text_token)))
            sums.append(text_sum)
        if allowed.special:
            candidates.append((special, self.eot + int(special_token)))
            sums.append(special_sum)
        if allowed.first < allowed.stop:
            times = step["times"][0, allowed.first - self.timestamp_begin : allowed.stop - self.timestamp_begin]
            best = int(times.argmax())
            time = times.item(best), allowed.first + best
            total = time[0] + math.log(np.exp(times - time[0]).sum())
            if self.timestamps and (not candidates or total > max(candidates)[0]):
                return time[1], time[0] - total  # all timestamps together outweigh any other token
            candidates.append(time)
            sums.append(total)
        score, token = max(candidates, key=lambda c: c[0])
        top = max(sums)
        return token, score - top - math.log(sum(math.exp(s - top) for s in sums))

    def candidates(self, row: Sequence[float], allowed: Allowed, k: int) -> list[tuple[int, float]]:
        """row: one of the decoder's candidates (`Readout.candidates`) -> the k most probable allowed tokens and their
        log-probabilities, the best one first"""
        bounds = (0, self.eot, self.timestamp_begin, self.n_vocab)
        groups, at = [], 0
        for begin, end, may_come in zip(bounds, bounds[1:], (allowed.text, allowed.special, allowed.first < allowed.stop)):
            n = min(k, end - begin)
            if may_come:
                tokens = [(score, begin + int(place)) for place, score in zip(row[at : at + n], row[at + n : at + 2 * n])]
                groups.append((row[at + 2 * n], tokens))
            at += 2 * n + 1
        if self.timestamps and allowed.first < allowed.stop and len(groups) > 1:
            *others, times = groups
            if times[0] > max(tokens[0][0] for _, tokens in others):
                groups = [times]  # as in `greedy`
        top = max(total for total, _ in groups)
        log_sum = top + math.log(sum(math.exp(total - top) for total, _ in groups))
        found = sorted((one for _, tokens in groups for one in tokens), reverse=True)
        return [(token, score - log_sum) for score, token in found[:k] if score > NEVER / 2]

    def most_probable(self, scores: np.ndarray, k: int) -> list[tuple[int, float]]:
        """The same from `scores`."""
        found = np.argpartition(scores, -k)[-k:]
        log_sum = _log_sum(scores)
        return [(int(token), float(scores[token]) - log_sum)
                for token in found[np.argsort(-scores[found])] if scores[token] > NEVER / 2]

    def scores(self, logits: np.ndarray, allowed: Allowed, first: bool) -> np.ndarray:
        """All logits (n_vocab,) -> float64 copy with NEVER where a token may not come."""
        x = logits.astype(np.float64)
        x[list(self.suppress)] = NEVER
        if first:
            x[list(self.blank)] = NEVER
        if not allowed.text:
            x[: self.eot] = NEVER
        if not allowed.special:
            x[self.eot : self.timestamp_begin] = NEVER
        x[self.timestamp_begin : allowed.first] = NEVER
        x[allowed.stop :] = NEVER
        times = x[self.timestamp_begin :]
        if self.timestamps and allowed.first < allowed.stop and _log_sum(times) > x[: self.timestamp_begin].max():
            x[: self.timestamp_begin] = NEVER
        return x

    def sample(self, scores: np.ndarray, temperature: float, rng: random.Random) -> tuple[int, float]:
        """The best token at temperature 0, else a random one; the log-probability is that at temperature 1."""
        if temperature == 0:
            token = int(scores.argmax())
        else:
            weights = np.exp((scores - scores.max()) / temperature)
            cumulated = np.cumsum(weights)
            token = int(np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right"))
            token = min(token, int(np.flatnonzero(weights)[-1]))  # rounding at the very end of the sum
        return token, float(scores[token]) - _log_sum(scores)


def _log_sum(x: np.ndarray) -> float:
    """log(sum(exp(x)))"""
    top = float(x.max())
    return top + float(np.log(np.exp(x - top).sum()))


# ---- the decoder as something that reads tokens -----------------------------------------------------------------


class TokenReader:
    """Feeds tokens to the decoder entries and keeps the position. Nothing else of the state is in Python."""

    def __init__(self, executor: Executor, n_text_ctx: int, heard: int) -> None:
        """heard: positions of audio in the cache, 20 ms each."""
        self._executor, self.n_text_ctx, self.pos, self._last_heard = executor, n_text_ctx, 0, heard - 1

    async def feed(self, tokens: Sequence[int], fetch: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Reads tokens (at least one) behind those read before -> outputs for what follows the last of them."""
        if not tokens or self.pos + len(tokens) > self.n_text_ctx:
            raise ValueError(f"{len(tokens)} tokens at {self.pos}: the decoder has {self.n_text_ctx} positions")
        outputs: dict[str, np.ndarray] = {}
        done = 0
        while done < len(tokens):
            # a padded chunk costs little more than a step; at the very end of the context it may not fit
            size = CHUNK if len(tokens) - done > 1 and self.pos + CHUNK <= self.n_text_ctx else 1
            piece = list(tokens[done : done + size])
            done += len(piece)
            ids = np.array([piece + [0] * (size - len(piece))], np.int32)
            inputs = {"tokens": ids, "pos": self.pos, "last": len(piece) - 1, "heard": self._last_heard}
            outputs = await self._executor.run(f"decode_{size}", inputs, fetch if done == len(tokens) else ())
            self.pos += len(piece)
        return outputs


@dataclass
class Decoded:
    """The transcript of one window at one temperature."""

    temperature: float
    no_speech_prob: float
    tokens: list[int] = field(default_factory=list)  # without the end
    text: str = ""
    sum_logprob: float = 0.0

    @property
    def avg_logprob(self) -> float:
        """Mean log-probability of a token, the end counted in."""
        return self.sum_logprob / (len(self.tokens) + 1)

    @property
    def compression_ratio(self) -> float:
        """How much smaller zlib makes the text: a loop is far above 2.4. 0 for no text."""
        data = self.text.encode()
        return len(data) / len(zlib.compress(data)) if data else 0.0


class WindowDecoder:
    """One window: the prompt is read once, then the transcript is decoded, again if a temperature did not do."""

    def __init__(self, executor: Executor, tokenizer: Tokenizer, rules: Rules, n_text_ctx: int, heard: int) -> None:
        self._reader = TokenReader(executor, n_text_ctx, heard)
        self.executor, self._tokenizer, self.rules, self.heard = executor, tokenizer, rules, heard
        self.first_logits = np.empty(0, np.float32)  # of the first token
        self.begin = 0  # where it stands
        self.no_speech_prob = 0.0

    async def read_prompt(self, previous: Sequence[int], start: Sequence[int]) -> None:
        """previous: tokens of earlier text or of the user's prompt; start: what a transcript begins with, sot first."""
        previous = previous[-prompt_room(self._reader.n_text_ctx) :]  # the most recent ones
        before = [self._tokenizer.start_of_prev, *previous] if previous else []
        logits = (await self._reader.feed([*before, start[0]], ("logits",)))["logits"][0]
        self.no_speech_prob = float(np.exp(logits[self._tokenizer.no_speech] - _log_sum(logits)))
        if len(start) > 1:
            logits = (await self._reader.feed(start[1:], ("logits",)))["logits"][0]
        self.first_logits, self.begin = logits, self._reader.pos

    async def decode(
        self, temperature: float, rng: random.Random, room: int | None = None
    ) -> AsyncIterator[Decoded]:
        """Yields the growing transcript after every token; the last one is whole. `read_prompt` comes first.

        room: how many tokens it may have; None: half of the context, as far as there is so much."""
        rules, reader, room = self.rules, self._reader, self.room(room)
        reader.pos = self.begin
        done = Decoded(temperature, self.no_speech_prob)
        stream = self._tokenizer.stream()
        step: dict[str, np.ndarray] = {"logits": self.first_logits[None]}
        while True:
            allowed = rules.allowed(done.tokens)
            if "logits" in step:
                scores = rules.scores(step["logits"][0], allowed, first=not done.tokens)
                token, logprob = rules.sample(scores, temperature, rng)
            else:
                token, logprob = rules.greedy(step, allowed)
            done.sum_logprob += logprob
            if token == rules.eot:
                break
            done.tokens.append(token)
            done.text += stream.push(token) if token < rules.eot else ""
            yield done
            if len(done.tokens) >= room:  # the context, or half of it, is full: the window ends here
                break
            step = await reader.feed([token], GREEDY if temperature == 0 else ("logits",))
        done.text += stream.flush()
        yield done

    def room(self, wanted: int | None = None) -> int:
        """How many tokens a transcript may have: half of the context, or what the prompt leaves, or fewer."""
        n = self._reader.n_text_ctx
        return min(n // 2, n - self.begin + 1, n if wanted is None else wanted)  # the last one is not read

    def decoded(self, temperature: float, tokens: Sequence[int], sum_logprob: float) -> Decoded:
        """A transcript of this window."""
        return Decoded(temperature, self.no_speech_prob, list(tokens), self._tokenizer.decode(tokens), sum_logprob)


def prompt_room(n_text_ctx: int) -> int:
    """How many tokens of a prompt leave half of the context to the transcript."""
    return n_text_ctx // 2 - 1


async def detect_language(
    executor: Executor, tokenizer: Tokenizer, n_text_ctx: int, heard: int
) -> tuple[str, dict[str, float]]:
    """The language of the window that was encoded last -> (the most probable, probability of each)."""
    logits = (await TokenReader(executor, n_text_ctx, heard).feed([tokenizer.sot], ("logits",)))["logits"][0]
    names, ids = list(tokenizer.languages), list(tokenizer.languages.values())
    scores = logits[ids].astype(np.float64)
    probabilities = np.exp(scores - _log_sum(scores))
    return names[int(probabilities.argmax())], dict(zip(names, probabilities.tolist()))


def rules_for(tokenizer: Tokenizer, n_vocab: int, generation_config: Mapping[str, Any], *, timestamps: bool,
              suppress_blank: bool, max_initial_timestamp: float | None, seconds_per_timestamp: float) -> Rules:
    """The rules of a checkpoint under the options of one transcription."""
    last = None if max_initial_timestamp is None else round(max_initial_timestamp / seconds_per_timestamp)
    return Rules(tokenizer.eot, tokenizer.timestamp_begin, n_vocab, tokenizer.suppressed(generation_config),
                 tokenizer.blank(generation_config) if suppress_blank else (), timestamps, last)
