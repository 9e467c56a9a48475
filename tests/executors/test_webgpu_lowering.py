"""What the webgpu executor's lowering does with several instructions at once, and with what a device has little or much of."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from candlewick import Spec, nn, ops, trace
from candlewick.commands.common import find_checkpoint
from candlewick.commands.families import load_any
from candlewick.executors import ExecutorUnavailable, create
from candlewick.executors.example import example_inputs
from candlewick.executors.webgpu import KERNELS, WebgpuExecutor
from candlewick.executors.webgpu.elementwise import ERF
from candlewick.executors.webgpu.lower_products import BUSY_GROUPS, BUSY_THREADS, tile_shape
from candlewick.passes import optimise
from candlewick.weights.load import Checkpoint, Weights
from tests.bench.gpu.count import count
from tests.executors.test_gpu_weights import run as run_with_file
from tests.executors.test_gpu_weights import weight
from tests.executors.test_ops import close

FORMS = ["plain", "float16", "subgroups", "teams"]


class Seen:
    """A device as lowering sees it: with limits and features of a test's choice."""

    def __init__(self, device):
        self.__dict__.update(device=device, limits=dict(device.limits), features=set())

    def __getattr__(self, name):
        return getattr(self.device, name)

    def __setattr__(self, name, value):
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self.device, name, value)


@pytest.fixture
def host(host):
    yield Seen(host)
    host.release(0)


def in_form(host, form):
    """Let lowering see features for one form of kernels; skipped where the device has not got them."""
    wanted = {"float16": "shader-f16", "subgroups": "subgroups", "teams": "subgroups"}.get(form)
    if wanted is None:
        return
    if wanted not in host.device.features:
        pytest.skip(f"this device has no {wanted}")
    host.features = {wanted}
    if form != "teams":
        host.limits |= {"subgroupMinSize": 0, "subgroupMaxSize": 0}


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def kernels(program, **how):
    """Dispatches of a Program by kernel and entry."""
    lowering = WebgpuExecutor(None)._lower(optimise(program), **how)
    return Counter(f"{d.kernel} {d.entry}" for d in lowering.dispatches), len(lowering.dispatches)


