"""npz: what NumPy writes, packed or not, in every order and header version; damage and pickles (nothing is ever run)."""

import asyncio
import io
import zipfile

import numpy as np
import pytest

from candlewick.weights.npz import read_npz
from candlewick.weights.safetensors import decode
from candlewick.weights.source import MemorySource, WeightsError

ARRAYS = {
    "a.weight": np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32),
    "half": np.arange(7, dtype=np.float16),
    "double": np.random.default_rng(1).standard_normal((2, 3, 4)),
    "long": np.arange(-4, 4), "int": np.arange(3, dtype=np.int32), "short": np.arange(3, dtype=np.int16),
    "byte": np.arange(-3, 3, dtype=np.int8), "unsigned": np.arange(250, 256, dtype=np.uint8), "flags": np.array([True, False]),
    "scalar": np.float32(7), "empty": np.zeros((0, 4), np.float32),
    "fortran": np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
    "fortran3": np.asfortranarray(np.arange(24, dtype=np.int64).reshape(2, 3, 4)),
    "big": np.arange(5, dtype=">f4"), "big_fortran": np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
}


def packed(arrays, compress=False):
    out = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(out, **arrays)
    return out.getvalue()


def zipped(name, data, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr(name, data)
    return out.getvalue()


def npy(header, data=b"", version=1):
    text = header.encode("latin-1")
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def load(blob):
    async def go():
        found = await read_npz(MemorySource(blob, "x.npz"))
        return {name: decode(info, await found.sources[info.file].read(info.start, info.end))
                for name, info in found.tensors.items()}

    return asyncio.run(go())


def refused(blob, *words):
    with pytest.raises(WeightsError) as caught:
        load(blob)
    for word in words:
        assert str(word) in str(caught.value)


@pytest.mark.parametrize("compress", [False, True])
def test_reads_what_numpy_writes(compress):
    loaded = load(packed(ARRAYS, compress))
    assert list(loaded) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype.newbyteorder("<") and loaded[name].shape == array.shape


def test_stored_arrays_are_ranges_of_the_file():
    source = MemorySource(packed(ARRAYS), "x.npz")
    found = asyncio.run(read_npz(source, "given.npz"))
    inside = {name for name, info in found.tensors.items() if info.file == "given.npz"}
    assert inside == set(ARRAYS) - {"fortran", "fortran3", "big", "big_fortran"}
    assert found.sources["given.npz"] is source


@pytest.mark.parametrize("version", [1, 2, 3])
def test_versions_of_the_header(version):
    blob = zipped("a.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }   \n", bytes(8), version))
    np.testing.assert_array_equal(load(blob)["a"], [0, 0])


def test_made_arrays_can_be_read_in_pieces():
    array = np.arange(100_000, dtype=np.float32)
    found = asyncio.run(read_npz(MemorySource(packed({"a": array}, compress=True), "x.npz")))
    source = found.sources[found.tensors["a"].file]
    pieces = [asyncio.run(source.read(at, min(at + 60_001, source.size))) for at in range(0, source.size, 60_001)]
    np.testing.assert_array_equal(np.frombuffer(b"".join(pieces), np.float32), array)


@pytest.mark.parametrize("descr", ["|O", "<U5", "|S3", "<c8", "|V2", "<f16", "<M8[s]", "<u4"])
def test_types_that_are_not_plain_numbers_are_refused(descr):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (1,), }}"
    refused(zipped("a.npy", npy(header, bytes(16))), "array 'a'", descr)


def test_objects_need_a_pickle_and_none_is_read():
    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit",))

    out = io.BytesIO()
    np.savez(out, a=np.array([Bomb()], dtype=object))
    refused(out.getvalue(), "array 'a'", "pickle, which is never read")


@pytest.mark.parametrize("header, words", [
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "needs 12 bytes"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", "wanted a plain array"),
    ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", "wanted a plain array"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (2 2,), }", "needs 88 bytes"),
    (f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**40},), }}", "more than NumPy can hold"),
    (f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'9' * 5000},), }}", "is not one"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 1000000000, 1000000000), }", "more than NumPy can hold"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1, " * 40 + "), }", "more than NumPy can hold"),
    ("(" * 5000, "wanted a plain array"),
    ("__import__('os').system('true')", "wanted a plain array"),
])
def test_headers_that_cannot_be(header, words):
    refused(zipped("a.npy", npy(header, bytes(8))), "x.npz: array 'a'", words)


def test_what_is_no_npz_file():
    refused(b"", "x.npz", "an empty file")
    refused(zipped("a.npy", b"hello"), "array 'a'", "wanted a .npy member")
    refused(zipped("a.npy", npy("")[:8] + b"\xff\xff" + bytes(20)), "header would be 65545 bytes")
    refused(zipped("a.npy", npy("{}", version=4)), "version 4")
    plain = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", bytes(8))
    refused(zipped("a.npy", plain, zipfile.ZIP_LZMA), "method 14")
    out = io.BytesIO()
    zipfile.ZipFile(out, "w").close()
    refused(out.getvalue(), "no array in it")


def test_damage_inside_a_packed_array_is_seen():
    array = np.random.default_rng(3).standard_normal(5000).astype(np.float32)
    blob = bytearray(packed({"a": array}, compress=True))
    blob[len(blob) // 2] ^= 0x10
    refused(bytes(blob), "array 'a'", "damaged")


def test_an_array_that_unpacks_to_more_than_it_says_is_not_unpacked():
    """A megabyte that says it is four kilobytes, in its header and in the directory: no more comes out than they say."""
    head = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4026,), }")
    blob = bytearray(zipped("a.npy", head + bytes(1 << 20), zipfile.ZIP_DEFLATED))
    at = blob.rfind((len(head) + (1 << 20)).to_bytes(4, "little"))
    blob[at : at + 4] = (len(head) + 4026).to_bytes(4, "little")
    refused(bytes(blob), "array 'a'", f"{len(head) + 4027} bytes came out")
