"""How large a mask is in the picture, without making the mask at the size of the picture.

Logits become a picture's mask by a bilinear interpolation (image.upsample). The pixels that lie between the same positions of
the grid form a cell; what they get are mixtures of the same few logits. Where all of these are above a threshold, or none is,
the cell's pixels need not be made; only those of cells on the edge of the mask are, some percent of all. The counts are exact.
"""

from __future__ import annotations

import numpy as np

from candlewick import image

TAPS = 3  # logits that a pixel is mixed of, each way


class Measured:
    """Pixels above each threshold, and where those above 0 are.

    inside: cells (down, across) that are above all thresholds; r, c: cells on the edge, and `values` (longest, longest, cells)
    of their pixels, -inf where there is none.
    """

    def __init__(
        self, sizes: Sizes, thresholds: tuple[float, ...], inside: np.ndarray, r: np.ndarray, c: np.ndarray, values: np.ndarray
    ) -> None:
        self._sizes, self._inside, self._cells, self._values = sizes, inside, (r, c), values
        whole = int(sizes.rows.count @ (inside @ sizes.columns.count))
        self.counts = tuple(whole + int(np.count_nonzero(values > t)) for t in thresholds)

    def box(self) -> np.ndarray:
        """left, top, right, bottom (inclusive) of the pixels above 0; zeros for none"""
        above, inside, (r, c) = self._values > 0, self._inside, self._cells
        ends = []
        for axis, cells, whole, pixels in ((self._sizes.columns, c, inside.any(axis=0), above.any(axis=0)),
                                           (self._sizes.rows, r, inside.any(axis=1), above.any(axis=1))):
            place, cell = np.nonzero(pixels)
            found = [axis.start[cells[cell]] + place, axis.start[whole], (axis.start + axis.count)[whole] - 1]
            every = np.concatenate(found)
            if not every.size:
                return np.zeros(4)
            ends.append((every.min(), every.max()))
        (left, right), (top, bottom) = ends
        return np.array([left, top, right, bottom], float)


class Axis:
    """One axis of a picture in cells: `n` pixels, mixed of logits at `first` and the two behind it."""

    def __init__(self, n_logits: int, side: int, fit: int, n: int) -> None:
        first, weights = image.two_steps(n_logits, side, fit, n)
        starts = np.flatnonzero(np.diff(first, prepend=-1))
        self.first = first[starts]  # (cells,)
        self.start, self.count = starts, np.diff(starts, append=n)  # (cells,): first pixel, number of pixels
        longest = int(self.count.max())
        pixel = np.minimum(starts[:, None] + np.arange(longest), n - 1)
        beyond = np.where(np.arange(longest)[:, None] < self.count, 0, -np.inf)
        self.beyond = beyond.astype(np.float32)  # (longest, cells): a place in the cell where there is no pixel
        self.weights = np.ascontiguousarray(weights[pixel].T)  # (TAPS, longest, cells)
        self.taps = np.minimum(self.first + np.arange(TAPS)[:, None], n_logits - 1)  # (TAPS, cells)


class Sizes:
    """Measures masks for a picture of width x height, which is a part of a square of `side` pixels; logits are n x n."""

    def __init__(self, width: int, height: int, side: int, n: int) -> None:
        self.width, self.height = width, height
        fit_w, fit_h = image.fitted(width, height, side)
        self.columns, self.rows = Axis(n, side, fit_w, width), Axis(n, side, fit_h, height)
        self.seen = tuple(max(1, -(-fit * n // side)) for fit in (fit_w, fit_h))  # positions that the picture covers

    def roughly(self, logits: np.ndarray, thresholds: tuple[float, ...]) -> tuple[int, ...]:
        """Positions of the picture above each threshold; of a picture with fewer pixels than positions, its pixels"""
        if self.width * self.height < self.seen[0] * self.seen[1]:
            return self.measure(logits, thresholds).counts
        seen = logits[: self.seen[1], : self.seen[0]]
        return tuple(int(np.count_nonzero(seen > t)) for t in thresholds)

    def measure(self, logits: np.ndarray, thresholds: tuple[float, ...]) -> Measured:
        """logits (n, n) float32; 0 lies among the thresholds, or between them"""
        rows, columns = self.rows, self.columns
        some, whole = logits > min(thresholds), logits > max(thresholds)
        for taps, axis in ((rows.taps, 0), (columns.taps, 1)):
            some = some.take(taps[0], axis) | some.take(taps[1], axis) | some.take(taps[2], axis)
            whole = whole.take(taps[0], axis) & whole.take(taps[1], axis) & whole.take(taps[2], axis)
        # at last (cells down, cells across): whether any, and whether all of the logits of a cell are above
        r, c = np.nonzero(some ^ whole)  # cells on the edge: the last axis from here on
        down, across = rows.weights[:, :, r], columns.weights[:, :, c]  # (TAPS, longest, edge cells)
        values = np.zeros((down.shape[1], across.shape[1], len(r)), np.float32)
        part = np.empty_like(values)
        for j, column in enumerate(columns.taps):
            at = column[c]
            mixed = sum(logits[row[r], at] * down[i] for i, row in enumerate(rows.taps))  # (longest, edge cells)
            values += np.multiply(mixed[:, None], across[j], out=part)
        values += rows.beyond[:, None, r]
        values += columns.beyond[:, c]
        return Measured(self, thresholds, whole, r, c, values)
