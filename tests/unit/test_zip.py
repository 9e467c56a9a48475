"""The zip directory against Python's own zip writer, and on files that are cut short or damaged."""

from __future__ import annotations

import io
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from candlewick.weights.source import MemorySource, WeightsError
from candlewick.weights.zip import DEFLATED, STORED, read_directory

FILES = {"m/data.pkl": b"some bytes", "m/data/0": bytes(range(256)) * 3, "m/empty": b"", "ä/ö.npy": b"words " * 50}


def made(method: int = zipfile.ZIP_STORED, comment: bytes = b"", wide: bool = False) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.mkdir("m")
        for name, data in FILES.items():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=wide) as member:
                member._compress_type = method
                member.write(data)
        archive.comment = comment
    return out.getvalue()


async def unpacked(data: bytes) -> dict[str, bytes]:
    source = MemorySource(data, "a.zip")
    found = {}
    for name, member in (await read_directory(source)).items():
        raw = await source.read(member.start, member.start + member.packed)
        found[name] = raw if member.method == STORED else zlib.decompress(raw, -15)
        assert len(found[name]) == member.size and zlib.crc32(found[name]) == member.crc
        assert member.method in (STORED, DEFLATED)
    return found


@pytest.mark.parametrize("data", [made(), made(comment=b"PK\x05 a comment " * 9), made(wide=True),
                                  b"what stands before a zip"], ids=["stored", "comment", "zip64 members", "no zip"])
async def test_members_are_where_the_directory_says(data):
    if not data.startswith(b"PK"):
        with pytest.raises(WeightsError, match="no end of a zip file"):
            await unpacked(data)
    else:
        assert await unpacked(data) == FILES


async def test_only_the_members_that_are_wanted_are_looked_at():
    class Counted(MemorySource):
        reads = 0

        async def read(self, start: int, end: int) -> bytes:
            self.reads += 1
            return await super().read(start, end)

    source = Counted(made())
    assert list(await read_directory(source, lambda name: name.endswith(".pkl"))) == ["m/data.pkl"]
    assert source.reads == 3  # the end, the directory, one header


async def test_packed_members():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
    assert await unpacked(out.getvalue()) == FILES


async def test_more_members_than_sixteen_bits_count():
    """The zip64 end of the directory."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for i in range(65_540):
            archive.writestr(str(i), b"")
    assert len(await read_directory(MemorySource(out.getvalue()))) == 65_540


async def test_sizes_beyond_32_bits_come_from_the_zip64_field():
    """A directory that tells of 5 GB: numbers behind the marks are believed, and checked against the file."""
    data = made(wide=True)
    at = data.rfind(b"PK\x01\x02")
    n_name = int.from_bytes(data[at + 28 : at + 30], "little")
    field = (1).to_bytes(2, "little") + (16).to_bytes(2, "little") + (5 << 30).to_bytes(8, "little") * 2
    entry = bytearray(data[at : at + 46 + n_name])
    entry[20:28] = b"\xff" * 8
    entry[30:32] = len(field).to_bytes(2, "little")
    end = bytearray(data[data.rfind(b"PK\x05\x06") :])
    end[12:16] = (int.from_bytes(end[12:16], "little") + len(field)).to_bytes(4, "little")
    with pytest.raises(WeightsError, match="5368709120 bytes from"):
        await read_directory(MemorySource(data[:at] + bytes(entry) + field + bytes(end)))
    with pytest.raises(WeightsError, match="large sizes are missing"):
        bare = bytearray(data)
        bare[at + 20 : at + 28] = b"\xff" * 8
        await read_directory(MemorySource(bytes(bare)))


async def test_cut_short_anywhere_it_is_refused():
    data = made()
    for length in range(len(data)):
        with pytest.raises(WeightsError):
            await read_directory(MemorySource(data[:length]))


@given(st.lists(st.tuples(st.integers(0, len(made()) - 1), st.integers(0, 255)), max_size=6))
async def test_damaged_bytes_do_no_more_than_raise(changes):
    data = bytearray(made())
    for at, value in changes:
        data[at] = value
    source = MemorySource(bytes(data))
    try:
        members = await read_directory(source)
    except WeightsError:
        return
    for member in members.values():
        await source.read(member.start, member.start + member.packed)
