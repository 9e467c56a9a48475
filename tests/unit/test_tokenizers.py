"""Byte-level BPE against the `tokenizers` package, and by itself."""

from __future__ import annotations

import functools
import itertools
import json
import random
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candlewick.text.bpe import BYTE_TO_CHAR
from candlewick.text.patterns import Pattern
from candlewick.text.split import GPT2
from candlewick.text.tokenizers import Tokenizer, load_tokenizer
from tests.unit.growth import lines_run

MODELS = Path(__file__).resolve().parents[2] / "models"
FILES = [MODELS / name / "tokenizer.json" for name in ("whisper-tiny.en", "test-whisper", "test-whisper-multilingual")]

SCRIPTS = {  # ranges of letters, and what stands between words
    "latin": (0x61, 0x7B), "accents": (0xC0, 0x180), "greek": (0x391, 0x3CA), "cyrillic": (0x410, 0x450),
    "hebrew": (0x5D0, 0x5EB), "arabic": (0x621, 0x64B), "devanagari": (0x904, 0x93A), "thai": (0xE01, 0xE2F),
    "hangul": (0xAC00, 0xAC80), "kana": (0x3041, 0x3097), "han": (0x4E00, 0x4F00), "emoji": (0x1F600, 0x1F640),
    "digits": (0x30, 0x3A), "other digits": (0x966, 0x970), "roman numerals": (0x2160, 0x2170), "signs": (0x21, 0x30),
    "mathematics": (0x1D400, 0x1D450), "combining": (0x300, 0x340), "spaces": (0x2000, 0x200B), "controls": (0x00, 0x20),
}
BETWEEN = [" ", " ", " ", "  ", "\n", "\t", "\n\n  ", "\u00a0", "\u3000", "\x85", "\x1c", "-", ", ", "'s ", "'ll ", "’s ",
           "\u200d"]
PICKED = [
    "", " ", "  ", "a", " a", "a ", "\n\n\n", "This is \U0001f600.", " leading", "trailing ",
    "don't we'll I've she's o'clock 'tis", "DON'T", "x'sy", "''s", "1st 2nd 42 3.14 ½ Ⅷ ٣", "tabs\t\tand\r\nlines\n",
    "a\u00a0b\u2003c\u3000d", "ﬁ ǅ ʰ", "e\u0301 vs é", "👨\u200d👩\u200d👧 family", "🇩🇪🇫🇷", "日本語のテキスト",
    "<|endoftext|>", "plain <|notimestamps|> text", "\ufeffbom", "\x00\x01", "a\x1cb \x1db", "_under_score", "snake_case_1",
    "ünïcödé", "\U0010ffff", "١٢٣", "中文，标点。", "a" * 300, "ab" * 200, " " * 50 + "x",
]


def read(file) -> Tokenizer:
    return load_tokenizer("json", file)


@functools.cache
def small() -> Tokenizer:
    """256 bytes and 120 merges."""
    return read(FILES[1].read_text())


def reference(path: Path):
    if not path.exists():
        pytest.skip(f"{path.parent.name} has no tokenizer.json; python3 serve.py --setup fetches it")
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: no parity is shown")
    return read(path.read_text()), tokenizers.Tokenizer.from_file(str(path))


def noise(rng: random.Random) -> str:
    """Words of a few scripts with all kinds of white space and signs between them."""
    words = []
    for _ in range(rng.randrange(1, 9)):
        low, high = SCRIPTS[rng.choice(list(SCRIPTS))]
        words.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 8))) + rng.choice(BETWEEN))
    return "".join(words)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
def test_ids_equal_the_reference(path):
    """BR-13, on thousands of strings in many scripts: the same ids, and decoding gives the text again."""
    ours, theirs = reference(path)
    rng = random.Random(5)
    for text in PICKED + [noise(rng) for _ in range(4000)]:
        wanted = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, special=True) == wanted, repr(text)
        plain = ours.encode(text)
        assert ours.decode(plain) == text
        assert not ours.control.intersection(plain)
        if not any(marker in text for marker in ours.added):
            assert plain == wanted
            assert ours.decode(wanted) == theirs.decode(wanted)


