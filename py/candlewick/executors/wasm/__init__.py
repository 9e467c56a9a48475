"""The wasm executor: Programs as kernel calls in one shared memory, run by SIMD threads.

Python lowers once at load; a run writes the inputs, calls the C interpreter once, and reads the outputs asked for. The
`host` is what holds kernel memory and threads: wasmtime in CPython, the engine worker's JavaScript in a page. It offers

    free_base, threads, threads_asked, relaxed      where our memory begins; what runs
    reserve(end) -> bytes that were there           bytes [0, end) exist, the new ones are zeros; or MemoryError with numbers
    write(address, array), read(address, n_bytes)   copies in and out
    run(code_start, code_end) -> status             0 done, 1 stopped, else the run failed
    sources                                         set before load_weights: file name -> ByteSource
    await load_weights(recipe, on_progress)         JSON {staging, staging_bytes, tensors: [...]}: stream, pack, place
"""

from __future__ import annotations

import copy
import json
import struct
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np

from ...program import Instruction, Program
from .. import Executor, Progress, Stopped, WeightSource, bounds, check_bounds, checked_inputs
from ..plan import Entry, Plan
from .layout import Layout
from .lower import lower

MIN_STAGING_BYTES = 4 << 20
_ZEROS = np.zeros(1 << 18, np.uint8)


class Step:
    """The inputs of an entry that takes single numbers only, as a decode step does: checked without making arrays of them."""

    def __init__(self, entry: Entry, limits: Mapping[str, int]) -> None:
        integers = [slot.dtype == "i32" for slot in entry.small.values()]
        self.pack = struct.Struct("<" + "".join("i" if integer else "f" for integer in integers)).pack
        self.wanted = [(name, int if integer else float, limits.get(name)) for name, integer in zip(entry.small, integers)]

    def numbers(self, inputs: Mapping[str, Any]) -> bytes | None:
        """The words to write; None where something is not the plain number that was wanted: the long way says what."""
        if len(inputs) != len(self.wanted):
            return None
        found = []
        for name, kind, top in self.wanted:
            number = inputs.get(name)
            if type(number) is np.ndarray and number.size == 1:
                number = number.item()
            if type(number) is not kind or (top is not None and not 0 <= number <= top):
                return None
            found.append(number)
        try:
            return self.pack(*found)
        except (struct.error, OverflowError):
            return None


