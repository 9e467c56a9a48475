"""candlewick convert: round trips on the miniatures, types of the result, and what it refuses."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from candlewick.cli import app
from candlewick.text.tokenizers import load_tokenizer
from candlewick.weights import gguf
from candlewick.weights.convert import write_llama
from candlewick.weights.convert.llama import read_llama
from candlewick.weights.load import Checkpoint
from candlewick.weights.packing import quantise
from candlewick.weights.quant import dequantise
from candlewick.weights.source import FileSource, WeightsError
from tests.golden.llama import formats
from tests.unit.test_llama_files import read, same, turned_back

MODELS = Path(__file__).parents[2] / "models"
TEXT = "The old lighthouse stood at the edge of the bay. naïve 😀 <|im_end|> 1234"
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
         "max_position_embeddings", "rope_theta", "bos_token_id", "eos_token_id")  # fmt: skip


def convert(*arguments):
    result = CliRunner().invoke(app, ["convert", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def failure(*arguments):
    result = CliRunner().invoke(app, ["convert", *map(str, arguments)])
    assert result.exit_code == 1 and result.exception.__class__ is SystemExit, result.output
    return result.output


def header(path):
    return asyncio.run(gguf.read_header(FileSource(path)))


def tokenizer(files):
    return load_tokenizer(files.tokenizer.kind, files.tokenizer.data, files.tokenizer.config)


def alike(a, b):
    """Two results of read: sizes, tokenizer and template."""
    for key in SIZES:
        assert a.config.get(key) == b.config.get(key), key
    assert a.chat_template == b.chat_template
    one, other = tokenizer(a), tokenizer(b)
    assert one.encode(TEXT, special=True) == other.encode(TEXT, special=True)
    assert (one.bos, one.eos, one.add_bos, one.ends) == (other.bos, other.eos, other.add_bos, other.ends)


# --- there and back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["test-llama", "test-llama-tied", "test-llama-qwen2", "test-llama-mistral"])
def test_folder_to_gguf_and_back(name, tmp_path):
    before, wanted = read(MODELS / name)
    assert "21 tensors" in convert(MODELS / name, tmp_path / "a.gguf") or name != "test-llama"
    files, tensors = read(tmp_path / "a.gguf")
    same(turned_back(files.config, tensors), wanted)
    alike(files, before)
    convert(tmp_path / "a.gguf", tmp_path / "again")
    after, got = read(tmp_path / "again")
    same(got, wanted)
    assert all(got[name].dtype == (x.dtype if x.ndim > 1 else np.float32) for name, x in wanted.items())
    alike(after, before)
    scaling = before.config.get("rope_scaling")
    assert (scaling is None) == (after.config.get("rope_scaling") is None)
    if scaling:
        assert write_llama.rope_factors(after.config) == pytest.approx(write_llama.rope_factors(before.config))


@pytest.mark.parametrize("name", ["test-llama", "test-llama-tied", "test-llama-qwen2"])
def test_gguf_is_what_the_reference_writes(name, tmp_path):
    """Tensor by tensor and key by key as the package gguf with the rules of llama.cpp's own converter."""
    formats.write_gguf(MODELS / name, tmp_path / "theirs.gguf")
    convert(MODELS / name, tmp_path / "ours.gguf", "--dtype", "f32")
    theirs, ours = header(tmp_path / "theirs.gguf"), header(tmp_path / "ours.gguf")
    places = {file: {info.name: info for info in head.tensors} for file, head in (("theirs", theirs), ("ours", ours))}
    assert places["ours"].keys() == places["theirs"].keys()
    data = {file: (tmp_path / f"{file}.gguf").read_bytes() for file in places}
    for tensor, info in places["theirs"].items():
        mine = places["ours"][tensor]
        a = np.frombuffer(data["theirs"][info.start : info.end], np.float32)
        b = np.frombuffer(data["ours"][mine.start : mine.end], np.float32)
        assert info.shape == mine.shape and info.dtype == mine.dtype
        np.testing.assert_allclose(b, a, rtol=1e-6 if tensor == "rope_freqs.weight" else 0, err_msg=tensor)
    for key, value in theirs.metadata.items():
        if "attention.key_length" not in key and "attention.value_length" not in key and key != "GGUF.version":
            np.testing.assert_array_equal(ours.metadata[key], value, err_msg=key)


