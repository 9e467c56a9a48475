"""Views: what lowering knows of a value. A buffer, an offset and strides; shape ops make other views and move nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from ..program import Instruction, Value

# Views are made from this one element by stride arithmetic; nothing behind it is ever read.
_ORIGIN = np.zeros(1, np.float32)
_ADDRESS = _ORIGIN.__array_interface__["data"][0]
WORD = 4
"""Bytes of an element: float32 and int32 alike."""


@dataclass(eq=False)
class Buffer:
    """Arena bytes that live from the first to the last instruction that mentions them; address is known at the end."""

    size: int
    first: int = 1 << 30
    last: int = -1
    address: int = 0
    pinned: bool = False
    """It has a place of its own outside the arena."""


@dataclass(frozen=True, eq=False)
class View:
    """A strided array at a base: an absolute address or a Buffer. `array` carries shape, strides and offset, no data."""

    base: int | Buffer
    array: np.ndarray

    @property
    def offset(self) -> int:
        return self.array.__array_interface__["data"][0] - _ADDRESS

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return tuple(s // WORD for s in self.array.strides)

    def map(self, fn: Callable[[np.ndarray], np.ndarray]) -> View:
        return View(self.base, fn(self.array))

    def at(self, n_bytes: int) -> View:
        """The same shape, n_bytes further on."""
        return View(self.base, strided(self.shape, self.array.strides, self.offset + n_bytes))


def strided(shape: tuple[int, ...], strides: tuple[int, ...] | None = None, offset: int = 0) -> np.ndarray:
    if strides is None:
        strides = tuple(prod(shape[i + 1 :]) * WORD for i in range(len(shape)))
    place = _Place()
    place.__array_interface__ = {
        "data": (_ADDRESS + offset, False),
        "shape": tuple(shape),
        "strides": tuple(strides),
        "typestr": "<f4",
        "version": 3,
    }
    return np.asarray(place)


class _Place:
    """What NumPy asks for an array that lies at an address."""


class Views(Protocol):
    """What both lowerings have."""

    def view(self, v: Value) -> View: ...

    def contiguous(self, x: View) -> View: ...


def reshaped(s: Views, x: View, shape: tuple[int, ...]) -> View:
    """A view where the strides allow one, else a view of a copy."""
    try:
        return x.map(lambda a: np.reshape(a, shape, copy=False))
    except ValueError:
        return s.contiguous(x).map(lambda a: np.reshape(a, shape, copy=False))


def matmul_operands(s: Views, i: Instruction) -> tuple[View, View]:
    """(batch, m, k) and (batch, n, k) at any strides; (1, n, k) where all of a batch share b."""
    a, b = s.view(i.args[0]), s.view(i.args[1])
    if not i.attrs["transpose_b"]:
        b = b.map(lambda x: np.swapaxes(x, -1, -2))
    batch = prod(i.out.shape[:-2])
    shared = len(i.args[1].shape) == 2
    return reshaped(s, a, (batch, *a.shape[-2:])), reshaped(s, b, (1 if shared else batch, *b.shape[-2:]))


def merge_axes(shape: tuple[int, ...], *strides: tuple[int, ...]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Neighbouring axes that all operands walk evenly become one; axes of length 1 go. At least one axis is left."""
    axes = [(n, [st[i] for st in strides]) for i, n in enumerate(shape) if n != 1]
    merged: list[tuple[int, list[int]]] = []
    for n, st in axes:
        if merged and all(outer == inner * n for outer, inner in zip(merged[-1][1], st)):
            merged[-1] = (merged[-1][0] * n, st)
        else:
            merged.append((n, st))
    if not merged:
        merged = [(1, [1] * len(strides))]
    return tuple(n for n, _ in merged), [tuple(st[j] for _, st in merged) for j in range(len(strides))]