@pytest.mark.parametrize("path", FILES[:1], ids=lambda p: p.parent.name)
def test_any_ids_decode_as_in_the_reference(path):
    ours, theirs = reference(path)
    rng = random.Random(6)
    for _ in range(2000):
        ids = [rng.randrange(ours.n_vocab) for _ in range(rng.randrange(1, 12))]
        assert ours.decode(ids) == theirs.decode(ids) and ours.decode(ids, special=True) == theirs.decode(ids, False)


def test_markers_in_text_are_text():
    """BR-14: what a user writes never becomes a control token, unless the caller asks for it."""
    bpe = small()
    text = "hello <|endoftext|><|startoftranscript|> bye"
    assert not bpe.control.intersection(bpe.encode(text)) and bpe.decode(bpe.encode(text)) == text
    ids = bpe.encode(text, special=True)
    assert bpe.control.intersection(ids) == {bpe.added["<|endoftext|>"], bpe.added["<|startoftranscript|>"]}
    assert bpe.decode(ids) == "hello  bye" and bpe.decode(ids, special=True) == text


def test_every_character_has_ids():
    """BR-15: with a vocabulary of 256 bytes and a few merges, and even without some bytes, no exception and no id -1."""
    bpe = small()
    for code in range(0, sys.maxunicode, 997):
        text = chr(code)
        ids = bpe.encode(text)
        assert ids and min(ids) >= 0
        assert bpe.decode(ids) == (text if unicodedata.category(text) != "Cs" else "\ufffd")
    spec = json.loads(FILES[1].read_text())
    for char in "Ĥ¬":
        spec["model"]["vocab"].pop(char, None)
    spec["model"]["merges"] = []
    poor = read(spec)
    assert poor.encode("日本語 \U0001f600 ok") and poor.decode(poor.encode("ok")) == "ok"
    spec["model"]["unk_token"] = "!"
    assert spec["model"]["vocab"]["!"] in read(spec).encode("日本語\U0001f600" + bytes([0xE3, 0x82, 0xAC]).decode())


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_words_join_to_the_text_again(text):
    assert "".join(Pattern(GPT2).words(text)) == text


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_round_trip(text):
    bpe = small()
    assert bpe.decode(bpe.encode(text)) == text


def test_a_long_word_takes_no_square_time():
    bpe = small()
    short, long = (lines_run(lambda n=n: bpe.encode("the" * n)) for n in (500, 2000))
    assert short > 500 and long < 6 * short, "four times the text, sixteen times the work?"
    assert bpe.decode(bpe.encode("the" * 30000)) == "the" * 30000


# ---- streaming ----------------------------------------------------------------------------------------------------

def pushed(bpe: Tokenizer, ids: list[int]) -> tuple[list[str], str]:
    stream = bpe.stream()
    return [stream.push(i) for i in ids], stream.flush()


def test_whole_characters_as_soon_as_they_are_there():
    """BR-16: two adjacent emoji of four byte tokens each, then the same cut after three bytes."""
    bpe = small()
    ids = [bpe.vocab[BYTE_TO_CHAR[b]] for b in "\U0001f600\U0001f680".encode()]
    assert len(ids) == 8
    assert pushed(bpe, ids) == (["", "", "", "\U0001f600", "", "", "", "\U0001f680"], "")
    pieces, tail = pushed(bpe, ids[:7])
    assert pieces == ["", "", "", "\U0001f600", "", "", ""] and tail == "\ufffd"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 390), max_size=40))
def test_joined_pieces_equal_the_full_decode(ids):
    bpe = small()
    pieces, tail = pushed(bpe, ids)
    assert "".join(pieces) + tail == bpe.decode(ids)


# ---- what is refused ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("change", "words"), [
    ({"model": {"type": "WordLevel"}}, "WordLevel"), ({"pre_tokenizer": {"type": "Turns"}}, "Turns"),
    ({"pre_tokenizer": None}, "wanted BPE of bytes"), ({"normalizer": {"type": "Nmt"}}, "Nmt")])
def test_other_tokenizers_are_refused(change, words):
    spec = json.loads(FILES[1].read_text())
    with pytest.raises(ValueError, match=words):
        read({**spec, **change})


FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


@pytest.mark.parametrize("flags", list(itertools.product((False, True), repeat=4)),
                         ids=lambda flags: " ".join(name for name, on in zip(FLAGS, flags) if on) or "none")
@pytest.mark.parametrize("normalizer", [None, {"type": "Lowercase"}, {"type": "Sequence", "normalizers": [{"type": "NFC"}]}])
def test_added_tokens_are_found_as_in_the_reference(flags, normalizer):
    """White space beside them, whole words only, before or after normalizing."""
    native = pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: no parity is shown")
    how = dict(zip(FLAGS, flags))
    theirs = native.Tokenizer.from_str(json.dumps(json.loads(FILES[1].read_text()) | {"normalizer": normalizer}))
    theirs.add_special_tokens([native.AddedToken("<x>", **how | {"normalized": False})])
    theirs.add_tokens([native.AddedToken(text, **how) for text in ("wo", "É", "e\u0301")])
    ours, rng = read(theirs.to_str()), random.Random(1)
    parts = ["<x>", "wo", "WO", "a", "b", " ", "  ", "\n", "É", "é", "e", "\u0301", "_", "<|endoftext|>", "w", "!", "\u3000"]
    for _ in range(200):
        text = "".join(rng.choice(parts) for _ in range(rng.randint(1, 14)))
        assert ours.encode(text, special=True) == theirs.encode(text, add_special_tokens=False).ids, repr(text)


@pytest.mark.parametrize("text", ["", "<!doctype html>", "[]", "{}", '{"model": 3}'])
def test_other_files_are_refused(text):
    with pytest.raises(ValueError, match="tokenizer.json"):
        read(text)


# ---- files that are not what they should be ---------------------------------------------------------------------------

GOOD = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, "pre_tokenizer": {"type": "ByteLevel"},
        "added_tokens": [{"id": 3, "content": "<|x|>", "special": True}]}
BAD = {
    "model": [("x", "object with a `model`"), (None, "object with a `model`")],
    "model.vocab": [(None, "model.vocab.*nothing"), ([["a", 0]], "model.vocab"), ({"a": "0"}, "not whole numbers"),
                    ({"a": -1}, "not whole numbers"), ({"a": True}, "not whole numbers")],
    "model.merges": [(None, "model.merges.*nothing"), ({}, "model.merges")],
    "added_tokens": [({}, "added_tokens"), (["x"], "added_tokens.*'x'"), ([{"id": 1}], "added_tokens"),
                     ([{"id": "1", "content": "x"}], "added_tokens"), ([{"id": -1, "content": "x"}], "added_tokens")],
    "pre_tokenizer": [(None, "ByteLevel"), ({"type": "Sequence", "pretokenizers": [5]}, "a type, got 5"),
                      ({"type": "Sequence", "pretokenizers": None}, "list its parts"), ("ByteLevel", "ByteLevel")],
}


@pytest.mark.parametrize(("key", "value", "words"), [(key, *case) for key, cases in BAD.items() for case in cases])
def test_damaged_tokenizer_is_told_in_words(key, value, words):
    spec = json.loads(json.dumps(GOOD))
    *path, last = key.split(".")
    node = spec
    for part in path:
        node = node[part]
    node[last] = value
    with pytest.raises(ValueError, match=f"tokenizer.json: .*{words}"):
        read(json.dumps(spec))


@pytest.mark.parametrize("merge", ["ab", 5, ["a"], "b a", None, "a b ", ["b", "a", "b"]])
def test_damaged_merge_is_named(merge):
    bpe = read(GOOD | {"model": GOOD["model"] | {"merges": ["a b", merge]}})
    with pytest.raises(ValueError, match="tokenizer.json: merge 1, .* is not a pair"):
        bpe.encode("ab ba")
    assert read(GOOD).encode("ab") == [2]


@pytest.mark.parametrize("text", ["", "[", "[" * 200_000, '{"model":' + "[" * 100_000 + "]" * 100_000 + "}",
                                  '{"a":' * 100_000, "[]", "5" * 5000])
def test_no_tokenizer_at_all(text):
    with pytest.raises(ValueError, match="^tokenizer.json: "):
        read(text)
