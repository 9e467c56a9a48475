"""read_llama: one checkpoint in every kind of file gives the same tensors under the same names; what is not supported is
refused in words (BR-21 and the lists of FEATURES)."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from candlewick.models.llama.programs import load_model
from candlewick.weights import gguf_writer
from candlewick.weights.convert.llama import from_gguf_name, read_llama, to_gguf_name
from candlewick.weights.load import Checkpoint
from candlewick.weights.safetensors import save
from candlewick.weights.source import WeightsError
from tests.golden.llama import formats
from tests.unit.test_pth import pt

MODELS = Path(__file__).parents[2] / "models"
MINIATURES = ["test-llama", "test-llama-tied", "test-llama-qwen2", "test-llama-mistral"]


def read(path):
    """A checkpoint -> what read_llama says, and its tensors as arrays."""
    async def go():
        checkpoint = Checkpoint.open(path)
        files = await read_llama(checkpoint)
        return files, {name: await checkpoint.read(info) for name, info in files.tensors.items()}

    return asyncio.run(go())


def refused(path, *words):
    with pytest.raises(WeightsError) as caught:
        read(path)
    for word in words:
        assert str(word) in str(caught.value)


def small_files(folder, target):
    """A copy of a miniature without its weights."""
    target.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODELS / folder / name, target / name)
    return target


def turned_back(config, tensors):
    """Tensors of a file that turns neighbours, their query and key rows in the order of halves."""
    if not config["rope_pairs"]:
        return tensors
    d = formats.head_width(config)
    return {name: x.reshape(-1, d // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
            if ".q_proj." in name or ".k_proj." in name else x for name, x in tensors.items()}


def same(got, wanted):
    assert sorted(got) == sorted(wanted)
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name].astype(got[name].dtype), err_msg=name)


# --- what must load ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MINIATURES)
def test_gguf_says_the_same_as_the_folder(name, tmp_path):
    formats.write_gguf(MODELS / name, tmp_path / "a.gguf")
    folder, wanted = read(MODELS / name)
    files, tensors = read(tmp_path / "a.gguf")
    assert files.config["rope_pairs"] == (name != "test-llama-qwen2") and folder.config["rope_pairs"] is False
    same(turned_back(files.config, tensors), wanted)
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                "vocab_size", "max_position_embeddings", "rope_theta", "tie_word_embeddings", "bos_token_id", "eos_token_id"):
        assert files.config[key] == folder.config[key], key
    assert files.config["head_dim"] == formats.head_width(folder.config)
    assert files.config["rms_norm_eps"] == pytest.approx(folder.config["rms_norm_eps"])
    assert files.chat_template == folder.chat_template and files.tokenizer.kind == "gguf"
    assert ("rope_factors" in files.config) == (folder.config.get("rope_scaling") is not None)


def test_llama2c_says_the_same_as_the_folder(tmp_path):
    formats.write_llama2c(MODELS / "test-llama", tmp_path / "model.bin")
    shutil.copy(MODELS / "test-llama-bin" / "tokenizer.bin", tmp_path)
    files, tensors = read(tmp_path)
    same(turned_back(files.config, tensors), read(MODELS / "test-llama")[1])
    assert files.tokenizer.kind == "llama2c" and files.tokenizer.config == {"vocab_size": 320}
    assert files.name == "model" and files.config["rope_pairs"] and files.config["tie_word_embeddings"] is False
    assert read(tmp_path / "model.bin")[0] == files


@pytest.mark.parametrize("kind", ["npz", "packed npz", "pytorch", "pytorch shards", "safetensors shards", "bare network"])
def test_every_container_of_a_folder(kind, tmp_path):
    files, wanted = read(MODELS / "test-llama")
    folder = small_files("test-llama", tmp_path / "m")
    wide = {name: x.astype(np.float32) for name, x in wanted.items()}
    halves = {f"part-{i}": dict(list(wide.items())[i::2]) for i in (0, 1)}
    suffix = ".bin" if "pytorch" in kind else ".safetensors"
    if "shards" in kind:
        index = {name: part + suffix for part, tensors in halves.items() for name in tensors}
        index_name = "pytorch_model.bin.index.json" if "pytorch" in kind else "model.safetensors.index.json"
        (folder / index_name).write_text(json.dumps({"weight_map": index}))
    if kind == "npz":
        np.savez(folder / "weights.npz", **wide)
    elif kind == "packed npz":
        np.savez_compressed(folder / "weights.npz", **{name: np.asfortranarray(x) for name, x in wide.items()})
    elif kind == "pytorch":
        (folder / "pytorch_model.bin").write_bytes(pt(wide))
        (folder / "training_args.bin").write_bytes(b"PK not weights")
    elif kind == "pytorch shards":
        for part, tensors in halves.items():
            (folder / (part + suffix)).write_bytes(pt(tensors))
    elif kind == "safetensors shards":
        for part, tensors in halves.items():
            save(folder / (part + suffix), tensors)
    else:
        save(folder / "model.safetensors", {name.removeprefix("model."): x for name, x in wide.items()})
    got, tensors = read(folder)
    same(tensors, wide)
    assert got.config == files.config and got.tokenizer == files.tokenizer and got.chat_template == files.chat_template


def test_one_weights_file_finds_the_small_files_beside_it(tmp_path):
    folder = small_files("test-llama", tmp_path / "m")
    wanted = read(MODELS / "test-llama")[1]
    np.savez(folder / "weights.npz", **wanted)
    same(read(folder / "weights.npz")[1], wanted)


def test_the_tokenizers_settings_and_ids(tmp_path):
    """generation_config.json's end tokens count before config.json's; the template may be a list, or a file of its own."""
    folder = small_files("test-llama", tmp_path / "m")
    shutil.copy(MODELS / "test-llama" / "model.safetensors", folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "bos_token_id": None}))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    files, _ = read(folder)
    assert files.config["eos_token_id"] == [2, 0] and files.config["bos_token_id"] == 1
    assert files.tokenizer.config["eos_token_id"] == [2, 0] and files.tokenizer.config["eos_token"] == "<|im_end|>"
    assert files.chat_template == "yes"
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert read(folder)[0].chat_template == "{{ messages }}"


def test_newer_names_of_rotary_settings(tmp_path):
    folder = small_files("test-llama-tied", tmp_path / "m")
    shutil.copy(MODELS / "test-llama-tied" / "model.safetensors", folder)
    config = json.loads((folder / "config.json").read_text())
    scaling, theta = config.pop("rope_scaling"), config.pop("rope_theta")
    (folder / "config.json").write_text(json.dumps({**config, "rope_parameters": {**scaling, "rope_theta": theta}}))
    assert (read(folder)[0].config["rope_theta"], read(folder)[0].config["rope_scaling"]) == (theta, scaling)
    (folder / "config.json").write_text(json.dumps({**config, "rope_parameters": {"rope_type": "default", "rope_theta": 7}}))
    assert (read(folder)[0].config["rope_theta"], read(folder)[0].config["rope_scaling"]) == (7, None)


def test_qwen2_has_a_sliding_window_only_if_it_uses_it(tmp_path):
    folder = small_files("test-llama-qwen2", tmp_path / "m")
    shutil.copy(MODELS / "test-llama-qwen2" / "model.safetensors", folder)
    config = json.loads((folder / "config.json").read_text())
    for use, wanted in ((False, None), (True, 64)):
        (folder / "config.json").write_text(json.dumps({**config, "sliding_window": 64, "use_sliding_window": use}))
        assert read(folder)[0].config["sliding_window"] == wanted


def test_names_there_and_back():
    for name in ("token_embd.weight", "output_norm.weight", "output.weight", "blk.0.attn_norm.weight", "blk.12.attn_q.weight",
                 "blk.12.attn_k.bias", "blk.3.attn_v.bias", "blk.3.attn_output.weight", "blk.7.ffn_norm.weight",
                 "blk.7.ffn_gate.weight", "blk.7.ffn_up.weight", "blk.7.ffn_down.weight"):
        assert from_gguf_name(name) != name and to_gguf_name(from_gguf_name(name)) == name
    assert from_gguf_name("blk.0.ffn_gate_exps.weight") == "blk.0.ffn_gate_exps.weight"
    with pytest.raises(WeightsError, match=r"model.layers.0.mlp.router.weight"):
        to_gguf_name("model.layers.0.mlp.router.weight")


# --- what must be refused ----------------------------------------------------------------------------------------

BASE = {"general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 8, "llama.embedding_length": 8,
        "llama.feed_forward_length": 8, "llama.attention.head_count": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5}


def gguf(tmp_path, **changes):
    """A file of a llama, its metadata changed; None takes a key away."""
    metadata = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    gguf_writer.save(tmp_path / "a.gguf", metadata, {"token_embd.weight": np.zeros((5, 8), np.float32)})
    return tmp_path / "a.gguf"


@pytest.mark.parametrize("change, says", [
    ({"llama.attention.head_count": 3, "llama.attention.key_length": 3}, "heads are 3 wide"),
    ({"llama.rope.freq_base": 0.5}, "llama.rope.freq_base 0.5 is out of range"),
    ({"llama.block_count": 0}, "llama.block_count must be 1 to"),
    ({"llama.attention.head_count_kv": 0x7fffffff}, "llama.attention.head_count_kv must be 1 to"),
    ({}, "tokenizer.ggml.model: wanted gpt2"),
])  # fmt: skip
def test_what_cannot_be_is_told_in_the_words_of_a_gguf_file(tmp_path, change, says):
    with pytest.raises(ValueError) as caught:
        asyncio.run(load_model(Checkpoint.open(gguf(tmp_path, **change))))
    assert str(caught.value).startswith("a.gguf: ") and says in str(caught.value)


def test_what_cannot_be_is_told_in_the_words_of_a_llama2c_file(tmp_path):
    """Its tokenizer may have any name."""
    for name in ("model.bin", "tokenizer.bin"):
        shutil.copy(MODELS / "test-llama-bin" / name, tmp_path / name.replace("tokenizer", "tok64"))
    model, words = tmp_path / "model.bin", tmp_path / "tok64.bin"
    words.write_bytes(words.read_bytes()[:-1])
    with pytest.raises(ValueError, match="^tok64.bin: token .* is cut short"):
        asyncio.run(load_model(Checkpoint.open(model)))


def test_a_gguf_file_says_only_what_it_must(tmp_path):
    config = read(gguf(tmp_path))[0].config
    assert config["vocab_size"] == 5 and config["num_key_value_heads"] == 2 and config["head_dim"] == 4
    assert config["rope_theta"] == 10000 and config["rope_scaling"] is None and config["tie_word_embeddings"] is True
    config = read(gguf(tmp_path, **{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0,
                                    "llama.attention.head_count_kv": np.array([1], "<i4")}))[0].config
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0} and config["num_key_value_heads"] == 1
    assert read(gguf(tmp_path, **{"llama.rope.scale_linear": 2.0}))[0].config["rope_scaling"]["factor"] == 2
    assert read(gguf(tmp_path, **{"llama.attention.sliding_window": 6}))[0].config["sliding_window"] == 6


@pytest.mark.parametrize("changes, words", [
    ({"general.architecture": "gemma2"}, "architecture is 'gemma2'; supported are llama, qwen2"),
    ({"general.architecture": None}, "architecture is 'None'"),
    ({"llama.expert_count": 8}, "a mixture of 8 experts"),
    ({"llama.block_count": None}, "the metadata lack llama.block_count"),
    ({"llama.block_count": "two"}, "llama.block_count must be one int, got two"),
    ({"llama.attention.head_count": np.array([2, 4], "<i4")}, "llama.attention.head_count must be one int, got [2, 4]"),
    ({"llama.attention.value_length": 3}, "attention.value_length is 3, heads are 4 wide"),
    ({"llama.rope.dimension_count": 2}, "rope.dimension_count is 2, heads are 4 wide"),
    ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, "rope.scaling.type 'yarn'"),
    ({"llama.rope.scaling.type": "linear"}, "'linear' with factor 0"),
    ({"tokenizer.ggml.bos_token_id": "x"}, "tokenizer.ggml.bos_token_id must be a whole number"),
])
def test_gguf_files_that_are_not_supported(changes, words, tmp_path):
    refused(gguf(tmp_path, **changes), "a.gguf", words)


def test_two_gguf_files_or_none(tmp_path):
    gguf(tmp_path)
    shutil.copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    refused(tmp_path, "2 GGUF files (a.gguf, b.gguf)", "merge")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no llama checkpoint", "there is nothing")


@pytest.mark.parametrize("changes, words", [
    ({"model_type": "whisper"}, "model_type 'whisper'; supported are llama, mistral, qwen2"),
    ({"model_type": "mixtral"}, "model_type 'mixtral'"),
    ({"quantization_config": {"quant_method": "gptq"}}, "weights packed by 'gptq'"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
])
def test_folders_that_are_not_supported(changes, words, tmp_path):
    folder = small_files("test-llama", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "config.json", words)


def test_folders_that_are_not_complete(tmp_path):
    folder = small_files("test-llama", tmp_path / "m")
    refused(folder, "wants model.safetensors", "config.json, tokenizer.json")
    (folder / "tokenizer.json").unlink()
    refused(folder, "tokenizer.json is missing")
    index = {"weight_map": {"a": "part-1.bin"}}
    small = small_files("test-llama", tmp_path / "n")
    (small / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    refused(small, "1 of 1 shards are missing: part-1.bin")


def test_a_lone_file_that_is_no_model(tmp_path):
    (tmp_path / "noise.bin").write_bytes(bytes(range(100)))
    refused(tmp_path, "noise.bin: neither a whisper.cpp model nor a llama2.c one", "not a llama2.c file")


def test_llama2c_files_that_are_not_complete(tmp_path):
    formats.write_llama2c(MODELS / "test-llama", tmp_path / "model.bin")
    refused(tmp_path, "model.bin needs the tokenizer it was trained with", "there is nothing else")
    (tmp_path / "tokenizer.bin").write_bytes(b"anything")
    blob = (tmp_path / "model.bin").read_bytes()
    (tmp_path / "model.bin").write_bytes(blob[:-4])
    refused(tmp_path, "wanted one llama2.c model, none of model.bin, tokenizer.bin is", f"takes {len(blob)} bytes")
    (tmp_path / "model.bin").write_bytes(blob)
    (tmp_path / "other.bin").write_bytes(blob)
    refused(tmp_path, "2 of model.bin, other.bin, tokenizer.bin are: give one model")
