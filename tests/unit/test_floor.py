"""Counting what a Program costs (tests/bench/floor.py)."""

from __future__ import annotations

import asyncio

from candlewick.weights.load import Checkpoint
from tests.unit.command import ROOT


def test_floor_counts_operations_and_bytes():
    from candlewick import nn, ops
    from candlewick.trace import Spec, trace
    from tests.bench.floor import floor

    layer = nn.Linear(8, 4)

    class Model(nn.Module):
        def __init__(self):
            self.layer = layer

    Model().parameters()
    program = trace(lambda x: ops.relu(layer(x)), {"x": Spec((1, 3, 8))}, name="p")
    report = floor(program, gflops=1, gbps=1)
    assert report["ops"]["linear"]["operations"] == 2 * 3 * 8 * 4
    assert report["ops"]["linear"]["weight_bytes"] == 4 * (8 * 4 + 4)
    assert report["ops"]["relu"]["activation_bytes"] == 2 * 4 * 3 * 4


def test_floor_of_a_decode_step_reads_each_weight_as_it_lies_in_the_file():
    from candlewick.commands.families import load_any
    from candlewick.passes import optimise
    from tests.bench.floor import floor

    loaded = asyncio.run(load_any(Checkpoint.open(ROOT / "models" / "test-llama-gguf")))
    decode = optimise(loaded.programs["decode"])
    reports = {by: floor(decode, gflops=1, gbps=1, position=9, by=by) for by in ("op", "part", "layer")}
    matrices = [info.end - info.start for name, info in loaded.weights.bound.items()
                if len(info.shape) == 2 and (loaded.dims.tied or "embed" not in name)]
    assert reports["op"]["ops"]["linear"]["weight_bytes"] == sum(matrices)
    assert len({report["weight_bytes"] for report in reports.values()}) == 1
    assert reports["op"]["ops"]["rope"]["weight_bytes"] == 2 * loaded.dims.n_layer * 2 * loaded.dims.d_head // 2 * 4
    layers = [name for name in reports["layer"]["ops"] if name.startswith("model.layers.")]
    assert len(layers) == loaded.dims.n_layer and "model.layers.*.mlp" in reports["part"]["ops"]