def test_llama2c_to_gguf_and_back_to_the_byte(tmp_path):
    source = MODELS / "test-llama-bin"
    convert(source / "model.bin", tmp_path / "a.gguf")
    convert(tmp_path / "a.gguf", tmp_path / "b.bin")
    assert (tmp_path / "tokenizer.bin").read_bytes() == (source / "tokenizer.bin").read_bytes()
    before, wanted = read(source)
    files, tensors = read(tmp_path / "b.bin")
    same(tensors, wanted)
    rotary = 2 * 4 * before.config["max_position_embeddings"] * before.config["head_dim"] // 2
    a, b = (source / "model.bin").read_bytes(), (tmp_path / "b.bin").read_bytes()
    head = 4 * before.config["vocab_size"] * before.config["hidden_size"]  # behind the rotary tables, which are computed anew
    assert a[: -rotary - head] == b[: -rotary - head] and a[-head:] == b[-head:] and len(a) == len(b)
    assert files.config == before.config


def test_llama2c_to_folder_and_back(tmp_path):
    convert(MODELS / "test-llama-bin", tmp_path / "m")
    before, wanted = read(MODELS / "test-llama-bin")
    files, tensors = read(tmp_path / "m")
    same(tensors, turned_back(before.config, wanted))
    assert tokenizer(files).encode(TEXT) == tokenizer(before).encode(TEXT)
    assert files.config["eos_token_id"] == [2, 1] and tokenizer(files).ends >= tokenizer(before).ends  # a new story is an end
    convert(tmp_path / "m", tmp_path / "b.bin")
    same(read(tmp_path / "b.bin")[1], wanted)


def test_int8_llama2c(tmp_path):
    """Version 2: int8 with a scale for every group; 1/254 of a group's largest number is the furthest off."""
    convert(MODELS / "test-llama-bin", tmp_path / "q.bin", "--dtype", "q8_0")
    wanted, (_, got) = read(MODELS / "test-llama-bin")[1], read(tmp_path / "q.bin")
    assert (tmp_path / "q.bin").stat().st_size < (MODELS / "test-llama-bin" / "model.bin").stat().st_size / 3
    for name, x in wanted.items():
        assert np.abs(got[name] - x).max() <= np.abs(x).max() / 250 * (x.ndim > 1), name


def test_packed_weights_are_copied_to_the_byte(tmp_path):
    """From GGUF to GGUF nothing is decoded, and the metadata stay as they are."""
    source = MODELS / "test-llama-gguf" / "model.gguf"
    convert(source, tmp_path / "a.gguf")
    before, after = header(source), header(tmp_path / "a.gguf")
    one, two = source.read_bytes(), (tmp_path / "a.gguf").read_bytes()
    places = {info.name: info for info in after.tensors}
    for info in before.tensors:
        there = places[info.name]
        assert one[info.start : info.end] == two[there.start : there.end] and info.dtype == there.dtype
    assert before.metadata.keys() <= after.metadata.keys()
    assert before.metadata["tokenizer.ggml.tokens"] == after.metadata["tokenizer.ggml.tokens"]


def test_packed_weights_to_a_folder(tmp_path):
    """Decoded exactly, rows of queries and keys in the order of halves."""
    before, wanted = read(MODELS / "test-llama-gguf")
    convert(MODELS / "test-llama-gguf", tmp_path / "m")
    files, got = read(tmp_path / "m")
    same(got, turned_back(before.config, wanted))
    assert {info.dtype for info in files.tensors.values()} == {"f32"}


@pytest.mark.parametrize("chunk", [1, 1000])
def test_large_tensors_go_through_some_rows_at_a_time(chunk, tmp_path, monkeypatch):
    convert(MODELS / "test-llama", tmp_path / "whole.gguf", "--dtype", "q8_0")
    monkeypatch.setattr(write_llama, "CHUNK", chunk)
    convert(MODELS / "test-llama", tmp_path / "parts.gguf", "--dtype", "q8_0")
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "parts.gguf").read_bytes()


