"""Quantised blocks: decoded and packed to the bit as the package `gguf` and native ggml do; extremes; wrong sizes."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants as reference

from candlewick.dtypes import DTYPES, QUANTISED, widen_bf16
from candlewick.weights.packing import ENCODE, quantise
from candlewick.weights.quant import CHUNK, DECODE, dequantise
from candlewick.weights.source import WeightsError

GOLDEN = Path(__file__).parents[1] / "golden" / "quant"
DECODED_THERE = [name for name in DECODE if name not in ("q8_1", "q8_k")]  # ggml has these two for activations only
PACKED_THERE = [name for name in ENCODE if not name.endswith("_k")]


def halves(*values):
    return np.array(values, "<f2").view(np.uint8)


def random_blocks(dtype, n, seed=0):
    """Blocks whose scales are ordinary numbers: the other bytes are random."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n, DTYPES[dtype].bytes), np.uint8)
    scales = {"q4_1": (0, 2), "q5_1": (0, 2), "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}
    for at in scales.get(dtype, (0,)):
        if dtype == "q8_k":
            blocks[:, :4] = rng.standard_normal((n, 1)).astype("<f4").view(np.uint8)
        else:
            blocks[:, at : at + 2] = rng.standard_normal((n, 1)).astype("<f2").view(np.uint8)
    return blocks


def same_bits(a, b):
    """Equal to the bit, a NaN of any kind being a NaN."""
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    np.testing.assert_array_equal(np.where(np.isnan(a), 0, a).view(np.uint32), np.where(np.isnan(b), 0, b).view(np.uint32))


def test_every_quantised_type_can_be_decoded():
    assert sorted(DECODE) == sorted(QUANTISED)
    assert {DTYPES[name].ggml: (DTYPES[name].block, DTYPES[name].bytes) for name in QUANTISED} == {
        8: (32, 34), 9: (32, 36), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 10: (256, 84), 11: (256, 110),
        12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292)}


@pytest.mark.parametrize("dtype", DECODED_THERE)
def test_decodes_as_the_reference(dtype):
    row = DTYPES[dtype]
    blocks = random_blocks(dtype, 3 * CHUNK // row.block + 7)  # more than one piece, and a rest
    got = dequantise(dtype, blocks.tobytes(), (len(blocks), row.block))
    same_bits(got, reference.dequantize(blocks, Type(row.ggml)))
    assert got.dtype == np.float32


@pytest.mark.parametrize("dtype", DECODED_THERE)
def test_decodes_extreme_blocks_as_the_reference(dtype):
    """Every byte alike (zeros, ones, NaN scales), every sixteen-bit pattern as a scale (infinite, subnormal, largest)."""
    row = DTYPES[dtype]
    alike = np.repeat(np.arange(256, dtype=np.uint8)[:, None], row.bytes, axis=1)
    rng = np.random.default_rng(1)
    scales = rng.integers(0, 256, (4096, row.bytes), np.uint8)
    edges = halves(0, -0.0, 6e-8, -6e-8, 6.1e-5, 65504, -65504, np.inf, -np.inf, np.nan).reshape(-1, 2)
    for at in (0, 2, row.bytes - 4, row.bytes - 2):
        scales[:, at : at + 2] = edges[rng.integers(0, len(edges), len(scales))]
    blocks = np.concatenate([alike, scales])
    with np.errstate(all="ignore"):
        wanted = reference.dequantize(blocks, Type(row.ggml))
    same_bits(dequantise(dtype, blocks, (len(blocks), row.block)), wanted)


def test_decodes_types_of_activations():
    """q8_1: d, sum, 32 int8; q8_k: d as float32, 256 int8, sums."""
    one = np.concatenate([halves(0.5, 99), np.arange(-16, 16, dtype=np.int8).view(np.uint8)])
    np.testing.assert_array_equal(dequantise("q8_1", one, (32,)), np.arange(-16, 16) * np.float32(0.5))
    q = np.arange(-128, 128, dtype=np.int8)
    other = np.concatenate([np.array([0.1], "<f4").view(np.uint8), q.view(np.uint8), np.full(32, 7, np.uint8)])
    np.testing.assert_array_equal(dequantise("q8_k", other, (1, 256)), (q * np.float32(0.1))[None])


def rows_to_pack():
    rng = np.random.default_rng(2)
    random = rng.standard_normal((500, 256)) * np.exp(rng.uniform(-8, 8, (500, 1)))
    sparse = rng.standard_normal((100, 256)) * (rng.random((100, 256)) < 0.05)
    edges = np.zeros((10, 256))
    edges[1] = 1
    edges[2] = -1
    edges[3, ::2], edges[3, 1::2] = 3, -3  # two numbers equally far from zero: the first one decides
    edges[4, ::2], edges[4, 1::2] = -3, 3
    edges[5] = np.linspace(-60000, 60000, 256)
    edges[6] = np.linspace(0, 60000, 256)
    edges[7, 5] = 1e-3
    edges[8] = np.arange(256) / 2  # ties
    edges[9] = -np.arange(256) / 127
    return np.concatenate([random, sparse, edges]).astype(np.float32)


@pytest.mark.parametrize("dtype", PACKED_THERE)
def test_packs_as_the_reference(dtype):
    x = rows_to_pack()
    with np.errstate(all="ignore"):
        wanted = reference.quantize(x, Type(DTYPES[dtype].ggml))
    np.testing.assert_array_equal(np.frombuffer(quantise(x, dtype), np.uint8), wanted.ravel())


@pytest.mark.parametrize("dtype", ENCODE)
@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-38, 1e-20, 1e-12, 1e-7, 1e-6])
def test_tiny_numbers_stay_tiny(dtype, size):
    """Subnormal numbers and scales: what a 16-bit scale cannot hold becomes zero or nearly so, never NaN, never large."""
    x = (np.linspace(-1, 1, 512).reshape(2, 256) * size).astype(np.float32)
    back = dequantise(dtype, quantise(x, dtype), x.shape)
    assert np.isfinite(back).all()
    assert np.abs(back).max() <= max(2 * size, 6e-8 * 32)


