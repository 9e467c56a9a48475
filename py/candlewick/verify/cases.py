"""What `verify` runs on a device: each op, each type of weight, on sizes that drivers and kernels get wrong: odd ones, one row,
one column, more rows than a dispatch has workgroups along an axis (65,537).

Numbers come from a hash, without numpy.random, which a page would have to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from .. import nn, ops
from ..dtypes import DTYPES, QUANTISED

Shape = tuple[int, ...]

HALVES = {"q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q8_1": (0, 2), "q2_k": (80, 82),
          "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}
"""Where a block has half-precision numbers; all its other bytes may be anything."""
FLOATS = ("f32", "f16", "bf16")
MANY = 65_537


@dataclass(frozen=True)
class Case:
    """fn(w, **inputs) on symbols; inputs: arrays, or shapes of noise; weights: name -> (dtype, shape), tensors of a file.
    quick: one of the few that are run before a GPU is chosen by itself. large: takes an emulator of a GPU minutes."""

    op: str
    fn: Callable[..., Any]
    inputs: Mapping[str, Shape | np.ndarray]
    weights: Mapping[str, tuple[str, Shape]] = field(default_factory=dict)
    scalars: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    quick: bool = False
    large: bool = False

    @property
    def dtype(self) -> str:
        """Of the matrix that the op reads, else of numbers."""
        return next((dtype for dtype, _ in self.weights.values()), "f32")

    @property
    def shape(self) -> str:
        shapes = [a.shape if isinstance(a, np.ndarray) else a for a in self.inputs.values()]
        words = [size_words(s) for s in (*shapes, *(s for _, s in self.weights.values()))]
        return ", ".join(words + [f"{n} {v}" for n, v in self.scalars.items()] + ([self.note] if self.note else []))

    def arrays(self) -> dict[str, np.ndarray]:
        return {n: a if isinstance(a, np.ndarray) else noise(a, i) for i, (n, a) in enumerate(self.inputs.items())}

    def data(self) -> dict[str, bytes]:
        """Bytes of each weight as a file has them."""
        return {n: weight_bytes(dtype, shape, 11 + i) for i, (n, (dtype, shape)) in enumerate(self.weights.items())}


def size_words(shape: Shape) -> str:
    """3x4; a scalar is 1."""
    return "x".join(map(str, shape)) or "1"


def noise(shape: Shape, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Uniform numbers of variance scale squared, the same on every machine."""
    x = np.arange(prod(shape), dtype=np.uint32) + np.uint32(seed * 0x9E3779B1 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    x ^= x >> np.uint32(16)
    return ((x / 2**32 - 0.5) * (12**0.5 * scale)).astype(np.float32).reshape(shape)


def weight_bytes(dtype: str, shape: Shape, seed: int) -> bytes:
    """A tensor of noise as it lies in a file; of a quantised type random codes with small scales of both signs."""
    if dtype not in QUANTISED:
        values = noise(shape, seed, 0.5)
        if dtype == "bf16":
            return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).tobytes()
        return values.astype(DTYPES[dtype].numpy).tobytes()
    row = DTYPES[dtype]
    n = prod(shape) // row.block
    blocks = ((noise((n, row.bytes), seed) / 12**0.5 + 0.5) * 256).clip(0, 255).astype(np.uint8)
    for i, at in enumerate(HALVES.get(dtype, ())):
        blocks[:, at : at + 2] = noise((n, 1), seed + 100 + i, 0.02).astype(np.float16).view(np.uint8)
    if dtype == "q8_k":
        blocks[:, :4] = noise((n, 1), seed + 100, 0.02).view(np.uint8)
    return blocks.tobytes()


def cases() -> Iterator[Case]:
    yield from products()
    yield from pictures()
    yield from attentions()
    yield from rows()
    yield from elementwise()
    yield from shapes()


# ---- products ---------------------------------------------------------------------------------------------------


