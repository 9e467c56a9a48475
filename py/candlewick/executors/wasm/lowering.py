"""The state of lowering one Program: views of its values, buffers, and the kernel calls so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ...program import Instruction, Program, Value
from ..views import WORD, Buffer, View, merge_axes, strided
from .fusion import Fusion, find_fusions
from .layout import Layout

SMALL_OUTPUT_BYTES = 16384
"""Outputs up to this size get a place outside the arena, side by side, and are read at once."""

LOWER: dict[str, Callable[..., View | None]] = {}


def lowers(*ops: str):
    def register(fn):
        LOWER.update(dict.fromkeys(ops, fn))
        return fn

    return register


@dataclass
class Lowering:
    """The state of lowering one Program: views of its values and the kernel calls so far."""

    program: Program
    layout: Layout
    views: dict[str, View] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    calls: list[tuple[str, dict[str, int | float | View]]] = field(default_factory=list)
    apart_calls: list[tuple[str, dict[str, int | float | View]]] = field(default_factory=list)
    segments: list[tuple[bool, int, int]] = field(default_factory=list)
    """Of each instruction: (apart?, from, to) in `apart_calls` or `calls`."""
    made: list[View] = field(default_factory=list)
    padding: dict[str, int] = field(default_factory=dict)
    in_place: set[str] = field(default_factory=set)
    homes: dict[str, Value] = field(default_factory=dict)
    fusion: Fusion = field(default_factory=Fusion)
    is_apart: bool = False
    """The instruction takes place inside a later kernel: what it calls now runs for `steps` only."""

    # -- buffers and operands

    def buffer(self, shape: tuple[int, ...]) -> View:
        b = Buffer(prod(shape) * WORD)
        self.buffers.append(b)
        return View(b, strided(shape))

    def output(self, i: Instruction) -> View:
        """A contiguous place for the result of i: in the state that it is meant for, or with zero rows around it where a
        convolution will want them."""
        if i.out.name in self.homes:
            return View(self.layout.state(self.homes[i.out.name]), strided(i.out.shape))
        padding = self.padding.get(i.out.name)
        if not padding:
            return self.buffer(i.out.shape)
        self.in_place.add(i.out.name)
        return self.padded(i.out.shape, padding)

    def padded(self, shape: tuple[int, ...], padding: int) -> View:
        """(batch, n_ctx, c) inside a buffer of n_ctx + 2 padding rows, of which the outer ones are zero."""
        batch, n_ctx, c = shape
        whole = self.buffer((batch, n_ctx + 2 * padding, c))
        for b in range(batch):
            for row in (0, padding + n_ctx):
                self.call("fill", dst=whole.map(lambda a: a[b, row : row + padding]), count=padding * c, value=0.0)
        return whole.map(lambda a: a[:, padding : padding + n_ctx])

    def call(self, kernel: str, **args: int | float | View) -> None:
        position = len(self.calls)
        for a in args.values():
            if isinstance(a, View) and isinstance(a.base, Buffer):
                a.base.first, a.base.last = min(a.base.first, position), max(a.base.last, position)
        (self.apart_calls if self.is_apart else self.calls).append((kernel, args))

    def hold(self, x: View) -> None:
        """Keep a value made apart until here, where the kernel is that makes it needless."""
        if isinstance(x.base, Buffer):
            x.base.last = max(x.base.last, len(self.calls))

    def view(self, v: Value) -> View:
        """Any operand that is read elementwise."""
        if v.kind == "number":
            return View(self.layout.number(v.number), strided(()))
        if v.kind in ("weight", "constant"):
            return View(self.layout.flat(v), strided(v.shape))
        if v.kind == "state":
            return View(self.layout.state(v), strided(v.shape))
        return self.views[v.name]

    def position(self, v: Value) -> View:
        """A scalar that counts: an int32 in memory, whether it comes with each run or is written in the program."""
        return View(self.layout.number(v.number, "i32"), strided(())) if v.kind == "number" else self.view(v)

    def give_out(self, v: Value) -> None:
        """Make v an output: contiguous and alive to the end. Small ones get a place outside the arena, side by side."""
        x = self.contiguous(self.view(v))
        n_bytes = prod(x.shape) * WORD
        if n_bytes <= SMALL_OUTPUT_BYTES:
            if not (isinstance(x.base, Buffer) and x.base.size == n_bytes):
                x = self.copy(x, self.buffer(x.shape))
            x.base.pinned = True
        elif isinstance(x.base, Buffer):
            x.base.last = len(self.calls)
        self.views[v.name] = x

    def contiguous(self, x: View) -> View:
        return x if x.array.flags.c_contiguous else self.copy(x, self.buffer(x.shape))

    def copy(self, src: View, dst: View, **offset: int | View) -> View:
        """src -> dst of the same shape, at most four axes after merging (`offset`: see abi)."""
        shape, (s, t) = merge_axes(dst.shape, src.strides, dst.strides)
        if len(shape) > 4:
            raise ValueError(f"copy of {list(dst.shape)} has {len(shape)} separate axes; the kernel takes four")
        pad = 4 - len(shape)
        dims = {f"d{i}": n for i, n in enumerate((1,) * pad + shape)}
        ss = {f"s{i}": n for i, n in enumerate((0,) * pad + s)}
        tt = {f"t{i}": n for i, n in enumerate((0,) * pad + t)}
        where = {"offset": 0, "offset_stride": 0, "offset_max": 0, "into_dst": 0, **offset}
        self.call("copy", src=src, dst=dst, **dims, **ss, **tt, **where)
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

    # -- the whole program

    def run(self) -> None:
        """A value that only a padded convolution of one batch reads is made in its padded place at once, one that does nothing
        but replace a whole state is made in that."""
        reads = Counter(a.name for i in self.program.instructions for a in i.args if a is not None and a.kind == "temp")
        reads.update(v.name for v in self.program.outputs.values())
        self.padding = {
            i.args[0].name: i.attrs["padding"]
            for i in self.program.instructions
            if i.op == "conv1d" and i.args[0].kind == "temp" and i.args[0].shape[0] == 1 and reads[i.args[0].name] == 1
        }
        self.homes = self._homes(reads)
        self.fusion = find_fusions(self.program, reads)
        for i in self.program.instructions:
            self.is_apart = i.out.kind == "temp" and i.out.name in self.fusion.apart
            calls = self.apart_calls if self.is_apart else self.calls
            start = len(calls)
            result = LOWER[i.op](self, i)
            if i.out.kind == "temp":
                self.views[i.out.name] = result
            self.made.append(result)
            self.segments.append((self.is_apart, start, len(calls)))
        self.is_apart = False

    def _homes(self, reads: Counter[str]) -> dict[str, Value]:
        """Values that may be made in a state: nothing but a reshape reads them before they replace all of it, and nobody looks
        at the state in between."""
        code = self.program.instructions
        at = {i.out.name: position for position, i in enumerate(code) if i.out.kind == "temp"}
        homes: dict[str, Value] = {}
        for end, i in enumerate(code):
            if i.op != "update" or i.args[2].kind != "number" or i.args[1].size != i.out.size:
                continue
            value = i.args[1]
            while value.kind == "temp" and reads[value.name] == 1 and code[at[value.name]].op == "reshape":
                value = code[at[value.name]].args[0]
            if value.kind != "temp" or reads[value.name] != 1 or value.name in self.padding:
                continue
            between = code[at[value.name] : end]
            if not any(v is not None and v.name == i.out.name for j in between for v in (*j.args, j.out)):
                homes[value.name] = i.args[0]
        return homes
