"""Every op on every executor, against float64 NumPy written out here: same cases, skips said out loud."""

from __future__ import annotations

import math

import numpy as np
import pytest

from candlewick import Spec, nn, ops, trace
from candlewick.executors import ExecutorUnavailable, create
from candlewick.executors.numpy import KERNELS
from candlewick.ops import OPS
from candlewick.weights.load import Weights

RNG = np.random.default_rng(7)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


@pytest.fixture(params=["numpy", "wasm", "webgpu"])
def executor(request):
    try:
        return create(request.param)
    except ExecutorUnavailable as e:
        pytest.skip(f"{request.param} executor: {e}")


async def run(executor, fn, inputs, scalars=None, weights=None, types=None):
    """Trace fn with constants `weights` as named operands, run it once, return its output."""

    class Holder(nn.Module):
        pass

    holder = Holder()
    for name, array in (weights or {}).items():
        setattr(holder, name, nn.Constant(np.ascontiguousarray(array)))
    holder.parameters()
    specs = {n: Spec(a.shape, "i32" if a.dtype == np.int32 else "f32") for n, a in inputs.items()}
    program = trace(lambda **kw: fn(holder, **kw), specs, types or dict.fromkeys(scalars or {}, "i32"))
    await executor.load({"main": program}, Weights(None, {}, holder.constants()))
    return (await executor.run("main", {**inputs, **(scalars or {})}))["out"]


def close(got, want, tolerance=2e-6):
    assert got.shape == np.shape(want)
    assert np.isfinite(got).all()
    scale = max(1.0, float(np.abs(want).max()))
    assert np.abs(got - want).max() <= tolerance * scale


def erf(x):
    return np.vectorize(math.erf)(x.astype(np.float64))


def softmax64(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention64(q, k, v, start=0, causal=False):
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], 1) for a in (k, v))
    s = q @ k.transpose(0, 1, 3, 2) * q.shape[-1] ** -0.5
    if causal:
        s[..., np.arange(k.shape[2]) > start + np.arange(q.shape[2])[:, None]] = -np.inf
    return softmax64(s) @ v


@pytest.mark.parametrize(
    "m,n,k", [(1, 1, 1), (1, 13, 7), (2, 12, 8), (3, 24, 33), (5, 25, 64), (50, 40, 96), (97, 11, 130)]
)
async def test_linear(executor, m, n, k):
    x, w, b = normal(m, k), normal(n, k), normal(n)
    got = await run(executor, lambda h, x: ops.linear(x, h.w, h.b), {"x": x}, weights={"w": w, "b": b})
    close(got, x.astype(np.float64) @ w.T + b, 4e-6)


@pytest.mark.parametrize(
    "activation,reference",
    [
        (ops.gelu, lambda y: y * (1 + erf(y / 2**0.5)) / 2),
        (ops.relu, lambda y: np.maximum(y, 0)),
        (ops.silu, lambda y: y / (1 + np.exp(-y))),
    ],
)
async def test_linear_with_activation_and_residual(executor, activation, reference):
    x, w, b, r = normal(7, 20), normal(30, 20), normal(30), normal(1, 7, 30)

    def fn(h, x, r):
        return r + activation(ops.linear(x, h.w, h.b)).reshape(1, 7, 30)

    got = await run(executor, fn, {"x": x, "r": r}, weights={"w": w, "b": b})
    close(got, r + reference(x.astype(np.float64) @ w.T + b), 4e-6)


async def test_linears_of_one_input_are_joined(executor):
    x = normal(2, 9, 16)
    weights = {"q": normal(24, 16), "k": normal(24, 16), "v": normal(36, 16)}
    names = ["q", "k", "v"]
    program = trace(
        lambda x: ops.concat([ops.linear(x, nn.Parameter(weights[n].shape, name=n)) for n in names], -1),
        {"x": Spec(x.shape)},
    )
    if executor.name == "wasm":
        executor = create("numpy")  # weights from files on wasm are tested with real checkpoints in tests/models

    class Source:
        async def read(self, name):
            return weights[name]

    await executor.load({"main": program}, Source())
    assert [i.op for i in executor.programs["main"].instructions].count("linear") == 1
    got = (await executor.run("main", {"x": x}))["out"]
    close(got, np.concatenate([x.astype(np.float64) @ weights[n].T for n in names], -1), 4e-6)


