"""The one table of data types: what each is called here, in NumPy, in files and on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class DType:
    """One row. `numpy` is the array type in which the bytes are read; bf16 has none of its own and is read as uint16.

    A quantised type is a run of blocks: `bytes` is what a block of `block` neighbouring weights of one row takes; their layout
    is in weights/quant.py. ggml: its number in GGUF files.
    """

    name: str
    bytes: int
    numpy: np.dtype
    safetensors: str | None
    wgsl: str | None
    kind: str  # "float", "int", "bool" or "quant"
    block: int = 1
    ggml: int | None = None


_ROWS = (
    # name, bytes, numpy, safetensors, wgsl, kind, block, ggml
    ("f64", 8, "<f8", "F64", None, "float", 1, 28),
    ("f32", 4, "<f4", "F32", "f32", "float", 1, 0),
    ("f16", 2, "<f2", "F16", "f16", "float", 1, 1),
    ("bf16", 2, "<u2", "BF16", None, "float", 1, 30),
    ("i64", 8, "<i8", "I64", None, "int", 1, 27),
    ("i32", 4, "<i4", "I32", "i32", "int", 1, 26),
    ("i16", 2, "<i2", "I16", None, "int", 1, 25),
    ("i8", 1, "|i1", "I8", None, "int", 1, 24),
    ("u8", 1, "|u1", "U8", None, "int"),
    ("bool", 1, "|b1", "BOOL", None, "bool"),
    ("q4_0", 18, "|u1", None, None, "quant", 32, 2),
    ("q4_1", 20, "|u1", None, None, "quant", 32, 3),
    ("q5_0", 22, "|u1", None, None, "quant", 32, 6),
    ("q5_1", 24, "|u1", None, None, "quant", 32, 7),
    ("q8_0", 34, "|u1", None, None, "quant", 32, 8),
    ("q8_1", 36, "|u1", None, None, "quant", 32, 9),
    ("q2_k", 84, "|u1", None, None, "quant", 256, 10),
    ("q3_k", 110, "|u1", None, None, "quant", 256, 11),
    ("q4_k", 144, "|u1", None, None, "quant", 256, 12),
    ("q5_k", 176, "|u1", None, None, "quant", 256, 13),
    ("q6_k", 210, "|u1", None, None, "quant", 256, 14),
    ("q8_k", 292, "|u1", None, None, "quant", 256, 15),
)
DTYPES: dict[str, DType] = {row[0]: DType(row[0], row[1], np.dtype(row[2]), *row[3:]) for row in _ROWS}
FROM_SAFETENSORS: dict[str, str] = {d.safetensors: d.name for d in DTYPES.values() if d.safetensors}
FROM_GGML: dict[int, str] = {d.ggml: d.name for d in DTYPES.values() if d.ggml is not None}
FROM_NUMPY: dict[np.dtype, str] = {d.numpy: d.name for d in DTYPES.values() if d.safetensors and d.name != "bf16"}
QUANTISED: tuple[str, ...] = tuple(d.name for d in DTYPES.values() if d.kind == "quant")


def n_bytes(dtype: str, elements: int) -> int:
    """Bytes that so many elements take. Raises ValueError where they are not whole blocks."""
    d = DTYPES[dtype]
    if elements % d.block:
        raise ValueError(f"{elements} elements are not whole blocks of {d.block}, as {dtype} has them")
    return elements // d.block * d.bytes


def widen_bf16(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bit patterns (uint16) -> the same numbers in float32, exactly (NaN and infinities included)."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
