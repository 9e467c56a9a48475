"""Block quantisation, the other way: numbers -> bytes of GGML block types (quant.py says what the bytes mean).

Packing of the 32-number types is defined to the bit by ggml's reference (github.com/ggml-org/ggml, `src/ggml-quants.c`).
For the 256-number types the format leaves the search for scales open; here it is the reference's: weighted least squares
over a few trial scales, with sums taken in another order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from candlewick.dtypes import DTYPES
from candlewick.weights.quant import CHUNK, Blocks, Rows, check_rows
from candlewick.weights.source import WeightsError

F16_MAX = float(np.finfo(np.float16).max)
TINY = 1e-15  # magnitudes below it are taken for zero when scales of 256-number blocks are searched


def quantise(array: np.ndarray, dtype: str) -> bytes:
    """Numbers -> bytes of type `dtype`: a key of ENCODE, or f32, f16, bf16.

    Raises WeightsError for a type that cannot be written, a last axis that is no whole number of blocks, numbers that
    are not finite, and numbers whose scale does not fit the 16-bit float that the type keeps it in.
    """
    values = np.ascontiguousarray(array, np.float32)
    if dtype == "f32":
        return values.tobytes()
    if values.size and not np.isfinite(values).all():
        raise WeightsError(f"{dtype}: cannot pack numbers that are infinite or no numbers (NaN); the weights are damaged")
    if dtype == "bf16":
        return narrow_bf16(values).tobytes()
    if dtype == "f16":
        return _f16(values, dtype).tobytes()
    if dtype not in ENCODE:
        raise WeightsError(f"cannot write {dtype}; can write f32, f16, bf16, {', '.join(ENCODE)}")
    row = DTYPES[dtype]
    check_rows(dtype, values.shape)
    rows = values.reshape(-1, row.block)
    out = np.empty((len(rows), row.bytes), np.uint8)
    step = CHUNK // row.block
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):  # too large a number is refused as a scale
        for start in range(0, len(rows), step):
            ENCODE[dtype](rows[start : start + step], out[start : start + step])
    return out.tobytes()


def narrow_bf16(values: np.ndarray) -> np.ndarray:
    """Finite float32 -> bfloat16 bit patterns (uint16), rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16).astype("<u2")


