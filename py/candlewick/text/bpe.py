"""Byte pair encoding (Sennrich et al. 2016): a word is cut into its smallest pieces, and neighbours are merged, always the
pair that ranks first, until no pair is left that may be merged.

Two kinds, told apart by where the ranks come from. GPT-2's (Radford et al. 2019): pieces are bytes, written as printable
characters, and the file lists the merges in the order in which they were learned. SentencePiece's (Kudo and Richardson
2018): pieces are characters, a space is U+2581, each piece has a score, and what is not in the vocabulary is written as
bytes. A linked list and a heap make it n log n, however long the word.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

SPACE = "\u2581"  # what SentencePiece writes for a space
UNKNOWN = "\0unknown"  # a piece that no merge knows
_REMEMBERED = 1 << 15  # words
Rank = Callable[[str, str], "float | None"]


def byte_alphabet() -> dict[int, str]:
    """Byte -> the printable character that stands for it in vocabulary files: itself, or one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in set(printable))
    return {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}


BYTE_TO_CHAR = byte_alphabet()
CHAR_TO_BYTE = {c: b for b, c in BYTE_TO_CHAR.items()}
_CODES = {ord(c): b for c, b in CHAR_TO_BYTE.items()}


def spell(text: str) -> str:
    """Text -> its UTF-8 bytes, each as the character that stands for it."""
    return text.encode("utf-8", "replace").decode("latin-1").translate(BYTE_TO_CHAR)


def unspell(piece: str) -> bytes:
    """Back to bytes. A piece with other characters (an added token) is its own UTF-8."""
    try:
        return piece.translate(_CODES).encode("latin-1") if CHAR_TO_BYTE.keys() >= set(piece) else piece.encode()
    except UnicodeEncodeError:  # lone surrogates
        return piece.encode("utf-8", "replace")


def merge(pieces: list[str], rank: Rank) -> list[str]:
    """Pieces -> as few pieces as the ranks allow: again and again the pair of least rank, of equals the one further left."""
    n = len(pieces)
    if n < 2:
        return pieces
    heap = [(found, i, pieces[i], pieces[i + 1]) for i in range(n - 1) if (found := rank(pieces[i], pieces[i + 1])) is not None]
    heapq.heapify(heap)
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))
    while heap:
        _, left, a, b = heapq.heappop(heap)
        right = after[left]
        if right >= n or pieces[left] != a or pieces[right] != b:
            continue  # one of the two has been merged since
        pieces[left], pieces[right] = a + b, ""
        after[left] = following = after[right]
        if following < n:
            before[following] = left
            if (found := rank(a + b, pieces[following])) is not None:
                heapq.heappush(heap, (found, left, a + b, pieces[following]))
        previous = before[left]
        if previous >= 0 and (found := rank(pieces[previous], a + b)) is not None:
            heapq.heappush(heap, (found, previous, pieces[previous], a + b))
    return [piece for piece in pieces if piece]


class Model(ABC):
    """Words -> ids. What all kinds share: the vocabulary, what stands for characters that are not in it, words remembered."""

    def __init__(self, vocab: Mapping[str, int], unknown: int | None, fallback: bool, fuse: bool) -> None:
        self.vocab, self.unknown, self._fallback, self._fuse = vocab, unknown, fallback, fuse
        self._words: dict[str, list[int]] = {}

    def encode(self, word: str) -> list[int]:
        """One word, as the pre-tokenizers cut it. Whatever it holds, there is no error and no id that is not a token's."""
        found = self._words.get(word)
        if found is None:
            found = self._encode(word)
            if len(word) < 64 and len(self._words) < _REMEMBERED:
                self._words[word] = found
        return found

    @abstractmethod
    def _encode(self, word: str) -> list[int]:
        """As `encode`, for a word that is not remembered."""

    def ids(self, pieces: list[str]) -> list[int]:
        """Raises KeyError for a piece that the vocabulary does not have."""
        vocab, unknown = self.vocab, self.unknown
        return [vocab[p] if p != UNKNOWN or unknown is None else unknown for p in pieces]

    def pieces(self, word: str) -> list[str]:
        """The characters of a word; for one that is not in the vocabulary its bytes, or the unknown token, or nothing."""
        vocab = self.vocab
        if all(map(vocab.__contains__, word)):
            return list(word)
        pieces: list[str] = []
        for char in word:
            if char in vocab:
                pieces.append(char)
                continue
            as_bytes = [f"<0x{b:02X}>" for b in char.encode()]
            if self._fallback and all(map(vocab.__contains__, as_bytes)):
                pieces += as_bytes
            elif self.unknown is not None and not (self._fuse and pieces and pieces[-1] == UNKNOWN):
                pieces.append(UNKNOWN)
        return pieces


