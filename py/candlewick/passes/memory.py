"""Lifetimes -> offsets in one arena, so that values which never live at the same time share bytes."""

from __future__ import annotations

from collections import defaultdict
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
    alive: dict[int, list[int]] = defaultdict(list)  # instruction -> buffers placed so far that are in use then
    total = 0
    for i in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].size, lifetimes[i].first)):
        size, first, last = lifetimes[i]
        size = -(-size // ALIGN) * ALIGN
        offset = 0
        others = {j for t in range(first, last + 1) if t in alive for j in alive[t]}
        for j in sorted(others, key=offsets.__getitem__):
            if offsets[j] - offset >= size:
                break
            offset = max(offset, offsets[j] + -(-lifetimes[j].size // ALIGN) * ALIGN)
        offsets[i] = offset
        for t in range(first, last + 1):
            alive[t].append(i)
        total = max(total, offset + size)
    return offsets, total