def _f16(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 -> float16, nearest. Raises WeightsError where that is infinite."""
    with np.errstate(over="ignore", under="ignore"):
        half = values.astype("<f2")
    if half.size and not np.isfinite(half).all():
        worst = float(np.abs(values).max())
        raise WeightsError(f"{dtype}: {worst:.4g} is beyond {F16_MAX:.0f}, the largest 16-bit float; choose f32 or bf16")
    return half


# ---- packing: 32 numbers ----------------------------------------------------------------------------------------


def _inverse(d: np.ndarray) -> np.ndarray:
    """1 / d; 0 where d is 0 or so small that 1 / d is no float32 (as a 16-bit float it is 0 anyway)"""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / d
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _put(out: Blocks, at: int, half: np.ndarray) -> None:
    out[:, at : at + 2] = np.ascontiguousarray(half).view(np.uint8)


def _put_nibbles(out: Blocks, at: int, q: np.ndarray) -> None:
    out[:, at : at + 16] = (q[:, :16] & 15) | (q[:, 16:] << 4)


def _put_fifth_bits(out: Blocks, at: int, q: np.ndarray) -> None:
    out[:, at : at + 4] = np.packbits(q >> 4, axis=1, bitorder="little")


def _around_zero(rows: Rows, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """-> (d, q): d such that the number furthest from zero becomes level 0 (of either sign), q = round(x / d) + levels / 2"""
    furthest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1, keepdims=True), axis=1)
    d = furthest / np.float32(-levels / 2)
    q = np.trunc(rows * _inverse(d) + np.float32(levels / 2 + 0.5))
    return d, np.clip(q, 0, levels - 1).astype(np.uint8)


def _from_minimum(rows: Rows, levels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-> (d, m, q): q = round((x - m) / d), m the smallest number"""
    low = rows.min(axis=1, keepdims=True)
    d = (rows.max(axis=1, keepdims=True) - low) / np.float32(levels - 1)
    q = np.trunc((rows - low) * _inverse(d) + np.float32(0.5))
    return d, low, np.nan_to_num(np.clip(q, 0, levels - 1)).astype(np.uint8)


def _to_q4_0(rows: Rows, out: Blocks) -> None:
    d, q = _around_zero(rows, 16)
    _put(out, 0, _f16(d, "q4_0"))
    _put_nibbles(out, 2, q)


def _to_q4_1(rows: Rows, out: Blocks) -> None:
    d, low, q = _from_minimum(rows, 16)
    _put(out, 0, _f16(d, "q4_1"))
    _put(out, 2, _f16(low, "q4_1"))
    _put_nibbles(out, 4, q)


def _to_q5_0(rows: Rows, out: Blocks) -> None:
    d, q = _around_zero(rows, 32)
    _put(out, 0, _f16(d, "q5_0"))
    _put_fifth_bits(out, 2, q)
    _put_nibbles(out, 6, q)


def _to_q5_1(rows: Rows, out: Blocks) -> None:
    d, low, q = _from_minimum(rows, 32)
    _put(out, 0, _f16(d, "q5_1"))
    _put(out, 2, _f16(low, "q5_1"))
    _put_fifth_bits(out, 4, q)
    _put_nibbles(out, 8, q)


def _to_q8_0(rows: Rows, out: Blocks) -> None:
    d = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    x = rows * _inverse(d)
    whole = np.trunc(x)
    q = whole + np.trunc((x - whole) * 2)  # nearest, halves away from zero
    _put(out, 0, _f16(d, "q8_0"))
    out[:, 2:] = np.clip(q, -127, 127).astype(np.int8).view(np.uint8)


# ---- packing: 256 numbers ---------------------------------------------------------------------------------------


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, 0 where b is 0"""
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


def _scale_and_minimum(x: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups x (..., 32) -> scale, minimum (..., 1) and levels q (..., 32) in 0 .. top with x ~ scale q - minimum.

    Tries 21 scales around (max - min) / top. For the levels that each gives, the best scale and minimum follow by least
    squares, weighted so that large numbers count for more; the try with the smallest error is kept, and the next ones
    count their levels from its minimum. minimum >= 0.
    """
    weight = np.sqrt((x * x).mean(axis=-1, keepdims=True)) + np.abs(x)
    high = x.max(axis=-1, keepdims=True)
    low = np.minimum(x.min(axis=-1, keepdims=True), 0)
    scale = (high - low) / np.float32(top)
    sum_w, sum_x = weight.sum(-1, keepdims=True), (weight * x).sum(-1, keepdims=True)

    def levels(steps: float) -> np.ndarray:
        return np.clip(np.rint(_ratio(np.full_like(high, steps), high - low) * (x - low)), 0, top)

    def error(scale: np.ndarray, low: np.ndarray, q: np.ndarray) -> np.ndarray:
        return (weight * (scale * q + low - x) ** 2).sum(-1, keepdims=True)

    best_q = levels(top)
    best = error(scale, low, best_q)
    for step in range(21):
        q = levels(top - 1 + 0.1 * step)
        wq = weight * q
        sum_q, sum_qq, sum_xq = (s.sum(-1, keepdims=True) for s in (wq, wq * q, wq * x))
        determinant = sum_w * sum_qq - sum_q * sum_q
        trial_low = _ratio(sum_qq * sum_x - sum_q * sum_xq, determinant)
        below = trial_low <= 0
        trial = np.where(below, _ratio(sum_w * sum_xq - sum_x * sum_q, determinant), _ratio(sum_xq, sum_qq))
        trial_low = np.where(below, trial_low, np.float32(0))
        e = error(trial, trial_low, q)
        better = (determinant > 0) & (e < best)
        best, scale, low = (np.where(better, new, old) for new, old in ((e, best), (trial, scale), (trial_low, low)))
        best_q = np.where(better, q, best_q)
    return scale, -low, best_q


def _to_q4_k(rows: Rows, out: Blocks) -> None:
    n = len(rows)
    x = rows.reshape(n, 8, 32)
    scale, minimum, q = _scale_and_minimum(x, 15)
    parts = []
    for at, values in ((0, scale[:, :, 0]), (2, minimum[:, :, 0])):
        largest = values.max(axis=1, keepdims=True)
        half = _f16(largest / 63, "q4_k")
        _put(out, at, half)
        whole = np.clip(np.rint(_ratio(np.full_like(largest, 63), largest) * values), 0, 63)
        parts.append((half.astype(np.float32) * whole, whole.astype(np.uint8)))
    (d, s), (m, t) = parts
    d, m = d[:, :, None], m[:, :, None]
    q = np.where(d != 0, np.clip(np.rint(_ratio(x + m, np.broadcast_to(d, x.shape))), 0, 15), q).astype(np.uint8)
    out[:, 4:8] = s[:, :4] | (s[:, 4:] >> 4 << 6)
    out[:, 8:12] = t[:, :4] | (t[:, 4:] >> 4 << 6)
    out[:, 12:16] = (s[:, 4:] & 15) | (t[:, 4:] << 4)
    pairs = q.reshape(n, 4, 2, 32)
    out[:, 16:] = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(n, 128)


def _symmetric_scale(x: np.ndarray, half: int) -> np.ndarray:
    """Groups x (..., 16) -> scale (..., 1) with x ~ scale q, q in -half .. half - 1.

    Tries 19 scales around -(the number furthest from zero) / half and keeps that of the smallest squared error, in which
    every number counts by its own square.
    """
    furthest = np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)
    usable = np.abs(furthest) >= TINY
    weight = x * x
    scale = best = np.zeros_like(furthest)
    for step in (0, *range(-9, 0), *range(1, 10)):
        inverse = np.where(usable, _ratio(np.full_like(furthest, -(half + 0.1 * step)), furthest), np.float32(0))
        q = np.clip(np.rint(inverse * x), -half, half - 1)
        wq = weight * q
        sum_xq, sum_qq = (wq * x).sum(-1, keepdims=True), (wq * q).sum(-1, keepdims=True)
        better = (sum_qq > 0) & ((step == 0) | (sum_xq * sum_xq > best * sum_qq))
        scale = np.where(better, _ratio(sum_xq, sum_qq), scale)
        best = np.where(better, scale * sum_xq, best)
    return scale