class BPE(Model):
    """Pairs rank by a list of merges.

    vocab: piece -> id; merges: "left right" or (left, right), first learned first; by_bytes: words are spelled in bytes
    before, else they are characters; fallback: what is none of the vocabulary becomes tokens `<0xHH>`; fuse: neighbouring
    unknown characters are one unknown token; whole: a word that is in the vocabulary is taken as it is; never: control
    tokens, which no merge may give (vocab does not have them); place: the file, for errors.
    """

    def __init__(self, vocab: Mapping[str, int], merges: Sequence[Any], *, by_bytes: bool, unknown: int | None = None,
                 fallback: bool = False, whole: bool = False, fuse: bool = False, never: Iterable[str] = (),
                 place: str = "tokenizer.json") -> None:
        super().__init__(vocab, unknown, fallback, fuse)
        self._merge_list, self._by_bytes, self._whole, self._place = merges, by_bytes, whole, place
        self._never = {spelled for name in never for spelled in (name, spell(name))}

    def _encode(self, word: str) -> list[int]:
        if self._by_bytes:
            word = spell(word)
        if self._whole and word in self.vocab:
            return [self.vocab[word]]
        separator, ranks = self._ranks
        merged = merge(self.pieces(word), lambda left, right: ranks.get(left + separator + right))
        try:
            return self.ids(merged)
        except KeyError as e:
            whole = str(e.args[0])
            parts = ((whole[:cut], whole[cut:]) for cut in range(1, len(whole)))
            rank = next(found for left, right in parts if (found := ranks.get(left + separator + right)) is not None)
            raise self._bad_merge(rank) from None

    @cached_property
    def _ranks(self) -> tuple[str, dict[str, int]]:
        """A separator, and left + separator + right -> rank. Made at the first encode: reading speech only decodes.

        Where the file has lines, they are the keys, so that making the table costs next to nothing."""
        merges = self._merge_list
        kinds = set(map(type, merges))
        order = range(len(merges))
        if kinds == {str} and " ".join(merges).count(" ") == 2 * len(merges) - 1:
            return " ", self._without_controls(" ", dict(zip(merges, order)))
        for rank in order:
            parts = _parts(merges[rank])
            if not (isinstance(parts, (list, tuple)) and len(parts) == 2 and all(isinstance(p, str) and p for p in parts)):
                raise self._bad_merge(rank)
        pairs = dict(zip(("\0".join(_parts(merge)) for merge in merges), order))
        return "\0", self._without_controls("\0", pairs)

    def _without_controls(self, separator: str, ranks: dict[str, int]) -> dict[str, int]:
        for name in self._never:
            for cut in range(1, len(name)):
                ranks.pop(name[:cut] + separator + name[cut:], None)
        return ranks

    def _bad_merge(self, rank: int) -> ValueError:
        return ValueError(f"{self._place}: merge {rank}, {repr(self._merge_list[rank])[:60]}, is not a pair of pieces of the "
                          "vocabulary that make a third one; the file is damaged")


def _parts(merge: Any) -> Any:
    return merge.split(" ") if isinstance(merge, str) else merge


class RankedBPE(Model):
    """GPT-2's where a file has the pieces and no merges (tiktoken, whisper.cpp): two neighbours may be merged if together they
    are a piece, the one of the smallest id first.

    vocab: piece -> id, spelled in bytes, all 256 single bytes among them.
    """

    def __init__(self, vocab: Mapping[str, int]) -> None:
        super().__init__(vocab, None, fallback=False, fuse=False)

    def _encode(self, word: str) -> list[int]:
        word, find = spell(word), self.vocab.get
        return [self.vocab[word]] if word in self.vocab else self.ids(merge(list(word), lambda left, right: find(left + right)))


class ScoredBPE(Model):
    """SentencePiece's: two neighbours may be merged if together they are a piece, the one of the best score first.

    vocab: piece -> id; losses: piece -> minus its score, of the pieces that text may become (no control tokens, no bytes).
    """

    def __init__(self, vocab: Mapping[str, int], losses: Mapping[str, float], unknown: int | None = None) -> None:
        super().__init__(vocab, unknown, fallback=True, fuse=False)
        self._losses = losses

    def _encode(self, word: str) -> list[int]:
        find = self._losses.get
        merged = merge(self.pieces(word), lambda left, right: find(left + right))
        return self.ids(merged)
