"""Block-quantised weights on the wasm kernels, every type on every build, against NumPy in float64.

Kernels quantise activations by blocks of 32, to 16 bits or (many rows) 8. Where these are integers up to 127 times one number
the product must be right; elsewhere each activation is wrong by at most half a step, which bounds the error of a sum.
"""

from __future__ import annotations

import numpy as np
import pytest

from candlewick.dtypes import DTYPES, QUANTISED, n_bytes
from candlewick.executors.wasm import abi
from candlewick.verify.cases import HALVES
from candlewick.weights.quant import dequantise

pytest.importorskip("wasmtime", reason="kernel tests in CPython need wasmtime (requirements-dev.txt)")

from candlewick.executors.wasm.host_wasmtime import Host
from tests.executors.kernel_calls import Kernels

HOSTS = {"single relaxed": (1, True), "single simd128": (1, False), "2 threads relaxed": (2, True),
         "3 threads simd128": (3, False)}
TYPES = [*abi.Q_DTYPES]


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
    return np.random.default_rng(11)


def random_weight(rng, dtype, n, k):
    """(bytes of n rows of k, what they mean as float64): random codes and small scales of both signs."""
    row = DTYPES[dtype]
    blocks = rng.integers(0, 256, (n * k // row.block, row.bytes), np.uint8)
    for at in HALVES.get(dtype, ()):
        blocks[:, at : at + 2] = rng.normal(0, 0.02, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    if dtype == "q8_k":
        blocks[:, :4] = rng.normal(0, 0.02, (len(blocks), 1)).astype(np.float32).view(np.uint8)
    return blocks, dequantise(dtype, blocks, (n, k)).astype(np.float64)


def exact_rows(rng, m, k):
    """Activations that int8 with a scale for 32 holds exactly, blocks of very different sizes and one of zeros."""
    q = rng.integers(-127, 128, (m, k // 32, 32))
    q[:, :, 5] = rng.choice([-127, 127], q.shape[:2])
    scale = 2.0 ** rng.integers(-12, 4, q.shape[:2])
    scale[0, 0] = 0
    return (q * scale[:, :, None]).reshape(m, k).astype(np.float32)


def put_weight(kernels, blocks, dtype, n, k):
    """Packed in two pieces, as a stream would."""
    stored = abi.STORED_AS.get(dtype, dtype)
    unit = abi.QPANEL if stored in abi.Q_DTYPES else abi.PANEL
    src, dst = kernels.put(blocks), kernels.output(abi.panel_bytes(n, k, stored) // 4)
    row_bytes, half = n_bytes(dtype, k), min(n, -(-n // 2 // unit) * unit)
    for row0, rows in ((0, half), (half, n - half)):
        if rows:
            kernels.host.pack(abi.PACK_KINDS["panels"], src + row0 * row_bytes, abi.SOURCE_DTYPES[dtype], dst, row0, rows, n, k,
                              1, abi.SOURCE_DTYPES[stored])
    kernels.get(dst, (abi.panel_bytes(n, k, stored) // 4,))  # nothing was written outside
    return dst


def run(kernels, x, w, dtype, n, bias=None, residual=None, count=None, gap=0, **words):
    (m, k), ldy = x.shape, n + gap
    y = kernels.output((m - 1) * ldy + n)
    scratch = kernels.output(abi.quantised_scratch_bytes(m, k) // 4)
    padded = np.zeros((m, k + 4), np.float32)
    padded[:, :k] = x
    arguments = {"x": kernels.put(padded), "ldx": k + 4, "w": w, "y": y, "ldy": ldy, "m": m, "n": n, "k": k,
                 "bias": 0 if bias is None else kernels.put(bias), "w_dtype": abi.Q_DTYPES[dtype], "scratch": scratch,
                 "count": 0 if count is None else kernels.put(np.array([count], np.int32)), "ldr": n,
                 "residual": 0 if residual is None else kernels.put(residual), **words}
    assert kernels.run(["linear_q", arguments]) == 0
    kernels.get(scratch, (abi.quantised_scratch_bytes(m, k) // 4,))
    flat = np.append(kernels.get(y, ((m - 1) * ldy + n,)), np.zeros(gap, np.float32)).reshape(m, ldy)
    return flat[:, :n]


def close(got, want, tolerance=1e-5):
    size = np.abs(want).max()
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= tolerance * size, (np.abs(got - want).max(), size)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("m,n,k", [(1, 1, 256), (1, 8, 512), (1, 13, 768), (2, 5, 256), (3, 50, 256), (5, 17, 512), (8, 8, 256),
                                   (9, 24, 256), (64, 40, 1536)])
def test_exact_activations_give_exact_products(kernels, rng, dtype, m, n, k):
    blocks, w = random_weight(rng, dtype, n, k)
    x = exact_rows(rng, m, k)
    close(run(kernels, x, put_weight(kernels, blocks, dtype, n, k), dtype, n), x.astype(np.float64) @ w.T)


@pytest.mark.parametrize("dtype", [t for t in TYPES if DTYPES[t].block == 32])
@pytest.mark.parametrize("m,n,k", [(1, 50, 32), (1, 100, 64), (1, 192, 576), (2, 24, 96), (7, 30, 576)])
def test_blocks_of_32(kernels, rng, dtype, m, n, k):
    blocks, w = random_weight(rng, dtype, n, k)
    x = exact_rows(rng, m, k)
    close(run(kernels, x, put_weight(kernels, blocks, dtype, n, k), dtype, n), x.astype(np.float64) @ w.T)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("m", [1, 6])
def test_error_is_that_of_half_a_step(kernels, rng, dtype, m):
    n, k = 40, 768
    blocks, w = random_weight(rng, dtype, n, k)
    x = (rng.normal(0, 1, (m, k)) * 10.0 ** rng.integers(-3, 3, (m, 1))).astype(np.float32)
    got, want = run(kernels, x, put_weight(kernels, blocks, dtype, n, k), dtype, n), x.astype(np.float64) @ w.T
    steps = 127 if m > 1 and dtype != "q8_0" and kernels.host.relaxed else 32639
    half_step = np.repeat(np.abs(x).reshape(m, -1, 32).max(2) / 2 / steps, 32, axis=1)
    assert (np.abs(got - want) <= half_step @ np.abs(w).T * 1.001 + 1e-6 * np.abs(want).max()).all()
    assert np.abs(got - want).std() < (0.02 if steps == 127 else 1e-4) * want.std()


@pytest.mark.parametrize("dtype", ["q4_0", "q4_1", "q8_0", "q4_k", "q6_k"])
def test_most_extreme_codes(kernels, dtype):
    """All codes and activations at their ends: sums of 16 bits would run over first here."""
    n, k = 16, 256
    for byte in (0x00, 0xFF, 0x80, 0x7F):
        blocks = np.full((n * k // DTYPES[dtype].block, DTYPES[dtype].bytes), byte, np.uint8)
        for at in HALVES[dtype]:
            blocks[:, at : at + 2] = np.array([0.5], np.float16).view(np.uint8)
        w = dequantise(dtype, blocks, (n, k)).astype(np.float64)
        for x in (np.full((5, k), 127, np.float32), np.full((5, k), -127, np.float32)):
            want = x.astype(np.float64) @ w.T
            for rows in (x[:1], x):
                close(run(kernels, rows, put_weight(kernels, blocks, dtype, n, k), dtype, n), want[: len(rows)], 1e-6)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 9, 12])
def test_rows_from_count_on_are_zeros(kernels, rng, count):
    n, k, m = 20, 64, 9
    blocks, w = random_weight(rng, "q4_1", n, k)
    x, bias = exact_rows(rng, m, k), rng.normal(0, 1, n).astype(np.float32)
    want = x.astype(np.float64) @ w.T + bias
    want[count:] = 0
    close(run(kernels, x, put_weight(kernels, blocks, "q4_1", n, k), "q4_1", n, bias, count=count, gap=4), want)


@pytest.mark.parametrize("m", [1, 6])
@pytest.mark.parametrize("n", [24, 21])
def test_epilogue(kernels, rng, m, n):
    k = 128
    blocks, w = random_weight(rng, "q8_0", n, k)
    x, bias = exact_rows(rng, m, k), rng.normal(0, 1, n).astype(np.float32)
    residual = rng.normal(0, 1, (m, n)).astype(np.float32)
    sums = x.astype(np.float64) @ w.T + bias
    want = np.maximum(sums / (1 + np.exp(-np.clip(sums, -700, 700))) + residual, 0)
    got = run(kernels, x, put_weight(kernels, blocks, "q8_0", n, k), "q8_0", n, bias, residual, gap=3,
              activation=abi.ACTIVATIONS["silu"], final=abi.ACTIVATIONS["relu"])
    close(got, want)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_shows(kernels, rng, bad):
    blocks, _ = random_weight(rng, "q4_0", 8, 64)
    w = put_weight(kernels, blocks, "q4_0", 8, 64)
    for m in (1, 3):
        x = exact_rows(rng, m, 64)
        x[-1, 40] = bad
        y = run(kernels, x, w, "q4_0", 8)
        assert np.isnan(y[-1]).all() and np.isfinite(y[:-1]).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_of_a_table(kernels, rng, dtype):
    n_rows, n = 21, 512
    blocks, table = random_weight(rng, dtype, n_rows, n)
    ids = np.array([0, 20, 7, 8, 13, 99, -4], np.int32)
    y = kernels.output(len(ids) * n)
    assert kernels.run(["embedding_q", {"ids": kernels.put(ids), "table": put_weight(kernels, blocks, dtype, n_rows, n), "y": y,
                                        "m": len(ids), "n": n, "n_rows": n_rows, "w_dtype": abi.Q_DTYPES[dtype]}]) == 0
    got, want = kernels.get(y, (len(ids), n)), table[np.clip(ids, 0, n_rows - 1)]
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=3e-7 * np.abs(want).max())


def test_types_that_become_another(kernels, rng):
    n, k = 13, 256
    x = exact_rows(rng, 3, k)
    blocks, w = random_weight(rng, "q8_1", n, k)
    close(run(kernels, x, put_weight(kernels, blocks, "q8_1", n, k), "q8_0", n), x.astype(np.float64) @ w.T)
    blocks, w = random_weight(rng, "q8_k", n, k)
    panels = put_weight(kernels, blocks, "q8_k", n, k)
    y = kernels.output(3 * n)
    assert kernels.run(["linear", {"x": kernels.put(x), "ldx": k, "w": panels, "y": y, "ldy": n, "m": 3, "n": n, "k": k}]) == 0
    close(kernels.get(y, (3, n)), x.astype(np.float64) @ w.T)


def test_every_quantised_type_has_a_place():
    assert set(QUANTISED) == abi.Q_DTYPES.keys() | (abi.STORED_AS.keys() & set(QUANTISED))
