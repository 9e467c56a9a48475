"""Lifetimes -> offsets in one arena, so that values which never live at the same time share bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALIGN = 64


class Lifetime(NamedTuple):
    """A buffer of `size` bytes that is in use from instruction `first` to instruction `last`, both inclusive."""

    size: int
    first: int
    last: int


def plan_arena(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offset of each buffer (64-byte aligned) and bytes of the arena.

    Largest first, each at the lowest gap between the buffers that live at the same time (Pisarchyk, Lee 2020, "greedy by
    size").
    """
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    total = 0
    for i in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].size, lifetimes[i].first)):
        size, first, last = lifetimes[i]
        size = -(-size // ALIGN) * ALIGN
        offset = 0
        for j in sorted(
            (j for j in placed if lifetimes[j].first <= last and first <= lifetimes[j].last), key=offsets.__getitem__
        ):
            if offsets[j] - offset >= size:
                break
            offset = max(offset, offsets[j] + -(-lifetimes[j].size // ALIGN) * ALIGN)
        offsets[i] = offset
        placed.append(i)
        total = max(total, offset + size)
    return offsets, total
