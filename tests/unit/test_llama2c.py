"""llama2.c's files: all three versions against weights written by hand in the order of its export.py (BR-26)."""

import asyncio
import struct
from dataclasses import replace

import numpy as np
import pytest

from candlewick.weights import llama2c
from candlewick.weights.llama2c import Sizes
from candlewick.weights.safetensors import decode
from candlewick.weights.source import FileSource, MemorySource, WeightsError

SIZES = Sizes(dim=8, hidden_dim=12, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=10, max_seq_len=6)
MAGIC = 0x616B3432
EXPORT_ORDER = {  # export.py, legacy_export and version1_export: parts of layers, tensors of their own
    0: ["tok_embeddings", "layers.attention_norm", "layers.attention.wq", "layers.attention.wk", "layers.attention.wv",
        "layers.attention.wo", "layers.ffn_norm", "layers.feed_forward.w1", "layers.feed_forward.w2", "layers.feed_forward.w3",
        "norm", "rotary", "output"],
    1: ["layers.attention_norm", "layers.ffn_norm", "norm", "tok_embeddings", "layers.attention.wq", "layers.attention.wk",
        "layers.attention.wv", "layers.attention.wo", "layers.feed_forward.w1", "layers.feed_forward.w2",
        "layers.feed_forward.w3", "output"],
}


