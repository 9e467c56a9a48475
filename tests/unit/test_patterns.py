"""Patterns with Unicode classes find what they find in the native `tokenizers` package."""

from __future__ import annotations

import random
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from candlewick.text.patterns import Pattern
from candlewick.text.split import PRESETS
from tests.unit.test_tokenizer_kinds import PICKED, noise

SOURCES = sorted({source for sources in PRESETS.values() for source in sources}) + [
    r"\p{L}+|\P{L}", r"[^\s\p{N}a-f]+|\S", r"[\S]+\.|\d+|\w+|.", r"\p{Lu}\p{Ll}*|[\p{P}\p{S}]|\p{Z}+|[\W]", r"\p{M}|\p{C}|\D",
    r"[\p{^L}]{2,4}?|.", r"(?:\p{Lt}|\p{Lm}|\p{Lo})+|\p{Mn}\p{Me}?|\p{Nl}|\p{No}", r"[]\[-]+",
    r"(?<!\p{L})\p{L}(?=\p{N})|\n\n+",
    r"é?\p{L}+|\P{L}", r"ß|[^\s\p{N}À-ÿ]+|\S", r"[\S]+ü|\d+|\w+|.", "(?i:straße)|\\p{M}|\\p{C}|x"]


@pytest.mark.parametrize("source", SOURCES)
def test_words_equal_the_reference(source):
    theirs, ours = pre_tokenizers.Split(Regex(source), "isolated"), Pattern(source)
    rng = random.Random(7)
    for text in [*filter(None, PICKED), *(noise(rng) + rng.choice("éßÀü漢가\u017f\u212aSs'") for _ in range(400))]:
        assert ours.words(text) == [word for word, _ in theirs.pre_tokenize_str(text)], repr(text)


def test_classes_hold_the_characters_that_they_should():
    """Every 37th character of Unicode, by what the interpreter itself knows of it (a reference may know a newer Unicode)."""
    for code in range(0, sys.maxunicode, 37):
        char = chr(code)
        assert bool(Pattern(r"\p{L}").spans(char)) == char.isalpha(), hex(code)
        assert bool(Pattern(r"\p{Nd}").spans(char)) == char.isdecimal(), hex(code)
        assert bool(Pattern(r"\P{Z}").spans(char)) != (unicodedata.category(char)[0] == "Z"), hex(code)
        assert Pattern(r"\pL").spans(char) == Pattern(r"\p{L}").spans(char)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SOURCES), st.text())
def test_words_join_to_the_text_again(source, text):
    assert "".join(Pattern(source).words(text)) == text


@pytest.mark.parametrize("source", [r"\p{Greek}", r"\p{Zs}", r"(", r"[", "a\\", r"\p{L", r"[[:alpha:]]", r"[a&&b]", r"*",
                                    "(?P<x", "(" * 5000])
def test_patterns_that_cannot_be_read_are_told(source):
    with pytest.raises(ValueError, match="tokenizer: the pattern .* cannot be read here"):
        Pattern(source).check()