@pytest.mark.parametrize(
    "n,c_in,c_out,taps,stride,padding",
    [(10, 4, 12, 3, 1, 1), (11, 5, 7, 3, 2, 1), (9, 1, 13, 4, 3, 0), (30, 8, 24, 3, 2, 1), (5, 2, 3, 5, 1, 2)],
)
async def test_conv1d(executor, n, c_in, c_out, taps, stride, padding):
    x, w, b = normal(2, n, c_in), normal(c_out, c_in, taps), normal(c_out)
    n_out = (n + 2 * padding - taps) // stride + 1
    r = normal(2, n_out, c_out)

    def fn(h, x, r):
        return ops.gelu(ops.conv1d(x * 1.0, h.w, h.b, stride=stride, padding=padding)) + r

    got = await run(executor, fn, {"x": x, "r": r}, weights={"w": w, "b": b})
    padded = np.pad(x.astype(np.float64), ((0, 0), (padding, padding), (0, 0)))
    want = (
        np.stack([np.einsum("btc,oct->bo", padded[:, i * stride : i * stride + taps], w) for i in range(n_out)], 1) + b
    )
    close(got, want * (1 + erf(want / 2**0.5)) / 2 + r, 4e-6)


async def test_conv1d_pads_with_zeros_and_not_with_what_lies_there(executor):
    x, w = normal(1, 8, 4), normal(6, 4, 3)
    got = await run(
        executor, lambda h, x: ops.conv1d(ops.slice(ops.relu(x), 1, 1, 7), h.w, padding=1), {"x": x}, weights={"w": w}
    )
    padded = np.pad(np.maximum(x[:, 1:7], 0).astype(np.float64), ((0, 0), (1, 1), (0, 0)))
    close(got, np.stack([np.einsum("btc,oct->bo", padded[:, i : i + 3], w) for i in range(6)], 1), 4e-6)


@pytest.mark.parametrize(
    "batch,h,hk,n,m,d", [(1, 2, 2, 1, 5, 8), (2, 4, 2, 3, 17, 16), (1, 3, 1, 40, 61, 64), (1, 2, 2, 49, 13, 24)]
)
async def test_attention(executor, batch, h, hk, n, m, d):
    q, k, v = normal(batch, h, n, d), normal(batch, hk, m, d), normal(batch, hk, m, d)
    got = await run(executor, lambda _, q, k, v: ops.attention(q, k, v), {"q": q, "k": k, "v": v})
    close(got, attention64(q, k, v), 4e-6)


@pytest.mark.parametrize("n,m,start", [(1, 20, 0), (1, 20, 7), (1, 20, 19), (5, 20, 3), (20, 20, 0), (33, 64, 20)])
async def test_causal_attention_from_a_position(executor, n, m, start):
    q, k, v = normal(1, 2, n, 16), normal(1, 2, m, 16), normal(1, 2, m, 16)

    def fn(_, q, k, v, start):
        return ops.attention(q, k, v, start=start, causal=True)

    close(await run(executor, fn, {"q": q, "k": k, "v": v}, {"start": start}), attention64(q, k, v, start, True), 4e-6)


