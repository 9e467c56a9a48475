"""Tokenizers from one kind of file into another: the same ids afterwards, here and in the package tokenizers."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Native

from candlewick.text.split import PRESETS
from candlewick.text.tokenizers import load_tokenizer
from candlewick.text.transfer import merges_of, pre_name, to_gguf, to_json, to_llama2c
from candlewick.weights import gguf
from candlewick.weights.source import FileSource

MODELS = Path(__file__).parents[2] / "models"
TEXTS = ["", "Hello world", " two  spaces", "Once upon a time, there was a little girl named Lily.", "12345 6,789.01",
         "naïve Käse", "日本語のテキスト", "emoji 😀👩‍👩‍👧", "tab\tnew\nline\r\n", "can't I'LL", "<|im_end|> typed", "</s><s>",
         "a" * 200, "مرحبا بالعالم", "\0"]


def words(tokenizer, texts=TEXTS):
    return [tokenizer.encode(text) for text in texts]


def same(a, b):
    """Two tokenizers agree on ids, texts and what begins and ends."""
    assert words(a) == words(b)
    assert [a.decode(ids) for ids in words(a)] == [b.decode(ids) for ids in words(b)]
    assert (a.n_vocab, a.bos, a.add_bos, a.ends, a.special) == (b.n_vocab, b.bos, b.add_bos, b.ends, b.special)


@pytest.fixture(scope="module")
def byte_level():
    folder = MODELS / "test-llama"
    return json.loads((folder / "tokenizer.json").read_text()), json.loads((folder / "tokenizer_config.json").read_text())


@pytest.fixture(scope="module", params=["miniature", "published"])
def sentence_pieces(request):
    """A tokenizer.bin, and how many tokens it has."""
    if request.param == "miniature":
        return (MODELS / "test-llama-bin" / "tokenizer.bin").read_bytes(), 320
    return (request.getfixturevalue("shared") / "data" / "llama2c" / "tok512.bin").read_bytes(), 512


def native(spec):
    return Native.from_str(json.dumps(spec))


def test_byte_level_bpe_there_and_back(byte_level):
    spec, config = byte_level
    before = load_tokenizer("json", spec, config)
    meta = to_gguf("json", spec, config)
    assert meta["tokenizer.ggml.pre"] == "smollm" and meta["tokenizer.ggml.model"] == "gpt2"
    same(load_tokenizer("gguf", meta), before)
    back, settings = to_json(meta)
    same(load_tokenizer("json", back, settings), before)
    for text in TEXTS:
        assert native(back).encode(text).ids == native(spec).encode(text).ids
    assert (settings["bos_token"], settings["eos_token"]) == (config["bos_token"], config["eos_token"])


def test_it_is_what_the_reference_writes(byte_level):
    """The miniature's GGUF was written by the package gguf: the same words, kinds and merges."""
    header = asyncio.run(gguf.read_header(FileSource(MODELS / "test-llama-gguf" / "model.gguf")))
    meta = to_gguf("json", *byte_level)
    for key in ("model", "pre", "tokens", "merges", "bos_token_id", "eos_token_id", "add_bos_token"):
        assert meta["tokenizer.ggml." + key] == header.metadata["tokenizer.ggml." + key], key
    np.testing.assert_array_equal(meta["tokenizer.ggml.token_type"], header.metadata["tokenizer.ggml.token_type"])


def test_rows_without_a_token_are_filled_up(byte_level):
    meta = to_gguf("json", *byte_level, n_vocab=330)
    assert len(meta["tokenizer.ggml.tokens"]) == 330 and meta["tokenizer.ggml.tokens"][-1] == "[PAD329]"
    assert meta["tokenizer.ggml.token_type"][-10:].tolist() == [5] * 10
    before = load_tokenizer("json", *byte_level)
    assert words(load_tokenizer("gguf", meta)) == words(before)
    back, settings = to_json(meta)
    assert len(back["model"]["vocab"]) == 320 and words(load_tokenizer("json", back, settings)) == words(before)


def test_sentence_pieces_there_and_back(sentence_pieces):
    """tokenizer.bin -> GGUF -> tokenizer.bin is the same file; -> tokenizer.json gives the same ids, natively, too."""
    data, n = sentence_pieces
    before = load_tokenizer("llama2c", data, {"vocab_size": n})
    meta = to_gguf("llama2c", data, {"vocab_size": n})
    assert to_llama2c(meta) == data
    after = load_tokenizer("gguf", meta)
    assert words(after) == words(before) and (after.bos, after.eos, after.add_bos) == (1, 2, True)
    assert before.ends <= after.ends  # a story ends where the next one would begin
    spec, settings = to_json(meta)
    package, ours = native(spec), load_tokenizer("json", spec, settings)
    assert ours.add_bos and ours.bos == 1
    for text in TEXTS:
        if "<s>" in text:
            continue  # the package takes typed markers for what they say; here they are text
        ids = [1, *before.encode(text)]
        assert [1, *ours.encode(text)] == ids, text
        if text:  # of no text the package makes no space
            assert package.encode(text).ids == ids, text
        assert package.decode(ids) == before.decode(ids[1:]), text
    again = to_gguf("json", spec, settings)
    assert words(load_tokenizer("gguf", again)) == words(before)
    assert len(to_llama2c(again)) == len(data)


def test_merges_of_scores():
    """Every way to make a piece of two others; better pieces first, and of one piece's ways those of earlier parts."""
    vocab = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}
    assert merges_of(vocab, np.array([0, 0, 0, -2.0, -1.0, -3.0])) == [["b", "c"], ["a", "b"], ["a", "bc"], ["ab", "c"]]


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "gpt-4o", "default"])
def test_ways_of_cutting_words_keep_their_name(name, byte_level):
    meta = to_gguf("json", *byte_level)
    spec, _ = to_json({**meta, "tokenizer.ggml.pre": name})
    again = pre_name(spec)
    assert PRESETS[again] == PRESETS[name]
    same_words = load_tokenizer("gguf", {**meta, "tokenizer.ggml.pre": name}), load_tokenizer("json", spec, {})
    assert words(same_words[0]) == words(same_words[1])
    native(spec)  # the package takes it


def test_what_a_file_cannot_say_is_refused(byte_level, sentence_pieces):
    spec, config = byte_level
    cut = {**spec, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}}
    with pytest.raises(ValueError, match=r"GGUF has no name for its way of cutting words \(Split, ByteLevel\)"):
        to_gguf("json", cut, config)
    with pytest.raises(ValueError, match="SentencePiece vocabulary .* kind 'gpt2'"):
        to_llama2c(to_gguf("json", spec, config))
    meta = to_gguf("llama2c", sentence_pieces[0], {"vocab_size": sentence_pieces[1]})
    with pytest.raises(ValueError, match="built in another way"):
        to_llama2c({**meta, "tokenizer.ggml.bos_token_id": 5})
