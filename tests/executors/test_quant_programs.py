"""Programs with block-quantised weights on the wasm executor: one copy of each weight, and what happens inside a product."""

from __future__ import annotations

import numpy as np
import pytest

from candlewick import Spec, nn, ops, trace
from candlewick.executors import create
from candlewick.executors.wasm import WasmExecutor, abi
from candlewick.weights.load import Checkpoint, Weights
from candlewick.weights.safetensors import TensorInfo
from candlewick.weights.source import MemorySource
from tests.executors.test_quant_ops import random_weight

pytest.importorskip("wasmtime", reason="kernel tests in CPython need wasmtime (requirements-dev.txt)")

from candlewick.executors.wasm.host_wasmtime import Host

BUILDS = {"single relaxed": (1, True), "2 threads simd128": (2, False)}
WIDTH, HIDDEN, VOCABULARY = 64, 96, 40


@pytest.fixture(scope="module", params=BUILDS)
def host(request):
    host = Host(*BUILDS[request.param])
    yield host
    host.close()


class FeedForward(nn.Module):
    """A table that is also the output matrix, a norm, and the gated two layers of a Llama."""

    def __init__(self):
        self.norm = nn.RMSNorm(WIDTH, 1e-5)
        self.gate_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.table = nn.Parameter((VOCABULARY, WIDTH))

    def __call__(self, ids, count=None):
        x = ops.embedding(ids, self.table)
        y = self.norm(x)
        x = x + self.down_proj(ops.swiglu(self.gate_proj(y, count), self.up_proj(y, count)), count)
        return {"x": x, "logits": ops.linear(x, self.table, count=count)}


def feed_forward(dtype):
    """(module with dtypes, weights)"""
    rng, data, bound = np.random.default_rng(5), b"", {}
    module = FeedForward()
    for name, parameter in module.parameters().items():
        kind, shape = (dtype if len(parameter.shape) == 2 else "f32"), tuple(parameter.shape)
        blocks = rng.normal(1, 0.3, shape).astype(np.float32) if kind == "f32" else random_weight(rng, kind, *shape)[0]
        bound[name] = TensorInfo(name, kind, shape, "weights", len(data), len(data) + blocks.nbytes)
        data += blocks.tobytes()
    module.set_dtypes({name: info.dtype for name, info in bound.items()})
    return module, Weights(Checkpoint({"weights": MemorySource(data, "weights")}), bound)