def products() -> Iterator[Case]:
    def linear(w, x):
        return ops.linear(x, w.w)

    for m, n, k in ((1, 1, 1), (1, 13, 7), (3, 24, 33), (50, 40, 96), (97, 11, 130), (1, 300, 520), (MANY, 3, 4)):
        yield Case("linear", linear, {"x": (m, k)}, {"w": ("f32", (n, k))}, quick=(m, n) in ((50, 40), (1, 300)))
    for dtype in (*FLOATS[1:], *QUANTISED):
        for m in (1, 3, 70):
            yield Case("linear", linear, {"x": (m, 512)}, {"w": (dtype, (37, 512))},
                       quick=m != 3 and dtype in ("f16", "q8_0", "q4_0"))
    for name in ("gelu", "relu", "silu"):
        yield Case("linear", lambda w, x, r, name=name: r + getattr(ops, name)(ops.linear(x, w.w, w.b)),
                   {"x": (7, 64), "r": (7, 30)}, {"w": ("f16", (30, 64)), "b": ("f32", (30,))}, note=f"{name}, residual",
                   quick=name == "gelu")
    yield Case("linear", lambda w, x, count: ops.linear(x, w.w, count=count), {"x": (1, 9, 64)}, {"w": ("q8_0", (20, 64))},
               {"count": 5}, "rows that count")
    yield Case("linear", lambda w, x: ops.concat([ops.linear(x, getattr(w, n)) for n in "qkv"], -1), {"x": (2, 256)},
               {"q": ("q4_1", (24, 256)), "k": ("q4_1", (12, 256)), "v": ("q4_1", (12, 256))}, note="joined")
    for a, b, transpose in (((3, 4), (4, 5), False), ((2, 3, 50, 16), (2, 3, 16, 24), False), ((4, 32), (500, 32), True),
                            ((2, 200, 12), (25, 12), True), ((1, 1), (1, 1), False)):
        yield Case("matmul", lambda w, a, b, t=transpose: ops.matmul(a, b, transpose_b=t), {"a": a, "b": b},
                   quick=len(a) == 4)
    for dtype in (*FLOATS, *QUANTISED):
        yield Case("embedding", lambda w, ids: ops.embedding(ids, w.table), {"ids": np.array([[3, 0, 10, 3]], np.int32)},
                   {"table": (dtype, (11, 256))}, quick=dtype == "f16")


def pictures() -> Iterator[Case]:
    for n, c_in, c_out, taps, stride, padding in (
        (10, 4, 12, 3, 1, 1), (11, 5, 7, 3, 2, 1), (9, 1, 13, 4, 3, 0), (5, 2, 3, 5, 1, 2),
    ):
        yield Case("conv1d", lambda w, x, s=stride, p=padding: ops.gelu(ops.conv1d(x, w.w, w.b, stride=s, padding=p)),
                   {"x": (2, n, c_in)}, {"w": ("f32", (c_out, c_in, taps)), "b": ("f32", (c_out,))}, note=f"stride {stride}",
                   quick=stride == 2)
    for height, width, c_in, c_out, kernel, stride, padding in (
        (5, 7, 3, 8, 3, 2, 1), (9, 6, 5, 13, 3, 1, 1), (17, 11, 12, 40, 3, 1, 1), (12, 12, 64, 20, 3, 1, 1),
        (1, 1, 1, 1, 3, 1, 1), (6, 5, 20, 30, 1, 1, 0), (6, 5, 7, 9, 1, 2, 0), (2, 70, 16, 12, 1, 1, 1), (4, 4, 2, 5, 4, 4, 0),
    ):
        yield Case("conv2d", lambda w, x, s=stride, p=padding: ops.conv2d(x, w.w, w.b, stride=s, padding=p),
                   {"x": (1, height, width, c_in)}, {"w": ("f32", (c_out, c_in, kernel, kernel)), "b": ("f32", (c_out,))},
                   note=f"stride {stride}", quick=c_in in (3, 64))
    for kernel in (1, 3):
        yield Case("conv2d", lambda w, x, r, p=kernel // 2: ops.gelu(ops.relu(ops.conv2d(x, w.w, w.b, padding=p)) + r),
                   {"x": (1, 7, 9, 20), "r": (1, 7, 9, 20)}, {"w": ("f16", (20, 20, kernel, kernel)), "b": ("f32", (20,))},
                   note="epilogue")
    for height, width, c, kernel, stride, padding in (
        (5, 7, 4, 3, 1, 1), (9, 14, 13, 3, 2, 1), (20, 131, 6, 3, 2, 1), (12, 9, 16, 5, 1, 2),
    ):
        yield Case("conv2d", lambda w, x, s=stride, p=padding, c=c: ops.conv2d(x, w.w, w.b, stride=s, padding=p, groups=c),
                   {"x": (1, height, width, c)}, {"w": ("f32", (c, 1, kernel, kernel)), "b": ("f32", (c,))},
                   note=f"each channel alone, stride {stride}", quick=c == 13)
    for height, width, c_in, c_out, stride in ((3, 5, 4, 8, 2), (4, 3, 7, 13, 2), (2, 2, 3, 5, 3)):
        yield Case("conv_transpose2d", lambda w, x, s=stride: ops.gelu(ops.conv_transpose2d(x, w.w, w.b, stride=s)),
                   {"x": (1, height, width, c_in)}, {"w": ("f32", (c_in, c_out, stride, stride)), "b": ("f32", (c_out,))},
                   note=f"stride {stride}")


