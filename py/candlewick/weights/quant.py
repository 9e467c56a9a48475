"""Block quantisation: what the bytes of each GGML block type mean. packing.py makes them.

A block holds 32 or 256 numbers of one row. Formats: github.com/ggml-org/ggml, `src/ggml-common.h` (structs) and
`src/ggml-quants.c`; decoding is defined to the bit. Everything works on `CHUNK` numbers at once, so that temporaries stay
small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from candlewick.dtypes import DTYPES
from candlewick.weights.source import WeightsError

CHUNK = 1 << 17  # numbers decoded or packed at a time

Blocks = np.ndarray  # (n, bytes of a block) uint8
Rows = np.ndarray  # (n, numbers of a block) float32


def dequantise(dtype: str, data: bytes | memoryview | np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Bytes of a tensor of type `dtype` (a key of DECODE) -> float32 array of `shape`.

    Raises WeightsError for a type that is not here, a last axis that is no whole number of blocks, too few or many bytes.
    """
    if dtype not in DECODE:
        raise WeightsError(f"{dtype} is not a type that can be decoded; known are {', '.join(DECODE)}")
    row, shape = DTYPES[dtype], tuple(shape)
    data = np.frombuffer(data, np.uint8)
    check_rows(dtype, shape)
    n = math.prod(shape) // row.block
    if data.size != n * row.bytes:
        raise WeightsError(f"{dtype} {shape} needs {n * row.bytes} bytes, got {data.size}")
    blocks, out = data.reshape(n, row.bytes), np.empty((n, row.block), np.float32)
    step = CHUNK // row.block
    with np.errstate(invalid="ignore", over="ignore"):  # a damaged scale of inf gives NaN for q = 0, as the format says
        for start in range(0, n, step):
            DECODE[dtype](blocks[start : start + step], out[start : start + step])
    return out.reshape(shape)


def check_rows(dtype: str, shape: tuple[int, ...]) -> None:
    """Raise WeightsError unless the last axis of `shape` is a whole number of blocks."""
    block = DTYPES[dtype].block
    if not shape or shape[-1] % block:
        raise WeightsError(f"{dtype} packs {block} numbers of a row together, a row of {shape} does not divide into them")


