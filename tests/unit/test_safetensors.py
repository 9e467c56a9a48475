"""safetensors: what the reference package writes and reads, and what hostile files must not do (BR-22..25, BR-50)."""

import asyncio
import json
import math
import struct

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from candlewick.dtypes import DTYPES
from candlewick.weights.safetensors import MAX_HEADER_BYTES, decode, read_header, save
from candlewick.weights.source import FileSource, MemorySource, WeightsError, looks_like, parse_json


def build(header, data=b"", *, length=None):
    """Bytes of a file with this header (a dict, or raw bytes) and data, with a header length that may lie."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def load(blob):
    """Bytes -> {name: array}, through the header and ranges as a model would."""

    async def go():
        source = MemorySource(blob, "x.safetensors")
        infos, _ = await read_header(source)
        return {info.name: decode(info, await source.read(info.start, info.end)) for info in infos}

    return asyncio.run(go())


def refused(blob, *words):
    with pytest.raises(WeightsError) as caught:
        load(blob)
    for word in words:
        assert str(word) in str(caught.value)


# --- what must load ---------------------------------------------------------------------------------------------


def test_reads_what_the_reference_package_writes():
    rng = np.random.default_rng(0)
    arrays = {
        "a.weight": rng.standard_normal((3, 5)).astype(np.float32),
        "b": rng.standard_normal(7).astype(np.float16),
        "c": rng.standard_normal((2, 2, 2)),
        "d": rng.integers(-9, 9, (4,), np.int64),
        "e": rng.integers(-9, 9, (3, 1), np.int32),
        "f": rng.integers(-9, 9, (5,), np.int16),
        "g": rng.integers(-9, 9, (3,), np.int8),
        "h": rng.integers(0, 200, (3,), np.uint8),
        "i": np.array([True, False, True]),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }
    got = load(safetensors.numpy.save(arrays, {"format": "np"}))
    assert got.keys() == arrays.keys()
    for name, array in arrays.items():
        assert got[name].dtype == array.dtype and np.array_equal(got[name], array)


def test_the_reference_package_reads_what_we_write(tmp_path):
    arrays = {
        "w": np.arange(6, dtype=np.float16).reshape(2, 3),
        "odd": np.arange(3, dtype=np.uint8),
        "flags": np.array([[True], [False]]),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "big endian": np.arange(3, dtype=">i4"),
        "none": np.zeros((3, 0), np.float64),
    }
    save(tmp_path / "x.safetensors", arrays, {"made": "here"})
    got = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    assert got.keys() == arrays.keys()
    for name, array in arrays.items():
        assert np.array_equal(got[name], array)
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
    _, metadata = asyncio.run(read_header(FileSource(tmp_path / "x.safetensors")))
    assert metadata == {"made": "here"}


def test_saving_a_type_the_format_lacks_is_refused(tmp_path):
    with pytest.raises(WeightsError, match=r"'z'.*complex64"):
        save(tmp_path / "x.safetensors", {"z": np.zeros(1, np.complex64)})
    assert not list(tmp_path.iterdir())


def test_unordered_gapless_header_loads():  # BR-22
    data = np.arange(4, dtype="<f4").tobytes()
    got = load(build({"late": entry("F32", [2], 8, 16), "early": entry("F32", [2], 0, 8)}, data))
    assert got["early"].tolist() == [0, 1] and got["late"].tolist() == [2, 3]


def test_zero_size_tensors_may_stand_at_any_seam():  # BR-22
    header = {"a": entry("F32", [0], 0, 0), "b": entry("U8", [2], 0, 2), "c": entry("I64", [3, 0], 2, 2)}
    got = load(build(header, b"\1\2"))
    assert got["a"].shape == (0,) and got["b"].tolist() == [1, 2] and got["c"].shape == (3, 0)


@pytest.mark.parametrize("padding", range(8))
def test_misaligned_data_loads_with_right_values(padding):  # BR-24
    header = {"odd": entry("U8", [3], 0, 3), "f": entry("F32", [2], 3, 11), "d": entry("F64", [1], 11, 19)}
    text = json.dumps(header).encode() + b" " * padding
    got = load(build(text, b"\7\10\11" + struct.pack("<ffd", 1.5, -2.0, 0.1)))
    assert got["odd"].tolist() == [7, 8, 9]
    assert got["f"].tolist() == [1.5, -2.0]
    assert got["d"].tolist() == [0.1]


def test_bfloat16_widens_exactly():  # BR-25
    bits = np.array([0x3F80, 0xC020, 0x7FC1, 0x7F80, 0xFF80, 0x0001, 0x8000], "<u2")
    got = load(build({"x": entry("BF16", [7], 0, 14)}, bits.tobytes()))["x"]
    assert got.dtype == np.float32
    assert got[[0, 1, 3, 4]].tolist() == [1.0, -2.5, math.inf, -math.inf]
    assert math.isnan(got[2]) and got[5] == 2.0**-133 and math.copysign(1, got[6]) == -1
    assert np.array_equal(got.view(np.uint32) >> 16, bits)


def test_every_dtype_of_the_table_loads():
    for dtype in (d for d in DTYPES.values() if d.safetensors):
        got = load(build({"x": entry(dtype.safetensors, [2], 0, 2 * dtype.bytes)}, bytes(2 * dtype.bytes)))["x"]
        assert got.shape == (2,) and not got.any()


# --- what must be refused ---------------------------------------------------------------------------------------


def test_overlap_is_refused():  # BR-22
    refused(build({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)), "overlap", "'a'", "'b'")


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({"a": entry("U8", [4], 4, 8)}, 8),  # before the first
        ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 8, 12)}, 12),  # between
        ({"a": entry("U8", [4], 0, 4)}, 8),  # after the last
        ({}, 4),
    ],
)
def test_holes_are_refused(header, size):  # BR-22
    refused(build(header, bytes(size)), "belong to no tensor")


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 1000, MAX_HEADER_BYTES + 1, 0, 1])
def test_header_length_is_bounded_before_anything_is_read(length):  # BR-23
    refused(build({}, b"", length=length), "x.safetensors", length)


@pytest.mark.parametrize("size", range(8))
def test_file_under_8_bytes(size):  # BR-23
    refused(bytes(size), "at least 8 bytes", size)


@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [4]},
        {"data_offsets": [0, 2, 4]},
        {"data_offsets": [4, 0]},
        {"data_offsets": [-4, 0]},
        {"data_offsets": [0, 4.0]},
        {"data_offsets": [0, 2**70]},
        {"data_offsets": "04"},
        {"data_offsets": None},
        {"shape": [-1]},
        {"shape": [True]},
        {"shape": [2]},
        {"shape": [2**62, 2**62]},
        {"shape": [0, 2**62], "data_offsets": [0, 0]},
        {"shape": [1] * 33},
        {"shape": 1},
        {"dtype": "F31"},
        {"dtype": ["F32"]},
        {"extra": 1},
    ],
)
def test_bad_entries_name_their_tensor(change):  # BR-23, BR-25
    refused(build({"my.weight": entry("F32", [1], 0, 4) | change}, bytes(4)), "'my.weight'")


def test_unknown_dtype_names_tensor_dtype_and_choices():  # BR-25
    refused(build({"w": entry("F8_E4M3", [4], 0, 4)}, bytes(4)), "'w'", "F8_E4M3", "BF16")


def test_truncated_by_one_byte():
    blob = build({"w": entry("F32", [2], 0, 8)}, bytes(8))
    refused(blob[:-1], "'w'", "cut short")
    refused(blob + b"\0", "belong to no tensor")


def test_the_same_name_twice():
    text = b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    refused(build(text, b"\0"), "'w'", "twice")


@pytest.mark.parametrize(
    "text", [b"[]", b"null", b" {}", b'{"a":', b"{}{}", b'{"a":NaN}', b'{"\xff":1}', b'{"a":1' + b"0" * 9999 + b"}"]
)
def test_header_that_is_not_a_json_object(text):
    refused(build(text), "x.safetensors")


@pytest.mark.parametrize("text", [b"[" * 10**6, b'{"a":' * 10**5 + b"1" + b"}" * 10**5, b'{"a":{"b":[[[[0]]]]}}'])
def test_deeply_nested_header_is_refused_without_recursion(text):  # BR-50
    refused(build(text if text[:1] == b"{" else b'{"a":' + text), "deeper than")


def test_metadata_must_map_names_to_texts():
    refused(build({"__metadata__": {"a": 1}}), "__metadata__")


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"<!doctype html><title>404</title>" + b" " * 99, "a web page"),
        (b"", "at least 8 bytes"),
        (b"GGUF\3\0\0\0" + bytes(99), "a GGUF file"),
        (b"PK\3\4" + bytes(99), "a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    ],
)
def test_message_says_what_the_file_looks_like(blob, words):  # BR-52
    refused(blob, words)


def test_looks_like_knows_our_own_kind():
    assert looks_like(build({"w": entry("U8", [1], 0, 1)}, b"\0")) == "a safetensors file"
    assert looks_like(b'{"a": 1}') == "a JSON text"


# --- whatever comes: right values or a WeightsError ---------------------------------------------------------------

GOOD = build(
    {
        "__metadata__": {"k": "v"},
        "a": entry("F32", [2, 2], 0, 16),
        "b": entry("BF16", [3], 16, 22),
        "c": entry("U8", [0], 22, 22),
    },
    bytes(range(22)),
)


def survives(blob):
    try:
        load(blob)
    except WeightsError as error:
        assert len(str(error)) < 2000


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6), st.integers(0, len(GOOD)))
def test_mutated_and_truncated_files(changes, length):
    blob = bytearray(GOOD)
    for position, value in changes:
        blob[position] = value
    survives(bytes(blob[:length]))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(blob):
    survives(blob)
    survives(build(blob))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["F32", "U8"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "w"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(max_size=5) | st.just("__metadata__"), _JSON, max_size=4), st.binary(max_size=40))
def test_random_headers(header, data):
    survives(build(header, data))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted({"f32", "f16", "i64", "u8", "bool", "f64"})), st.lists(st.integers(0, 3), max_size=3)
        ),
        max_size=6,
    ),
    st.randoms(),
)
def test_round_trip(specs, random):
    import tempfile

    arrays = {}
    for i, (dtype, shape) in enumerate(specs):
        raw = bytes(random.randrange(2) for _ in range(math.prod(shape) * DTYPES[dtype].bytes))
        arrays[f"t{i}"] = (
            np.frombuffer(raw, DTYPES[dtype].numpy).reshape(shape) if raw else np.zeros(shape, DTYPES[dtype].numpy)
        )
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        save(file.name, arrays)
        with open(file.name, "rb") as written:
            got = load(written.read())
    assert got.keys() == arrays.keys()
    for name, array in arrays.items():
        assert got[name].dtype == array.dtype and got[name].tobytes() == array.tobytes()


@settings(max_examples=300, deadline=None)
@given(_JSON, st.integers(1, 6))
def test_parse_json_depth_rule(value, depth):
    def nesting(v):
        if isinstance(v, dict):
            return 1 + max(map(nesting, v.values()), default=0)
        return 1 + max(map(nesting, v), default=0) if isinstance(v, list) else 0

    text = json.dumps(value).encode()
    odd = b"NaN" in text or b"Infinity" in text
    try:
        got = parse_json(text, "x", depth)
        assert nesting(value) <= depth and got == value
    except WeightsError as error:
        assert odd or nesting(value) > depth, error
