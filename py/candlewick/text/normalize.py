"""What tokenizer.json does to text before it is cut: its normalizers."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from candlewick.text.split import finder, steps_of

Normal = Callable[[str], str]

_CHINESE = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
            (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))


def from_json(node: Any) -> list[Normal]:
    """The `normalizer` of a tokenizer.json. Raises ValueError for kinds that are not read."""
    return [_normalizer(part) for part in steps_of(node)]


def _normalizer(part: Mapping[str, Any]) -> Normal:
    kind = part["type"]
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return lambda text: unicodedata.normalize(kind, text)
    if kind == "Prepend" and isinstance(part.get("prepend"), str):
        return lambda text: part["prepend"] + text if text else text
    if kind == "Replace" and isinstance(part.get("content"), str):
        find, content = finder(part), part["content"]
        return lambda text: _replace(text, find(text), content)
    if kind == "Lowercase":
        return _lower
    if kind == "Strip":
        left, right = part.get("strip_left", True), part.get("strip_right", True)
        return lambda text: (text.lstrip() if left else text) if not right else text.strip() if left else text.rstrip()
    if kind == "StripAccents":
        return _strip_accents
    if kind == "BertNormalizer":
        return _bert(part)
    raise ValueError(f"tokenizer.json: normalizer {kind} is not read here")


def _replace(text: str, spans: list[tuple[int, int]], content: str) -> str:
    if not spans:
        return text
    out, at = [], 0
    for start, end in spans:
        out += [text[at:start], content]
        at = end
    return "".join(out) + text[at:]


def _lower(text: str) -> str:
    """Each letter by itself: at the end of a word, a Greek sigma stays what it is elsewhere."""
    return text.lower() if text.isascii() else "".join(map(str.lower, text))


def _strip_accents(text: str) -> str:
    return "".join(c for c in text if unicodedata.category(c) != "Mn")


def _bert(part: Mapping[str, Any]) -> Normal:
    """BERT's: control characters go, white space is a space, Chinese characters are words, accents and case go."""
    lower = bool(part.get("lowercase", True))
    accents = part.get("strip_accents")
    accents = lower if accents is None else bool(accents)

    def normal(text: str) -> str:
        if part.get("clean_text", True):
            text = "".join(" " if c in "\t\n\r" or c.isspace() else c for c in text if c in "\t\n\r" or _stays(c))
        if part.get("handle_chinese_chars", True):
            text = "".join(f" {c} " if c > "\u33ff" and any(a <= ord(c) <= b for a, b in _CHINESE) else c for c in text)
        if accents:
            text = _strip_accents(unicodedata.normalize("NFD", text))
        return _lower(text) if lower else text

    return normal


def _stays(char: str) -> bool:
    return char != "\ufffd" and unicodedata.category(char) not in ("Cc", "Cf", "Co")