@pytest.mark.parametrize("dtype, levels", [("q8_0", 254), ("q4_0", 16), ("q4_1", 15), ("q5_0", 32), ("q5_1", 31),
                                           ("q4_k", 15), ("q6_k", 64)])
def test_packing_loses_little(dtype, levels):
    """No number is further from itself than a step and a half of its row's span cut into the type's levels."""
    x = np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32)
    back = dequantise(dtype, quantise(x, dtype), x.shape)
    span = x.max(axis=1, keepdims=True) - x.min(axis=1, keepdims=True)
    assert (np.abs(back - x) <= 1.5 * span / levels).all()
    assert np.corrcoef(back.ravel(), x.ravel())[0, 1] > 0.99


def golden_samples():
    spec = importlib.util.spec_from_file_location("quant_golden", GOLDEN / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.samples()


@pytest.mark.parametrize("dtype", ["q4_k", "q6_k"])
def test_scale_search_is_as_good_as_native_ggml(dtype):
    """Root mean square error within 1 % of native ggml's (tests/golden/quant/make.py) on five kinds of numbers."""
    golden = json.loads((GOLDEN / "native.json").read_text())
    for kind, x in golden_samples().items():
        error = np.sqrt(((dequantise(dtype, quantise(x, dtype), x.shape) - x) ** 2).mean())
        assert error == pytest.approx(golden[kind][dtype], rel=1e-2), kind


@pytest.mark.parametrize("dtype", ENCODE)
def test_zeros_stay_zero(dtype):
    assert not dequantise(dtype, quantise(np.zeros((3, 256), np.float32), dtype), (3, 256)).any()


def test_floats_are_rounded_to_nearest():
    x = np.array([0, -0.0, 1, 1.00390625, 1.01171875, -2.5, 65504, 1e-8, 3.3895314e38], np.float32)
    np.testing.assert_array_equal(widen_bf16(np.frombuffer(quantise(x, "bf16"), "<u2")),
                                  np.float32([0, 0, 1, 1, 1.015625, -2.5, 65536, 1.0011717677116394e-08, 3.3895314e38]))
    np.testing.assert_array_equal(np.frombuffer(quantise(x[:8], "f16"), "<f2"), x[:8].astype(np.float16))
    assert quantise(x, "f32") == x.tobytes()


@pytest.mark.parametrize("dtype", [*ENCODE, "f16", "bf16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(dtype, bad):
    x = np.zeros((2, 256), np.float32)
    x[1, 17] = bad
    with pytest.raises(WeightsError, match="NaN"):
        quantise(x, dtype)


@pytest.mark.parametrize("dtype", [*ENCODE, "f16"])
def test_scales_beyond_sixteen_bits_are_refused(dtype):
    x = np.zeros((2, 256), np.float32)
    x[1] = np.linspace(-3e38, 3e38, 256)
    with pytest.raises(WeightsError, match="65504"):
        quantise(x, dtype)


def test_wrong_sizes_are_refused_in_words():
    with pytest.raises(WeightsError, match=r"q4_0 packs 32 numbers of a row together, a row of \(2, 48\)"):
        quantise(np.zeros((2, 48)), "q4_0")
    with pytest.raises(WeightsError, match=r"q6_k packs 256 .* \(256, 128\)"):
        dequantise("q6_k", bytes(128 * 210), (256, 128))
    with pytest.raises(WeightsError, match=r"q8_0 \(2, 32\) needs 68 bytes, got 67"):
        dequantise("q8_0", bytes(67), (2, 32))
    with pytest.raises(WeightsError, match="q4_0 packs 32"):
        dequantise("q4_0", b"", ())
    with pytest.raises(WeightsError, match="cannot write q2_k; can write f32, f16, bf16, q8_0"):
        quantise(np.zeros((2, 256)), "q2_k")
    with pytest.raises(WeightsError, match="iq4_nl is not a type that can be decoded; known are q4_0"):
        dequantise("iq4_nl", b"", (32,))


@pytest.mark.parametrize("dtype", DECODE)
def test_no_rows_is_no_error(dtype):
    assert dequantise(dtype, b"", (0, 256)).shape == (0, 256)