async def test_attention_of_huge_logits_is_finite(executor):
    q, k, v = normal(1, 1, 20, 8, scale=300), normal(1, 1, 30, 8, scale=300), normal(1, 1, 30, 8)
    close(
        await run(executor, lambda _, q, k, v: ops.attention(q, k, v), {"q": q, "k": k, "v": v}),
        attention64(q, k, v),
        1e-3,
    )


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 64), (1, 1500, 12)])
async def test_layer_norm(executor, shape):
    x, w, b = normal(*shape, scale=3) + 100, normal(shape[-1]), normal(shape[-1])
    x[0, 0] += np.float32(800)
    got = await run(executor, lambda h, x: ops.layer_norm(x, h.w, h.b, eps=1e-5), {"x": x}, weights={"w": w, "b": b})
    x = x.astype(np.float64)
    close(got, (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b, 1e-4)


@pytest.mark.parametrize("shape,axis", [((1, 1), -1), ((3, 50), -1), ((3, 50), 0), ((2, 3, 4), 1)])
@pytest.mark.parametrize("log", [False, True])
async def test_softmax(executor, shape, axis, log):
    x = normal(*shape, scale=30)
    got = await run(executor, lambda _, x: (ops.log_softmax if log else ops.softmax)(x, axis), {"x": x})
    p = np.moveaxis(softmax64(np.moveaxis(x.astype(np.float64), axis, -1)), -1, axis)
    close(got, np.log(np.maximum(p, 1e-300)) if log else p)


async def test_embedding_and_bounds(executor):
    table, ids = normal(29, 10), np.array([[0, 28, 3], [7, 7, 1]], np.int32)
    got = await run(executor, lambda h, ids: ops.embedding(ids, h.table), {"ids": ids}, weights={"table": table})
    assert (got == table[ids]).all()
    with pytest.raises(ValueError, match="ids goes from 0 to 29, allowed are 0 to 28"):
        await executor.run("main", {"ids": ids + (ids == 28)})
    with pytest.raises(ValueError, match="ids"):
        await executor.run("main", {"ids": -ids})


async def test_rows(executor):
    table = normal(9, 5)
    got = await run(executor, lambda h, start: ops.rows(h.table, start, 3), {}, {"start": 4}, weights={"table": table})
    assert (got == table[4:7]).all()
    with pytest.raises(ValueError, match="start"):
        await executor.run("main", {"start": 7})


async def test_state_lives_on_between_runs(executor):
    cache = nn.KVCache.new("c", 1, 2, 6, 4)

    def fn(_, k, pos):
        c = cache.update(k, k * 2.0, pos)
        return ops.concat([c.k, c.v], 0)

    k = normal(1, 2, 2, 4)
    first = await run(executor, fn, {"k": k}, {"pos": 0})
    second = (await executor.run("main", {"k": k + 1, "pos": 4}))["out"]
    want = np.zeros((2, 2, 6, 4), np.float32)
    want[0, :, :2], want[1, :, :2] = k[0], 2 * k[0]
    assert (first == want).all()
    want[0, :, 4:], want[1, :, 4:] = k[0] + 1, 2 * (k[0] + 1)
    assert (second == want).all()
    with pytest.raises(ValueError, match="pos"):
        await executor.run("main", {"k": k, "pos": 5})


async def test_shape_ops(executor):
    x = normal(2, 3, 4, 5)
    cases = [
        (lambda x: ops.transpose(x, (2, 0, 3, 1)), x.transpose(2, 0, 3, 1)),
        (lambda x: ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (2, 4, -1)), x.transpose(0, 2, 1, 3).reshape(2, 4, 15)),
        (lambda x: ops.slice(x, 2, 1, 3), x[:, :, 1:3]),
        (lambda x: ops.concat([x, ops.slice(x, 1, 0, 1)], 1), np.concatenate([x, x[:, :1]], 1)),
        (
            lambda x: ops.relu(ops.slice(ops.transpose(x, (3, 2, 1, 0)), 0, 4, 5)),
            np.maximum(x.transpose(3, 2, 1, 0)[4:], 0),
        ),
    ]
    for fn, want in cases:
        assert (await run(executor, lambda _, x, fn=fn: fn(x), {"x": x}) == want).all()


