"""Ops on pictures, on every executor, against float64 NumPy written out here."""

from __future__ import annotations

import numpy as np
import pytest

from candlewick import ops
from candlewick.executors import ExecutorUnavailable, create
from candlewick.executors.numpy import KERNELS
from tests.executors.test_ops import close, erf, normal, run, softmax64


@pytest.fixture(params=["numpy", "wasm", "wasm of 2 threads", "webgpu"])
def executor(request):
    try:
        return create(request.param.split()[0], threads=2 if "2" in request.param else None)
    except ExecutorUnavailable as e:
        pytest.skip(f"{request.param} executor: {e}")


def gelu64(x):
    return x * (1 + erf(x / 2**0.5)) / 2


def conv64(x, w, stride, padding, groups=1):
    """x (batch, h, w, c_in), w (c_out, c_in / groups, kh, kw), one output position after the other."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    kh, kw = w.shape[2:]
    h_out, w_out = (x.shape[1] - kh) // stride + 1, (x.shape[2] - kw) // stride + 1
    y = np.zeros((len(x), h_out, w_out, len(w)))
    for i in range(h_out):
        for j in range(w_out):
            seen = x[:, i * stride : i * stride + kh, j * stride : j * stride + kw]
            y[:, i, j] = np.einsum("bijc,cij->bc", seen, w[:, 0]) if groups > 1 else np.einsum("bijc,ocij->bo", seen, w)
    return y


DENSE = [
    # batch, height, width, c_in, c_out, kernel, stride, padding
    (1, 5, 7, 3, 8, 3, 2, 1),
    (1, 9, 6, 5, 13, 3, 1, 1),
    (2, 8, 8, 4, 24, 2, 2, 0),
    (1, 17, 11, 12, 40, 3, 1, 1),
    (1, 64, 64, 3, 32, 3, 2, 1),
    (1, 12, 12, 256, 20, 3, 1, 1),
    (1, 4, 4, 2, 5, 4, 4, 0),
    (1, 3, 3, 2, 4, 5, 1, 2),
    (1, 1, 1, 1, 1, 3, 1, 1),
    (2, 6, 5, 20, 30, 1, 1, 0),
    (1, 6, 5, 7, 9, 1, 2, 0),
    (1, 2, 70, 16, 12, 1, 1, 1),
]


@pytest.mark.parametrize("batch,height,width,c_in,c_out,kernel,stride,padding", DENSE)
async def test_conv2d(executor, batch, height, width, c_in, c_out, kernel, stride, padding):
    x, w, b = normal(batch, height, width, c_in), normal(c_out, c_in, kernel, kernel), normal(c_out)
    got = await run(
        executor, lambda h, x: ops.conv2d(x, h.w, h.b, stride=stride, padding=padding), {"x": x}, weights={"w": w, "b": b}
    )
    close(got, conv64(x, w, stride, padding) + b, 4e-6)


async def test_conv2d_of_a_kernel_that_is_not_square(executor):
    x, w = normal(1, 6, 9, 4), normal(10, 4, 1, 3)
    close(await run(executor, lambda h, x: ops.conv2d(x, h.w, stride=2), {"x": x}, weights={"w": w}), conv64(x, w, 2, 0), 4e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("groups", [1, 20])
@pytest.mark.parametrize("kernel", [1, 3])
async def test_conv2d_epilogue(executor, groups, kernel, dtype, tmp_path):
    """gelu(relu(conv) + residual): one instruction, both activations in the epilogue."""
    x, r = normal(1, 7, 9, 20), normal(1, 7, 9, 20)
    w, b = normal(20, 20 // groups, kernel, kernel).astype(dtype).astype(np.float32), normal(20)

    def fn(h, x, r):
        return ops.gelu(ops.relu(ops.conv2d(x, h.w, h.b, padding=kernel // 2, groups=groups)) + r)

    got = await run(executor, fn, {"x": x, "r": r}, weights={"w": w, "b": b})
    assert [i.op for i in executor.programs["main"].instructions] == ["conv2d"]
    close(got, gelu64(np.maximum(conv64(x, w, 1, kernel // 2, groups) + b, 0) + r), 4e-6)


async def test_conv2d_of_half_precision_weights_from_a_file(executor, tmp_path):
    from candlewick import Spec, nn, trace
    from candlewick.weights import safetensors
    from candlewick.weights.load import Checkpoint, Weights, bind

    tensors = {"dense": normal(25, 6, 3, 3).astype(np.float16), "deep": normal(25, 1, 3, 3).astype(np.float16),
               "up": normal(25, 7, 2, 2).astype(np.float16)}
    safetensors.save(tmp_path / "model.safetensors", tensors)
    checkpoint = Checkpoint.open(tmp_path)
    bound = bind({n: nn.Parameter(t.shape) for n, t in tensors.items()}, await checkpoint.tensors())
    w = {n: nn.Parameter(t.shape, "f16", n) for n, t in tensors.items()}

    def fn(x):
        x = ops.conv2d(ops.conv2d(x, w["dense"], padding=1), w["deep"], padding=1, groups=25)
        return ops.conv_transpose2d(x, w["up"], stride=2)

    x = normal(1, 6, 8, 6)
    await executor.load({"main": trace(fn, {"x": Spec(x.shape)})}, Weights(checkpoint, bound, {}))
    want = conv64(conv64(x, tensors["dense"], 1, 1), tensors["deep"], 1, 1, 25)
    close((await executor.run("main", {"x": x}))["out"], transposed64(want, tensors["up"]), 4e-6)


@pytest.mark.parametrize(
    "batch,height,width,channels,kernel,stride,padding",
    [(1, 5, 7, 4, 3, 1, 1), (1, 9, 14, 13, 3, 2, 1), (2, 8, 70, 24, 3, 1, 1), (1, 20, 131, 6, 3, 2, 1), (1, 2, 2, 3, 3, 1, 1),
     (1, 1, 9, 8, 3, 1, 1), (1, 12, 9, 16, 5, 1, 2), (1, 9, 9, 160, 3, 3, 0), (1, 30, 10, 12, 3, 1, 0), (1, 8, 8, 64, 2, 2, 0)],
)
async def test_depthwise_conv2d(executor, batch, height, width, channels, kernel, stride, padding):
    x, w, b = normal(batch, height, width, channels), normal(channels, 1, kernel, kernel), normal(channels)

    def fn(h, x):
        return ops.conv2d(x, h.w, h.b, stride=stride, padding=padding, groups=channels)

    got = await run(executor, fn, {"x": x}, weights={"w": w, "b": b})
    close(got, conv64(x, w, stride, padding, channels) + b, 4e-6)


async def test_conv2d_reads_strided_views(executor):
    x, w = normal(1, 6, 8, 10), normal(7, 4, 3, 3)

    def fn(h, x):
        return ops.conv2d(ops.slice(ops.transpose(x, (0, 2, 1, 3)), 3, 2, 6), h.w, padding=1)

    close(await run(executor, fn, {"x": x}, weights={"w": w}), conv64(x.transpose(0, 2, 1, 3)[..., 2:6], w, 1, 1), 4e-6)


def transposed64(x, w):
    """Every input position into its square of outputs."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    (batch, height, width, _), (_, c_out, s, _) = x.shape, w.shape
    y = np.zeros((batch, height * s, width * s, c_out))
    for i in range(s):
        for j in range(s):
            y[:, i::s, j::s] = x @ w[:, :, i, j]
    return y


