"""Executors run Programs. Three of them run the same ones: `numpy` (the definition), `wasm` (SIMD threads), `webgpu`.

An executor knows Programs and bytes. It does not know which model a Program came from, what a token is, or who asked.
`load` optimises and prepares; `run` is called once per encode or decode step and crosses to the kernels once. Everything
that a run leaves behind is in its outputs, which stay with the executor until they are fetched, and in its states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ..passes import optimise
from ..program import Instruction, Program, Value

Progress = Callable[[str, int, int, str], None]
"""on_progress(stage, done, total, unit)"""


class Stopped(Exception):
    """The run was ended by the stop word; its outputs and the states it wrote are not to be used."""


class ExecutorUnavailable(RuntimeError):
    """This executor cannot run here; the text says why and what can."""


class WeightSource(Protocol):
    """Where an executor takes weights from: `candlewick.weights.load.Weights`."""

    async def read(self, name: str) -> np.ndarray: ...


class Executor(ABC):
    """What all executors do."""

    name = ""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        self.programs: dict[str, Program] = {}

    @abstractmethod
    async def load(
        self, programs: Mapping[str, Program], weights: WeightSource, on_progress: Progress | None = None
    ) -> None:
        """Add Programs by entry name. Weights and states that are already there, by name, are shared, not loaded again."""

    @abstractmethod
    async def run(
        self, entry: str, inputs: Mapping[str, Any], fetch: tuple[str, ...] | None = None
    ) -> dict[str, np.ndarray]:
        """Run one entry. inputs: arrays and runtime scalars by name. fetch: outputs to bring back (None = all, () = none).

        Raises ValueError for inputs that do not fit, Stopped when the stop word ended the run.
        """

    @abstractmethod
    async def fetch(self, entry: str, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Outputs of the last run, which must have been of this entry."""

    @abstractmethod
    def steps(self, entry: str, inputs: Mapping[str, Any]) -> AsyncIterator[tuple[Instruction, np.ndarray]]:
        """Run one entry instruction by instruction; each comes with a copy of the value it made (for `compare`)."""

    @abstractmethod
    async def profile(self, entry: str, inputs: Mapping[str, Any]) -> list[tuple[int, str, float]]:
        """(index, op, milliseconds) of every instruction, each timed alone."""

    @abstractmethod
    async def close(self) -> None:
        """Give everything back."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """executor, reason, threads, threads_asked, relaxed_simd, memory {weights, state, arena, total} in bytes."""

    def _optimised(self, programs: Mapping[str, Program]) -> dict[str, Program]:
        """The Programs after the passes. ValueError where a name that is shared means two different things."""
        new = {name: optimise(p) for name, p in programs.items()}
        known: dict[str, Value] = {}
        for program in (*self.programs.values(), *new.values()):
            for name, value in {**program.weights, **program.states}.items():
                if known.setdefault(name, value) != value:
                    raise ValueError(
                        f"{program.name}: {value} is {value.type} here and {known[name].type} in a Program that is loaded; "
                        "what has one name is shared, so give one of them another"
                    )
        return new

    def _program(self, entry: str) -> Program:
        if entry not in self.programs:
            raise ValueError(
                f"{self.name}: no entry {entry!r} is loaded; there are {', '.join(self.programs) or 'none'}"
            )
        return self.programs[entry]


def checked_inputs(program: Program, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays for all inputs and scalars of a Program, in its dtypes. ValueError lists what is missing, unknown or misshapen."""
    wanted = program.inputs | program.scalars
    if given.keys() != wanted.keys():
        raise ValueError(
            f"{program.name} wants {', '.join(wanted)}; missing: {sorted(wanted.keys() - given.keys())}, "
            f"unknown: {sorted(given.keys() - wanted.keys())}"
        )
    arrays = {}
    for name, value in wanted.items():
        array = np.asarray(given[name], dtype=np.int32 if value.dtype == "i32" else np.float32)
        if array.shape != value.shape:
            raise ValueError(f"{program.name}: input {name} is {list(array.shape)}, wanted {value.type}")
        arrays[name] = array
    return arrays


def bounds(program: Program) -> dict[str, int]:
    """Largest allowed value of each input that counts: ids of an embedding, positions of `rows`, `rope`, `update` and
    causal `attention`, rows."""
    limits: dict[str, int] = {}

    def limit(v: Value | None, top: int) -> None:
        if v is not None and v.kind in ("input", "scalar"):
            limits[v.name] = min(limits.get(v.name, top), top)

    for i in program.instructions:
        if i.op == "embedding":
            limit(i.args[0], i.args[1].shape[0] - 1)
        elif i.op == "take":
            limit(i.args[1], i.args[0].shape[-1] - 1)
        elif i.op == "rows":
            limit(i.args[1], i.args[0].shape[0] - i.attrs["count"])
        elif i.op == "rope":
            limit(i.args[3], i.args[1].shape[0] - i.args[0].shape[2])
        elif i.op == "attention" and i.attrs["causal"]:
            limit(i.args[3], i.args[1].shape[2] - i.args[0].shape[2])
        elif i.op == "linear":
            limit(i.args[4], i.out.size // i.out.shape[-1])
        elif i.op == "update":
            axis = i.attrs["axis"]
            limit(i.args[2], i.args[0].shape[axis] - i.args[1].shape[axis])
    return limits


def check_bounds(program: Program, limits: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> None:
    """ValueError where an index lies outside its table or cache: kernels clamp it without a word."""
    for name, top in limits.items():
        array = arrays[name]
        if array.size == 1:
            low = high = array.item()
        elif array.size:
            low, high = array.min(), array.max()
        else:
            continue
        if low < 0 or high > top:
            raise ValueError(f"{program.name}: {name} goes from {low} to {high}, allowed are 0 to {top}")


def create(name: str = "auto", host: Any = None, threads: int | None = None) -> Executor:
    """An executor by name. auto: wasm where a host for it is at hand, else numpy, with the reason in `.reason`.

    host: what runs kernels for the wasm executor (in the page the engine worker's, in CPython made here from wasmtime).
    """
    from .numpy import NumpyExecutor

    if name == "numpy":
        return NumpyExecutor("chosen by hand")
    if name == "webgpu":
        from .webgpu import WebgpuExecutor

        if host is None:
            from .webgpu.host_wgpu import Host as Device

            host = Device()
        return WebgpuExecutor(host, "chosen by hand")
    if name not in ("auto", "wasm"):
        raise ExecutorUnavailable(f"executor {name!r}: there are auto, wasm, webgpu, numpy")
    from .wasm import WasmExecutor

    try:
        if host is None:
            from .wasm.host_wasmtime import Host

            host = Host(threads=threads or 1)
        return WasmExecutor(host, "chosen by hand" if name == "wasm" else "WebAssembly SIMD is here")
    except ExecutorUnavailable as e:
        if name == "wasm":
            raise
        return NumpyExecutor(f"wasm is not available: {e}")
