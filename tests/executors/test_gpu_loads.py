"""What loads of the webgpu executor leave on the device: weights as they are, once; nothing of a load that fails."""

from __future__ import annotations

import json

import numpy as np
import pytest

from candlewick import Spec, nn, ops, trace
from candlewick.executors import create
from candlewick.executors.webgpu import WebgpuExecutor
from candlewick.executors.webgpu.weights import Filler
from candlewick.weights.load import Checkpoint, Weights
from candlewick.weights.safetensors import TensorInfo
from candlewick.weights.source import MemorySource, WeightsError


class Model(nn.Module):
    """A 16-bit matrix that is streamed, a convolution whose axes move, and a bias that is widened."""

    def __init__(self):
        self.first = nn.Linear(6, 10)
        self.conv = nn.Conv1d(10, 8, 3, padding=1)

    def __call__(self, x):
        return self.conv(ops.gelu(self.first(x)))


class Broken(MemorySource):
    """Reads beyond a place fail."""

    def __init__(self, data, beyond):
        super().__init__(data, "weights")
        self.beyond = beyond

    async def read(self, start, end):
        if end > self.beyond:
            raise WeightsError("the file ends here")
        return await super().read(start, end)


def model(dtype, beyond=1 << 30):
    """(module, weights)"""
    rng, data, bound, module = np.random.default_rng(1), b"", {}, Model()
    for name, parameter in module.parameters().items():
        values = rng.normal(0, 1, parameter.shape).astype(dtype)
        kind = {"float32": "f32", "float16": "f16"}[values.dtype.name]
        bound[name] = TensorInfo(name, kind, tuple(parameter.shape), "weights", len(data), len(data) + values.nbytes)
        data += values.tobytes()
    module.set_dtypes({name: info.dtype for name, info in bound.items()})
    return module, Weights(Checkpoint({"weights": Broken(data, beyond)}), bound)


def programs(module, n=5):
    return {f"rows {n}": trace(lambda x: module(x), {"x": Spec((1, n, 6))})}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("piece", [1 << 22, 40])
async def test_every_way_of_a_weight(host, monkeypatch, dtype, piece):
    """Streamed or made, at once or in pieces of a few bytes: the same numbers as numpy's."""
    monkeypatch.setattr("candlewick.executors.webgpu.weights.PIECE_BYTES", piece)
    monkeypatch.setattr("candlewick.executors.webgpu.host_wgpu.PIECE_BYTES", piece)
    module, weights = model(dtype)
    x = np.random.default_rng(2).normal(0, 1, (1, 5, 6)).astype(np.float32)
    told = []
    gpu, reference = WebgpuExecutor(host), create("numpy")
    await gpu.load(programs(module), weights, lambda *event: told.append(event))
    await reference.load(programs(module), weights)
    got, want = [(await executor.run("rows 5", {"x": x}))["out"] for executor in (gpu, reference)]
    assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()
    amounts = [(done, total) for stage, done, total, unit in told if stage == "weights"]
    assert amounts == sorted(amounts) and amounts[-1][0] == amounts[-1][1] > 0
    await gpu.close()
    assert host.bytes == 0


async def test_a_load_that_fails_leaves_nothing(host):
    """The first load, and a second one beside what is loaded: all at once free again, and what was there still runs."""
    module, broken = model(np.float16, beyond=300)
    executor = WebgpuExecutor(host)
    with pytest.raises(WeightsError, match="ends here"):
        await executor.load(programs(module), broken)
    assert host.bytes == 0 and executor.describe()["memory"]["total"] == 0
    module, weights = model(np.float16)
    await executor.load(programs(module), weights)
    held, x = host.bytes, np.ones((1, 5, 6), np.float32)
    before = (await executor.run("rows 5", {"x": x}))["out"]
    other, broken = model(np.float32, beyond=300)
    renamed = Weights(broken.checkpoint, {f"other.{name}": info for name, info in broken.bound.items()})
    other.parameters()
    for name, parameter in other.parameters().items():
        parameter.name = f"other.{name}"
    with pytest.raises(WeightsError, match="ends here"):
        await executor.load(programs(other, 70), renamed)
    assert host.bytes == held
    assert np.array_equal((await executor.run("rows 5", {"x": x}))["out"], before)
    await executor.load(programs(module, 7), weights)  # numbers of buffers are right again
    assert (await executor.run("rows 7", {"x": np.ones((1, 7, 6), np.float32)}))["out"].shape == (1, 7, 8)
    assert np.array_equal((await executor.run("rows 5", {"x": x}))["out"], before)
    await executor.close()
    assert host.bytes == 0


async def test_gpu_times(host):
    """Where the device tells times, each run has one, and so has each instruction of a profile."""
    if "timestamp-query" not in host.features:
        pytest.skip("this device has no timestamp queries")
    module, weights = model(np.float32)
    executor = WebgpuExecutor(host)
    await executor.load(programs(module), weights)
    x = np.ones((1, 5, 6), np.float32)
    await executor.run("rows 5", {"x": x})
    assert host.gpu_ms > 0
    rows = await executor.profile("rows 5", {"x": x})
    assert len(rows) == len(executor.programs["rows 5"].instructions) and all(ms >= 0 for _, _, ms in rows)
    await executor.close()


def test_filler_writes_words():
    """Bytes of any lengths, in words; what is left over is filled up with zeros."""
    written = bytearray(64)

    def write(buffer, offset, data):
        assert offset % 4 == len(data) % 4 == 0 and buffer == 7
        written[offset : offset + len(data)] = data

    data = bytes(range(1, 30))
    filler = Filler(write, 7)
    for start, end in ((0, 3), (3, 4), (4, 11), (11, 11), (11, 29)):
        filler.add(data[start:end])
    filler.end()
    assert written[:32] == data + bytes(3) and filler.done == 32 and not any(written[32:])


async def test_recipes_are_byte_ranges(host):
    """Of weights that lie in the file as kernels read them, Python says where they are, and reads none."""
    module, weights = model(np.float32)
    seen = []

    class Watching:
        def __getattr__(self, name):
            return getattr(host, name)

        async def load_weights(self, recipe, on_progress=None):
            seen.extend(json.loads(recipe))
            host.sources = self.sources
            await host.load_weights(recipe, on_progress)

    executor = WebgpuExecutor(Watching())
    await executor.load(programs(module), weights)
    streamed = {tuple(part) for _, parts in seen for part in parts}
    infos = {name: (info.file, info.start, info.end) for name, info in weights.bound.items()}
    assert streamed == {infos[name] for name in infos if name != "conv.weight"}
    await executor.close()
