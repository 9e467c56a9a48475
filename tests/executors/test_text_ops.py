"""Ops of language models, on numpy and on every build of the kernels, against float64 NumPy written out here."""

from __future__ import annotations

import numpy as np
import pytest

from candlewick import Spec, ops, trace
from candlewick.executors import ExecutorUnavailable, create
from candlewick.executors.wasm import WasmExecutor
from candlewick.weights.load import Weights
from tests.executors.test_ops import attention64, close, normal, run

BUILDS = {"1 thread": (1, True), "1 thread simd128": (1, False), "2 threads": (2, True), "3 threads simd128": (3, False),
          "4 threads": (4, True)}


@pytest.fixture(scope="module", params=["numpy", "webgpu", *BUILDS])
def host(request):
    """One host for all tests; None for the executors that need none."""
    if request.param in ("numpy", "webgpu"):
        yield request.param
        return
    try:
        from candlewick.executors.wasm.host_wasmtime import Host

        made = Host(*BUILDS[request.param])
    except ExecutorUnavailable as e:
        pytest.skip(f"wasm executor: {e}")
    yield made
    made.close()


@pytest.fixture
def executor(host):
    if not isinstance(host, str):
        return WasmExecutor(host)
    try:
        return create(host)
    except ExecutorUnavailable as e:
        pytest.skip(f"{host} executor: {e}")


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (1, 1, 576), (2, 5, 64), (1, 64, 100)])
async def test_rms_norm(executor, shape):
    x, w = normal(*shape, scale=3), normal(shape[-1])
    x[0, 0] += np.float32(800)
    got = await run(executor, lambda h, x: ops.rms_norm(x, h.w, eps=1e-5), {"x": x}, weights={"w": w})
    x = x.astype(np.float64)
    close(got, x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w)


async def test_rms_norm_of_nothing_and_of_part_of_a_row(executor):
    x, w = normal(5, 40), normal(24)
    x[2] = 0
    got = await run(executor, lambda h, x: ops.rms_norm(ops.slice(x, 1, 8, 32), h.w, eps=1e-6), {"x": x}, weights={"w": w})
    part = x[:, 8:32].astype(np.float64)
    close(got, part / np.sqrt((part * part).mean(-1, keepdims=True) + 1e-6) * w)


def turned(x, angle, pairs):
    """x (b, h, n, d) turned as complex numbers by angle (n, d / 2)."""
    half = x.shape[-1] // 2
    x = x.astype(np.float64)
    z = x[..., 0::2] + 1j * x[..., 1::2] if pairs else x[..., :half] + 1j * x[..., half:]
    z = z * np.exp(1j * angle)
    return np.stack([z.real, z.imag], -1).reshape(x.shape) if pairs else np.concatenate([z.real, z.imag], -1)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("b,h,n,d,start", [(1, 1, 1, 2, 0), (2, 3, 5, 6, 4), (1, 9, 1, 64, 19), (1, 4, 20, 16, 0),
                                           (1, 2, 7, 10, 13)])
