"""Writing GGUF: the header that gguf.py reads, and the data behind it in the order of the header."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from candlewick.dtypes import DTYPES, n_bytes
from candlewick.weights.gguf import ALIGNMENT, ARRAY, BOOL, FORMS, MAGIC, MAX_DIMS, NUMBERS, TEXT
from candlewick.weights.packing import quantise
from candlewick.weights.source import WeightsError

VERSION = 3
KINDS = {np.dtype(form): kind for kind, form in NUMBERS.items()} | {np.dtype(bool): BOOL}
U32, I32, F32, U64, I64 = 4, 5, 6, 10, 11


def header(metadata: Mapping[str, Any], tensors: Iterable[tuple[str, str, tuple[int, ...]]], version: int = VERSION) -> bytes:
    """Everything before the first tensor's data. tensors: name, dtype, shape in the order of their data.

    Each tensor's data must then be followed by `padding` of its size. Metadata values are as gguf.Gguf has them; a whole
    number is written with 32 bits where it fits, a float with 32. Raises WeightsError for what the format cannot hold.
    """
    rows = list(tensors)
    alignment = int(metadata.get("general.alignment", ALIGNMENT))
    length = "<Q" if version > 1 else "<I"
    out = bytearray(MAGIC + struct.pack("<I", version) + struct.pack(length, len(rows)) + struct.pack(length, len(metadata)))
    for key, value in metadata.items():
        out += _text(key, length) + _typed(value, key, length)
    offset = 0
    for name, dtype, shape in rows:
        kind = DTYPES[dtype].ggml
        if kind is None or len(shape) > MAX_DIMS or 0 in shape:
            raise WeightsError(f"tensor {name!r} ({dtype}, {list(shape)}) cannot be in a GGUF file: at most {MAX_DIMS} "
                               "dimensions, none of them 0, and a type that GGUF has")
        out += _text(name, length) + struct.pack("<I", len(shape))
        out += b"".join(struct.pack(length, n) for n in shape[::-1]) + struct.pack("<IQ", kind, offset)
        size = n_bytes(dtype, math.prod(shape))
        offset += size + len(padding(size, alignment))
    return bytes(out) + padding(len(out), alignment)


def padding(size: int, alignment: int = ALIGNMENT) -> bytes:
    """Zeros that bring `size` bytes to the next aligned place."""
    return bytes(-size % alignment)


def _text(text: str, length: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack(length, len(data)) + data


def _typed(value: Any, key: str, length: str) -> bytes:
    """The number of a value's type, and the value."""
    kind, data = _value(value, key, length)
    return struct.pack("<I", kind) + data


def _value(value: Any, key: str, length: str) -> tuple[int, bytes]:
    if isinstance(value, bool | np.bool):
        return BOOL, struct.pack("<B", value)
    if isinstance(value, int | np.integer):
        kind = U32 if 0 <= value < 1 << 32 else I32 if -(1 << 31) <= value < 0 else U64 if value >= 0 else I64
        return kind, struct.pack(FORMS[kind], value)
    if isinstance(value, float | np.floating):
        return F32, struct.pack("<f", value)
    if isinstance(value, str):
        return TEXT, _text(value, length)
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.newbyteorder("<") in KINDS:
        kind = KINDS[value.dtype.newbyteorder("<")]
        data = value.astype(NUMBERS.get(kind, "u1")).tobytes()
        return ARRAY, struct.pack("<I", kind) + struct.pack(length, len(value)) + data
    if isinstance(value, list | tuple):
        items = [_value(item, key, length) for item in value]
        kinds = {kind for kind, _ in items}
        if len(kinds) <= 1:
            head = struct.pack("<I", next(iter(kinds), TEXT)) + struct.pack(length, len(items))
            return ARRAY, head + b"".join(data for _, data in items)
    raise WeightsError(f"metadata {key!r}: GGUF cannot hold {type(value).__name__} {str(value)[:60]}; it holds numbers, texts "
                       "and lists of one of these")


def save(
    path: str | Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    dtype: str | Mapping[str, str] = "f32",
    version: int = VERSION,
) -> None:
    """Write a GGUF file of arrays that are in memory. dtype: of all that have two axes, or of each by name; the rest is f32.

    The file appears under its name only when it is complete.
    """
    names = {name: dtype.get(name, "f32") if isinstance(dtype, Mapping) else dtype if array.ndim > 1 else "f32"
             for name, array in tensors.items()}
    alignment = int(metadata.get("general.alignment", ALIGNMENT))
    path = Path(path)
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        file.write(header(metadata, [(name, names[name], array.shape) for name, array in tensors.items()], version))
        for name, array in tensors.items():
            data = quantise(array, names[name])
            file.write(data + padding(len(data), alignment))
    os.replace(partial, path)
