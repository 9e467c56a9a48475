"""Passes: what they change, what they must not, and that the numbers stay the same."""

from __future__ import annotations

import random

import numpy as np
import pytest

from candlewick import Spec, nn, ops, trace
from candlewick.executors.numpy import NumpyExecutor
from candlewick.passes import fuse_epilogues, join_linears, optimise, simplify
from candlewick.passes.memory import ALIGN, Lifetime, plan_arena


def W(name: str, *shape: int) -> nn.Parameter:
    return nn.Parameter(shape, name=name)


def names(program):
    return [i.op for i in program.instructions]


def test_dead_code_and_common_subexpressions_go():
    def fn(x):
        ops.exp(x)
        return ops.relu(x) + ops.relu(x)

    assert names(simplify(trace(fn, {"x": Spec((3,))}))) == ["relu", "add"]


def test_reads_of_a_state_are_not_merged_across_an_update():
    cache = nn.KVCache.new("c", 1, 1, 4, 2)

    def fn(k, pos):
        before = cache.k * 1.0 if not isinstance(cache.k, nn.State) else ops.mul(cache.k, 1.0)
        after = ops.mul(cache.update(k, k, pos).k, 1.0)
        return {"before": before, "after": after}

    program = simplify(trace(fn, {"k": Spec((1, 1, 1, 2))}, ("pos",)))
    assert names(program) == ["mul", "update", "update", "mul"]


def test_updates_are_alive_without_outputs():
    cache = nn.KVCache.new("c", 1, 1, 4, 2)

    def fn(k):
        cache.update(k, k, 0)

    assert names(optimise(trace(fn, {"k": Spec((1, 1, 4, 2))}))) == ["update", "update"]


def test_activation_and_residual_become_an_epilogue():
    program = optimise(trace(lambda x: x + ops.gelu(ops.linear(x, W("w", 8, 8), W("b", 8))), {"x": Spec((2, 8))}))
    assert names(program) == ["linear"]
    assert str(program.instructions[0].args[3]) == "%x"
    assert program.instructions[0].attrs["activation"] == "gelu"


def test_activation_of_a_sum_is_the_final_one():
    program = optimise(trace(lambda x: ops.gelu(x + ops.linear(x, W("w", 8, 8))), {"x": Spec((2, 8))}))
    assert names(program) == ["linear"]
    assert (program.instructions[0].attrs["activation"], program.instructions[0].attrs["final"]) == ("none", "gelu")
    twice = optimise(trace(lambda x: ops.relu(ops.gelu(x + ops.linear(x, W("w", 8, 8)))), {"x": Spec((2, 8))}))
    assert names(twice) == ["linear", "relu"]


def test_epilogues_of_convolutions():
    def fn(x):
        y = ops.gelu(ops.conv2d(x, W("w", 8, 8, 3, 3), W("b", 8), padding=1) + x)
        return ops.gelu(ops.conv_transpose2d(y, W("t", 8, 4, 2, 2), W("c", 4), stride=2))

    assert names(optimise(trace(fn, {"x": Spec((1, 5, 5, 8))}))) == ["conv2d", "conv_transpose2d"]


def test_a_state_that_is_only_read_may_be_a_residual():
    state = nn.State("s", (2, 8))

    def read(x):
        return ops.add(ops.linear(x, W("w", 8, 8)), state)

    def written(x):
        y = ops.linear(x, W("w", 8, 8))
        ops.update(state, x, 0, axis=0)
        return ops.add(y, state)

    assert names(optimise(trace(read, {"x": Spec((2, 8))}))) == ["linear"]
    assert names(optimise(trace(written, {"x": Spec((2, 8))}))) == ["linear", "update", "add"]


def test_what_is_read_twice_or_given_out_stays():
    def twice(x):
        y = ops.linear(x, W("w", 8, 8))
        return ops.gelu(y) * y

    def given_out(x):
        y = ops.linear(x, W("w", 8, 8))
        return {"y": y, "z": x + y}

    assert names(fuse_epilogues(trace(twice, {"x": Spec((2, 8))}))) == ["linear", "gelu", "mul"]
    assert names(fuse_epilogues(trace(given_out, {"x": Spec((2, 8))}))) == ["linear", "add"]


