"""Every C kernel against NumPy in float64, through wasmtime, on both builds; the threaded build too."""

from __future__ import annotations

import json
import math
import threading

import numpy as np
import pytest

from candlewick.executors.wasm import abi, build
from candlewick.executors.wasm.layout import FLOATS, pack_panels, recipe_line
from candlewick.weights.source import MemorySource

pytest.importorskip("wasmtime", reason="kernel tests in CPython need wasmtime (requirements-dev.txt)")

from candlewick.executors.wasm.host_wasmtime import Host, HostError
from tests.executors.kernel_calls import Kernels, to_bfloat

HOSTS = {"single relaxed": (1, True), "single simd128": (1, False), "2 threads relaxed": (2, True),
         "3 threads simd128": (3, False), "4 threads relaxed": (4, True)}


@pytest.fixture(scope="module", params=HOSTS)
def machine(request):
    host = Host(*HOSTS[request.param])
    yield Kernels(host)
    host.close()


@pytest.fixture
def kernels(machine):
    machine.reset()
    return machine


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def close(got, want, tolerance=2e-6, floor=1.0):
    """Largest difference relative to the size of the values."""
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    error = np.abs(got - want).max(initial=0.0)
    size = max(floor, np.abs(want).max(initial=0.0))
    assert error <= tolerance * size, f"error {error} at size {size}"


def erf(x):
    return np.vectorize(math.erf, otypes=[float])(x)


ACTIVATE = {
    "none": lambda x: x,
    "gelu": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-np.clip(x, -700, 700))),
}


# ---- linear --------------------------------------------------------------------------------------------------------

def weight_of(rng, n, k, w_dtype):
    """(array in file form, its exact float64 values); halves include subnormals, zeros and the largest."""
    w = rng.normal(0, 0.3, (n, k)).astype(np.float32)
    if w_dtype == "f16":
        w = w.astype(np.float16)
        flat = w.reshape(-1)
        flat[: min(6, flat.size)] = np.array([6e-8, -6e-8, 0, -0.0, 5e-5, 3.1e-5], np.float16)[: flat.size]
        return w, w.astype(np.float64)
    if w_dtype == "bf16":
        bits, values = to_bfloat(w)
        return bits, values.astype(np.float64)
    return w, w.astype(np.float64)


def run_linear(kernels, rng, m, n, k, w_dtype="f32", activation="none", bias=True, residual=False, ldx=None, gap=0,
               size=1.0):
    ldx = ldx or k
    x = rng.normal(0, size, ((m - 1) * ldx + k,)).astype(np.float32)
    rows = np.lib.stride_tricks.as_strided(x, (m, k), (ldx * 4, 4)).astype(np.float64)
    w, exact = weight_of(rng, n, k, w_dtype)
    b = rng.normal(0, 1, n).astype(np.float32)
    r = rng.normal(0, 1, (m, n + gap)).astype(np.float32)
    want = ACTIVATE[activation](rows @ exact.T + (b if bias else 0)) + (r[:, :n] if residual else 0)
    y = kernels.output((m - 1) * (n + gap) + n)
    status = kernels.run(["linear", {
        "x": kernels.put(x), "ldx": ldx, "w": kernels.weight(w, w_dtype), "bias": kernels.put(b) if bias else 0,
        "residual": kernels.put(r) if residual else 0, "ldr": n + gap, "y": y, "ldy": n + gap, "m": m, "n": n, "k": k,
        "w_dtype": abi.W_DTYPES[w_dtype], "activation": abi.ACTIVATIONS[activation]}])
    assert status == 0
    flat = np.append(kernels.get(y, ((m - 1) * (n + gap) + n,)), np.zeros(gap, np.float32)).reshape(m, n + gap)
    if gap and m > 1:
        assert (flat[:-1, n:] < -7e30).all(), "written between the rows of y"
    return flat[:, :n], want


@pytest.mark.parametrize("w_dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("m,n,k", [(1, 1, 1), (1, 12, 4), (2, 13, 5), (3, 25, 7), (4, 11, 8), (5, 24, 64), (7, 37, 513),
                                   (1, 100, 384), (2, 60, 130), (3, 36, 1536), (6, 30, 40), (8, 13, 36), (9, 24, 24),
                                   (100, 30, 1030), (205, 61, 96)])
