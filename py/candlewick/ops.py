"""THE OP TABLE. Each function is one op: a sentence, its shape rule, its attributes.

The body of a decorated function is the shape rule: it takes the operands (anything with .shape and .dtype), checks them
and returns (shape, dtype) of the result. Called by model code inside a trace, the same name records an instruction and
returns a Tensor. Positional parameters are operands (an absent optional one is None); keyword-only ones are attributes.
`OPS` is the table that verifier, printer and executors read; executors have one kernel an op, under the same name.

The ops `max`, `sum` and `slice` take the names of builtins, as in NumPy; inside this file the builtin is `builtins.max`.

Operands may be Tensors, Parameters, Constants, States, or numbers (which are float32 literals).
"""

from __future__ import annotations

import builtins
import inspect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from .dtypes import DTYPES, QUANTISED
from .program import Value
from .tensor import Tensor
from .trace import Tracer

ANY_DTYPE = {"reshape", "transpose", "slice", "concat", "cast"}
INDICES = {"ids", "start", "pos", "count"}
"""Operands that count something; all others are floating point."""
FLOAT_DTYPES = defaultdict(lambda: ("f32",), weight=("f32", "f16", "bf16", "f64"))
"""By kind of value: a weight is what its file has, everything that is computed is float32."""
MATRICES = {("linear", "w"), ("embedding", "table")}
"""The operands that may be quantised: y = x dequantised(w)^T, rows of dequantised(table)."""
ACTIVATIONS = ("none", "gelu", "relu", "silu")
Shape = tuple[tuple[int, ...], str]


@dataclass(frozen=True)
class Op:
    """A row of the table. `required`: how many operands must be there; `writes`: the operand that is written in place."""

    name: str
    doc: str
    args: tuple[str, ...]
    required: int
    attrs: dict[str, Any]
    rule: Callable[..., Shape]
    variadic: bool = False
    writes: int | None = None

    def infer(self, args: tuple[Any, ...], attrs: dict[str, Any]) -> Shape:
        """Shape and dtype of the result; ValueError or TypeError says what does not fit."""
        if any(a is None for a in args[: self.required]):
            raise ValueError(f"{self.name} needs {', '.join(self.args[: self.required])}")
        if self.name not in ANY_DTYPE:
            for name, a in zip(self.args, args):
                if a is None or a.kind == "number":
                    continue
                wanted = ("i32",) if name in INDICES else FLOAT_DTYPES[a.kind]
                if (self.name, name) in MATRICES and a.kind == "weight":
                    wanted += QUANTISED
                if a.dtype not in wanted:
                    raise ValueError(
                        f"{self.name}: {name} is {_s(a)}, wanted {' or '.join(wanted)}; ops.cast turns one into the other"
                    )
        return self.rule(list(args), **attrs) if self.variadic else self.rule(*args, **attrs)


OPS: dict[str, Op] = {}


def _value(x: Any) -> Value | None:
    if x is None or type(x) is Value:
        return x
    if type(x) is Tensor or hasattr(x, "value"):
        return x.value
    if isinstance(x, int | float) and not isinstance(x, bool):
        return Value("", "f32", (), "number", float(x))
    raise TypeError(f"wanted a Tensor, a parameter, a state or a number, got {type(x).__name__}")


def _op(rule: Callable[..., Shape] | None = None, *, variadic: bool = False, writes: int | None = None):
    """Put a shape rule into the table and return the recording function."""
    if rule is None:
        return lambda r: _op(r, variadic=variadic, writes=writes)
    name = rule.__name__.rstrip("_")
    parameters = inspect.signature(rule).parameters.values()
    operands = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    attrs = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    required = builtins.sum(p.default is p.empty for p in operands)
    row = OPS[name] = Op(
        name, inspect.getdoc(rule) or "", tuple(p.name for p in operands), required, attrs, rule, variadic, writes
    )
    positional = (*(("xs",) if variadic else row.args), *attrs)

    @wraps(rule)
    def record(*args: Any, **kwargs: Any) -> Tensor:
        tracer = Tracer.current
        if tracer is None:
            raise RuntimeError(f"ops.{name} outside of trace(): ops describe a computation, an executor runs it")
        given = dict(zip(positional, args), **kwargs)
        if len(args) > len(positional) or not given.keys() <= set(positional):
            unknown = sorted(given.keys() - set(positional))
            raise TypeError(f"{name} takes operands {row.args} and attributes {tuple(attrs)}; got {unknown or args}")
        values = tuple([_value(x) for x in (given["xs"] if variadic else map(given.get, row.args))])
        named = {k: given.get(k, default) for k, default in attrs.items()}
        for k, v in named.items():
            if v is inspect.Parameter.empty:
                raise TypeError(f"{name} needs the attribute {k}")
            if type(v) is list:
                named[k] = tuple(v)
        try:
            shape, dtype = row.infer(values, named)
        except ValueError as e:
            raise ValueError(f"{e}{f' (in {tracer.scopes[-1]})' if tracer.scopes[-1] else ''}") from None
        return tracer.record(name, values, named, values[writes] if writes is not None else None, shape, dtype)

    return record


