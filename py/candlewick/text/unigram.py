"""Tokenizers that merge nothing: SentencePiece's unigram model (Kudo 2018) and BERT's WordPiece."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from candlewick.text.bpe import UNKNOWN, Model

_UNKNOWN_PENALTY = 10.0  # below the worst score, as in SentencePiece


class Unigram(Model):
    """Of all ways to write a word in pieces, the one of the best sum of scores.

    vocab: piece -> id; scores: piece -> log-probability, of the pieces that text may become. Neighbouring unknown characters
    are one unknown token, or their bytes if fallback.
    """

    def __init__(self, vocab: Mapping[str, int], scores: Mapping[str, float], unknown: int | None, fallback: bool) -> None:
        super().__init__(vocab, unknown, fallback, fuse=True)
        self._scores = scores

    @cached_property
    def _longest(self) -> dict[str, int]:
        """First character -> length of the longest piece that begins with it."""
        longest: dict[str, int] = {}
        for piece in self._scores:
            if piece and len(piece) > longest.get(piece[0], 0):
                longest[piece[0]] = len(piece)
        return longest

    def _encode(self, word: str) -> list[int]:
        pieces: list[str] = []
        unknown = ""
        for piece in [*self._best(word), ""]:
            if piece and piece not in self._scores:
                unknown += piece
                continue
            if unknown:  # none of its characters is a piece by itself
                pieces += self.pieces(unknown)
                unknown = ""
            pieces.append(piece)
        return self.ids(pieces[:-1])

    def _best(self, word: str) -> list[str]:
        """Viterbi's way through the word, from left to right; of equals the way that was found first."""
        scores, longest, n = self._scores, self._longest, len(word)
        worst = min(scores.values(), default=0.0) - _UNKNOWN_PENALTY
        best: list[float | None] = [0.0] + [None] * n
        begin = [0] * (n + 1)
        for at in range(n):
            here = best[at]
            assert here is not None, "every place is reached: a character is a piece or unknown"
            alone = False
            for end in range(at + 1, min(n, at + longest.get(word[at], 0)) + 1):
                score = scores.get(word[at:end])
                if score is None:
                    continue
                alone |= end == at + 1
                there = best[end]
                if there is None or here + score > there:
                    best[end], begin[end] = here + score, at
            there = best[at + 1]
            if not alone and (there is None or here + worst > there):
                best[at + 1], begin[at + 1] = here + worst, at
        pieces: list[str] = []
        end = n
        while end:
            pieces.append(word[begin[end] : end])
            end = begin[end]
        return pieces[::-1]


class WordPiece(Model):
    """From left to right the longest piece that fits; pieces within a word begin with `prefix`. A word that does not come out
    even, or is longer than `longest`, is one unknown token."""

    def __init__(self, vocab: Mapping[str, int], unknown: int | None, prefix: str, longest: int) -> None:
        super().__init__(vocab, unknown, fallback=False, fuse=False)
        self._prefix, self._limit = prefix, longest

    def _encode(self, word: str) -> list[int]:
        return self.ids(self._split(word) or ([UNKNOWN] if self.unknown is not None else []))

    def _split(self, word: str) -> list[str]:
        pieces: list[str] = []
        at = 0
        while at < len(word) <= self._limit:
            before = self._prefix if at else ""
            end = next((end for end in range(len(word), at, -1) if before + word[at:end] in self.vocab), at)
            if end == at:
                return []
            pieces.append(before + word[at:end])
            at = end
        return pieces
