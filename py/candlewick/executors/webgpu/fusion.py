"""What kernels do besides, seen ahead of time: a gate at the end of a product, and keys, values and queries of some positions
that go to their places together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ...program import Instruction, Program

AHEAD = 16
"""Instructions to look through for what belongs together; a layer has about so many."""


@dataclass(frozen=True)
class Heads:
    """Two updates at one position, and the rope of the queries that will look for them."""

    k: Instruction
    v: Instruction
    q: Instruction | None


def find_gates(program: Program, reads: Counter[str]) -> dict[str, Instruction]:
    """Joined linears by the name of their result, whose two halves only a swiglu reads -> that swiglu."""
    made = {i.out.name: i for i in program.instructions if i.out.kind == "temp"}
    found = {}
    for i in program.instructions:
        if i.op != "swiglu" or i.out.name in program.outputs:
            continue
        halves = [made.get(v.name) for v in i.args]
        if not all(h is not None and h.op == "slice" and reads[h.out.name] == 1 for h in halves):
            continue
        joined = made.get(halves[0].args[0].name)
        if joined is None or joined.op != "linear" or halves[1].args[0] != joined.out or reads[joined.out.name] != 2:
            continue
        _, _, bias, residual, _ = joined.args
        n, last = joined.out.shape[-1], len(joined.out.shape) - 1
        ends = [(h.attrs["axis"] % (last + 1), h.attrs["start"], h.attrs["stop"]) for h in halves]
        plain = bias is residual is None and joined.attrs["activation"] == joined.attrs["final"] == "none"
        if plain and n % 2 == 0 and ends == [(last, 0, n // 2), (last, n // 2, n)]:
            found[joined.out.name] = i
    return found


def find_heads(program: Program) -> dict[int, Heads]:
    """By the id of the first update: pairs of updates with nothing between them that reads their states."""
    code, found, taken = program.instructions, {}, set()
    for place, k in enumerate(code):
        if not _cache(k) or id(k) in taken:
            continue
        v = q = None
        for i in code[place + 1 : place + AHEAD]:
            states = {k.out.name, v.out.name if v else ""}
            if any(a is not None and a.kind == "state" and a.name in states for a in i.args):
                break
            if i.op == "update":
                if v is None and _cache(i) and i.args[2] == k.args[2] and i.args[1].shape == k.args[1].shape:
                    v = i
                else:
                    break
            elif i.op == "rope" and q is None and i.args[3] == k.args[2]:
                q = i
        if v is not None:
            found[id(k)] = Heads(k, v, q)
            taken.add(id(v))
    return found


def _cache(i: Instruction) -> bool:
    return i.op == "update" and len(i.out.shape) == 4 and i.attrs["axis"] == 2 and i.args[1].kind == "temp"
