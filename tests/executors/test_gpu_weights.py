"""Weights as they lie in files, on the webgpu executor: every type, many and few rows, rows of a table, joined ones."""

from __future__ import annotations

import numpy as np
import pytest

from candlewick import Spec, nn, ops, trace
from candlewick.dtypes import DTYPES, QUANTISED
from candlewick.weights.load import Checkpoint, Weights
from candlewick.weights.safetensors import TensorInfo
from candlewick.weights.source import MemorySource
from tests.executors.test_ops import close
from tests.executors.test_quant_ops import random_weight


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def weight(rng, dtype, n, k):
    """(bytes in a file, the same as float64)"""
    if dtype in QUANTISED:
        blocks, values = random_weight(rng, dtype, n, k)
        return blocks.tobytes(), values
    values = rng.normal(0, 1, (n, k)).astype(np.float32)
    if dtype == "bf16":
        bits = values.view(np.uint32) >> 16
        return bits.astype(np.uint16).tobytes(), (bits << 16).view(np.float32).astype(np.float64)
    values = values.astype(DTYPES[dtype].numpy)
    return values.tobytes(), values.astype(np.float64)


async def run(host, fn, matrices, inputs, scalars=None):
    """fn(holder, **inputs) with weights {name: (dtype, shape, bytes)} that lie one behind another in one file."""
    from candlewick.executors.webgpu import WebgpuExecutor

    class Holder(nn.Module):
        pass

    holder, data, bound = Holder(), b"", {}
    for name, (dtype, shape, part) in matrices.items():
        parameter = nn.Parameter(shape)
        parameter.dtype = dtype
        setattr(holder, name, parameter)
        bound[name] = TensorInfo(name, dtype, shape, "weights", len(data), len(data) + len(part))
        data += part
    holder.parameters()
    checkpoint = Checkpoint({"weights": MemorySource(data, "weights")})
    specs = {n: Spec(a.shape, "i32" if a.dtype == np.int32 else "f32") for n, a in inputs.items()}
    program = trace(lambda **kw: fn(holder, **kw), specs, tuple(scalars or ()))
    executor = WebgpuExecutor(host)
    await executor.load({"main": program}, Weights(checkpoint, bound))
    got = (await executor.run("main", {**inputs, **(scalars or {})}))["out"]
    await executor.close()
    assert host.bytes == 0
    return got


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", *QUANTISED])
@pytest.mark.parametrize("m", [1, 3, 70])
async def test_linear(host, rng, dtype, m):
    n, k = 37, 512
    data, w = weight(rng, dtype, n, k)
    x = rng.normal(0, 1, (m, k)).astype(np.float32)
    got = await run(host, lambda h, x: ops.linear(x, h.w), {"w": (dtype, (n, k), data)}, {"x": x})
    close(got, x.astype(np.float64) @ w.T, 1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", *QUANTISED])
async def test_embedding(host, rng, dtype):
    n, k = 11, 256
    data, w = weight(rng, dtype, n, k)
    ids = np.array([[3, 0, 10, 3]], np.int32)
    got = await run(host, lambda h, ids: ops.embedding(ids, h.w), {"w": (dtype, (n, k), data)}, {"ids": ids})
    close(got, w[ids], 1e-6)


@pytest.mark.parametrize("count", [0, 1, 5, 9])
@pytest.mark.parametrize("dtype", ["f16", "q4_1"])
async def test_rows_that_count(host, rng, dtype, count):
    data, w = weight(rng, dtype, 20, 64)
    x = rng.normal(0, 1, (1, 9, 64)).astype(np.float32)
    got = await run(host, lambda h, x, count: ops.linear(x, h.w, count=count), {"w": (dtype, (20, 64), data)}, {"x": x},
                    {"count": count})
    want = x.astype(np.float64) @ w.T
    want[:, count:] = 0
    close(got, want, 1e-5)


@pytest.mark.parametrize("dtype", ["q4_0", "q8_0", "q6_k"])
async def test_joined(host, rng, dtype):
    """Query, key and value of one x are one product, of weights that lie apart in the file."""
    parts = {name: weight(rng, dtype, n, 256) for name, n in (("q", 24), ("k", 12), ("v", 12))}
    x = rng.normal(0, 1, (2, 256)).astype(np.float32)
    matrices = {name: (dtype, values.shape, data) for name, (data, values) in parts.items()}
    got = await run(host, lambda h, x: ops.concat([ops.linear(x, getattr(h, n)) for n in "qkv"], -1), matrices, {"x": x})
    close(got, np.concatenate([x.astype(np.float64) @ values.T for _, values in parts.values()], -1), 1e-5)
