"""The numpy executor: walks a Program, one NumPy expression an op. It is the definition of every op, and the last fallback."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np

from ..program import Instruction, Program, Value
from . import Executor, Progress, WeightSource, bounds, check_bounds, checked_inputs

KERNELS: dict[str, Any] = {}


def kernel(fn):
    """Register the kernel of the op of the same name: operands as arrays (None where absent), attributes by keyword."""
    KERNELS[fn.__name__.rstrip("_")] = fn
    return fn


# ---- matrix products


def _epilogue(y, bias, residual, activation, final="none"):
    if bias is not None:
        y += bias
    if activation != "none":
        y = KERNELS[activation](y)
    if residual is not None:
        y += residual.reshape(y.shape)
    return y if final == "none" else KERNELS[final](y)


@kernel
def linear(x, w, bias, residual, count, activation, final):
    y = _epilogue(x @ w.T, bias, residual, activation, final)
    if count is not None:
        y.reshape(-1, y.shape[-1])[int(count) :] = 0
    return y


@kernel
def conv1d(x, w, bias, residual, stride, padding, activation, final):
    batch, _, c_in = x.shape
    c_out, _, taps = w.shape
    x = np.pad(x, ((0, 0), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, taps, axis=1)[:, ::stride]  # (batch, n_out, c_in, taps)
    y = windows.reshape(batch, -1, c_in * taps) @ w.reshape(c_out, -1).T
    return _epilogue(y, bias, residual, activation, final)


@kernel
def conv2d(x, w, bias, residual, stride, padding, groups, activation, final):
    _, height, width, _ = x.shape
    c_out, _, kh, kw = w.shape
    h_out, w_out = (height + 2 * padding - kh) // stride + 1, (width + 2 * padding - kw) // stride + 1
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    y = np.zeros((len(x), h_out, w_out, c_out), np.float32)
    for i in range(kh):  # one tap after the other: no buffer of kh x kw times the picture
        for j in range(kw):
            seen = x[:, i : i + (h_out - 1) * stride + 1 : stride, j : j + (w_out - 1) * stride + 1 : stride]
            y += seen * w[:, 0, i, j] if groups > 1 else seen @ w[:, :, i, j].T
    return _epilogue(y, bias, residual, activation, final)


@kernel
def conv_transpose2d(x, w, bias, stride, activation):
    batch, height, width, c_in = x.shape
    c_out = w.shape[1]
    y = x.reshape(-1, c_in) @ w.transpose(0, 2, 3, 1).reshape(c_in, -1)
    y = y.reshape(batch, height, width, stride, stride, c_out).transpose(0, 1, 3, 2, 4, 5)
    return _epilogue(y.reshape(batch, height * stride, width * stride, c_out), bias, None, activation)


@kernel
def matmul(a, b, transpose_b):
    return a @ (np.swapaxes(b, -1, -2) if transpose_b else b)


@kernel
def attention(q, k, v, start, bias, causal, scale):
    (_, h, n, d), (_, hk, m, _) = q.shape, k.shape
    if causal:  # what no query sees need not be looked at
        m = min(m, n + (0 if start is None else int(start)))
        k, v = k[:, :, :m], v[:, :, :m]
    if h != hk and n == 1 and bias is None:  # the heads of a group are like so many queries that see the same keys
        return attention(q.reshape(-1, hk, h // hk, d), k, v, None, None, False, scale).reshape(q.shape)
    k, v = (np.repeat(a, h // hk, axis=1) if h != hk else a for a in (k, v))
    y = np.empty(q.shape, np.float32)
    for i in range(0, n, 256):  # blocks of queries: no (n, m) buffer for long inputs
        s = q[:, :, i : i + 256] @ k.transpose(0, 1, 3, 2) * np.float32(scale or d**-0.5)
        if bias is not None:
            s += bias[..., i : i + 256, :m]
        if causal:
            last = np.arange(i, i + s.shape[2]) + (0 if start is None else int(start))
            s = np.where(np.arange(m) <= last[:, None], s, np.float32(-np.inf))
        y[:, :, i : i + 256] = softmax(s, -1) @ v
    return y


@kernel
def window_attention(qkv, bias, outside, n_head, window, scale):
    batch, height, width, wide = qkv.shape
    rows, columns, d = -(-height // window), -(-width // window), wide // 3 // n_head
    x = np.zeros((batch, rows * window, columns * window, wide), np.float32)
    if outside is not None:
        x[:] = outside.reshape(-1)
    x[:, :height, :width] = qkv
    x = x.reshape(batch, rows, window, columns, window, n_head, 3, d).transpose(6, 0, 1, 3, 5, 2, 4, 7)
    q, k, v = x.reshape(3, batch * rows * columns, n_head, window * window, d)
    y = attention(q, k, v, None, bias, False, scale)
    y = y.reshape(batch, rows, columns, n_head, window, window, d).transpose(0, 1, 4, 2, 5, 3, 6)
    return y.reshape(batch, rows * window, columns * window, wide // 3)[:, :height, :width]


@kernel
def rope(x, cos, sin, start, pairs):
    rows = slice(int(start), int(start) + x.shape[2])
    cos, sin, half = cos[rows], sin[rows], x.shape[3] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if pairs else (x[..., :half], x[..., half:])
    turned = a * cos - b * sin, b * cos + a * sin
    return np.stack(turned, -1).reshape(x.shape) if pairs else np.concatenate(turned, -1)


# ---- normalisation and softmax


@kernel
def layer_norm(x, w, b, eps):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * w + b


@kernel
def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * w


@kernel
def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    e /= e.sum(axis, keepdims=True)
    return e


@kernel
def log_softmax(x, axis):
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


# ---- tables, state, shape


@kernel
def embedding(ids, table):
    return table[ids]


@kernel
def rows(table, start, count):
    return table[int(start) : int(start) + count]


@kernel
def top_k(x, k):
    return np.argsort(-x, -1, "stable")[..., :k].astype(np.int32)


@kernel
def take(x, ids):
    return np.take_along_axis(x, ids, -1)


@kernel
def update(state, x, pos, axis):
    place = [slice(None)] * state.ndim
    place[axis] = slice(int(pos), int(pos) + x.shape[axis])
    state[tuple(place)] = x
    return state


@kernel
def reshape(x, shape):
    return x.reshape(shape)


@kernel
def transpose(x, axes):
    return x.transpose(axes)


@kernel
def slice_(x, axis, start, stop):
    return x[(slice(None),) * (axis % x.ndim) + (slice(start, stop),)]


@kernel
def pad(x, axis, before, after):
    around = [(0, 0)] * x.ndim
    around[axis] = (before, after)
    return np.pad(x, around)


def concat(*xs, axis):
    return np.concatenate(xs, axis)


@kernel
def cast(x, dtype):
    return x.astype(np.int32 if dtype == "i32" else np.float32)


# ---- elementwise and reductions


def erf(x: np.ndarray) -> np.ndarray:
    """Error function of float32, to about 1e-7: rational approximations of Cody 1969 in the form of the Cephes library."""
    z = x * x
    inner = (
        x
        * _poly(
            z,
            9.60497373987051638749,
            90.0260197203842689217,
            2232.00534594684319226,
            7003.32514112805075473,
            55592.3013010394962768,
        )
        / _poly(
            z,
            1,
            33.5617141647503099647,
            521.357949780152679795,
            4594.32382970980127987,
            22629.0000613890934246,
            49267.3942608635921086,
        )
    )
    a = np.minimum(np.abs(x), np.float32(6))
    outer = np.exp(-a * a) * _poly(
        a,
        2.46196981473530512524e-10,
        0.564189564831068821977,
        7.46321056442269912687,
        48.6371970985681366614,
        196.520832956077098242,
        526.445194995477358631,
        934.528527171957607540,
        1027.55188689515710272,
        557.535335369399327526,
    )
    outer /= _poly(
        a,
        1,
        13.2281951154744992508,
        86.7072140885989742329,
        354.937778887819891062,
        975.708501743205489753,
        1823.90916687909736289,
        2246.33760818710981792,
        1656.66309194161350182,
        557.535340817727675546,
    )
    return np.where(a < 1, inner, np.sign(x) * (1 - outer)).astype(np.float32)


def _poly(x, *coefficients):
    y = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y = y * x + np.float32(c)
    return y


KERNELS |= {
    "concat": concat,
    "gelu": lambda x: np.float32(0.5) * x * (1 + erf(x * np.float32(0.5**0.5))),
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(np.minimum(-x, np.float32(88)))),
    "silu": lambda x: x / (1 + np.exp(np.minimum(-x, np.float32(88)))),
    "neg": np.negative,
    "square": np.square,
    "exp": np.exp,
    "log": np.log,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "swiglu": lambda a, b: KERNELS["silu"](a) * b,
    "max": lambda x, axis, keepdims: x.max(axis, keepdims=keepdims),
    "sum": lambda x, axis, keepdims: x.sum(axis, keepdims=keepdims),
    "mean": lambda x, axis, keepdims: x.mean(axis, keepdims=keepdims),
    "log_sum_exp": lambda x, axis, keepdims: log_sum_exp(x, axis, keepdims),
    "argmax": lambda x, axis: x.argmax(axis).astype(np.int32),
}


def log_sum_exp(x, axis, keepdims):
    high = x.max(axis, keepdims=True)
    y = np.log(np.exp(x - high).sum(axis, keepdims=True)) + high
    return y if keepdims else y.squeeze(axis)


# ---- the executor


class NumpyExecutor(Executor):
    """Weights are held as float32 arrays, states as arrays, and a run is a loop over the instructions."""

    name = "numpy"

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.weights: dict[str, np.ndarray] = {}
        self.states: dict[str, np.ndarray] = {}
        self.outputs: tuple[str, dict[str, np.ndarray]] = ("", {})
        self._bounds: dict[str, dict[str, int]] = {}

    async def load(
        self, programs: Mapping[str, Program], weights: WeightSource, on_progress: Progress | None = None
    ) -> None:
        new = self._optimised(programs)
        wanted = {name: v for p in new.values() for name, v in p.weights.items() if name not in self.weights}
        for done, (name, value) in enumerate(wanted.items()):
            if on_progress:
                on_progress("weights", done, len(wanted), "steps")
            self.weights[name] = await self._array(value, weights)
        for p in new.values():
            for name, v in p.states.items():
                self.states.setdefault(name, np.zeros(v.shape, np.float32))
        self.programs |= new
        self._bounds |= {name: bounds(p) for name, p in new.items()}

    async def _array(self, value: Value, weights: WeightSource) -> np.ndarray:
        if value.parts:
            return np.concatenate([await self._array(p, weights) for p in value.parts])
        if not value.name:
            return np.zeros(value.shape, np.float32)
        array = await weights.read(value.name)
        return array if array.dtype == np.int32 else np.ascontiguousarray(array, np.float32)

    async def run(
        self, entry: str, inputs: Mapping[str, Any], fetch: tuple[str, ...] | None = None
    ) -> dict[str, np.ndarray]:
        async for _ in self._walk(entry, inputs):
            pass
        program = self._program(entry)
        return await self.fetch(entry, tuple(program.outputs) if fetch is None else fetch)

    async def fetch(self, entry: str, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        last, outputs = self.outputs
        if last != entry:
            raise ValueError(f"numpy: outputs of {entry!r} were asked for, the last run was of {last or 'nothing'!r}")
        return {n: outputs[n] for n in names}

    async def profile(self, entry: str, inputs: Mapping[str, Any]) -> list[tuple[int, str, float]]:
        times, start = [], time.perf_counter()
        async for instruction, _ in self._walk(entry, inputs):
            times.append((len(times), instruction.op, (time.perf_counter() - start) * 1000))
            start = time.perf_counter()
        return times

    async def steps(self, entry: str, inputs: Mapping[str, Any]) -> AsyncIterator[tuple[Instruction, np.ndarray]]:
        async for instruction, array in self._walk(entry, inputs):
            yield instruction, np.array(array)

    async def _walk(self, entry: str, inputs: Mapping[str, Any]) -> AsyncIterator[tuple[Instruction, np.ndarray]]:
        program = self._program(entry)
        values = checked_inputs(program, inputs)
        check_bounds(program, self._bounds[entry], values)
        last_use = {
            a.name: n for n, i in enumerate(program.instructions) for a in i.args if a is not None and a.kind == "temp"
        }
        kept = {v.name for v in program.outputs.values()}

        def get(v: Value | None) -> Any:
            if v is None:
                return None
            if v.kind == "number":
                return np.float32(v.number)
            return (self.weights if v.kind in ("weight", "constant") else self.states if v.kind == "state" else values)[
                v.name
            ]

        for n, i in enumerate(program.instructions):
            result = KERNELS[i.op](*map(get, i.args), **i.attrs)
            if i.out.kind == "temp":
                values[i.out.name] = result
            yield i, result
            for a in i.args:  # free what nobody reads again
                if a is not None and a.kind == "temp" and last_use[a.name] == n and a.name not in kept:
                    values.pop(a.name, None)
        self.outputs = (entry, {name: np.asarray(get(v)) for name, v in program.outputs.items()})

    async def close(self) -> None:
        self.weights, self.states, self.programs, self.outputs = {}, {}, {}, ("", {})

    def describe(self) -> dict[str, Any]:
        weights = sum(a.nbytes for a in self.weights.values())
        state = sum(a.nbytes for a in self.states.values())
        return {
            "executor": self.name,
            "reason": self.reason,
            "threads": 1,
            "threads_asked": 1,
            "relaxed_simd": False,
            "memory": {"weights": weights, "state": state, "arena": 0, "total": weights + state},
        }