async def test_cast(executor):
    x = np.array([-2.7, -0.2, 0.9, 5.0], np.float32)
    assert (await run(executor, lambda _, x: ops.cast(x, "i32"), {"x": x})).tolist() == [-2, 0, 0, 5]
    assert (await run(executor, lambda _, x: ops.cast(x, "f32"), {"x": np.arange(5, dtype=np.int32)})).tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]


BIG = np.concatenate([np.linspace(-12, 12, 997), [-1e4, -100, -13.5, 0, 13.5, 100, 1e4, 1e-30]]).astype(np.float32)
POSITIVE = np.concatenate([np.geomspace(1e-30, 1e30, 501), [1.0]]).astype(np.float32)
UNARY = {
    "gelu": (BIG, lambda x: x * (1 + erf(x / 2**0.5)) / 2),
    "relu": (BIG, lambda x: np.maximum(x, 0)),
    "silu": (BIG, lambda x: x / (1 + np.exp(np.minimum(-x, 700)))),
    "exp": (np.clip(BIG, -80, 80), np.exp),
    "log": (POSITIVE, np.log),
    "log10": (POSITIVE, np.log10),
    "sqrt": (POSITIVE, np.sqrt),
    "square": (BIG, np.square),
    "neg": (BIG, np.negative),
    "tanh": (BIG, np.tanh),
    "sin": (BIG, np.sin),
    "cos": (BIG, np.cos),
    "sigmoid": (BIG, lambda x: 1 / (1 + np.exp(np.minimum(-x, 700)))),
}


@pytest.mark.parametrize("name", UNARY)
async def test_unary(executor, name):
    x, reference = UNARY[name]
    got, want = await run(executor, lambda _, x: getattr(ops, name)(x), {"x": x}), reference(x.astype(np.float64))
    assert np.isfinite(got).all()
    assert (np.abs(got - want) <= 2e-6 + 2e-6 * np.abs(want)).all()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum"])
@pytest.mark.parametrize(
    "a,b", [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((), (5,)), ((2, 3, 4), (3, 1)), ((2, 1, 4), (3, 1))]
)
async def test_binary_broadcasts(executor, name, a, b):
    x, y = normal(*a), normal(*b)
    got = await run(executor, lambda _, x, y: getattr(ops, name)(x, y), {"x": x, "y": y})
    reference = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}.get(name) or getattr(np, name)
    close(got, reference(x.astype(np.float64), y))


async def test_binary_with_strided_operands_and_numbers(executor):
    x = normal(6, 10)

    def fn(_, x):
        left, right = ops.slice(x, 1, 0, 4), ops.slice(x, 1, 4, 8)
        return 1.0 - left * left / (right * right + 2.0)

    close(
        await run(executor, fn, {"x": x}),
        1 - x[:, :4].astype(np.float64) ** 2 / (x[:, 4:8].astype(np.float64) ** 2 + 2),
    )


@pytest.mark.parametrize("name", ["max", "sum", "mean", "argmax"])
@pytest.mark.parametrize("shape,axis", [((1, 1), -1), ((4, 51), -1), ((4, 51), 0), ((2, 3, 17), 1)])
async def test_reductions(executor, name, shape, axis):
    x = normal(*shape)
    got = await run(executor, lambda _, x: getattr(ops, name)(x, axis), {"x": x})
    close(got, getattr(np, name)(x.astype(np.float64), axis))


async def test_whole_maximum_with_a_float_scalar(executor):
    x = normal(40, 30)
    got = await run(
        executor,
        lambda _, x, peak: ops.maximum(x, peak - 1.0) + ops.max(x, axis=None),
        {"x": x},
        {"peak": 1.5},
        types={"peak": "f32"},
    )
    close(got, np.maximum(x, 0.5) + x.max())


