r"""Regular expressions as tokenizer files write them: with Unicode classes (\p{L}, \p{N} ...), which Python's `re` lacks.

Each character beyond ASCII is first replaced by a stand-in for its class (one of 32 that nothing else uses, U+0080 to
U+009F), so that a class is a handful of characters and `re` runs over text of one byte a character. What is found are
places, and those are the same in the text itself. Only patterns that name characters beyond ASCII run over the text itself,
with classes written out as ranges, which takes a look at all of Unicode first.
"""

from __future__ import annotations

import functools
import itertools
import re
import string
import unicodedata
from collections.abc import Callable
from functools import cached_property

# Unicode's White_Space property beyond ASCII; str.isspace() knows four control characters more
_SPACES = frozenset("\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B))))
_CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Cc Cf Cs Co Cn").split()
_STAND_INS = {kind: chr(0x80 + i) for i, kind in enumerate([*_CATEGORIES, "space", "next line"])}
# They fold to ASCII letters where a pattern ignores case, so they stand for themselves.
_FOLDING = "\u017f\u212a"  # long s, Kelvin sign
_ALPHABET = frozenset([*map(chr, range(128)), *_STAND_INS.values(), *_FOLDING])


class _Table(dict):
    """Code point -> what stands for it; filled as characters are met."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if code < 128 or char in _FOLDING:
            stand_in = char
        elif char in _SPACES:
            stand_in = _STAND_INS["space"]
        else:
            stand_in = _STAND_INS["next line" if code == 0x85 else unicodedata.category(char)]
        self[code] = stand_in
        return stand_in


_table = _Table()


def stand_ins(text: str) -> str:
    """Text of the same length in which characters of one class are one character."""
    return text if text.isascii() else text.translate(_table)


def _having(prefix: str) -> set[str]:
    """What stands for the characters of a general category (Lu) or of all that begin so (L)."""
    found = {s for kind, s in _STAND_INS.items() if kind.startswith(prefix)} - {_STAND_INS["space"], _STAND_INS["next line"]}
    found |= {c for c in _ALPHABET if (c < "\x80" or c in _FOLDING) and unicodedata.category(c).startswith(prefix)}
    extra = {"Z": {"space"}, "C": {"next line"}, "Cc": {"next line"}}.get(prefix, set())
    return found | {_STAND_INS[name] for name in extra}


@functools.cache
def members(name: str) -> frozenset[str]:
    """A class by its name (L, Lu, s, d, w ...) as characters of the stand-in alphabet. Raises KeyError for others."""
    if name == "s":
        return frozenset("\t\n\v\f\r " + _STAND_INS["space"] + _STAND_INS["next line"])
    if name == "d":
        return frozenset(_having("Nd"))
    if name == "w":
        return frozenset(_having("L") | _having("M") | _having("Nd") | _having("Nl") | _having("Pc"))
    if name in _CATEGORIES or name in ("L", "M", "N", "P", "S", "Z", "C"):
        return frozenset(_having(name))
    raise KeyError(name)


@functools.cache
def _ranges() -> dict[str, list[tuple[int, int]]]:
    """Every category -> its code points, as ranges. All of Unicode is looked at, once."""
    found: dict[str, list[tuple[int, int]]] = {}
    at = 0
    for kind, run in itertools.groupby(map(unicodedata.category, map(chr, range(0x110000)))):
        size = sum(1 for _ in run)
        found.setdefault(kind, []).append((at, at + size - 1))
        at += size
    return found


def _all_ranges(name: str) -> list[tuple[int, int]]:
    """A class by its name as ranges of code points. Raises KeyError."""
    if name == "s":
        return [(ord(c), ord(c)) for c in sorted({*"\t\n\v\f\r \x85", *_SPACES})]
    kinds = {"d": ("Nd",), "w": ("L", "M", "Nd", "Nl", "Pc")}.get(name, (name,))
    ranges = sorted(r for kind, some in _ranges().items() if kind.startswith(kinds) for r in some)
    if not ranges:
        raise KeyError(name)
    return ranges


def _as_stand_ins(name: str, negated: bool) -> str:
    return "".join(map(re.escape, sorted(_ALPHABET - members(name) if negated else members(name))))


def _as_ranges(name: str, negated: bool) -> str:
    ranges = _all_ranges(name)
    if negated:
        edges = [0, *(edge for low, high in ranges for edge in (low, high + 1)), 0x110000]
        ranges = [(low, high - 1) for low, high in zip(edges[::2], edges[1::2]) if low < high]
    return "".join(re.escape(chr(low)) + "-" + re.escape(chr(high)) for low, high in ranges)


class Pattern:
    """One regular expression. Written for the patterns of tokenizers: alternatives, groups, look-ahead, repeats, classes."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._over_text = not source.isascii()

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        try:
            return re.compile(_translate(self.source, _as_ranges if self._over_text else _as_stand_ins))
        except (re.error, KeyError, IndexError, OverflowError, RecursionError) as e:
            raise ValueError(f"tokenizer: the pattern {self.source[:80]!r} cannot be read here ({e})") from None

    def check(self) -> Pattern:
        """Compile it now. Raises ValueError if it is a kind that is not read."""
        _ = self._compiled
        return self

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where it matches, one after the other; matches of nothing are left out."""
        shown = text if self._over_text else stand_ins(text)
        return [span for m in self._compiled.finditer(shown) if (span := m.span())[0] < span[1]]

    def words(self, text: str) -> list[str]:
        """The matches and what lies between them; joined they are the text."""
        words: list[str] = []
        at = 0
        for start, end in self.spans(text):
            if at < start:
                words.append(text[at:start])
            words.append(text[start:end])
            at = end
        if at < len(text):
            words.append(text[at:])
        return words


_ESCAPE = re.compile(r"\\(?:([pP])\{(\^?)([^}]*)\}|([pP])([LMNPSZC])|([sSdDwW])|(.))", re.DOTALL)


def _translate(source: str, render: Callable[[str, bool], str]) -> str:
    """A pattern with Unicode classes -> the pattern for `re`. render: name of a class, negated -> what stands in brackets."""
    out: list[str] = []
    inside = False  # of brackets
    at = 0
    while at < len(source):
        char = source[at]
        if char == "\\":
            m = _ESCAPE.match(source, at)
            if not m:
                raise KeyError("a backslash at the end")
            at = m.end()
            name = m[3] or m[5] or (m[6] and m[6].lower())
            if name is None:
                out.append(m[0])
                continue
            negated = (m[1] or m[4]) == "P" or bool(m[2]) or (m[6] or "s") in "SDW"
            out.append(render(name, negated) if inside else f"[{render(name, negated)}]")
            continue
        if inside and source.startswith(("[:", "&&"), at):
            raise KeyError("classes made of classes")
        if inside and char == "[":
            char = r"\["
        if char == "[" and not inside:
            inside = True
            first = 2 if source.startswith("[^", at) else 1
            if source.startswith("]", at + first):
                first += 1
            out.append(source[at : at + first])
            at += first
            continue
        if char == "]":
            inside = False
        out.append(char)
        at += 1
    return "".join(out)


ASCII_PUNCTUATION = frozenset(string.punctuation)
