"""The directory of a zip file that is read by ranges: .pt of PyTorch, .npz of NumPy. Nothing is unpacked here.

Format: PKWARE APPNOTE.TXT, sections 4.3 and 4.5.3 (zip64). The directory stands at the end of the file; each member's data
comes after a small header of its own, whose length only that header tells.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass

from candlewick.weights.source import ByteSource, WeightsError, looks_like

STORED, DEFLATED = 0, 8
END, END64, END64_AT, ENTRY, LOCAL = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x01\x02", b"PK\x03\x04"
TAIL = 22 + 65535 + 20  # the longest end of a zip file: with a comment, and where the zip64 end is
MAX_DIRECTORY = 64 << 20  # bytes; a checkpoint of ten thousand tensors has about one megabyte
MASK32, MASK16 = 0xFFFFFFFF, 0xFFFF


@dataclass(frozen=True)
class Member:
    """One file in a zip: its data are the `packed` bytes from `start`, `size` bytes when unpacked."""

    name: str
    start: int
    size: int
    packed: int
    method: int  # STORED, DEFLATED, or something that is not read here
    crc: int  # CRC-32 of the unpacked bytes


async def read_directory(source: ByteSource, wanted: Callable[[str], bool] | None = None) -> dict[str, Member]:
    """The members of a zip file by name, or those of them whose names are wanted: each costs a read of its own header.

    Raises WeightsError for what is not a zip file, is cut short, or does not add up.
    """
    name, size = source.name, source.size
    at = max(0, size - TAIL)
    tail = await source.read(at, size)
    end = tail.rfind(END)
    if end < 0 or end + 22 > len(tail):
        head = await source.read(0, min(size, 64))
        what = "a zip file that is cut short" if head.startswith(LOCAL) else looks_like(head)
        raise WeightsError(f"{name}: no end of a zip file in its {size} bytes; it looks like {what}")
    count, length, start = struct.unpack("<HII", tail[end + 10 : end + 20])
    if MASK32 in (length, start) or count == MASK16:
        count, length, start = await _end64(source, tail, end, at)
    if length > MAX_DIRECTORY or start + length > size or count * 46 > length:
        raise WeightsError(f"{name}: its zip directory would be {count} entries in {length} bytes from {start}, the file has "
                           f"{size}; it is damaged")
    entries = _entries(await source.read(start, start + length), count, name)
    if wanted:
        entries = [entry for entry in entries if wanted(entry[1].name)]
    starts = await asyncio.gather(*[_data_start(source, header, member) for header, member in entries])
    members = {m.name: Member(m.name, at, m.size, m.packed, m.method, m.crc) for (_, m), at in zip(entries, starts)}
    if len(members) != len(entries):
        raise WeightsError(f"{name}: two members of the zip have one name; it is damaged")
    return members


async def _end64(source: ByteSource, tail: bytes, end: int, at: int) -> tuple[int, int, int]:
    """Count, length and start of the directory of a zip64 file."""
    place = end - 20
    if place >= 0 and tail[place : place + 4] == END64_AT:
        (there,) = struct.unpack("<Q", tail[place + 8 : place + 16])
        if there + 56 <= at + place:
            record = await source.read(there, there + 56)
            if record[:4] == END64:
                return struct.unpack("<QQQ", record[32:56])
    raise WeightsError(f"{source.name}: its zip64 directory is not where the file's end says; it is damaged")


def _entries(data: bytes, count: int, file: str) -> list[tuple[int, Member]]:
    """Directory -> for each member where its own header stands, and what is known of it."""
    entries: list[tuple[int, Member]] = []
    at = 0
    for _ in range(count):
        if data[at : at + 4] != ENTRY or at + 46 > len(data):
            raise WeightsError(f"{file}: entry {len(entries)} of its zip directory is damaged")
        flags, method = struct.unpack("<HH", data[at + 8 : at + 12])
        crc, packed, size, n_name, n_extra, n_comment = struct.unpack("<IIIHHH", data[at + 16 : at + 34])
        (header,) = struct.unpack("<I", data[at + 42 : at + 46])
        name = data[at + 46 : at + 46 + n_name].decode("utf-8", "replace")
        extra = data[at + 46 + n_name : at + 46 + n_name + n_extra]
        if MASK32 in (packed, size, header):
            size, packed, header = _wide(extra, size, packed, header, f"{file}: {name}")
        if flags & 1:
            raise WeightsError(f"{file}: {name} is encrypted; save it without a password")
        if not name.endswith("/"):
            entries.append((header, Member(name, 0, size, packed, method, crc)))
        at += 46 + n_name + n_extra + n_comment
    return entries


def _wide(extra: bytes, size: int, packed: int, header: int, where: str) -> tuple[int, int, int]:
    """The numbers that did not fit in 32 bits, from the zip64 field, where only those stand."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack("<HH", extra[at : at + 4])
        if kind == 1:
            numbers = iter(struct.unpack(f"<{length // 8}Q", extra[at + 4 : at + 4 + length // 8 * 8]))
            try:
                return tuple(next(numbers) if n == MASK32 else n for n in (size, packed, header))  # type: ignore[return-value]
            except (RuntimeError, StopIteration):
                break
        at += 4 + length
    raise WeightsError(f"{where}: its large sizes are missing in the zip directory; the file is damaged")


async def _data_start(source: ByteSource, header: int, member: Member) -> int:
    where = f"{source.name}: {member.name}"
    if header + 30 > source.size:
        raise WeightsError(f"{where} begins at byte {header}, the file ends at {source.size}; it is damaged")
    local = await source.read(header, header + 30)
    if local[:4] != LOCAL:
        raise WeightsError(f"{where} does not begin at byte {header}, as the zip directory says; the file is damaged")
    start = header + 30 + sum(struct.unpack("<HH", local[26:30]))
    if start + member.packed > source.size or (member.method == STORED and member.packed != member.size):
        raise WeightsError(f"{where}: {member.packed} bytes from {start} are not in the file of {source.size}; it is damaged")
    return start