# --- types -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, table", [("q8_0", "q8_0"), ("q4_0", "q8_0"), ("q4_1", "q8_0"), ("q5_0", "q8_0"),
                                          ("q5_1", "q8_0"), ("f16", "f16"), ("bf16", "bf16"), ("f32", "f32")])
def test_types_of_gguf(dtype, table, tmp_path):
    """Matrices take the type asked for, the two tables q8_0 where it has 4 or 5 bits, vectors stay float32."""
    convert(MODELS / "test-llama", tmp_path / "a.gguf", "--dtype", dtype)
    head = header(tmp_path / "a.gguf")
    for info in head.tensors:
        wanted = "f32" if len(info.shape) < 2 else table if info.name in ("token_embd.weight", "output.weight") else dtype
        assert info.dtype == wanted, info.name
    names = ("f32", "f16", "q4_0", "q4_1", None, None, None, "q8_0", "q5_0", "q5_1")  # llama.cpp's file types
    assert head.metadata["general.file_type"] == (32 if dtype == "bf16" else names.index(dtype))
    _, got = read(tmp_path / "a.gguf")
    wanted = read(MODELS / "test-llama")[1]["model.layers.1.mlp.down_proj.weight"].astype(np.float32)
    if dtype.startswith("q"):
        wanted = dequantise(dtype, quantise(wanted, dtype), wanted.shape)
    elif dtype == "bf16":
        assert np.abs(got["model.layers.1.mlp.down_proj.weight"] - wanted).max() < np.abs(wanted).max() / 200
        return
    np.testing.assert_array_equal(got["model.layers.1.mlp.down_proj.weight"], wanted)


