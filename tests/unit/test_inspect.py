"""candlewick inspect: every kind of weights file is told by its content and listed from its header."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from candlewick.cli import app
from candlewick.weights import gguf_writer
from tests.unit.test_pth import pt

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"
ARRAYS = {"a": np.arange(64, dtype=np.float32).reshape(2, 32), "b": np.arange(3, dtype=np.float32)}


def report(path):
    result = CliRunner().invoke(app, ["inspect", str(path), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def shown(path):
    result = CliRunner().invoke(app, ["inspect", str(path)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_gguf(tmp_path):
    gguf_writer.save(tmp_path / "a.gguf", {"general.name": "x", "words": [str(i) for i in range(1000)], "few": [1, 2, 3]},
                     ARRAYS, "q4_0")
    for path in (tmp_path / "a.gguf", tmp_path):
        found = report(path)
        assert found["format"] == "GGUF version 3"
        assert {row["name"]: (row["dtype"], row["shape"], row["bytes"]) for row in found["tensors"]} == {
            "a": ("q4_0", [2, 32], 36), "b": ("f32", [3], 12)}
    assert found["metadata"] == {"general.name": "x", "few": [1, 2, 3],
                                 "words": '1000 values: "0", "1", "2", "3", "4", "5", "6", "7" ...'}
    text = shown(tmp_path / "a.gguf")
    assert "q4_0" in text and "metadata.general.name = x" in text and "GGUF version 3: 2 tensors, 67 elements, 48 bytes" in text


def test_llama2c():
    found = report(MODELS / "test-llama-bin" / "model.bin")
    assert found["format"] == "llama2.c version 0" and found["metadata"]["vocab_size"] == 320
    assert found["tensors"][0]["name"] == "tok_embeddings.weight" and found["totals"]["tensors"] == 21
    assert report(MODELS / "test-llama-bin")["tensors"] == found["tensors"]


@pytest.mark.parametrize("packed", [False, True])
def test_npz(packed, tmp_path):
    (np.savez_compressed if packed else np.savez)(tmp_path / "a.npz", **ARRAYS)
    found = report(tmp_path / "a.npz")
    assert found["format"] == "npz"
    assert [(row["name"], row["shape"], row["bytes"], row["file"]) for row in found["tensors"]] == [
        ("a", [2, 32], 256, "a.npz"), ("b", [3], 12, "a.npz")]


@pytest.mark.parametrize("name", ["a.pt", "pytorch_model.bin"])
def test_pytorch(name, tmp_path):
    (tmp_path / name).write_bytes(pt(ARRAYS))
    found = report(tmp_path / name)
    assert found["format"] == "PyTorch" and {row["name"] for row in found["tensors"]} == {"a", "b"}


def test_folder_of_each_kind(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "pytorch_model.bin").write_bytes(pt(ARRAYS))
    found = report(tmp_path)
    assert found["format"] == "PyTorch" and found["config"] == {"model_type": "llama"}
    assert found["totals"]["bytes"] == 268
    assert report(MODELS / "test-llama")["format"] == "safetensors"


@pytest.mark.parametrize("name, content, words", [
    ("a.bin", bytes(100), "A .bin is read if it is of PyTorch, whisper.cpp, llama2.c or CTranslate2"),
    ("a.gguf", b"<!doctype html>", "wanted a GGUF file"),
    ("a.npz", b"PK\x03\x04" + bytes(20), "no end of a zip file"),
    ("a.onnx", b"\0", "a.onnx"),
])
def test_what_is_none_of_these(name, content, words, tmp_path):
    (tmp_path / name).write_bytes(content)
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / name)])
    assert result.exit_code == 1 and words in result.output


def test_whisper_cpp():
    for path in (MODELS / "test-whisper-ggml" / "ggml-model.bin", MODELS / "test-whisper-ggml"):
        found = report(path)
        assert found["format"] == "whisper.cpp" and found["metadata"]["n_audio_ctx"] == 100
        rows = {row["name"]: (row["dtype"], row["shape"]) for row in found["tensors"]}
        assert rows["encoder.blocks.1.mlp.0.weight"] == ("q8_0", [64, 32])
        assert rows["encoder.positional_embedding"] == ("f32", [100, 32])