def kernels_of(executor):
    """Names of the kernels that a run calls, in order."""
    (plan,), entry, names = executor.plans, executor.entries["main"], list(abi.KERNELS)
    words, found = plan.code[(entry.code_start - plan.code_address) // 4 : (entry.code_end - plan.code_address) // 4], []
    while len(words):
        found.append(names[words[0]])
        words = words[words[1] :]
    return found


@pytest.mark.parametrize("dtype", ["q4_0", "q4_1", "q5_1", "q8_0"])
@pytest.mark.parametrize("n", [1, 6])
async def test_norm_and_gate_take_place_inside_the_products(host, dtype, n):
    module, weights = feed_forward(dtype)
    program = trace(module, {"ids": Spec((1, n), "i32")}, name="main")
    ids = np.arange(3, 3 + n, dtype=np.int32)[None]
    wasm, numpy = WasmExecutor(host), create("numpy")
    for executor in (wasm, numpy):
        await executor.load({"main": program}, weights)
    assert kernels_of(wasm) == ["embedding_q", "linear_q", "linear_q", "linear_q"]
    got, want = await wasm.run("main", {"ids": ids}), await numpy.run("main", {"ids": ids})
    tolerance = 2e-4 if n == 1 or not host.relaxed or dtype == "q8_0" else 0.03
    for name in want:
        assert np.abs(got[name] - want[name]).max() <= tolerance * np.abs(want[name]).max(), name
    table = abi.panel_bytes(VOCABULARY, WIDTH, dtype)
    matrices = 2 * abi.panel_bytes(HIDDEN, WIDTH, dtype) + abi.panel_bytes(WIDTH, HIDDEN, dtype)
    assert wasm.describe()["memory"]["weights"] == table + matrices + 4 * WIDTH, "one copy of each"

    theirs = [(i.out.name, value) async for i, value in numpy.steps("main", {"ids": ids})]
    ours = [(i.out.name, value) async for i, value in wasm.steps("main", {"ids": ids})]
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    for (name, mine), (_, other) in zip(ours, theirs, strict=True):
        assert np.abs(mine.reshape(other.shape) - other).max() <= tolerance * np.abs(other).max(), name
    assert len(await wasm.profile("main", {"ids": ids})) == len(ours)


@pytest.mark.parametrize("count", [0, 1, 4, 6])
async def test_counted_rows(host, count):
    module, weights = feed_forward("q4_1")
    program = trace(module, {"ids": Spec((1, 6), "i32")}, ("count",), name="main")
    given = {"ids": np.arange(6, dtype=np.int32)[None], "count": count}
    wasm, numpy = WasmExecutor(host), create("numpy")
    for executor in (wasm, numpy):
        await executor.load({"main": program}, weights)
    got, want = await wasm.run("main", given), await numpy.run("main", given)
    assert (got["logits"][:, count:] == 0).all()
    assert np.abs(got["logits"] - want["logits"]).max() <= 0.03 * np.abs(want["logits"]).max() + 1e-6


async def test_read_twice_a_norm_stays_by_itself(host):
    module, weights = feed_forward("q4_1")

    def fn(ids):
        y = module.norm(ops.embedding(ids, module.table))
        return {"a": ops.linear(y, module.gate_proj.weight), "y": y}

    wasm, numpy = WasmExecutor(host), create("numpy")
    program = trace(fn, {"ids": Spec((1, 3), "i32")}, name="main")
    for executor in (wasm, numpy):
        await executor.load({"main": program}, weights)
    assert kernels_of(wasm) == ["embedding_q", "rms_norm", "linear_q"]
    ids = np.array([[1, 2, 3]], np.int32)
    got, want = await wasm.run("main", {"ids": ids}), await numpy.run("main", {"ids": ids})
    assert np.abs(got["y"] - want["y"]).max() < 1e-5 * np.abs(want["y"]).max()
    assert np.abs(got["a"] - want["a"]).max() < 0.03 * np.abs(want["a"]).max()


async def test_a_gate_that_is_read_elsewhere_stays_by_itself(host):
    module, weights = feed_forward("q8_0")

    def fn(x):
        gate, up = module.gate_proj(x), module.up_proj(x)
        return {"y": ops.swiglu(gate, up), "gate": gate, "swapped": ops.swiglu(up, gate)}

    wasm, numpy = WasmExecutor(host), create("numpy")
    program = trace(fn, {"x": Spec((2, WIDTH))}, name="main")
    for executor in (wasm, numpy):
        await executor.load({"main": program}, weights)
    assert kernels_of(wasm).count("linear_q") == 1 and kernels_of(wasm).count("binary") == 2
    x = np.random.default_rng(1).normal(0, 1, (2, WIDTH)).astype(np.float32)
    got, want = await wasm.run("main", {"x": x}), await numpy.run("main", {"x": x})
    for name in want:
        assert np.abs(got[name] - want[name]).max() < 2e-4 * np.abs(want[name]).max()


async def test_rows_too_long_for_a_thread_are_refused(host):
    class Wide(nn.Module):
        def __init__(self):
            self.w = nn.Parameter((8, 1 << 16))

        def __call__(self, x):
            return ops.linear(x, self.w)

    module = Wide()
    module.parameters()
    module.set_dtypes({"w": "q8_0"})
    program = trace(module, {"x": Spec((1, 1 << 16))}, name="main")
    bound = {"w": TensorInfo("w", "q8_0", (8, 1 << 16), "weights", 0, 8 * (1 << 16) // 32 * 34)}
    with pytest.raises(ValueError, match="rows of 65536 q8_0 weights do not fit"):
        await WasmExecutor(host).load({"main": program}, Weights(Checkpoint({}), bound))


async def test_a_new_state_is_zeros_in_memory_that_was_used_and_in_memory_that_is_new(host):
    start = host.free_base
    old = host.reserve(start + (1 << 20))
    old = host.reserve(old)
    host.write(start, np.full(old - start, 255, np.uint8))  # as the model before left it
    room = old // (64 * 4)  # each of the two is as large as all memory so far
    cache = nn.KVCache.new("c", 1, 1, room, 64)

    def fn(k, pos):
        after = cache.update(k, k * 2.0, pos)
        return {name: ops.sum(part, axis=-1) for name, part in (("k", after.k), ("v", after.v))}

    executor = WasmExecutor(host)
    program = trace(fn, {"k": Spec((1, 1, 2, 64), "f32")}, ("pos",), name="main")
    await executor.load({"main": program}, Weights(Checkpoint({}), {}))
    got = await executor.run("main", {"k": np.ones((1, 1, 2, 64), np.float32), "pos": 3})
    assert (float(got["k"].sum()), float(got["v"].sum())) == (128.0, 256.0)
    await executor.close()