@pytest.mark.parametrize(
    "batch,height,width,c_in,c_out,stride",
    [(1, 3, 5, 4, 8, 2), (2, 4, 3, 7, 13, 2), (1, 64, 64, 32, 12, 2), (1, 2, 2, 3, 5, 3)],
)
async def test_conv_transpose2d(executor, batch, height, width, c_in, c_out, stride):
    x, w, b = normal(batch, height, width, c_in), normal(c_in, c_out, stride, stride), normal(c_out)

    def fn(h, x):
        return ops.gelu(ops.conv_transpose2d(x, h.w, h.b, stride=stride))

    got = await run(executor, fn, {"x": x}, weights={"w": w, "b": b})
    assert [i.op for i in executor.programs["main"].instructions] == ["conv_transpose2d"]
    close(got, gelu64(transposed64(x, w) + b), 4e-6)


@pytest.mark.parametrize(
    "a,b,transpose_b",
    [((3, 4), (4, 5), False), ((1, 7, 9), (1, 9, 30), False), ((2, 3, 50, 16), (2, 3, 16, 24), False), ((5, 8), (13, 8), True),
     ((4, 32), (500, 32), True), ((2, 4, 32), (2, 100, 32), True), ((2, 200, 12), (25, 12), True), ((1, 1), (1, 1), False),
     ((3, 400, 6), (6, 13), False)],
)
async def test_matmul(executor, a, b, transpose_b):
    x, y = normal(*a), normal(*b)
    got = await run(executor, lambda _, x, y: ops.matmul(x, y, transpose_b=transpose_b), {"x": x, "y": y})
    close(got, x.astype(np.float64) @ (np.swapaxes(y, -1, -2) if transpose_b else y), 4e-6)


