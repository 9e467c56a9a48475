"""Unigram and WordPiece tokenizers of tokenizer.json, and BERT's normalizer, against the native `tokenizers` package."""

from __future__ import annotations

import functools
import json
import random

import pytest
import tokenizers as native
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from candlewick.text.tokenizers import load_tokenizer
from tests.unit.growth import lines_run
from tests.unit.test_tokenizer_kinds import PICKED, noise


def unigram(normalizer: normalizers.Normalizer, scheme: str) -> native.Tokenizer:
    made = native.Tokenizer(models.Unigram())
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return made


def word_piece(**options: bool | None) -> native.Tokenizer:
    made = native.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(**options)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(cleanup=False)
    return made


KINDS = {
    "unigram": lambda: unigram(normalizers.NFKC(), "always"),
    "unigram, lower": lambda: unigram(
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]), "never"),
    "bert": lambda: word_piece(), "bert, cased": lambda: word_piece(lowercase=False),
    "bert, accents": lambda: word_piece(strip_accents=False), "bert, bare": lambda: word_piece(
        clean_text=False, handle_chinese_chars=False, lowercase=False, strip_accents=True),
}


@functools.cache
def trained(kind: str) -> native.Tokenizer:
    made, rng = KINDS[kind](), random.Random(1)
    text = [noise(rng) + " the quick brown fox jumps over Ärger and ÉCLAIRS" for _ in range(800)]
    if kind.startswith("unigram"):
        trainer = trainers.UnigramTrainer(vocab_size=2500, special_tokens=["<unk>", "</s>"], unk_token="<unk>",
                                          show_progress=False)
    else:
        trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
                                            limit_alphabet=250, show_progress=False)
    made.train_from_iterator(text, trainer)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_the_reference(kind):
    theirs = trained(kind)
    ours, rng = load_tokenizer("json", theirs.to_str()), random.Random(2)
    extra = ["ΟΔΥΣΣΕΥΣ ΣΑΣ", "İstanbul ẞ", "漢字かな交じり文", "[CLS] a [SEP]", "[UNK]", "<unk> </s>", "x" * 101, "q" * 100,
             "a\x00b\ufffdc"]
    for text in PICKED + extra + [noise(rng) for _ in range(1500)]:
        wanted = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, special=True) == wanted, repr(text)
        if kind.startswith("bert"):
            assert ours.decode(wanted) == theirs.decode(wanted)
        plain = ours.encode(text)
        assert not {ours.added[name] for name in ("[CLS]", "[SEP]", "</s>") if name in ours.added}.intersection(plain)


def test_a_word_of_bytes():
    """With byte fallback, what is no piece is bytes, and text comes back whole."""
    pieces = [["<unk>", 0.0], *([f"<0x{b:02X}>", -9.0] for b in range(256)), ["▁", -2.0], ["a", -3.0], ["▁a", -2.5],
              ["ab", -4.0]]
    spec = {"model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": True}, "added_tokens": [],
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
            "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}}
    ours, theirs = load_tokenizer("json", spec), native.Tokenizer.from_str(json.dumps(spec | {"version": "1.0"}))
    for text in ["ab a", "a\U0001f600\U0001f680b", "日本", "aab"]:
        assert ours.encode(text) == theirs.encode(text).ids and ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("kind", ["unigram", "bert"])
def test_long_runs_take_no_square_time(kind):
    ours = load_tokenizer("json", trained(kind).to_str())
    for text in ("a", "日", "the quick ", "\U0001f600", "!"):
        short, long = (lines_run(lambda text=text, n=n: ours.encode(text * n)) for n in (300, 1200))
        assert short > 100 and long < 6 * short, (text, "four times the text, sixteen times the work?")
        assert ours.encode(text * 10_000)


@pytest.mark.parametrize(("model", "words"), [
    ({"type": "Unigram", "vocab": {"a": 0}}, "list pieces with their scores"),
    ({"type": "Unigram", "vocab": [["a"]]}, "their scores"),
    ({"type": "Unigram", "vocab": [["a", "b"]]}, "their scores"),
    ({"type": "Unigram", "vocab": [["a", float("nan")]]}, "their scores"),
    ({"type": "Unigram", "vocab": [["a", 1.0]], "unk_id": "0"}, "unk_id"),
    ({"type": "WordPiece", "vocab": ["a"]}, "each piece its id"),
    ({"type": "WordLevel", "vocab": {}}, "got 'WordLevel'"),
])
def test_damaged_models_are_told_in_words(model, words):
    with pytest.raises(ValueError, match=f"tokenizer.json: .*{words}"):
        load_tokenizer("json", {"model": model})
