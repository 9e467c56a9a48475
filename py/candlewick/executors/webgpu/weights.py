"""How weights reach a device. Kernels read most of them as they lie in their file: of those Python tells only the byte ranges,
and the host streams them. The others are made here, a few rows at a time: no large one is ever on Python's heap."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np

from ...program import Value
from ..views import WORD
from .lower_ops import DTYPES

PIECE_BYTES = 4 << 20
Range = tuple[str, int, int]
"""(file, first byte, end); the file "" is of zeros."""


def matrix_dtype(v: Value) -> str:
    """What a weight matrix is on the device: what it is in the file, where kernels read that."""
    return v.dtype if v.dtype in DTYPES else "f32"


def ranges(kind: str, v: Value, weights: Any) -> list[Range] | None:
    """Where a weight's bytes ("flat" or "matrix") lie as kernels read them, one range behind another; None: in no file."""
    found: list[Range] = []
    bound = getattr(weights, "bound", {})
    for part in v.parts or (v,):
        info = bound.get(part.name)
        if not part.name:
            found.append(("", 0, part.size * WORD))
        elif info is None or info.dtype != ("f32" if kind == "flat" else matrix_dtype(v)) or _moved(kind, part):
            return None
        else:
            found.append((info.file, info.start, info.end))
    return found


def within(ranges: list[Range], skip: int, size: int) -> list[Range]:
    """Of ranges one behind another: the bytes skip .. skip + size, as far as there are any."""
    found, at = [], -skip
    for file, start, end in ranges:
        first, last = max(start, start - at), min(end, start - at + size)
        if first < last:
            found.append((file, first, last))
        at += end - start
    return found


def _moved(kind: str, part: Value) -> bool:
    """Whether the axes of a convolution's (c_out, c_in, taps...) are in another order on the device: (c_out, taps..., c_in)."""
    return kind == "matrix" and part.size != part.shape[0] * part.shape[1]


async def pieces(kind: str, v: Value, weights: Any) -> AsyncIterator[bytes]:
    """The same bytes, made: whole rows of at most about PIECE_BYTES at a time."""
    for part in v.parts or (v,):
        if not part.name:
            yield bytes(part.size * WORD)
            continue
        rows = part.shape[0] if part.shape else 1
        step = max(1, PIECE_BYTES * rows // max(1, part.size * WORD))
        if not hasattr(weights, "read_rows"):
            yield _laid(kind, part, await weights.read(part.name))
            continue
        for first in range(0, rows, step):
            yield _laid(kind, part, await weights.read_rows(part.name, first, min(first + step, rows)))


def _laid(kind: str, part: Value, rows: np.ndarray) -> bytes:
    if kind == "matrix" and rows.ndim > 2:
        rows = np.moveaxis(rows, 1, -1)
    if rows.dtype == np.int32:
        return np.ascontiguousarray(rows).tobytes()
    if kind == "matrix" and part.dtype == "f16":
        return np.ascontiguousarray(rows, np.float16).tobytes()
    rows = np.ascontiguousarray(rows, np.float32)
    if kind == "matrix" and part.dtype == "bf16":
        return (rows.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return rows.tobytes()


class Filler:
    """Writes bytes of any length one behind another into a buffer, which takes multiples of 4 bytes; of all that come, those
    from `skip` on, at most `size`."""

    def __init__(self, write: Callable[[int, int, bytes], None], buffer: int, skip: int = 0, size: int = 1 << 62) -> None:
        self._write, self._buffer, self._skip, self._size = write, buffer, skip, size
        self.done = 0
        self._left = b""

    def add(self, data: bytes) -> None:
        """More bytes; up to three wait for those that follow."""
        drop = min(self._skip, len(data))
        self._skip -= drop
        data = data[drop : drop + self._size - self.done - len(self._left)] if drop or self._full(data) else data
        data = self._left + data if self._left else data
        whole = len(data) // WORD * WORD
        self._left = data[whole:]
        if whole:
            self._write(self._buffer, self.done, data if not self._left else data[:whole])
        self.done += whole

    def _full(self, data: bytes) -> bool:
        return self.done + len(self._left) + len(data) > self._size

    def end(self) -> None:
        """Those that wait, and zeros."""
        if self._left:
            self.add(bytes(WORD - len(self._left)))
