"""Checkpoint folders and strict binding: one complete error, or every parameter with its tensor (BR-12)."""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest

from candlewick.weights.load import INDEX, Checkpoint, Weights, bind
from candlewick.weights.safetensors import TensorInfo, save
from candlewick.weights.source import FileSource, MemorySource, WeightsError


def run(awaitable):
    return asyncio.run(awaitable)


def parameters(**shapes):
    return {name: SimpleNamespace(shape=shape) for name, shape in shapes.items()}


def tensors(**shapes):
    return {name: TensorInfo(name, "f32", shape, "model.safetensors", 0, 0) for name, shape in shapes.items()}


@pytest.fixture
def shards(tmp_path):
    """A folder with two shards and their index."""
    save(tmp_path / "model-00001-of-00002.safetensors", {"a": np.arange(3, dtype=np.float32)})
    save(tmp_path / "model-00002-of-00002.safetensors", {"b": np.ones((2, 2), np.float16)})
    index = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}

    def write(weight_map):
        (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return Checkpoint.open(tmp_path)

    return write, index


def test_single_file(tmp_path):
    save(tmp_path / "model.safetensors", {"w": np.arange(4, dtype=np.float16)})
    (tmp_path / "config.json").write_text('{"d_model": 4}')
    checkpoint = Checkpoint.open(tmp_path)
    info = run(checkpoint.tensors())["w"]
    assert (info.dtype, info.shape, info.file) == ("f16", (4,), "model.safetensors")
    assert run(checkpoint.read(info)).tolist() == [0, 1, 2, 3]
    assert run(checkpoint.json("config.json")) == {"d_model": 4}


def test_one_file_of_another_name_will_do(tmp_path):
    save(tmp_path / "whisper.safetensors", {"w": np.zeros(1, np.float32)})
    assert run(Checkpoint.open(tmp_path).tensors())["w"].file == "whisper.safetensors"


def test_files_are_named_as_the_checkpoint_names_them(tmp_path):
    save(tmp_path / "model.safetensors", {"w": np.ones(2, np.float32)})
    source = FileSource(tmp_path / "model.safetensors", name="https://example.org/models/x/model.safetensors")
    checkpoint = Checkpoint({"model.safetensors": source})
    info = run(checkpoint.tensors())["w"]
    assert info.file == "model.safetensors" and run(checkpoint.read(info)).tolist() == [1, 1]


def test_shards(shards):
    write, index = shards
    checkpoint = write(index)
    found = run(checkpoint.tensors())
    assert {name: info.file for name, info in found.items()} == index
    assert run(checkpoint.read(found["b"])).sum() == 4


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..\\x", "..", "", "a\0b"])
def test_shard_names_stay_inside_the_folder(shards, shard):
    write, index = shards
    with pytest.raises(WeightsError, match="not a plain file name"):
        run(write(index | {"a": shard}).tensors())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": "gone.safetensors"}, "gone.safetensors"),
        ({"c": "model-00001-of-00002.safetensors"}, "c is not in"),
        ({"a": "model-00002-of-00002.safetensors"}, "a is not in"),
        ({"a": 3}, "weight_map"),
    ],
)
def test_index_and_shards_must_agree(shards, change, words):
    write, index = shards
    with pytest.raises(WeightsError, match=words):
        run(write(index | change).tensors())


def test_tensor_that_the_index_does_not_list(shards):
    write, index = shards
    with pytest.raises(WeightsError, match="b lies in"):
        run(write({"a": index["a"], "z": index["b"]}).tensors())


