"""Where everything lies in kernel memory: weights, states, literals and constants, for all Programs of one executor."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from ...dtypes import DTYPES, n_bytes
from ...passes.memory import ALIGN
from ...program import Value
from ..plan import Plan
from .abi import PACK_KINDS, PANEL, Q_DTYPES, QPANEL, SOURCE_DTYPES, STORED_AS, W_DTYPES, panel_bytes

FLOATS = (*W_DTYPES, "f64")
"""What can become flat float32."""


def pack_panels(weight: np.ndarray) -> np.ndarray:
    """(n, k) or (c_out, c_in, taps...) -> panels (ceil(n / PANEL), k, PANEL), what `pack` in C does for weights from files."""
    if weight.ndim > 2:
        weight = weight.reshape(*weight.shape[:2], -1).transpose(0, 2, 1).reshape(len(weight), -1)  # (c_out, taps * c_in)
    n, k = weight.shape
    panels = np.zeros((-(-n // PANEL) * PANEL, k), weight.dtype)
    panels[:n] = weight
    return np.ascontiguousarray(panels.reshape(-1, PANEL, k).transpose(0, 2, 1))


def recipe_line(file: str, start: int, end: int, dtype: str, kind: str, dst: int, n: int, k: int, taps: int = 1,
                dst_dtype: str = "f32") -> dict[str, Any]:
    """Bytes [start, end) of a file, n rows of k (channels, taps) of `dtype`, on their way to dst: flat or in panels.

    Hosts read whole rows, in panels multiples of `unit`, and hand `codes` (kind, dtype, dst_dtype) to the kernels' `pack`.
    """
    row_bytes, unit = n_bytes(dtype, k), 1 if kind == "flat" else QPANEL if dst_dtype in Q_DTYPES else PANEL
    if n * row_bytes != end - start:
        raise ValueError(f"{file}, bytes {start} to {end}: {n} rows of {k} {dtype} are {n * row_bytes}, not {end - start}")
    return {"file": file, "start": start, "row_bytes": row_bytes, "unit": unit, "dst": dst, "n": n, "k": k, "taps": taps,
            "codes": [PACK_KINDS[kind], SOURCE_DTYPES[dtype], SOURCE_DTYPES[dst_dtype]]}


class Layout:
    """Hands out addresses from a cursor. A weight is laid out once in each form (panels, flat) that is asked for."""

    def __init__(self, base: int) -> None:
        self.cursor = base
        self.weights: dict[tuple[str, str], int] = {}
        self.states: dict[str, int] = {}
        self.arena = 0, 0  # address and bytes of the largest so far
        self.numbers: dict[tuple[float, str], int] = {}
        self.begin({}, {})

    def begin(self, infos: Mapping[str, Any], constants: Mapping[str, np.ndarray]) -> None:
        """A new Plan, for weights that lie at `infos` in files or are at hand in `constants`; what is laid out stays."""
        self.infos, self.constants = infos, constants
        self.plan = Plan()
        self.used: dict[str, int] = {"weights": 0, "state": 0, "arena": 0}

    def take(self, n_bytes: int, region: str = "") -> int:
        """An aligned address with n_bytes behind it."""
        address = -(-self.cursor // ALIGN) * ALIGN
        self.cursor = address + n_bytes
        if region:
            self.used[region] += n_bytes
        return address

    def arena_of(self, n_bytes: int) -> int:
        """Room for the values of a run: that of an earlier load if it is large enough, for nothing there outlives a run."""
        if n_bytes > self.arena[1]:
            self.arena = self.take(n_bytes, "arena"), n_bytes
        return self.arena[0]

    def state(self, v: Value) -> int:
        """A state buffer, zero at first."""
        if v.name not in self.states:
            self.states[v.name] = self.take(v.size * 4, "state")
            self.plan.zeros.append((self.states[v.name], v.size * 4))
        return self.states[v.name]

    def number(self, x: float, dtype: str = "f32") -> int:
        """A literal in memory (f32 or i32), so that kernels read it like any operand."""
        if (x, dtype) not in self.numbers:
            self.numbers[x, dtype] = self.take(4)
            self.plan.constants.append((self.numbers[x, dtype], np.array([x], np.int32 if dtype == "i32" else np.float32)))
        return self.numbers[x, dtype]

    def flat(self, v: Value) -> int:
        """A weight as a flat float32 array (int32 for an integer constant)."""
        key = (v.name, "flat")
        if key not in self.weights:
            self.weights[key] = self.take(v.size * 4, "weights")
            address = self.weights[key]
            for part in v.parts or (v,):
                if not part.name:
                    self.plan.zeros.append((address, part.size * 4))
                elif part.kind == "constant":
                    self.plan.constants.append((address, self.constants[part.name]))
                else:
                    self._fetch(part, "flat", address, part.size, 1, 1, "f32")
                address += part.size * 4
        return self.weights[key]

    def panels(self, v: Value) -> tuple[int, str]:
        """A weight in panels -> (address, dtype there). 16-bit and quantised weights stay so, others become float32."""
        dtype = STORED_AS.get(v.dtype, v.dtype)
        if dtype not in W_DTYPES and dtype not in Q_DTYPES:
            dtype = "f32"
        n, k = v.shape[0], v.size // v.shape[0]
        key = (v.name, "panels")
        if key not in self.weights:
            self.weights[key] = self.take(panel_bytes(n, k, dtype), "weights")
            address = self.weights[key]
            for part in v.parts or (v,):
                if part.kind == "constant":
                    self.plan.constants.append((address, pack_panels(self.constants[part.name].astype(np.float32))))
                else:
                    taps = prod(part.shape[2:])
                    self._fetch(part, "panels", address, part.shape[0], k, taps, dtype)
                address += panel_bytes(part.shape[0], k, dtype)
        return self.weights[key], dtype

    def _fetch(self, part: Value, kind: str, dst: int, n: int, k: int, taps: int, dst_dtype: str) -> None:
        """One line of the recipe."""
        info = self.infos[part.name]
        if DTYPES[info.dtype].kind not in ("float", "quant") or (kind == "flat" and info.dtype not in FLOATS):
            raise ValueError(f"{part.name} is {info.dtype} in {info.file}; the wasm executor wants it as one of "
                             f"{', '.join(FLOATS if kind == 'flat' else SOURCE_DTYPES)} here")
        line = recipe_line(info.file, info.start, info.end, info.dtype, kind, dst, n, k, taps, dst_dtype)
        self.plan.recipe.append(line)
