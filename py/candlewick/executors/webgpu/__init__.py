"""The webgpu executor: Programs as compute shaders, one submit a run (several where it is long, see budget.py).

`load` lowers to a Plan: buffers, pipelines (a kernel with its constants) and dispatches with their bindings, all made once. A
run writes the inputs, submits every dispatch together and reads back the outputs that were asked for. The `host` holds the
device: `workers/webgpu.js` in a page, `host_wgpu.py` in CPython. It offers

    limits, features                       of the device: {maxBufferSize: bytes ...}, {"shader-f16" ...} by WebGPU's names
    buffer(n_bytes) -> number              a zeroed storage buffer; MemoryError where the device allows none so large (asked for
                                           after `budget.check_sizes`, which knows what it is for)
    await settle()                         whether those made so far are really there; MemoryError
    write(buffer, offset, bytes)           queued before what is submitted next
    sources                                set before load_weights: file name -> ByteSource
    await load_weights(recipe, on_progress)    JSON [[buffer, [[file, start, end] ...]] ...]: streamed, one range behind another
    await prepare(plan, on_progress)       JSON: pipelines are compiled, bind groups made; ExecutorUnavailable names the kernel
    await run(entry, first, last, reads) -> [bytes]    dispatches [first, last) of an entry, in one submit or, where the Plan
                                           cuts it, in several, with one readback; reads: (buffer, offset, n_bytes)
    gpu_ms                                 milliseconds that the device took for the last run; None where it does not tell
    release(first)                         buffers from this number on go; from 0, everything of all Plans
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...dtypes import n_bytes
from ...program import Instruction, Program, Value
from .. import Executor, ExecutorUnavailable, Progress, WeightSource, bounds, check_bounds, checked_inputs
from ..views import WORD, View
from . import lower_ops, lower_products  # noqa: F401  they register what lowers each op
from .budget import check_sizes, cuts
from .lowering import LOWER, Buffer, Lowering
from .weights import Filler, matrix_dtype, pieces, ranges, within

KERNELS = Path(__file__).with_name("kernels")
__all__ = ["LOWER", "WebgpuExecutor"]


class Entry:
    """One lowered Program: where its inputs and outputs are, and how its instructions fall into dispatches."""

    def __init__(self, lowering: Lowering) -> None:
        self.views = lowering.views
        self.inputs = {n: lowering.views[v.name] for n, v in lowering.program.inputs.items()}
        self.outputs: dict[str, tuple[View, Value]] = {}
        self.slots, self.scalars = lowering.slots, lowering.scalars
        self.marks, self.made = lowering.marks, lowering.made
        self.n_dispatches = len(lowering.dispatches)


class WebgpuExecutor(Executor):
    """See the module text. One host, one executor at a time."""

    name = "webgpu"

    def __init__(self, host: Any, reason: str = "") -> None:
        super().__init__(reason)
        self.host = host
        self.entries: dict[str, Entry] = {}
        self._buffers: dict[tuple[str, str], Buffer] = {}
        self._pool: list[Buffer] = []
        self._bounds: dict[str, dict[str, int]] = {}
        self._bytes = {"weights": 0, "state": 0, "arena": 0}
        self._n_buffers = 0
        self._last = ""

    # ---- loading

    async def load(
        self, programs: Mapping[str, Program], weights: WeightSource, on_progress: Progress | None = None
    ) -> None:
        new = self._optimised(programs)
        with self._all_or_nothing() as known:
            lowered = {name: self._lower(p) for name, p in new.items()}
            made = self._make(known, list(lowered.values()))
            if on_progress:
                on_progress("memory", 0, sum(self._bytes.values()), "bytes")
            await self.host.settle()
            await self._fill(made, new, weights, on_progress)
            sources = {n: text for s in lowered.values() for n, text in s.sources.items()}
            plan = _plan(lowered, sources)
            report = on_progress and (lambda done, total: on_progress("shaders", done, total, "steps"))
            await self.host.prepare(json.dumps(plan), report)
        for name, lowering in lowered.items():
            entry = self.entries[name] = Entry(lowering)
            entry.outputs = {n: (lowering.views[f"output {n}"], v) for n, v in new[name].outputs.items()}
        self.programs |= new
        self._bounds |= {name: bounds(p) for name, p in new.items()}

    @contextmanager
    def _all_or_nothing(self) -> Iterator[dict[tuple[str, str], Buffer]]:
        """What fails leaves no name behind that holds no data, and no buffer; -> the shared buffers of before."""
        known, pool, used, first = dict(self._buffers), list(self._pool), dict(self._bytes), self._n_buffers
        try:
            yield known
        except BaseException:
            self._buffers, self._pool, self._bytes, self._n_buffers = known, pool, used, first
            self.host.release(first)
            raise

    def _lower(self, program: Program, whole: bool = False) -> Lowering:
        """whole: with a value for every instruction, for `steps`."""
        slots = {name: place for place, name in enumerate(program.scalars)}
        scalars = self._buffers.setdefault(("scalars", program.name), Buffer(max(4, len(slots)), f"scalars {program.name}"))
        limits, features = (self.host.limits, self.host.features) if self.host is not None else ({}, ())
        s = Lowering(program, self._shared, scalars, slots, limits, frozenset(features), whole)
        for v in program.inputs.values():
            s.views[v.name] = s.buffer(v.shape)
            s.views[v.name].base.first = s.views[v.name].base.last = -1  # written before the first dispatch
        try:
            s.run()
        except ValueError as error:
            raise ExecutorUnavailable(f"webgpu: {program.name}: {error}") from error
        for name, v in program.outputs.items():
            x = s.contiguous(s.view(v))
            if isinstance(x.base, Buffer):
                x.base.last = 1 << 30
            s.views[f"output {name}"] = x
        return s

    def _shared(self, kind: str, v: Value, rows: tuple[int, int] | None = None) -> Buffer:
        """rows: of a matrix that does not fit into one buffer, those of this one."""
        name = f"{v.number!r}" if v.kind == "number" else v.name
        key = (kind, name if rows is None else f"{name} rows {rows[0]}:{rows[1]}")
        if key not in self._buffers:
            if kind == "matrix":
                first, end = rows or (0, v.shape[0])
                row = n_bytes(matrix_dtype(v), v.size) // v.shape[0]
                self._buffers[key] = Buffer(-(-row * (end - first) // WORD), name, skip=row * first)
            else:
                self._buffers[key] = Buffer(max(1, v.size), name)
        return self._buffers[key]

    def _place(self, s: Lowering) -> None:
        """Give every value of a Program a buffer of the pool: the smallest that is free and large enough, else a new one."""
        free = list(self._pool)
        busy: list[tuple[int, Buffer]] = []
        for b in sorted(s.buffers, key=lambda b: b.first):
            free += [place for last, place in busy if last < b.first]
            busy = [(last, place) for last, place in busy if last >= b.first]
            fits = [place for place in free if b.words <= place.words <= max(4 * b.words, 1024)]
            place = min(fits, key=lambda place: place.words, default=None)
            if place is None:
                place = Buffer(b.words)
                place.number = self._buffer(b.words)
                self._bytes["arena"] += b.words * WORD
                self._pool.append(place)
            else:
                free.remove(place)
            b.number = place.number
            busy.append((b.last, place))

    def _buffer(self, words: int) -> int:
        number = self.host.buffer(words * WORD)
        self._n_buffers = number + 1
        return number

    def _make(self, known: Mapping[tuple[str, str], Buffer], lowered: list[Lowering]) -> dict[tuple[str, str], Buffer]:
        """-> the buffers of weights, states, scalars and literals that were not known; values have theirs then, too."""
        made = {key: b for key, b in self._buffers.items() if key not in known}
        check_sizes(lowered, made)
        for (kind, _), b in made.items():
            b.number = self._buffer(b.words)
            if kind in ("flat", "matrix", "state"):
                self._bytes["state" if kind == "state" else "weights"] += b.words * WORD
        for s in lowered:
            self._place(s)
        return made

    async def _fill(
        self, made: Mapping[tuple[str, str], Buffer], programs: Mapping[str, Program], weights: Any,
        on_progress: Progress | None,
    ) -> None:
        """Weights, constants and literals into the buffers that are new; progress is in bytes of the device."""
        values = {v.name: v for p in programs.values() for v in p.weights.values()}
        total = sum(b.words * WORD for (kind, _), b in made.items() if kind in ("flat", "matrix"))
        recipe, done = [], 0
        for (kind, name), b in made.items():
            if kind == "number":
                self.host.write(b.number, 0, np.array([float(name)], np.float32).tobytes())
            elif kind in ("flat", "matrix"):
                streamed = ranges(kind, values[b.name], weights)
                if streamed is not None:
                    recipe.append((b.number, within(streamed, b.skip, b.words * WORD)))
                    continue
                filler = Filler(self.host.write, b.number, b.skip, b.words * WORD)
                async for data in pieces(kind, values[b.name], weights):
                    filler.add(data)
                    if on_progress:
                        on_progress("weights", done + filler.done, total, "bytes")
                filler.end()
                done += filler.done
        if recipe:
            self.host.sources = weights.checkpoint.files
            report = on_progress and (lambda n, _: on_progress("weights", min(total, done + n), total, "bytes"))
            await self.host.load_weights(json.dumps(recipe), report)

    # ---- running

    def _write_inputs(self, entry: str, inputs: Mapping[str, Any], whole: Entry | None = None) -> Entry:
        program = self._program(entry)
        arrays = checked_inputs(program, inputs)
        check_bounds(program, self._bounds[entry], arrays)
        e = whole or self.entries[entry]
        if e.slots:
            self.host.write(e.scalars.number, 0, b"".join(arrays[n].tobytes() for n in e.slots))
        for name, view in e.inputs.items():
            self.host.write(view.base.number, 0, np.ascontiguousarray(arrays[name]).tobytes())
        return e

    async def run(
        self, entry: str, inputs: Mapping[str, Any], fetch: tuple[str, ...] | None = None
    ) -> dict[str, np.ndarray]:
        e = self._write_inputs(entry, inputs)
        self._last = ""
        names = tuple(e.outputs) if fetch is None else fetch
        data = await self.host.run(entry, 0, e.n_dispatches, [_read(*e.outputs[n]) for n in names])
        self._last = entry
        return {n: _array(bytes_, e.outputs[n][1]) for n, bytes_ in zip(names, data)}

    async def fetch(self, entry: str, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        if self._last != entry:
            raise ValueError(
                f"webgpu: outputs of {entry!r} were asked for, the last finished run was of {self._last or 'nothing'!r}"
            )
        e = self.entries[entry]
        data = await self.host.run(entry, 0, 0, [_read(*e.outputs[n]) for n in names])
        return {n: _array(bytes_, e.outputs[n][1]) for n, bytes_ in zip(names, data)}

    async def steps(self, entry: str, inputs: Mapping[str, Any]) -> AsyncIterator[tuple[Instruction, np.ndarray]]:
        e, start = self._write_inputs(entry, inputs, await self._whole(entry)), 0
        self._last = ""
        for instruction, end, view in zip(self.programs[entry].instructions, e.marks, e.made):
            span = WORD + sum((n - 1) * st for n, st in zip(view.shape, view.array.strides))
            (data,) = await self.host.run(f"{entry} steps", start, end, [(view.base.number, view.offset, span)])
            start = end
            flat = np.frombuffer(data, np.int32 if instruction.out.dtype == "i32" else np.float32)
            yield instruction, np.lib.stride_tricks.as_strided(flat, view.shape, view.array.strides).copy()

    async def _whole(self, entry: str) -> Entry:
        """An entry with kernels for the values that a run passes by; made when `steps` asks for it."""
        self._program(entry)
        name = f"{entry} steps"
        if name not in self.entries:
            with self._all_or_nothing() as known:
                lowering = self._lower(self.programs[entry], whole=True)
                self._make(known, [lowering])
                await self.host.settle()
                await self.host.prepare(json.dumps(_plan({name: lowering}, lowering.sources)), None)
            self.entries[name] = Entry(lowering)
        return self.entries[name]

    async def profile(self, entry: str, inputs: Mapping[str, Any]) -> list[tuple[int, str, float]]:
        e, start, times = self._write_inputs(entry, inputs), 0, []
        self._last = ""
        for index, (instruction, end) in enumerate(zip(self.programs[entry].instructions, e.marks)):
            begin = time.perf_counter()
            ms = None
            if end > start:
                await self.host.run(entry, start, end, [(e.scalars.number, 0, WORD)])
                ms = self.host.gpu_ms
            times.append((index, instruction.op, (time.perf_counter() - begin) * 1000 if ms is None else ms))
            start = end
        return times

    async def close(self) -> None:
        self.host.release(0)
        self.entries, self.programs, self._buffers, self._pool, self._last = {}, {}, {}, [], ""
        self._n_buffers = 0
        self._bytes = dict.fromkeys(self._bytes, 0)

    def describe(self) -> dict[str, Any]:
        return {
            "executor": self.name,
            "reason": self.reason,
            "threads": 1,
            "threads_asked": 1,
            "relaxed_simd": False,
            "memory": {**self._bytes, "total": sum(self._bytes.values())},
        }


# ---- helpers


def _plan(lowered: Mapping[str, Lowering], sources: Mapping[str, str]) -> dict[str, Any]:
    """Plain data for the host: {kernels: {name: WGSL}, pipelines: [{kernel, entry, constants}],
    entries: {name: [[pipeline, [buffer numbers], [x, y, z]]]}, cuts: {name: [dispatch ...]}}; buffer -1 is a few zeros, -2
    is no binding at all; a new submit begins before each of the cuts."""
    pipelines: dict[tuple, int] = {}
    entries: dict[str, list[Any]] = {}
    for name, s in lowered.items():
        steps = entries[name] = []
        for d in s.dispatches:
            number = pipelines.setdefault((d.kernel, d.entry, d.constants), len(pipelines))
            steps.append([number, [-1 if b is None else -2 if b is ... else b.number for b in d.bindings], list(d.groups)])
    used = {kernel for kernel, _, _ in pipelines}
    return {
        "kernels": {k: sources[k] if k in sources else (KERNELS / f"{k}.wgsl").read_text() for k in sorted(used)},
        "pipelines": [{"kernel": k, "entry": e, "constants": dict(c)} for k, e, c in pipelines],
        "entries": entries,
        "cuts": {name: cuts(s.program, s.marks) for name, s in lowered.items()},
    }


def _read(view: View, value: Value) -> tuple[int, int, int]:
    return view.base.number, view.offset, prod(value.shape) * WORD


def _array(data: bytes, value: Value) -> np.ndarray:
    return np.frombuffer(data, np.int32 if value.dtype == "i32" else np.float32).reshape(value.shape)
