"""GGUF: what the reference package writes and reads, every type and version, and what damaged files must not do
(BR-17..BR-20)."""

import asyncio
import struct

import gguf as reference
import numpy as np
import pytest

from candlewick.weights import gguf, gguf_writer
from candlewick.weights.load import decode
from candlewick.weights.packing import quantise
from candlewick.weights.source import FileSource, MemorySource, WeightsError


class Counted:
    """A source that says how far it was read."""

    def __init__(self, data, name="x.gguf", size=None):
        self.data, self.name, self.size, self.furthest, self.reads = data, name, size or len(data), 0, 0

    async def read(self, start, end):
        assert 0 <= start <= end <= self.size
        self.furthest, self.reads = max(self.furthest, end), self.reads + 1
        return bytes(self.data[start:end])


def parse(blob):
    return asyncio.run(gguf.read_header(MemorySource(blob, "x.gguf")))


def refused(blob, *words):
    with pytest.raises(WeightsError) as caught:
        parse(blob)
    for word in words:
        assert str(word) in str(caught.value)


def text(value, length="<Q"):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack(length, len(data)) + data


def build(entries=(), tensors=(), data=b"", *, version=3, n_tensors=None, n_entries=None):
    """A file by hand. entries: (key, type, bytes); tensors: (name, dims, type, offset)."""
    length = "<Q" if version != 1 else "<I"
    out = b"GGUF" + struct.pack("<I", version)
    out += struct.pack(length, len(tensors) if n_tensors is None else n_tensors)
    out += struct.pack(length, len(entries) if n_entries is None else n_entries)
    for key, kind, value in entries:
        out += text(key, length) + struct.pack("<I", kind) + value
    for name, dims, kind, offset in tensors:
        out += text(name, length) + struct.pack("<I", len(dims)) + b"".join(struct.pack(length, d) for d in dims)
        out += struct.pack("<IQ", kind, offset)
    return out + bytes(-len(out) % 32) + data


def plain(value):
    """Arrays as lists, all the way down."""
    return value.tolist() if isinstance(value, np.ndarray) else list(map(plain, value)) if isinstance(value, list) else value


# --- what must load ----------------------------------------------------------------------------------------------


