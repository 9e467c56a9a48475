"""Which of two devices is faster for a family of models: a short trial of the two things that models spend their time on.

`wide` is a block of products of many rows, as an encoder or a prompt is; `chain` is a step of decoding: products of one row,
each waiting for the one before, over more weights than caches hold, and one number of it read back. What a model's stages would
take is not measured: they would have to be loaded on both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from .. import nn, ops
from ..executors import Executor
from ..executors.example import example_inputs
from ..program import Program
from ..tensor import Tensor
from ..trace import Spec, trace
from ..weights.load import Checkpoint, Weights
from ..weights.safetensors import TensorInfo
from ..weights.source import MemorySource

ROWS, WIDTH, INNER, BLOCKS = 256, 512, 2048, 1
"""1.1 G operations: 20 to 100 ms of WebAssembly, a few of a graphics card."""
STEP_WIDTH, STEP_INNER, STEP_BLOCKS = 576, 1152, 24
"""64 MB of float16 weights, as a step of a small model reads."""
BUDGET_MS, RUNS = 100.0, 5
"""A part is run twice, and again while it has taken less, at most so often; its shortest run counts."""
LONG_MS = 500.0
"""A first run that takes longer is the only one: requests wait for this."""


class Block(nn.Module):
    """A feed-forward layer with its norm."""

    def __init__(self, width: int, inner: int) -> None:
        self.norm = nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        """x (1, rows, width) -> the same shape"""
        return x + self.down(ops.silu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, n: int, width: int, inner: int) -> None:
        self.blocks = [Block(width, inner) for _ in range(n)]

    def __call__(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return ops.max(x, axis=-1)


PARTS: dict[str, tuple[int, tuple[int, int, int]]] = {
    "wide": (ROWS, (BLOCKS, WIDTH, INNER)),
    "chain": (1, (STEP_BLOCKS, STEP_WIDTH, STEP_INNER)),
}


def part(name: str) -> tuple[Program, Weights]:
    """The Program of a part, and weights of zeros: every one is the beginning of one small file."""
    rows, sizes = PARTS[name]
    stack = Stack(*sizes)
    parameters = stack.parameters()
    dtypes = {key: "f16" if len(p.shape) == 2 else "f32" for key, p in parameters.items()}
    stack.set_dtypes(dtypes)
    n_bytes = {key: p.size * (2 if dtypes[key] == "f16" else 4) for key, p in ((k, p.value) for k, p in parameters.items())}
    bound = {key: TensorInfo(key, dtypes[key], tuple(p.shape), "zeros", 0, n_bytes[key]) for key, p in parameters.items()}
    zeros = MemorySource(bytes(max(n_bytes.values())), "zeros")
    return trace(stack, {"x": Spec((1, rows, sizes[1]))}), Weights(Checkpoint({"zeros": zeros}), bound)


async def least_ms(executor: Executor, name: str, now: Callable[[], float]) -> float:
    """The shortest run of a part; the executor must be empty, and is empty afterwards. now: seconds."""
    program, weights = part(name)
    inputs = example_inputs(program)
    try:
        await executor.load({name: program}, weights)
        times: list[float] = []
        while len(times) < 2 or (len(times) < RUNS and sum(times) < BUDGET_MS):
            began = now()
            await executor.run(name, inputs)
            times.append((now() - began) * 1000)
            if times[0] > LONG_MS:
                break
        return min(times)
    finally:
        await executor.close()


async def compare_speed(executor: Executor, rival: Executor, shares: Mapping[str, float],
                        now: Callable[[], float] = time.perf_counter) -> dict[str, Any]:
    """{times, parts: {name: [ms, ms of the rival]}}: how many times as fast as its rival an executor is. shares: how the
    rival's time falls into the parts in usual work; they add up to 1. The part with most of it is the first, and the last where
    it alone takes the executor longer than all takes the rival: `times` is at most that then."""
    parts, taken = {}, 0.0
    for name, share in sorted(shares.items(), key=lambda one: -one[1]):
        parts[name] = [await least_ms(executor, name, now), await least_ms(rival, name, now)]
        taken += share * parts[name][0] / max(parts[name][1], 1e-3)
        if taken > 1:
            break
    return {"times": 1 / max(taken, 1e-3), "parts": parts}
