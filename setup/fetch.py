"""Downloads that go on where they stopped, show how far they are, and are refused when the hash is wrong."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 18
TRIES = 5  # connections that bring nothing before a download gives up
TIMEOUT = 30.0  # seconds without a byte


class SetupError(Exception):
    """Set-up cannot go on: one or a few sentences for a person, with what to do."""


class WrongHash(SetupError):
    """What came is not what was wanted. It has been deleted."""


class Unreachable(SetupError):
    """The other side does not answer, or answers no."""


def sha256_of(path: Path) -> str:
    """sha256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path: Path, sha256: str, label: str) -> None:
    """Raise WrongHash, and delete the file, unless it has this sha256."""
    got = sha256_of(path)
    if got != sha256:
        path.unlink()
        raise WrongHash(
            f"{label} came with sha256 {got[:16]}..., expected {sha256[:16]}...; it was deleted and is not used. "
            "Start again to fetch it anew; if it happens twice, something on the way changes the file."
        )


class Progress:
    """A line with bytes, speed and time left: drawn over itself on a terminal, printed once when done elsewhere."""

    def __init__(self, label: str, total: int, done: int = 0):
        self.label, self.total, self.done = label, total, done
        self._first, self._start, self._drawn = done, time.monotonic(), 0.0
        self._live = sys.stderr.isatty()

    def add(self, count: int) -> None:
        """So many bytes more."""
        self.done += count
        now = time.monotonic()
        if self._live and now - self._drawn > 0.1:
            self._drawn = now
            print(f"\r{self.line(now)}\033[K", end="", file=sys.stderr, flush=True)

    def line(self, now: float) -> str:
        """`name  [#####.....] 12.3 of 70.7 MB, 4.5 MB/s, 13 s left`"""
        speed = (self.done - self._first) / max(now - self._start, 1e-3)
        text = f"{fit(self.label)} {bar(self.done, self.total)} {megabytes(self.done)} of {megabytes(self.total)} MB"
        if speed > 0:
            text += f", {megabytes(speed)} MB/s, {max(0, self.total - self.done) / speed:.0f} s left"
        return text

    def end(self) -> None:
        """Leave one finished line behind."""
        seconds = time.monotonic() - self._start
        resumed = f" (went on at {megabytes(self._first)} MB)" if self._first else ""
        text = f"{fit(self.label)} {amount(self.done)} in {seconds:.1f} s{resumed}"
        print(f"\r{text}\033[K" if self._live else text, file=sys.stderr, flush=True)


def fit(label: str, width: int = 28) -> str:
    """A label in a column of this width, cut with dots where it is longer."""
    return f"{label:<{width}}" if len(label) <= width else label[: width - 3] + "..."