def test_reads_what_the_reference_package_writes(tmp_path):
    path = tmp_path / "a.gguf"
    writer = reference.GGUFWriter(path, "llama")
    writer.add_uint8("n.u8", 200)
    writer.add_int8("n.i8", -100)
    writer.add_uint16("n.u16", 60000)
    writer.add_int16("n.i16", -30000)
    writer.add_uint32("n.u32", 4000000000)
    writer.add_int32("n.i32", -2000000000)
    writer.add_uint64("n.u64", 2**64 - 1)
    writer.add_int64("n.i64", -(2**63))
    writer.add_float32("n.f32", 0.1)
    writer.add_float64("n.f64", 0.1)
    writer.add_bool("n.yes", True)
    writer.add_string("n.text", "Käse ✓ \0 zero")
    writer.add_array("a.words", ["", "a", "ü" * 200, "x" * 300, "\0" * 9, "b", "", ""])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, 1.5])
    writer.add_array("a.flags", [True, False])
    writer.add_array("a.lists", [["a", "b"], ["c"]])
    rng = np.random.default_rng(0)
    arrays = {"one": rng.standard_normal((3, 64)).astype(np.float32), "half": rng.standard_normal((5, 7)).astype(np.float16),
              "vector": rng.standard_normal(6).astype(np.float32)}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    packed = reference.quants.quantize(arrays["one"], reference.GGMLQuantizationType.Q5_1)
    writer.add_tensor("packed", packed, raw_dtype=reference.GGMLQuantizationType.Q5_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    source = FileSource(path)
    header = asyncio.run(gguf.read_header(source))
    assert header.version == 3 and header.metadata["general.architecture"] == "llama"
    numbers = {key: value for key, value in header.metadata.items() if key.startswith("n.")}
    assert numbers == {"n.u8": 200, "n.i8": -100, "n.u16": 60000, "n.i16": -30000, "n.u32": 4000000000, "n.i32": -2000000000,
                       "n.u64": 2**64 - 1, "n.i64": -(2**63), "n.f32": float(np.float32(0.1)), "n.f64": 0.1, "n.yes": True,
                       "n.text": "Käse ✓ \0 zero"}
    assert header.metadata["a.words"] == ["", "a", "ü" * 200, "x" * 300, "\0" * 9, "b", "", ""]
    assert header.metadata["a.ints"].tolist() == [1, -2, 3]
    assert header.metadata["a.floats"].tolist() == [0.5, 1.5]
    assert header.metadata["a.flags"].tolist() == [True, False]
    assert header.metadata["a.lists"] == [["a", "b"], ["c"]]
    infos = {info.name: info for info in header.tensors}
    assert [infos[name].dtype for name in ("one", "half", "vector", "packed")] == ["f32", "f16", "f32", "q5_1"]
    for name, array in arrays.items():
        info = infos[name]
        np.testing.assert_array_equal(decode(info, asyncio.run(source.read(info.start, info.end))), array)
    info = infos["packed"]
    np.testing.assert_array_equal(decode(info, asyncio.run(source.read(info.start, info.end))),
                                  reference.quants.dequantize(packed, reference.GGMLQuantizationType.Q5_1))


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("alignment", [None, 1, 64, 4096])
def test_what_we_write_is_what_we_read(tmp_path, version, alignment):
    metadata = {"general.architecture": "llama", "a": True, "b": -5, "c": 2**40, "d": -(2**40), "e": 0.25, "f": "text",
                "g": ["one", "", "three" * 100], "h": np.arange(5, dtype="<i4"), "i": np.array([0.5, 2], "<f4"), "j": [1, 2, 3],
                "k": [], "l": [[1, 2], [3]], "m": np.array([True, False])}
    if alignment:
        metadata["general.alignment"] = alignment
    rng = np.random.default_rng(1)
    arrays = {"w": rng.standard_normal((4, 512)).astype(np.float32), "odd": rng.standard_normal((3, 5)).astype(np.float32),
              "v": rng.standard_normal(7).astype(np.float32), "four": rng.standard_normal((2, 3, 4, 5)).astype(np.float32)}
    types = {"w": "q6_k", "odd": "f16", "four": "bf16"}
    gguf_writer.save(tmp_path / "a.gguf", metadata, arrays, types, version)
    source = FileSource(tmp_path / "a.gguf")
    header = asyncio.run(gguf.read_header(source))
    assert header.version == version and header.alignment == (alignment or 32)
    assert {key: plain(value) for key, value in header.metadata.items()} == {k: plain(v) for k, v in metadata.items()}
    assert [(t.name, t.dtype, t.shape) for t in header.tensors] == [
        ("w", "q6_k", (4, 512)), ("odd", "f16", (3, 5)), ("v", "f32", (7,)), ("four", "bf16", (2, 3, 4, 5))]
    for info in header.tensors:
        data = asyncio.run(source.read(info.start, info.end))
        assert info.start % (alignment or 32) == 0
        assert data == quantise(arrays[info.name], info.dtype)


def test_the_reference_package_reads_what_we_write(tmp_path):
    array = np.random.default_rng(2).standard_normal((4, 64)).astype(np.float32)
    gguf_writer.save(tmp_path / "a.gguf", {"general.architecture": "llama", "words": ["a", "bc"], "n": 7, "x": 0.5},
                     {"w": array, "v": array[0]}, "q8_0")
    reader = reference.GGUFReader(tmp_path / "a.gguf")
    assert reader.get_field("words").contents() == ["a", "bc"]
    assert (reader.get_field("n").contents(), reader.get_field("x").contents()) == (7, 0.5)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    np.testing.assert_array_equal(reference.quants.dequantize(tensors["w"].data, tensors["w"].tensor_type),
                                  reference.quants.dequantize(reference.quants.quantize(array, tensors["w"].tensor_type),
                                                              tensors["w"].tensor_type))
    np.testing.assert_array_equal(tensors["v"].data, array[0])


def texts(values, length="<Q"):
    """An array of texts: its bytes."""
    return struct.pack("<I", 8) + struct.pack(length, len(values)) + b"".join(text(v, length) for v in values)


ODD = ["", "a" * 255, "b" * 256, "c" * 70000, "\0", "\0" * 7, "x\0\0\0\0\0\0\0y", "\0" * 20, "\x08\0\0\0\0\0\0\0", "ü", "😀",
       "\n"]


@pytest.mark.parametrize("version", [1, 3])
def test_lists_of_texts_of_any_length(version):
    """Around every odd text ordinary ones, odd ones next to one another, at the beginning and at the end."""
    plain = [f"token{i}" for i in range(40)]
    rng = np.random.default_rng(3)
    lists = [[*plain, odd, *plain] for odd in ODD] + [[odd] * 30 for odd in ODD[:3] + ODD[4:]]
    lists += [[], [""], ["a"], ODD, ODD[::-1]]
    lists += [[(plain + ODD)[i] for i in rng.integers(0, 52, 400)] for _ in range(5)]
    lists += [[chr(i) * 3 for i in range(256)]]  # no byte is free to part texts by
    for values in lists:
        blob = build([("k", 9, texts(values, "<I" if version == 1 else "<Q")), ("after", 4, struct.pack("<I", 77))],
                     version=version)
        metadata = parse(blob).metadata
        assert metadata["k"] == values and metadata["after"] == 77


def test_texts_that_are_not_utf8_are_named():
    values = [b"a%d" % i for i in range(100)]
    values[57] = b"\xff\xfe"
    refused(build([("words", 9, texts(values))]), "element 57 of 'words'", "not UTF-8")


def test_a_large_header_is_read_in_pieces_and_data_is_not():
    """The first look is too small, the second grows; what follows the header is never asked for."""
    words = [f"word number {i}" for i in range(400_000)]
    head = build([("k", 9, texts(words))], [("t", (1 << 20,), 0, 0)])
    source = Counted(head, size=len(head) + (4 << 20))
    header = asyncio.run(gguf.read_header(source))
    assert header.metadata["k"] == words and header.tensors[0].end == source.size
    assert source.reads <= 3 and source.furthest <= 4 * gguf.WINDOW
    small = Counted(build([], [("t", (1 << 30,), 0, 0)]), size=(1 << 32) + 96)
    asyncio.run(gguf.read_header(small))
    assert small.furthest <= gguf.WINDOW


def test_the_fast_walk_is_given_up_where_it_does_not_help(monkeypatch):
    """Empty texts cannot be found by zeros: after a few tries the rest is walked on foot, so that time stays linear."""
    tries = []
    walk = gguf._short_texts
    monkeypatch.setattr(gguf, "_short_texts", lambda *arguments: tries.append(1) or walk(*arguments))
    assert parse(build([("k", 9, texts([""] * 5000))])).metadata["k"] == [""] * 5000
    assert len(tries) <= gguf.SLOW_STEPS + 1


# --- what must be refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("blob, words", [
    (b"", "an empty file"),
    (b"<!doctype html><html>", "a web page"),
    (b"lmgg" + bytes(60), "an old ggml file"),
    (b"tjgg" + bytes(60), "an old ggml (ggjt) file"),
    (b"fmgg" + bytes(60), "an old ggml (ggmf) file"),
    (b"PK\x03\x04" + bytes(60), "a zip archive"),
    (b'\x40\0\0\0\0\0\0\0{"a":', "a safetensors file"),
    (b"GGUF", "cut short"),
    (b"GGUF\x03\0\0\0", "the number of tensors"),
])
def test_what_is_no_gguf_file_is_said_in_words(blob, words):
    refused(blob, "x.gguf", words)


