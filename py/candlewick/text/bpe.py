"""Byte-level BPE, as GPT-2 made it common (Sennrich et al. 2016; Radford et al. 2019), read from a tokenizer.json.

Encoding: text is cut at special tokens (only if asked for), then into words, each word into UTF-8 bytes, and
neighbouring pieces are merged, always the pair that was learned first. Decoding is a look-up and a UTF-8 decoder.

Nothing beyond the standard library is needed. Python's `re` lacks the Unicode classes of GPT-2's word pattern, so
letters, numbers, spaces and the rest beyond ASCII are first replaced by one ASCII stand-in each; the pattern runs on
those.
"""

from __future__ import annotations

import codecs
import heapq
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

# GPT-2's pattern: contractions, letters, numbers, other signs (each with one space before it), white space
_WORDS = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
# Unicode's White_Space property beyond ASCII; str.isspace() knows four control characters more
_SPACES = frozenset("\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B))))


class _StandIns(dict):
    """Code point -> itself if ASCII, or a sign of its class: X letter (in no contraction), 0 number, \\v space, !."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = unicodedata.category(char)[0]
        stand_in = char if code < 128 else "\v" if char in _SPACES else {"L": "X", "N": "0"}.get(kind, "!")
        self[code] = stand_in
        return stand_in


_stand_ins = _StandIns()


def split_words(text: str) -> list[str]:
    """Text -> the words that are encoded one by one; joined they are the text again."""
    return [text[m.start() : m.end()] for m in _WORDS.finditer(text.translate(_stand_ins))]


def byte_alphabet() -> dict[int, str]:
    """Byte -> the printable character that stands for it in vocabulary files: itself, or one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in set(printable))
    return {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}


BYTE_TO_CHAR = byte_alphabet()
CHAR_TO_BYTE = {c: b for b, c in BYTE_TO_CHAR.items()}


