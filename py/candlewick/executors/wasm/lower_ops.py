"""One function an op, in the order of the op table: its operands' views -> kernel calls -> the view of its result.

Kernels that read rows at any stride (`linear`, `attention`, `binary`, `copy`) take views as they are; for the others
`contiguous` inserts a copy.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...program import Instruction
from . import abi
from .lowering import Lowering, lowers
from .views import WORD, View, merge_axes


def _epilogue(s: Lowering, i: Instruction, n: int) -> dict[str, int | View]:
    bias, residual = i.args[2], i.args[3]
    words: dict[str, int | View] = {
        "bias": s.view(bias) if bias else 0,
        "residual": 0,
        "ldr": 0,
        "activation": abi.ACTIVATIONS[i.attrs["activation"]],
        "final": abi.ACTIVATIONS[i.attrs["final"]],
    }
    if residual:
        r, _, ldr = s.as_rows(s.contiguous(s.view(residual)).map(lambda a: np.reshape(a, (-1, n), copy=False)))
        words |= {"residual": r, "ldr": ldr}
    return words


@lowers("linear")
def _linear(s: Lowering, i: Instruction) -> View:
    y, n = s.output(i), i.out.shape[-1]
    w, dtype = s.layout.panels(i.args[1])
    if dtype in abi.Q_DTYPES:
        return _linear_q(s, i, y, n)
    x, m, ldx = s.as_rows(s.view(i.args[0]))
    s.call("linear", x=x, ldx=ldx, w=w, y=y, ldy=n, m=m, n=n, k=x.shape[-1], w_dtype=abi.W_DTYPES[dtype], count=_count(s, i),
           **_epilogue(s, i, n))
    return y


def _linear_q(s: Lowering, i: Instruction, y: View, n: int) -> View:
    """With the rms_norm that only it reads; where n is half its rows, the swiglu of both halves."""
    norm = s.fusion.norms.get(i.args[0].name)
    if norm:
        s.hold(s.view(i.args[0]))
    x, m, ldx = s.as_rows(s.view(norm.args[0] if norm else i.args[0]))
    w, dtype = s.layout.panels(i.args[1])
    k = i.args[1].shape[1]
    if abi.plain_panel_bytes(k, dtype) > abi.THREAD_SCRATCH_BYTES:
        raise ValueError(f"linear: rows of {k} {dtype} weights do not fit a thread's scratch of {abi.THREAD_SCRATCH_BYTES} "
                         "bytes; the numpy executor takes them")
    scratch_bytes = abi.quantised_scratch_bytes(m, k)
    s.call("linear_q", x=x, ldx=ldx, w=w, y=y, ldy=n, m=m, n=n, k=k, w_dtype=abi.Q_DTYPES[dtype], count=_count(s, i),
           scratch=s.buffer((scratch_bytes // WORD,)) if scratch_bytes else 0,
           norm=s.view(norm.args[1]) if norm else 0, eps=norm.attrs["eps"] if norm else 0.0,
           times=w + abi.panel_bytes(n, k, dtype) if n < i.out.shape[-1] else 0, **_epilogue(s, i, n))
    return y


def _count(s: Lowering, i: Instruction) -> int | View:
    return s.view(i.args[4]) if i.args[4] else 0


@lowers("conv1d")
def _conv1d(s: Lowering, i: Instruction) -> View:
    """Channels last: the taps of one output lie behind one another, so the rows of x are overlapping rows of a linear."""
    x, weight = s.view(i.args[0]), i.args[1]
    padding, stride = i.attrs["padding"], i.attrs["stride"]
    batch, n_ctx, c_in = x.shape
    c_out, _, taps = weight.shape
    n_out = i.out.shape[1]
    if padding and i.args[0].name in s.in_place:
        x = x.at(-padding * c_in * WORD)  # it was made in its padded place
    elif padding:
        x = s.copy(x, s.padded(x.shape, padding)).at(-padding * c_in * WORD)
    else:
        x = s.contiguous(x)
    w, dtype = s.layout.panels(weight)
    y = s.output(i)
    words = _epilogue(s, i, c_out)
    row_bytes = (n_ctx + 2 * padding) * c_in * WORD
    words |= {"count": 0, "w_dtype": abi.W_DTYPES[dtype]}
    for b in range(batch):
        one = dict(words)
        if isinstance(one["residual"], View):
            one["residual"] = one["residual"].at(b * n_out * one["ldr"] * WORD)
        s.call(
            "linear",
            x=x.at(b * row_bytes),
            ldx=stride * c_in,
            w=w,
            y=y.map(lambda a: a[b]),
            ldy=c_out,
            m=n_out,
            n=c_out,
            k=taps * c_in,
            **one,
        )
    return y


@lowers("conv2d")
def _conv2d(s: Lowering, i: Instruction) -> View:
    x, weight = i.args[0], i.args[1]
    (batch, height, width, c_in), (_, h_out, w_out, c_out) = x.shape, i.out.shape
    kh, kw = weight.shape[2:]
    stride, padding = i.attrs["stride"], i.attrs["padding"]
    w, dtype = s.layout.panels(weight)
    w_dtype = abi.W_DTYPES[dtype]
    if (kh, kw, stride, padding, i.attrs["groups"]) == (1, 1, 1, 0, 1):
        rows, m, ldx = s.as_rows(s.view(x))
        y = s.buffer(i.out.shape)
        s.call("linear", x=rows, ldx=ldx, w=w, y=y, ldy=c_out, m=m, n=c_out, k=c_in, w_dtype=w_dtype, count=0,
               **_epilogue(s, i, c_out))
        return y
    words = _epilogue(s, i, c_out)
    if words["residual"] and words.pop("ldr") != c_out:
        words["residual"] = s.contiguous(words["residual"])
    words.pop("ldr", None)
    picture = {"batch": batch, "height": height, "width": width, "h_out": h_out, "w_out": w_out, "stride": stride,
               "padding": padding, "w_dtype": w_dtype}
    x, y = s.contiguous(s.view(x)), s.buffer(i.out.shape)
    if i.attrs["groups"] > 1:
        if kh != kw:
            raise ValueError(f"conv2d: a depthwise kernel of {kh} x {kw}; the wasm executor has square ones")
        s.call("depthwise", x=x, y=y, w=w, channels=c_out, taps=kh, **picture, **words)
    else:
        s.call("conv2d", x=x, y=y, w=w, c_in=c_in, c_out=c_out, kh=kh, kw=kw, **picture, **words)
    return y


@lowers("conv_transpose2d")
def _conv_transpose2d(s: Lowering, i: Instruction) -> View:
    x, y = s.contiguous(s.view(i.args[0])), s.buffer(i.out.shape)
    (batch, height, width, c_in), c_out = i.args[0].shape, i.out.shape[3]
    s.call(
        "conv_transpose2d",
        x=x,
        batch=batch,
        height=height,
        width=width,
        c_in=c_in,
        w=s.contiguous(s.view(i.args[1])),
        bias=s.view(i.args[2]) if i.args[2] else 0,
        y=y,
        c_out=c_out,
        stride=i.attrs["stride"],
        activation=abi.ACTIVATIONS[i.attrs["activation"]],
    )
    return y


@lowers("matmul")
def _matmul(s: Lowering, i: Instruction) -> View:
    """Few rows of a against many of b^T are computed the other way round: columns of a panel are rows of the smaller one."""
    a, b = s.view(i.args[0]), s.view(i.args[1])
    if not i.attrs["transpose_b"]:
        b = b.map(lambda x: np.swapaxes(x, -1, -2))  # (..., n, k) from here on
    batch = prod(i.out.shape[:-2])
    (m, n), k = i.out.shape[-2:], a.shape[-1]
    a = _flat_batches(s, a, batch)
    b = _flat_batches(s, b, batch if len(i.args[1].shape) > 2 else 1)
    swapped = m < abi.PANEL < n and b.shape[0] == batch and b.strides[2] == 1
    if swapped:
        a, b, m, n = b, a, n, m
    if a.strides[2] != 1 and k > 1:
        a = s.contiguous(a)
    y = s.buffer((batch, m, n))
    s.call(
        "matmul",
        a=a,
        a_batch=a.strides[0],
        lda=a.strides[1],
        b=b,
        b_batch=b.strides[0] if b.shape[0] == batch else 0,
        b_k=b.strides[2],
        b_n=b.strides[1],
        y=y,
        y_batch=m * n,
        ldy=n,
        batch=batch,
        m=m,
        n=n,
        k=k,
    )
    if not swapped:
        return y.map(lambda x: np.reshape(x, i.out.shape, copy=False))
    return y.map(lambda x: np.swapaxes(np.reshape(x, (*i.out.shape[:-2], m, n), copy=False), -1, -2))


def _flat_batches(s: Lowering, x: View, batch: int) -> View:
    """(batch, rows, columns) with any strides."""
    shape = (batch, *x.shape[-2:])
    try:
        return x.map(lambda a: np.reshape(a, shape, copy=False))
    except ValueError:
        return s.contiguous(x).map(lambda a: np.reshape(a, shape, copy=False))


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
    x = s.view(i.args[0])
    try:
        return x.map(lambda a: np.reshape(a, i.out.shape, copy=False))
    except ValueError:
        return s.contiguous(x).map(lambda a: np.reshape(a, i.out.shape, copy=False))


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
        return _linear_q(s, s.fusion.gates[i.out.name], s.output(i), shape[-1])
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
