"""Join linears that read the same x (query, key, value) into one with a taller weight: one pass over x, one barrier.

The joined weight is a Value with `parts`; an executor lays the parts behind one another when it loads them, so no weight
is held twice.
"""

from __future__ import annotations

import os.path
from collections import Counter, defaultdict

from ..dtypes import DTYPES
from ..program import Instruction, Program, Value

MULTIPLE = {"float": 12, "quant": 8}
"""Only weights whose row count is a multiple of this are joined: kernels read weights in panels of so many rows."""


def join_linears(program: Program) -> Program:
    """Groups of two or more plain linears of one x become one linear and a slice for each."""
    written = {i.out.name for i in program.instructions if i.out.kind == "state"}
    reads = Counter(a.name for i in program.instructions for a in i.args if a is not None and a.kind == "weight")
    groups: dict[tuple[str, str], list[Instruction]] = defaultdict(list)
    for i in program.instructions:
        if i.op == "linear" and _plain(i) and i.args[0].name not in written and reads[i.args[1].name] == 1:
            groups[_key(i)].append(i)
    groups = {x: g for x, g in groups.items() if len(g) > 1 and len({i.args[4] for i in g}) == 1}
    if not groups:
        return program
    member = {i.out.name for g in groups.values() for i in g}
    code: list[Instruction] = []
    for i in program.instructions:
        if i.out.name not in member or i.out.kind != "temp":
            code.append(i)
        elif i is groups[_key(i)][0]:
            code.extend(_join(groups[_key(i)]))
    return program.replace(instructions=tuple(code))


def _key(i: Instruction) -> tuple[str, str]:
    return i.args[0].name, i.args[1].dtype


def _plain(i: Instruction) -> bool:
    x, w, _bias, residual, _count = i.args
    return (
        x.kind in ("temp", "input", "state")
        and w.kind == "weight"
        and not w.parts
        and w.shape[0] % MULTIPLE[DTYPES[w.dtype].kind] == 0
        and residual is None
        and i.attrs["activation"] == i.attrs["final"] == "none"
    )


def _join(group: list[Instruction]) -> list[Instruction]:
    x = group[0].args[0]
    weights = [i.args[1] for i in group]
    n = sum(w.shape[0] for w in weights)
    weight = Value(
        _name([w.name for w in weights]), weights[0].dtype, (n, weights[0].shape[1]), "weight", parts=tuple(weights)
    )
    bias = None
    if any(i.args[2] is not None for i in group):
        parts = tuple(i.args[2] or Value("", "f32", (i.args[1].shape[0],), "weight") for i in group)
        bias = Value(_name([p.name or "0" for p in parts]), parts[0].dtype, (n,), "weight", parts=parts)
    out = Value(f"{group[0].out.name}j", "f32", (*x.shape[:-1], n))
    scope = (
        os.path.commonpath([i.scope.replace(".", "/") for i in group]).replace("/", ".")
        if all(i.scope for i in group)
        else ""
    )
    code = [Instruction("linear", out, (x, weight, bias, None, group[0].args[4]), dict(group[0].attrs), scope)]
    start = 0
    for i, w in zip(group, weights):
        stop = start + w.shape[0]
        code.append(Instruction("slice", i.out, (out,), {"axis": -1, "start": start, "stop": stop}, i.scope))
        start = stop
    return code


def _name(names: list[str]) -> str:
    """`blocks.0.{q,k,v}.weight`"""
    real = [n for n in names if n != "0"]
    head = os.path.commonprefix(real)
    tail = os.path.commonprefix([n[len(head) :][::-1] for n in real])[::-1]
    middles = [n[len(head) : len(n) - len(tail)] if n != "0" else "0" for n in names]
    return f"{head}{{{','.join(middles)}}}{tail}"
