"""safetensors: u64 length of a JSON header, the header, then the data of all tensors without gaps.

Format: github.com/huggingface/safetensors (README, "Format"). The header is checked in full before anything is
allocated: ranges inside the file, no overlap, no hole, sizes that fit the shapes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from candlewick.dtypes import DTYPES, FROM_NUMPY, FROM_SAFETENSORS, widen_bf16
from candlewick.weights.source import ByteSource, WeightsError, looks_like, parse_json

MAX_HEADER_BYTES = 100_000_000  # the cap of the reference implementation
MAX_RANK = 32  # of every NumPy
EMPTY_LIMIT = 2**28  # product of the dimensions that are not 0: NumPy counts their bytes, 31 bits in a browser
HEADER_DEPTH = 3  # header -> tensor -> shape
ALIGNMENT = 8  # we write headers so that data starts on a multiple of 8; readers must not count on it


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: bytes [start, end) of `file`, counted from the file's first byte; dtype as in dtypes.py."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    end: int


async def read_header(source: ByteSource) -> tuple[list[TensorInfo], dict[str, str]]:
    """Header of a safetensors file -> (tensors in the order of their data, metadata).

    Raises WeightsError for anything that the format does not allow; sizes are checked before any allocation.
    """
    name, size = source.name, source.size
    head = await source.read(0, min(size, 64))
    if size < 8:
        raise WeightsError(f"{name}: a safetensors file has at least 8 bytes, this one has {size}; fetch it again")
    length = int.from_bytes(head[:8], "little")
    if length > size - 8 or length > MAX_HEADER_BYTES or length < 2:
        what = looks_like(head)
        own = what == "a safetensors file" or what.startswith("nothing known")
        raise WeightsError(
            f"{name}: not a safetensors file: its header would be {length} bytes, the file has {size} "
            f"(at most {MAX_HEADER_BYTES} are read); it " + ("is cut short or damaged" if own else f"looks like {what}")
        )
    text = await source.read(8, 8 + length)
    if text[:1] != b"{":
        raise WeightsError(f"{name}: a safetensors header begins with '{{', this one with {text[:8]!r}")
    header = parse_json(text, f"{name} (header)", max_depth=HEADER_DEPTH)
    metadata = _metadata(header.pop("__metadata__", {}), name)
    infos = [_tensor(key, entry, name, 8 + length, size) for key, entry in header.items()]
    infos.sort(key=lambda info: (info.start, info.end))
    _check_gapless(infos, name, 8 + length, size)
    return infos, metadata


def _metadata(value: Any, file: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise WeightsError(f"{file}: __metadata__ must map names to texts, got {str(value)[:80]}")
    return value


def _tensor(name: str, entry: Any, file: str, data_start: int, size: int) -> TensorInfo:
    """One header entry -> TensorInfo, or a WeightsError that names the tensor."""
    where = f"{file}: tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise WeightsError(f"{where}: wants dtype, shape and data_offsets, has {str(entry)[:80]}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in FROM_SAFETENSORS:
        raise WeightsError(f"{where}: dtype {dtype!r} is not known; known are {', '.join(FROM_SAFETENSORS)}")
    if not _naturals(shape) or len(shape) > MAX_RANK:
        raise WeightsError(f"{where}: shape must list at most {MAX_RANK} whole numbers >= 0, got {str(shape)[:80]}")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise WeightsError(f"{where}: data_offsets must be [begin, end], 0 <= begin <= end, got {str(offsets)[:80]}")
    begin, end = offsets
    if data_start + end > size:
        raise WeightsError(
            f"{where}: its data ends at byte {data_start + end}, the file at {size}; it is cut short, fetch it again"
        )
    if 0 in shape and math.prod(n or 1 for n in shape) >= EMPTY_LIMIT:
        raise WeightsError(f"{where}: no data, but a shape that NumPy cannot hold: {str(shape)[:80]}")
    wanted = math.prod(shape) * DTYPES[FROM_SAFETENSORS[dtype]].bytes
    if end - begin != wanted:
        raise WeightsError(f"{where}: {dtype} {shape} needs {wanted} bytes, data_offsets span {end - begin}")
    return TensorInfo(name, FROM_SAFETENSORS[dtype], tuple(shape), file, data_start + begin, data_start + end)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_gapless(infos: list[TensorInfo], file: str, data_start: int, size: int) -> None:
    """Sorted tensors must cover [data_start, size) exactly once; zero-size ones may stand at any seam."""
    position, previous = data_start, "the header"
    for info in infos:
        if info.start < position:
            raise WeightsError(f"{file}: tensors {previous!r} and {info.name!r} overlap at byte {info.start}")
        if info.start > position:
            raise WeightsError(
                f"{file}: bytes {position} to {info.start}, before tensor {info.name!r}, belong to no tensor"
            )
        position, previous = info.end, info.name
    if position != size:
        raise WeightsError(f"{file}: bytes {position} to {size}, at the end of the file, belong to no tensor")


def decode(info: TensorInfo, data: bytes) -> np.ndarray:
    """Bytes of a tensor -> array of info.shape. bf16 is widened exactly to float32; everything else keeps its type."""
    dtype = DTYPES[info.dtype]
    if not data:
        return np.zeros(info.shape, np.float32 if info.dtype == "bf16" else dtype.numpy)
    if info.dtype == "bool":  # any non-zero byte is true, as in C; NumPy would keep the odd byte
        return (np.frombuffer(data, np.uint8) != 0).reshape(info.shape)
    array = np.frombuffer(data, dtype.numpy).reshape(info.shape)
    return widen_bf16(array) if info.dtype == "bf16" else array


def save(path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file (see `pieces`). It appears under its name only when it is complete."""
    path = Path(path)
    written = pieces(tensors, metadata, path.name)
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        for piece in written:
            file.write(piece)
    os.replace(partial, path)


def pieces(
    tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None, file: str = "model.safetensors"
) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, piece by piece: widest elements first, then by name, so that data stays aligned
    without padding. Raises WeightsError for dtypes the format lacks, before the first piece.
    """
    for name, array in tensors.items():
        if array.dtype.newbyteorder("<") not in FROM_NUMPY:
            raise WeightsError(f"{file}: tensor {name!r} has dtype {array.dtype}; can write {', '.join(DTYPES)}")
        if name == "__metadata__":
            raise WeightsError(f"{file}: '__metadata__' is not a tensor name")
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    head = header([(name, FROM_NUMPY[tensors[name].dtype.newbyteorder("<")], tensors[name].shape) for name in order], metadata)

    def run() -> Iterator[bytes | memoryview]:
        yield head
        for name in order:
            array = np.ascontiguousarray(tensors[name], tensors[name].dtype.newbyteorder("<"))
            yield array.data.cast("B") if array.size else b""

    return run()


def header(rows: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Everything before the data of tensors that follow one another: rows of name, dtype, shape. Padded to ALIGNMENT."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, shape in rows:
        end = offset + math.prod(shape) * DTYPES[dtype].bytes
        entries[name] = {"dtype": DTYPES[dtype].safetensors, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
