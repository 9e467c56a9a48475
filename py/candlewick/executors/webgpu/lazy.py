"""Values that their reader can compute by the way: a chain of elementwise ops, a norm before a product, a rotation on its way
into a cache, a reduction that goes into a part of something. `make` computes one by a kernel of its own after all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from ...program import Value
from ..views import WORD, View, merge_axes, strided
from .elementwise import Step, kernel

if TYPE_CHECKING:
    from .lowering import Lowering

MAX_INPUTS, MAX_STEPS = 6, 40
"""Of a chain: beside its result and the runtime scalars, a kernel may bind so many buffers that every device has."""
Map = Callable[[np.ndarray], np.ndarray]


class Lazy(ABC):
    """What nobody asked for yet. Views in it show values that stay as they are until it is made."""

    @abstractmethod
    def make(self, s: Lowering) -> View:
        """Compute it now."""

    def map(self, fn: Map) -> Lazy:
        """The same after a shape op. ValueError where that is not this kind of value any more."""
        raise ValueError("no shape op")


@dataclass(frozen=True, eq=False)
class Source:
    """What a chain reads: a view of the chain's shape, `step` words further for each of the runtime scalar `pos`."""

    view: View
    pos: Value | None = None
    step: int = 0

    @property
    def key(self) -> tuple:
        v = self.view
        return id(v.base), v.offset, v.shape, v.strides, self.pos, self.step


