"""The Program: what a model does, as a straight line of instructions on values of static shape.

A Program is plain data. It holds no callables, so it can be printed, compared, saved as JSON and run by any executor.
`verify` checks every instruction against the op table before an executor sees it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

SIGILS = {"temp": "%", "input": "%", "weight": "@", "constant": "@", "state": "!", "scalar": "$", "number": ""}


class Value(NamedTuple):
    """One value of a Program. A named tuple, as there are thousands: made and compared many times while a model loads.

    kind: temp (made by an instruction), input, weight (from a file), constant (made by the model), state (outlives a
    run), scalar (changes from run to run), number (a literal; `number` holds it).
    parts: a weight joined from others along its first axis; a part without a name stands for zeros.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str = "temp"
    number: float = 0.0
    parts: tuple[Value, ...] = ()

    def __str__(self) -> str:
        return f"{self.number:g}" if self.kind == "number" else SIGILS[self.kind] + self.name

    @property
    def type(self) -> str:
        """`f32[1,6,64]`"""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for s in self.shape:
            n *= s
        return n


class Instruction(NamedTuple):
    """`out = op(args, attrs)`. An absent optional argument is None. scope: the module path that said it."""

    op: str
    out: Value
    args: tuple[Value | None, ...]
    attrs: dict[str, Any]
    scope: str = ""

    def __str__(self) -> str:
        from .ops import OPS

        names = OPS[self.op].args
        words = []
        for position, (name, arg) in enumerate(zip(names, self.args)):
            if arg is not None:
                words.append(str(arg) if OPS[self.op].variadic or position < OPS[self.op].required else f"{name}={arg}")
        if OPS[self.op].variadic:
            words = [str(a) for a in self.args]
        attrs = "".join(f" {k}={_plain(v)}" for k, v in self.attrs.items() if v != OPS[self.op].attrs.get(k))
        line = f"{self.out}: {self.out.type} = {self.op}({', '.join(words)}){attrs}"
        return f"{line:<100} # {self.scope}" if self.scope else line


def _plain(v: Any) -> str:
    return str(v).replace(" ", "") if isinstance(v, tuple | list) else f"{v:g}" if isinstance(v, float) else str(v)


@dataclass(frozen=True)
class Program:
    """name, inputs, runtime scalars, outputs by name, instructions in order."""

    name: str
    inputs: dict[str, Value]
    scalars: dict[str, Value]
    outputs: dict[str, Value]
    instructions: tuple[Instruction, ...]

    def _of_kind(self, *kinds: str) -> dict[str, Value]:
        found = {a.name: a for i in self.instructions for a in (*i.args, i.out) if a is not None and a.kind in kinds}
        found.update({v.name: v for v in self.outputs.values() if v.kind in kinds})
        return found

    @property
    def weights(self) -> dict[str, Value]:
        """Weights and constants that the instructions read (a joined weight counts as itself), by name."""
        return self._of_kind("weight", "constant")

    @property
    def states(self) -> dict[str, Value]:
        """State buffers that the instructions read or write, by name."""
        return self._of_kind("state")

    def replace(self, **changes: Any) -> Program:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        head = ", ".join([f"{v}: {v.type}" for v in (*self.inputs.values(), *self.scalars.values())])
        tail = ", ".join(f"{name}={value}" for name, value in self.outputs.items())
        lines = [f"program {self.name}({head})", *(f"  {i}" for i in self.instructions), f"  return {tail}"]
        return "\n".join(lines) + "\n"

    def verify(self) -> Program:
        """Check every instruction against the op table; returns self. Raises ValueError that names the instruction."""
        from .ops import OPS

        known = {v.name for v in self.inputs.values()}
        for number, i in enumerate(self.instructions):
            where = f"program {self.name}, instruction {number} `{i.op}`{' in ' + i.scope if i.scope else ''}"
            if i.op not in OPS:
                raise ValueError(f"{where}: no such op; the op table has {', '.join(OPS)}")
            for a in i.args:
                if a is not None and a.kind in ("temp", "input") and a.name not in known:
                    raise ValueError(f"{where}: reads {a}, which no earlier instruction makes")
                if a is not None and a.kind == "scalar" and a.name not in self.scalars:
                    raise ValueError(f"{where}: reads {a}, which is not among the scalars {list(self.scalars)}")
            try:
                shape, dtype = OPS[i.op].infer(i.args, i.attrs)
            except (ValueError, TypeError) as e:
                raise ValueError(f"{where}: {e}") from None
            if (tuple(shape), dtype) != (i.out.shape, i.out.dtype):
                raise ValueError(f"{where}: makes {dtype}{list(shape)}, but its output is written as {i.out.type}")
            if i.out.kind == "temp":
                if i.out.name in known:
                    raise ValueError(f"{where}: {i.out} is made twice")
                known.add(i.out.name)
        for name, v in self.outputs.items():
            if v.kind in ("temp", "input") and v.name not in known:
                raise ValueError(f"program {self.name}: output {name} is {v}, which no instruction makes")
        return self

    def to_json(self) -> str:
        """The Program as JSON; `from_json` gives an equal one back."""

        def value(v: Value | None) -> Any:
            if v is None:
                return None
            row: list[Any] = [v.kind, v.name, v.dtype, list(v.shape)]
            if v.kind == "number":
                row.append(v.number)
            elif v.parts:
                row.append([value(p) for p in v.parts])
            return row

        table = {n: {k: value(v) for k, v in getattr(self, n).items()} for n in ("inputs", "scalars", "outputs")}
        code = [[i.op, value(i.out), [value(a) for a in i.args], i.attrs, i.scope] for i in self.instructions]
        return json.dumps({"name": self.name, **table, "instructions": code})

    @staticmethod
    def from_json(text: str) -> Program:
        """Inverse of `to_json`; the result is verified."""

        def value(row: Any) -> Value | None:
            if row is None:
                return None
            kind, name, dtype, shape, *more = row
            number = more[0] if kind == "number" else 0.0
            parts = tuple(value(p) for p in more[0]) if more and kind != "number" else ()
            return Value(name, dtype, tuple(shape), kind, number, parts)

        def attr(v: Any) -> Any:
            return tuple(v) if isinstance(v, list) else v

        o = json.loads(text)
        tables = {n: {k: value(v) for k, v in o[n].items()} for n in ("inputs", "scalars", "outputs")}
        code = tuple(
            Instruction(op, value(out), tuple(value(a) for a in args), {k: attr(v) for k, v in attrs.items()}, scope)
            for op, out, args, attrs, scope in o["instructions"]
        )
        return Program(o["name"], **tables, instructions=code).verify()
