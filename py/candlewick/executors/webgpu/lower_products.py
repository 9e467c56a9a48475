"""Matrix products and attention: what reads weights or keys, and takes nearly all the time."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...program import Instruction, Value
from ..views import View, matmul_operands, strided
from .lazy import Normed
from .lowering import DTYPES, Buffer, Lowering, lowers, rows_of, words

ACTIVATIONS = {"none": 0, "gelu": 1, "relu": 2, "silu": 3}
FEW_ROWS = 4
"""Up to so many rows a product is made column by column, above in tiles."""
FEW_QUERIES = 8
"""Up to so many queries of one head of keys, attention shares its keys out among workgroups."""
BUSY_GROUPS, BUSY_THREADS = 32, 8192
"""Of a product of many rows: an RTX 4060 has 24 processors, an M2 10, of which each runs 128 threads at once and wants several
times as many to choose from; an Iris Xe runs 1536 lanes."""
WINDOW_ROOM = 448
"""Groups of four numbers of keys, and as many of values, that a workgroup of window_attention.wgsl holds."""
MAX_HEAD = 128
"""Largest d of a head that the attention kernels take."""


def _strides(name: str, x: View, axes: tuple[str, ...]) -> dict[str, int]:
    """Constants NAME (place) and NAME_AXIS (strides) of a view."""
    return {name: words(x), **{f"{name}_{axis}": s for axis, s in zip(axes, x.strides)}}


def _product(
    s: Lowering, i: Instruction, x: View, y: View, m: int, n: int, k: int, ldx: int, row: int = 0,
    norm: Normed | None = None, gated: bool = False,
) -> None:
    """The dispatches of a product of m rows of x with the weight of i; `row` is the first row of y and of the residual."""
    weight, bias, residual = i.args[1:4]
    count = i.args[4] if len(i.args) > 4 else None
    width = n // 2 if gated else n
    constants: dict[str, float] = {"M": m, "K": k, "X": words(x), "LDX": ldx, "LDY": width}
    constants["DTYPE"] = DTYPES.get(weight.dtype, 0)
    constants |= {"ACTIVATION": ACTIVATIONS[i.attrs["activation"]], "FINAL": ACTIVATIONS[i.attrs["final"]], **s.scalar(count)}
    b = s.view(bias) if bias is not None else None
    r = s.contiguous(s.view(residual)) if residual is not None else None
    entry = _entry(x, m, k, ldx, constants["DTYPE"])
    if gated:
        constants["GATED"] = 1
    ends: list[View | None] = []
    if entry in ("floats", "blocks"):
        ends = [None, None]
        if norm is not None:
            ends = [norm.weight, norm.bias]
            constants |= {"NORM": 1 if norm.bias is None else 2, "NORM_W": words(norm.weight), "EPS": norm.eps}
            constants |= {"NORM_B": words(norm.bias)} if norm.bias is not None else {}
        constants |= {"TEAMS": s.teams}
    for w, first, part in s.matrix(weight):
        more: dict[str, float] = {"N": part, "Y": words(y) + first}
        if b is not None:
            more |= {"HAS_BIAS": 1, "BIAS": words(b) + first}
        if r is not None:
            more |= {"HAS_RESIDUAL": 1, "RESIDUAL": words(r) + row * n + first, "LDR": n}
        bindings = [x, w, b, r, y, s.scalars, *([..., *ends] if ends else [])]
        if entry == "tiles":
            _tiles(s, weight, bindings, m, part, **constants, **more)
            continue
        n_groups = -(-part // 4) * m
        if entry != "few":
            n_groups = -(-(part // 2 if gated else part) // ((2 if gated else 4) * s.teams))
        s.call(s.form("linear", "subgroups") if ends else "linear", bindings, n_groups, entry, **constants, **more)


def _tiles(s: Lowering, weight: Value, bindings: list[Any], m: int, n: int, **constants: float) -> None:
    """A product of many rows, or a convolution, by tiles.wgsl."""
    across, down, slices = tile_shape(m, n)
    packed = DTYPES.get(weight.dtype, 0) > DTYPES["bf16"]
    kernel = s.form("tiles", "blocks") if packed else s.form("tiles", *["shader-f16"] * (weight.dtype == "f16"))
    s.call(kernel, bindings, -(-n // (4 * across)) * -(-m // (8 * down)), **constants,
           ACROSS=across, DOWN=down, SLICES=slices)


def tile_shape(m: int, n: int) -> tuple[int, int, int]:
    """(threads across, threads down, slices of k) of the workgroups that make an (m, n) product, 4 columns and 8 rows a thread:
    tiles of 64 x 64 where the product has enough of them to keep a GPU busy. Fewer rows than 64 have lower tiles; narrower ones
    make more workgroups, though each reads its rows of x again; slices make more threads, which hide the memory's latency."""
    down = 8 if m > 32 else 4 if m > 16 else 2
    across = 16
    while across > 4 and -(-n // (4 * across)) * -(-m // (8 * down)) < BUSY_GROUPS:
        across //= 2
    threads = -(-n // (4 * across)) * -(-m // (8 * down)) * across * down
    slices = 1
    while slices < 4 and threads * slices < BUSY_THREADS and 2 * slices * across * down <= 256:
        slices *= 2
    return across, down, slices


def _entry(x: View, m: int, k: int, ldx: int, dtype: float) -> str:
    """The entry point of linear.wgsl for m rows of k at a distance of ldx; `tiles` stands for tiles.wgsl."""
    if m > FEW_ROWS:
        return "tiles"
    if words(x) % 4 or (m > 1 and ldx % 4) or k % (4 if dtype == 0 else 8 if dtype < 3 else 32):
        return "few"
    return "floats" if dtype < 3 else "blocks"


@lowers("linear")
def _linear(s: Lowering, i: Instruction) -> View:
    n, k = i.args[1].shape
    norm, operand = None, s.peek(i.args[0])
    if isinstance(operand, Normed):
        try:
            x, m, ldx = rows_of(operand.x)
            fits = _entry(x, m, k, ldx, DTYPES.get(i.args[1].dtype, 0)) in ("floats", "blocks")
            norm = operand if fits and words(operand.weight) % 4 == 0 else None
        except ValueError:
            pass
    if norm is None:
        x, m, ldx = s.as_rows(s.view(i.args[0]))
    gate = s.gates.get(i.out.name)
    if gate is not None and len(s.matrix(i.args[1])) == 1 and _entry(x, m, k, ldx, DTYPES.get(i.args[1].dtype, 0)) != "few":
        s.views[gate.out.name] = y = s.buffer(gate.out.shape)
        _product(s, i, x, y, m, n, k, ldx, norm=norm, gated=True)
        if not s.whole:
            return View(Buffer(0), strided(i.out.shape))  # nobody reads it
    y = s.buffer(i.out.shape)
    _product(s, i, x, y, m, n, k, ldx, norm=norm)
    return y


def padded(s: Lowering, x: View, padding: int, axes: tuple[int, ...]) -> View:
    """x inside a frame of zeros along some axes."""
    if not padding:
        return s.contiguous(x)
    shape = tuple(n + 2 * padding * (a in axes) for a, n in enumerate(x.shape))
    whole = s.buffer(shape)
    s.call("fill", [whole], -(-prod(shape) // 256), N=prod(shape), Y=words(whole), VALUE=0)
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
        s.call("depthwise", bindings, -(-m * c_out // 256), C=c_out, TAPS=kh, **constants)
    else:
        _tiles(s, weight, [*bindings, s.scalars], m, c_out, C_IN=c_in, N=c_out, K=kh * kw * c_in, KH=kh, KW=kw, LDX=0,
               LDY=c_out, LDR=c_out, **constants)
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
    s.call("conv_transpose2d", [x, w, bias, y], -(-size // 256), M=size, HEIGHT=height, WIDTH=width, C_IN=c_in,
           C_OUT=i.out.shape[3], STRIDE=i.attrs["stride"], X=words(x), W=words(w), Y=words(y), **constants)
    return y


@lowers("matmul")
def _matmul(s: Lowering, i: Instruction) -> View:
    a, b = matmul_operands(s, i)
    (batch, m, k), n = a.shape, b.shape[1]
    y = s.buffer((batch, m, n))
    s.call(
        "matmul", [a, b, y], -(-n // 32) * -(-m // 32) * batch,
        COUNT=batch, M=m, N=n, K=k,
        A=words(a), A_BATCH=a.strides[0], A_M=a.strides[1], A_K=a.strides[2],
        B=words(b), B_BATCH=b.strides[0] if b.shape[0] == batch else 0, B_N=b.strides[1], B_K=b.strides[2],
        Y=words(y), Y_BATCH=m * n, Y_M=n, Y_N=1,
    )
    return y.map(lambda x: np.reshape(x, i.out.shape, copy=False))



@lowers("attention")
def _attention(s: Lowering, i: Instruction) -> View:
    q, k, v = (x if x.strides[-1] == 1 else s.contiguous(x) for x in map(s.view, i.args[:3]))
    (batch, h, n, d), hk, m = q.shape, k.shape[1], k.shape[2]
    if d > MAX_HEAD:
        raise ValueError(f"attention: heads of {d}; the webgpu executor takes up to {MAX_HEAD}")
    y = s.buffer((batch, n, h, d)).map(lambda a: a.transpose(0, 2, 1, 3))  # heads merge without a copy
    axes = ("BATCH", "HEAD", "ROW")
    ends: dict[str, float] = {"BATCH": batch, "HEADS": h, "NQ": n, "D": d, **_strides("Y", y, axes)}
    constants = {**ends, "GROUP": h // hk, "NK": m, "CAUSAL": int(i.attrs["causal"])}
    constants |= {"SCALE": i.attrs["scale"] or d**-0.5, **s.scalar(i.args[3])}
    for name, x in (("Q", q), ("K", k), ("V", v)):
        constants |= _strides(name, x, axes)
    bias = None
    if i.args[4] is not None:
        bias = s.view(i.args[4]).map(lambda a: np.broadcast_to(a, (batch, h, n, m)))
        bias = bias if bias.strides[3] == 1 or m == 1 else s.contiguous(bias)
        constants |= {"HAS_BIAS": 1, **_strides("BIAS", bias, axes)}
    rows = n * h // hk
    if rows > FEW_QUERIES or d % 4 or any(words(x) % 4 or any(st % 4 for st in x.strides[:3]) for x in (q, k, v)):
        s.call("attention", [q, k, v, bias, y, s.scalars], -(-rows // 32) * hk * batch, **constants)
        return y
    splits, keys = parts_of_keys(m, hk * batch)
    left = y if splits == 1 else s.buffer((batch, h, n, splits, d + 2))
    s.call("attention_few", [q, k, v, bias, left, s.scalars], hk * batch * splits, **constants, SPLITS=splits, KEYS=keys)
    if splits > 1:
        ends |= {"GROUP": 1, "NK": m, "SPLITS": splits}
        s.call("attention_few", [..., ..., ..., ..., y, ..., left], batch * h * n, "combine", **ends)
    return y


def parts_of_keys(m: int, n_heads: int) -> tuple[int, int]:
    """(parts, keys of each): the keys of a head stay together while few enough for one workgroup to walk in a few steps;
    more are shared out so that some tens of workgroups are busy."""
    if m <= 512:
        return 1, -(-m // 128) * 128
    keys = 256 if n_heads * -(-m // 256) >= 32 else 128
    return -(-m // keys), keys


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
    n = window * window
    chunks = -(-n // (WINDOW_ROOM // (-(-d // 16) * 4) // 4 * 4))
    constants: dict[str, float] = {"HAS_BIAS": 1, "BIAS": words(bias)} if bias is not None else {}
    constants |= {"OUTSIDE": words(outside)} if outside is not None else {}
    s.call("window_attention", [qkv, bias, outside, y], batch * rows * columns * n_head, BATCH=batch, HEIGHT=height,
           WIDTH=width, WINDOW=window, HEADS=n_head, D=d, ROWS=rows, COLUMNS=columns, QKV=words(qkv), Y=words(y),
           SCALE=i.attrs["scale"] or d**-0.5, THREADS=min(256, -(-n // 32) * 32), CHUNK=-(-n // chunks // 4) * 4, **constants)
    return y