# ---- attention --------------------------------------------------------------------------------------------------


def attentions() -> Iterator[Case]:
    for b, h, hk, n, m, d in ((1, 2, 2, 1, 5, 8), (2, 4, 2, 3, 17, 16), (1, 3, 1, 40, 61, 64), (1, 2, 2, 49, 13, 24)):
        q, kv = (b, h, n, d), (b, hk, m, d)
        yield Case("attention", lambda w, q, k, v: ops.attention(q, k, v), {"q": q, "k": kv, "v": kv}, quick=n == 40)
    for n, m, start in ((1, 20, 0), (1, 20, 7), (5, 20, 3), (33, 64, 20)):
        yield Case("attention", lambda w, q, k, v, start: ops.attention(q, k, v, start=start, causal=True),
                   {"q": (1, 2, n, 16), "k": (1, 2, m, 16), "v": (1, 2, m, 16)}, scalars={"start": start}, note="causal",
                   quick=n == 5)
    for position in (0, 199, 256, 1023):
        yield Case("attention", lambda w, q, k, v, start: ops.attention(q, k, v, start=start, causal=True),
                   {"q": (1, 9, 1, 64), "k": (1, 3, 1024, 64), "v": (1, 3, 1024, 64)}, scalars={"start": position},
                   note="one query", quick=position == 199)
    yield Case("attention", lambda w, q, k, v: ops.attention(q, k, v),
               {"q": noise((1, 1, 20, 8), 3, 100), "k": noise((1, 1, 30, 8), 4, 100), "v": (1, 1, 30, 8)}, note="huge logits")
    for h, hk, n, m, d in ((2, 2, 1, 5, 8), (3, 1, 40, 61, 64)):
        yield Case("attention", lambda w, q, k, v, bias: ops.attention(q, k, v, None, bias),
                   {"q": (1, h, n, d), "k": (1, hk, m, d), "v": (1, hk, m, d), "bias": (h, n, m)}, note="bias")
    for height, width, n_head, d, window in ((14, 21, 2, 32, 7), (10, 9, 2, 32, 7), (5, 4, 3, 10, 3), (2, 2, 1, 4, 1)):
        n, c = window * window, n_head * d
        yield Case("window_attention",
                   lambda w, x, bias, outside, h=n_head, s=window: ops.window_attention(x, bias, outside, n_head=h, window=s),
                   {"x": (1, height, width, 3 * c), "bias": (n_head, n, n), "outside": (1, 3 * c)}, note=f"window {window}",
                   quick=height == 10)


# ---- rows -------------------------------------------------------------------------------------------------------


