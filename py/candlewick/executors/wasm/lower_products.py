"""Matrix products and convolutions: views of their operands -> kernel calls, with their epilogues. See lower_ops.py."""

from __future__ import annotations

import numpy as np

from ...program import Instruction
from ..views import WORD, View, matmul_operands
from . import abi
from .lowering import Lowering, lowers


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
        return linear_q(s, i, y, n)
    x, m, ldx = s.as_rows(s.view(i.args[0]))
    s.call("linear", x=x, ldx=ldx, w=w, y=y, ldy=n, m=m, n=n, k=x.shape[-1], w_dtype=abi.W_DTYPES[dtype], count=_count(s, i),
           **_epilogue(s, i, n))
    return y


def linear_q(s: Lowering, i: Instruction, y: View, n: int) -> View:
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
    a, b = matmul_operands(s, i)
    (batch, m, k), n = a.shape, b.shape[1]
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
