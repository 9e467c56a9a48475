"""whisper.cpp's ggml files: what is written is read again, the vocabulary gives the same ids as tokenizer.json, and files that
are cut, damaged or of another kind are refused with the place and what to do."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from candlewick.models.whisper.programs import load_model
from candlewick.tasks.generate import Generation
from candlewick.tasks.transcribe import Transcription
from candlewick.text.tokenizers import load_tokenizer
from candlewick.weights import ggml
from candlewick.weights.convert.ctranslate2 import special_tokens
from candlewick.weights.convert.whisper import read_whisper
from candlewick.weights.load import Checkpoint
from candlewick.weights.source import MemorySource, WeightsError
from tests.ggml_files import ggml_file

MODELS = Path(__file__).parents[2] / "models"
MINIATURES = ("test-whisper", "test-whisper-multilingual")
SIZES_AT = {name: 4 + 4 * i for i, name in enumerate(ggml.SIZES)}


def checkpoint(blob, name="ggml-x.bin"):
    return Checkpoint({name: MemorySource(blob, name)}, "x")


def refusal(blob, read=read_whisper) -> str:
    with pytest.raises(WeightsError) as caught:
        asyncio.run(read(checkpoint(blob)))
    return str(caught.value)


def with_number(blob, at, value):
    return blob[:at] + struct.pack("<i", value) + blob[at + 4 :]


@pytest.fixture(scope="module")
def small() -> bytes:
    return ggml_file(MODELS / "test-whisper")


@pytest.mark.parametrize("name", MINIATURES)
async def test_tensors_and_sizes_are_those_of_the_folder(name):
    blob = await asyncio.to_thread(ggml_file, MODELS / name)
    theirs, folder = checkpoint(blob), Checkpoint.open(MODELS / name)
    found, wanted = await read_whisper(theirs), await read_whisper(folder)
    assert found.tensors.keys() == wanted.tensors.keys()
    for key, info in found.tensors.items():
        array, same = await theirs.read(info), await folder.read(wanted.tensors[key])
        assert array.shape == same.shape and np.array_equal(array.astype(np.float32), same.astype(np.float32)), key
    assert all(wanted.config[key] == value for key, value in found.config.items())


@pytest.mark.parametrize("name", MINIATURES)
async def test_ids_are_those_of_the_tokenizer_file(name):
    blob = await asyncio.to_thread(ggml_file, MODELS / name)
    files = (await read_whisper(checkpoint(blob))).tokenizer
    ours = load_tokenizer(files.kind, files.data, files.config)
    spec = json.loads((MODELS / name / "tokenizer.json").read_text())
    theirs = load_tokenizer("json", spec)
    text = "The lighthouse keeper's lamp: 12 boats, naïve café 日本 ♪♪\n\n  and <|endoftext|> " * 3
    for part in (text[at : at + 41] for at in range(0, len(text), 13)):
        assert ours.encode(part) == theirs.encode(part)
        assert ours.decode(ours.encode(part)) == part
    assert ours.added == special_tokens(spec)


async def test_a_word_that_is_empty():
    """OpenAI's multilingual vocabulary ends with one, and whisper.cpp's converter writes it."""
    folder = MODELS / "test-whisper-multilingual"
    blob = await asyncio.to_thread(ggml_file, folder)
    _, at = await ggml.read_sizes(MemorySource(blob, "x"))
    words = (await ggml.read_header(MemorySource(blob, "x"))).words
    begin = at + 4 + sum(4 + len(word) for word in words)
    grown = with_number(with_number(blob, at, len(words) + 1), SIZES_AT["n_vocab"], 1 + struct.unpack_from("<i", blob, 4)[0])
    files = (await read_whisper(checkpoint(grown[:begin] + bytes(4) + grown[begin:]))).tokenizer
    ours = load_tokenizer(files.kind, files.data, files.config)
    assert files.config["eos_token_id"] == ours.eos == len(words) + 1
    plain = load_tokenizer("json", json.loads((folder / "tokenizer.json").read_text()))
    text = "The lamp, naïve café 日本\n\n  and 12 boats"
    assert ours.encode(text) == plain.encode(text) and ours.decode([len(words), *ours.encode(text)]) == text


async def test_the_language_of_an_english_miniature_is_not_asked_for(small):
    model = await load_model(checkpoint(small))
    assert not model.tokenizer.multilingual
    folder = await load_model(Checkpoint.open(MODELS / "test-whisper"))
    assert model.dims == folder.dims and model.tokenizer.timestamp_begin == folder.tokenizer.timestamp_begin


async def test_the_right_family_takes_it(small):
    assert await Transcription.recognises(checkpoint(small))
    assert not await Transcription.recognises(checkpoint(b"\0" * 64, "model.bin"))
    assert not await Transcription.recognises(Checkpoint.open(MODELS / "test-llama-bin"))
    assert await Generation.recognises(Checkpoint.open(MODELS / "test-llama-bin"))


@pytest.mark.parametrize("blob, says", [
    (b"", "empty file"),
    (b"<!doctype html><title>404</title>", "a web page"),
    (b"GGUF" + bytes(60), "a GGUF file"),
    (b"lmgg" + bytes(20), "cut short"),
    # llama.cpp's first files had the same magic: n_vocab, n_embd, n_mult, n_head, n_layer, n_rot, type, then words
    (b"lmgg" + struct.pack("<7i", 32000, 4096, 256, 32, 32, 128, 2) + b"\5\0\0\0 the " * 9, "converted to GGUF"),
], ids=["empty", "page", "gguf", "cut", "llama"])  # fmt: skip
def test_other_files_are_named(blob, says):
    async def read(checkpoint):
        await ggml.read_header(checkpoint.files["ggml-x.bin"])

    message = refusal(blob, read)
    assert says in message and "ggml-x.bin" in message


def test_sizes_that_cannot_be(small):
    assert "n_audio_layer 0" in refusal(with_number(small, SIZES_AT["n_audio_layer"], 0))
    assert "n_vocab -7" in refusal(with_number(small, SIZES_AT["n_vocab"], -7))
    assert "n_text_state 64" in refusal(with_number(small, SIZES_AT["n_text_state"], 64))
    assert "mel filters of 80 bands" in refusal(with_number(small, SIZES_AT["n_mels"], 128))
    assert "layout 1, only 2" in refusal(with_number(small, SIZES_AT["ftype"], 1002))
    assert "for languages" in refusal(with_number(small, SIZES_AT["n_vocab"], 700))


def test_a_vocabulary_that_is_damaged(small):
    at = 4 + 4 * len(ggml.SIZES) + 8 + 4 * 80 * ggml.N_BINS
    assert "would have -1 words" in refusal(with_number(small, at, -1))
    assert f"word 0 of the vocabulary, at byte {at + 4}" in refusal(with_number(small, at + 4, 2**30))


def test_cut_files_say_where(small):
    where = [refusal(small[:n]) for n in (len(small) - 1, len(small) // 2)]
    assert all("cut short" in message and "tensor" in message and "at byte" in message for message in where)


def test_half_a_whisper():
    """Only the tensors of the encoder: what saves a feature extractor."""
    folder = Checkpoint.open(MODELS / "test-whisper")
    tensors = asyncio.run(folder.tensors())
    encoder = {name: info for name, info in tensors.items() if name.startswith("model.encoder.")}
    half = Checkpoint(folder.files, "mine", encoder)
    with pytest.raises(WeightsError, match="mine: only the encoder of a Whisper is here, which hears, and cannot write"):
        asyncio.run(read_whisper(half))


@pytest.mark.parametrize("field, value, says", [
    ("n_text_head", 7, "n_audio_state 32 is not a multiple of n_text_head 7"),
    ("n_text_layer", 3, "missing: model.decoder.layers.2."),
    ("n_audio_ctx", 40, "ggml-x.bin asks for"),
    ("n_audio_head", 5, "is not a multiple of n_audio_head 5"),
    ("n_text_ctx", 1 << 20, "n_text_ctx must be 1 to"),
])  # fmt: skip
def test_what_does_not_fit_is_told_in_the_words_of_the_file(small, field, value, says):
    """The one file that a person has is named, and its fields: there is no config.json and no tokenizer.json."""
    with pytest.raises(ValueError) as caught:
        asyncio.run(load_model(checkpoint(with_number(small, SIZES_AT[field], value))))
    message = str(caught.value)
    assert says in message and "ggml-x.bin" in message and ".json" not in message, message