# ---- matrix products ------------------------------------------------------------------------------------------------


def _epilogue(
    name: str, shape: tuple[int, ...], n: int, bias: Any, residual: Any, activation: str, final: str = "none"
) -> None:
    if bias is not None and bias.shape != (n,):
        raise ValueError(f"{name}: bias is {_s(bias)}, the output has {n} columns")
    if residual is not None and _size(residual.shape) != _size(shape):
        raise ValueError(f"{name}: residual is {_s(residual)}, the output is {list(shape)}")
    for word in (activation, final):
        if word not in ACTIVATIONS:
            raise ValueError(f"{name}: activation {word!r}; there are {', '.join(ACTIVATIONS)}")


@_op
def linear(x, w, bias=None, residual=None, count=None, *, activation: str = "none", final: str = "none"):
    """x (..., k), w (n, k) -> final(activation(x w^T + bias) + residual), (..., n). The fuse pass fills the epilogue in.

    count: a runtime scalar. Of the rows (all axes but the last as one), those from count on are zeros and cost nothing.
    """
    if not (len(w.shape) == 2 and x.shape[-1:] == w.shape[1:]):
        raise ValueError(f"linear: x is {_s(x)}, w is {_s(w)}; the last axis of both must be equal")
    if w.dtype in QUANTISED and w.shape[1] % DTYPES[w.dtype].block:
        raise ValueError(f"linear: w is {_s(w)}; its rows are not whole blocks of {DTYPES[w.dtype].block}")
    shape = (*x.shape[:-1], w.shape[0])
    _epilogue("linear", shape, w.shape[0], bias, residual, activation, final)
    return shape, "f32"


@_op
def conv1d(
    x, w, bias=None, residual=None, *, stride: int = 1, padding: int = 0, activation: str = "none", final: str = "none"
):
    """x (batch, n_ctx, c_in), w (c_out, c_in, kernel) -> (batch, n_out, c_out): final(activation(conv + bias) + residual)."""
    if not (len(x.shape) == 3 and len(w.shape) == 3 and x.shape[2] == w.shape[1]):
        raise ValueError(f"conv1d: x is {_s(x)} (batch, n_ctx, c_in), w is {_s(w)} (c_out, c_in, kernel); c_in differs")
    batch, n_ctx, _ = x.shape
    c_out, _, kernel = w.shape
    n_out = (n_ctx + 2 * padding - kernel) // stride + 1
    if n_out <= 0:
        raise ValueError(f"conv1d: {n_ctx} positions with padding {padding} are fewer than the kernel of {kernel}")
    shape = (batch, n_out, c_out)
    _epilogue("conv1d", shape, c_out, bias, residual, activation, final)
    return shape, "f32"


