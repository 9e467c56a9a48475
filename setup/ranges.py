"""The two conditional parts of HTTP that files need: byte ranges and entity tags (RFC 9110, sections 13 and 14)."""

from __future__ import annotations

import re


class Unsatisfiable(Exception):
    """The range lies outside the file."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """A Range header and the file's size -> (start, end) with end exclusive, or None to send everything.

    Malformed headers, other units and several ranges at once are ignored, as the RFC allows. Raises Unsatisfiable for a
    well-formed range of which the file has no byte.
    """
    match = re.fullmatch(r"bytes=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*", header or "", re.ASCII)
    if not match or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:  # the last so many bytes
        count = min(int(last), size)
        if not count:
            raise Unsatisfiable
        return size - count, size
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size:
        raise Unsatisfiable
    return start, min(int(last) + 1, size) if last else size


def etag_matches(header: str | None, etag: str) -> bool:
    """Whether an If-None-Match header names this entity tag (weak comparison) or any."""
    if header is None:
        return False
    return header.strip() == "*" or etag in re.findall(r'(?:W/)?("[^"]*")', header)


def accepts_gzip(header: str | None) -> bool:
    """Whether an Accept-Encoding header allows gzip, with its q-values."""
    quality: dict[str, float] = {}
    for part in (header or "").lower().split(","):
        coding, *parameters = (piece.strip() for piece in part.split(";"))
        weights = [p[2:] for p in parameters if p.startswith("q=")]
        try:
            quality[coding] = float(weights[0]) if weights else 1.0
        except ValueError:
            quality[coding] = 0.0
    return quality.get("gzip", quality.get("*", 0.0)) > 0
