"""Every op on the webgpu executor over a grid of shapes (one row, one column, odd sizes, more rows than a device has workgroups
along an axis) and at the magnitudes where GPUs go wrong in silence. Against NumPy's executor; tolerances are relative to the
largest value of a result, and stated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from candlewick import nn, ops
from candlewick.dtypes import DTYPES
from candlewick.ops import OPS
from tests.executors import test_webgpu_lowering as lowering
from tests.executors.test_gpu_weights import run as run_with_file
from tests.executors.test_ops import close, erf
from tests.executors.test_webgpu_lowering import both, in_form

host, rng = lowering.host, lowering.rng  # fixtures
TOLERANCE = 1e-5
MANY = 65537


def rows_ops(rng, m, n):
    """Ops on (m, n)."""
    p, k = 3, min(n, 3)
    inputs = {"x": rng.normal(0, 1, (m, n)), "z": rng.normal(0, 1, (1, n)), "r": rng.normal(0, 1, (m, p))}
    arrays = {"w": rng.normal(0, 1, (p, n)), "b": rng.normal(0, 1, p), "g": rng.normal(0, 1, n), "c": rng.normal(0, 1, n)}

    def fn(h, x, z, r):
        first = ops.slice(x, 0, 0, min(m, 70))  # all rows of the ops that have much to do for a row
        ids = ops.top_k(first, k=k)
        some = ops.cast(ops.argmax(x, axis=1), "f32")
        positive = ops.square(x) + 0.1
        low = ops.maximum(ops.silu(x), z)
        return {
            "linear": ops.gelu(ops.linear(x, h.w, h.b)) + r, "embedding": ops.embedding(ids, h.table),
            "layer_norm": ops.layer_norm(x, h.g, h.c), "rms_norm": ops.rms_norm(x, h.g), "softmax": ops.softmax(x),
            "log_softmax": ops.log_softmax(first), "columns": ops.softmax(x, axis=0), "take": ops.take(first, ids),
            "argmax": some, "sum": ops.sum(x, axis=0), "mean": ops.mean(x), "max": ops.max(x, axis=None),
            "log_sum_exp": ops.log_sum_exp(x, axis=1), "roots": ops.sqrt(positive) * ops.log(positive),
            "chain": ops.swiglu(ops.relu(x) - z, ops.sigmoid(-x)) / (positive + 1.0),
            "waves": ops.sin(x) + ops.cos(z) * ops.tanh(x), "ends": ops.minimum(low, ops.exp(ops.log10(positive))),
            "matmul": ops.matmul(x, z, transpose_b=True), "turned": ops.transpose(x, (1, 0)) + 0.0,
            "rows": ops.rows(h.table, 1, count=2), "parts": ops.concat([ops.slice(x, 0, m - 1, m), z], 0),
            "pad": ops.pad(x, axis=0, before=1, after=2),
        }

    arrays["table"] = rng.normal(0, 1, (max(n, 4), 5))
    return fn, inputs, arrays


def heads_ops(rng, m, d):
    """Attention over m positions, heads of d."""
    half = max(1, d // 2)
    few = min(m, 30)
    shapes = {"q": (1, 2, m, d), "k": (1, 1, 5, d), "t": (1, 2, m, 2 * half), "s": (1, 2, few, d), "bias": (2, few, 5)}
    inputs = {name: rng.normal(0, 1, shape) for name, shape in shapes.items()}
    angles = np.arange(m + 2)[:, None] * 0.9 ** np.arange(half)
    arrays = {"cos": np.cos(angles), "sin": np.sin(angles)}

    def fn(h, q, k, t, s, bias):
        cache = nn.KVCache.new("c", 1, 2, m + 1, d).update(q, q * 2.0, 1)
        return {
            "attention": ops.attention(q, k, k), "biased": ops.attention(s, k, k, bias=bias),
            "rope": ops.rope(t, h.cos, h.sin, 2), "pairs": ops.rope(t, h.cos, h.sin, 0, pairs=True),
            "keys": ops.add(cache.k, 0.0), "values": ops.add(cache.v, 0.0),
        }

    return fn, inputs, arrays


def picture_ops(rng, width, c):
    """Convolutions and windows of pictures of one line, and of more lines where they are not too wide."""
    height, c = 1 if width > 100 else 3, min(c, 35)
    inputs = {"x": rng.normal(0, 1, (1, height, width, c)), "qkv": rng.normal(0, 1, (1, height, width, 6 * c)),
              "line": rng.normal(0, 1, (1, width, c))}
    arrays = {"w": rng.normal(0, 1, (3, c, 3, 3)), "b": rng.normal(0, 1, 3), "bias": rng.normal(0, 1, (2, 4, 4)),
              "deep": rng.normal(0, 1, (c, 1, 3, 3)), "point": rng.normal(0, 1, (3, c, 1, 1)),
              "up": rng.normal(0, 1, (c, 3, 2, 2)), "taps": rng.normal(0, 1, (3, c, 3)),
              "outside": rng.normal(0, 1, 6 * c)}

    def fn(h, x, qkv, line):
        return {
            "conv2d": ops.relu(ops.conv2d(x, h.w, h.b, stride=2, padding=1)), "point": ops.conv2d(x, h.point, h.b),
            "depthwise": ops.conv2d(x, h.deep, padding=1, groups=c), "conv1d": ops.conv1d(line, h.taps, h.b, padding=1),
            "up": ops.gelu(ops.conv_transpose2d(x, h.up, h.b, stride=2)),
            "windows": ops.window_attention(qkv, h.bias, h.outside, n_head=2, window=2),
        }

    return fn, inputs, arrays


@pytest.mark.parametrize("ops_of", [rows_ops, heads_ops, picture_ops])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 67), (67, 1), (13, 35), (MANY, 3)])
async def test_every_op_over_shapes(host, rng, ops_of, m, n):
    fn, inputs, arrays = ops_of(rng, m, n)
    if m * n < 1000:
        in_form(host, "subgroups")
    inputs, arrays = ({name: a.astype(np.float32) for name, a in some.items()} for some in (inputs, arrays))
    got, want, _ = await both(host, fn, inputs, **arrays)
    for name in want:
        close(got[name], want[name], TOLERANCE)


def test_the_grid_has_every_op():
    """Those that are not said with their names are in the cache, methods and operators."""
    text = Path(__file__).read_text()
    assert {name for name in OPS if f"ops.{name}(" not in text} <= {"update", "reshape", "sub", "mul", "div", "neg"}


# ---- magnitudes

LARGE = np.array([-1e4, -100, -88.8, -13.5, -9.1, -5, -0.5, -1e-30, 0, 1e-30, 0.5, 5, 9.1, 13.5, 88.8, 100, 1e4], np.float32)
FUNCTIONS = {
    "gelu": lambda x: x * (1 + erf(x / 2**0.5)) / 2, "relu": lambda x: np.maximum(x, 0), "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


async def test_activations_of_large_numbers(host, rng):
    """BR-27: by themselves, in a chain, at the end of products and convolutions: finite, and as on the CPU."""
    eye = np.eye(16, dtype=np.float32)
    x = np.resize(LARGE, (20, 16)).astype(np.float32)

    def fn(h, x):
        few = ops.slice(x, 0, 0, 3)
        made = {}
        for name in FUNCTIONS:
            act = getattr(ops, name)
            made |= {name: act(x), f"{name} chain": act(x * 1.0) * 1.0}
            if name in ("gelu", "relu", "silu"):
                made |= {f"{name} tiles": act(ops.linear(x, h.eye)), f"{name} few": act(ops.linear(few, h.eye)),
                         f"{name} conv": act(ops.conv2d(x.reshape(1, 4, 5, 16), h.eye4)).reshape(20, 16)}
        made["gate"] = ops.swiglu(x, ops.minimum(x, 2.0))
        made["soft"], made["log soft"], made["sum"] = ops.softmax(x), ops.log_softmax(x), ops.log_sum_exp(x, axis=-1)
        return made

    got, want, _ = await both(host, fn, {"x": x}, eye=eye, eye4=eye[:, :, None, None])
    with np.errstate(over="ignore"):
        exact = {name: f(x.astype(np.float64)) for name, f in FUNCTIONS.items()}
    for name, value in got.items():
        assert np.isfinite(value).all(), name
        reference = exact[name.split()[0]][: len(value)] if name.split()[0] in exact else want[name].astype(np.float64)
        assert (np.abs(value - reference) <= 2e-6 + 2e-6 * np.abs(reference)).all(), name


async def test_attention_of_large_scores(host, rng):
    """BR-27 for the exponentials of attention: scores of thousands, few and many queries."""
    q, k, v = (rng.normal(0, size, (1, 2, n, 16)).astype(np.float32) for size, n in ((100, 20), (100, 600), (1, 600)))

    def fn(_, q, k, v):
        return {"many": ops.attention(q, k, v), "few": ops.attention(ops.slice(q, 2, 0, 1), k, v)}

    got, want, _ = await both(host, fn, {"q": q, "k": k, "v": v})
    for name in want:
        close(got[name], want[name], 1e-3)  # float32 knows a score of 10,000 to 1e-3


@pytest.mark.parametrize("form", ["plain", "float16", "subgroups"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("m", [2, 40])
async def test_norms_of_rows_with_outliers(host, rng, m, dtype, form):
    """BR-28: squares of numbers near 800 are beyond float16. Norms, and the product that reads one, as on the CPU."""
    in_form(host, form)
    n = 384
    x = rng.normal(0, 2, (m, n)).astype(np.float32)
    x[:, [3, 200]] = 800, -790
    g, b, w = rng.normal(1, 0.3, n), rng.normal(0, 0.3, n), rng.normal(0, 0.05, (24, n))
    data = [a.astype(DTYPES[dtype].numpy) for a in (g, b, w)]
    matrices = {name: (dtype, a.shape, a.tobytes()) for name, a in zip(("g", "b", "w"), data)}
    x64, (g, b, w) = x.astype(np.float64), (a.astype(np.float64) for a in data)
    for norm in ("layer", "rms"):
        centred = x64 - x64.mean(-1, keepdims=True) if norm == "layer" else x64
        want = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g + (b if norm == "layer" else 0)

        def fn(h, x, norm=norm):
            y = ops.layer_norm(x, h.g, h.b) if norm == "layer" else ops.rms_norm(x, h.g)
            product = ops.linear(ops.rms_norm(x, h.g), h.w)
            return ops.concat([y * 1.0, ops.linear(y, h.w), product], axis=-1)

        rms = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-5) * g
        got = await run_with_file(host, fn, matrices, {"x": x})
        close(got, np.concatenate([want, want @ w.T, rms @ w.T], -1), 2e-6)
