"""A result of `transcribe` as text, subtitles (SubRip, WebVTT) or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_txt(result: Mapping[str, Any]) -> str:
    """One line a segment."""
    return "".join(f"{_line(s)}\n" for s in result["segments"])


def to_srt(result: Mapping[str, Any]) -> str:
    """SubRip: numbered, times with a comma."""
    return "".join(f"{number}\n{clock(s['start'], ',')} --> {clock(s['end'], ',')}\n{_line(s).replace('-->', '->')}\n\n"
                   for number, s in enumerate(result["segments"], 1))


def to_vtt(result: Mapping[str, Any]) -> str:
    """WebVTT: what has a meaning in its text is escaped."""
    cues = (f"{clock(s['start'], '.')} --> {clock(s['end'], '.')}\n{_escaped(_line(s))}\n\n"
            for s in result["segments"])
    return "WEBVTT\n\n" + "".join(cues)


def to_json(result: Mapping[str, Any]) -> str:
    """The whole result."""
    return json.dumps(result, ensure_ascii=False, indent=2) + "\n"


def in_lines(result: Mapping[str, Any], length: int) -> dict[str, Any]:
    """The result with segments of at most `length` characters, cut between words that have times; 1 gives one word each.

    A segment without words stays whole, and so does a word that is longer.
    """
    lines: list[dict[str, Any]] = []
    for s in result["segments"]:
        row: list[Mapping[str, Any]] = []
        for word in s.get("words", ()):
            if row and len("".join(w["word"] for w in (*row, word)).strip()) > length:
                lines.append(_row(row, s))
                row = []
            row.append(word)
        lines.append(_row(row, s) if row else dict(s))
    return {**result, "segments": [{**line, "id": number} for number, line in enumerate(lines)]}


def _row(words: list[Mapping[str, Any]], segment: Mapping[str, Any]) -> dict[str, Any]:
    text = "".join(w["word"] for w in words)
    return {**segment, "start": words[0]["start"], "end": words[-1]["end"], "text": text, "words": list(words)}


def clock(seconds: float, point: str) -> str:
    """3671.5 -> 01:01:11.500"""
    ms = int(seconds * 1000 + 0.5)
    return f"{ms // 3600000:02d}:{ms // 60000 % 60:02d}:{ms // 1000 % 60:02d}{point}{ms % 1000:03d}"


def _line(s: Mapping[str, Any]) -> str:
    """The text of a segment in one line: an empty line would end a cue."""
    return " ".join(s["text"].split())


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
