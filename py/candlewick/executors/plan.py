"""The Plan: what is left of Programs once every choice is made. Kernel calls on byte addresses, and where data goes in and
out. Plain data: the C interpreter walks `code`, the host moves bytes, and neither knows an op or a shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Slot:
    """Where an input or output lies: byte address, shape, dtype (f32 or i32)."""

    address: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * 4

    @property
    def numpy(self) -> Any:
        return np.int32 if self.dtype == "i32" else np.float32


@dataclass(frozen=True)
class Entry:
    """One Program as code: [code_start, code_end) byte addresses; `segments` gives [start, end) of each instruction. Those of
    one that takes place inside a later kernel lie behind code_end, for `steps`.

    small: the inputs and scalars that lie together in [io, io + io_bytes), written at once before a run.
    Outputs whose address is in [out, out + out_bytes) lie together too and are read at once.
    values: where the value of each instruction lies right after it ran (for `steps`), as (address, shape, byte strides).
    """

    code_start: int
    code_end: int
    segments: tuple[tuple[int, int], ...]
    io: int
    io_bytes: int
    out: int
    out_bytes: int
    small: dict[str, Slot]
    large: dict[str, Slot]
    outputs: dict[str, Slot]
    values: tuple[tuple[int, tuple[int, ...], tuple[int, ...], str], ...]


@dataclass
class Plan:
    """What one `load` adds to kernel memory. Addresses are absolute; `end` is the first free byte behind it."""

    entries: dict[str, Entry] = field(default_factory=dict)
    code: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    code_address: int = 0
    recipe: list[dict[str, Any]] = field(default_factory=list)
    """Byte ranges of checkpoint files and how each is packed to its address (see `weights_recipe` in the wasm lowering)."""
    constants: list[tuple[int, np.ndarray]] = field(default_factory=list)
    zeros: list[tuple[int, int]] = field(default_factory=list)
    staging: int = 0
    staging_bytes: int = 0
    bytes: dict[str, int] = field(default_factory=dict)
    """weights, state, arena, code: bytes of each region."""
    end: int = 0
