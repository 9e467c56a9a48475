"""Where bytes come from: a file, memory, or (in the page, see worker.py) a download or a picked file."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class WeightsError(ValueError):
    """A file or a set of tensors is not what the loader needs: what was wanted, what came, what to do."""


@dataclass(frozen=True)
class Origin:
    """Where a configuration was read, so that errors name what a person has: the file, and its own names of the sizes."""

    file: str = "config.json"
    names: Mapping[str, str] = field(default_factory=dict)

    def key(self, ours: str) -> str:
        """The file's name for a key of config.json."""
        return self.names.get(ours, ours)


CONFIG_JSON = Origin()


class ByteSource(Protocol):
    """A named run of `size` bytes that can be read piece by piece."""

    name: str
    size: int

    async def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end). Raises WeightsError if the source does not hold them all."""
        ...


def check_range(name: str, size: int, start: int, end: int) -> None:
    """Raise WeightsError unless 0 <= start <= end <= size."""
    if not 0 <= start <= end <= size:
        raise WeightsError(f"{name}: bytes {start} to {end} were asked for, but the file has {size} bytes")


class FileSource:
    """A file on disk. The size is taken when the object is made; a file that shrinks afterwards is an error."""

    def __init__(self, path: str | Path, name: str | None = None):
        self.path = Path(path)
        self.name = name or self.path.name
        self.size = self.path.stat().st_size

    async def read(self, start: int, end: int) -> bytes:
        check_range(self.name, self.size, start, end)
        with self.path.open("rb") as file:
            file.seek(start)
            data = file.read(end - start)
        if len(data) != end - start:
            raise WeightsError(f"{self.name}: wanted {end - start} bytes at {start}, got {len(data)}; it got shorter")
        return data


class MemorySource:
    """Bytes that are in memory already."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "memory"):
        self.data = memoryview(data).cast("B")
        self.name = name
        self.size = len(self.data)

    async def read(self, start: int, end: int) -> bytes:
        check_range(self.name, self.size, start, end)
        return bytes(self.data[start:end])


class MadeSource:
    """Bytes that no file holds as they are: made when they are first asked for, let go when the last of them was read."""

    def __init__(self, name: str, size: int, make: Callable[[], Awaitable[Any]]):
        """make() -> a C-contiguous array or bytes, of `size` bytes."""
        self.name, self.size, self._make = name, size, make
        self._data: memoryview | None = None

    async def read(self, start: int, end: int) -> bytes:
        check_range(self.name, self.size, start, end)
        if start == end:
            return b""
        data = self._data
        if data is None:
            data = self._data = memoryview(await self._make()).cast("B")
            if data.nbytes != self.size:
                raise WeightsError(f"{self.name}: wanted {self.size} bytes, {data.nbytes} were made")
        if end == self.size:
            self._data = None
        return bytes(data[start:end])


# First bytes of what people mistake for weights. Longest match is not needed: no entry begins another.
_LOOKS_LIKE = (
    (b"GGUF", "a GGUF file"),
    (b"lmgg", "an old ggml file"),
    (b"tjgg", "an old ggml (ggjt) file"),
    (b"fmgg", "an old ggml (ggmf) file"),
    (b"algg", "an old ggml (ggla) file"),
    (b"PK\x03\x04", "a zip archive (a PyTorch file, an npz or a wheel)"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x93NUMPY", "a NumPy .npy file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"RIFF", "a sound or a film (RIFF)"),
    (b"\x89PNG", "a picture (PNG)"),
    (b"\xff\xd8\xff", "a picture (JPEG)"),
    (b"%PDF", "a PDF document"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file it points to"),
)


def looks_like(head: bytes) -> str:
    """What a file beginning with `head` looks like, in words that fit after 'looks like'."""
    if not head:
        return "an empty file"
    for magic, words in _LOOKS_LIKE:
        if head.startswith(magic):
            return words
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "a web page"
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**40:
        return "a safetensors file"
    if text.startswith((b"{", b"[")):
        return "a JSON text"
    return "nothing known (first bytes " + head[:8].hex(" ") + ")"


def parse_json(data: bytes, name: str, max_depth: int = 64) -> Any:
    """JSON text -> Python values, for bytes that nobody vouches for.

    Refuses what Python's parser lets through or dies of: nesting deeper than `max_depth` (a stack overflow kills the
    interpreter in a browser), the same key twice in one object, NaN and Infinity. Raises WeightsError.
    """
    if _nested_deeper(data, max_depth):
        raise WeightsError(f"{name}: not usable JSON: brackets do not pair up or nest deeper than {max_depth} levels")

    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            seen: set[str] = set()
            twin = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise WeightsError(f"{name}: the key {twin!r} stands twice in one object")
        return out

    def no_constant(word: str) -> None:
        raise WeightsError(f"{name}: {word} is not a JSON number")

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=no_twins, parse_constant=no_constant)
    except WeightsError:
        raise
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, numbers of too many digits
        raise WeightsError(f"{name}: not a JSON text ({error}); it looks like {looks_like(data[:64])}") from error


def parse_large_json(data: bytes, name: str) -> Any:
    """As parse_json, at the price of json.loads alone: for large files of many keys, where the last of twins may win.

    Brackets that are fewer than SAFE_DEPTH in all cannot nest deeper; only more of them are looked at one by one.
    """
    if data.count(b"{") + data.count(b"[") > SAFE_DEPTH and _nested_deeper(data, 64):
        raise WeightsError(f"{name}: not usable JSON: brackets do not pair up or nest deeper than 64 levels")
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{name}: not a JSON text ({error}); it looks like {looks_like(data[:64])}") from error


SAFE_DEPTH = 512


def _nested_deeper(data: bytes, max_depth: int) -> bool:
    """Whether brackets outside strings nest deeper than max_depth or do not pair up; passes in C, no recursion."""
    data = re.sub(rb"\\.", b"", data, flags=re.DOTALL) if b"\\" in data else data
    data = data.translate(None, bytes(set(range(256)) - set(b'"[]{}')))
    data = re.sub(rb'"[^"]*"', b"", data)
    for _ in range(max_depth):
        if not data:
            return False
        data = re.sub(rb"\[\]|\{\}", b"", data)  # the innermost level, and no more
    return bool(data)
