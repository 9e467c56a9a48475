"""One function an op, in the order of the op table: its operands' views -> dispatches -> the view of its result."""

from __future__ import annotations

from math import prod

import numpy as np

from ...program import Instruction
from ..views import View, merge_axes
from .elementwise import FORMULAS, kernel
from .lowering import Lowering, groups, lowers, words

ACTIVATIONS = {"none": 0, "gelu": 1, "relu": 2, "silu": 3}
REDUCE = {"sum": 0, "mean": 1, "max": 2, "argmax": 3, "log_sum_exp": 4}
DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "q4_0": 3, "q4_1": 4, "q5_0": 5, "q5_1": 6, "q8_0": 7, "q4_k": 8, "q6_k": 9}
"""What kernels read as it lies in a file; every other type becomes float32 when it is loaded."""
FEW_ROWS = 4
"""Up to so many rows a product is made column by column, above in tiles."""
MAX_HEAD = 128
"""Largest d of a head that attention.wgsl takes."""


def _strides(name: str, x: View, axes: tuple[str, ...]) -> dict[str, int]:
    """Constants NAME (place) and NAME_AXIS (strides) of a view."""
    return {name: words(x), **{f"{name}_{axis}": s for axis, s in zip(axes, x.strides)}}


def _product(s: Lowering, i: Instruction, x: View, y: View, m: int, n: int, k: int, ldx: int, row: int = 0) -> None:
    """The dispatch of a product of m rows of x with the weight of i; `row` is the first row of y and of the residual."""
    weight, bias, residual = i.args[1:4]
    count = i.args[4] if len(i.args) > 4 else None
    constants: dict[str, float] = {"M": m, "N": n, "K": k, "X": words(x), "LDX": ldx, "Y": words(y), "LDY": n}
    constants |= {"ACTIVATION": ACTIVATIONS[i.attrs["activation"]], "FINAL": ACTIVATIONS[i.attrs["final"]]}
    constants |= {"DTYPE": DTYPES.get(weight.dtype, 0), **s.scalar(count)}
    b = s.view(bias) if bias is not None else None
    r = s.contiguous(s.view(residual)) if residual is not None else None
    if b is not None:
        constants |= {"HAS_BIAS": 1, "BIAS": words(b)}
    if r is not None:
        constants |= {"HAS_RESIDUAL": 1, "RESIDUAL": words(r) + row * n, "LDR": n}
    bindings = [x, s.shared("matrix", weight), b, r, y, s.scalars]
    if m <= FEW_ROWS:
        columns, rows, _ = groups(-(-n // 4))
        s.call("linear", bindings, (columns, rows, m), "few", **constants)
    else:
        s.call("linear", bindings, (-(-n // 64), -(-m // 64), 1), "tiles", **constants)


@lowers("linear")
def _linear(s: Lowering, i: Instruction) -> View:
    x, m, ldx = s.as_rows(s.view(i.args[0]))
    y = s.buffer(i.out.shape)
    n, k = i.args[1].shape
    _product(s, i, x, y, m, n, k, ldx)
    return y


def padded(s: Lowering, x: View, padding: int, axes: tuple[int, ...]) -> View:
    """x inside a frame of zeros along some axes."""
    if not padding:
        return s.contiguous(x)
    shape = tuple(n + 2 * padding * (a in axes) for a, n in enumerate(x.shape))
    whole = s.buffer(shape)
    s.call("fill", [whole], groups(-(-prod(shape) // 256)), N=prod(shape), Y=words(whole), VALUE=0)
    inner = tuple(slice(padding, padding + n) if a in axes else slice(None) for a, n in enumerate(x.shape))
    s.copy(x, whole.map(lambda a: a[inner]))
    return whole


@lowers("conv1d")
def _conv1d(s: Lowering, i: Instruction) -> View:
    """Channels last: the taps of one output lie behind one another, so the rows of x are overlapping rows of a product."""
    x, weight = padded(s, s.view(i.args[0]), i.attrs["padding"], (1,)), i.args[1]
    c_out, c_in, taps = weight.shape
    batch, n_out, _ = i.out.shape
    y = s.buffer(i.out.shape)
    for b in range(batch):
        _product(s, i, x.map(lambda a: a[b]), y.map(lambda a: a[b]), n_out, c_out, taps * c_in, i.attrs["stride"] * c_in,
                 b * n_out)
    return y


@lowers("conv2d")
def _conv2d(s: Lowering, i: Instruction) -> View:
    weight, stride, padding = i.args[1], i.attrs["stride"], i.attrs["padding"]
    (batch, height, width, c_in), (_, h_out, w_out, c_out) = i.args[0].shape, i.out.shape
    kh, kw = weight.shape[2:]
    y, m = s.buffer(i.out.shape), batch * h_out * w_out
    if (kh, kw, stride, padding, i.attrs["groups"]) == (1, 1, 1, 0, 1):
        x, m, ldx = s.as_rows(s.view(i.args[0]))
        _product(s, i, x, y, m, c_out, c_in, ldx)
        return y
    x = s.contiguous(s.view(i.args[0]))
    constants, bias, residual = _ends(s, i)
    constants |= {"M": m, "HEIGHT": height, "WIDTH": width, "H_OUT": h_out, "W_OUT": w_out, "STRIDE": stride,
                  "PADDING": padding, "X": words(x), "Y": words(y), "DTYPE": DTYPES.get(weight.dtype, 0)}
    bindings = [x, s.shared("matrix", weight), bias, residual, y]
    if i.attrs["groups"] > 1:
        if kh != kw:
            raise ValueError(f"conv2d: a depthwise kernel of {kh} x {kw}; the webgpu executor has square ones")
        s.call("depthwise", bindings, groups(-(-m * c_out // 256)), C=c_out, TAPS=kh, **constants)
    else:
        s.call("conv2d", bindings, (-(-m // 64), -(-c_out // 64), 1), C_IN=c_in, N=c_out, KH=kh, KW=kw, **constants)
    return y


def _ends(s: Lowering, i: Instruction) -> tuple[dict[str, float], View | None, View | None]:
    """Constants and operands of an epilogue whose residual lies as the output does."""
    bias = s.view(i.args[2]) if i.args[2] is not None else None
    residual = s.contiguous(s.view(i.args[3])) if len(i.args) > 3 and i.args[3] is not None else None
    constants: dict[str, float] = {"ACTIVATION": ACTIVATIONS[i.attrs["activation"]]}
    if "final" in i.attrs:
        constants["FINAL"] = ACTIVATIONS[i.attrs["final"]]
    if bias is not None:
        constants |= {"HAS_BIAS": 1, "BIAS": words(bias)}
    if residual is not None:
        constants |= {"HAS_RESIDUAL": 1, "RESIDUAL": words(residual)}
    return constants, bias, residual


@lowers("conv_transpose2d")
def _conv_transpose2d(s: Lowering, i: Instruction) -> View:
    x, w, y = s.contiguous(s.view(i.args[0])), s.contiguous(s.view(i.args[1])), s.buffer(i.out.shape)
    (_, height, width, c_in), size = i.args[0].shape, prod(i.out.shape)
    constants, bias, _ = _ends(s, i)
    s.call("conv_transpose2d", [x, w, bias, y], groups(-(-size // 256)), M=size, HEIGHT=height, WIDTH=width, C_IN=c_in,
           C_OUT=i.out.shape[3], STRIDE=i.attrs["stride"], X=words(x), W=words(w), Y=words(y), **constants)
    return y


@lowers("matmul")
def _matmul(s: Lowering, i: Instruction) -> View:
    a, b = s.view(i.args[0]), s.view(i.args[1])
    if not i.attrs["transpose_b"]:
        b = b.map(lambda x: np.swapaxes(x, -1, -2))  # (..., n, k) from here on
    batch = prod(i.out.shape[:-2])
    (m, n), k = i.out.shape[-2:], a.shape[-1]
    a, b = _batches(s, a, batch), _batches(s, b, batch if len(i.args[1].shape) > 2 else 1)
    y = s.buffer((batch, m, n))
    s.call(
        "matmul", [a, b, y], (-(-n // 32), -(-m // 32), batch),
        M=m, N=n, K=k,
        A=words(a), A_BATCH=a.strides[0], A_M=a.strides[1], A_K=a.strides[2],
        B=words(b), B_BATCH=b.strides[0] if b.shape[0] == batch else 0, B_N=b.strides[1], B_K=b.strides[2],
        Y=words(y), Y_BATCH=m * n, Y_M=n, Y_N=1,
    )
    return y.map(lambda x: np.reshape(x, i.out.shape, copy=False))


def _batches(s: Lowering, x: View, batch: int) -> View:
    shape = (batch, *x.shape[-2:])
    try:
        return x.map(lambda a: np.reshape(a, shape, copy=False))
    except ValueError:
        return s.contiguous(x).map(lambda a: np.reshape(a, shape, copy=False))


@lowers("attention")
def _attention(s: Lowering, i: Instruction) -> View:
    q, k, v = (x if x.strides[-1] == 1 else s.contiguous(x) for x in map(s.view, i.args[:3]))
    (batch, h, n, d), hk, m = q.shape, k.shape[1], k.shape[2]
    if d > MAX_HEAD:
        raise ValueError(f"attention: heads of {d}; the webgpu executor takes up to {MAX_HEAD}")
    y = s.buffer((batch, n, h, d)).map(lambda a: a.transpose(0, 2, 1, 3))  # heads merge without a copy
    constants: dict[str, float] = {"HEADS": h, "GROUP": h // hk, "NQ": n, "NK": m, "D": d, "CAUSAL": int(i.attrs["causal"])}
    constants |= {"SCALE": i.attrs["scale"] or d**-0.5, **s.scalar(i.args[3])}
    for name, x in (("Q", q), ("K", k), ("V", v), ("Y", y)):
        constants |= _strides(name, x, ("BATCH", "HEAD", "ROW"))
    bias = None
    if i.args[4] is not None:
        bias = s.view(i.args[4]).map(lambda a: np.broadcast_to(a, (batch, h, n, m)))
        bias = bias if bias.strides[3] == 1 or m == 1 else s.contiguous(bias)
        constants |= {"HAS_BIAS": 1, **_strides("BIAS", bias, ("BATCH", "HEAD", "ROW"))}
    s.call("attention", [q, k, v, bias, y, s.scalars], (-(-n // 16), h, batch), **constants)
    return y


@lowers("window_attention")
def _window_attention(s: Lowering, i: Instruction) -> View:
    (batch, height, width, wide), n_head, window = i.args[0].shape, i.attrs["n_head"], i.attrs["window"]
    d = wide // 3 // n_head
    if d > MAX_HEAD // 2:
        raise ValueError(f"window_attention: heads of {d}; the webgpu executor takes up to {MAX_HEAD // 2}")
    qkv, y = s.contiguous(s.view(i.args[0])), s.buffer(i.out.shape)
    bias = s.contiguous(s.view(i.args[1])) if i.args[1] is not None else None
    outside = s.contiguous(s.view(i.args[2])) if i.args[2] is not None else None
    rows, columns = -(-height // window), -(-width // window)
    constants: dict[str, float] = {"HAS_BIAS": 1, "BIAS": words(bias)} if bias is not None else {}
    constants |= {"OUTSIDE": words(outside)} if outside is not None else {}
    s.call("window_attention", [qkv, bias, outside, y], (batch * rows * columns, n_head, 1), HEIGHT=height, WIDTH=width,
           WINDOW=window, HEADS=n_head, D=d, ROWS=rows, COLUMNS=columns, QKV=words(qkv), Y=words(y),
           SCALE=i.attrs["scale"] or d**-0.5, **constants)
    return y


@lowers("rope")
def _rope(s: Lowering, i: Instruction) -> View:
    x, cos, sin = s.view(i.args[0]), s.view(i.args[1]), s.view(i.args[2])
    x = x if x.strides[-1] == 1 else s.contiguous(x)
    (batch, h, n, d), y = i.out.shape, s.buffer(i.out.shape)
    axes = ("BATCH", "HEAD", "ROW")
    s.call(
        "rope", [x, cos, sin, y, s.scalars], groups(-(-(batch * h * n * d // 2) // 64)),
        BATCH=batch, HEADS=h, ROWS=n, HALF=d // 2, COS=words(cos), SIN=words(sin), CAPACITY=cos.shape[0],
        PAIRS=int(i.attrs["pairs"]), **_strides("X", x, axes), **_strides("Y", y, axes), **s.scalar(i.args[3]),
    )
    return y


@lowers("layer_norm")
def _layer_norm(s: Lowering, i: Instruction) -> View:
    x, w, b = s.contiguous(s.view(i.args[0])), s.view(i.args[1]), s.view(i.args[2])
    y, n = s.buffer(i.out.shape), i.out.shape[-1]
    m = prod(i.out.shape) // n
    s.call("layer_norm", [x, w, b, y], groups(m), M=m, N=n, X=words(x), W=words(w), B=words(b), Y=words(y), EPS=i.attrs["eps"])
    return y


@lowers("rms_norm")
def _rms_norm(s: Lowering, i: Instruction) -> View:
    x, m, ldx = s.as_rows(s.view(i.args[0]))
    w, y, n = s.view(i.args[1]), s.buffer(i.out.shape), i.out.shape[-1]
    s.call("rms_norm", [x, w, y], groups(m), M=m, N=n, X=words(x), LDX=ldx, W=words(w), Y=words(y), EPS=i.attrs["eps"])
    return y


@lowers("softmax", "log_softmax")
def _softmax(s: Lowering, i: Instruction) -> View:
    x = s.contiguous(s.view(i.args[0]).map(lambda a: np.moveaxis(a, i.attrs["axis"], -1)))
    y, n = s.buffer(x.shape), x.shape[-1]
    m = prod(x.shape) // n
    s.call("softmax", [x, y], groups(m), M=m, N=n, X=words(x), Y=words(y), LOG=int(i.op == "log_softmax"))
    return y.map(lambda a: np.moveaxis(a, -1, i.attrs["axis"]))


@lowers("embedding")
def _embedding(s: Lowering, i: Instruction) -> View:
    ids, y = s.contiguous(s.view(i.args[0])), s.buffer(i.out.shape)
    table = i.args[1]
    m, (n, k) = prod(ids.shape), table.shape
    s.call("linear", [..., s.shared("matrix", table), ..., ..., y, ..., ids], groups(-(-m * k // 256)), "rows",
           M=m, N=n, K=k, X=words(ids), LDX=k, Y=words(y), LDY=k, DTYPE=DTYPES.get(table.dtype, 0))
    return y


@lowers("rows")
def _rows(s: Lowering, i: Instruction) -> View:
    table, start, count = s.view(i.args[0]), i.args[1], i.attrs["count"]
    if start.kind == "number":
        return table.map(lambda a: a[int(start.number) : int(start.number) + count])
    return s.copy(table.map(lambda a: a[:count]), s.buffer(i.out.shape), start, table.strides[0], into_dst=False)


@lowers("top_k")
def _top_k(s: Lowering, i: Instruction) -> View:
    x, y = s.contiguous(s.view(i.args[0])), s.buffer(i.out.shape)
    n = x.shape[-1]
    m = prod(x.shape) // n
    s.call("top_k", [x, y], groups(m), M=m, N=n, COUNT=i.attrs["k"], X=words(x), Y=words(y))
    return y


@lowers("take")
def _take(s: Lowering, i: Instruction) -> View:
    x, ids, y = s.contiguous(s.view(i.args[0])), s.contiguous(s.view(i.args[1])), s.buffer(i.out.shape)
    n, count = x.shape[-1], i.out.shape[-1]
    m = prod(x.shape) // n
    s.call("take", [x, ids, y], groups(-(-m * count // 64)), M=m, N=n, COUNT=count, X=words(x), IDS=words(ids), Y=words(y))
    return y


@lowers("update")
def _update(s: Lowering, i: Instruction) -> View:
    state, x, pos, axis = s.view(i.args[0]), s.view(i.args[1]), i.args[2], i.attrs["axis"]
    place = state.map(lambda a: a[(slice(None),) * axis + (slice(0, x.shape[axis]),)])
    s.copy(x, place, pos, state.strides[axis])
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
    size, first = prod(i.out.shape), i.attrs["before"]
    s.call("fill", [y], groups(-(-size // 256)), N=size, Y=words(y), VALUE=0)
    s.copy(x, y.map(lambda a: a[(slice(None),) * axis + (slice(first, first + x.shape[axis]),)]))
    return y


@lowers("cast")
def _cast(s: Lowering, i: Instruction) -> View:
    x = s.view(i.args[0])
    if i.args[0].dtype == i.out.dtype:
        return x
    x, y, size = s.contiguous(x), s.buffer(i.out.shape), prod(i.out.shape)
    s.call("cast", [x, y], groups(-(-size // 256)), N=size, X=words(x), Y=words(y), TO_FLOAT=int(i.out.dtype == "f32"))
    return y


@lowers(*FORMULAS)
def _elementwise(s: Lowering, i: Instruction) -> View:
    shape = i.out.shape
    inputs = [s.view(v).map(lambda x: np.broadcast_to(x, shape)) for v in i.args]
    merged, strides = merge_axes(shape, *(x.strides for x in inputs))
    if len(merged) > 4:
        inputs = [x if 0 in x.strides else s.contiguous(x) for x in inputs]
        merged, strides = merge_axes(shape, *(x.strides for x in inputs))
    if len(merged) > 4:
        raise ValueError(f"{i.op}: {list(shape)} has {len(merged)} separate axes; the kernel takes four")
    y, pad = s.buffer(shape), 4 - len(merged)
    constants: dict[str, float] = {"N": prod(shape), "Y": words(y)}
    constants |= {f"D{a}": n for a, n in enumerate((1,) * pad + merged)}
    for j, (x, st) in enumerate(zip(inputs, strides)):
        constants |= {f"O{j}": words(x)} | {f"S{j}_{a}": n for a, n in enumerate((0,) * pad + st)}
    name = f"elementwise_{i.op}"
    s.sources[name] = kernel([(i.op, tuple(range(len(inputs))))], len(inputs))
    s.call(name, [*inputs, y], groups(-(-prod(shape) // 256)), **constants)
    return y


@lowers(*REDUCE)
def _reduce(s: Lowering, i: Instruction) -> View:
    x, axis = s.view(i.args[0]), i.attrs["axis"]
    if axis is None:
        x = s.contiguous(x).map(lambda a: np.reshape(a, (1, -1), copy=False))
    else:
        x = s.contiguous(x.map(lambda a: np.moveaxis(a, axis, -1)))
    y, n = s.buffer(i.out.shape), x.shape[-1]
    m = prod(x.shape) // n
    s.call("reduce", [x, y], groups(m), M=m, N=n, X=words(x), Y=words(y), OP=REDUCE[i.op])
    return y
