"""What a quantised linear can do besides: an rms_norm before it, and silu(gate) up after it. Each would cost a barrier of its
own, and a token of a language model is some hundred small kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...program import Instruction, Program, Value
from .abi import Q_DTYPES, QPANEL, STORED_AS, THREAD_SCRATCH_BYTES, plain_panel_bytes


@dataclass
class Fusion:
    """Instructions that take place inside a later kernel, by the name of their result.

    norms: an rms_norm that only a quantised linear reads. gates: a swiglu -> the joined linear of both its operands.
    apart: all names that no kernel of a run writes; their own kernels run for `steps` only.
    """

    norms: dict[str, Instruction] = field(default_factory=dict)
    gates: dict[str, Instruction] = field(default_factory=dict)
    apart: set[str] = field(default_factory=set)


def find_fusions(program: Program, reads: Counter[str]) -> Fusion:
    """reads: how often each temporary value is read, as an output too."""
    found = Fusion()
    made = {i.out.name: i for i in program.instructions if i.out.kind == "temp"}

    def maker(v: Value | None, op: str) -> Instruction | None:
        i = made.get(v.name) if v is not None and v.kind == "temp" else None
        return i if i is not None and i.op == op and reads[v.name] == 1 else None

    for i in program.instructions:
        if i.op == "linear" and _quantised(i) and (norm := maker(i.args[0], "rms_norm")):
            if norm.args[0].kind in ("temp", "input") and norm.args[1].kind in ("weight", "constant"):
                found.norms[norm.out.name] = norm
                found.apart.add(norm.out.name)
        elif i.op == "swiglu":
            halves = [maker(v, "slice") for v in i.args]
            if not all(halves) or halves[0].args[0] != halves[1].args[0]:
                continue
            joined = made.get(halves[0].args[0].name)
            if joined is not None and joined.op == "linear" and reads[joined.out.name] == 2 and _gate(joined, halves):
                found.gates[i.out.name] = joined
                found.apart |= {joined.out.name, *(h.out.name for h in halves)}
    return found


def _quantised(i: Instruction) -> bool:
    return STORED_AS.get(i.args[1].dtype, i.args[1].dtype) in Q_DTYPES


def _gate(i: Instruction, halves: list[Instruction]) -> bool:
    """Two parts of equal, whole panels, nothing else to do at the end, and the first part in the first operand."""
    n = i.out.shape[-1]
    plain = i.args[2] is None and i.args[3] is None and i.attrs["activation"] == i.attrs["final"] == "none"
    ends = [(h.attrs["axis"] % len(i.out.shape), h.attrs["start"], h.attrs["stop"]) for h in halves]
    last = len(i.out.shape) - 1
    fits = 2 * plain_panel_bytes(i.args[1].shape[1], i.args[1].dtype) <= THREAD_SCRATCH_BYTES
    return plain and fits and _quantised(i) and n % (2 * QPANEL) == 0 and ends == [(last, 0, n // 2), (last, n // 2, n)]