class Layer(nn.Module):
    """A layer of a language model: norms before products, keys and values into a cache, a gate."""

    def __init__(self, rng, dim=32, heads=4, kv_heads=2, d=8, hidden=48, room=40):
        def constant(*shape):
            return nn.Constant(rng.normal(0, 0.3, shape).astype(np.float32))

        self.norm, self.norm2, self.qkv = constant(dim), constant(dim), constant((heads + 2 * kv_heads) * d, dim)
        self.out, self.both, self.down = constant(dim, heads * d), constant(2 * hidden, dim), constant(dim, hidden)
        angles = np.arange(room)[:, None] * 0.9 ** np.arange(d // 2)
        self.cos, self.sin = nn.Constant(np.cos(angles).astype(np.float32)), nn.Constant(np.sin(angles).astype(np.float32))
        self.sizes = heads, kv_heads, d, hidden, room

    def __call__(self, x, pos, count=None):
        heads, kv, d, hidden, room = self.sizes
        cache = nn.KVCache.new("cache", 1, kv, room, d)
        qkv = ops.linear(ops.rms_norm(x, self.norm), self.qkv, count=count)
        ends = np.cumsum([0, heads * d, kv * d, kv * d])
        q, k, v = (nn.split_heads(ops.slice(qkv, -1, int(a), int(b)), int(b - a) // d) for a, b in pairwise(ends))
        cache = cache.update(ops.rope(k, self.cos, self.sin, pos), v, pos)
        y = ops.attention(ops.rope(q, self.cos, self.sin, pos), cache.k, cache.v, start=pos, causal=True)
        x = ops.linear(nn.merge_heads(y), self.out, residual=x, count=count)
        both = ops.linear(ops.rms_norm(x, self.norm2), self.both, count=count)
        gated = ops.swiglu(ops.slice(both, -1, 0, hidden), ops.slice(both, -1, hidden, 2 * hidden))
        return {"y": ops.linear(gated, self.down, residual=x, count=count), "keys": cache.k + 0.0, "values": cache.v + 0.0}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 9])
async def test_a_layer_in_few_kernels(host, rng, n, form):
    in_form(host, form)
    layer = Layer(rng)
    layer.parameters()
    program = trace(lambda x, pos: layer(x, pos), {"x": Spec((1, n, 32))}, ("pos",))
    weights = Weights(None, {}, layer.constants())
    gpu, numpy = WebgpuExecutor(host), create("numpy")
    for executor in (gpu, numpy):
        await executor.load({"main": program}, weights)
    for pos in (0, n, 17):
        x = rng.normal(0, 1, (1, n, 32)).astype(np.float32)
        got, want = [await e.run("main", {"x": x, "pos": pos}) for e in (gpu, numpy)]
        for name in want:
            close(got[name], want[name], 4e-6)
    x = rng.normal(0, 1, (1, n, 32)).astype(np.float32)
    steps = [[value async for _, value in e.steps("main", {"x": x, "pos": 4})] for e in (gpu, numpy)]
    assert len(steps[0]) == len(steps[1])
    for got, want in zip(*steps):
        close(got, want, 4e-6)
    # norm in the product, heads to their places, attention, product, product with its gate, product; and the two outputs
    assert kernels(program)[1] == (8 if n < 9 else 10)


@pytest.mark.parametrize("count", [1, 3])
async def test_a_gate_of_rows_that_do_not_count(host, rng, count):
    layer = Layer(rng)
    layer.parameters()
    for n in (3, 9):
        program = trace(lambda x, pos, count: layer(x, pos, count)["y"], {"x": Spec((1, n, 32))}, ("pos", "count"))
        gpu, numpy = WebgpuExecutor(host), create("numpy")
        x = rng.normal(0, 1, (1, n, 32)).astype(np.float32)
        for executor in (gpu, numpy):
            await executor.load({"main": program}, Weights(None, {}, layer.constants()))
        got, want = [(await e.run("main", {"x": x, "pos": 1, "count": count}))["out"] for e in (gpu, numpy)]
        close(got[:, :count], want[:, :count], 4e-6)
        assert np.isfinite(got).all()


async def test_a_layer_norm_in_a_product(host, rng):
    """Rows with a large mean and an outlier, as the separate kernel takes them."""
    x = (rng.normal(0, 3, (4, 64)) + 100).astype(np.float32)
    x[1, 5] = 800
    w, g, b = (rng.normal(0, 1, s).astype(np.float32) for s in ((20, 64), (64,), (64,)))

    def fn(h, x):
        return ops.linear(ops.layer_norm(x, h.g, h.b), h.w)

    holder = holding(w=w, g=g, b=b)
    program = trace(lambda x: fn(holder, x), {"x": Spec(x.shape)})
    assert kernels(program) == (Counter({"linear floats": 1}), 1)
    executor = WebgpuExecutor(host)
    await executor.load({"main": program}, Weights(None, {}, holder.constants()))
    x = x.astype(np.float64)
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b
    close((await executor.run("main", {"x": x}))["out"], normed @ w.T, 1e-5)


def holding(**arrays):
    class Holder(nn.Module):
        pass

    holder = Holder()
    for name, array in arrays.items():
        setattr(holder, name, nn.Constant(array))
    holder.parameters()
    return holder


async def both(host, fn, inputs, scalars=None, types=None, **arrays):
    """-> (outputs on the GPU, on numpy, the traced Program)"""
    holder = holding(**arrays)
    specs = {n: Spec(a.shape, "i32" if a.dtype == np.int32 else "f32") for n, a in inputs.items()}
    program = trace(lambda **kw: fn(holder, **kw), specs, types or dict.fromkeys(scalars or {}, "i32"))
    found = []
    for executor in (WebgpuExecutor(host), create("numpy")):
        await executor.load({"main": program}, Weights(None, {}, holder.constants()))
        found.append(await executor.run("main", {**inputs, **(scalars or {})}))
    return *found, program


# ---- chains


async def test_elementwise_ops_become_one_kernel(host, rng):
    x, y = rng.normal(0, 1, (5, 7)).astype(np.float32), rng.normal(0, 1, (7,)).astype(np.float32)

    def fn(_, x, y, peak):
        z = ops.maximum(x, peak - 8.0)
        return ops.gelu((z + 4.0) / 4.0) * y - ops.sigmoid(z * z)

    got, want, program = await both(host, fn, {"x": x, "y": y}, {"peak": 0.5}, {"peak": "f32"})
    close(got["out"], want["out"], 2e-6)
    assert kernels(program)[1] == 1


async def test_chains_through_shape_ops_and_into_parts(host, rng):
    x, table = rng.normal(0, 1, (6, 10)).astype(np.float32), rng.normal(0, 1, (30, 10)).astype(np.float32)

    def fn(h, x, at):
        turned = ops.transpose(x * 2.0, (1, 0)).reshape(5, 12) + 1.0  # moves elements: what is below it is made
        low = ops.slice(ops.transpose(ops.relu(x), (1, 0)), 0, 2, 7)  # (5, 6): moves none
        return {"parts": ops.concat([turned, low * low, ops.sin(low)], axis=1), "rows": ops.rows(h.table, at, count=6) + x}

    got, want, program = await both(host, fn, {"x": x}, {"at": 11}, table=table)
    for name in want:
        close(got[name], want[name], 2e-6)
    assert kernels(program)[1] == 5  # x * 2, its copy, + 1 / low * low / sin(low) into their parts, rows + x


async def test_what_is_read_twice_is_made_once_unless_it_is_small(host, rng):
    for n, expected in ((64, 2), (100_000, 3)):
        x = rng.normal(0, 1, (n,)).astype(np.float32)

        def fn(_, x):
            y = ops.exp(x * 0.1)
            return {"a": y + 1.0, "b": y * y}

        got, want, program = await both(host, fn, {"x": x})
        for name in want:
            close(got[name], want[name], 2e-6)
        assert kernels(program)[1] == expected


async def test_a_chain_too_long_for_a_kernel(host, rng):
    xs = {f"x{i}": rng.normal(0, 1, (3, 5)).astype(np.float32) for i in range(20)}

    def fn(_, **xs):
        return sum(list(xs.values())[1:], xs["x0"])

    got, want, program = await both(host, fn, xs)
    close(got["out"], want["out"], 2e-6)
    assert kernels(program)[1] == 4  # six inputs, then five more and the sum so far at a time


async def test_a_chain_sees_the_state_as_it_was(host):
    """A lazy value of a state is made before the state changes."""

    def fn(_, x, pos):
        state = nn.State("s", (1, 8))
        before = ops.add(state, 1.0)
        after = ops.update(state, x, pos, axis=1)
        return {"before": before * 2.0, "after": ops.add(after, 0.0)}

    program = trace(lambda **kw: fn(None, **kw), {"x": Spec((1, 2))}, ("pos",))
    executor = WebgpuExecutor(host)
    await executor.load({"main": program}, Weights(None, {}, {}))
    got = await executor.run("main", {"x": np.full((1, 2), 5, np.float32), "pos": 3})
    assert (got["before"] == 2).all()
    assert got["after"].tolist() == [[0, 0, 0, 5, 5, 0, 0, 0]]


@pytest.mark.parametrize("form", FORMS[:3])
async def test_reductions_of_one_x_are_one_kernel(host, rng, form):
    in_form(host, form)
    x = rng.normal(0, 1, (3, 1001)).astype(np.float32)

    def fn(_, x):
        part = ops.slice(x, 1, 7, 1000)
        place = ops.cast(ops.argmax(part, axis=1), "f32").reshape(3, 1)
        rest = [getattr(ops, name)(part, 1, True) for name in ("max", "log_sum_exp", "mean", "sum")]
        return ops.concat([place, *rest], axis=1)

    got, want, program = await both(host, fn, {"x": x})
    close(got["out"], want["out"], 2e-6)
    assert kernels(program)[1] == 1


# ---- attention of few rows


@pytest.mark.parametrize(
    ("heads", "kv_heads", "n", "keys"),
    [(3, 1, 1, 1), (3, 1, 1, 3), (3, 1, 1, 129), (3, 1, 1, 1500), (2, 2, 4, 513), (16, 2, 2, 20)],
)
async def test_attention_shares_its_keys_out(host, rng, heads, kv_heads, n, keys):
    shapes = ((2, heads, n, 12), (2, kv_heads, keys, 12), (2, kv_heads, keys, 12))
    q, k, v = (rng.normal(0, 1, s).astype(np.float32) for s in shapes)
    start = max(0, keys - n - 1)

    def fn(_, q, k, v, start):
        return {"all": ops.attention(q, k, v), "causal": ops.attention(q, k, v, start=start, causal=True)}

    got, want, program = await both(host, fn, {"q": q, "k": k, "v": v}, {"start": start})
    for name in want:
        close(got[name], want[name], 4e-6)
    few = n * heads // kv_heads <= 8
    wanted = Counter({"attention_few main" if few else "attention main": 2})
    found, _ = kernels(program)
    del found["copy main"]  # outputs, whose heads do not lie one behind another
    assert found == wanted + Counter({"attention_few combine": 2} if few and keys > 512 else {})


@pytest.mark.parametrize(
    ("heads", "kv_heads", "n", "keys", "d"), [(4, 2, 40, 100, 128), (3, 1, 17, 33, 70), (2, 2, 33, 65, 61), (6, 2, 64, 97, 16)]
)
async def test_attention_of_many_rows(host, rng, heads, kv_heads, n, keys, d):
    """Rows and keys that do not fill their blocks, heads of all widths, all that a score may have."""
    shapes = {"q": (2, heads, n, d), "k": (2, kv_heads, keys, d), "v": (2, kv_heads, keys, d), "bias": (heads, n, keys)}
    inputs = {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}

    def fn(_, q, k, v, bias, start):
        return {"all": ops.attention(q, k, v), "causal": ops.attention(q, k, v, start=start, causal=True),
                "biased": ops.attention(q, k, v, bias=bias * 3.0)}

    got, want, program = await both(host, fn, inputs, {"start": max(0, keys - n)})
    for name in want:
        close(got[name], want[name], 4e-6)
    assert kernels(program)[0]["attention main"] == 3


# ---- forms and limits


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "m"), [("f16", 3), ("f16", 65), ("q4_1", 1)])
async def test_products_in_every_form(host, rng, form, dtype, m):
    in_form(host, form)
    data, w = weight(rng, dtype, 37, 512)
    x = rng.normal(0, 1, (m, 512)).astype(np.float32)
    got = await run_with_file(host, lambda h, x: ops.linear(x, h.w), {"w": (dtype, (37, 512), data)}, {"x": x})
    close(got, x.astype(np.float64) @ w.T, 1e-5)