class BPE:
    """A tokenizer.json of the byte-level kind."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """spec: the parsed tokenizer.json. Raises ValueError for kinds of tokenizer that this class does not read."""
        model = spec.get("model")
        if not isinstance(model, dict):
            raise ValueError("tokenizer.json: wanted an object with a `model`; this is another kind of file")
        if model.get("type", "BPE") != "BPE" or not _is_byte_level(spec.get("pre_tokenizer")):
            raise ValueError("tokenizer.json: wanted a BPE model with the ByteLevel pre-tokenizer, got "
                             f"{model.get('type', 'no model')} with {_kind(spec.get('pre_tokenizer'))}")
        if spec.get("normalizer"):
            raise ValueError(f"tokenizer.json: normalizer {_kind(spec['normalizer'])} is not supported here")
        self.vocab: dict[str, int] = _vocabulary(model.get("vocab"))
        self.prefix_space = bool(_byte_level(spec["pre_tokenizer"]).get("add_prefix_space", False))
        added = _added_tokens(spec.get("added_tokens"))
        self.added: dict[str, int] = {t["content"]: t["id"] for t in added}
        self.special = frozenset(t["id"] for t in added if t.get("special"))
        self._merge_list = model.get("merges")
        if not isinstance(self._merge_list, list):
            raise ValueError(f"tokenizer.json: model.merges must be a list of pairs, got {_short(self._merge_list)}")
        unknown = model.get("unk_token")
        self._unknown = self.vocab.get(unknown) if isinstance(unknown, str) else None
        self._words: dict[str, tuple[int, ...]] = {}

    @staticmethod
    def from_text(text: str) -> BPE:
        """The content of a tokenizer.json. Raises ValueError if it is not one."""
        try:
            if _DEEP.search(text):
                raise RecursionError
            spec = json.loads(text)
        except RecursionError:
            raise ValueError("tokenizer.json: brackets nest too deep; this is no tokenizer") from None
        except ValueError as e:
            raise ValueError(f"tokenizer.json: not JSON ({e})") from None
        if not isinstance(spec, dict):
            raise ValueError("tokenizer.json: wanted an object with a `model`; this is another kind of file")
        return BPE(spec)

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return 1 + max(max(self.vocab.values(), default=-1), max(self.added.values(), default=-1))

    # ---- encoding -----------------------------------------------------------------------------------------------

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Text -> ids. Markers such as <|endoftext|> in it are plain text unless `special`: what a user typed controls
        nothing. Characters that cannot be written in UTF-8 (lone surrogates) become U+FFFD."""
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if not text.isascii() else text
        if not special or not self.added:
            return self._encode_plain(text)
        ids: list[int] = []
        for part in self._marker.split(text):
            if part:
                ids += [self.added[part]] if part in self.added else self._encode_plain(part)
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        if self.prefix_space and text and text[0] not in " \t\n\r\f\v":
            text = " " + text
        ids: list[int] = []
        for word in split_words(text):
            found = self._words.get(word)
            if found is None:
                found = tuple(self._merge(word))
                if len(word) < 64 and len(self._words) < 1 << 16:
                    self._words[word] = found
            ids += found
        return ids

    def encode_bytes(self, data: bytes) -> list[int]:
        """Bytes -> an id for each, nothing merged. A byte that the vocabulary lacks is the unknown token, or left out."""
        ids = (self.vocab.get(BYTE_TO_CHAR[b], self._unknown) for b in data)
        return [i for i in ids if i is not None]

    @cached_property
    def _marker(self) -> re.Pattern[str]:
        return re.compile("(" + "|".join(re.escape(c) for c in sorted(self.added, key=len, reverse=True)) + ")")

    @cached_property
    def _merges(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(left id, right id) -> (rank, merged id). Made at the first encode: reading speech only decodes."""
        table = {}
        for rank, pair in enumerate(self._merge_list):
            try:
                left, right = pair.split(" ") if isinstance(pair, str) else pair
                table[self.vocab[left], self.vocab[right]] = rank, self.vocab[left + right]
            except (TypeError, ValueError, KeyError):
                raise ValueError(f"tokenizer.json: merge {rank}, {_short(pair)}, is not a pair of pieces of the vocabulary "
                                 "that make a third one; the file is damaged") from None
        return table

    def _merge(self, word: str) -> Iterable[int]:
        """One word -> ids. A linked list of pieces and a heap of possible merges: n log n, however long the word."""
        ids = self.encode_bytes(word.encode())
        before, after = list(range(-1, len(ids) - 1)), list(range(1, len(ids) + 1))
        heap: list[tuple[int, int, int, int, int]] = []

        def consider(left: int) -> None:
            right = after[left] if left >= 0 else len(ids)
            if right < len(ids) and (found := self._merges.get((ids[left], ids[right]))):
                heapq.heappush(heap, (found[0], left, ids[left], ids[right], found[1]))

        for position in range(len(ids) - 1):
            consider(position)
        while heap:
            _, left, left_id, right_id, merged = heapq.heappop(heap)
            right = after[left]
            if ids[left] != left_id or right >= len(ids) or ids[right] != right_id:
                continue  # one of the two has been merged since
            ids[left], ids[right] = merged, -1
            after[left] = after[right]
            if after[right] < len(ids):
                before[after[right]] = left
            consider(before[left])
            consider(left)
        return (i for i in ids if i >= 0)

    # ---- decoding -----------------------------------------------------------------------------------------------

    @cached_property
    def _pieces(self) -> dict[int, str]:
        return {i: piece for piece, i in self.vocab.items()}

    @cached_property
    def _added_names(self) -> dict[int, str]:
        return {i: name for name, i in self.added.items()}

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for; nothing for an id that the vocabulary does not have."""
        if token in self._added_names:
            return self._added_names[token].encode()
        piece = self._pieces.get(token, "")
        return bytes(CHAR_TO_BYTE[c] for c in piece) if all(c in CHAR_TO_BYTE for c in piece) else piece.encode()

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Ids -> text; special tokens are left out unless `special`. Bytes that are no UTF-8 become U+FFFD."""
        shown = (i for i in ids if special or i not in self.special)
        return b"".join(map(self.token_bytes, shown)).decode("utf-8", "replace")


class StreamDecoder:
    """Decodes ids one by one into whole characters: bytes of an unfinished character wait for the rest."""

    def __init__(self, bpe: BPE) -> None:
        self._bpe = bpe
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """-> the characters that this token completes; special tokens say nothing."""
        return "" if token in self._bpe.special else self._utf8.decode(self._bpe.token_bytes(token))

    def flush(self) -> str:
        """-> U+FFFD if a character was left unfinished, else nothing. Call once at the end."""
        return self._utf8.decode(b"", True)


# Openers that follow one another: a stack overflow in the parser would end the interpreter of a page.
_DEEP = re.compile(r"(?:[\[{]\s*){65}")


def _vocabulary(vocab: Any) -> dict[str, int]:
    """model.vocab, if it gives every piece a number."""
    if not isinstance(vocab, dict):
        raise ValueError(f"tokenizer.json: model.vocab must give each piece its id, got {_short(vocab)}")
    if not set(map(type, vocab.values())) <= {int} or min(vocab.values(), default=0) < 0:
        raise ValueError("tokenizer.json: model.vocab has ids that are not whole numbers from 0 on; the file is damaged")
    return vocab


def _added_tokens(added: Any) -> list[dict[str, Any]]:
    """added_tokens, if each has its text and its number."""
    added = [] if added is None else added
    for token in added if isinstance(added, list) else [added]:
        good = isinstance(token, dict) and isinstance(token.get("content"), str) and type(token.get("id")) is int
        if not good or token["id"] < 0:
            raise ValueError("tokenizer.json: added_tokens must list objects with an id from 0 on and a content, got "
                             + _short(token))
    return added


def _short(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:60]


def _steps(node: Any) -> list[dict[str, Any]]:
    """A pre-tokenizer as the list of those it is made of."""
    steps = node.get("pretokenizers") if isinstance(node, dict) and node.get("type") == "Sequence" else [node]
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _byte_level(node: Any) -> dict[str, Any]:
    return next((step for step in _steps(node) if step.get("type") == "ByteLevel"), {})


def _is_byte_level(node: Any) -> bool:
    return len(_steps(node)) == 1 and bool(_byte_level(node)) and _byte_level(node).get("use_regex", True)


def _kind(node: Any) -> str:
    return str(node.get("type")) if isinstance(node, dict) else str(node)