@dataclass(frozen=True, eq=False)
class Chain(Lazy):
    """Elementwise steps on sources; without steps it is its one source."""

    steps: tuple[Step, ...]
    sources: tuple[Source, ...]
    shape: tuple[int, ...]

    def map(self, fn: Map) -> Chain:
        sources = tuple(replace(x, view=x.view.map(fn)) for x in self.sources)
        return Chain(self.steps, sources, sources[0].view.shape)

    def make(self, s: Lowering, to: View | None = None) -> View:
        """to: where it shall lie, else in a buffer of its own."""
        y = to or s.buffer(self.shape)
        if not self.steps:
            (x,) = self.sources
            return s.copy(x.view, y, x.pos, x.step, into_dst=False)
        merged, (*strides, out) = merge_axes(self.shape, *(x.view.strides for x in self.sources), y.strides)
        constants: dict[str, float] = {"N": prod(merged), "Y": y.offset // WORD}
        constants |= {f"D{a}": n for a, n in enumerate(merged)} | {f"Y_{a}": n for a, n in enumerate(out)}
        for j, (x, st) in enumerate(zip(self.sources, strides)):
            constants |= {f"O{j}": x.view.offset // WORD} | {f"S{j}_{a}": n for a, n in enumerate(st)}
            if x.pos is not None:
                constants |= {f"P{j}": s.slots[x.pos.name], f"P{j}_STEP": x.step}
        moving = tuple(x.pos is not None for x in self.sources)
        text = kernel(self.steps, len(self.sources), len(merged), moving)
        name = f"{'_'.join(op for op, _ in self.steps[:4])}_{crc32(text.encode()):08x}"
        s.sources[name] = text
        bindings = [*(x.view for x in self.sources), y, *([s.scalars] if any(moving) else [])]
        s.call(name, bindings, -(-prod(self.shape) // 256), **constants)
        return y


def chain_of(x: View | Lazy) -> Chain | None:
    """A view as a chain of nothing; None for other lazy values."""
    if isinstance(x, View):
        return Chain((), (Source(x),), x.shape)
    return x if isinstance(x, Chain) else None


def joined(op: str, operands: list[Chain], shape: tuple[int, ...]) -> Chain | None:
    """op on chains, as one: what is read or computed twice is there once. None where it is too long for one kernel."""
    sources: list[Source] = []
    steps: list[Step] = []

    def source(x: Source) -> int:
        x = replace(x, view=x.view.map(lambda a: np.broadcast_to(a, shape)))
        for j, other in enumerate(sources):
            if other.key == x.key:
                return j
        sources.append(x)
        return len(sources) - 1

    def step(new: Step) -> int:
        if new not in steps:
            steps.append(new)
        return -1 - steps.index(new)

    ends = []
    for c in operands:
        places = [source(x) for x in c.sources]
        results: list[int] = []
        for name, args in c.steps:
            results.append(step((name, tuple(places[a] if a >= 0 else results[-1 - a] for a in args))))
        ends.append(results[-1] if c.steps else places[0])
    last = step((op, tuple(ends)))
    if len(sources) > MAX_INPUTS or len(steps) > MAX_STEPS or last != -len(steps):
        return None
    return Chain(tuple(steps), tuple(sources), shape)


@dataclass(frozen=True, eq=False)
class Normed(Lazy):
    """rms_norm (no bias) or layer_norm of the rows of x."""

    x: View
    weight: View
    bias: View | None
    eps: float

    def map(self, fn: Map) -> Normed:
        x = self.x.map(fn)
        if x.shape[-1:] != self.x.shape[-1:] or x.strides[-1] != 1:
            raise ValueError("the last axis is no longer the one that is normalised")
        return replace(self, x=x)

    def make(self, s: Lowering) -> View:
        x, m, ldx = s.as_rows(self.x)
        y, n = s.buffer(self.x.shape), self.x.shape[-1]
        constants: dict[str, Any] = {"M": m, "N": n, "X": x.offset // WORD, "LDX": ldx, "W": self.weight.offset // WORD,
                                     "Y": y.offset // WORD, "EPS": self.eps}
        if self.bias is None:
            s.call(s.form("rms_norm", "subgroups"), [x, self.weight, y], m, **constants)
        else:
            constants["B"] = self.bias.offset // WORD
            s.call(s.form("layer_norm", "subgroups"), [x, self.weight, self.bias, y], m, **constants)
        return y


@dataclass(frozen=True, eq=False)
class Rotated(Lazy):
    """rope of x (batch, heads, n, d)."""

    x: View
    cos: View
    sin: View
    start: Value
    pairs: bool

    def turns_like(self, other: Rotated) -> bool:
        """Whether one kernel can do both: rows of one buffer, equally many and wide, by the same tables."""

        def key(r: Rotated) -> tuple:
            tables = r.cos.base, r.cos.offset, r.sin.base, r.sin.offset
            return id(r.x.base), r.x.shape[0], r.x.shape[2:], tables, r.start, r.pairs

        return key(self) == key(other)

    def make(self, s: Lowering) -> View:
        y = s.buffer(self.x.shape)
        place_heads(s, self.start, q=(self, y))
        return y


Placed = tuple[View | Rotated, View]
"""Rows of heads (batch, heads, n, d), perhaps to be turned, and where they shall lie."""


def place_heads(
    s: Lowering, pos: Value, q: Placed | None = None, k: Placed | None = None, v: Placed | None = None
) -> None:
    """One dispatch: q, k and v to their places, turned where they are `Rotated` (q and k, by the same tables). k and v go into
    caches, pos rows further. There are q, or k and v, or all; q and k lie in one buffer."""
    constants: dict[str, Any] = dict(s.scalar(pos))
    turned = next((x for x, _ in (p for p in (q, k) if p) if isinstance(x, Rotated)), None)
    total, sources = 0, []
    for name, placed in (("Q", q), ("K", k), ("V", v)):
        if placed is None:
            continue
        x, to = placed
        constants[f"{name}_TURN"] = int(isinstance(x, Rotated))
        x = x.x if isinstance(x, Rotated) else x
        x = x if x.strides[-1] == 1 else s.contiguous(x)
        batch, heads, n, d = x.shape
        sources.append(x)
        total += batch * heads * n * -(-d // 2)
        constants |= {"BATCH": batch, "ROWS": n, "D": d, f"{name}_HEADS": heads, name: x.offset // WORD,
                      f"{name}_TO": to.offset // WORD}
        for axis, a, b in zip(("BATCH", "HEAD", "ROW"), x.strides, to.strides):
            constants |= {f"{name}_{axis}": a, f"{name}_TO_{axis}": b}
    cos = sin = None
    if turned is not None:
        cos, sin = turned.cos, turned.sin
        constants |= {"COS": cos.offset // WORD, "SIN": sin.offset // WORD, "CAPACITY": cos.shape[0]}
        constants["PAIRS"] = int(turned.pairs)
    places = [p[1] if p else ... for p in (q, k, v)]
    last, entry = (..., "turn") if v is None else (sources[-1], "main" if q else "store")
    s.call("rope", [sources[0], last, cos, sin, *places, s.scalars], -(-total // 64), entry, **constants)


@dataclass(frozen=True, eq=False)
class Reduced(Lazy):
    """One number of each row of x (m, n), which is contiguous; as_float: an index that becomes a float."""

    x: View
    op: str
    shape: tuple[int, ...]
    as_float: bool = False

    def reads_like(self, other: Reduced) -> bool:
        """Whether both are of the same x."""
        a, b = self.x, other.x
        return a.base is b.base and (a.offset, a.shape, a.strides) == (b.offset, b.shape, b.strides)

    def map(self, fn: Map) -> Reduced:
        dense = fn(strided(self.shape))
        if not dense.flags.c_contiguous or dense.size != prod(self.shape):
            raise ValueError("not all numbers in their order")
        return replace(self, shape=dense.shape)

    def make(self, s: Lowering) -> View:
        y = s.buffer(self.shape)
        reduce(s, [(self, y)])
        return y


PLACES = {"sum": "SUM", "mean": "MEAN", "max": "MAX", "argmax": "ARGMAX", "log_sum_exp": "LOG_SUM_EXP"}


def reduce(s: Lowering, wanted: list[tuple[Reduced, View]]) -> None:
    """Different reductions of one x into one buffer: one dispatch. The numbers of each lie at even distances in its view."""
    x, y = wanted[0][0].x, wanted[0][1]
    m, n = x.shape
    constants: dict[str, float] = {"M": m, "N": n, "LDX": x.strides[0] if m > 1 else n, "X": x.offset // WORD}
    for r, to in wanted:
        _, ((step, *more),) = merge_axes(to.shape, to.strides)
        if more:
            raise ValueError(f"{r.op} into a view of {list(to.shape)} that is not one row of numbers")
        constants |= {PLACES[r.op]: to.offset // WORD, f"{PLACES[r.op]}_STEP": step}
        if r.op == "argmax":
            constants["AS_FLOAT"] = int(r.as_float)
    s.call(s.form("reduce", "subgroups"), [x, y], m, **constants)