def test_linear_shapes(kernels, rng, m, n, k, w_dtype):
    close(*run_linear(kernels, rng, m, n, k, w_dtype), tolerance=3e-6)


@pytest.mark.parametrize("activation", abi.ACTIVATIONS)
@pytest.mark.parametrize("m,n,k", [(1, 29, 40), (3, 24, 20), (5, 29, 40), (50, 29, 40), (51, 24, 600)])
@pytest.mark.parametrize("bias,residual", [(False, False), (True, True), (False, True)])
def test_linear_epilogue(kernels, rng, m, n, k, activation, bias, residual):
    close(*run_linear(kernels, rng, m, n, k, "f16", activation, bias, residual, gap=5), tolerance=3e-6)


def test_linear_convolution_rows_overlap(kernels, rng):
    close(*run_linear(kernels, rng, 150, 48, 36, ldx=24))
    close(*run_linear(kernels, rng, 300, 40, 40, ldx=16))


@pytest.mark.parametrize("m", [1, 40])
def test_linear_large_and_small_magnitudes(kernels, rng, m):
    close(*run_linear(kernels, rng, m, 24, 100, "f16", size=1e6), tolerance=3e-6)
    got, want = run_linear(kernels, rng, m, 24, 100, "f16", size=1e-6, bias=False)
    close(got, want, tolerance=3e-6, floor=0)


def test_linear_whisper_shape(kernels, rng):
    close(*run_linear(kernels, rng, 750, 384, 384, "f16", "gelu", True, True), tolerance=3e-6)


def test_linear_adds_the_residual_in_place(kernels, rng):
    x, r = rng.normal(0, 1, (200, 64)).astype(np.float32), rng.normal(0, 1, (200, 64)).astype(np.float32)
    w, exact = weight_of(rng, 64, 64, "f16")
    y = kernels.output(200 * 64)
    kernels.host.write(y, r)
    assert kernels.run(["linear", {"x": kernels.put(x), "ldx": 64, "w": kernels.weight(w, "f16"), "residual": y, "ldr": 64,
                                   "y": y, "ldy": 64, "m": 200, "n": 64, "k": 64, "w_dtype": 1}]) == 0
    close(kernels.get(y, (200, 64)), x.astype(np.float64) @ exact.T + r)


def test_half_weights_are_exact(kernels):
    """Every finite half, read through the matmul with x = 1, comes out as itself."""
    bits = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    halves = bits.view(np.float16)
    halves = halves[np.isfinite(halves)]
    for m in (1, 4, 9):
        y = kernels.output(m * len(halves))
        assert kernels.run(["linear", {
            "x": kernels.put(np.ones(m, np.float32)), "ldx": 1, "w": kernels.weight(halves.reshape(-1, 1), "f16"), "y": y,
            "ldy": len(halves), "m": m, "n": len(halves), "k": 1, "w_dtype": 1}]) == 0
        assert (kernels.get(y, (m, len(halves))) == halves.astype(np.float32)).all()


# ---- attention -----------------------------------------------------------------------------------------------------

