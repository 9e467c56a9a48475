"""What a device takes at once: buffers no larger than it allows, and submits that end before its driver's patience does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from ...program import Program
from ..cost import operations
from ..views import WORD
from .lowering import Buffer, Lowering

SUBMIT_OPERATIONS = 20_000_000_000
"""Of one submit, about. Drivers end what keeps the GPU busy for two seconds (Windows) to ten (Chromium), and until then nothing
else is drawn: at the 20 G operations a second that an old integrated GPU makes of these kernels it is one second, and at the
1000 of a desktop card, which a submit costs some ten microseconds, it is 20 ms."""
FOREVER = 1 << 30
"""A position behind any: of attention, all keys count."""


class TooLarge(MemoryError):
    """A buffer beyond what the device allows; data: {wanted, allowed} in bytes."""

    def __init__(self, message: str, wanted: int, allowed: int) -> None:
        super().__init__(message)
        self.data = {"wanted": wanted, "allowed": allowed}


def cuts(program: Program, marks: Iterable[int]) -> list[int]:
    """Dispatches before which a new submit begins, so that each has at most SUBMIT_OPERATIONS unless one instruction alone has
    more. marks: the number of dispatches after each instruction."""
    found, sum_ = [], 0
    for instruction, (start, end) in zip(program.instructions, pairwise([0, *marks])):
        cost = operations(instruction, FOREVER)
        if end > start and start > (found[-1] if found else 0) and sum_ + cost > SUBMIT_OPERATIONS:
            found.append(start)
            sum_ = 0
        sum_ += cost
    return found


def check_sizes(lowered: Iterable[Lowering], shared: Mapping[tuple[str, str], Buffer]) -> None:
    """TooLarge for the first buffer that this device does not allow, with what it is for; nothing has been made by then.

    Weight matrices are not too large: they lie in several buffers (`Lowering.matrix`). A cache or an activation lies in one.
    """
    for s in lowered:
        allowed = min(s.limits["maxBufferSize"], s.limits["maxStorageBufferBindingSize"])
        for (kind, _), b in shared.items():
            if b.words * WORD > allowed:
                raise too_large(f"{KINDS.get(kind, kind)} {b.name}", b, allowed, SMALLER.get(kind, "choose "))
        for b in s.buffers:
            if b.words * WORD > allowed:
                raise too_large(f"{s.program.name}: {maker(s, b)}", b, allowed)


KINDS = {"flat": "weight", "matrix": "weight", "state": "cache"}
SMALLER = {"state": "choose room for fewer tokens, "}


def too_large(what: str, b: Buffer, allowed: int, instead: str = "choose ") -> TooLarge:
    wanted = b.words * WORD
    return TooLarge(f"webgpu: {what} wants a buffer of {wanted / 1e6:.1f} MB, this GPU allows {allowed / 1e6:.1f} MB; "
                    f"{instead}a smaller model, or WASM, which has no such limit", wanted, allowed)


def maker(s: Lowering, b: Buffer) -> str:
    """In words: the instruction that a buffer of the pool is for."""
    if b.first < 0:
        name, value = next((n, v) for n, v in s.program.inputs.items() if getattr(s.views[v.name], "base", None) is b)
        return f"input {name}, {value.type},"
    for instruction, end in zip(s.program.instructions, s.marks):
        if b.first < end:
            where = f" of {instruction.scope}" if instruction.scope else ""
            return f"{instruction.op}{where}, {instruction.out.type},"
    return "an output"


def submits(first: int, last: int, places: Iterable[int]) -> list[tuple[int, int]]:
    """Dispatches [first, last) as those of each submit; there is always one."""
    return list(pairwise([first, *(place for place in places if first < place < last), last]))
