"""NumPy's .npz files: a zip of .npy members, each a short header and the numbers of one array.

Format: numpy/lib/_format_impl.py; versions 1, 2 and 3. No pickle is ever read. Members that are stored as they are, in C order
and little endian, are byte ranges of the file; others (deflated, Fortran order, big endian) are made when asked for.
"""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass
from functools import partial

import numpy as np

from candlewick.dtypes import DTYPES, FROM_NUMPY
from candlewick.weights.safetensors import EMPTY_LIMIT, TensorInfo
from candlewick.weights.source import ByteSource, MadeSource, WeightsError, looks_like
from candlewick.weights.zip import DEFLATED, STORED, Member, read_directory

MAGIC = b"\x93NUMPY"
MAX_HEADER = 1 << 16  # bytes; plain arrays need some hundred
MAX_RANK = 32
CHUNK = 1 << 20
HEADER = re.compile(  # what NumPy writes for plain arrays; nothing is evaluated
    r"\{'descr': ?'([<>=|][a-zA-Z]\d+)', ?'fortran_order': ?(True|False), ?'shape': ?\(([\d, ]*)\),? ?\}[ \n]*"
)


@dataclass(frozen=True)
class Npz:
    """Where the arrays lie: stored ones in the file itself, others in sources made for them."""

    tensors: dict[str, TensorInfo]
    sources: dict[str, ByteSource]  # by the names that `tensors` gives, the file's own among them


@dataclass(frozen=True)
class _Array:
    dtype: str
    big: bool  # big endian
    fortran: bool
    shape: tuple[int, ...]
    start: int  # of the data in the member


async def read_npz(source: ByteSource, file: str | None = None) -> Npz:
    """Directory and headers of a .npz file -> arrays by name, without `.npy`. file: its name in the infos.

    Raises WeightsError for damaged files and for members that are not arrays of plain numbers.
    """
    file = file or source.name
    tensors: dict[str, TensorInfo] = {}
    sources: dict[str, ByteSource] = {file: source}
    for member in (await read_directory(source)).values():
        if member.method not in (STORED, DEFLATED):
            raise WeightsError(f"{source.name}: {member.name} is packed by method {member.method}; deflate (8) and none (0) "
                               "are read")
        name = member.name.removesuffix(".npy")
        where = f"{source.name}: array {name!r}"
        head = await _head(source, member, where)
        array = _parse(head, where, member.size)
        item = DTYPES[array.dtype].bytes
        n_bytes = math.prod(array.shape) * item
        if array.start + n_bytes != member.size:
            raise WeightsError(f"{where}: {array.dtype} {list(array.shape)} needs {n_bytes} bytes after its header of "
                               f"{array.start}, the member has {member.size}; the file is damaged")
        if member.method == STORED and not array.fortran and not array.big:
            start = member.start + array.start
            tensors[name] = TensorInfo(name, array.dtype, array.shape, file, start, start + n_bytes)
        else:
            place = f"{file}#{name}"
            sources[place] = MadeSource(place, n_bytes, partial(_made, source, member, array, where))
            tensors[name] = TensorInfo(name, array.dtype, array.shape, place, 0, n_bytes)
    if not tensors:
        raise WeightsError(f"{source.name}: no array in it; save them by numpy.savez")
    return Npz(tensors, sources)


async def _head(source: ByteSource, member: Member, where: str) -> bytes:
    """The first bytes of a member, its whole header among them."""
    wanted = min(member.size, 12 + MAX_HEADER)
    data = await source.read(member.start, min(member.start + wanted, member.start + member.packed))
    if member.method == DEFLATED:
        try:
            return zlib.decompressobj(-15).decompress(data, wanted)
        except zlib.error as error:
            raise WeightsError(f"{where} cannot be unpacked ({error}); the file is damaged") from error
    return data


def _parse(data: bytes, where: str, size: int) -> _Array:
    if not data.startswith(MAGIC) or len(data) < 12:
        raise WeightsError(f"{where}: wanted a .npy member, it looks like {looks_like(data[:64])}")
    version = data[6]
    if version not in (1, 2, 3):
        raise WeightsError(f"{where}: .npy version {version} is not known; known are 1, 2 and 3")
    at = 10 if version == 1 else 12
    start = at + int.from_bytes(data[8:at], "little")
    if start > min(len(data), MAX_HEADER):
        raise WeightsError(f"{where}: its header would be {start} bytes (at most {MAX_HEADER} are read), the member has "
                           f"{size}; the file is damaged")
    text = data[at:start].decode("latin-1")
    match = HEADER.fullmatch(text)
    if match is None:
        hint = "; arrays of Python objects need a pickle, which is never read" if "'|O'" in text or "'O'" in text else ""
        raise WeightsError(f"{where}: wanted a plain array of numbers, its header says {text.strip()[:120]!r}{hint}")
    kind, fortran, dims = match.groups()
    plain = np.dtype(kind[1:]).newbyteorder("<") if kind[1] in "fiub" and kind[2:] in ("1", "2", "4", "8") else None
    if plain not in FROM_NUMPY:
        raise WeightsError(f"{where}: numbers of type {kind!r} are not read; known are "
                           + ", ".join(d.numpy.str for d in DTYPES.values() if d.numpy in FROM_NUMPY))
    try:
        shape = tuple(int(n) for n in dims.replace(" ", "").split(",") if n)
    except ValueError as error:
        raise WeightsError(f"{where}: the shape ({dims[:80]}) is not one") from error
    empty_span = math.prod(n or 1 for n in shape) if 0 in shape else 0
    if len(shape) > MAX_RANK or any(n >= 1 << 63 for n in shape) or empty_span >= EMPTY_LIMIT:
        raise WeightsError(f"{where}: the shape ({dims[:80]}) is more than NumPy can hold")
    return _Array(FROM_NUMPY[plain], kind[0] == ">" and plain.itemsize > 1, fortran == "True" and len(shape) > 1, shape, start)


async def _made(source: ByteSource, member: Member, array: _Array, where: str) -> np.ndarray:
    """The numbers of a member in C order and little endian."""
    if member.method == STORED:
        data: bytes | bytearray = await source.read(member.start + array.start, member.start + member.size)
    else:
        data = (await _unpacked(source, member, where))[array.start :]
    dtype = DTYPES[array.dtype].numpy
    values = np.frombuffer(data, dtype.newbyteorder(">") if array.big else dtype)
    values = values.reshape(array.shape[::-1]).T if array.fortran else values
    return np.ascontiguousarray(values, dtype)


async def _unpacked(source: ByteSource, member: Member, where: str) -> bytearray:
    """A deflated member as it was, of just the size and checksum that the directory says."""
    out, inflate = bytearray(), zlib.decompressobj(-15)
    try:
        for at in range(member.start, member.start + member.packed, CHUNK):
            data = await source.read(at, min(at + CHUNK, member.start + member.packed))
            while data and len(out) <= member.size:
                out += inflate.decompress(data, member.size + 1 - len(out))
                data = inflate.unconsumed_tail
    except zlib.error as error:
        raise WeightsError(f"{where} cannot be unpacked ({error}); the file is damaged") from error
    if len(out) != member.size or zlib.crc32(out) != member.crc:
        raise WeightsError(f"{where}: {len(out)} bytes came out, {member.size} with another checksum were expected; the file "
                           "is damaged")
    return out