def reference_attention(q, k, v, scale, start):
    """q (h, n, d), k and v (hkv, m, d), start None = not causal; queries that see nothing give 0."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = len(q) // len(k)
    k, v = np.repeat(k, group, 0), np.repeat(v, group, 0)
    scores = scale * q @ k.transpose(0, 2, 1)
    if start is not None:
        scores[:, np.arange(k.shape[1])[None] > start + np.arange(q.shape[1])[:, None]] = -np.inf
    high = scores.max(-1, keepdims=True)
    p = np.exp(scores - np.where(np.isfinite(high), high, 0))
    total = p.sum(-1, keepdims=True)
    return np.where(total > 0, p / np.where(total > 0, total, 1), 0) @ v


def run_attention(kernels, rng, heads, kv_heads, n_q, n_k, d, start=None, size=1.0, merged=True, capacity=None):
    """merged: q and y as (n, heads, d), so that rows are heads * d apart; keys in a cache of `capacity` rows."""
    capacity = capacity or n_k
    q = rng.normal(0, size, (heads, n_q, d)).astype(np.float32)
    k, v = (rng.normal(0, s, (kv_heads, capacity, d)).astype(np.float32) for s in (size, 1))
    scale = d ** -0.5
    y = kernels.output(heads * n_q * d)
    q_head, q_row = (d, heads * d) if merged else (n_q * d, d)
    scratch = abi.attention_scratch_bytes(kv_heads, n_q, n_k, d)
    status = kernels.run(["attention", {
        "q": kernels.put(q.transpose(1, 0, 2) if merged else q), "q_head": q_head, "q_row": q_row,
        "k": kernels.put(k), "k_head": capacity * d, "k_row": d, "v": kernels.put(v), "v_head": capacity * d, "v_row": d,
        "y": y, "y_head": q_head, "y_row": q_row, "n_head": heads, "n_group": heads // kv_heads, "n_q": n_q, "n_k": n_k,
        "d": d, "scale": scale, "causal": start is not None,
        "start": 0 if start is None else kernels.put(np.array([start], np.int32)),
        "scratch": kernels.output(scratch // 4) if scratch else 0}])
    assert status == 0
    got = kernels.get(y, (n_q, heads, d) if merged else (heads, n_q, d))
    return got.transpose(1, 0, 2) if merged else got, reference_attention(q, k[:, :n_k], v[:, :n_k], scale, start)


@pytest.mark.parametrize("heads,kv_heads,n_q,n_k,d", [
    (1, 1, 1, 1, 1), (2, 2, 1, 5, 3), (6, 6, 1, 300, 64), (6, 6, 1, 1500, 64), (2, 1, 7, 1033, 10), (6, 3, 3, 257, 64),
    (4, 1, 15, 70, 20), (1, 1, 16, 1, 4), (2, 2, 17, 13, 5), (6, 6, 48, 252, 64), (3, 1, 50, 253, 64), (2, 2, 150, 515, 32),
    (1, 1, 49, 1500, 80)])
@pytest.mark.parametrize("merged", [True, False])
def test_attention(kernels, rng, heads, kv_heads, n_q, n_k, d, merged):
    close(*run_attention(kernels, rng, heads, kv_heads, n_q, n_k, d, merged=merged), tolerance=3e-6)


@pytest.mark.parametrize("n_q", [1, 5, 16, 60])
@pytest.mark.parametrize("start", [0, 1, 37, 250, 300])
def test_attention_causal(kernels, rng, n_q, start):
    close(*run_attention(kernels, rng, 4, 2, n_q, 300, 24, start=start, capacity=310), tolerance=3e-6)


@pytest.mark.parametrize("n_q", [3, 40])
def test_attention_queries_that_see_nothing(kernels, rng, n_q):
    close(*run_attention(kernels, rng, 2, 2, n_q, 50, 16, start=-3))
    close(*run_attention(kernels, rng, 2, 2, n_q, 50, 16, start=-100))


@pytest.mark.parametrize("n_q", [1, 64])
def test_attention_huge_logits(kernels, rng, n_q):
    """Logits of +-1e4: softmax is a one-hot choice, and nothing overflows."""
    got, want = run_attention(kernels, rng, 2, 2, n_q, 400, 64, size=60.0)
    close(got, want, tolerance=5e-3)


# ---- rows ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("m,n", [(1, 1), (1, 384), (7, 5), (3, 17), (20, 100)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_layer_norm(kernels, rng, m, n, offset):
    x = (rng.normal(0, 1, (m, n)) + offset).astype(np.float32)
    w, b = rng.normal(0, 1, n).astype(np.float32), rng.normal(0, 1, n).astype(np.float32)
    y = kernels.output(m * n)
    assert kernels.run(["layer_norm", {"x": kernels.put(x), "w": kernels.put(w), "b": kernels.put(b), "y": y, "m": m, "n": n,
                                       "eps": 1e-5}]) == 0
    exact = x.astype(np.float64)
    want = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5) * w + b
    close(kernels.get(y, (m, n)), want, tolerance=2e-6 if not offset else 1e-3)


def test_layer_norm_outliers(kernels, rng):
    x = rng.normal(0, 1, (4, 384)).astype(np.float32)
    x[:, 7] = [800, -800, 1e4, 3e5]
    y = kernels.output(x.size)
    assert kernels.run(["layer_norm", {"x": kernels.put(x), "y": y, "m": 4, "n": 384, "eps": 1e-5}]) == 0
    exact = x.astype(np.float64)
    close(kernels.get(y, x.shape), (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5))


@pytest.mark.parametrize("m,n", [(1, 1), (3, 7), (2, 1000), (5, 64)])
@pytest.mark.parametrize("log", [0, 1])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_softmax(kernels, rng, m, n, log, size):
    x = rng.normal(0, size, (m, n)).astype(np.float32)
    y = kernels.output(m * n)
    assert kernels.run(["softmax", {"x": kernels.put(x), "y": y, "m": m, "n": n, "log": log}]) == 0
    exact = x.astype(np.float64) - x.max(1, keepdims=True)
    log_p = exact - np.log(np.exp(exact).sum(1, keepdims=True))
    close(kernels.get(y, (m, n)), log_p if log else np.exp(log_p), tolerance=2e-6)


@pytest.mark.parametrize("op", abi.REDUCE)
@pytest.mark.parametrize("m,n", [(1, 1), (3, 5), (2, 20), (1, 10007), (40, 33)])
def test_reduce(kernels, rng, op, m, n):
    x = rng.normal(0, 1, (m, n)).astype(np.float32)
    if n > 4:
        x[:, [n // 2, n - 1]] = 9.0  # the first of equal maxima counts
    y = kernels.output(m)
    assert kernels.run(["reduce", {"op": abi.REDUCE[op], "x": kernels.put(x), "y": y, "m": m, "n": n}]) == 0
    if op == "argmax":
        assert (kernels.get(y, (m,), np.int32) == x.argmax(1)).all()
    else:
        exact = x.astype(np.float64)
        want = np.log(np.exp(exact).sum(1)) if op == "log_sum_exp" else getattr(exact, op)(1)
        close(kernels.get(y, (m,)), want, tolerance=1e-6)


@pytest.mark.parametrize("w_dtype", abi.W_DTYPES)
def test_embedding(kernels, rng, w_dtype):
    table, exact = weight_of(rng, 29, 10, w_dtype)
    ids = np.array([0, 11, 12, 28, 5, 99, -1], np.int32)
    y = kernels.output(70)
    assert kernels.run(["embedding", {"ids": kernels.put(ids), "table": kernels.weight(table, w_dtype), "y": y, "m": 7, "n": 10,
                                      "n_rows": 29, "w_dtype": abi.W_DTYPES[w_dtype]}]) == 0
    assert (kernels.get(y, (7, 10)) == exact[np.clip(ids, 0, 28)]).all()


# ---- elements ------------------------------------------------------------------------------------------------------

UNARY = {
    "gelu": ACTIVATE["gelu"], "relu": ACTIVATE["relu"], "silu": ACTIVATE["silu"], "exp": np.exp, "log": np.log,
    "log10": np.log10, "sqrt": np.sqrt, "square": np.square, "neg": np.negative, "tanh": np.tanh,
    "sin": np.sin, "cos": np.cos,
    "sigmoid": lambda x: 1 / (1 + np.exp(-np.clip(x, -700, 700))),
}


def run_unary(kernels, op, x):
    y = kernels.output(x.size)
    assert kernels.run(["unary", {"op": abi.UNARY[op], "x": kernels.put(x), "y": y, "count": x.size}]) == 0
    return kernels.get(y, x.shape)


@pytest.mark.parametrize("op", abi.UNARY)
def test_unary(kernels, rng, op):
    x = np.concatenate([rng.normal(0, s, 997) for s in (1e-3, 0.3, 1, 6, 20)]).astype(np.float32)
    if op in ("log", "log10", "sqrt"):
        x = np.abs(x) + np.float32(1e-30)
    if op == "exp":
        x = np.clip(x, -86.5, 88)
    want = UNARY[op](x.astype(np.float64))
    got = run_unary(kernels, op, x)
    assert np.isfinite(got).all()
    relative = np.abs(got - want) / np.maximum(np.abs(want), 1e-3 if op in ("log", "log10") else 1e-30)
    if op == "gelu":
        assert np.abs(got - want).max() < 1e-6
    elif op in ("silu", "sigmoid"):
        assert (np.abs(got - want) <= 1e-6 * np.abs(want) + 1e-30).all()
    else:
        assert relative.max() < (2e-6 if op in ("log", "log10") else 4e-7), relative.max()


@pytest.mark.parametrize("op", ["gelu", "silu", "relu", "tanh", "sigmoid"])
def test_unary_large(kernels, op):
    """Whisper reaches GELU inputs of this size; GPU and fast-maths versions give NaN there."""
    x = np.array([-1e4, -100, -30, -13.5, -13.0, -5.5, -0.0, 0, 5.5, 13.5, 88, 100, 1e4, 1e30, -1e30], np.float32)
    close(run_unary(kernels, op, x).astype(np.float64), UNARY[op](x.astype(np.float64)), tolerance=1e-6)
    small = x[np.abs(x) < 200]
    assert np.abs(run_unary(kernels, op, small) - UNARY[op](small.astype(np.float64))).max() < 2e-6


def test_unary_limits(kernels):
    with np.errstate(all="ignore"):
        x = np.array([0, 1e-45, 1e-39, np.inf, -1, 1, np.nan, 3e38], np.float32)
        for op in ("log", "log10"):
            np.testing.assert_allclose(run_unary(kernels, op, x), UNARY[op](x.astype(np.float64)), rtol=1e-6)
        x = np.array([88.5, 88.72, 88.73, 1e4, np.inf, -86.5, -200, -np.inf, np.nan], np.float32)
        want = np.exp(x.astype(np.float64)).astype(np.float32)
        np.testing.assert_allclose(run_unary(kernels, "exp", x), want, rtol=1e-6)


@pytest.mark.parametrize("op,function", [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide),
                                         ("maximum", np.maximum), ("minimum", np.minimum)])
@pytest.mark.parametrize("a_strides,b_strides", [((13, 1), (13, 1)), ((13, 1), (0, 1)), ((13, 1), (1, 0)), ((0, 0), (13, 1)),
                                                 ((1, 7), (13, 1)), ((26, 2), (0, 0))])
@pytest.mark.parametrize("outer,inner", [(7, 13), (1, 200)])
def test_binary(kernels, rng, op, function, a_strides, b_strides, outer, inner):
    a, b = (rng.normal(0, 1, 3000).astype(np.float32) + np.float32(3) for _ in range(2))
    y = kernels.output(outer * inner)
    assert kernels.run(["binary", {
        "op": abi.BINARY[op], "a": kernels.put(a), "a_outer": a_strides[0], "a_inner": a_strides[1], "b": kernels.put(b),
        "b_outer": b_strides[0], "b_inner": b_strides[1], "y": y, "n_outer": outer, "n_inner": inner}]) == 0
    views = [np.lib.stride_tricks.as_strided(x, (outer, inner), (4 * s[0], 4 * s[1]))
             for x, s in ((a, a_strides), (b, b_strides))]
    assert (kernels.get(y, (outer, inner)) == function(*views)).all()


@pytest.mark.parametrize("shape,axes", [
    ((2, 3, 4, 5), (0, 1, 2, 3)), ((1, 1, 70, 9), (0, 1, 3, 2)), ((2, 3, 130, 37), (0, 1, 3, 2)),
    ((2, 3, 4, 8), (0, 2, 1, 3)), ((3, 2, 5, 7), (3, 2, 1, 0)), ((1, 1, 1, 5000), (0, 1, 2, 3)),
    ((1, 1, 1, 1), (0, 1, 2, 3)), ((1, 6, 50, 64), (0, 2, 1, 3))])
def test_copy_permutes(kernels, rng, shape, axes):
    x = rng.normal(0, 1, shape).astype(np.float32)
    view = x.transpose(axes)
    y = kernels.output(x.size)
    dense = [int(np.prod(view.shape[i + 1:])) for i in range(4)]
    assert kernels.run(["copy", {
        "src": kernels.put(x), "dst": y, **{f"d{i}": view.shape[i] for i in range(4)},
        **{f"s{i}": view.strides[i] // 4 for i in range(4)}, **{f"t{i}": dense[i] for i in range(4)}}]) == 0
    assert (kernels.get(y, view.shape) == view).all()


@pytest.mark.parametrize("position", [0, 3, 6, 50, -2])
def test_copy_at_an_offset(kernels, rng, position):
    """Two new rows of three heads into a cache of eight, and back out of it."""
    cache = rng.normal(0, 1, (3, 8, 5)).astype(np.float32)
    new = rng.normal(0, 1, (3, 2, 5)).astype(np.float32)
    address = kernels.output(cache.size)
    kernels.host.write(address, cache)
    out = kernels.output(new.size)
    at = kernels.put(np.array([position], np.int32))
    dims = {"d0": 1, "d1": 3, "d2": 2, "d3": 5, "offset": at, "offset_stride": 5, "offset_max": 6}
    assert kernels.run(
        ["copy", {"src": kernels.put(new), "dst": address, **dims, "s1": 10, "s2": 5, "s3": 1, "t1": 40, "t2": 5, "t3": 1,
                  "into_dst": 1}],
        ["copy", {"src": address, "dst": out, **dims, "s1": 40, "s2": 5, "s3": 1, "t1": 10, "t2": 5, "t3": 1}]) == 0
    p = min(max(position, 0), 6)
    cache[:, p:p + 2] = new
    assert (kernels.get(address, cache.shape) == cache).all()
    assert (kernels.get(out, new.shape) == new).all()


def test_fill_and_cast(kernels):
    y, z, back = kernels.output(103), kernels.output(8), kernels.output(8)
    x = np.array([0.9, -0.9, 2.5, -2.5, 1e10, -1e10, np.nan, 16777216.0], np.float32)
    assert kernels.run(["fill", {"dst": y, "count": 103, "value": -1.5}],
                       ["cast", {"mode": 0, "x": kernels.put(x), "y": z, "count": 8}],
                       ["cast", {"mode": 1, "x": z, "y": back, "count": 8}]) == 0
    assert (kernels.get(y, (103,)) == -1.5).all()
    whole = np.array([0, 0, 2, -2, 2**31 - 1, -(2**31), 0, 16777216], np.int64)
    assert (kernels.get(z, (8,), np.int32) == whole).all()
    assert (kernels.get(back, (8,)) == whole.astype(np.float32)).all()


# ---- packing -------------------------------------------------------------------------------------------------------

def test_pack_flat_widens_exactly(kernels, rng):
    for dtype in FLOATS:
        w = rng.normal(0, 1, (6, 5))
        if dtype == "bf16":
            source, want = to_bfloat(w)
        else:
            source = w.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[dtype])
            want = source.astype(np.float32)
        dst, src = kernels.output(30), kernels.put(source)
        for row0, rows in ((0, 4), (4, 2)):
            kernels.host.pack(0, src + row0 * 5 * source.itemsize, abi.SOURCE_DTYPES[dtype], dst, row0, rows, 6, 5, 1, 0)
        assert (kernels.get(dst, (6, 5)) == want).all()


def test_pack_convolution_is_tap_major(kernels, rng):
    n, channels, taps = 14, 5, 3
    w = rng.normal(0, 1, (n, channels, taps)).astype(np.float32)
    address = kernels.weight(w.reshape(n, -1), "f32", taps)
    panels = np.frombuffer(kernels.host.read(address, abi.panel_bytes(n, 15, "f32")), np.float32).reshape(2, taps, channels, 12)
    want = np.zeros((24, channels, taps), np.float32)
    want[:n] = w
    assert (panels == want.reshape(2, 12, channels, taps).transpose(0, 3, 2, 1)).all()


def test_pack_refuses_what_does_not_fit(kernels):
    with pytest.raises(HostError, match="do not fit"):
        kernels.host.pack(1, kernels.host.free_base, 0, kernels.host.free_base, 5, 3, 8, 4, 1, 0)


async def test_load_weights_streams_in_pieces(kernels, rng):
    """A file with a matrix, a convolution and a vector through a staging area that holds a few rows of each."""
    matrix = rng.normal(0, 1, (50, 24)).astype(np.float16)
    kernel = rng.normal(0, 1, (30, 8, 3)).astype(np.float32)
    vector = rng.normal(0, 1, 77)
    parts = [matrix.tobytes(), kernel.tobytes(), vector.tobytes()]
    starts = [0, len(parts[0]), len(parts[0]) + len(parts[1])]
    kernels.host.sources = {"file": MemorySource(b"".join(parts))}
    n_bytes = [abi.panel_bytes(50, 24, "f16"), abi.panel_bytes(30, 24, "f32"), 77 * 4]
    places = [kernels.room(n) for n in n_bytes]
    shapes = [("f16", "panels", "f16", 50, 24, 1), ("f32", "panels", "f32", 30, 24, 3), ("f64", "flat", "f32", 77, 1, 1)]
    tensors = [recipe_line("file", start, start + len(part), dtype, kind, dst, n, k, taps, dst_dtype)
               for start, part, dst, (dtype, kind, dst_dtype, n, k, taps) in zip(starts, parts, places, shapes, strict=True)]
    staging = kernels.room(2400)
    seen = []
    await kernels.host.load_weights(json.dumps({"staging": staging, "staging_bytes": 2400, "tensors": tensors}),
                                    lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and len(seen) > 3 and seen[-1] == (sum(map(len, parts)),) * 2
    read = [kernels.host.read(place, n) for place, n in zip(places, n_bytes, strict=True)]
    assert (np.frombuffer(read[0], np.float16) == pack_panels(matrix).reshape(-1)).all()
    assert (np.frombuffer(read[1], np.float32) == pack_panels(kernel).reshape(-1)).all()
    assert (np.frombuffer(read[2], np.float32) == vector.astype(np.float32)).all()
    with pytest.raises(HostError, match="too small"):
        await kernels.host.load_weights(json.dumps({"staging": staging, "staging_bytes": 16, "tensors": tensors}))
    with pytest.raises(ValueError, match="are 2352, not 2400"):
        recipe_line("file", 0, 2400, "f16", "panels", 0, 49, 24, 1, "f16")


def test_memory_beyond_32_bits_is_refused(kernels):
    with pytest.raises(MemoryError, match="5,000,000,000"):
        kernels.host.reserve(5_000_000_000)


# ---- the loop ------------------------------------------------------------------------------------------------------

def test_bad_code_ends_for_all_threads(kernels):
    code = np.array([99, 2, 0, 0], np.int32)
    address = kernels.put(code)
    assert kernels.host.run(address, address + 8) in (2, 3)
    assert kernels.run(["fill", {"dst": kernels.output(4), "count": 4}]) == 0, "the next run is a fresh one"


def test_stop_ends_a_run_and_only_that(kernels):
    y = kernels.output(64)
    kernels.host.stop()
    assert kernels.run(["fill", {"dst": y, "count": 64}], ["fill", {"dst": y, "count": 64}]) == 1
    assert kernels.run(["fill", {"dst": y, "count": 64, "value": 3}]) == 0
    assert (kernels.get(y, (64,)) == 3).all()


def test_stop_from_another_thread(kernels):
    """A run of very many instructions ends soon after stop()."""
    y = kernels.output(1 << 16)
    timer = threading.Timer(0.05, kernels.host.stop)
    timer.start()
    assert kernels.run(*[["fill", {"dst": y, "count": 1 << 16}]] * 200_000) == 1
    timer.join()


def test_trap_in_one_thread_releases_the_rest(kernels):
    with pytest.raises(HostError, match="trapped"):
        kernels.run(["fill", {"dst": 0xFFFF0000, "count": 1000}], ["fill", {"dst": kernels.room(400), "count": 100}])
    assert kernels.run(["fill", {"dst": kernels.output(4), "count": 4}]) == 0


def test_many_barriers(kernels, rng):
    """Each instruction reads what other threads wrote just before."""
    x = rng.normal(0, 1, (50, 70)).astype(np.float32)
    a, b = kernels.put(x), kernels.room(x.nbytes)
    there = ["copy", {"src": a, "dst": b, "d0": 1, "d1": 1, "d2": 70, "d3": 50, "s2": 1, "s3": 70, "t2": 50, "t3": 1}]
    back = ["copy", {"src": b, "dst": a, "d0": 1, "d1": 1, "d2": 50, "d3": 70, "s2": 1, "s3": 50, "t2": 70, "t3": 1}]
    assert kernels.run(*[there, back] * 300) == 0
    assert (np.frombuffer(kernels.host.read(a, x.nbytes), np.float32).reshape(x.shape) == x).all()


# ---- the build -----------------------------------------------------------------------------------------------------

def test_header_matches_the_table():
    assert (build.KERNELS / "abi.h").read_text() == build.header()


def test_modules_are_built_from_these_sources():
    try:
        build.check_compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    assert build.stale() == []
