"""One function an op, in the order of the op table: its operands' views -> kernel calls -> the view of its result.

Kernels that read rows at any stride (`linear`, `attention`, `binary`, `copy`) take views as they are; for the others
`contiguous` inserts a copy.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...program import Instruction
from ..views import WORD, View, merge_axes, reshaped
from . import abi
from .lower_products import linear_q
from .lowering import Lowering, lowers


@lowers("window_attention")
def _window_attention(s: Lowering, i: Instruction) -> View:
    (batch, height, width, wide), n_head, window = i.args[0].shape, i.attrs["n_head"], i.attrs["window"]
    d = wide // 3 // n_head
    words = window**2 * (2 * d + 76) + 60 * (2 * d + 32)  # about what window_attention.c wants
    if words * WORD > abi.THREAD_SCRATCH_BYTES:
        raise ValueError(f"window_attention: windows of {window} x {window} with heads of {d} do not fit a thread's scratch")
    y = s.buffer(i.out.shape)
    s.call(
        "window_attention",
        qkv=s.contiguous(s.view(i.args[0])),
        outside=s.contiguous(s.view(i.args[2])) if i.args[2] else 0,
        bias=s.contiguous(s.view(i.args[1])) if i.args[1] else 0,
        y=y,
        batch=batch,
        height=height,
        width=width,
        window=window,
        n_head=n_head,
        d=d,
        scale=i.attrs["scale"] or d**-0.5,
    )
    return y


@lowers("attention")
def _attention(s: Lowering, i: Instruction) -> View:
    q, k, v = (x if x.strides[-1] == 1 else s.contiguous(x) for x in map(s.view, i.args[:3]))
    (batch, h, n, d), hk, m = q.shape, k.shape[1], k.shape[2]
    y = s.buffer((batch, n, h, d)).map(lambda a: a.transpose(0, 2, 1, 3))  # heads merge without a copy
    scratch_bytes = abi.attention_scratch_bytes(hk, n, m, d)
    scratch = s.buffer((scratch_bytes // WORD,)) if scratch_bytes else 0
    bias = s.view(i.args[4]).map(lambda a: np.broadcast_to(a, (batch, h, n, m))) if i.args[4] else None
    if bias and bias.strides[3] != 1:
        bias = s.contiguous(bias)
    for b in range(batch):
        words: dict[str, int | View] = {"bias": 0, "bias_head": 0, "bias_row": 0}
        if bias:
            words = {"bias": bias.map(lambda a: a[b]), "bias_head": bias.strides[1], "bias_row": bias.strides[2]}
        for name, x in (("q", q), ("k", k), ("v", v), ("y", y)):
            words |= {name: x.map(lambda a: a[b]), f"{name}_head": x.strides[1], f"{name}_row": x.strides[2]}
        s.call(
            "attention",
            **words,
            n_head=h,
            n_group=h // hk,
            n_q=n,
            n_k=m,
            d=d,
            scale=i.attrs["scale"] or d**-0.5,
            causal=int(i.attrs["causal"]),
            start=s.position(i.args[3]) if i.args[3] else 0,
            scratch=scratch,
        )
    return y


@lowers("rope")
def _rope(s: Lowering, i: Instruction) -> View:
    """Heads at any strides: queries and keys are mostly parts of a joined projection."""
    x = s.view(i.args[0])
    x = x if x.strides[-1] == 1 else s.contiguous(x)
    (batch, h, n, d), y = x.shape, s.buffer(x.shape)
    for b in range(batch):
        words: dict[str, int | View] = {}
        for name, v in (("x", x), ("y", y)):
            words |= {name: v.map(lambda a: a[b]), f"{name}_head": v.strides[1], f"{name}_row": v.strides[2]}
        s.call(
            "rope",
            **words,
            cos=s.view(i.args[1]),
            sin=s.view(i.args[2]),
            start=s.position(i.args[3]),
            start_max=i.args[1].shape[0] - n,
            n_head=h,
            n=n,
            d=d,
            pairs=int(i.attrs["pairs"]),
        )
    return y


@lowers("layer_norm")
def _layer_norm(s: Lowering, i: Instruction) -> View:
    x, y = s.contiguous(s.view(i.args[0])), s.output(i)
    n = i.out.shape[-1]
    s.call(
        "layer_norm",
        x=x,
        w=s.view(i.args[1]),
        b=s.view(i.args[2]),
        y=y,
        m=prod(i.out.shape) // n,
        n=n,
        eps=i.attrs["eps"],
    )
    return y


@lowers("rms_norm")
def _rms_norm(s: Lowering, i: Instruction) -> View:
    x, m, ldx = s.as_rows(s.view(i.args[0]))
    y = s.output(i)
    s.call("rms_norm", x=x, ldx=ldx, w=s.view(i.args[1]), y=y, m=m, n=x.shape[-1], eps=i.attrs["eps"])
    return y


@lowers("softmax", "log_softmax")
def _softmax(s: Lowering, i: Instruction) -> View:
    x = s.contiguous(s.view(i.args[0]).map(lambda a: np.moveaxis(a, i.attrs["axis"], -1)))
    y = s.buffer(x.shape)
    n = x.shape[-1]
    s.call("softmax", x=x, y=y, m=prod(x.shape) // n, n=n, log=int(i.op == "log_softmax"))
    return y.map(lambda a: np.moveaxis(a, -1, i.attrs["axis"]))


@lowers("embedding")
def _embedding(s: Lowering, i: Instruction) -> View:
    ids, y = s.contiguous(s.view(i.args[0])), s.output(i)
    table, dtype = s.layout.panels(i.args[1])
    n_rows, n = i.args[1].shape
    kernel, codes = ("embedding_q", abi.Q_DTYPES) if dtype in abi.Q_DTYPES else ("embedding", abi.W_DTYPES)
    s.call(kernel, ids=ids, table=table, y=y, m=prod(ids.shape), n=n, n_rows=n_rows, w_dtype=codes[dtype])
    return y


@lowers("rows")
def _rows(s: Lowering, i: Instruction) -> View:
    table, start, count = s.view(i.args[0]), i.args[1], i.attrs["count"]
    if start.kind == "number":
        return table.map(lambda a: a[int(start.number) : int(start.number) + count])
    return s.copy(
        table.map(lambda a: a[:count]),
        s.buffer(i.out.shape),
        offset=s.view(start),
        offset_stride=table.strides[0],
        offset_max=table.shape[0] - count,
        into_dst=0,
    )


@lowers("top_k")
def _top_k(s: Lowering, i: Instruction) -> View:
    x, k = s.contiguous(s.view(i.args[0])), i.attrs["k"]
    n = x.shape[-1]
    y = s.buffer(i.out.shape)
    if n + n // k + 180 * k + 512 > abi.THREAD_SCRATCH_BYTES:  # what one thread alone may want, in the worst case
        raise ValueError(f"top_k: {k} of {n} values do not fit a thread's scratch of {abi.THREAD_SCRATCH_BYTES} bytes")
    s.call("top_k", x=x, y=y, m=prod(x.shape) // n, n=n, k=k)
    return y


@lowers("take")
def _take(s: Lowering, i: Instruction) -> View:
    x, ids = s.contiguous(s.view(i.args[0])), s.contiguous(s.view(i.args[1]))
    y, n, k = s.buffer(i.out.shape), x.shape[-1], ids.shape[-1]
    s.call("take", x=x, ids=ids, y=y, m=prod(ids.shape) // k, n=n, k=k)
    return y


@lowers("update")
def _update(s: Lowering, i: Instruction) -> View:
    state, x, pos, axis = s.view(i.args[0]), s.view(i.args[1]), i.args[2], i.attrs["axis"]
    n = x.shape[axis]
    first = int(pos.number) if pos.kind == "number" else 0
    place = state.map(lambda a: a[(slice(None),) * axis + (slice(first, first + n),)])
    if pos.kind == "number":
        if (x.base, x.offset, x.strides) != (place.base, place.offset, place.strides):  # else it was made there
            s.copy(x, place)
    else:
        s.copy(
            x,
            place,
            offset=s.view(pos),
            offset_stride=state.strides[axis],
            offset_max=state.shape[axis] - n,
            into_dst=1,
        )
    return state


@lowers("reshape")
def _reshape(s: Lowering, i: Instruction) -> View:
    return reshaped(s, s.view(i.args[0]), i.out.shape)


@lowers("transpose")
def _transpose(s: Lowering, i: Instruction) -> View:
    return s.view(i.args[0]).map(lambda a: a.transpose(i.attrs["axes"]))


@lowers("slice")
def _slice(s: Lowering, i: Instruction) -> View:
    axis = i.attrs["axis"] % len(i.out.shape)
    return s.view(i.args[0]).map(lambda a: a[(slice(None),) * axis + (slice(i.attrs["start"], i.attrs["stop"]),)])


@lowers("concat")
def _concat(s: Lowering, i: Instruction) -> View:
    y, axis, start = s.buffer(i.out.shape), i.attrs["axis"] % len(i.out.shape), 0
    for v in i.args:
        stop = start + v.shape[axis]
        s.copy(s.view(v), y.map(lambda a: a[(slice(None),) * axis + (slice(start, stop),)]))
        start = stop
    return y


@lowers("pad")
def _pad(s: Lowering, i: Instruction) -> View:
    x, y, axis = s.view(i.args[0]), s.buffer(i.out.shape), i.attrs["axis"] % len(i.out.shape)
    s.call("fill", dst=y, count=prod(i.out.shape), value=0.0)
    first = i.attrs["before"]
    s.copy(x, y.map(lambda a: a[(slice(None),) * axis + (slice(first, first + x.shape[axis]),)]))
    return y


@lowers("cast")
def _cast(s: Lowering, i: Instruction) -> View:
    x = s.view(i.args[0])
    if i.args[0].dtype == i.out.dtype:
        return x
    x, y = s.contiguous(x), s.buffer(i.out.shape)
    s.call("cast", mode=int(i.out.dtype == "f32"), x=x, y=y, count=prod(i.out.shape))
    return y


@lowers(*abi.UNARY)
def _unary(s: Lowering, i: Instruction) -> View:
    x, y = s.contiguous(s.view(i.args[0])), s.output(i)
    s.call("unary", op=abi.UNARY[i.op], x=x, y=y, count=prod(i.out.shape))
    return y


@lowers(*abi.BINARY)
def _binary(s: Lowering, i: Instruction) -> View:
    shape = i.out.shape
    if i.out.name in s.fusion.gates:
        for v in i.args:
            s.hold(s.view(v))
        return linear_q(s, s.fusion.gates[i.out.name], s.output(i), shape[-1])
    a, b = (s.view(v).map(lambda x: np.broadcast_to(x, shape)) for v in i.args)
    merged, (sa, sb) = merge_axes(shape, a.strides, b.strides)
    if len(merged) > 2:
        a, b = s.copy(a, s.buffer(shape)), s.copy(b, s.buffer(shape))
        merged, sa, sb = (prod(shape),), (1,), (1,)
    outer, inner = (1, *merged)[-2:] if len(merged) < 2 else merged
    (ao, ai), (bo, bi) = ((0, 0, *sa)[-2:], (0, 0, *sb)[-2:])
    y = s.output(i)
    s.call(
        "binary",
        op=abi.BINARY[i.op],
        a=a,
        a_outer=ao,
        a_inner=ai,
        b=b,
        b_outer=bo,
        b_inner=bi,
        y=y,
        n_outer=outer,
        n_inner=inner,
    )
    return y


@lowers(*abi.REDUCE)
def _reduce(s: Lowering, i: Instruction) -> View:
    x, axis = s.view(i.args[0]), i.attrs["axis"]
    if axis is None:
        x = s.contiguous(x).map(lambda a: np.reshape(a, (1, -1), copy=False))
    else:
        x = s.contiguous(x.map(lambda a: np.moveaxis(a, axis, -1)))
    y = s.buffer(i.out.shape)
    n = x.shape[-1]
    s.call("reduce", op=abi.REDUCE[i.op], x=x, y=y, m=prod(x.shape) // n, n=n)
    return y