def weights(sizes, seed=0):
    """Random tensors by llama2.c's names, shapes written out."""
    rng = np.random.default_rng(seed)
    dim, hidden, kv = sizes.dim, sizes.hidden_dim, sizes.dim // sizes.n_heads * sizes.n_kv_heads
    shapes = {"tok_embeddings": (sizes.vocab_size, dim), "norm": (dim,)}
    if not sizes.shared:
        shapes["output"] = (sizes.vocab_size, dim)
    for i in range(sizes.n_layers):
        shapes |= {f"layers.{i}.{part}": shape for part, shape in {
            "attention_norm": (dim,), "ffn_norm": (dim,), "attention.wq": (dim, dim), "attention.wk": (kv, dim),
            "attention.wv": (kv, dim), "attention.wo": (dim, dim), "feed_forward.w1": (hidden, dim),
            "feed_forward.w2": (dim, hidden), "feed_forward.w3": (hidden, dim)}.items()}
    return {name + ".weight": rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def in_order(sizes, tensors):
    """Names of the file's tensors, as export.py writes them."""
    for name in EXPORT_ORDER[min(sizes.version, 1)]:
        if name.startswith("layers."):
            yield from (f"layers.{i}.{name[7:]}.weight" for i in range(sizes.n_layers))
        elif name == "rotary" or name + ".weight" in tensors:
            yield name if name == "rotary" else name + ".weight"


def export(sizes, tensors):
    """A file as export.py writes it. int8: groups of the flat tensor, largest number 127."""
    numbers = [getattr(sizes, name) for name in
               ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")]
    if sizes.version == 0:
        numbers[5] *= 1 if sizes.shared else -1
        out = struct.pack("<7i", *numbers)
    else:
        out = struct.pack("<Ii7iB", MAGIC, sizes.version, *numbers, sizes.shared)
        out = (out + (struct.pack("<i", sizes.group_size) if sizes.version == 2 else b"")).ljust(256, b"\0")
    for name in in_order(sizes, tensors):
        if name == "rotary":
            out += bytes(range(sizes.dim // sizes.n_heads)) * 4 * sizes.max_seq_len  # tables nobody reads
        elif sizes.version == 2 and tensors[name].ndim == 2:
            groups = tensors[name].reshape(-1, sizes.group_size)
            scale = np.abs(groups).max(axis=1) / np.float32(127)
            out += np.round(groups / scale[:, None]).astype(np.int8).tobytes() + scale.astype(np.float32).tobytes()
        else:
            out += tensors[name].tobytes()
    return out


def header(blob):
    return asyncio.run(llama2c.read_header(MemorySource(blob, "x.bin")))


def load(blob):
    source = MemorySource(blob, "x.bin")

    async def go():
        found = await llama2c.read_header(source)
        files = {"x.bin": source, **found.sources}
        return {name: decode(info, await files[info.file].read(info.start, info.end)) for name, info in found.tensors.items()}

    return asyncio.run(go())


def refused(blob, *words):
    with pytest.raises(WeightsError) as caught:
        header(blob)
    for word in words:
        assert str(word) in str(caught.value)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("shared", [True, False])
def test_float_versions(version, shared):
    """BR-26: the sign of the vocabulary size (0) or a flag (1) says whether the output matrix is a tensor of its own."""
    sizes = replace(SIZES, version=version, shared=shared)
    tensors = weights(sizes)
    blob = export(sizes, tensors)
    assert header(blob).sizes == sizes
    loaded = load(blob)
    assert sorted(loaded) == sorted(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(loaded[name], array)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_int8(shared, group):
    """Matrices come as the float32 numbers that the int8 stand for; groups of 8 straddle the rows of w2, 12 wide."""
    sizes = replace(SIZES, version=2, shared=shared, group_size=group)
    tensors = weights(sizes)
    loaded = load(export(sizes, tensors))
    assert sorted(loaded) == sorted(tensors)
    for name, array in tensors.items():
        wanted = array
        if array.ndim == 2:
            groups = array.reshape(-1, group)
            scale = np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)
            wanted = (np.round(groups / scale).astype(np.int8) * scale).reshape(array.shape)
        np.testing.assert_array_equal(loaded[name], wanted)


def test_int8_in_pieces_of_any_size():
    sizes = replace(SIZES, version=2, group_size=4)
    blob = export(sizes, weights(sizes))
    found = header(blob)
    info = found.tensors["layers.1.feed_forward.w2.weight"]
    source = found.sources[info.file]
    whole = asyncio.run(source.read(0, source.size))
    for start in range(0, source.size, 7):
        for end in (start, start + 1, start + 5, start + 40, source.size):
            end = min(end, source.size)
            assert asyncio.run(source.read(start, end)) == whole[start:end]
    with pytest.raises(WeightsError, match="were asked for"):
        asyncio.run(source.read(0, source.size + 1))


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("shared", [True, False])
def test_what_we_write_is_what_export_writes(version, shared):
    sizes = replace(SIZES, version=version, shared=shared, group_size=4 if version == 2 else 0)
    tensors = weights(sizes)
    ours = llama2c.header(sizes)
    for name, shape in llama2c.order(sizes):
        if name == "rotary":
            assert llama2c.rotary(sizes).shape == shape
            ours += bytes(range(2)) * 4 * sizes.max_seq_len
        else:
            assert tensors[name].shape == shape
            ours += llama2c.encode(sizes, tensors[name])
    assert ours == export(sizes, tensors) and len(ours) == llama2c.total_bytes(sizes)


def test_rotary_tables_are_those_of_the_published_file(shared):
    """stories260K.bin keeps cosines and sines of base 10000, rounded once more by its makers."""
    path = shared / "data" / "llama2c" / "stories260K.bin"
    found = asyncio.run(llama2c.read_header(FileSource(path)))
    tables = llama2c.rotary(found.sizes)
    theirs = np.frombuffer(path.read_bytes()[-tables.nbytes :], "<f4").reshape(tables.shape)
    np.testing.assert_allclose(tables, theirs, atol=1e-4)


def test_published_files(shared):
    folder = shared / "data" / "llama2c"
    found = asyncio.run(llama2c.read_header(FileSource(folder / "stories260K.bin")))
    assert found.sizes == Sizes(64, 172, 5, 8, 4, 512, 512)
    assert asyncio.run(llama2c.read_header(FileSource(folder / "dreams260K.bin"))).sizes.n_kv_heads == 4
    with pytest.raises(WeightsError, match=r"tok512.bin: not a llama2.c file: its header would say hidden_dim 0"):
        asyncio.run(llama2c.read_header(FileSource(folder / "tok512.bin")))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_size_must_be_what_the_header_says(version):
    sizes = replace(SIZES, version=version, group_size=4 if version == 2 else 0)
    blob = export(sizes, weights(sizes))
    for cut in (1, 4, len(blob) // 2):
        refused(blob[:-cut], "x.bin", f"takes {len(blob)} bytes", len(blob) - cut, "cut short")
    refused(blob + bytes(4), f"takes {len(blob)} bytes", len(blob) + 4, "too long")
    for end in (0, 1, 27, 28):
        refused(blob[:end], "x.bin")


@pytest.mark.parametrize("changes, words", [
    ({"dim": 0}, "dim 0"), ({"dim": -8}, "dim -8"), ({"dim": 2**31 - 1}, "dim 2147483647"),
    ({"hidden_dim": -1}, "hidden_dim -1"), ({"n_layers": 2**30}, "n_layers"), ({"n_heads": 3}, "8 in 3 heads"),
    ({"n_kv_heads": 3}, "in 4 heads of 3"), ({"n_heads": 8, "n_kv_heads": 8}, "8 in 8 heads"),
    ({"vocab_size": 0}, "vocab_size 0"), ({"max_seq_len": 0}, "max_seq_len 0"),
])
def test_headers_that_cannot_be(changes, words):
    for version in (0, 1):
        blob = export(replace(SIZES, version=version), weights(SIZES))
        numbers = {name: getattr(SIZES, name) for name in llama2c.NAMES} | changes
        at = 8 if version else 0
        blob = blob[:at] + struct.pack("<7i", *numbers.values()) + blob[at + 28 :]
        refused(blob, "not a llama2.c file", words)


def test_versions_flags_and_groups_that_cannot_be():
    one = export(replace(SIZES, version=1), weights(SIZES))
    refused(one[:4] + struct.pack("<i", 3) + one[8:], "version 3 is not known; known are 0, 1 and 2")
    refused(one[:36] + b"\x02" + one[37:], "shared_classifier 2")
    refused(one[:200], "the header has 256 bytes")
    two = export(replace(SIZES, version=2, group_size=4), weights(SIZES))
    for group in (0, -4, 3, 2**30):
        refused(two[:37] + struct.pack("<i", group) + two[41:], f"group_size {group}")
    refused(struct.pack("<7i", 8, 12, 2, 4, 2, -(2**31), 6), "vocab_size 2147483648")


def test_other_files_are_named():
    refused(b"<!doctype html>" + bytes(100), "a web page")
    refused(b"", "an empty file")
