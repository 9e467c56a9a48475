"""The state of lowering one Program for a GPU: views of its values, and dispatches that read and write whole buffers.

A value lives in a buffer, and a kernel binds whole buffers: WebGPU wants bindings to begin at multiples of 256 bytes, and
forbids reading and writing one buffer in one dispatch. Where a value begins inside its buffer, and its strides, are constants
of the pipeline; layers of a model repeat them, so a model has some tens of pipelines and not one for each dispatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from types import EllipsisType

import numpy as np

from ...program import Instruction, Program, Value
from ..views import WORD, View, merge_axes, strided

MAX_GROUPS = 65535
"""Workgroups along one axis that every WebGPU device allows."""

LOWER: dict[str, Callable[[Lowering, Instruction], View]] = {}


def lowers(*ops: str) -> Callable:
    """Register a function for these ops."""

    def register(fn: Callable) -> Callable:
        LOWER.update(dict.fromkeys(ops, fn))
        return fn

    return register


@dataclass(eq=False)
class Buffer:
    """`words` 4-byte words on the device. name: shared by all Programs (a weight, a state); without one it is a place for a
    value that is in use from dispatch `first` to dispatch `last`, and others may have it before and after."""

    words: int
    name: str = ""
    first: int = 1 << 30
    last: int = -1
    number: int = -1
    """Index among the buffers of the Plan, known at the end."""


@dataclass(frozen=True)
class Dispatch:
    """One kernel on so many workgroups. bindings in the order of the kernel's: None stands for an absent operand, `...` for a
    binding that this entry point does not name."""

    kernel: str
    entry: str
    constants: tuple[tuple[str, float], ...]
    bindings: tuple[Buffer | EllipsisType | None, ...]
    groups: tuple[int, int, int]


def groups(n: int) -> tuple[int, int, int]:
    """n workgroups as a rectangle within the limit; kernels take `x + y * columns` and leave where that is past the end."""
    rows = -(-n // MAX_GROUPS)
    return -(-n // rows), rows, 1


@dataclass
class Lowering:
    """program: optimised. shared: the executor's function for the buffer of a weight, constant, state or literal."""

    program: Program
    shared: Callable[[str, Value], Buffer]
    scalars: Buffer
    slots: dict[str, int]
    views: dict[str, View] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    dispatches: list[Dispatch] = field(default_factory=list)
    made: list[View] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    """WGSL of the kernels that were generated for this Program, by name."""

    def buffer(self, shape: tuple[int, ...]) -> View:
        b = Buffer(max(1, prod(shape)))
        self.buffers.append(b)
        return View(b, strided(shape))

    def call(
        self,
        kernel: str,
        bindings: list[View | Buffer | EllipsisType | None],
        n_groups: tuple[int, int, int],
        entry: str = "main",
        **constants: float,
    ) -> None:
        """Append a dispatch; a View binds its buffer."""
        if any(n > MAX_GROUPS for n in n_groups):
            raise ValueError(f"{kernel}: {n_groups} workgroups, a device allows {MAX_GROUPS} along an axis")
        place = len(self.dispatches)
        bound = tuple(b.base if isinstance(b, View) else b for b in bindings)
        for b in bound:
            if isinstance(b, Buffer):
                b.first, b.last = min(b.first, place), max(b.last, place)
        self.dispatches.append(Dispatch(kernel, entry, tuple(constants.items()), bound, n_groups))

    def view(self, v: Value) -> View:
        """Any operand that is read element by element."""
        if v.kind in ("weight", "constant"):
            return View(self.shared("flat", v), strided(v.shape))
        if v.kind == "state":
            return View(self.shared("state", v), strided(v.shape))
        if v.kind == "number":
            return View(self.shared("number", v), strided(()))
        if v.kind == "scalar":
            return View(self.scalars, strided((), (), self.slots[v.name] * WORD))
        return self.views[v.name]

    def scalar(self, v: Value | None) -> dict[str, int]:
        """Constants that say where a runtime scalar lies (-1: absent), or what a literal is."""
        if v is None:
            return {"SLOT": -1, "FIXED": 0}
        if v.kind == "number":
            return {"SLOT": -1, "FIXED": int(v.number)}
        return {"SLOT": self.slots[v.name], "FIXED": 0}

    def contiguous(self, x: View) -> View:
        return x if x.array.flags.c_contiguous else self.copy(x, self.buffer(x.shape))

    def copy(self, src: View, dst: View, pos: Value | None = None, stride: int = 0, into_dst: bool = True) -> View:
        """src -> dst of the same shape, at most four axes after merging; pos * stride words are added to dst or src."""
        shape, (s, t) = merge_axes(dst.shape, src.strides, dst.strides)
        if len(shape) > 4:
            raise ValueError(f"copy of {list(dst.shape)} has {len(shape)} separate axes; the kernel takes four")
        pad = 4 - len(shape)
        constants: dict[str, float] = {"N": prod(shape), **self.scalar(pos)}
        constants |= {f"D{i}": n for i, n in enumerate((1,) * pad + shape)}
        constants |= {f"S{i}": n for i, n in enumerate((0,) * pad + s)}
        constants |= {f"T{i}": n for i, n in enumerate((0,) * pad + t)}
        constants |= {
            "SRC": words(src), "DST": words(dst), "SRC_STEP": 0 if into_dst else stride, "DST_STEP": stride if into_dst else 0,
        }
        self.call("copy", [src, dst, self.scalars], groups(-(-prod(shape) // 256)), **constants)
        return dst

    def as_rows(self, x: View) -> tuple[View, int, int]:
        """(view, m, row stride): x as m rows of its last axis, with unit stride along the row; copied if it is not that."""
        n = x.shape[-1]
        if n == 1 or x.strides[-1] == 1:
            try:
                rows = x.map(lambda a: np.reshape(a, (-1, n), copy=False))
                return rows, rows.shape[0], rows.strides[0] if rows.shape[0] > 1 else n
            except ValueError:
                pass
        x = self.contiguous(x)
        return x, prod(x.shape[:-1]), n

    def run(self) -> None:
        for i in self.program.instructions:
            result = LOWER[i.op](self, i)
            if i.out.kind == "temp":
                self.views[i.out.name] = result
            self.made.append(result)
            self.marks.append(len(self.dispatches))


def words(v: View) -> int:
    """Where a view begins in its buffer, in 4-byte words."""
    return v.offset // WORD