def _half(blocks: Blocks, at: int) -> np.ndarray:
    """The 16-bit floats at byte `at` of every block -> (n, 1) float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


# ---- decoding: 32 numbers ---------------------------------------------------------------------------------------
# The low half of a block's numbers lies in the low four bits of its 16 bytes, the high half in the high four.


def _nibbles(packed: Blocks, out: Rows) -> None:
    """(n, 16) bytes -> their 32 four-bit numbers"""
    out[:, :16], out[:, 16:] = packed & 15, packed >> 4


def _q4_0(blocks: Blocks, out: Rows) -> None:
    """d, 16 bytes: (q - 8) d"""
    _nibbles(blocks[:, 2:], out)
    out -= 8
    out *= _half(blocks, 0)


def _q4_1(blocks: Blocks, out: Rows) -> None:
    """d, m, 16 bytes: q d + m"""
    _nibbles(blocks[:, 4:], out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _fifth_bits(blocks: Blocks, at: int, out: Rows) -> None:
    """Bit i of the four bytes at `at` is worth 16 in number i."""
    out += np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << 4


def _q5_0(blocks: Blocks, out: Rows) -> None:
    """d, 4 bytes of fifth bits, 16 bytes: (q - 16) d"""
    _nibbles(blocks[:, 6:], out)
    _fifth_bits(blocks, 2, out)
    out -= 16
    out *= _half(blocks, 0)


def _q5_1(blocks: Blocks, out: Rows) -> None:
    """d, m, 4 bytes of fifth bits, 16 bytes: q d + m"""
    _nibbles(blocks[:, 8:], out)
    _fifth_bits(blocks, 4, out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q8_0(blocks: Blocks, out: Rows) -> None:
    """d, 32 int8: q d"""
    out[:] = blocks[:, 2:].view(np.int8)
    out *= _half(blocks, 0)


def _q8_1(blocks: Blocks, out: Rows) -> None:
    """d, d times the sum of q (not needed here), 32 int8: q d"""
    out[:] = blocks[:, 4:].view(np.int8)
    out *= _half(blocks, 0)


# ---- decoding: 256 numbers --------------------------------------------------------------------------------------
# Groups of 16 or 32 numbers with small integer scales (and minima), which have one 16-bit scale of the block.


def _shifted(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """(n, k, w) bytes -> (n, k, count, w): the `count` fields of `bits` bits of every byte, lowest first"""
    shifts = np.arange(count, dtype=np.uint8)[:, None] * np.uint8(bits)
    return (packed[:, :, None, :] >> shifts) & np.uint8((1 << bits) - 1)


def _q2_k(blocks: Blocks, out: Rows) -> None:
    """16 bytes of scale | minimum << 4, 64 bytes, d, dmin: q (d scale) - dmin minimum; 16 groups of 16"""
    n = len(blocks)
    d, dmin = _half(blocks, 80), _half(blocks, 82)
    q = out.reshape(n, 16, 16)
    q[:] = _shifted(blocks[:, 16:80].reshape(n, 2, 32), 2, 4).reshape(n, 16, 16)
    q *= (d * (blocks[:, :16] & 15))[:, :, None]
    q -= (dmin * (blocks[:, :16] >> 4))[:, :, None]


def _q3_k(blocks: Blocks, out: Rows) -> None:
    """32 bytes of third bits, 64 bytes, 12 bytes of six-bit scales, d: (q - 4 (1 - bit)) (d (scale - 32)); 16 groups"""
    n = len(blocks)
    packed = blocks[:, 96:108]
    low = _shifted(packed[:, None, :8], 4, 2).reshape(n, 16)
    high = _shifted(packed[:, None, 8:], 2, 4).reshape(n, 16)
    scale = (low | high << 4).astype(np.int8) - np.int8(32)
    q = out.reshape(n, 16, 16)
    q[:] = _shifted(blocks[:, 32:96].reshape(n, 2, 32), 2, 4).reshape(n, 16, 16)
    q -= ((_shifted(blocks[:, None, :32], 1, 8) ^ 1) << 2).reshape(n, 16, 16)
    q *= (_half(blocks, 108) * scale)[:, :, None]


def _six_bit(packed: Blocks) -> tuple[np.ndarray, np.ndarray]:
    """12 bytes of q4_k and q5_k -> eight scales, eight minima of six bits: (n, 8) uint8 each"""
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    return (np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=1),
            np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=1))


def _scaled_with_minima(blocks: Blocks, q: np.ndarray) -> None:
    """q (n, 8, 32), in place: q (d scale) - dmin minimum, of q4_k and q5_k"""
    scale, minimum = _six_bit(blocks[:, 4:16])
    q *= (_half(blocks, 0) * scale)[:, :, None]
    q -= (_half(blocks, 2) * minimum)[:, :, None]


def _q4_k(blocks: Blocks, out: Rows) -> None:
    """d, dmin, 12 bytes of scales and minima, 128 bytes; 8 groups of 32"""
    q = out.reshape(len(blocks), 8, 32)
    q[:] = _shifted(blocks[:, 16:].reshape(-1, 4, 32), 4, 2).reshape(q.shape)
    _scaled_with_minima(blocks, q)


def _q5_k(blocks: Blocks, out: Rows) -> None:
    """d, dmin, 12 bytes of scales and minima, 32 bytes of fifth bits, 128 bytes; 8 groups of 32"""
    q = out.reshape(len(blocks), 8, 32)
    q[:] = _shifted(blocks[:, 48:].reshape(-1, 4, 32), 4, 2).reshape(q.shape)
    q += _shifted(blocks[:, None, 16:48], 1, 8)[:, 0] << 4
    _scaled_with_minima(blocks, q)


def _q6_k(blocks: Blocks, out: Rows) -> None:
    """128 bytes of low four bits, 64 bytes of high two, 16 int8 scales, d: (q - 32) (d scale); 16 groups of 16"""
    n = len(blocks)
    low = _shifted(blocks[:, :128].reshape(n, 2, 64), 4, 2).reshape(n, 8, 32)
    high = _shifted(blocks[:, 128:192].reshape(n, 2, 32), 2, 4).reshape(n, 8, 32)
    q = out.reshape(n, 16, 16)
    q[:] = (low | high << 4).reshape(n, 16, 16)
    q -= 32
    q *= (_half(blocks, 208) * blocks[:, 192:208].view(np.int8))[:, :, None]


def _q8_k(blocks: Blocks, out: Rows) -> None:
    """d as float32, 256 int8, sums of 16 (not needed here): q d"""
    out[:] = blocks[:, 4:260].view(np.int8)
    out *= np.ascontiguousarray(blocks[:, :4]).view("<f4")


DECODE: dict[str, Callable[[Blocks, Rows], None]] = {
    "q4_0": _q4_0, "q4_1": _q4_1, "q5_0": _q5_0, "q5_1": _q5_1, "q8_0": _q8_0, "q8_1": _q8_1,
    "q2_k": _q2_k, "q3_k": _q3_k, "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k, "q8_k": _q8_k,
}  # fmt: skip
