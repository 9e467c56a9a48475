"""How large a mask is in the picture, without making the mask at the size of the picture.

Logits become a picture's mask by a bilinear interpolation (image.upsample). The pixels that lie between the same positions of
the grid form a cell; what they get are mixtures of the same few logits. Where all of these are above a threshold, or none is,
the cell's pixels need not be made; only those of cells on the edge of the mask are, some percent of all. The counts are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from candlewick import image

TAPS = 3  # logits that a pixel is mixed of, each way


@dataclass(frozen=True)
class Measured:
    """Pixels above each threshold, and the box of those above 0: left, top, right, bottom (inclusive); zeros for none."""

    counts: tuple[int, ...]
    box: np.ndarray


class Axis:
    """One axis of a picture in cells: `n` pixels, mixed of logits at `first` and the two behind it."""

    def __init__(self, n_logits: int, side: int, fit: int, n: int) -> None:
        first, weights = image.two_steps(n_logits, side, fit, n)
        starts = np.flatnonzero(np.diff(first, prepend=-1))
        self.first = first[starts]  # (cells,)
        self.start, self.count = starts, np.diff(starts, append=n)  # (cells,): first pixel, number of pixels
        longest = int(self.count.max())
        pixel = np.minimum(starts[:, None] + np.arange(longest), n - 1)
        self.is_pixel = np.ascontiguousarray((np.arange(longest) < self.count[:, None]).T)  # (longest, cells)
        self.weights = np.ascontiguousarray(weights[pixel].T)  # (TAPS, longest, cells)
        self.taps = np.minimum(self.first + np.arange(TAPS)[:, None], n_logits - 1)  # (TAPS, cells)


class Sizes:
    """Measures masks for a picture of width x height, which is a part of a square of `side` pixels; logits are n x n."""

    def __init__(self, width: int, height: int, side: int, n: int) -> None:
        self.width, self.height = width, height
        fit_w, fit_h = image.fitted(width, height, side)
        self.columns, self.rows = Axis(n, side, fit_w, width), Axis(n, side, fit_h, height)
        self.seen = tuple(max(1, -(-fit * n // side)) for fit in (fit_w, fit_h))  # positions that the picture covers
        self.pixels = np.outer(self.rows.count, self.columns.count)  # of each cell

    def measure(self, logits: np.ndarray, thresholds: tuple[float, ...]) -> Measured:
        """logits (n, n) float32; one of the thresholds is 0"""
        rows, columns = self.rows, self.columns
        low, high = logits, logits
        for taps, axis in ((rows.taps, 0), (columns.taps, 1)):
            low = np.minimum.reduce([low.take(tap, axis) for tap in taps])  # at last (cells down, cells across)
            high = np.maximum.reduce([high.take(tap, axis) for tap in taps])
        r, c = np.nonzero((low <= max(thresholds)) & (high > min(thresholds)))  # cells on the edge: the last axis from here on
        values = np.zeros((len(rows.is_pixel), len(columns.is_pixel), len(r)), np.float32)  # (longest, longest, edge cells)
        for column, across in zip(columns.taps, columns.weights):
            mixed = sum(logits[row[r], column[c]] * down[:, r] for row, down in zip(rows.taps, rows.weights))
            values += mixed[:, None] * across[:, c]
        real = rows.is_pixel[:, None, r] & columns.is_pixel[:, c]
        values[~real] = -np.inf
        inside = low > max(thresholds)
        whole = int(self.pixels[inside].sum())
        counts = tuple(whole + int(np.count_nonzero(values > t)) for t in thresholds)
        return Measured(counts, self._box(inside, r, c, values > 0))

    def _box(self, inside: np.ndarray, r: np.ndarray, c: np.ndarray, above: np.ndarray) -> np.ndarray:
        """The box of the pixels of whole cells and of those `above` in cells (r, c), (longest, longest, cells)."""
        ends = []
        for axis, cells, whole, pixels in ((self.columns, c, inside.any(axis=0), above.any(axis=0)),
                                           (self.rows, r, inside.any(axis=1), above.any(axis=1))):
            place, cell = np.nonzero(pixels)
            found = [axis.start[cells[cell]] + place, axis.start[whole], (axis.start + axis.count)[whole] - 1]
            every = np.concatenate(found)
            if not every.size:
                return np.zeros(4)
            ends.append((every.min(), every.max()))
        (left, right), (top, bottom) = ends
        return np.array([left, top, right, bottom], float)
