"""Programs -> one Plan. Every choice about shapes, strides and buffers is made in Python, once, at load.

`views.py` is what lowering knows of a value, `lowering.py` the state of one Program, `lower_ops.py` and
`lower_products.py` one function an op.
"""

from __future__ import annotations

import numpy as np

from ...passes.memory import Lifetime, plan_arena
from ...program import Program, Value
from ..plan import Entry, Slot
from ..views import WORD, Buffer, View, strided
from . import abi, lower_ops  # noqa: F401  (lower_ops fills LOWER)
from .layout import Layout
from .lowering import LOWER, Lowering

SMALL_INPUT_BYTES = 4096

__all__ = ["LOWER", "encode", "lower"]


def lower(programs: dict[str, Program], layout: Layout) -> None:
    """Optimised Programs -> `layout.plan`: weights, states, inputs, then one arena that all entries share, then code."""
    lowered: list[tuple[str, Lowering, dict[str, Slot], int, int]] = []
    for name, program in programs.items():
        s = Lowering(program, layout)
        io = layout.take(0)
        small: dict[str, Slot] = {}
        for v in (*program.scalars.values(), *program.inputs.values()):
            if v.size * WORD <= SMALL_INPUT_BYTES:
                small[v.name] = Slot(layout.cursor, v.shape, v.dtype)
                layout.cursor += v.size * WORD
                s.views[v.name] = View(small[v.name].address, strided(v.shape))
            else:
                s.views[v.name] = s.buffer(v.shape)
                s.views[v.name].base.first = s.views[v.name].base.last = 0
        io_bytes = layout.cursor - io
        s.run()
        for v in program.outputs.values():
            s.give_out(v)
        lowered.append((name, s, small, io, io_bytes))
    plan = layout.plan
    arena_bytes = 0
    for _, s, *_ in lowered:
        floating = [b for b in s.buffers if not b.pinned]
        offsets, total = plan_arena([Lifetime(b.size, b.first, b.last) for b in floating])
        for b, offset in zip(floating, offsets):
            b.address = offset
        arena_bytes = max(arena_bytes, total)
    arena = layout.arena_of(arena_bytes)
    outs: dict[str, tuple[int, int]] = {}
    for name, s, *_ in lowered:
        out = layout.take(0)
        for b in s.buffers:
            if b.pinned:
                b.address, layout.cursor = layout.cursor, layout.cursor + b.size
            else:
                b.address += arena
        outs[name] = out, layout.cursor - out
    plan.code_address = layout.take(0)
    words: list[int] = []
    for name, s, small, io, io_bytes in lowered:
        ends, apart = [plan.code_address + len(words) * WORD], []
        for places, calls in ((ends, s.calls), (apart, s.apart_calls)):
            for kernel, args in calls:
                words += encode(kernel, args)
                places.append(plan.code_address + len(words) * WORD)
        apart.insert(0, ends[-1])
        program = s.program
        slots = {n: _slot(s.views[v.name], v) for n, v in program.inputs.items() if n not in small}
        outputs = {n: _slot(s.views[v.name], v) for n, v in program.outputs.items()}
        values = tuple(
            (_address(view), view.shape, view.array.strides, i.out.dtype)
            for view, i in zip(s.made, program.instructions)
        )
        segments = tuple(((apart if aside else ends)[i], (apart if aside else ends)[j]) for aside, i, j in s.segments)
        plan.entries[name] = Entry(
            ends[0], ends[-1], segments, io, io_bytes, *outs[name], small, slots, outputs, values
        )
    plan.code = np.array(words, np.int64).astype(np.uint32).view(np.int32)
    layout.cursor = plan.code_address + plan.code.nbytes
    plan.bytes = {**layout.used, "code": plan.code.nbytes}
    plan.staging, plan.staging_bytes = layout.arena
    plan.end = layout.cursor


def _address(v: View) -> int:
    return (v.base.address if isinstance(v.base, Buffer) else v.base) + v.offset


def _slot(v: View, value: Value) -> Slot:
    return Slot(_address(v), value.shape, value.dtype)


def encode(kernel: str, args: dict[str, int | float | View]) -> list[int]:
    """One instruction as int32 words: id, length, arguments in the order of the kernel table."""
    names = abi.KERNELS[kernel]
    if args.keys() != set(names):
        raise ValueError(f"{kernel}: arguments {sorted(args.keys() ^ set(names))} are missing or unknown")
    words = [abi.IDS[kernel], len(names) + 2]
    for name in names:
        a = args[name]
        if isinstance(a, View):
            words.append(_address(a))
        elif name in abi.FLOATS:
            words.append(int(np.float32(a).view(np.uint32)))
        else:
            words.append(int(a) & 0xFFFFFFFF)
    return words