def test_versions_and_byte_order():
    refused(b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4 is not known; known are 1, 2, 3")
    refused(b"GGUF" + struct.pack("<IQQ", 0, 0, 0), "version 0 is not known")
    refused(b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian", "version 3")


@pytest.mark.parametrize("count", [5, 2**31, 2**53 + 1, 2**63, 2**64 - 1])
def test_counts_beyond_the_file(count):
    """Numbers of things are held against the file's size before anything is made; 64 bits are read without loss."""
    refused(build(n_tensors=count), f"{count} tensors")
    refused(build(n_entries=count), f"{count} metadata entries")
    refused(build([(b"k", 9, struct.pack("<IQ", 8, count))]), f"'k' has {count} elements")
    refused(build([(b"k", 9, struct.pack("<IQ", 6, count))]), f"'k' has {count} elements")
    refused(build([(b"k", 8, struct.pack("<Q", count | 64))]), f"'k' at byte 45 would end at byte {45 + (count | 64)}")


def test_one_key_of_no_length_or_two_alike():
    refused(build([("", 4, bytes(4))]), "key 0 of the metadata, at byte 24, is empty")
    refused(build([("a", 4, bytes(4)), ("a", 4, bytes(4))]), "'a' stands twice")


def test_types_of_metadata_that_are_not_known():
    refused(build([("a", 13, bytes(8))]), "'a'", "type 13")
    refused(build([("a", 9, struct.pack("<IQ", 13, 1) + bytes(64))]), "element 0 of 'a'", "type 13")
    refused(build([("a", 7, b"\2")]), "'a'", "must be 0 or 1, got 2")
    refused(build([("a", 9, struct.pack("<IQ", 7, 2) + b"\1\7")]), "'a'", "0 and 1 only, got 7")
    nested = struct.pack("<IQ", 9, 1) * 40
    refused(build([("a", 9, nested + struct.pack("<IQ", 4, 0))]), "nests arrays deeper than 4")


@pytest.mark.parametrize("value", [0, 3, 24, 2**31])
def test_alignments_that_cannot_be(value):
    refused(build([("general.alignment", 4, struct.pack("<I", value))]), "general.alignment must be a power of two", value)


def test_tensors_of_no_size_or_more_than_there_is():
    refused(build([], [("t", (0, 4), 0, 0)]), "tensor 't' at byte 24", "[4, 0]")
    refused(build([], [("t", (2**32, 2**32), 0, 0)]), "2^63")
    refused(build([], [("t", (2**62, 2), 0, 0)]), "2^63")
    refused(build([], [("t", (2**40,), 0, 0)], bytes(64)), "'t' (f32, [1099511627776])", "cut short")
    refused(build([], [("t", (1, 1, 1, 1, 1), 0, 0)]), "at most 4 dimensions", 5)
    refused(build([], [("", (1,), 0, 0)], bytes(4)), "must have a name")
    refused(build([], [("t", (4,), 0, 0), ("t", (4,), 0, 32)], bytes(64)), "'t' stands twice")


def test_tensors_outside_the_file_or_over_one_another():
    good = build([], [("a", (8,), 0, 0), ("b", (8,), 0, 32)], bytes(64))
    assert len(parse(good).tensors) == 2
    refused(good[:-1], "tensor 'b'", len(good), len(good) - 1, "cut short")
    refused(build([], [("a", (8,), 0, 2**40)], bytes(64)), "tensor 'a'", 2**40 + 96)
    refused(build([], [("a", (8,), 0, 8)], bytes(64)), "tensor 'a' lies at offset 8", "multiple of 32")
    refused(build([], [("a", (16,), 0, 0), ("b", (8,), 0, 32)], bytes(64)), "'a' and 'b' overlap")


def test_types_of_tensors_that_are_not_read():
    """BR-20: refused at once, by name where it has one, never taken for float32."""
    refused(build([], [("t", (256,), 20, 0)], bytes(1024)), "tensor 't' is of type IQ4_NL (20)", "Q4_0", "Q6_K", "BF16")
    refused(build([], [("t", (256,), 99, 0)], bytes(1024)), "tensor 't' is of type unknown (99)")
    refused(build([], [("t", (33,), 2, 0)], bytes(1024)), "rows of 33 numbers, q4_0 packs 32")
    refused(build([], [("t", (128, 2), 14, 0)], bytes(1024)), "rows of 128 numbers, q6_k packs 256")


def test_every_cut_of_a_small_file_is_refused(tmp_path):
    gguf_writer.save(tmp_path / "a.gguf", {"general.architecture": "llama", "words": ["a", "bc"] * 8, "n": np.arange(4.0)},
                     {"w": np.ones((2, 32), np.float32), "v": np.ones(8, np.float32)}, "q4_0")
    whole = (tmp_path / "a.gguf").read_bytes()
    assert len(parse(whole).tensors) == 2
    for end in range(len(whole)):
        refused(whole[:end], "x.gguf")


def test_what_cannot_be_written_is_refused():
    with pytest.raises(WeightsError, match="'k': GGUF cannot hold dict"):
        gguf_writer.header({"k": {}}, [])
    with pytest.raises(WeightsError, match="'k': GGUF cannot hold list"):
        gguf_writer.header({"k": [1, "a"]}, [])
    with pytest.raises(WeightsError, match=r"'t' \(bool, \[4\]\) cannot be in a GGUF file"):
        gguf_writer.header({}, [("t", "bool", (4,))])
    with pytest.raises(WeightsError, match="none of them 0"):
        gguf_writer.header({}, [("t", "f32", (4, 0))])
