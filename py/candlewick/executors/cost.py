"""What an instruction must cost at least, by counting: a multiply-add is two operations, a function of an element is one."""

from __future__ import annotations

from math import prod
from typing import Any

FREE = {"reshape"}
MOVES = {"transpose", "slice", "concat", "cast", "rows", "embedding", "update", "take"}
PER_ELEMENT = {"softmax": 3, "log_softmax": 3, "layer_norm": 6, "rms_norm": 4, "rope": 3, "swiglu": 5}


def keys_seen(instruction: Any, position: int) -> int:
    """Keys that an attention reads: all of them, or with a mask those up to the last query's position."""
    _, _, n, _ = instruction.args[0].shape
    _, _, m, _ = instruction.args[1].shape
    if not instruction.attrs.get("causal"):
        return m
    start = instruction.args[3] if len(instruction.args) > 3 else None
    return min(m, (position if start is not None else 0) + n)


def operations(instruction: Any, position: int = 0) -> int:
    """Floating point operations of one instruction; position: of its first row, where that is a runtime scalar."""
    op, out, args = instruction.op, instruction.out, instruction.args
    elements = prod(out.shape)
    if op in FREE or op in MOVES:
        return 0
    if op == "linear":
        return 2 * elements * args[1].shape[1]
    if op in ("conv1d", "conv2d"):
        return 2 * elements * prod(args[1].shape[1:])
    if op == "conv_transpose2d":
        return 2 * elements * args[1].shape[0]
    if op == "matmul":
        return 2 * elements * args[0].shape[-1]
    if op == "window_attention":
        return 4 * elements * instruction.attrs["window"] ** 2
    if op == "attention":
        batch, heads, queries, width = args[0].shape
        keys = keys_seen(instruction, position)
        if instruction.attrs.get("causal") and keys >= queries:  # query i sees keys up to keys - queries + i
            pairs = queries * (keys - queries) + queries * (queries + 1) // 2
        else:
            pairs = queries * keys
        return batch * heads * pairs * (4 * width + 1)
    if op in ("max", "sum", "mean", "argmax", "log_sum_exp", "top_k"):
        return prod(args[0].shape) * (3 if op == "log_sum_exp" else 1)
    return PER_ELEMENT.get(op, 1) * elements