def test_rows_that_do_not_divide(tmp_path):
    """Rows of 32 and 96 are no whole number of 256: the next larger type of 32 takes them, as llama.cpp does."""
    for dtype, instead in (("q4_k", "q5_0"), ("q6_k", "q8_0")):
        convert(MODELS / "test-llama", tmp_path / "a.gguf", "--dtype", dtype)
        types = {info.name: info.dtype for info in header(tmp_path / "a.gguf").tensors}
        assert types["blk.0.attn_q.weight"] == instead and types["token_embd.weight"] == "q8_0"
    info = read(MODELS / "test-llama")[0].tensors["lm_head.weight"]
    assert write_llama.gguf_dtype(type(info)("x", "f32", (4, 512), "f", 0, 8192), "q4_k") == "q4_k"
    assert write_llama.gguf_dtype(type(info)("lm_head.weight", "f32", (4, 512), "f", 0, 8192), "q4_k") == "q6_k"
    assert write_llama.gguf_dtype(type(info)("x", "f32", (4, 40), "f", 0, 640), "q4_0") == "f16"


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_types_of_folders(dtype, tmp_path):
    convert(MODELS / "test-llama", tmp_path / "m", "--dtype", dtype)
    assert {info.dtype for info in read(tmp_path / "m")[0].tensors.values()} == {dtype}
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["torch_dtype"] == {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[dtype]
    assert config["architectures"] == ["LlamaForCausalLM"] and "rope_pairs" not in config


def test_a_head_that_is_a_copy_of_the_embeddings_is_left_out(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(MODELS / "test-llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    convert(folder, tmp_path / "a.gguf")
    files, tensors = read(tmp_path / "a.gguf")
    assert "lm_head.weight" not in tensors and files.config["tie_word_embeddings"] is True


# --- what is refused ---------------------------------------------------------------------------------------------


def test_targets_that_cannot_be(tmp_path):
    source = MODELS / "test-llama"
    assert "give a folder" in failure(source, tmp_path / "x.safetensors")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("")
    assert "the folder is not empty" in failure(source, tmp_path / "full")
    assert "does not exist" in failure(source, tmp_path / "none" / "m")
    assert "does not exist" in failure(source, tmp_path / "none" / "m.gguf")
    (tmp_path / "file").write_text("")
    assert "is no folder's name" in failure(source, tmp_path / "file")
    shutil.copy(MODELS / "test-llama-gguf" / "model.gguf", tmp_path / "a.gguf")
    assert "is the file to convert" in failure(tmp_path / "a.gguf", tmp_path / "a.gguf")


def test_types_that_a_target_does_not_hold(tmp_path):
    said = failure(MODELS / "test-llama", tmp_path / "m", "--dtype", "q4_0")
    assert "--dtype q4_0: folders (safetensors) hold f32, f16, bf16 here; packed weights go into GGUF" in said
    assert not (tmp_path / "m").exists()
    said = failure(MODELS / "test-llama-bin", tmp_path / "a.bin", "--dtype", "f16")
    assert "--dtype f16: llama2.c files hold f32 or int8 (q8_0)" in said
    assert not (tmp_path / "a.bin").exists()


@pytest.mark.parametrize("name, words", [
    ("test-llama-tied", "knows no rope_theta 500000.0 (it has 10000), no scaled rotary positions, no heads 16 wide (it has 8)"),
    ("test-llama-qwen2", "no rms_norm_eps 1e-06 (it has 1e-05), no biases"),
])
def test_models_that_llama2c_would_run_wrongly(name, words, tmp_path):
    assert words in failure(MODELS / name, tmp_path / "a.bin")
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_that_llama2c_cannot_have_is_said(tmp_path):
    out = convert(MODELS / "test-llama", tmp_path / "a.bin")
    assert "without a tokenizer.bin" in out and not (tmp_path / "tokenizer.bin").exists()


def test_factors_that_are_not_those_of_llama3(tmp_path):
    checkpoint = Checkpoint.open(MODELS / "test-llama-tied")
    files = asyncio.run(read_llama(checkpoint))
    files.config["rope_factors"] = [1.0, 3.0, 2.0, 5.0, 1.0, 1.0, 1.0, 9.0]
    with pytest.raises(WeightsError, match="not those of Llama 3's scaling"):
        write_llama.folder_config(files, None)


def test_nothing_is_left_of_a_conversion_that_fails(tmp_path):
    """A weight that is no number is found in the middle of the work: no file, no part of one."""
    folder = tmp_path / "m"
    shutil.copytree(MODELS / "test-llama", folder)
    blob = bytearray((folder / "model.safetensors").read_bytes())
    info = read(folder)[0].tensors["model.layers.1.mlp.up_proj.weight"]
    blob[info.start : info.start + 2] = np.float16(np.nan).tobytes()
    (folder / "model.safetensors").write_bytes(blob)
    message = failure(folder, tmp_path / "a.gguf", "--dtype", "q8_0")
    assert "model.layers.1.mlp.up_proj.weight: q8_0: cannot pack numbers that are infinite or no numbers" in message
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_another_models_tokenizer_is_left_alone(tmp_path):
    """A tokenizer.bin beside the target belongs to whoever lies there: it is neither overwritten nor taken."""
    beside = tmp_path / "tokenizer.bin"
    beside.write_bytes(b"another")
    for source in ("test-llama-bin", "test-llama"):  # one brings a tokenizer.bin, one cannot
        assert "another model's tokenizer" in " ".join(failure(MODELS / source, tmp_path / "new.bin").split())
    assert beside.read_bytes() == b"another" and not (tmp_path / "new.bin").exists()
    assert "give the model another name" in " ".join(failure(MODELS / "test-llama-bin", beside).split())
    beside.unlink()
    convert(MODELS / "test-llama-bin", tmp_path / "new.bin")
    convert(MODELS / "test-llama-bin", tmp_path / "again.bin")  # the same tokenizer


@pytest.mark.parametrize(("change", "words"), [
    ({"hidden_act": "gelu"}, "hidden_act"), ({"vocab_size": 1 << 40}, "vocab_size"), ({"vocab_size": 0}, "vocab_size"),
    ({"vocab_size": "x"}, "vocab_size"), ({"num_attention_heads": 0}, "num_attention_heads"),
    ({"hidden_size": None}, "hidden_size"), ({"head_dim": "x"}, "head"), ({"rms_norm_eps": []}, "rms_norm_eps"),
    ({"rope_scaling": "linear"}, "rope_scaling"),
])  # fmt: skip
def test_what_cannot_run_is_not_converted(change, words, tmp_path):
    source = shutil.copytree(MODELS / "test-llama", tmp_path / "source")
    config = source / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    assert words in failure(source, tmp_path / "new.gguf")
    assert not (tmp_path / "new.gguf").exists()