async def test_load_adds_programs_and_names_the_unknown_entry(executor):
    x = normal(3)
    await executor.load({"a": trace(lambda x: x + 1.0, {"x": Spec((3,))})}, Weights(None, {}, {}))
    await executor.load({"b": trace(lambda x: x * 2.0, {"x": Spec((3,))})}, Weights(None, {}, {}))
    close((await executor.run("a", {"x": x}))["out"], x + 1)
    close((await executor.run("b", {"x": x}))["out"], x * 2)
    with pytest.raises(ValueError, match="no entry 'c'.*a, b"):
        await executor.run("c", {"x": x})
    with pytest.raises(ValueError, match="missing: \\['x'\\], unknown: \\['y'\\]"):
        await executor.run("a", {"y": x})
    with pytest.raises(ValueError, match="x is \\[4\\], wanted f32\\[3\\]"):
        await executor.run("a", {"x": normal(4)})


async def test_what_has_one_name_is_one_thing(executor):
    small, large = (trace(lambda x, n=n: ops.update(nn.State("s", (n,)), x, 0, 0), {"x": Spec((3,))}) for n in (4, 5))
    await executor.load({"a": small}, Weights(None, {}, {}))
    with pytest.raises(ValueError, match=r"!s is f32\[5\] here and f32\[4\] in a Program that is loaded"):
        await executor.load({"b": large}, Weights(None, {}, {}))
    close((await executor.run("a", {"x": np.ones(3, np.float32)}))["out"], [1, 1, 1, 0])


async def test_memory_counts_what_a_load_adds(executor):
    for n in (1000, 2000):
        constant = nn.Constant(np.ones(n, np.float32), f"w{n}")
        program = trace(lambda x, c=constant: x + c, {"x": Spec((n,))})
        await executor.load({str(n): program}, Weights(None, {}, {constant.name: constant.array}))
    assert executor.describe()["memory"]["weights"] == 12000


async def test_a_failed_load_leaves_nothing_behind(executor, tmp_path):
    from candlewick.weights import safetensors
    from candlewick.weights.load import Checkpoint, bind

    w = normal(12, 5)
    safetensors.save(tmp_path / "model.safetensors", {"w": w})
    checkpoint = Checkpoint.open(tmp_path)
    bound = bind({"w": nn.Parameter(w.shape)}, await checkpoint.tensors())
    program = trace(lambda x: ops.linear(x, nn.Parameter(w.shape, name="w")), {"x": Spec((2, 5))})
    source = checkpoint.files["model.safetensors"]

    class Broken:
        name, size = source.name, source.size

        async def read(self, start, end):
            raise OSError("the disk is gone")

    x = normal(2, 5)
    with pytest.raises(OSError, match="the disk is gone"):
        await executor.load({"main": program}, Weights(Checkpoint({"model.safetensors": Broken()}), bound, {}))
    with pytest.raises(ValueError, match="no entry 'main'"):
        await executor.run("main", {"x": x})
    await executor.load({"main": program}, Weights(checkpoint, bound, {}))
    close((await executor.run("main", {"x": x}))["out"], x.astype(np.float64) @ w.T)


async def test_steps_give_every_value(executor):
    x = normal(2, 6)
    program = trace(lambda x: ops.transpose(ops.relu(x), (1, 0)) * 3.0, {"x": Spec(x.shape)})
    await executor.load({"main": program}, Weights(None, {}, {}))
    seen = [(i.op, a) async for i, a in executor.steps("main", {"x": x})]
    assert [op for op, _ in seen] == ["relu", "transpose", "mul"]
    assert (seen[1][1] == np.maximum(x, 0).T).all()
    close(seen[2][1], np.maximum(x, 0).T * 3)


def test_every_op_has_a_kernel_on_every_executor():
    from candlewick.executors.wasm.lower import LOWER
    from candlewick.executors.webgpu import LOWER as GPU

    assert set(OPS) == set(KERNELS)
    assert set(OPS) == set(LOWER)
    assert set(OPS) == set(GPU)
