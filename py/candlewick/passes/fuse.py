"""Move an activation and a residual sum into the epilogue of the matrix product that makes their operand.

`linear` and the convolutions compute final(activation(x w^T + bias) + residual); done in the kernel, while the tile is in
registers or L1, neither costs a pass over memory of its own.
"""

from __future__ import annotations

from collections import Counter

from ..program import Instruction, Program, Value

PRODUCTS = ("linear", "conv1d", "conv2d", "conv_transpose2d")
ACTIVATIONS = ("gelu", "relu", "silu")
RESIDUAL = 3  # x, w, bias, residual


def fuse_epilogues(program: Program) -> Program:
    """Only a value that is read once, and is not an output, can disappear into an epilogue."""
    uses = Counter(a.name for i in program.instructions for a in i.args if a is not None and a.kind == "temp")
    uses.update(v.name for v in program.outputs.values())
    written = {i.out.name for i in program.instructions if i.out.kind == "state"}
    code: list[Instruction] = []
    at: dict[str, int] = {}  # value -> where its instruction stands in `code`

    def changes(v: Value | None) -> bool:
        """A state that this Program writes is not the same further down."""
        return v is not None and v.kind == "state" and v.name in written

    def product(v: Value | None) -> Instruction | None:
        """The matrix product that makes v, if it may be absorbed: read once, nothing at the end of its epilogue yet."""
        if v is None or v.kind != "temp" or uses[v.name] != 1:
            return None
        i = code[at[v.name]]
        if i is None or i.op not in PRODUCTS or any(map(changes, i.args)):
            return None
        return i if i.attrs.get("final", "none") == "none" else None

    for i in program.instructions:
        fused = None
        if i.op in ACTIVATIONS and (p := product(i.args[0])):
            slot = "final" if p.args[RESIDUAL:] and p.args[RESIDUAL] is not None else "activation"
            if p.attrs[slot] == "none":
                fused = p._replace(out=i.out, attrs={**p.attrs, slot: i.op})
        elif i.op == "add":
            for mine, other in (i.args, i.args[::-1]):
                p = product(mine)
                if (
                    p
                    and len(p.args) > RESIDUAL
                    and p.args[RESIDUAL] is None
                    and other.kind in ("temp", "input", "weight", "constant", "state")
                    and not changes(other)
                    and other.size == i.out.size == mine.size
                    and i.out.shape == mine.shape
                    and other.dtype != "i32"
                ):
                    fused = p._replace(out=i.out, args=(*p.args[:RESIDUAL], other, *p.args[RESIDUAL + 1 :]))
                    break
        if fused is not None:
            absorbed = i.args[0] if i.op in ACTIVATIONS else mine
            code[at[absorbed.name]] = None
        if i.out.kind == "temp":
            at[i.out.name] = len(code)
        code.append(fused or i)
    return program.replace(instructions=tuple(i for i in code if i is not None))