async def test_rope(executor, b, h, n, d, start, pairs):
    angle = np.random.default_rng(1).uniform(-4, 4, (20, d // 2))
    tables = {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}
    x = normal(b, h, n, d)

    def fn(m, x, start):
        return ops.rope(x, m.cos, m.sin, start, pairs=pairs)

    close(await run(executor, fn, {"x": x}, {"start": start}, tables), turned(x, angle[start : start + n], pairs))
    with pytest.raises(ValueError, match="start"):
        await executor.run("main", {"x": x, "start": 21 - n})


@pytest.mark.parametrize("pairs", [False, True])
async def test_rope_of_parts_of_a_joined_projection(executor, pairs):
    """Queries and keys as slices of one row each position, at a position that the program knows."""
    angle = np.random.default_rng(1).uniform(-4, 4, (9, 4))
    tables = {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}
    x = normal(1, 3, 48)  # 4 heads of queries, 2 of keys, 8 each

    def heads(x):
        return ops.transpose(x.reshape(1, 3, -1, 8), (0, 2, 1, 3))

    def fn(m, x):
        parts = ops.slice(x, 2, 0, 32), ops.slice(x, 2, 32, 48)
        q, k = (ops.rope(heads(part), m.cos, m.sin, 5, pairs=pairs) for part in parts)
        return ops.concat([q, k], 1)

    want = turned(x.reshape(1, 3, 6, 8).transpose(0, 2, 1, 3), angle[5:8], pairs)
    close(await run(executor, fn, {"x": x}, weights=tables), want)


@pytest.mark.parametrize("shape", [(1,), (1, 1536), (64, 50), (2, 3, 7)])
async def test_swiglu(executor, shape):
    a, b = normal(*shape, scale=8), normal(*shape)
    a.flat[0] = -1e4
    want = a.astype(np.float64) / (1 + np.exp(np.minimum(-a.astype(np.float64), 700))) * b
    close(await run(executor, lambda _, a, b: ops.swiglu(a, b), {"a": a, "b": b}), want)
    joined = np.concatenate([a, b], -1)
    n = shape[-1]

    def fn(_, x):
        return ops.swiglu(ops.slice(x, -1, 0, n), ops.slice(x, -1, n, 2 * n))

    close(await run(executor, fn, {"x": joined}), want)


def first_k(x, k):
    """By definition: sorted by falling value, NaN last, equal ones in their order."""
    def order(row):
        return sorted(range(len(row)), key=lambda i: (np.isnan(row[i]), 0 if np.isnan(row[i]) else -row[i], i))

    return np.array([order(row) for row in x.tolist()], np.int32)[:, :k]


def rows_with(n, name):
    x = normal(2, n, scale=5)
    if name == "ties":
        return np.round(x)
    if name == "all equal":
        return np.full((2, n), -3.5, np.float32)
    if name == "falling":
        return -np.sort(-x, -1)
    if name == "rising":
        return np.sort(x, -1)
    if name == "odd ones":
        x[:, ::7], x[:, 3::11], x[:, 5::13], x[:, 1::17], x[:, 2::19] = np.nan, -np.inf, np.inf, 0.0, -0.0
    if name == "hardly any number":
        x[:] = np.nan
        x[:, n // 2] = -np.inf
        x[0, n - 1] = 4
    if name == "infinitely small":
        x[:] = -np.inf
        x[:, n // 3 : n // 2] = np.nan
        x[1, n - 2] = -5
    return x


KINDS = ["random", "ties", "all equal", "falling", "rising", "odd ones", "hardly any number", "infinitely small"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n,k", [(1, 1), (5, 5), (130, 7), (1000, 1000), (3001, 1), (4999, 128), (20001, 64), (60000, 300)])
async def test_top_k_and_take(executor, n, k, kind):
    x = rows_with(n, kind)

    def fn(x):
        ids = ops.top_k(x, k=k)
        return {"ids": ids, "values": ops.take(x, ids)}

    await executor.load({"main": trace(fn, {"x": Spec(x.shape)})}, Weights(None, {}, {}))
    got = await executor.run("main", {"x": x})
    want = first_k(x, k)
    assert got["ids"].dtype == np.int32
    np.testing.assert_array_equal(got["ids"], want)
    np.testing.assert_array_equal(got["values"], np.take_along_axis(x, want, -1))


async def test_top_k_of_a_vocabulary(executor):
    x = normal(1, 151_936, scale=3)
    ids = await run(executor, lambda _, x: ops.top_k(x, k=128), {"x": x})
    assert ids.tolist() == np.argsort(-x, -1, "stable")[:, :128].tolist()


async def test_top_k_of_too_many_is_said_at_load(executor):
    if executor.name != "wasm":
        pytest.skip(f"{executor.name} has no limit")
    with pytest.raises(ValueError, match="top_k: 5000 of 100000 values do not fit a thread's scratch"):
        await run(executor, lambda _, x: ops.top_k(x, k=5000), {"x": normal(1, 100_000)})


@pytest.mark.parametrize("shape,axis", [((1, 1), -1), ((3, 50), -1), ((3, 50), 0), ((2, 3, 4), 1), ((1, 49_152), -1),
                                        ((2, 9001), 1)])
@pytest.mark.parametrize("keepdims", [False, True])
async def test_log_sum_exp(executor, shape, axis, keepdims):
    x = normal(*shape, scale=30)
    x.flat[0] = -np.inf
    x.flat[-1] = 200
    got = await run(executor, lambda _, x: ops.log_sum_exp(x, axis=axis, keepdims=keepdims), {"x": x})
    x = x.astype(np.float64)
    high = x.max(axis, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        want = np.log(np.exp(x - high).sum(axis, keepdims=True)) + high
    want = want if keepdims else want.squeeze(axis)
    assert got.shape == want.shape
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["max", "sum", "mean", "argmax"])
async def test_reductions_of_few_long_rows(executor, name):
    """Threads share each row."""
    x = normal(2, 30_011)
    x[:, [4_000, 16_000, 30_010]] = 50.0
    x[1, 29_000] = 60.0
    got = await run(executor, lambda _, x: getattr(ops, name)(x, -1), {"x": x})
    close(got, getattr(np, name)(x.astype(np.float64), -1), 4e-6)


@pytest.mark.parametrize("position", [0, 1, 199, 255, 256, 700, 1023])
async def test_grouped_attention_of_one_query_reads_only_what_is_there(executor, position):
    """Keys and values behind the position are NaN."""
    q, k, v = normal(1, 9, 1, 64), normal(1, 3, 1024, 64), normal(1, 3, 1024, 64)
    k[:, :, position + 1 :] = v[:, :, position + 1 :] = np.nan
    if executor.name == "numpy":
        k, v = np.nan_to_num(k), np.nan_to_num(v)  # it multiplies by 0

    def fn(_, q, k, v, start):
        return ops.attention(q, k, v, start=start, causal=True)

    got = await run(executor, fn, {"q": q, "k": k, "v": v}, {"start": position})
    close(got, attention64(q, np.nan_to_num(k), np.nan_to_num(v), position, True), 4e-6)