def test_missing_things_are_named(tmp_path):
    with pytest.raises(WeightsError, match="no such checkpoint folder"):
        Checkpoint.open(tmp_path / "nothing")
    checkpoint = Checkpoint.open(tmp_path)
    with pytest.raises(WeightsError, match="no files"):
        run(checkpoint.tensors())
    (tmp_path / "a.safetensors").write_bytes(b"")
    (tmp_path / "b.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"a\.safetensors, b\.safetensors"):
        run(Checkpoint.open(tmp_path).tensors())
    with pytest.raises(WeightsError, match=r"config\.json is missing"):
        run(checkpoint.json("config.json"))


@pytest.mark.parametrize("text", [b"[]", b"[" * 10**6, b"\xff", b"<html>"])
def test_bad_json_is_a_weights_error(text):
    with pytest.raises(WeightsError, match=r"config\.json"):
        run(Checkpoint({"config.json": MemorySource(text)}).json("config.json"))


def test_text_must_be_utf8():
    with pytest.raises(WeightsError, match="UTF-8"):
        run(Checkpoint({"vocab.txt": MemorySource(b"ab\xff")}).text("vocab.txt"))


def test_file_that_shrinks_after_opening(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(10))
    source = FileSource(path)
    path.write_bytes(bytes(5))
    with pytest.raises(WeightsError, match="wanted 10 bytes"):
        run(source.read(0, 10))
    with pytest.raises(WeightsError, match="the file has 10 bytes"):
        run(source.read(0, 11))


# --- bind -------------------------------------------------------------------------------------------------------


def test_bind_returns_every_parameter_in_model_order():
    bound = bind(parameters(b=(2,), a=(3, 4)), tensors(a=(3, 4), b=(2,)))
    assert list(bound) == ["b", "a"]


def test_bind_reports_everything_at_once():
    with pytest.raises(WeightsError) as caught:
        bind(parameters(a=(1,), b=(2,), c=(3,), d=(4,)), tensors(b=(2,), c=(9,), d=(4, 1), x=(1,), y=(1,)))
    text = str(caught.value)
    assert "1 missing: a" in text and "2 unexpected: x, y" in text and "2 misshapen" in text
    assert "c is (9,) in model.safetensors, config.json asks for (3,)" in text
    assert "d is (4, 1)" in text


def test_bind_ignores_only_what_it_is_told_to():
    bind(parameters(a=(1,)), tensors(a=(1,), proj_out=(1,)), ignore=["proj_*"])
    with pytest.raises(WeightsError, match="unexpected: proj_out"):
        bind(parameters(a=(1,)), tensors(a=(1,), proj_out=(1,)), ignore=["head"])


def test_english_weights_with_a_multilingual_config():  # BR-12
    name = "model.decoder.embed_tokens.weight"
    with pytest.raises(WeightsError) as caught:
        bind(
            {name: SimpleNamespace(shape=(51865, 384))},
            {name: TensorInfo(name, "f16", (51864, 384), "model.safetensors", 0, 0)},
        )
    for word in (name, "51865", "51864", "config.json", "model.safetensors"):
        assert word in str(caught.value)


def test_a_long_list_is_cut():
    wanted = {f"layer.{i}": SimpleNamespace(shape=(1,)) for i in range(500)}
    with pytest.raises(WeightsError) as caught:
        bind(wanted, {})
    assert "500 missing" in str(caught.value) and "and 488 more" in str(caught.value) and len(str(caught.value)) < 1000


def test_weights_serve_tensors_and_constants(tmp_path):
    save(tmp_path / "model.safetensors", {"w": np.ones(2, np.float16)})
    checkpoint = Checkpoint.open(tmp_path)
    weights = Weights(checkpoint, run(checkpoint.tensors()), {"mel": np.zeros((2, 2), np.float32)})
    assert weights.names() == ["w", "mel"]
    assert weights.info("w").shape == (2,) and weights.info("mel") is None
    assert run(weights.read("w")).sum() == 2 and run(weights.read("mel")).shape == (2, 2)
    with pytest.raises(KeyError):
        weights.info("other")
    with pytest.raises(WeightsError, match="w"):
        Weights(checkpoint, run(checkpoint.tensors()), {"w": np.zeros(1, np.float32)})


async def test_large_json_nests_no_deeper_than_an_interpreter_can_bear():
    """BR-50: in a browser the parser's stack ends the interpreter; keys in between must not hide the nesting."""
    deep = b'{"model": ' * 100_000 + b"1" + b"}" * 100_000
    files = {"deep.json": deep, "wide.json": b"{" + b",".join(b'"%d": [1]' % i for i in range(2000)) + b"}", "list.json": b"[]"}
    checkpoint = Checkpoint({name: MemorySource(data, name) for name, data in files.items()}, "own")
    with pytest.raises(WeightsError, match=r"own/deep.json: not usable JSON: brackets .* nest deeper than 64"):
        await checkpoint.large_json("deep.json")
    assert len(await checkpoint.large_json("wide.json")) == 2000
    with pytest.raises(WeightsError, match="own/list.json: wanted a JSON object, got list"):
        await checkpoint.large_json("list.json")
