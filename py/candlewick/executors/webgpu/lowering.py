"""The state of lowering one Program for a GPU: views of its values, and dispatches that read and write whole buffers.

A value lives in a buffer, and a kernel binds whole buffers: WebGPU wants bindings to begin at multiples of 256 bytes, and
forbids reading and writing one buffer in one dispatch. Where a value begins inside its buffer, and its strides, are constants
of the pipeline; layers of a model repeat them, so a model has some tens of pipelines and not one for each dispatch.

Every dispatch costs some microseconds, and a step of decoding is little else. So values that their reader can compute by the
way are not made where they stand: they are `Lazy` (lazy.py) until somebody asks for a view of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from types import EllipsisType

import numpy as np

from ...dtypes import n_bytes
from ...program import Instruction, Program, Value
from ..views import WORD, View, merge_axes, strided
from .fusion import find_gates, find_heads
from .lazy import Lazy
from .variants import ANYWHERE, variant

DEFAULT_LIMITS = {
    "maxStorageBufferBindingSize": 1 << 27, "maxBufferSize": 1 << 28, "maxStorageBuffersPerShaderStage": 8,
    "maxComputeWorkgroupStorageSize": 16384, "maxComputeInvocationsPerWorkgroup": 256,
    "maxComputeWorkgroupsPerDimension": 65535,
}
"""What every WebGPU device allows."""

DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "q4_0": 3, "q4_1": 4, "q5_0": 5, "q5_1": 6, "q8_0": 7, "q4_k": 8, "q6_k": 9}
"""What kernels read as it lies in a file, by its number there; every other type becomes float32 when it is loaded."""

LOWER: dict[str, Callable[[Lowering, Instruction], View | Lazy]] = {}


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
    skip: int = 0
    """Of a matrix that does not fit into one buffer: the first of its bytes that lies in this one."""


@dataclass(frozen=True)
class Dispatch:
    """One kernel on so many workgroups. bindings in the order of the kernel's: None stands for an absent operand, `...` for a
    binding that this entry point does not name."""

    kernel: str
    entry: str
    constants: tuple[tuple[str, float], ...]
    bindings: tuple[Buffer | EllipsisType | None, ...]
    groups: tuple[int, int, int]


@dataclass
class Lowering:
    """program: optimised. shared: the executor's function (kind, value, rows) for the buffer of a weight, constant, state or
    literal. limits and features: of the device, in WebGPU's names. whole: every instruction's value is made, also those that
    kernels pass by."""

    program: Program
    shared: Callable[..., Buffer]
    scalars: Buffer
    slots: dict[str, int]
    limits: Mapping[str, int] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    whole: bool = False
    views: dict[str, View | Lazy] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    dispatches: list[Dispatch] = field(default_factory=list)
    made: list[View | Lazy] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    """WGSL of the kernels that were generated for this Program, by name."""

    def __post_init__(self) -> None:
        self.limits = {**DEFAULT_LIMITS, **{name: n for name, n in self.limits.items() if n}}
        code = self.program.instructions
        self.reads = Counter(a.name for i in code for a in i.args if a is not None and a.kind == "temp")
        self.reads.update(v.name for v in self.program.outputs.values() if v.kind == "temp")
        self.gates, self.heads = find_gates(self.program, self.reads), find_heads(self.program)
        self.placed: set[int] = set()
        least = self.limits.get("subgroupMinSize", 0)
        self.teams = max(1, min(16, 64 // least)) if "subgroups" in self.features and least else 4
        """Teams of threads in a workgroup of products of few rows: as many as its 64 threads have subgroups at most."""
        self.written = {i.out.name for i in code if i.out.kind == "state"}

    def buffer(self, shape: tuple[int, ...]) -> View:
        b = Buffer(max(1, prod(shape)))
        self.buffers.append(b)
        return View(b, strided(shape))

    def groups(self, n: int) -> tuple[int, int, int]:
        """n workgroups within the limit of each axis; kernels count `x + columns (y + rows z)` and leave beyond n."""
        most = self.limits["maxComputeWorkgroupsPerDimension"]
        planes = -(-n // (most * most))
        rows = -(-n // (most * planes))
        if planes > most:
            raise ValueError(f"{n} workgroups are wanted; this device allows {most} along each of three axes")
        return -(-n // (rows * planes)), rows, planes

    def form(self, kernel: str, *features: str) -> str:
        """The name of a kernel in the form that uses those of these features that the device has."""
        there = [f for f in features if f in self.features | ANYWHERE]
        if not there:
            return kernel
        name = "+".join([kernel, *there])
        self.sources.setdefault(name, variant(kernel, there))
        return name

    def call(
        self,
        kernel: str,
        bindings: list[View | Buffer | EllipsisType | None],
        n_groups: int,
        entry: str = "main",
        **constants: float,
    ) -> None:
        """Append a dispatch; a View binds its buffer."""
        place = len(self.dispatches)
        bound = tuple(b.base if isinstance(b, View) else b for b in bindings)
        most, wanted = self.limits["maxStorageBuffersPerShaderStage"], sum(b is not ... for b in bound)
        if wanted > most:
            raise ValueError(f"{kernel} ({entry}) binds {wanted} buffers, this device allows {most}")
        for b in bound:
            if isinstance(b, Buffer):
                b.first, b.last = min(b.first, place), max(b.last, place)
        self.dispatches.append(Dispatch(kernel, entry, tuple(constants.items()), bound, self.groups(n_groups)))

    def peek(self, v: Value) -> View | Lazy:
        """An operand as it is: a view, or what nobody asked for yet."""
        if v.kind in ("weight", "constant"):
            return View(self.shared("flat", v), strided(v.shape))
        if v.kind == "state":
            return View(self.shared("state", v), strided(v.shape))
        if v.kind == "number":
            return View(self.shared("number", v), strided(()))
        if v.kind == "scalar":
            return View(self.scalars, strided((), (), self.slots[v.name] * WORD))
        return self.views[v.name]

    def matrix(self, w: Value) -> list[tuple[Buffer, int, int]]:
        """(buffer, first row, rows) of a weight matrix: one, or as many as the largest buffer of this device makes of it."""
        n, row_bytes = w.shape[0], n_bytes(stored_as(w.dtype), w.size) // w.shape[0]
        most = min(self.limits["maxStorageBufferBindingSize"], self.limits["maxBufferSize"]) // row_bytes
        if n <= most:
            return [(self.shared("matrix", w), 0, n)]
        most -= most % 8  # whole words, also of rows that are not
        if not most:
            raise ValueError(f"{w}: 8 rows of {row_bytes} bytes are more than this device allows in a buffer")
        ends = [*range(0, n, most), n]
        return [(self.shared("matrix", w, (a, b)), a, b - a) for a, b in pairwise(ends)]

    def view(self, v: Value) -> View:
        """Any operand that is read element by element; made now if it is not there."""
        x = self.peek(v)
        if isinstance(x, Lazy):
            x = self.views[v.name] = x.make(self)
        return x

    def mapped(self, v: Value, fn: Callable[[np.ndarray], np.ndarray]) -> View | Lazy:
        """A shape op on an operand. ValueError where `fn` would have to move elements."""
        x = self.peek(v)
        if isinstance(x, Lazy) and self.reads[v.name] == 1:
            try:
                return x.map(fn)
            except ValueError:
                pass
        return self.view(v).map(fn)

    def changes(self, *operands: View | None) -> bool:
        """Whether some instruction of this Program writes what these views show."""
        return any(x is not None and x.base.name in self.written for x in operands)

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
        self.call("copy", [src, dst, self.scalars], -(-prod(shape) // 256), **constants)
        return dst

    def as_rows(self, x: View) -> tuple[View, int, int]:
        """(view, m, row stride): x as m rows of its last axis, with unit stride along the row; copied if it is not that."""
        try:
            return rows_of(x)
        except ValueError:
            x = self.contiguous(x)
            return x, prod(x.shape[:-1]), x.shape[-1]

    def run(self) -> None:
        for i in self.program.instructions:
            temp = i.out.kind == "temp"
            if temp and i.out.name in self.views:  # an earlier kernel made it by the way
                result = self.views[i.out.name]
            else:
                result = LOWER[i.op](self, i)
            if temp:
                self.views.setdefault(i.out.name, result)
            self.made.append(result.make(self) if isinstance(result, Lazy) and self.whole else result)
            self.marks.append(len(self.dispatches))


def stored_as(dtype: str) -> str:
    """How a weight matrix lies on the device."""
    return dtype if dtype in DTYPES else "f32"


def rows_of(x: View) -> tuple[View, int, int]:
    """(view, m, row stride) of what can be read as m rows of its last axis; ValueError for other views."""
    n = x.shape[-1]
    if n != 1 and x.strides[-1] != 1:
        raise ValueError(f"rows of {list(x.shape)} are not walked with stride 1")
    rows = x.map(lambda a: np.reshape(a, (-1, n), copy=False))
    return rows, rows.shape[0], rows.strides[0] if rows.shape[0] > 1 else n


def words(v: View) -> int:
    """Where a view begins in its buffer, in 4-byte words."""
    return v.offset // WORD
