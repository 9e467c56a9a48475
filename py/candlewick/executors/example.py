"""Inputs that are allowed for any Program, for looking at it: comparing executors, timing instructions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..program import Program, Value
from . import bounds


def example_inputs(program: Program, position: int = 0, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Inputs that are allowed: from `known` by name, else waves, and ids and scalars within the Program's tables.

    Without numpy.random, which a page would have to load.
    """
    limits = bounds(program)
    inputs: dict[str, Any] = {}
    for name, value in program.inputs.items():
        given = (known or {}).get(name)
        if given is not None and np.shape(given) == value.shape:
            inputs[name] = given
        elif value.dtype == "i32":
            inputs[name] = (np.arange(value.size, dtype=np.int64) * 7919 % (limits.get(name, 0) + 1)).astype(np.int32)
        else:
            inputs[name] = np.sin(np.arange(value.size) * 12.9898).astype(np.float32)
        inputs[name] = inputs[name].reshape(value.shape)
    for name, value in program.scalars.items():
        given = (known or {}).get(name)
        if given is not None:
            inputs[name] = np.asarray(given).item()
        elif value.dtype == "i32":
            limit = limits.get(name, 0)
            inputs[name] = min(position, limit) if writes(program, value) else limit
        else:
            inputs[name] = 1.0  # a factor of 0 would leave nothing to see
    return inputs


def writes(program: Program, scalar: Value) -> bool:
    """True for the scalar that says where the state is written: the position."""
    return any(i.op == "update" and i.args[2] == scalar for i in program.instructions)


def advance(program: Program) -> int:
    """How many positions a run fills: the length written at a runtime position, 0 where there is none."""
    return max((i.args[1].shape[i.attrs["axis"]] for i in program.instructions
                if i.op == "update" and i.args[2] is not None and i.args[2].kind == "scalar"), default=0)
