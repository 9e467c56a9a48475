"""Trace: call a function once on symbolic Tensors and write down what it did as a Program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .program import Instruction, Program, Value
from .tensor import Tensor


@dataclass(frozen=True)
class Spec:
    """Shape and dtype of one input."""

    shape: tuple[int, ...]
    dtype: str = "f32"


class Tracer:
    """What is being written down. One at a time."""

    current: Tracer | None = None

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.scopes: list[str] = [""]

    def record(
        self,
        op: str,
        args: tuple[Value | None, ...],
        attrs: dict[str, Any],
        out: Value | None,
        shape: tuple[int, ...],
        dtype: str,
    ) -> Tensor:
        """Append one instruction. `out` is given for an op that writes state in place, else a new value is made."""
        out = out or Value(str(len(self.instructions)), dtype, tuple(int(s) for s in shape))
        self.instructions.append(Instruction(op, out, args, attrs, self.scopes[-1]))
        return Tensor(out)


@contextmanager
def scope(path: str):
    """Instructions recorded inside carry this module path."""
    tracer = Tracer.current
    if tracer is None:
        yield
        return
    tracer.scopes.append(path)
    try:
        yield
    finally:
        tracer.scopes.pop()


def trace(
    fn: Callable[..., Any],
    inputs: Mapping[str, Spec],
    scalars: Iterable[str] | Mapping[str, str] = (),
    name: str = "main",
) -> Program:
    """fn(**inputs, **scalars) on Tensors -> Program.

    scalars: runtime scalars, names (int32) or name -> dtype. fn returns a Tensor (output "out"), a dict of Tensors, or
    None where it only writes state.
    """
    if Tracer.current is not None:
        raise RuntimeError(f"trace of {name}: another trace is running; a model function may not trace by itself")
    types = scalars if isinstance(scalars, Mapping) else dict.fromkeys(scalars, "i32")
    ins = {n: Value(n, s.dtype, tuple(s.shape), "input") for n, s in inputs.items()}
    scs = {n: Value(n, dtype, (), "scalar") for n, dtype in types.items()}
    tracer = Tracer.current = Tracer()
    try:
        result = fn(**{n: Tensor(v) for n, v in (ins | scs).items()})
    finally:
        Tracer.current = None
    outputs = {} if result is None else result if isinstance(result, dict) else {"out": result}
    # nothing to verify: every instruction passed its rule when it was recorded
    return Program(name, ins, scs, {n: t.value for n, t in outputs.items()}, tuple(tracer.instructions))