def bar(done: int, total: int, width: int = 20) -> str:
    """A bar of text."""
    filled = min(width, done * width // max(total, 1))
    return f"[{'#' * filled}{'.' * (width - filled)}]"


def amount(count: int) -> str:
    """Bytes with a unit."""
    return f"{megabytes(count)} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"


def megabytes(count: float) -> str:
    """Bytes in megabytes, with one digit behind the point."""
    return f"{count / 1e6:.1f}"


@dataclass(frozen=True)
class Remote:
    """Bytes [start, end) of what lies at a URL; end None means up to its end."""

    url: str
    start: int = 0
    end: int | None = None

    def open(self, offset: int = 0, timeout: float = TIMEOUT) -> tuple[http.client.HTTPResponse, int]:
        """Open at `offset` bytes into the range -> (response, the offset it really begins at: 0 if ranges are not known).

        Raises Unreachable.
        """
        first, last = self.start + offset, "" if self.end is None else str(self.end - 1)
        headers = {"User-Agent": "candlewick-setup", "Accept-Encoding": "identity"}
        whole = first == 0 and self.end is None
        if not whole:
            headers["Range"] = f"bytes={first}-{last}"
        try:
            response = urllib.request.urlopen(urllib.request.Request(self.url, headers=headers), timeout=timeout)
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{_host(self.url)} does not deliver: {getattr(error, 'reason', None) or error}") from error
        if response.status == 206:
            if not response.headers.get("Content-Range", "").startswith(f"bytes {first}-"):
                response.close()
                raise Unreachable(f"{_host(self.url)} sent another range than was asked for")
            return response, offset
        if response.status == 200 and (whole or (self.start == 0 and self.end is None)):
            return response, 0
        response.close()
        raise Unreachable(f"{_host(self.url)} does not serve parts of a file (status {response.status})")


def _host(url: str) -> str:
    return urllib.request.Request(url).host or url


def download(remote: Remote, to: Path, size: int, sha256: str | None, label: str, timeout: float = TIMEOUT) -> None:
    """Fetch `size` bytes into the file `to`, going on from `to`.part if an earlier try left one.

    A lost connection is taken up again; five in a row that bring nothing raise Unreachable and leave the part for the next
    start. When `sha256` is given, a file with another one is deleted and WrongHash raised; one that was put together
    from an old part gets one more try from its beginning.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(to.name + ".part")
    resumed = part.exists() and part.stat().st_size > 0
    _fill(remote, part, size, label, timeout)
    try:
        if sha256:
            check(part, sha256, label)
    except WrongHash:
        if not resumed:
            raise
        _fill(remote, part, size, label, timeout)
        check(part, sha256 or "", label)
    os.replace(part, to)


def _fill(remote: Remote, part: Path, size: int, label: str, timeout: float) -> None:
    """Append to `part` until it has `size` bytes."""
    have = part.stat().st_size if part.exists() else 0
    if have > size:
        part.unlink()
        have = 0
    progress, idle = Progress(label, size, have), 0
    while have < size:
        before = have
        try:
            response, begin = remote.open(have, timeout)
            with response, part.open("r+b" if begin else "wb") as file:
                if begin != have:
                    progress = Progress(label, size)
                file.seek(begin)
                have = begin
                for data in _chunks(response):
                    if have + len(data) > size:
                        raise SetupError(f"{label}: more than the expected {size} bytes came from {_host(remote.url)}")
                    file.write(data)
                    have += len(data)
                    progress.add(len(data))
        except Unreachable:
            if have == before == 0:
                raise  # the first try says whether this place is there at all
        except (OSError, http.client.HTTPException):
            pass  # the connection broke: counted below
        idle = 0 if have > before else idle + 1
        if idle >= TRIES:
            raise Unreachable(
                f"{label}: {_host(remote.url)} stopped at {megabytes(have)} MB. What came is kept; start again to go on there."
            )
        if have < size:
            time.sleep(min(4.0, 0.25 * 2**idle))
    progress.end()


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while data := response.read1(CHUNK):
        yield data


class RemoteFile(io.RawIOBase):
    """A remote file of known size as a seekable file, for zipfile: reads become range requests, the tail is kept."""

    TAIL = 1 << 16

    def __init__(self, url: str, timeout: float = TIMEOUT):
        self.url, self.timeout, self.position = url, timeout, 0
        response, _ = Remote(url, 0, 1).open(timeout=timeout)
        with response:
            response.read()
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
        if not total.isdigit():
            raise Unreachable(f"{_host(url)} does not serve parts of a file")
        self.size = int(total)
        self._tail_start = max(0, self.size - self.TAIL)
        self._tail = self._fetch(self._tail_start, self.size)

    def _fetch(self, start: int, end: int) -> bytes:
        response, _ = Remote(self.url, start, end).open(timeout=self.timeout)
        with response:
            data = response.read()
        if len(data) != end - start:
            raise Unreachable(f"{_host(self.url)} sent {len(data)} of {end - start} bytes")
        return data

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.position = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size}[whence] + offset
        return self.position

    def read(self, size: int = -1) -> bytes:
        start = min(self.position, self.size)
        end = self.size if size < 0 else min(self.size, start + size)
        if start >= self._tail_start:
            data = self._tail[start - self._tail_start : end - self._tail_start]
        else:
            data = self._fetch(start, end)
        self.position = end
        return data
