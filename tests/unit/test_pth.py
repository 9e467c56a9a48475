"""PyTorch's files, read without running a pickle: real ones (tests/golden/pth/make.py), damaged ones, hostile ones."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from candlewick.models.sam import load_model
from candlewick.weights.convert import mobilesam
from candlewick.weights.load import Checkpoint
from candlewick.weights.pth import Machine, read_state_dict
from candlewick.weights.source import MemorySource, WeightsError

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/pth"


async def arrays(data: bytes, name: str = "m.pt") -> dict[str, np.ndarray]:
    """All tensors of a file's bytes."""
    state = await read_state_dict(MemorySource(data, name))
    checkpoint = Checkpoint(state.sources, name, state.tensors)
    return {key: await checkpoint.read(info) for key, info in state.tensors.items()}


def zipped(pickled: bytes, files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("m/data.pkl", pickled)
        for key, data in files.items():
            archive.writestr(f"m/data/{key}", data)
    return out.getvalue()


def text(word: str) -> bytes:
    return b"X" + len(word.encode()).to_bytes(4, "little") + word.encode()


def whole(n: int) -> bytes:
    return b"J" + n.to_bytes(4, "little", signed=True)


def numbers(values) -> bytes:
    return b"(" + b"".join(map(whole, values)) + b"t"


def rebuilt(key: str, count: int, shape, strides, offset: int = 0) -> bytes:
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + whole(count) + b"tQ"
    rest = numbers(shape) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + whole(offset) + rest + b"tR"


def pt(tensors: dict[str, np.ndarray]) -> bytes:
    """A .pt file with these float32 tensors, written instruction by instruction."""
    items, files = b"", {}
    for i, (name, a) in enumerate(tensors.items()):
        items += text(name) + rebuilt(str(i), a.size, a.shape, [s // 4 for s in a.strides])
        files[str(i)] = a.tobytes()
    return zipped(b"\x80\x02ccollections\nOrderedDict\n)R(" + items + b"u.", files)


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
    """The miniature, taken apart as PyTorch keeps it (batch norms, tables of biases), gives the same model back."""
    ours = Checkpoint.open(ROOT / "models/test-sam")
    tensors = {name: await ours.read(info) for name, info in (await ours.tensors()).items()}
    state: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(3)
    for name, array in tensors.items():
        stem = name.removesuffix(".c.weight")
        if name.endswith(".attn.ab"):
            n = round(array.shape[1] ** 0.5)
            table = rng.standard_normal((len(array), n * n)).astype(np.float32)
            state[name.removesuffix("ab") + "attention_biases"] = table
            tensors[name] = table[:, mobilesam.offset_index(n)]
        elif stem != name:
            var, mean, gain = rng.random(len(array)) + 0.5, rng.standard_normal(len(array)), rng.random(len(array)) + 0.5
            scale = gain / np.sqrt(var + 1e-5)
            bias = tensors[f"{stem}.c.bias"] + mean * scale
            parts = {"c.weight": array / scale.reshape(-1, 1, 1, 1), "bn.weight": gain, "bn.bias": bias,
                     "bn.running_mean": mean, "bn.running_var": var}
            state |= {f"{stem}.{part}": np.asarray(value, np.float32) for part, value in parts.items()}
        elif not name.endswith(".c.bias"):
            state[name] = array
    state["image_encoder.norm_head.weight"] = np.ones(32, np.float32)  # the classifier that comes with TinyViT
    checkpoint = Checkpoint({"mobile_sam.pt": MemorySource(pt(state), "mobile_sam.pt")}, "own")
    model = await load_model(checkpoint)
    for name in model.network.parameters():
        assert np.abs(await model.weights.read(name) - tensors[name]).max() < 1e-5, name
    assert model.dims.image_size == 1024 and model.dims.encoder.window_sizes == (7, 5, 3)
