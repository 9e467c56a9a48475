"""What a device takes at once: runs cut into submits, and buffers that it does not allow, told before anything is made."""

from __future__ import annotations

import numpy as np
import pytest

from candlewick import Spec, nn, ops, trace
from candlewick.executors.webgpu import WebgpuExecutor
from candlewick.executors.webgpu.budget import TooLarge, cuts, submits
from candlewick.weights.load import Weights
from candlewick.worker import error_value

WIDE = 32
"""A product of (m, WIDE) by (WIDE, WIDE) is 2 * m * WIDE * WIDE operations."""


def chain(length, m=4):
    """exp in between, so that no product is a part of another's kernel."""

    def fn(x, y):
        for _ in range(length):
            x = ops.matmul(ops.exp(x * 0.01), y)
        return x

    return trace(fn, {"x": Spec((1, m, WIDE)), "y": Spec((1, WIDE, WIDE))})


class NoDevice:
    """What lowering asks; a buffer that is made is a fault."""

    features: set[str] = set()

    def __init__(self, **limits):
        self.limits, self.released = limits, []

    def buffer(self, n_bytes):
        raise AssertionError(f"a buffer of {n_bytes} bytes was made")

    def release(self, first):
        self.released.append(first)


def lowered(program):
    return WebgpuExecutor(NoDevice())._lower(program)


@pytest.mark.parametrize("bound", [1, 10_000, 25_000, 60_000, 1 << 40])
def test_cuts_are_even_and_between_instructions(monkeypatch, bound):
    monkeypatch.setattr("candlewick.executors.webgpu.budget.SUBMIT_OPERATIONS", bound)
    s = lowered(chain(12))
    one = 2 * 4 * WIDE * WIDE + 2 * 4 * WIDE  # a product, and what is computed element by element before it
    found = cuts(s.program, s.marks)
    places = submits(0, len(s.dispatches), found)
    assert found == sorted(set(found)) and all(0 < place < len(s.dispatches) for place in found)
    assert set(found) <= set(s.marks) and [place for part in places for place in range(*part)] == [*range(len(s.dispatches))]
    assert all((end - start) * one / 2 <= max(bound, one) for start, end in places)
    assert len(places) <= 2 * max(1, 12 * one / bound) + 1, "no more than are needed"


def test_parts_of_a_run_are_cut_where_the_whole_is():
    assert submits(0, 9, [3, 6]) == [(0, 3), (3, 6), (6, 9)]
    assert submits(3, 5, [3, 6]) == [(3, 5)] and submits(2, 7, [3, 6]) == [(2, 3), (3, 6), (6, 7)]
    assert submits(0, 0, [3]) == [(0, 0)]


async def test_what_is_cut_computes_the_same(host, monkeypatch):
    inputs = {"x": np.linspace(-1, 1, 4 * WIDE, dtype=np.float32).reshape(1, 4, WIDE),
              "y": np.linspace(-0.1, 0.2, WIDE * WIDE, dtype=np.float32).reshape(1, WIDE, WIDE)}
    found = []
    for bound in (1 << 40, 20_000, 1):
        monkeypatch.setattr("candlewick.executors.webgpu.budget.SUBMIT_OPERATIONS", bound)
        executor = WebgpuExecutor(host)
        await executor.load({"chain": chain(6)}, Weights(None, {}, {}))
        assert bool(host._cuts["chain"]) == (bound < 1 << 40)
        found.append((await executor.run("chain", inputs))["out"])
        times = await executor.profile("chain", inputs)
        assert len(times) == len(executor.programs["chain"].instructions) and all(ms >= 0 for *_, ms in times)
        await executor.close()
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def too_large(program, limit):
    host = NoDevice(maxStorageBufferBindingSize=limit)

    async def load():
        await WebgpuExecutor(host).load({"entry": program}, Weights(None, {}, {}))

    return host, load()


def fills_cache(x, pos):
    cache = nn.State("layers.3.k", (1, 2, 1000, 8))
    return ops.attention(x, *(2 * [ops.update(cache, x, pos, axis=2)]), start=pos, causal=True)


@pytest.mark.parametrize(("program", "words", "wanted"), [
    (lambda: trace(fills_cache, {"x": Spec((1, 2, 1, 8))}, ("pos",)),
     ["cache layers.3.k", "0.1 MB", "room for fewer tokens"], 64_000),
    (lambda: trace(lambda x: ops.exp(x), {"x": Spec((5000, 2))}), ["input x, f32[5000,2]"], 40_000),
    (lambda: trace(lambda x: ops.matmul(ops.transpose(x, (1, 0)), x), {"x": Spec((2, 100))}),
     ["matmul, f32[100,100]", "WASM"], 40_000),
])
async def test_a_buffer_beyond_the_limit_has_a_name(program, words, wanted):
    """Which value, how much, what is allowed and what to do; before any buffer is made, with nothing left behind."""
    host, load = too_large(program(), 32_768)
    with pytest.raises(TooLarge) as caught:
        await load
    assert all(word in str(caught.value) for word in words), caught.value
    assert host.released == [0]
    value = error_value(caught.value)
    assert value["code"] == "out_of_memory" and value["data"] == {"wanted": wanted, "allowed": 32_768}
