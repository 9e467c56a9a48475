"""Request target -> file, by one rule: only what is meant to be served can be named at all."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

# Our own table: what a machine's MIME registry says must not matter. A type that is not here is not served.
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".data": "application/octet-stream",
    ".bin": "application/octet-stream",
    ".flac": "audio/flac",
    ".gguf": "application/octet-stream",
    ".gz": "application/gzip",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".map": "application/json; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".png": "image/png",
    ".safetensors": "application/octet-stream",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".wav": "audio/wav",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".whl": "application/zip",
    ".woff2": "font/woff2",
    ".zip": "application/zip",
}
COMPRESSED = {".css", ".html", ".js", ".json", ".map", ".mjs", ".svg", ".txt", ".webmanifest"}

# First folder -> the folders inside it that are served; None for all that it holds.
SERVED: dict[str, frozenset[str] | None] = {
    "web": None,
    "workers": None,
    "models": None,
    "build": frozenset({"pyodide", "wheels", "lib"}),
}
HOME = "/web/"
PYODIDE = ("build", "pyodide")  # holds a folder for each version
VERSIONED = (PYODIDE, ("build", "lib"))


def is_versioned(names: list[str]) -> bool:
    """Whether what lies at these names never changes: files in folders named by a version, whose hashes set-up has checked."""
    return tuple(names[:2]) in VERSIONED and len(names) > 3


@dataclass(frozen=True)
class Found:
    """A file to serve."""

    path: Path
    type: str
    compress: bool
    versioned: bool  # another content would have another address


@dataclass(frozen=True)
class Moved:
    """The same thing has another address."""

    location: str


class Refused(Exception):
    """There is nothing to serve at an address; `status` is 400 or 404."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


def locate(root: Path, target: str) -> Found | Moved:
    """The target of a request line ("/web/?x=1") -> file below root, or where to go instead. Raises Refused.

    Decodes percent signs once. Empty, dotted and hidden segments, encoded slashes, backslashes and control characters
    name nothing; neither does anything that is, or lies behind, a symbolic link.
    """
    path, question, query = target.partition("?")
    segments = _segments(path)
    if segments == [""]:
        return Moved(HOME)
    directory = segments[-1] == ""
    names = segments[:-1] if directory else segments
    if names[0] not in SERVED:
        raise Refused(404, "nothing is served here")
    inner = SERVED[names[0]]
    if inner is not None and (len(names) < 2 or names[1] not in inner):
        raise Refused(404, "nothing is served here")
    file = root.joinpath(*names)
    mode = _mode(file)
    if stat.S_ISDIR(mode) and not directory:
        return Moved("/" + "/".join(quote(name) for name in names) + "/" + question + query)
    if stat.S_ISDIR(mode):
        file = file / "index.html"
        mode = _mode(file)
    elif directory:
        raise Refused(404, "a file has no folder below it")
    if not stat.S_ISREG(mode) or file.suffix not in TYPES or os.path.realpath(file) != os.path.join(
        os.path.realpath(root), *file.relative_to(root).parts
    ):
        raise Refused(404, "nothing is served here")
    return Found(file, TYPES[file.suffix], file.suffix in COMPRESSED, is_versioned(names))


def _segments(path: str) -> list[str]:
    """"/web/a%20b" -> ["web", "a b"]; the last is "" after a closing slash."""
    if not path.startswith("/"):
        raise Refused(400, "the address must begin with a slash")
    if re.search(r"%(?![0-9A-Fa-f]{2})|%2[fF]|%5[cC]|#", path):
        raise Refused(400, "bad escape in the address")
    try:
        text = unquote_to_bytes(path).decode("utf-8")
    except UnicodeError:
        raise Refused(400, "the address is not UTF-8") from None
    if re.search(r"[\x00-\x1f\x7f\\]", text):
        raise Refused(400, "control characters and backslashes name nothing")
    segments = text[1:].split("/")
    if any(not name or name.startswith(".") or ":" in name for name in segments[:-1]) or segments[-1].startswith("."):
        raise Refused(404, "nothing is served here")
    return segments


def _mode(file: Path) -> int:
    try:
        return os.lstat(file).st_mode
    except (OSError, ValueError):  # absent, name too long, not representable
        raise Refused(404, "nothing is served here") from None