async def test_matmul_of_strided_views(executor):
    x, y = normal(2, 9, 3, 8), normal(2, 8, 3, 20)
    got = await run(
        executor, lambda _, x, y: ops.matmul(x.transpose(0, 2, 1, 3), y.transpose(0, 2, 1, 3)), {"x": x, "y": y}
    )
    close(got, x.transpose(0, 2, 1, 3).astype(np.float64) @ y.transpose(0, 2, 1, 3), 4e-6)


def biased64(q, k, v, bias):
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], 1) for a in (k, v))
    return softmax64(q @ k.transpose(0, 1, 3, 2) * q.shape[-1] ** -0.5 + bias) @ v


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(
    "batch,h,hk,n,m,d", [(1, 2, 2, 1, 5, 8), (2, 4, 2, 3, 300, 16), (2, 3, 1, 40, 61, 64), (1, 2, 2, 49, 600, 24)]
)
async def test_attention_with_bias(executor, batch, h, hk, n, m, d, each):
    q, k, v = normal(batch, h, n, d), normal(batch, hk, m, d), normal(batch, hk, m, d)
    bias = normal(*((batch,) if each else ()), h, n, m, scale=2)
    got = await run(
        executor, lambda _, q, k, v, bias: ops.attention(q, k, v, None, bias), {"q": q, "k": k, "v": v, "bias": bias}
    )
    close(got, biased64(q, k, v, bias), 4e-6)


@pytest.mark.parametrize(
    "batch,height,width,n_head,d,window",
    [(1, 14, 21, 2, 32, 7), (1, 10, 9, 2, 32, 7), (2, 5, 4, 3, 10, 3), (1, 15, 16, 1, 32, 14), (1, 3, 3, 2, 7, 4),
     (1, 2, 2, 1, 4, 1), (1, 6, 4, 1, 60, 5), (1, 17, 18, 1, 8, 17)],
)
async def test_window_attention(executor, batch, height, width, n_head, d, window):
    c, n = n_head * d, window * window
    qkv, bias, outside = normal(batch, height, width, 3 * c), normal(n_head, n, n), normal(1, 3 * c)

    def fn(_, qkv, bias, outside):
        return ops.window_attention(qkv, bias, outside, n_head=n_head, window=window)

    got = await run(executor, fn, {"qkv": qkv, "bias": bias, "outside": outside})
    want = np.zeros((batch, height, width, c))
    for b in range(batch):
        for y in range(0, height, window):
            for x in range(0, width, window):
                places = [(i, j) for i in range(y, y + window) for j in range(x, x + window)]
                rows = np.stack([qkv[b, i, j] if i < height and j < width else outside[0] for i, j in places])
                q, k, v = rows.reshape(n, n_head, 3, d).transpose(2, 1, 0, 3)[:, None]
                for (i, j), row in zip(places, biased64(q, k, v, bias)[0].transpose(1, 0, 2), strict=True):
                    if i < height and j < width:
                        want[b, i, j] = row.reshape(c)
    close(got, want, 4e-6)


