"""A picture -> the square of pixels that an encoder wants, and a mask of that square -> the size of the picture.

As in the reference: the longest side becomes `side` pixels, resampled as Pillow does it (bilinear over all pixels that an
output pixel covers, in 22-bit fixed point, columns first), equal to Pillow to the bit. What is beyond the picture is zero, as
if it had the mean colour.
"""

from __future__ import annotations

import math

import numpy as np

PRECISION = 22  # bits of a weight behind the point: 8 bits of colour, and two to spare, make 32
BLOCK = 1 << 18  # values resampled at a time: sums stay in the processor's cache, and large pictures within memory


def fitted(width: int, height: int, side: int) -> tuple[int, int]:
    """Width and height after the longest side became `side`; at least one pixel, however thin the picture is."""
    scale = side / max(width, height)
    return max(1, int(width * scale + 0.5)), max(1, int(height * scale + 0.5))


def to_rgb(image: np.ndarray) -> np.ndarray:
    """Any 8- or 16-bit picture -> (height, width, 3) uint8. Transparency is laid on white; grey becomes three equal channels.

    image: (height, width) or (height, width, channels), 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA. Raises ValueError otherwise.
    """
    image = np.asarray(image)
    if image.ndim == 2:
        image = image[:, :, None]
    if image.ndim != 3 or not 1 <= image.shape[2] <= 4 or 0 in image.shape:
        raise ValueError(f"image: wanted (height, width, 1 to 4 channels) with at least one pixel, got {list(image.shape)}")
    if image.dtype == np.uint16:
        image = (image >> 8).astype(np.uint8)
    if image.dtype != np.uint8:
        raise ValueError(f"image: wanted 8 or 16 whole bits a channel (uint8, uint16), got {image.dtype}")
    channels = image.shape[2]
    colour = image[:, :, : channels - 1] if channels in (2, 4) else image
    if channels in (2, 4):
        alpha = image[:, :, -1:]
        if alpha.min() < 255:
            a = alpha.astype(np.uint32)
            colour = ((colour * a + 255 * (255 - a) + 127) // 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(colour, (*image.shape[:2], 3)))


def resize(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """(h, w, channels) uint8 -> (height, width, channels) uint8, the pixels that Pillow's BILINEAR gives."""
    if image.shape[1] != width:
        columns = np.ascontiguousarray(image.transpose(1, 0, 2))  # whole columns are copied and added faster than pixels
        image = np.ascontiguousarray(_resample(columns, width).transpose(1, 0, 2))
    return _resample(image, height) if image.shape[0] != height else image


def _resample(image: np.ndarray, n_out: int) -> np.ndarray:
    """(n_in, n, channels) -> (n_out, n, channels), along the first axis"""
    n_in = len(image)
    rows = image.reshape(n_in, -1)
    first, weights = _taps(n_in, n_out)
    out = np.empty((n_out, rows.shape[1]), np.uint8)
    step = max(1, BLOCK // rows.shape[1])
    for begin in range(0, n_out, step):
        here = slice(begin, begin + step)
        total = np.full(out[here].shape, 1 << (PRECISION - 1), np.int32)
        part = np.empty_like(total)
        for tap in range(weights.shape[1]):
            row = np.minimum(first[here] + tap, n_in - 1)  # the weight is 0 where there is no such row
            total += np.multiply(rows[row], weights[here, tap, None], out=part)
        out[here] = np.right_shift(total, PRECISION, out=total)  # weights are positive and sum to one: no clipping
    return out.reshape(n_out, *image.shape[1:])


def _taps(n_in: int, n_out: int) -> tuple[np.ndarray, np.ndarray]:
    """First row that each output reads (n_out,), and the weights of the ones from there on (n_out, taps), fixed point."""
    scale = n_in / n_out
    support = max(scale, 1.0)  # a triangle as wide as an output pixel, and never narrower than an input pixel
    centre = (np.arange(n_out) + 0.5) * scale
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + support + 0.5).astype(np.int64), n_in)
    offsets = np.arange(2 * math.ceil(support) + 1)
    weights = np.maximum(1.0 - np.abs((first[:, None] + offsets - centre[:, None] + 0.5) / support), 0.0)
    weights[offsets >= (last - first)[:, None]] = 0.0
    weights /= weights.sum(axis=1, keepdims=True)
    used = max(1, int((weights > 0).any(axis=0).sum()))
    return first, (0.5 + weights[:, :used] * (1 << PRECISION)).astype(np.int32)


def model_pixels(image: np.ndarray, side: int, mean: tuple[float, ...], std: tuple[float, ...]) -> np.ndarray:
    """(height, width, 3) uint8 -> (1, side, side, 3) float32: (colours - mean) / std, the picture in the upper left corner."""
    width, height = fitted(image.shape[1], image.shape[0], side)
    pixels = np.zeros((1, side, side, 3), np.float32)
    rows = pixels.reshape(side, side * 3)[:height, : width * 3]  # long rows: NumPy is slow along axes of three
    scale = 1 / np.array(std, np.float32)
    np.multiply(resize(image, width, height).reshape(height, width * 3), np.tile(scale, width), out=rows)
    np.subtract(rows, np.tile(np.array(mean, np.float32) * scale, width), out=rows)
    return pixels


def upsample(logits: np.ndarray, width: int, height: int, side: int) -> np.ndarray:
    """Logits (..., n, n) of the whole square -> (..., height, width) of the picture, float32.

    As in the reference: to side x side, cut to the picture, to its own size; bilinear, pixel centres on pixel centres.
    """
    n = logits.shape[-1]
    fit_w, fit_h = fitted(width, height, side)
    return _interpolate(_interpolate(logits, *two_steps(n, side, fit_h, height), axis=-2),
                        *two_steps(n, side, fit_w, width), axis=-1)


def _between(n_in: int, n_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each of n_out positions lies among n_in: the one before, and how far towards the next (0 to 1)."""
    place = np.clip((np.arange(n_out) + 0.5) * (n_in / n_out) - 0.5, 0, n_in - 1)
    before = np.minimum(place.astype(np.int64), max(n_in - 2, 0))
    return before, place - before


def two_steps(n: int, side: int, cut: int, n_out: int) -> tuple[np.ndarray, np.ndarray]:
    """n -> side -> its first `cut` -> n_out, as one step: first position (n_out,) and weights (n_out, 3) from there on."""
    before, part = _between(cut, n_out)
    inner, inner_part = _between(n, side)
    weights = np.zeros((n_out, 3))
    first = inner[before]
    for position, weight in ((before, 1 - part), (np.minimum(before + 1, cut - 1), part)):
        offset = inner[position] - first  # 0 or 1
        for step, share in ((0, 1 - inner_part[position]), (1, inner_part[position])):
            weights[np.arange(n_out), offset + step] += weight * share
    return first, weights.astype(np.float32)


def _interpolate(x: np.ndarray, first: np.ndarray, weights: np.ndarray, axis: int) -> np.ndarray:
    """Weighted sums of three neighbours along one of the last two axes."""
    shape = (-1, 1) if axis == -2 else (-1,)
    last = x.shape[axis] - 1
    total = np.take(x, first, axis=axis) * weights[:, 0].reshape(shape)
    for tap in (1, 2):
        total += np.take(x, np.minimum(first + tap, last), axis=axis) * weights[:, tap].reshape(shape)
    return total
