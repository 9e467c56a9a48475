"""manifest.json of a checkpoint folder: what it is, which files with which hashes, and where they came from."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from candlewick.weights.source import WeightsError, parse_json

NAME = "manifest.json"


@dataclass(frozen=True)
class File:
    """One file of the folder: its path inside it, its size, its sha256 in hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What manifest.json says. `sources`: what the files were made from, each a package, version, member and sha256."""

    name: str
    family: str
    licence: str
    files: tuple[File, ...]
    sources: tuple[dict[str, Any], ...] = ()
    note: str = ""
    title: str = ""  # what a page calls it
    about: str = ""  # one sentence for a page
    converter: str = ""  # module that makes the files from the sources: python -m <converter> <folder of sources> <folder>;
    # without one each file is the source with its sha256
    memory_bytes: int = 0  # measured peak of worker and kernel memory with this checkpoint; 0 = not measured

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(file.bytes for file in self.files)


def parse(data: bytes, name: str = NAME) -> Manifest:
    """Bytes of a manifest.json -> Manifest. Raises WeightsError naming the field that is wrong."""
    value = parse_json(data, name)
    if not isinstance(value, dict):
        raise WeightsError(f"{name}: wanted a JSON object, got {type(value).__name__}")
    for key in ("name", "family", "licence"):
        if not isinstance(value.get(key), str) or not value[key]:
            raise WeightsError(f"{name}: {key} must be a text, got {value.get(key)!r}")
    files, sources = value.get("files"), value.get("sources", [])
    if not isinstance(files, list) or not files:
        raise WeightsError(f"{name}: files must be a list that is not empty, got {str(files)[:80]}")
    if not isinstance(sources, list) or not all(isinstance(source, dict) for source in sources):
        raise WeightsError(f"{name}: sources must be a list of objects, got {str(sources)[:80]}")
    for key in ("note", "title", "about", "converter"):
        if not isinstance(value.get(key, ""), str):
            raise WeightsError(f"{name}: {key} must be a text, got {value[key]!r}")
    memory = value.get("memory_bytes", 0)
    if type(memory) is not int or memory < 0:
        raise WeightsError(f"{name}: memory_bytes must be a whole number, got {memory!r}")
    rows = tuple(_file(entry, name) for entry in files)
    if len({row.path for row in rows}) != len(rows):
        raise WeightsError(f"{name}: a path stands twice in files")
    texts = {key: value.get(key, "") for key in ("name", "family", "licence", "note", "title", "about", "converter")}
    return Manifest(files=rows, sources=tuple(sources), memory_bytes=memory, **texts)


def _file(entry: Any, name: str) -> File:
    if not isinstance(entry, dict):
        raise WeightsError(f"{name}: each of files must be an object, got {str(entry)[:80]}")
    path, size, sha256 = entry.get("path"), entry.get("bytes"), entry.get("sha256")
    if not isinstance(path, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", path):
        raise WeightsError(f"{name}: path {path!r} is not a plain file name inside the folder")
    if type(size) is not int or size < 0:
        raise WeightsError(f"{name}: bytes of {path} must be a whole number, got {size!r}")
    if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise WeightsError(f"{name}: sha256 of {path} must be 64 hex digits, got {str(sha256)[:80]!r}")
    return File(path, size, sha256)


def sha256_of(path: str | Path) -> str:
    """sha256 of a file in hex, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(manifest: Manifest, folder: str | Path) -> list[str]:
    """Problems of a folder against its manifest, one sentence each; empty when every file is whole."""
    problems = []
    for file in manifest.files:
        path = Path(folder) / file.path
        if not path.is_file():
            problems.append(f"{file.path} is missing")
        elif path.stat().st_size != file.bytes:
            problems.append(f"{file.path} has {path.stat().st_size} bytes, expected {file.bytes}")
        elif (got := sha256_of(path)) != file.sha256:
            problems.append(f"{file.path} has sha256 {got}, expected {file.sha256}")
    return problems


def describe(folder: str | Path, paths: list[str]) -> tuple[File, ...]:
    """Sizes and hashes of files in a folder, for a new manifest."""
    folder = Path(folder)
    return tuple(File(path, (folder / path).stat().st_size, sha256_of(folder / path)) for path in sorted(paths))


def write(manifest: Manifest, folder: str | Path) -> None:
    """Write manifest.json into the folder."""
    write_json(Path(folder) / NAME, asdict(manifest))


def write_json(path: str | Path, value: Any) -> None:
    """A JSON file with a fixed layout (so that its hash repeats), complete or not there at all."""
    path = Path(path)
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, path)