def rows() -> Iterator[Case]:
    for shape in ((1, 1), (3, 7), (2, 5, 64), (1, 1500, 12), (MANY, 3)):
        n = shape[-1]
        yield Case("layer_norm", lambda w, x: ops.layer_norm(x * 3.0 + 10.0, w.w, w.b, eps=1e-5), {"x": shape},
                   {"w": ("f32", (n,)), "b": ("f32", (n,))}, quick=n == 64, large=shape[0] == MANY)
        yield Case("rms_norm", lambda w, x: ops.rms_norm(x, w.w, eps=1e-5), {"x": shape}, {"w": ("f32", (n,))}, quick=n == 64,
                   large=shape[0] == MANY)
    for shape, axis in (((1, 1), -1), ((3, 50), -1), ((3, 50), 0), ((2, 3, 4), 1), ((1, 9001), -1), ((MANY, 2), -1)):
        x = noise(shape, 1, 15)
        for name in ("softmax", "log_softmax", "log_sum_exp"):
            op = getattr(ops, name)
            yield Case(name, lambda w, x, op=op, axis=axis: op(x, axis=axis), {"x": x}, note=f"axis {axis}",
                       quick=shape == (3, 50) and name == "softmax", large=shape[0] == MANY)
        for name in ("max", "sum", "mean", "argmax"):
            op = getattr(ops, name)
            yield Case(name, lambda w, x, op=op, axis=axis: op(x, axis=axis), {"x": x}, note=f"axis {axis}",
                       quick=shape == (3, 50) and name == "argmax", large=shape[0] == MANY)
    for n, k in ((1, 1), (130, 7), (4999, 128), (49_152, 64)):
        x = noise((2, n), 5, 5)
        x[:, ::7], x[:, 3::11] = np.round(x[:, ::7]), -np.inf
        yield Case("top_k", lambda w, x, k=k: ops.top_k(x, k=k), {"x": x}, note=f"{k} of them", quick=n == 4999)
        yield Case("take", lambda w, x, k=k: ops.take(x, ops.top_k(x, k=k)), {"x": x}, note=f"{k} of them")
    for pairs in (False, True):
        for h, n, d, start in ((1, 1, 2, 0), (9, 1, 64, 19), (4, 20, 16, 0), (2, 7, 10, 13)):
            angle = np.arange(20 * (d // 2), dtype=np.float64).reshape(20, d // 2)
            yield Case("rope", lambda w, x, cos, sin, start, p=pairs: ops.rope(x, cos, sin, start, pairs=p),
                       {"x": (1, h, n, d), "cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)},
                       scalars={"start": start}, note="pairs" if pairs else "halves", quick=n == 7)


# ---- elementwise ------------------------------------------------------------------------------------------------

NEAR = np.linspace(-6, 6, 997).astype(np.float32)
FAR = np.array([-1e4, -100, -13.5, 0, 13.5, 100, 1e4, 1e-30], np.float32)
POSITIVE = np.concatenate([np.geomspace(1e-30, 1e30, 501), [1.0]]).astype(np.float32)
UNARY = {
    **dict.fromkeys(("gelu", "relu", "silu", "tanh", "sigmoid", "neg"), (NEAR, FAR)),
    **dict.fromkeys(("exp", "sin", "cos", "square"), (NEAR,)),
    **dict.fromkeys(("log", "log10"), (np.linspace(0.1, 3, 500).astype(np.float32), POSITIVE)),
    "sqrt": (np.linspace(0, 3, 500).astype(np.float32), POSITIVE),
}


def elementwise() -> Iterator[Case]:
    for name, ranges in UNARY.items():
        op = getattr(ops, name)
        for x in ranges:
            yield Case(name, lambda w, x, op=op: op(x), {"x": x}, quick=x is NEAR and name in ("gelu", "silu"))
    for name in ("add", "sub", "mul", "div", "maximum", "minimum"):
        op = getattr(ops, name)
        for a, b in (((3, 4), (3, 4)), ((3, 1), (1, 4)), ((), (5,)), ((2, 3, 4), (3, 1)), ((MANY, 1), (1, 3))):
            y = noise(b, 1)
            y += np.sign(y) + (y == 0)  # away from zero: what is divided by nearly nothing says nothing
            yield Case(name, lambda w, x, y, op=op: op(x, y), {"x": a, "y": y})
    yield Case("swiglu", lambda w, a, b: ops.swiglu(a, b), {"a": noise((2, 3, 7), 1, 8), "b": (2, 3, 7)})
    yield Case("swiglu", lambda w, x: ops.swiglu(ops.slice(x, -1, 0, 50), ops.slice(x, -1, 50, 100)), {"x": (64, 100)},
               note="halves of a row", quick=True)


# ---- shapes -----------------------------------------------------------------------------------------------------


def shapes() -> Iterator[Case]:
    x = {"x": (2, 3, 4, 5)}
    yield Case("transpose", lambda w, x: ops.transpose(x, (2, 0, 3, 1)) * 1.0, x, quick=True)
    yield Case("reshape", lambda w, x: ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (2, 4, -1)), x)
    yield Case("slice", lambda w, x: ops.relu(ops.slice(ops.transpose(x, (3, 2, 1, 0)), 0, 4, 5)), x)
    yield Case("concat", lambda w, x: ops.concat([x, ops.slice(x, 1, 0, 1)], 1), x)
    yield Case("pad", lambda w, x: ops.pad(ops.pad(x, axis=1, before=1, after=2), axis=-1, before=0, after=3), x)
    yield Case("cast", lambda w, x: ops.cast(x, "i32"), {"x": np.array([-2.7, -0.2, 0.9, 5.0], np.float32)})
    yield Case("rows", lambda w, table, start: ops.rows(table, start, 3), {"table": (9, 5)}, scalars={"start": 4})
    cache = nn.KVCache.new("verify", 1, 2, 6, 4)
    yield Case("update", lambda w, k, pos: ops.update(cache.k, k, pos, axis=2), {"k": (1, 2, 2, 4)}, scalars={"pos": 3},
               quick=True)
