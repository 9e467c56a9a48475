"""The one table of data types: what each is called here, in NumPy, in files and on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class DType:
    """One row. `numpy` is the array type in which the bytes are read; bf16 has none of its own and is read as uint16."""

    name: str
    bytes: int
    numpy: np.dtype
    safetensors: str
    wgsl: str | None
    kind: str  # "float", "int" or "bool"


_ROWS = (
    # name, bytes, numpy, safetensors, wgsl, kind
    ("f64", 8, "<f8", "F64", None, "float"),
    ("f32", 4, "<f4", "F32", "f32", "float"),
    ("f16", 2, "<f2", "F16", "f16", "float"),
    ("bf16", 2, "<u2", "BF16", None, "float"),
    ("i64", 8, "<i8", "I64", None, "int"),
    ("i32", 4, "<i4", "I32", "i32", "int"),
    ("i16", 2, "<i2", "I16", None, "int"),
    ("i8", 1, "|i1", "I8", None, "int"),
    ("u8", 1, "|u1", "U8", None, "int"),
    ("bool", 1, "|b1", "BOOL", None, "bool"),
)
DTYPES: dict[str, DType] = {row[0]: DType(row[0], row[1], np.dtype(row[2]), *row[3:]) for row in _ROWS}
FROM_SAFETENSORS: dict[str, str] = {d.safetensors: d.name for d in DTYPES.values()}
FROM_NUMPY: dict[np.dtype, str] = {d.numpy: d.name for d in DTYPES.values() if d.name != "bf16"}


def widen_bf16(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bit patterns (uint16) -> the same numbers in float32, exactly (NaN and infinities included)."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
