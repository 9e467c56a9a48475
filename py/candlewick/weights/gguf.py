"""GGUF: a header of typed metadata and tensor entries, then the data of all tensors at aligned places.

Format: github.com/ggml-org/ggml, `docs/gguf.md`; versions 1 to 3, little endian. The header is read piece by piece until it
ends, never the data. Every count and length is checked against the file's size before anything is allocated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from candlewick.dtypes import DTYPES, FROM_GGML
from candlewick.weights.safetensors import TensorInfo
from candlewick.weights.source import ByteSource, WeightsError, looks_like

MAGIC = b"GGUF"
VERSIONS = (1, 2, 3)
ALIGNMENT = 32  # of tensors, where the file does not say
WINDOW = 4 << 20  # bytes of the first look; most headers fit
MAX_HEADER = 128 << 20  # bytes; the largest vocabularies in use make headers of some 20 MB
MAX_TEXTS = 1 << 22  # texts of one array; the largest lists of merges in use have half a million
MAX_DIMS = 4
MAX_DEPTH = 4  # of arrays in arrays
SLOW_STEPS = 64  # texts that may interrupt a fast walk before it is given up

BOOL, TEXT, ARRAY = 7, 8, 9
NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
FORMS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q", 12: "<d"}
SIZES = {kind: struct.calcsize(form) for kind, form in FORMS.items()} | {BOOL: 1}
OTHERS = {  # types that exist and are not decoded here: number -> name
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip

T = TypeVar("T")
_struct = cache(struct.Struct)


@dataclass(frozen=True)
class Gguf:
    """A header. Metadata values are bool, int, float, str, lists (of texts or lists) and NumPy arrays (of numbers)."""

    version: int
    metadata: dict[str, Any]
    tensors: list[TensorInfo]  # in the file's order; shapes as everywhere here: the last axis is the one that lies together
    alignment: int
    data_start: int


class _Short(Exception):
    """The window ends before byte `end`, the file does not."""

    def __init__(self, end: int):
        self.end = end


class _Cursor:
    """A place in the header's bytes read so far."""

    def __init__(self, name: str, size: int, data: bytes):
        self.name, self.size, self.data = name, size, data
        self.at = 0
        self.wide = True  # lengths of 64 bits; of 32 in version 1

    def need(self, count: int, what: str) -> int:
        """Check that `count` more bytes are there -> where they end."""
        end = self.at + count
        if end > self.size:
            raise WeightsError(f"{self.name}: {what} at byte {self.at} would end at byte {end}, the file ends at {self.size}; "
                               "it is cut short or damaged, fetch it again")
        if end > MAX_HEADER:
            raise WeightsError(f"{self.name}: {what} at byte {self.at} makes the header longer than {MAX_HEADER} bytes; "
                               "it is damaged")
        if end > len(self.data):
            raise _Short(end)
        return end

    def numbers(self, form: str, what: str) -> tuple[Any, ...]:
        packed = _struct(form)
        at, self.at = self.at, self.need(packed.size, what)
        return packed.unpack_from(self.data, at)

    def number(self, form: str, what: str) -> Any:
        return self.numbers(form, what)[0]

    def length(self, what: str) -> int:
        return self.number("<Q" if self.wide else "<I", what)

    def text(self, what: str) -> str:
        count = self.length(f"the length of {what}")
        at, self.at = self.at, self.need(count, what)
        return self.decoded(at, self.at, what)

    def decoded(self, at: int, end: int, what: str) -> str:
        try:
            return self.data[at:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise WeightsError(f"{self.name}: {what} at byte {at} is not UTF-8 text ({error.reason}); the file is "
                               "damaged") from error


async def read_header(source: ByteSource) -> Gguf:
    """Header of a GGUF file. Raises WeightsError naming field and byte for anything the format does not allow."""
    cursor = _Cursor(source.name, source.size, await source.read(0, min(source.size, WINDOW)))

    async def step(parse: Callable[[], T]) -> T:
        """parse(), with more of the file where the window was too small."""
        while True:
            mark = cursor.at
            try:
                return parse()
            except _Short as short:
                cursor.at = mark
                have = len(cursor.data)
                cursor.data += await source.read(have, min(source.size, max(short.end, 4 * have)))

    version = await step(lambda: _version(cursor))
    n_tensors, n_entries = await step(lambda: (_count(cursor, "tensors", 24), _count(cursor, "metadata entries", 12)))
    metadata: dict[str, Any] = {}
    for i in range(n_entries):
        key, value = await step(lambda: _entry(cursor, i))
        if key in metadata:
            raise WeightsError(f"{source.name}: the metadata key {key!r} stands twice")
        metadata[key] = value
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise WeightsError(f"{source.name}: general.alignment must be a power of two, got {alignment!r}")
    rows: dict[str, _Row] = {}
    for i in range(n_tensors):
        row = await step(lambda: _tensor(cursor, i))
        if row.name in rows:
            raise WeightsError(f"{source.name}: the tensor {row.name!r} stands twice")
        rows[row.name] = row
    start = -(-cursor.at // alignment) * alignment
    tensors = [_placed(row, source, start, alignment) for row in rows.values()]
    _check_apart(tensors, source.name)
    return Gguf(version, metadata, tensors, alignment, start)


def _version(cursor: _Cursor) -> int:
    head = cursor.data[:64]
    if head[:4] != MAGIC:
        raise WeightsError(f"{cursor.name}: wanted a GGUF file, which begins with GGUF; this looks like {looks_like(head)}"
                           + (". Convert it to GGUF first" if b"gg" in head[:4] else ""))
    cursor.at = 4
    version = cursor.number("<I", "the version")
    if version & 0xFFFF == 0 and version:
        raise WeightsError(f"{cursor.name}: a big-endian GGUF file (version {int.from_bytes(head[4:8], 'big')}); only "
                           "little-endian ones are read. Convert it for little-endian machines")
    if version not in VERSIONS:
        raise WeightsError(f"{cursor.name}: GGUF version {version} is not known; known are {', '.join(map(str, VERSIONS))}")
    cursor.wide = version > 1
    return version


def _count(cursor: _Cursor, what: str, least: int) -> int:
    """A number of things that take at least so many bytes each."""
    count = cursor.length(f"the number of {what}")
    if count * (least if cursor.wide else least // 2) > cursor.size - cursor.at:
        raise WeightsError(f"{cursor.name}: {count} {what} (said before byte {cursor.at}) do not fit into its {cursor.size} "
                           "bytes; it is cut short or damaged")
    return count


def _entry(cursor: _Cursor, i: int) -> tuple[str, Any]:
    at = cursor.at
    key = cursor.text(f"key {i} of the metadata")
    if not key:
        raise WeightsError(f"{cursor.name}: key {i} of the metadata, at byte {at}, is empty")
    return key, _value(cursor, cursor.number("<I", f"the type of {key!r}"), repr(key), 0)


def _value(cursor: _Cursor, kind: int, what: str, depth: int) -> Any:
    if kind in FORMS:
        return cursor.number(FORMS[kind], what)
    if kind == BOOL:
        value = cursor.number("<B", what)
        if value > 1:
            raise WeightsError(f"{cursor.name}: {what} before byte {cursor.at} must be 0 or 1, got {value}")
        return bool(value)
    if kind == TEXT:
        return cursor.text(what)
    if kind == ARRAY and depth < MAX_DEPTH:
        return _array(cursor, what, depth)
    if kind == ARRAY:
        raise WeightsError(f"{cursor.name}: {what} nests arrays deeper than {MAX_DEPTH} levels at byte {cursor.at}")
    raise WeightsError(f"{cursor.name}: {what} before byte {cursor.at} has type {kind}; known are 0 to 12")


def _array(cursor: _Cursor, what: str, depth: int) -> Any:
    kind, count = cursor.number("<I", f"the element type of {what}"), cursor.length(f"the length of {what}")
    least = SIZES.get(kind, 8 if cursor.wide else 4)
    if count * least > cursor.size - cursor.at:
        raise WeightsError(f"{cursor.name}: {what} has {count} elements (said before byte {cursor.at}), more than fit into "
                           f"the file's {cursor.size} bytes; it is cut short or damaged")
    if kind in SIZES:
        at, cursor.at = cursor.at, cursor.need(count * SIZES[kind], what)
        array = np.frombuffer(cursor.data, NUMBERS.get(kind, "u1"), count, at)
        if kind == BOOL and array.size and array.max() > 1:
            raise WeightsError(f"{cursor.name}: {what} at byte {at} must hold 0 and 1 only, got {array.max()}")
        return (array != 0) if kind == BOOL else array.copy()  # a copy, so that the window can go
    if count > MAX_TEXTS:
        raise WeightsError(f"{cursor.name}: {what} has {count} elements; at most {MAX_TEXTS} texts or lists are read")
    if kind == TEXT:
        return _texts(cursor, count, what)
    return [_value(cursor, kind, f"element {i} of {what}", depth + 1) for i in range(count)]


# ---- many texts at once -----------------------------------------------------------------------------------------
# A vocabulary is some hundred thousand texts of a few bytes, each behind its length. Nearly all lengths are one byte and
# seven zeros, so that the places of seven zeros are those of the texts, found by NumPy without a loop; each text is then
# checked to be just as long as it says. Where one is not (it is empty, long, or holds zeros itself), it is stepped over on
# foot.


def _texts(cursor: _Cursor, count: int, what: str) -> list[str]:
    out: list[str] = []
    slow = 0
    while len(out) < count:
        found: list[str] = []
        if cursor.wide and slow <= SLOW_STEPS and count - len(out) > 8:
            found = _short_texts(cursor, count - len(out), what, len(out))
            out += found
        if not found:
            out.append(cursor.text(f"element {len(out)} of {what}"))
            slow += 1
    return out


def _short_texts(cursor: _Cursor, count: int, what: str, first: int) -> list[str]:
    """The next texts, as many of `count` as can be found by their seven zeros; the cursor moves behind them."""
    start = cursor.at
    region = np.frombuffer(cursor.data, np.uint8, min(len(cursor.data) - start, 32 * count + 1024), start)
    zero = region == 0
    zero = zero[:-1] & zero[1:]  # two in a row
    zero = zero[:-2] & zero[2:]  # four
    zero = zero[:-3] & zero[3:]  # seven
    places = np.flatnonzero(zero)[:count] - 1  # of each text's length
    if not places.size or places[0] != 0:
        return []
    ends = places + 8 + region[places]
    wrong = np.flatnonzero(ends[:-1] != places[1:])
    if wrong.size:  # the text there is right, what follows it is not where it was looked for
        places = places[: wrong[0] + 1]
    end = int(ends[len(places) - 1])
    cursor.need(end, f"element {first + len(places) - 1} of {what}")
    if end > len(region):
        region = np.frombuffer(cursor.data, np.uint8, end, start)
    cursor.at = start + end
    texts = _unframed(region[:end], places)
    if texts is None:
        stops = np.append(places[1:], end)
        return [cursor.decoded(start + a + 8, start + b, f"element {first + i} of {what}")
                for i, (a, b) in enumerate(zip(places.tolist(), stops.tolist()))]
    return texts


def _unframed(region: np.ndarray, places: np.ndarray) -> list[str] | None:
    """Bytes of texts with eight bytes of length before each, which stand at `places` -> texts; None if not all are UTF-8."""
    drop = np.zeros(len(region), bool)
    drop[places + 1] = True
    drop[1:] |= drop[:-1].copy()  # two in a row
    drop[2:] |= drop[:-2].copy()  # four
    drop[3:] |= drop[:-3].copy()  # seven
    content = region[~drop]
    at = places - 7 * np.arange(len(places))
    content[at] = 0xFF  # in no text
    unused = np.flatnonzero(np.bincount(content, minlength=256)[:128] == 0)
    if not unused.size:
        return None
    content[at] = unused[0]
    try:
        return content.tobytes().decode("utf-8").split(chr(unused[0]))[1:]
    except UnicodeDecodeError:
        return None


# ---- tensors ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


def _tensor(cursor: _Cursor, i: int) -> _Row:
    at = cursor.at
    name = cursor.text(f"the name of tensor {i}")
    where = f"tensor {name!r}"
    n_dims = cursor.number("<I", f"the number of dimensions of {where}")
    if not name or n_dims > MAX_DIMS:
        raise WeightsError(f"{cursor.name}: tensor {i} at byte {at} must have a name and at most {MAX_DIMS} dimensions, got "
                           f"{name!r} with {n_dims}")
    *dims, kind, offset = cursor.numbers(f"<{n_dims}{'Q' if cursor.wide else 'I'}IQ", f"dimensions, type and offset of {where}")
    shape = tuple(dims[::-1])
    if 0 in shape or math.prod(shape) >= 1 << 63:
        raise WeightsError(f"{cursor.name}: {where} at byte {at} has the dimensions {list(shape)}; none may be 0, and all "
                           "together less than 2^63")
    if kind not in FROM_GGML:
        known = ", ".join(DTYPES[dtype].name.upper() for dtype in FROM_GGML.values())
        raise WeightsError(f"{cursor.name}: {where} is of type {OTHERS.get(kind, 'unknown')} ({kind}), which is not read here; "
                           f"known are {known}. Take a file of one of these types")
    row = DTYPES[FROM_GGML[kind]]
    if (shape[-1] if shape else 1) % row.block:
        raise WeightsError(f"{cursor.name}: {where} has rows of {shape[-1] if shape else 1} numbers, {row.name} packs "
                           f"{row.block} together; the file is damaged")
    return _Row(name, row.name, shape, offset)


def _placed(row: _Row, source: ByteSource, data_start: int, alignment: int) -> TensorInfo:
    """A tensor's range in the file, which must hold it."""
    d = DTYPES[row.dtype]
    start = data_start + row.offset
    end = start + math.prod(row.shape) // d.block * d.bytes
    if row.offset % alignment:
        raise WeightsError(f"{source.name}: tensor {row.name!r} lies at offset {row.offset}, which is no multiple of "
                           f"{alignment}; the file is damaged")
    if end > source.size:
        raise WeightsError(f"{source.name}: tensor {row.name!r} ({row.dtype}, {list(row.shape)}) takes the bytes {start} to "
                           f"{end}, the file ends at {source.size}; it is cut short or damaged, fetch it again")
    return TensorInfo(row.name, row.dtype, row.shape, source.name, start, end)


def _check_apart(tensors: list[TensorInfo], file: str) -> None:
    """No two tensors may share bytes."""
    ordered = sorted(tensors, key=lambda t: t.start)
    for a, b in pairwise(ordered):
        if b.start < a.end:
            raise WeightsError(f"{file}: tensors {a.name!r} and {b.name!r} overlap at byte {b.start}; the file is damaged")