def test_two_products_summed_keep_one_residual():
    program = optimise(
        trace(
            lambda x, y: ops.linear(x, W("a", 8, 8)) + ops.linear(y, W("b", 8, 8)),
            {"x": Spec((2, 8)), "y": Spec((2, 8))},
        )
    )
    assert names(program) == ["linear", "linear"]


def test_joined_linears_share_one_weight_value():
    def fn(x):
        return {
            n: ops.linear(x, W(f"attn.{n}.weight", 12, 8), None if n == "k" else W(f"attn.{n}.bias", 12)) for n in "qkv"
        }

    program = join_linears(trace(fn, {"x": Spec((2, 8))}))
    assert names(program) == ["linear", "slice", "slice", "slice"]
    weight, bias = program.instructions[0].args[1:3]
    assert (weight.name, weight.shape) == ("attn.{q,k,v}.weight", (36, 8))
    assert [p.name for p in bias.parts] == ["attn.q.bias", "", "attn.v.bias"]
    program.verify()


@pytest.mark.parametrize("shapes", [[(12, 8), (13, 8)], [(11, 8), (12, 8)]])
def test_weights_that_do_not_fill_panels_are_not_joined(shapes):
    program = trace(
        lambda x: {str(i): ops.linear(x, W(f"w{i}", *s)) for i, s in enumerate(shapes)}, {"x": Spec((2, 8))}
    )
    assert names(join_linears(program)) == ["linear", "linear"]


async def test_optimised_programs_compute_the_same():
    rng = np.random.default_rng(3)
    arrays = {}

    class Source:
        async def read(self, name):
            return arrays[name]

    def w(name, *shape):
        arrays.setdefault(name, rng.standard_normal(shape).astype(np.float32))
        return W(name, *shape)

    def fn(x):
        h = ops.layer_norm(x, w("g", 24), w("h", 24))
        q, k, v = (nn.split_heads(ops.linear(h, w(n, 24, 24), w(n + "b", 24)), 2) for n in "qkv")
        x = x + ops.linear(nn.merge_heads(ops.attention(q, k, v)), w("o", 24, 24), w("ob", 24))
        return x + ops.linear(ops.gelu(ops.linear(x, w("f", 48, 24), w("fb", 48))), w("p", 24, 48))

    program = trace(fn, {"x": Spec((1, 5, 24))})
    x = rng.standard_normal((1, 5, 24)).astype(np.float32)
    results = []
    for p in (program, optimise(program)):
        executor = NumpyExecutor()
        await executor.load({"main": program}, Source())
        executor.programs["main"] = p
        for name, value in p.weights.items():
            executor.weights[name] = await executor._array(value, Source())
        results.append((await executor.run("main", {"x": x}))["out"])
    assert len(optimise(program).instructions) < len(program.instructions)
    assert np.abs(results[0] - results[1]).max() < 1e-5
    assert optimise(optimise(program)) == optimise(program)


def test_arena_reuses_bytes_and_never_overlaps_what_lives_together():
    rng = random.Random(5)
    for _ in range(50):
        lifetimes = []
        for _ in range(rng.randint(1, 40)):
            first = rng.randint(0, 30)
            lifetimes.append(Lifetime(rng.randint(1, 5000), first, first + rng.randint(0, 6)))
        offsets, total = plan_arena(lifetimes)
        for i, a in enumerate(lifetimes):
            assert offsets[i] % ALIGN == 0 and offsets[i] + a.size <= total
            for j, b in enumerate(lifetimes[:i]):
                if a.first <= b.last and b.first <= a.last:
                    assert offsets[i] + a.size <= offsets[j] or offsets[j] + b.size <= offsets[i]
    chain = [Lifetime(1024, i, i + 1) for i in range(100)]
    assert plan_arena(chain)[1] == 2048