class WasmExecutor(Executor):
    """See the module text. One host, one executor at a time; `close` leaves the host ready for the next."""

    name = "wasm"

    def __init__(self, host: Any, reason: str = "") -> None:
        super().__init__(reason)
        self.host = host
        self.plans: list[Plan] = []
        self.entries: dict[str, Entry] = {}
        self._layout: Layout | None = None
        self._bounds: dict[str, dict[str, int]] = {}
        self._steps: dict[str, Step] = {}
        self._last = ""

    async def load(
        self, programs: Mapping[str, Program], weights: WeightSource, on_progress: Progress | None = None
    ) -> None:
        new = self._optimised(programs)
        # A copy, kept only when every byte is in place: a load that fails leaves no name behind that holds no data.
        layout = copy.deepcopy(self._layout) if self._layout else Layout(self.host.free_base)
        layout.begin(weights.bound, weights.constants)
        lower(new, layout)
        plan = layout.plan
        staging, staging_bytes = plan.staging, plan.staging_bytes
        if plan.recipe and staging_bytes < MIN_STAGING_BYTES:
            staging, staging_bytes = -(-plan.end // 64) * 64, MIN_STAGING_BYTES
            layout.cursor = plan.end = staging + staging_bytes
        self._last = ""  # weights are laid out where the last run's outputs lie
        if on_progress and plan.recipe:
            on_progress("memory", 0, plan.end, "bytes")
        old = self.host.reserve(plan.end)
        for address, n_bytes in plan.zeros:
            end = min(address + n_bytes, old)  # what is new is zeros, and no page of it is touched before it is used
            for start in range(address, end, len(_ZEROS)):
                self.host.write(start, _ZEROS[: min(len(_ZEROS), end - start)])
        for address, array in plan.constants:
            self.host.write(address, array)
        self.host.write(plan.code_address, plan.code)
        if plan.recipe:
            recipe = {"staging": staging, "staging_bytes": staging_bytes, "tensors": plan.recipe}
            self.host.sources = weights.checkpoint.files
            report = on_progress and (lambda done, total: on_progress("weights", done, total, "bytes"))
            await self.host.load_weights(json.dumps(recipe), report)
        layout.begin({}, {})
        self._layout = layout
        self.plans.append(plan)
        self.entries |= plan.entries
        self.programs |= new
        self._bounds |= {name: bounds(p) for name, p in new.items()}
        self._steps |= {
            name: Step(e, self._bounds[name])
            for name, e in plan.entries.items()
            if e.small and not e.large and all(slot.nbytes == 4 for slot in e.small.values())
        }

    def _write_inputs(self, entry: str, inputs: Mapping[str, Any]) -> Entry:
        e = self.entries.get(entry)
        step = self._steps.get(entry)
        if step is not None and (numbers := step.numbers(inputs)) is not None:
            self.host.write(e.io, numbers)
            return e
        program = self._program(entry)
        arrays = checked_inputs(program, inputs)
        check_bounds(program, self._bounds[entry], arrays)
        e = self.entries[entry]
        if e.io_bytes:
            self.host.write(e.io, b"".join(arrays[n].tobytes() for n in e.small))
        for name, slot in e.large.items():
            self.host.write(slot.address, np.ascontiguousarray(arrays[name]))
        return e

    def _run(self, entry: str, start: int, end: int) -> None:
        status = self.host.run(start, end)
        if status == 1:
            raise Stopped(f"wasm: {entry} was stopped")
        if status != 0:
            raise RuntimeError(f"wasm: {entry} failed in a kernel (status {status}); its outputs are not to be used")

    async def run(
        self, entry: str, inputs: Mapping[str, Any], fetch: tuple[str, ...] | None = None
    ) -> dict[str, np.ndarray]:
        e = self._write_inputs(entry, inputs)
        self._last = ""
        self._run(entry, e.code_start, e.code_end)
        self._last = entry
        return await self.fetch(entry, tuple(e.outputs) if fetch is None else fetch)

    async def fetch(self, entry: str, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        if self._last != entry:
            raise ValueError(
                f"wasm: outputs of {entry!r} were asked for, the last finished run was of {self._last or 'nothing'!r}"
            )
        e = self.entries[entry]
        found, together = {}, b""
        for name in names:
            slot = e.outputs[name]
            place = slot.address - e.out
            if 0 <= place < e.out_bytes:
                together = together or self.host.read(e.out, e.out_bytes)
                data = np.frombuffer(together, slot.numpy, slot.nbytes // 4, place)
            else:
                data = np.frombuffer(self.host.read(slot.address, slot.nbytes), slot.numpy)
            found[name] = data.reshape(slot.shape)
        return found

    async def steps(self, entry: str, inputs: Mapping[str, Any]) -> AsyncIterator[tuple[Instruction, np.ndarray]]:
        e = self._write_inputs(entry, inputs)
        self._last = ""
        for instruction, (start, end), (address, shape, strides, dtype) in zip(
            self.programs[entry].instructions, e.segments, e.values
        ):
            if end > start:
                self._run(entry, start, end)
            span = 4 + sum((n - 1) * st for n, st in zip(shape, strides))
            flat = np.frombuffer(self.host.read(address, span), np.int32 if dtype == "i32" else np.float32)
            yield instruction, np.lib.stride_tricks.as_strided(flat, shape, strides).copy()

    async def profile(self, entry: str, inputs: Mapping[str, Any]) -> list[tuple[int, str, float]]:
        e, times = self._write_inputs(entry, inputs), []
        self._last = ""
        for index, (instruction, (start, end)) in enumerate(zip(self.programs[entry].instructions, e.segments)):
            begin = time.perf_counter()
            if start < end <= e.code_end:  # else it takes place inside a later kernel
                self._run(entry, start, end)
            times.append((index, instruction.op, (time.perf_counter() - begin) * 1000))
        return times

    async def close(self) -> None:
        self.plans, self.entries, self.programs, self._layout, self._last = [], {}, {}, None, ""
        self._bounds, self._steps = {}, {}

    def describe(self) -> dict[str, Any]:
        memory = {k: sum(p.bytes.get(k, 0) for p in self.plans) for k in ("weights", "state", "arena", "code")}
        memory["total"] = self._layout.cursor if self._layout else self.host.free_base
        return {
            "executor": self.name,
            "reason": self.reason,
            "threads": self.host.threads,
            "threads_asked": getattr(self.host, "threads_asked", self.host.threads),
            "relaxed_simd": bool(self.host.relaxed),
            "memory": memory,
        }
