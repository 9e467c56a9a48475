"""PyTorch's files, read without running a pickle: real ones (tests/golden/pth/make.py), damaged ones, hostile ones."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from candlewick.models.sam import load_model
from candlewick.models.sam.programs import is_sam
from candlewick.weights.load import Checkpoint
from candlewick.weights.pth import Machine, read_state_dict
from candlewick.weights.source import MemorySource, WeightsError
from tests.torch_files import pt, rebuilt, taken_apart, text, zipped

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/pth"


async def arrays(data: bytes, name: str = "m.pt") -> dict[str, np.ndarray]:
    """All tensors of a file's bytes."""
    state = await read_state_dict(MemorySource(data, name))
    checkpoint = Checkpoint(state.sources, name, state.tensors)
    return {key: await checkpoint.read(info) for key, info in state.tensors.items()}


@pytest.mark.parametrize("file", ["tensors.pt", "nested.pt"])
async def test_files_by_pytorch(file):
    tensors = await arrays((GOLDEN / file).read_bytes(), file)
    base = np.arange(48, dtype=np.float32).reshape(6, 8) / 8
    expected = {
        "base": base, "transposed": base.T, "slice": base[1:4, 2:5], "half": base[0].astype(np.float16), "bfloat16": base[1],
        "double": base[2].astype(float), "int64": np.arange(-2, 3), "int32": np.arange(3, dtype=np.int32),
        "int16": np.arange(3, dtype=np.int16), "int8": np.arange(-1, 2, dtype=np.int8), "uint8": np.arange(4, dtype=np.uint8),
        "bool": np.array([True, False]), "scalar": np.float32(3.5), "empty": np.zeros((0, 3), np.float32),
        "parameter": np.ones(2, np.float32),
    }  # fmt: skip
    assert tensors.keys() == expected.keys()
    for name, array in expected.items():
        assert tensors[name].dtype == np.asarray(array).dtype and tensors[name].shape == np.shape(array), name
        assert np.array_equal(tensors[name], array), name


class Evil:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


CALLS = [(os.system, ("touch pwned",)), (eval, ("open('pwned', 'w')",)), (exec, ("open('pwned', 'w')",))]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("call", CALLS)
async def test_nothing_of_a_pickle_is_run(call, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in ({"a": Evil(*call)}, Evil(*call)):
        with pytest.raises(WeightsError):
            await arrays(zipped(pickle.dumps(value, protocol), {}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("data", "words"), [
    (b"", "no end of a zip file"), (b"\x80\x02}.", "looks like a Python pickle"),
    (zipped(b"\x80\x02}.", {}), "state dict"), (zipped(b"\x80\x02", {}), "ends at byte"), (zipped(b"\x80\x02K", {}), "ends at"),
    (zipped(b"}" + text("a") + rebuilt("0", 4, [4], [1]) + b"s.", {}), "not in the zip"),
    (zipped(b"}" + text("a") + rebuilt("0", 4, [5], [1]) + b"s.", {"0": bytes(16)}), "ends at 4"),
    (zipped(b"}" + text("a") + rebuilt("0", 4, [2], [1], 3) + b"s.", {"0": bytes(16)}), "ends at 4"),
    (zipped(b"}" + text("a") + rebuilt("0", 4, [4], [1]) + b"s.", {"0": bytes(15)}), "need 16 bytes"),
    (zipped(b"}" + text("a") + rebuilt("0", 4, [4], [-1]) + b"s.", {"0": bytes(16)}), "is not one"),
    (zipped(b"}" + text("a") + rebuilt("0", 4, [100000, 100000], [0, 0]) + b"s.", {"0": bytes(16)}), "repeats"),
    (zipped(b"}" + text("a") + rebuilt("0", 4, [4], [1]) + b"s.", {"0": bytes(16)}, zipfile.ZIP_DEFLATED), "packed"),
    (zipped(b"cos\nsystem\n(" + text("ls") + b"tR.", {}), "os.system"), (zipped(b"cos\nsystem\n.", {}), "state dict"),
])  # fmt: skip
async def test_damaged_files_are_refused_in_words(data, words):
    with pytest.raises(WeightsError, match=words):
        await arrays(data)


@given(st.binary(max_size=80))
def test_no_bytes_do_more_than_raise(data):
    for pickled in (data, b"\x80\x02}(" + data):
        try:
            Machine(pickled, "m.pt").run()
        except WeightsError:
            pass


async def test_a_mobilesam_in_pytorchs_file_is_the_model_it_was():
    """The miniature, taken apart as PyTorch keeps it, gives the same model back."""
    state, tensors = await taken_apart(Checkpoint.open(ROOT / "models/test-sam"))
    checkpoint = Checkpoint({"mobile_sam.pt": MemorySource(pt(state), "mobile_sam.pt")}, "own")
    assert await is_sam(checkpoint)
    model = await load_model(checkpoint)
    for name in model.network.parameters():
        assert np.abs(await model.weights.read(name) - tensors[name]).max() < 1e-5, name
    assert model.dims.image_size == 1024 and model.dims.encoder.window_sizes == (7, 5, 3)


async def test_only_what_has_to_be_made_passes_through_python():
    """What lies in the file as it is wanted is read from there; strided tensors and folded ones are made when they are read."""
    state, _ = await taken_apart(Checkpoint.open(ROOT / "models/test-sam"))
    model = await load_model(Checkpoint({"a.pt": MemorySource(pt(state), "a.pt")}, "own"))
    made = {name for name, info in model.weights.bound.items() if info.file != "a.pt"}
    assert all(name.endswith((".c.weight", ".c.bias", ".ab", "layers.0.mlp.lin1.weight")) for name in made), made


async def test_other_lone_files_are_no_sam():
    other = Checkpoint({"m.pt": MemorySource(pt({"tok_embeddings.weight": np.ones((2, 2), np.float32)}), "m.pt")}, "own")
    assert not await is_sam(other)
    assert not await is_sam(Checkpoint({"m.gguf": MemorySource(b"GGUF", "m.gguf")}, "own"))