async def test_window_attention_of_whole_windows_needs_no_outside(executor):
    qkv = normal(1, 4, 6, 24)
    got = await run(executor, lambda _, qkv: ops.window_attention(qkv, n_head=2, window=2), {"qkv": qkv})
    x = qkv.reshape(2, 2, 3, 2, 2, 3, 4).transpose(5, 0, 2, 4, 1, 3, 6).reshape(3, 6, 2, 4, 4)
    want = biased64(*x, 0.0).reshape(2, 3, 2, 2, 2, 4).transpose(0, 3, 1, 4, 2, 5)
    close(got, want.reshape(1, 4, 6, 8), 4e-6)


async def test_pad(executor):
    x = normal(2, 3, 4)
    got = await run(executor, lambda _, x: ops.pad(ops.pad(x, axis=1, before=1, after=2), axis=-1, before=0, after=3), {"x": x})
    assert (got == np.pad(x, ((0, 0), (1, 2), (0, 3)))).all()


def test_what_does_not_fit_is_told():
    from candlewick import Spec, trace

    def shapes(fn, **specs):
        trace(fn, {n: Spec(s) for n, s in specs.items()})

    with pytest.raises(ValueError, match=r"conv2d: x is f32\[1, 4, 4, 3\].*c_in differs"):
        shapes(lambda x, w: ops.conv2d(x, w), x=(1, 4, 4, 3), w=(8, 4, 3, 3))
    with pytest.raises(ValueError, match="2 groups of 4 channels into 8"):
        shapes(lambda x, w: ops.conv2d(x, w, groups=2), x=(1, 4, 4, 4), w=(8, 2, 3, 3))
    with pytest.raises(ValueError, match="2 x 2 with padding 0 is smaller than the kernel of 3 x 3"):
        shapes(lambda x, w: ops.conv2d(x, w), x=(1, 2, 2, 4), w=(8, 4, 3, 3))
    with pytest.raises(ValueError, match="a kernel of the stride, 2 x 2"):
        shapes(lambda x, w: ops.conv_transpose2d(x, w, stride=2), x=(1, 2, 2, 4), w=(4, 8, 3, 3))
    with pytest.raises(ValueError, match="the sizes do not fit"):
        shapes(lambda a, b: ops.matmul(a, b), a=(2, 3, 4), b=(3, 4, 5))
    with pytest.raises(ValueError, match="bias is f32"):
        shapes(lambda q, b: ops.attention(q, q, q, None, b), q=(1, 2, 3, 4), b=(2, 3, 4))
    with pytest.raises(ValueError, match="wanted 12 values for the positions beyond"):
        shapes(lambda q: ops.window_attention(q, n_head=1, window=7), q=(1, 8, 7, 12))


def test_depthwise_and_dense_definitions_agree():
    """A depthwise convolution is a dense one whose weight is zero off the diagonal."""
    x, w = normal(1, 5, 6, 4), normal(4, 1, 3, 3)
    dense = np.zeros((4, 4, 3, 3), np.float32)
    dense[range(4), range(4)] = w[:, 0]
    words = {"stride": 1, "padding": 1, "activation": "none", "final": "none"}
    close(KERNELS["conv2d"](x, w, None, None, groups=4, **words), KERNELS["conv2d"](x, dense, None, None, groups=1, **words))
