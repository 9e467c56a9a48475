"""Parts of binary masks: boxes, overlaps, and pieces too small to be meant."""

from __future__ import annotations

import numpy as np


def box(mask: np.ndarray) -> np.ndarray:
    """(height, width) bool -> left, top, right, bottom (inclusive) of what is set; zeros where nothing is."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return np.zeros(4)
    return np.array([columns[0], rows[0], columns[-1], rows[-1]], float)


def nms(boxes: np.ndarray, scores: np.ndarray, threshold: float) -> list[int]:
    """Non-maximum suppression: indices of the boxes (n, 4) that stay, best first; ties in the order given."""
    size = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    area = size[:, 0] * size[:, 1]
    order = list(np.argsort(-scores, kind="stable"))
    kept: list[int] = []
    while order:
        first, rest = order[0], np.array(order[1:], int)
        kept.append(int(first))
        sides = np.maximum(np.minimum(boxes[rest, 2:], boxes[first, 2:]) - np.maximum(boxes[rest, :2], boxes[first, :2]), 0)
        both = sides[:, 0] * sides[:, 1]
        union = area[rest] + area[first] - both
        overlap = np.divide(both, union, out=np.zeros(len(rest)), where=union > 0)
        order = list(rest[overlap <= threshold])
    return kept


def without_small(mask: np.ndarray, smallest: float) -> np.ndarray:
    """Holes of fewer than `smallest` positions filled, then islands of fewer removed; the largest island always stays."""
    if smallest <= 0:
        return mask
    filled = mask.copy()
    for size, at in components(~mask):
        if size < smallest:
            _set(filled, at, True)
    islands = sorted(components(filled), key=lambda part: -part[0])
    for size, at in islands[1:]:
        if size < smallest:
            _set(filled, at, False)
    return filled


def _set(mask: np.ndarray, runs: list[tuple[int, int, int]], value: bool) -> None:
    for row, start, stop in runs:
        mask[row, start:stop] = value


def components(mask: np.ndarray) -> list[tuple[int, list[tuple[int, int, int]]]]:
    """Pieces of what is set, joined across sides and corners: (size, its runs (row, start, stop)) of each.

    A run is a stretch of a row; runs of neighbouring rows that touch become one piece (union-find).
    """
    runs: list[tuple[int, int, int]] = []
    parent: list[int] = []

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    above: list[int] = []
    for row in range(len(mask)):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], mask[row].astype(np.int8), [0]])))
        here = []
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist()):
            runs.append((row, start, stop))
            parent.append(len(parent))
            here.append(len(parent) - 1)
        i = j = 0
        while i < len(above) and j < len(here):
            (_, a, b), (_, c, d) = runs[above[i]], runs[here[j]]
            if a <= d and c <= b:
                parent[root(here[j])] = root(above[i])
            if b < d:
                i += 1
            else:
                j += 1
        above = here
    pieces: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}
    for i, run in enumerate(runs):
        size, members = pieces.get(root(i), (0, []))
        members.append(run)
        pieces[root(i)] = (size + run[2] - run[1], members)
    return list(pieces.values())
