"""What a model costs a GPU, by counting: dispatches, bytes, operations, and the least time on named GPUs.

    PYTHONPATH=py python tests/bench/gpu/count.py [MODEL ...] [--position 200] [--subgroups 32] [--json]

No device is needed. Without a MODEL: the three of the pages. For each stage:

bytes       what the dispatches read and write, as they are lowered: of a weight each kernel's share once, of a cache the keys
            that are there, of activations each operand of a dispatch once
floor       weights and state once, and of activations only what enters and leaves the stage
of tiles    bytes that workgroups of products of many rows read for each operation, from memory or a cache: what they read again
            for each tile counts each time. Times the rate that one hopes for, this is the bandwidth that the cache must have
least time  on three GPUs, by the makers' bandwidth and float32 rate: the larger of floor / bandwidth and operations / rate, and
            behind it the same with the bytes that the dispatches move and LAUNCH_US for each dispatch
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from floor import keys_seen, operations, size, traffic

MODELS = ("whisper-tiny.en", "mobilesam", "smollm2-135m-instruct")
GPUS = {  # GB/s, float32 TFLOPS: makers' data sheets
    "Intel Iris Xe 96 EU (LPDDR4x-4266)": (68.3, 2.1),
    "Apple M2 (10 cores)": (100, 3.6),
    "NVIDIA GeForce RTX 4060": (272, 15.1),
}
LAUNCH_US = 2.0
"""Of one dispatch that waits for the one before it: about 1 on desktop cards, 5 on integrated ones."""


class NoDevice:
    """What lowering asks a host for: the limits that every device has, and perhaps subgroups of one size."""

    def __init__(self, subgroup: int) -> None:
        self.limits = {"subgroupMinSize": subgroup, "subgroupMaxSize": subgroup}
        self.features = {"subgroups"} if subgroup else set()


OPS = {"linear": "linear", "tiles": "linear", "attention": "attention", "attention_few": "attention", "rope": "update",
       "copy": "rows"}
"""The instruction whose share of a table or cache a kernel reads or writes; `rows` of linear.wgsl is an embedding."""


def shares(program: Any, position: int) -> dict[str, dict[str, int]]:
    """Of each weight and state: how many of its bytes the instructions of each op touch."""
    found: dict[str, dict[str, int]] = {}
    for i in program.instructions:
        for place, v in enumerate(i.args):
            if v is None or v.kind not in ("weight", "constant", "state"):
                continue
            share = size(v)
            if i.op in ("embedding", "rows", "slice"):
                share = min(share, size(i.out))
            elif i.op == "rope":
                share = share // v.shape[0] * i.out.shape[2]
            elif i.op == "update":
                share = size(i.args[1])
            elif i.op == "attention" and place in (1, 2):
                share = share * keys_seen(i, position) // v.shape[2]
            found.setdefault(v.name, {})[i.op] = share
    return found


def moved_bytes(program: Any, lowering: Any, position: int) -> int:
    """Bytes that the dispatches of a stage read and write: of tables and caches what instructions touch, else whole buffers."""
    touched, total = shares(program, position), 0
    for d in lowering.dispatches:
        op = "embedding" if d.entry == "rows" else OPS.get(d.kernel.split("+")[0], "")
        for b in {id(b): b for b in d.bindings if hasattr(b, "words")}.values():
            share = touched.get(b.name)
            if not b.name.startswith("scalars"):
                total += min(b.words * 4, share.get(op, max(share.values())) if share else b.words * 4)
    return total


def tile_reads(dispatches: Any) -> float:
    """Bytes an operation that the workgroups of tiles.wgsl read: for each k, 8 rows and 4 columns of a thread."""
    from candlewick.dtypes import n_bytes
    from candlewick.executors.webgpu.lowering import DTYPES

    sizes = {number: n_bytes(dtype, 256) / 256 for dtype, number in DTYPES.items()}
    read = work = 0.0
    for d in dispatches:
        c = dict(d.constants)
        if d.kernel.startswith("tiles"):
            groups = -(-c["N"] // (4 * c["ACROSS"])) * -(-c["M"] // (8 * c["DOWN"]))
            read += groups * c["K"] * (8 * c["DOWN"] * 4 + 4 * c["ACROSS"] * sizes[int(c["DTYPE"])])
            work += 2 * c["M"] * c["N"] * c["K"]
    return round(read / work, 4) if work else 0.0


def count(program: Any, position: int, subgroup: int) -> dict[str, Any]:
    """One optimised Program as the webgpu executor lowers it."""
    from candlewick.executors.webgpu import WebgpuExecutor

    lowering = WebgpuExecutor(NoDevice(subgroup))._lower(program)
    kernels = Counter(re.sub(r"_[0-9a-f]{8}$", "", d.kernel) + ("" if d.entry == "main" else f" {d.entry}")
                      for d in lowering.dispatches)
    kept = flops = 0
    for i in program.instructions:
        kept, flops = kept + traffic(i, position)[0], flops + operations(i, position)
    ends = sum(size(v) for v in (*program.inputs.values(), *program.outputs.values()))
    moved = moved_bytes(program, lowering, position)
    pipelines = {(d.kernel, d.entry, d.constants) for d in lowering.dispatches}
    times = {}
    for name, (gbps, tflops) in GPUS.items():
        work = flops / tflops / 1e9
        times[name] = {"least_ms": round(max((kept + ends) / gbps / 1e6, work), 3),
                       "expected_ms": round(max(moved / gbps / 1e6, work) + len(lowering.dispatches) * LAUNCH_US / 1000, 3)}
    return {
        "entry": program.name, "dispatches": len(lowering.dispatches), "a_layer": a_layer(program, lowering),
        "pipelines": len(pipelines), "kernels": dict(kernels.most_common()), "operations": flops, "bytes": moved,
        "floor_bytes": kept + ends, "bytes_over_floor": round(moved / max(1, kept + ends), 3),
        "tile_bytes_an_operation": tile_reads(lowering.dispatches), "times": times,
    }


def a_layer(program: Any, lowering: Any) -> float | None:
    """Dispatches from the first instruction of a layer to the first of the next, on average."""
    first: dict[str, int] = {}
    for i, start in zip(program.instructions, [0, *lowering.marks]):
        if found := re.match(r".*?\blayers\.\d+\b", i.scope):
            first.setdefault(found[0], start)
    places = list(first.values())
    return round((places[-1] - places[0]) / (len(places) - 1), 1) if len(places) > 1 else None


async def run(model: str, position: int, subgroup: int) -> list[dict[str, Any]]:
    from candlewick.commands.common import find_checkpoint
    from candlewick.commands.families import load_any
    from candlewick.passes import optimise

    loaded = await load_any(find_checkpoint(model))
    return [{"model": model, **count(optimise(p), position, subgroup)} for p in loaded.programs.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--position", type=int, default=200, help="position of a decode step")
    parser.add_argument("--subgroups", type=int, default=0, help="size of the device's subgroups, if it has them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row for model in options.models for row in asyncio.run(run(model, options.position, options.subgroups))]
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        layer = f" ({row['a_layer']} a layer)" if row["a_layer"] else ""
        print(f"{row['model']} {row['entry']}: {row['dispatches']} dispatches{layer} of {row['pipelines']} pipelines; "
              f"{row['operations'] / 1e9:.2f} G operations; {row['bytes'] / 1e6:.1f} MB, "
              f"floor {row['floor_bytes'] / 1e6:.1f} MB ({row['bytes_over_floor']})"
              + (f"; of tiles {tiles} bytes an operation" if (tiles := row["tile_bytes_an_operation"]) else ""))
        print("  " + ", ".join(f"{kernel} {n}" for kernel, n in row["kernels"].items()))
        print("  " + ", ".join(f"{name} {t['least_ms']} / {t['expected_ms']} ms" for name, t in row["times"].items()))


if __name__ == "__main__":
    main()
