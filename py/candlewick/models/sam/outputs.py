"""Masks as files: PNG, COCO's run lengths, SVG outlines. Plain Python and NumPy."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from candlewick.models.sam.regions import box

PNG_LEVEL = 6
GREY, RGBA = 0, 6  # PNG colour types


def png(pixels: np.ndarray) -> bytes:
    """(height, width) uint8 grey or (height, width, 4) uint8 RGBA -> a PNG file. W3C PNG, 3rd edition."""
    height, width = pixels.shape[:2]
    kind = GREY if pixels.ndim == 2 else RGBA
    rows = np.zeros((height, 1 + width * (1 if kind == GREY else 4)), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    data = zlib.compress(rows.tobytes(), PNG_LEVEL)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def mask_png(mask: np.ndarray) -> bytes:
    """(height, width) bool -> white where it is set, black elsewhere."""
    return png(np.where(mask, 255, 0).astype(np.uint8))


def cutout_png(rgb: np.ndarray, logits: np.ndarray) -> bytes:
    """The picture (height, width, 3), transparent outside the object; logits (height, width) at its size.

    The edge is soft within one step of the logits around 0.
    """
    alpha = np.clip(logits + 0.5, 0, 1) * 255 + 0.5
    return png(np.concatenate([rgb, alpha.astype(np.uint8)[:, :, None]], axis=2))


# ---- run lengths ----------------------------------------------------------------------------------------------------


def run_lengths(mask: np.ndarray) -> list[int]:
    """(height, width) bool -> lengths of runs down the columns, one column after the other, the first of what is not set."""
    flat = mask.astype(bool).ravel(order="F")
    changes = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff(np.concatenate([[0], changes, [flat.size]])).tolist()
    return [0, *counts] if flat.size and flat[0] else counts


def from_run_lengths(counts: Sequence[int], height: int, width: int) -> np.ndarray:
    """Inverse of run_lengths. Raises ValueError where they do not fill the mask."""
    if min(counts, default=0) < 0 or sum(counts) != height * width:
        raise ValueError(f"run lengths: wanted {height} x {width} = {height * width} positions, they have {sum(counts)}")
    values = np.arange(len(counts)) % 2 == 1
    return np.repeat(values, counts).reshape(height, width, order="F")


def coco_string(counts: Sequence[int]) -> str:
    """Run lengths as COCO's text: differences to the run two before (from the fourth on), 5 bits a letter, low bits first."""
    letters = []
    for i, count in enumerate(counts):
        x = count - counts[i - 2] if i > 2 else count
        while True:
            bits = x & 31
            x >>= 5
            more = x != (-1 if bits & 16 else 0)
            letters.append(chr((bits | 32 if more else bits) + 48))
            if not more:
                break
    return "".join(letters)


def from_coco_string(text: str) -> list[int]:
    """Inverse of coco_string."""
    counts: list[int] = []
    x, shift = 0, 0
    for letter in text:
        code = ord(letter) - 48
        if not 0 <= code < 64:
            raise ValueError(f"run lengths: the letter {letter!r} is not one of COCO's")
        x |= (code & 31) << shift
        shift += 5
        if code & 32:
            continue
        if code & 16:
            x -= 1 << shift
        counts.append(x + (counts[-2] if len(counts) > 2 else 0))
        x, shift = 0, 0
    return counts


def annotation(mask: np.ndarray, **facts: Any) -> dict[str, Any]:
    """One object as in COCO's JSON: segmentation (run lengths), bbox x, y, width, height, area, and the facts given."""
    x0, y0, x1, y1 = (int(n) for n in box(mask))
    area = int(mask.sum())
    return {
        "segmentation": {"size": list(mask.shape), "counts": coco_string(run_lengths(mask))},
        "bbox": [x0, y0, x1 - x0 + 1, y1 - y0 + 1] if area else [0, 0, 0, 0],
        "area": area,
        **facts,
    }


def to_json(width: int, height: int, annotations: Sequence[Mapping[str, Any]]) -> str:
    """All objects of a picture as JSON text."""
    picture = {"width": width, "height": height}
    return json.dumps({"image": picture, "annotations": list(annotations)}, ensure_ascii=False, indent=2) + "\n"


# ---- outlines -------------------------------------------------------------------------------------------------------


def outlines(mask: np.ndarray) -> list[list[tuple[int, int]]]:
    """(height, width) bool -> closed lines along the edges of the pixels, (x, y) corners; holes are lines of their own.

    What is set lies to the right hand of each line. Where two pixels touch at a corner the line stays with its own pixel.
    """
    padded = np.pad(mask.astype(bool), 1)
    inside = padded[1:-1, 1:-1]
    follows: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def edges(where: np.ndarray, start: tuple[int, int], stop: tuple[int, int]) -> None:
        for y, x in np.argwhere(where).tolist():
            follows.setdefault((x + start[0], y + start[1]), []).append((x + stop[0], y + stop[1]))

    edges(inside & ~padded[:-2, 1:-1], (0, 0), (1, 0))  # along the top, to the right
    edges(inside & ~padded[1:-1, 2:], (1, 0), (1, 1))  # along the right side, down
    edges(inside & ~padded[2:, 1:-1], (1, 1), (0, 1))  # along the bottom, to the left
    edges(inside & ~padded[1:-1, :-2], (0, 1), (0, 0))  # along the left side, up
    lines = []
    while follows:
        start = next(iter(follows))
        line, at, came = [], start, None
        while True:
            choices = follows[at]
            if len(choices) > 1 and came is not None:  # two pixels touch here: turn right, around the pixel we are at
                right = (at[0] - came[1], at[1] + came[0])
                nxt = right if right in choices else choices[0]
            else:
                nxt = choices[0]
            choices.remove(nxt)
            if not choices:
                del follows[at]
            step = (nxt[0] - at[0], nxt[1] - at[1])
            if step != came:
                line.append(at)
            at, came = nxt, step
            if at == start:
                break
        if len(line) > 2 and (line[0][0] - line[-1][0], line[0][1] - line[-1][1]) != (0, 0):
            first, second = line[0], line[1]
            along = (second[0] - first[0]) * (first[1] - line[-1][1]) == (second[1] - first[1]) * (first[0] - line[-1][0])
            lines.append(line[1:] if along else line)
    return lines


def svg(masks: Sequence[np.ndarray], width: int, height: int) -> str:
    """Masks (height, width) -> an SVG picture of their outlines, one path each, in different colours."""
    paths = []
    for i, mask in enumerate(masks):
        data = "".join("M" + "L".join(f"{x} {y}" for x, y in line) + "Z" for line in outlines(mask))
        hue = i * 137 % 360  # the golden angle: neighbours differ
        paths.append(f'  <path d="{data}" fill="hsl({hue} 80% 50%)" fill-opacity="0.5" fill-rule="evenodd"/>\n')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
            + "".join(paths) + "</svg>\n")