TILES = [(5, 37, 96), (16, 2100, 36), (17, 64, 201), (33, 300, 64), (64, 192, 320), (65, 130, 35), (130, 1030, 32),
         (1100, 260, 20)]


@pytest.mark.parametrize(
    ("dtype", "m", "n", "k"),
    [(dtype, *sizes) for dtype in ("f32", "f16", "bf16", "q4_0") for sizes in TILES if dtype != "q4_0" or sizes[2] % 32 == 0],
)
async def test_tiles_of_every_shape(host, rng, dtype, m, n, k):
    """Products whose edges are not those of their tiles, of sizes that are multiples of four and not, with their ends."""
    data, w = weight(rng, dtype, n, k)
    x, b, r = (rng.normal(0, 1, s).astype(np.float32) for s in ((1, m, k), (n,), (1, m, n)))
    matrices = {"w": (dtype, (n, k), data), "b": ("f32", (n,), b.tobytes())}
    got = await run_with_file(host, lambda h, x, r: ops.relu(ops.relu(ops.linear(x, h.w, h.b)) + r), matrices, {"x": x, "r": r})
    close(got, np.maximum(np.maximum(x.astype(np.float64) @ w.T + b, 0) + r, 0), 1e-5)


def test_tiles_fit_every_device():
    """At most 256 threads; as many workgroups and threads as keep a GPU busy, where the product has them."""
    shapes = [(m, n) for m in (5, 16, 17, 32, 33, 64, 448, 1500, 65537) for n in (1, 4, 70, 384, 576, 1536, 3072, 51864)]
    for m, n in shapes:
        across, down, slices = tile_shape(m, n)
        assert 16 % slices == 0 and across * down * slices <= 256
        assert down * 8 >= min(m, 64) and across * 4 <= 64
        groups = -(-n // (across * 4)) * -(-m // (down * 8))
        assert across == 4 or groups >= BUSY_GROUPS
        assert slices == 4 or 2 * slices * across * down > 256 or groups * across * down * slices >= BUSY_THREADS
    used = {tile_shape(m, n) for m, n, _ in TILES}
    assert {s for _, _, s in used} == {1, 2, 4} and {d for _, d, _ in used} == {2, 4, 8} and len(used) >= 5
    assert tile_shape(1500, 1536) == (16, 8, 1)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q4_0", "q6_k"])
async def test_large_matrices_lie_in_several_buffers(host, rng, dtype):
    """A product of few rows, one of many, and rows of a table that no buffer of this device could hold at once."""
    n, k = 100, 256
    data, w = weight(rng, dtype, n, k)
    row = len(data) // n
    host.limits |= {"maxStorageBufferBindingSize": max(row * 30, 10 << 10)}  # activations lie in one
    ids = np.array([[0, 99, 24, 23, 25, 50]], np.int32)
    for m in (1, 9):
        x, r = (rng.normal(0, 1, s).astype(np.float32) for s in ((m, k), (m, n)))

        def fn(h, x, ids, r):
            y = ops.relu(ops.linear(x, h.w)) + r
            return ops.concat([y.reshape(1, m * n), ops.embedding(ids, h.w).reshape(1, 6 * k)], axis=1)

        got = await run_with_file(host, fn, {"w": (dtype, (n, k), data)}, {"x": x, "ids": ids, "r": r})
        want = np.maximum(x.astype(np.float64) @ w.T, 0) + r
        close(got, np.concatenate([want.reshape(1, -1), w[ids].reshape(1, -1)], 1), 1e-5)


async def test_joined_matrices_in_several_buffers(host, rng):
    """The parts of a joined weight end elsewhere than the buffers do."""
    parts = {name: weight(rng, "q4_0", n, 64) for name, n in (("q", 24), ("k", 16), ("v", 40))}
    host.limits |= {"maxStorageBufferBindingSize": 36 * 18}
    x = rng.normal(0, 1, (2, 64)).astype(np.float32)
    matrices = {name: ("q4_0", values.shape, data) for name, (data, values) in parts.items()}

    def fn(h, x):
        return ops.concat([ops.linear(x, getattr(h, n)) for n in "qkv"], -1)

    got = await run_with_file(host, fn, matrices, {"x": x})
    close(got, np.concatenate([x.astype(np.float64) @ values.T for _, values in parts.values()], -1), 1e-5)


async def test_few_workgroups_along_an_axis(host, rng):
    """Counts of workgroups fold into three axes, whatever a device allows along one."""
    host.limits |= {"maxComputeWorkgroupsPerDimension": 7}
    x, w, q = (rng.normal(0, 1, s).astype(np.float32) for s in ((300, 24), (70, 24), (1, 3, 130, 8)))

    def fn(h, x, q):
        y = ops.linear(x, h.w)
        return {
            "linear": y, "soft": ops.softmax(y), "norm": ops.rms_norm(x, ops.slice(x, 0, 0, 1).reshape(24)), "sum": ops.sum(x),
            "chain": ops.exp(y) * 2.0, "matmul": ops.matmul(y, y, transpose_b=True), "attention": ops.attention(q, q, q),
            "turned": ops.transpose(y, (1, 0)),
        }

    got, want, program = await both(host, fn, {"x": x, "q": q}, w=w)
    for name in want:
        close(got[name], want[name], 1e-5)
    host.limits |= {"maxComputeWorkgroupsPerDimension": 2}
    with pytest.raises(ExecutorUnavailable, match="workgroups are wanted; this device allows 2 along"):
        await WebgpuExecutor(host).load({"main": program}, Weights(None, {}, {}))


async def test_too_few_buffers_for_a_kernel(host):
    host.limits |= {"maxStorageBuffersPerShaderStage": 3}
    program = trace(lambda x: ops.attention(x, x, x), {"x": Spec((1, 1, 20, 8))})
    with pytest.raises(ExecutorUnavailable, match=r"attention \(main\) binds 6 buffers, this device allows 3"):
        await WebgpuExecutor(host).load({"main": program}, Weights(None, {}, {}))


# ---- whole models


@pytest.mark.parametrize(
    ("model", "entries"),
    [("test-llama", ["prefill", "decode"]), ("test-whisper", ["remember", "decode_1"]), ("test-sam", ["decode_2"])],
)
async def test_miniatures_step_by_step(host, model, entries):
    """Every instruction's value, beside the kernels that do several at once, and the outputs of those."""
    loaded = await load_any(find_checkpoint(model))
    gpu, numpy = WebgpuExecutor(host), create("numpy")
    programs = {name: loaded.programs[name] for name in entries}
    for executor in (gpu, numpy):
        await executor.load(programs, loaded.weights)
    for entry, program in programs.items():
        inputs = example_inputs(program, 3)
        wanted = [(i, value) async for i, value in numpy.steps(entry, inputs)]
        got = [value async for _, value in gpu.steps(entry, inputs)]
        assert len(got) == len(wanted)
        for value, (i, want) in zip(got, wanted):
            if i.op not in ("argmax", "top_k"):  # of nearly equal logits either may be the larger
                size = max(1.0, float(np.abs(want).max()))
                assert np.abs(value.astype(np.float64) - want).max() <= 5e-5 * size, str(i)
        outputs, expected = await gpu.run(entry, inputs), await numpy.run(entry, inputs)
        for name, want in expected.items():
            if want.dtype != np.int32:
                close(outputs[name], want, 5e-5)


# ---- texts


def test_functions_that_several_kernels_have_are_one_text():
    """Each file is valid as it stands, so some have a function of their own others have too: a mend must reach them all."""
    function = re.compile(r"^fn (erf|act|erf4|act4|total|outer)\((?:[^\n]*}|.*?^})$", re.DOTALL | re.MULTILINE)
    texts: dict[str, set[str]] = {}
    for text in [*(path.read_text() for path in KERNELS.glob("*.wgsl")), ERF]:
        for found in function.finditer(text):
            texts.setdefault(found[1], set()).add(found[0])
    assert len(texts) == 6
    assert [name for name, found in texts.items() if len(found) > 1] == []


# ---- what it costs


def test_tiles_read_little_for_what_they_compute():
    """A Whisper encoder's product: 64 rows of x and 64 of w for 2 x 64 x 64 operations at a time, and what the edges waste."""
    def fn(h, x):
        return ops.linear(x, h.w)

    holder = holding(w=np.zeros((1536, 384), np.float32))
    program = trace(lambda x: fn(holder, x), {"x": Spec((1500, 384))})
    assert 1 / 16 <= count(optimise(program), 0, 0)["tile_bytes_an_operation"] <= 1.03 / 16


async def test_dispatches_of_a_layer():
    """Few enough for a GPU to be busy with work. The miniatures' queries, keys and values are too narrow to be joined: two more
    than in a real model."""
    for model, entry, most in (("test-llama", "decode", 10), ("test-whisper", "encode", 12), ("test-whisper", "decode_1", 13)):
        loaded = await load_any(find_checkpoint(model))
        row = count(optimise(loaded.programs[entry]), 3, 0)
        assert row["a_layer"] <= most, row
        assert count(optimise(loaded.programs[entry]), 3, 32)["dispatches"] == row["dispatches"]


async def test_a_step_moves_little_more_than_it_must(whisper_tiny):
    loaded = await load_any(Checkpoint.open(whisper_tiny))
    row = count(optimise(loaded.programs["decode_1"]), 200, 0)
    assert 0.95 < row["bytes_over_floor"] <= 1.15, row
