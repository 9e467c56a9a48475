"""Remove what nobody reads, say the same thing once, and shorten chains of reshapes."""

from __future__ import annotations

from ..ops import OPS
from ..program import Instruction, Program, Value


def simplify(program: Program) -> Program:
    """Common subexpressions merged, reshape of reshape shortened, no-op shapes dropped, dead instructions removed."""
    seen: dict[tuple, Value] = {}
    renamed: dict[str, Value] = {}
    made: dict[str, Instruction] = {}
    epoch = 0  # states change in place, so equal reads of a state are equal only between two updates
    code: list[Instruction] = []

    def now(v: Value | None) -> Value | None:
        return renamed.get(v.name, v) if v is not None and v.kind == "temp" else v

    for i in program.instructions:
        args = tuple(now(a) for a in i.args)
        attrs = i.attrs
        if OPS[i.op].writes is not None:
            epoch += 1
            code.append(Instruction(i.op, i.out, args, attrs, i.scope))
            continue
        source = made.get(args[0].name) if i.op == "reshape" and args[0].kind == "temp" else None
        if source is not None and source.op == "reshape":
            args = source.args
        if (
            i.op in ("reshape", "transpose")
            and args[0].shape == i.out.shape
            and args[0].kind in ("temp", "input")
            and (i.op == "reshape" or tuple(attrs["axes"]) == tuple(range(len(args[0].shape))))
        ):
            renamed[i.out.name] = args[0]
            continue
        reads_state = any(a is not None and a.kind == "state" for a in args)
        key = (i.op, args, tuple(attrs.items()), epoch if reads_state else 0)
        if key in seen:
            renamed[i.out.name] = seen[key]
            continue
        seen[key] = i.out
        made[i.out.name] = new = Instruction(i.op, i.out, args, attrs, i.scope)
        code.append(new)

    outputs = {name: now(v) for name, v in program.outputs.items()}
    live = {v.name for v in outputs.values() if v.kind == "temp"}
    kept = []
    for i in reversed(code):
        if OPS[i.op].writes is None and i.out.name not in live:
            continue
        kept.append(i)
        live.update(a.name for a in i.args if a is not None and a.kind == "temp")
    return program.replace(instructions=tuple(reversed(kept)), outputs=outputs)
