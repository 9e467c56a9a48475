"""Several transcripts of one window at once: beam search, and the best of several samples.

The rules are those of the reference (github.com/openai/whisper, decoding.py: BeamSearchDecoder, GreedyDecoder,
MaximumLikelihoodRanker). The transcripts share a prompt and the audio, and grow as a tree: each step writes one row of keys
and values for each of them, and says which of the rows before it belong to whom. So where one transcript goes on from another,
nothing is copied, and all are rows of the same products.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np

from candlewick.executors import Executor
from candlewick.models.whisper.decoding import Decoded, WindowDecoder
from candlewick.models.whisper.options import Search

HIDDEN = -1e5  # added to the score of a row that belongs to another transcript


@dataclass(frozen=True)
class Transcript:
    """Tokens without the end, and the sum of their log-probabilities."""

    tokens: tuple[int, ...] = ()
    sum_logprob: float = 0.0


def best(transcripts: Sequence[Transcript], length_penalty: float | None) -> Transcript:
    """The most probable one for its length."""

    def score(t: Transcript) -> float:
        length = len(t.tokens)
        return t.sum_logprob / (max(length, 1) if length_penalty is None else ((5 + length) / 6) ** length_penalty)

    return max(transcripts, key=score)


class Beams:
    """The most probable beginnings of a transcript, and those that have ended."""

    def __init__(self, search: Search, eot: int) -> None:
        self.width, self.eot = search.beam_size, eot
        self.wanted = round(search.beam_size * search.patience)
        self.alive, self.sources = [Transcript()], [0]
        self.ended: list[Transcript] = []

    def extend(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> bool:
        """candidates of each living one, (token, log-probability) -> whether it is over. `sources` says from which of them each
        one that lives now comes."""
        ranked = [(one.sum_logprob + logprob, source, token) for source, (one, found) in enumerate(zip(self.alive, candidates))
                  for token, logprob in found]
        ranked.sort(key=lambda candidate: -candidate[0])
        alive, sources, ended = [], [], []
        for score, source, token in ranked:
            tokens = self.alive[source].tokens
            if token == self.eot:
                ended.append(Transcript(tokens, score))
                continue
            alive.append(Transcript((*tokens, token), score))
            sources.append(source)
            if len(alive) == self.width:
                break
        self.ended += ended[: max(self.wanted - len(self.ended), 0)]
        self.alive, self.sources = alive, sources
        return len(self.ended) >= self.wanted or not alive

    def results(self) -> list[Transcript]:
        """What has ended; where that is less than the width, the best of the others too."""
        return self.ended + self.alive[: max(self.width - len(self.ended), 0)]


class Samples:
    """Independent random transcripts."""

    def __init__(self, search: Search, eot: int) -> None:
        self.eot = eot
        self.alive, self.sources = [Transcript() for _ in range(search.best_of)], [*range(search.best_of)]
        self.ended: list[Transcript] = []

    def extend(self, picked: Sequence[tuple[int, float]]) -> bool:
        """picked: token and log-probability for each living one -> whether it is over."""
        alive, sources = [], []
        for source, (one, (token, logprob)) in enumerate(zip(self.alive, picked)):
            if token == self.eot:
                self.ended.append(Transcript(one.tokens, one.sum_logprob + logprob))
            else:
                alive.append(Transcript((*one.tokens, token), one.sum_logprob + logprob))
                sources.append(source)
        self.alive, self.sources = alive, sources
        return not alive

    def results(self) -> list[Transcript]:
        return self.ended + self.alive


class Tree:
    """The decoder's cache as a tree of `width` transcripts that share the prompt."""

    def __init__(self, executor: Executor, width: int, begin: int, heard: int) -> None:
        """begin: tokens of the prompt, which is in the cache of the other entries; heard: positions of audio."""
        self._executor, self._entry, self._width = executor, f"grow_{width}", width
        self._pos, self._place, self._last_heard = begin, begin, heard - 1
        capacity = executor.programs[self._entry].inputs["hidden"].shape[2]
        self._hidden = np.full((width, capacity), HIDDEN, np.float32)
        self._hidden[:, :begin] = 0
        self._rows = np.arange(width)

    async def plant(self) -> None:
        """Begin with the prompt."""
        await self._executor.run(f"plant_{self._width}", {}, ())

    async def grow(
        self, tokens: Sequence[int], sources: Sequence[int], first: Sequence[int], fetch: tuple[str, ...]
    ) -> dict[str, np.ndarray]:
        """One token for each of at most `width` transcripts, which go on from those in `sources`; first: the first timestamp
        that may follow each, from 0 on -> outputs of `Whisper.grow`, of `width` rows"""
        rest = self._width - len(tokens)
        self._hidden = self._hidden[[*sources, *[0] * rest]]
        self._hidden[self._rows, self._place + self._rows] = 0
        outputs = await self._executor.run(self._entry, {
            "tokens": np.array([[*tokens, *[0] * rest]], np.int32), "hidden": self._hidden[None],
            "first": np.array([*first, *[0] * rest], np.float32)[:, None], "pos": self._pos, "place": self._place,
            "heard": self._last_heard}, fetch)
        self._pos, self._place = self._pos + 1, self._place + self._width
        return outputs


async def decode_several(
    decoder: WindowDecoder, search: Search, temperature: float, rng: random.Random, room: int | None = None
) -> AsyncIterator[Decoded]:
    """Like `WindowDecoder.decode`: yields the transcript that leads after every step, and the best one at the end."""
    rules, width = decoder.rules, search.width(temperature)
    group = Samples(search, rules.eot) if temperature > 0 else Beams(search, rules.eot)
    tree = Tree(decoder.executor, width, decoder.begin, decoder.heard)
    await tree.plant()
    room = decoder.room(room)
    scores = rules.scores(decoder.first_logits, rules.allowed(()), first=True)
    if isinstance(group, Samples):
        over = group.extend([rules.sample(scores, temperature, rng) for _ in group.alive])
    else:
        over = group.extend([rules.most_probable(scores, width + 1)])
    while not over:
        leading = group.alive[0]
        yield decoder.decoded(temperature, leading.tokens, leading.sum_logprob)
        if len(leading.tokens) >= room:
            break
        allowed = [rules.allowed(one.tokens) for one in group.alive]
        step = await tree.grow([one.tokens[-1] for one in group.alive], group.sources,
                               [a.first - rules.timestamp_begin for a in allowed],
                               ("logits",) if isinstance(group, Samples) else ("candidates",))
        if isinstance(group, Samples):
            over = group.extend([rules.sample(rules.scores(row, a, first=False), temperature, rng)
                                 for row, a in zip(step["logits"], allowed)])
        else:
            over = group.extend([rules.candidates(row, a, width + 1) for row, a in zip(step["candidates"].tolist(), allowed)])
    chosen = best(group.results(), search.length_penalty)
    yield decoder.decoded(temperature, chosen.tokens, chosen.sum_logprob)


