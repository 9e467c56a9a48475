r"""Cutting text into the words that a tokenizer encodes one by one: the pre-tokenizers of tokenizer files.

A step takes a piece of text, and its place in the whole, and gives the pieces it is cut into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from candlewick.text.patterns import ASCII_PUNCTUATION, Pattern

START, AFTER, INSIDE = 0, 1, 2  # places of a piece: text begins with it; it follows a token; it goes on with a text
Step = Callable[[str, int], list[str]]

_END_OF_LINE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _END_OF_LINE)
QWEN2 = LLAMA3.replace("{1,3}", "")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s|"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _END_OF_LINE
TEKKEN = _CASED % ("", "") + r"\p{N}" + _SIGNS
GPT4O = _CASED % (("(?i:'s|'t|'re|'ve|'m|'ll|'d)?",) * 2) + r"\p{N}{1,3}" + _SIGNS

PRESETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais"), (GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), (r"\p{N}", GPT2)),
    **dict.fromkeys(("llama-bpe", "llama-v3", "llama3", "falcon3", "dbrx", "smaug-bpe", "pixtral"), (LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), (QWEN2,)),
    "tekken": (TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4"), (GPT4O,)),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
"""tokenizer.ggml.pre -> patterns that cut one after the other."""
WHOLE_WORDS = frozenset(("llama-bpe", "llama-v3", "llama3", "falcon3", "pixtral", "tekken"))
"""Of these kinds a word that is in the vocabulary is one token, whatever the merges would give."""


def preset(name: str) -> list[Step]:
    """The cutting that a GGUF file names. Raises ValueError for a name that is not known."""
    if name not in PRESETS:
        raise ValueError(f"tokenizer.ggml.pre: wanted one of {', '.join(PRESETS)}, got {name!r}; "
                         "its way of cutting words is not known here")
    return [by_pattern(Pattern(source)) for source in PRESETS[name]]


def by_pattern(pattern: Pattern) -> Step:
    """Matches, and what lies between them, are words."""
    return lambda text, place: pattern.words(text)


def run(steps: Iterable[Step], text: str, place: int) -> list[str]:
    """All steps, one after the other, on each piece."""
    words = [text]
    for step in steps:
        words = [w for i, word in enumerate(words) for w in step(word, AFTER if i else place)]
    return words


# ---- what tokenizer.json says -------------------------------------------------------------------------------------

def steps_of(node: Any) -> list[Mapping[str, Any]]:
    """A pre-tokenizer, normalizer or decoder as the list of those it is made of."""
    if node is None:
        return []
    if not isinstance(node, Mapping) or not isinstance(node.get("type"), str):
        raise ValueError(f"tokenizer.json: wanted an object with a type, got {repr(node)[:60]}")
    if node["type"] != "Sequence":
        return [node]
    parts = next((node[key] for key in ("pretokenizers", "normalizers", "decoders", "processors") if key in node), None)
    if not isinstance(parts, list):
        raise ValueError(f"tokenizer.json: a Sequence must list its parts, got {repr(parts)[:60]}")
    return [step for part in parts for step in steps_of(part)]


def from_json(node: Any) -> list[Step]:
    """The `pre_tokenizer` of a tokenizer.json. Raises ValueError for kinds that are not read."""
    return [_step(part) for part in steps_of(node)]


def _step(part: Mapping[str, Any]) -> Step:
    kind = part["type"]
    if kind == "ByteLevel":
        return _byte_level(bool(part.get("add_prefix_space", True)), bool(part.get("use_regex", True)))
    if kind == "Split":
        return _split(part)
    if kind == "Digits":
        pattern = Pattern(r"\p{N}" if part.get("individual_digits") else r"\p{N}+")
        return by_pattern(pattern)
    if kind == "Metaspace":
        return _metaspace(part)
    if kind == "Punctuation":
        return _behaviour(_PUNCTUATION.spans, str(part.get("behavior", "Isolated")), False)
    if kind == "Whitespace":
        return _behaviour(Pattern(r"\w+|[^\w\s]+").spans, "Removed", True)
    if kind == "WhitespaceSplit":
        return _behaviour(Pattern(r"\s").spans, "Removed", False)
    if kind == "BertPreTokenizer":
        space, signs = _behaviour(Pattern(r"\s").spans, "Removed", False), by_pattern(_PUNCTUATION)
        return lambda text, place: run((space, signs), text, place)
    raise ValueError(f"tokenizer.json: pre-tokenizer {kind} is not read here")


_PUNCTUATION = Pattern(r"[\p{P}" + "".join("\\" + c for c in sorted(ASCII_PUNCTUATION)) + "]")


def _byte_level(prefix: bool, use_regex: bool) -> Step:
    pattern = Pattern(GPT2)

    def step(text: str, place: int) -> list[str]:
        if prefix and text and text[0] != " ":
            text = " " + text
        return pattern.words(text) if use_regex else [text]

    return step


def _metaspace(part: Mapping[str, Any]) -> Step:
    sign = str(part.get("replacement", "\u2581"))
    scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
    cut = part.get("split", True)
    spans = _literal(sign)

    def step(text: str, place: int) -> list[str]:
        text = text.replace(" ", sign)
        wanted = place == START if scheme == "first" else scheme == "always" and place != INSIDE
        if wanted and text and not text.startswith(sign):
            text = sign + text
        return _cut(text, spans(text), "MergedWithNext") if cut else [text]

    return step


def _split(part: Mapping[str, Any]) -> Step:
    return _behaviour(finder(part), str(part.get("behavior", "Isolated")), bool(part.get("invert", False)))


Find = Callable[[str], list[tuple[int, int]]]


def finder(part: Mapping[str, Any]) -> Find:
    """What the `pattern` of a Split or a Replace finds."""
    pattern = part.get("pattern")
    if isinstance(pattern, Mapping) and isinstance(pattern.get("Regex"), str):
        return Pattern(pattern["Regex"]).check().spans
    if isinstance(pattern, Mapping) and isinstance(pattern.get("String"), str) and pattern["String"]:
        return _literal(pattern["String"])
    raise ValueError(f"tokenizer.json: a {part['type']} wants a pattern with a Regex or a String, got {repr(pattern)[:60]}")


def _literal(sign: str) -> Find:
    def find(text: str) -> list[tuple[int, int]]:
        spans, at = [], text.find(sign)
        while at >= 0:
            spans.append((at, at + len(sign)))
            at = text.find(sign, at + len(sign))
        return spans

    return find


def _behaviour(find: Find, behaviour: str, invert: bool) -> Step:
    if behaviour not in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        raise ValueError(f"tokenizer.json: a Split that is {behaviour} is not read here")

    return lambda text, place: _cut(text, find(text), behaviour, invert)


def _cut(text: str, spans: list[tuple[int, int]], behaviour: str, invert: bool = False) -> list[str]:
    """Words of a text in which `spans` are separators, or (inverted) what is between them."""
    ends = [0, *(end for span in spans for end in span), len(text)]
    between = [(a, b, invert) for a, b in zip(ends[::2], ends[1::2]) if a < b]
    edges = sorted([(a, b, not invert) for a, b in spans] + between)
    if behaviour == "Removed":
        return [text[a:b] for a, b, separator in edges if not separator]
    backwards = behaviour == "MergedWithNext"
    words: list[list[int]] = []
    before = False  # was the neighbour a separator
    for a, b, separator in reversed(edges) if backwards else edges:
        alike = separator == before if behaviour == "Contiguous" else separator and not before and behaviour != "Isolated"
        if alike and words:
            words[-1] = [a, words[-1][1]] if backwards else [words[-1][0], b]
        else:
            words.append([a, b])
        before = separator
    return [text[a:b] for a, b in (reversed(words) if backwards else words)]