@_op
def conv2d(
    x, w, bias=None, residual=None, *,
    stride: int = 1, padding: int = 0, groups: int = 1, activation: str = "none", final: str = "none",
):
    """x (batch, height, width, c_in), w (c_out, c_in / groups, kh, kw) -> (batch, h_out, w_out, c_out), channels last.

    final(activation(conv + bias) + residual). groups is 1, or c_in = c_out (depthwise: each channel by itself).
    """
    if not (len(x.shape) == 4 and len(w.shape) == 4 and x.shape[3] == w.shape[1] * groups):
        raise ValueError(
            f"conv2d: x is {_s(x)} (batch, height, width, c_in), w is {_s(w)} (c_out, c_in / groups, kh, kw), groups "
            f"{groups}; c_in differs"
        )
    batch, height, width, c_in = x.shape
    c_out, _, kh, kw = w.shape
    if groups != 1 and not (groups == c_in == c_out):
        raise ValueError(f"conv2d: {groups} groups of {c_in} channels into {c_out}; groups is 1, or c_in and c_out (depthwise)")
    h_out, w_out = ((n + 2 * padding - k) // stride + 1 for n, k in ((height, kh), (width, kw)))
    if h_out <= 0 or w_out <= 0:
        raise ValueError(f"conv2d: {height} x {width} with padding {padding} is smaller than the kernel of {kh} x {kw}")
    shape = (batch, h_out, w_out, c_out)
    _epilogue("conv2d", shape, c_out, bias, residual, activation, final)
    return shape, "f32"


@_op
def conv_transpose2d(x, w, bias=None, *, stride: int, activation: str = "none"):
    """x (batch, height, width, c_in), w (c_in, c_out, stride, stride) -> (batch, stride height, stride width, c_out).

    Every position becomes a square of stride x stride positions; activation(... + bias).
    """
    if not (len(x.shape) == 4 and len(w.shape) == 4 and x.shape[3] == w.shape[0] and w.shape[2:] == (stride, stride)):
        raise ValueError(
            f"conv_transpose2d: x is {_s(x)} (batch, height, width, c_in), w is {_s(w)} (c_in, c_out, kh, kw); wanted equal "
            f"c_in and a kernel of the stride, {stride} x {stride}"
        )
    batch, height, width, _ = x.shape
    shape = (batch, height * stride, width * stride, w.shape[1])
    _epilogue("conv_transpose2d", shape, w.shape[1], bias, None, activation)
    return shape, "f32"


@_op
def matmul(a, b, *, transpose_b: bool = False):
    """a (..., m, k), b (..., k, n), or (..., n, k) with transpose_b -> (..., m, n). For activations; `linear` takes weights.

    The axes before the last two are equal, or b has none.
    """
    k, n = b.shape[-2:][::-1] if transpose_b else b.shape[-2:]
    if not (len(a.shape) >= 2 and len(b.shape) >= 2 and a.shape[-1] == k and b.shape[:-2] in ((), a.shape[:-2])):
        raise ValueError(f"matmul: a is {_s(a)}, b is {_s(b)}{' transposed' if transpose_b else ''}; the sizes do not fit")
    return (*a.shape[:-1], n), "f32"


@_op
def attention(q, k, v, start=None, bias=None, *, causal: bool = False, scale: float = 0.0):
    """softmax(scale q k^T + bias) v, q (b, h, n, d), k and v (b, h_kv, m, d) -> (b, h, n, d); h a multiple of h_kv (GQA).

    causal: query i sees keys <= start + i. bias (h, n, m) or (b, h, n, m), or (1, n, m) for all heads. scale 0 means
    d ** -0.5. Dao et al. 2022 for how it is computed.
    """
    if not (len(q.shape) == 4 and len(k.shape) == 4 and k.shape == v.shape):
        raise ValueError(f"attention: q is {_s(q)}, k is {_s(k)}, v is {_s(v)}; wanted four axes each and k like v")
    (b, h, n, d), (bk, hk, _, dk) = q.shape, k.shape
    if not (b == bk and d == dk and h % hk == 0):
        raise ValueError(f"attention: q is {_s(q)}, k is {_s(k)}; batch and d must be equal, heads a multiple")
    if bias is not None and bias.shape not in ((1, n, k.shape[2]), (h, n, k.shape[2]), (b, h, n, k.shape[2])):
        raise ValueError(f"attention: bias is {_s(bias)}, wanted ({h}, {n}, {k.shape[2]}), or one for each of {b} batches, "
                         "or 1 for all heads")
    return (b, h, n, d), "f32"


@_op
def window_attention(qkv, bias=None, outside=None, *, n_head: int, window: int, scale: float = 0.0):
    """Attention within squares of window x window positions: qkv (batch, height, width, 3 c) -> (batch, height, width, c).

    The last axis of qkv holds query, key and value (c / n_head each) of head 0, then of head 1, ... bias (n_head, n, n), n =
    window ** 2. The squares begin at the upper left; positions beyond the picture are keys like any other and have the
    query, key and value `outside` (3 c). scale 0 means (c / n_head) ** -0.5. Wu et al. 2022, TinyViT.
    """
    if not (len(qkv.shape) == 4 and qkv.shape[3] % (3 * n_head) == 0):
        raise ValueError(f"window_attention: qkv is {_s(qkv)}; wanted (batch, height, width, 3 c), c a multiple of {n_head}")
    batch, height, width, wide = qkv.shape
    n = window * window
    if bias is not None and bias.shape != (n_head, n, n):
        raise ValueError(f"window_attention: bias is {_s(bias)}, wanted ({n_head}, {n}, {n})")
    if (height % window or width % window) and (outside is None or _size(outside.shape) != wide):
        raise ValueError(
            f"window_attention: {height} x {width} is not made of whole windows of {window}, and outside is {_s(outside)}; "
            f"wanted {wide} values for the positions beyond"
        )
    return (batch, height, width, wide // 3), "f32"


@_op
def rope(x, cos, sin, start, *, pairs: bool = False):
    """Rotary position embedding (Su et al. 2021) of x (b, h, n, d): position i is turned by row start + i of the tables.

    cos, sin (capacity, d / 2). Coordinate j goes with j + d / 2 (halves, as in Hugging Face files), or with pairs 2 j with
    2 j + 1 (as in llama2.c and GGUF files of Llama). start + n <= capacity.
    """
    if not (len(x.shape) == 4 and cos.shape == sin.shape and len(cos.shape) == 2 and cos.shape[1] * 2 == x.shape[3]):
        raise ValueError(f"rope: x is {_s(x)} (b, h, n, d), cos is {_s(cos)}, sin is {_s(sin)}; wanted (capacity, d / 2)")
    if x.shape[2] > cos.shape[0]:
        raise ValueError(f"rope: {x.shape[2]} positions of x {_s(x)}, the tables have {cos.shape[0]}")
    return x.shape, "f32"


# ---- normalisation and softmax --------------------------------------------------------------------------------------


@_op
def layer_norm(x, w, b, *, eps: float = 1e-5):
    """(x - mean) / sqrt(var + eps) * w + b over the last axis; sums in float32 or wider."""
    if not (w.shape == x.shape[-1:] and b.shape == x.shape[-1:]):
        raise ValueError(f"layer_norm: x is {_s(x)}, w is {_s(w)}, b is {_s(b)}")
    return x.shape, "f32"


@_op
def rms_norm(x, w, *, eps: float = 1e-5):
    """x / sqrt(mean(x^2) + eps) * w over the last axis (Zhang, Sennrich 2019); sums in float32 or wider."""
    if w.shape != x.shape[-1:]:
        raise ValueError(f"rms_norm: x is {_s(x)}, w is {_s(w)}")
    return x.shape, "f32"


@_op
def softmax(x, *, axis: int = -1):
    """exp(x - max) / sum over one axis."""
    return _axis("softmax", x, axis) and (x.shape, "f32")


@_op
def log_softmax(x, *, axis: int = -1):
    """x - log(sum(exp(x))) over one axis."""
    return _axis("log_softmax", x, axis) and (x.shape, "f32")


# ---- tables and state -----------------------------------------------------------------------------------------------


@_op
def embedding(ids, table):
    """ids i32 (...), table (n, d) -> rows of the table, (..., d). Executors refuse ids outside 0..n-1."""
    if not (ids.dtype == "i32" and len(table.shape) == 2):
        raise ValueError(f"embedding: ids are {ids.dtype} (want i32), table is {_s(table)}")
    return (*ids.shape, table.shape[1]), "f32"


@_op
def rows(table, start, *, count: int):
    """Rows start .. start + count of a table (n, d) -> (count, d); start is a runtime scalar, start + count <= n."""
    if not (len(table.shape) == 2 and count <= table.shape[0]):
        raise ValueError(f"rows: {count} rows of a table {_s(table)}")
    return (count, table.shape[1]), "f32"


@_op
def top_k(x, *, k: int):
    """Indices of the k largest elements along the last axis, i32 (..., k): largest first, of equals the lower index first."""
    if not (x.shape and 1 <= k <= x.shape[-1]):
        raise ValueError(f"top_k: {k} of x {_s(x)}")
    return (*x.shape[:-1], k), "i32"


@_op
def take(x, ids):
    """x (..., n) at ids i32 (..., k) along the last axis -> (..., k). Ids come from `top_k` or `argmax` of the same x."""
    if not (x.shape and ids.shape[:-1] == x.shape[:-1]):
        raise ValueError(f"take: x is {_s(x)}, ids are {_s(ids)}; all axes but the last must be equal")
    return ids.shape, "f32"


@_op(writes=0)
def update(state, x, pos, *, axis: int):
    """Write x into the state at pos along one axis, in place; the other axes are equal. pos + x.shape[axis] <= capacity."""
    if not (
        len(state.shape) == len(x.shape)
        and all(i == axis or a == b for i, (a, b) in enumerate(zip(state.shape, x.shape)))
        and x.shape[axis] <= state.shape[axis]
    ):
        raise ValueError(f"update: state is {_s(state)}, x is {_s(x)}, axis {axis}")
    return state.shape, state.dtype


# ---- shape ----------------------------------------------------------------------------------------------------------


@_op
def reshape(x, *, shape):
    """The same elements in another shape; one entry may be -1."""
    sizes = list(shape)
    if -1 in sizes:
        known = -_size(sizes)
        if not (known > 0 and _size(x.shape) % known == 0):
            raise ValueError(f"reshape: {_s(x)} into {list(shape)}")
        sizes[sizes.index(-1)] = _size(x.shape) // known
    if not (_size(sizes) == _size(x.shape)):
        raise ValueError(f"reshape: {_s(x)} into {list(shape)}")
    return tuple(sizes), x.dtype


@_op
def transpose(x, *, axes):
    """Axes in another order."""
    if not (sorted(axes) == list(range(len(x.shape)))):
        raise ValueError(f"transpose: x is {_s(x)}, axes {tuple(axes)}")
    return tuple(x.shape[a] for a in axes), x.dtype


@_op
def slice_(x, *, axis: int, start: int, stop: int):
    """Positions start .. stop of one axis."""
    axis = _axis("slice", x, axis) % len(x.shape)
    if not (0 <= start < stop <= x.shape[axis]):
        raise ValueError(f"slice: {start}..{stop} of axis {axis} of {_s(x)}")
    return (*x.shape[:axis], stop - start, *x.shape[axis + 1 :]), x.dtype


slice = slice_


@_op(variadic=True)
def concat(xs, *, axis: int):
    """Tensors one behind another along one axis."""
    first = xs[0].shape
    if not (
        all(
            len(x.shape) == len(first)
            and x.dtype == xs[0].dtype
            and all(i == axis % len(first) or a == b for i, (a, b) in enumerate(zip(x.shape, first)))
            for x in xs
        )
    ):
        raise ValueError(f"concat: {', '.join(_s(x) for x in xs)} along axis {axis}")
    axis %= len(first)
    return (*first[:axis], builtins.sum(x.shape[axis] for x in xs), *first[axis + 1 :]), xs[0].dtype


@_op
def pad(x, *, axis: int, before: int, after: int):
    """Zeros before and behind along one axis."""
    axis = _axis("pad", x, axis) % len(x.shape)
    if before < 0 or after < 0:
        raise ValueError(f"pad: {before} before and {after} behind; wanted numbers from 0")
    return (*x.shape[:axis], before + x.shape[axis] + after, *x.shape[axis + 1 :]), "f32"


@_op
def cast(x, *, dtype: str):
    """f32 <-> i32; towards i32 the fraction is cut off."""
    if not ({x.dtype, dtype} <= {"f32", "i32"}):
        raise ValueError(f"cast: {x.dtype} to {dtype}; there are f32 and i32")
    return x.shape, dtype


# ---- elementwise ----------------------------------------------------------------------------------------------------


def _unary(name: str, doc: str) -> Callable[..., Tensor]:
    def rule(x):
        return x.shape, "f32"

    rule.__name__, rule.__doc__ = name, doc
    return _op(rule)


def _binary(name: str, doc: str) -> Callable[..., Tensor]:
    def rule(a, b):
        n = builtins.max(len(a.shape), len(b.shape))
        pairs = list(zip((1,) * (n - len(a.shape)) + a.shape, (1,) * (n - len(b.shape)) + b.shape))
        if not (all(x == y or 1 in (x, y) for x, y in pairs)):
            raise ValueError(f"{name}: {_s(a)} and {_s(b)} do not broadcast")
        return tuple(builtins.max(x, y) for x, y in pairs), "f32"

    rule.__name__, rule.__doc__ = name, doc + " NumPy's broadcasting."
    return _op(rule)


gelu = _unary("gelu", "x * (1 + erf(x / sqrt(2))) / 2, the exact form (Hendrycks, Gimpel 2016).")
relu = _unary("relu", "max(x, 0).")
silu = _unary("silu", "x * sigmoid(x).")
exp = _unary("exp", "e ** x.")
log = _unary("log", "Natural logarithm.")
log10 = _unary("log10", "Decimal logarithm.")
sqrt = _unary("sqrt", "Square root.")
square = _unary("square", "x * x.")
neg = _unary("neg", "-x.")
sin = _unary("sin", "Sine; exact to 2e-7 for |x| below 1e4.")
cos = _unary("cos", "Cosine, like sin.")
tanh = _unary("tanh", "Hyperbolic tangent, finite for every finite x.")
sigmoid = _unary("sigmoid", "1 / (1 + e ** -x), finite for every finite x.")
add = _binary("add", "a + b.")
sub = _binary("sub", "a - b.")
mul = _binary("mul", "a * b.")
div = _binary("div", "a / b.")
maximum = _binary("maximum", "The larger of the two.")
minimum = _binary("minimum", "The smaller of the two.")
swiglu = _binary("swiglu", "silu(a) * b, the gate of Shazeer 2020.")


# ---- reductions -----------------------------------------------------------------------------------------------------


def _reduced(name: str, x: Any, axis: int | None, keepdims: bool) -> tuple[int, ...]:
    if axis is None:
        return (1,) * len(x.shape) if keepdims else ()
    axis = _axis(name, x, axis) % len(x.shape)
    return (*x.shape[:axis], *((1,) if keepdims else ()), *x.shape[axis + 1 :])


def _reduction(name: str, doc: str) -> Callable[..., Tensor]:
    def rule(x, *, axis: int | None = -1, keepdims: bool = False):
        return _reduced(name, x, axis, keepdims), "f32"

    rule.__name__, rule.__doc__ = name, doc + " Over one axis, or all (None)."
    return _op(rule)


max = _reduction("max", "Largest element.")
sum = _reduction("sum", "Sum, in float32 or wider.")
mean = _reduction("mean", "Arithmetic mean.")
log_sum_exp = _reduction("log_sum_exp", "log(sum(e ** x)), finite for every finite x.")


@_op
def argmax(x, *, axis: int = -1):
    """Index of the (first) largest element along one axis, i32."""
    return _reduced("argmax", x, axis, False), "i32"


# ---- helpers --------------------------------------------------------------------------------------------------------


def _s(x: Any) -> str:
    return "absent" if x is None else f"{x.dtype}{list(x.shape)}"


def _size(shape: Any) -> int:
    n = 1
    for s in shape:
        n *= s
    return n


def _axis(name: str, x: Any, axis: int) -> int:
    if not (-len(x.shape) <= axis < len(x.shape)):
        raise ValueError(f"{name}: axis {axis} of {_s(x)}")
    return axis + len(x.shape)  # positive and true for every valid axis


def reshape_to(x: Any, *shape: int) -> Tensor:
    return reshape(x, shape=shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape)


def _methods() -> None:
    """Operators and methods of Tensor are these ops."""
    for method, fn in {"__add__": add, "__sub__": sub, "__mul__": mul, "__truediv__": div, "__neg__": neg}.items():
        setattr(Tensor, method, fn)
    for method, fn in {"__radd__": add, "__rsub__": sub, "__rmul__": mul, "__rtruediv__": div}.items():
        setattr(Tensor, method, lambda a, b, fn=fn: fn(b, a))
    Tensor.reshape = reshape_to
    Tensor.transpose = lambda x, *axes: transpose(x, axes=axes[0] if isinstance(axes[0], tuple) else axes)


_methods()