def _to_q6_k(rows: Rows, out: Blocks) -> None:
    n = len(rows)
    _f16(np.abs(rows).max(axis=1) / 4096, "q6_k")  # fourth powers are summed below: what is too large must not get there
    x = rows.reshape(n, 16, 16)
    scale = _symmetric_scale(x, 32)[:, :, 0]
    largest = np.take_along_axis(scale, np.abs(scale).argmax(axis=1, keepdims=True), axis=1)
    inverse = np.where(np.abs(largest) >= TINY, _ratio(np.full_like(largest, -128), largest), np.float32(0))
    half = _f16(_inverse(inverse), "q6_k")
    whole = np.minimum(np.rint(inverse * scale), 127).astype(np.int8)
    d = (half.astype(np.float32) * whole)[:, :, None]
    q = (np.clip(np.rint(_ratio(x, np.broadcast_to(d, x.shape))), -32, 31) + 32).astype(np.uint8).reshape(n, 2, 4, 32)
    q[inverse[:, 0] == 0] = 0
    out[:, :128] = (q[:, :, :2] & 15 | q[:, :, 2:] << 4).reshape(n, 128)
    high = q >> 4
    out[:, 128:192] = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(n, 64)
    out[:, 192:208] = whole.view(np.uint8)
    _put(out, 208, half)


ENCODE: dict[str, Callable[[Rows, Blocks], None]] = {
    "q8_0": _to_q8_0, "q4_0": _to_q4_0, "q4_1": _to_q4_1, "q5_0": _to_q5_0, "q5_1": _to_q5_1, "q4_k": _to_q4_k,
    "q6_k": _to_q6_k,
}  # fmt: skip
