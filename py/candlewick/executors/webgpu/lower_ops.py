"""One function an op, in the order of the op table: its operands' views -> dispatches -> the view of its result."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ...program import Instruction
from ..views import View, merge_axes, reshaped
from .elementwise import FORMULAS
from .fusion import Heads
from .lazy import PLACES, Chain, Lazy, Normed, Placed, Reduced, Rotated, Source, chain_of, joined, place_heads, reduce
from .lowering import DTYPES, Lowering, lowers, words

MAX_RANKED = 1024
"""Largest k that top_k.wgsl ranks at once."""
SMALL = 4096
"""Elements: what has no more, and is read twice, is computed twice rather than by a kernel of its own."""


@lowers("rope")
def _rope(s: Lowering, i: Instruction) -> View | Lazy:
    turned = Rotated(s.view(i.args[0]), s.view(i.args[1]), s.view(i.args[2]), i.args[3], i.attrs["pairs"])
    return turned if s.reads[i.out.name] == 1 and not s.changes(turned.x) else turned.make(s)


@lowers("layer_norm", "rms_norm")
def _norm(s: Lowering, i: Instruction) -> View | Lazy:
    x, weight, bias = s.view(i.args[0]), s.view(i.args[1]), s.view(i.args[2]) if i.op == "layer_norm" else None
    normed = Normed(x if x.shape[-1] == 1 or x.strides[-1] == 1 else s.contiguous(x), weight, bias, i.attrs["eps"])
    return normed.make(s) if s.changes(x, weight, bias) else normed


@lowers("softmax", "log_softmax")
def _softmax(s: Lowering, i: Instruction) -> View:
    x = s.contiguous(s.view(i.args[0]).map(lambda a: np.moveaxis(a, i.attrs["axis"], -1)))
    y, n = s.buffer(x.shape), x.shape[-1]
    m = prod(x.shape) // n
    s.call(s.form("softmax", "subgroups"), [x, y], m, M=m, N=n, X=words(x), Y=words(y), LOG=int(i.op == "log_softmax"))
    return y.map(lambda a: np.moveaxis(a, -1, i.attrs["axis"]))


@lowers("embedding")
def _embedding(s: Lowering, i: Instruction) -> View:
    ids, y = s.contiguous(s.view(i.args[0])), s.buffer(i.out.shape)
    table = i.args[1]
    m, (n, k) = prod(ids.shape), table.shape
    for w, first, part in s.matrix(table):
        s.call("linear", [..., w, ..., ..., y, ..., ids], -(-m * k // 256), "rows", M=m, N=part, FIRST=first, TABLE=n, K=k,
               X=words(ids), LDX=k, Y=words(y), LDY=k, DTYPE=DTYPES.get(table.dtype, 0))
    return y


@lowers("rows")
def _rows(s: Lowering, i: Instruction) -> View | Lazy:
    table, start, count = s.view(i.args[0]), i.args[1], i.attrs["count"]
    if count == table.shape[0]:
        return table  # they begin at 0
    if start.kind == "number":
        return table.map(lambda a: a[int(start.number) : int(start.number) + count])
    some = Chain((), (Source(table.map(lambda a: a[:count]), start, table.strides[0]),), i.out.shape)
    return some.make(s) if s.changes(table) else some


@lowers("top_k")
def _top_k(s: Lowering, i: Instruction) -> View:
    x, y = s.contiguous(s.view(i.args[0])), s.buffer(i.out.shape)
    n, count = x.shape[-1], i.attrs["k"]
    m = prod(x.shape) // n
    s.call("top_k", [x, y], m, "main" if count <= MAX_RANKED else "rounds", M=m, N=n, COUNT=count, X=words(x), Y=words(y))
    return y


@lowers("take")
def _take(s: Lowering, i: Instruction) -> View:
    x, ids, y = s.contiguous(s.view(i.args[0])), s.contiguous(s.view(i.args[1])), s.buffer(i.out.shape)
    n, count = x.shape[-1], i.out.shape[-1]
    m = prod(x.shape) // n
    s.call("take", [x, ids, y], -(-m * count // 64), M=m, N=n, COUNT=count, X=words(x), IDS=words(ids), Y=words(y))
    return y


@lowers("update")
def _update(s: Lowering, i: Instruction) -> View:
    state, pos, axis = s.view(i.args[0]), i.args[2], i.attrs["axis"]
    if id(i) in s.placed:
        return state
    x = s.peek(i.args[1])
    together = s.heads.get(id(i))
    if together is not None and together.v.args[1].name in s.views:
        _place(s, together, x)
        return state
    x = s.view(i.args[1])
    s.copy(x, _first(state, axis, x.shape[axis]), pos, state.strides[axis])
    return state


def _first(x: View, axis: int, n: int, start: int = 0) -> View:
    return x.map(lambda a: a[(slice(None),) * axis + (slice(start, start + n),)])


def _place(s: Lowering, heads: Heads, x: View | Lazy) -> None:
    """Keys and values into their caches, and queries turned, by one kernel."""
    n = heads.k.args[1].shape[2]
    keys = x if isinstance(x, Rotated) else s.view(heads.k.args[1])
    if isinstance(keys, Rotated) and keys.start != heads.k.args[2]:
        keys = s.view(heads.k.args[1])
    to_k, to_v = (_first(s.view(i.args[0]), 2, n) for i in (heads.k, heads.v))
    placed: dict[str, Placed] = {"k": (keys, to_k), "v": (s.view(heads.v.args[1]), to_v)}
    q = heads.q
    if q is not None and isinstance(keys, Rotated) and q.out.name not in s.views and q.args[0].name in s.views:
        source, cos, sin = s.view(q.args[0]), s.view(q.args[1]), s.view(q.args[2])
        turned = Rotated(source, cos, sin, q.args[3], q.attrs["pairs"])
        if turned.turns_like(keys):
            s.views[q.out.name] = y = s.buffer(q.out.shape)
            placed["q"] = (turned, y)
    place_heads(s, heads.k.args[2], **placed)
    s.placed.add(id(heads.v))


@lowers("reshape")
def _reshape(s: Lowering, i: Instruction) -> View | Lazy:
    try:
        return s.mapped(i.args[0], lambda a: np.reshape(a, i.out.shape, copy=False))
    except ValueError:
        return reshaped(s, s.view(i.args[0]), i.out.shape)


@lowers("transpose")
def _transpose(s: Lowering, i: Instruction) -> View | Lazy:
    return s.mapped(i.args[0], lambda a: a.transpose(i.attrs["axes"]))


@lowers("slice")
def _slice(s: Lowering, i: Instruction) -> View | Lazy:
    axis, start, stop = i.attrs["axis"] % len(i.out.shape), i.attrs["start"], i.attrs["stop"]
    return s.mapped(i.args[0], lambda a: a[(slice(None),) * axis + (slice(start, stop),)])


@lowers("concat")
def _concat(s: Lowering, i: Instruction) -> View:
    """Chains and reductions that only go here are computed into their places."""
    y, axis, start = s.buffer(i.out.shape), i.attrs["axis"] % len(i.out.shape), 0
    rows: list[tuple[Reduced, View]] = []
    for v in i.args:
        to = _first(y, axis, v.shape[axis], start)
        x = s.peek(v) if v.kind == "temp" and s.reads[v.name] == 1 else None
        if isinstance(x, Chain):
            x.make(s, to)
        elif isinstance(x, Reduced) and len(merge_axes(to.shape, to.strides)[0]) == 1:
            rows.append((x, to))
        else:
            s.copy(s.view(v), to)
        start += v.shape[axis]
    while rows:
        first = rows[0][0]
        some = {x.op: (x, to) for x, to in rows if x.reads_like(first)}
        reduce(s, list(some.values()))
        rows = [pair for pair in rows if pair not in some.values()]
    return y


@lowers("pad")
def _pad(s: Lowering, i: Instruction) -> View:
    x, y, axis = s.view(i.args[0]), s.buffer(i.out.shape), i.attrs["axis"] % len(i.out.shape)
    size, first = prod(i.out.shape), i.attrs["before"]
    s.call("fill", [y], -(-size // 256), N=size, Y=words(y), VALUE=0)
    s.copy(x, y.map(lambda a: a[(slice(None),) * axis + (slice(first, first + x.shape[axis]),)]))
    return y


@lowers("cast")
def _cast(s: Lowering, i: Instruction) -> View | Lazy:
    x = s.peek(i.args[0])
    if isinstance(x, Reduced) and x.op == "argmax" and i.out.dtype == "f32" and s.reads[i.args[0].name] == 1:
        return replace(x, as_float=True)
    x = s.view(i.args[0])
    if i.args[0].dtype == i.out.dtype:
        return x
    x, y, size = s.contiguous(x), s.buffer(i.out.shape), prod(i.out.shape)
    s.call("cast", [x, y], -(-size // 256), N=size, X=words(x), Y=words(y), TO_FLOAT=int(i.out.dtype == "f32"))
    return y


@lowers(*FORMULAS)
def _elementwise(s: Lowering, i: Instruction) -> View | Lazy:
    operands = []
    for v in i.args:
        x = s.peek(v)
        cheap = v.kind != "temp" or s.reads[v.name] == 1 or (v.size <= SMALL and isinstance(x, Chain) and len(x.steps) <= 8)
        operands.append(chain_of(x) if cheap and isinstance(x, View | Chain) else chain_of(s.view(v)))
    chain = joined(i.op, operands, i.out.shape) or joined(i.op, [chain_of(s.view(v)) for v in i.args], i.out.shape)
    return chain.make(s) if s.changes(*(x.view for x in chain.sources)) else chain


@lowers(*PLACES)
def _reduce(s: Lowering, i: Instruction) -> View | Lazy:
    x, axis = s.view(i.args[0]), i.attrs["axis"]
    if axis is None:
        x = s.contiguous(x).map(lambda a: np.reshape(a, (1, -1), copy=False))
    else:
        x, _, _ = s.as_rows(x.map(lambda a: np.moveaxis(a, axis, -1)))
        x = x.map(lambda a: np.reshape(a, (-1, x.shape[-1]), copy=False))
    reduced = Reduced(x, i.op, i.out.shape)
    return reduced if s.reads[i.out.name] == 1 and not s.changes(x) else reduced.make(s)
