"""What a model costs a GPU, by counting: dispatches, bytes, operations, and the least time on named GPUs.

    PYTHONPATH=py python tests/bench/gpu/count.py [MODEL] [--position 200] [--json]

No device is needed. "Bytes" are what the instructions of the optimised Program read and write, each operand once; "floor"
counts weights and state once and of the activations only what enters and leaves the Program. Times come from published figures.
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
from floor import operations, size, traffic

GPUS = {  # GB/s, float32 TFLOPS: makers' data sheets
    "Intel Iris Xe 96 EU (LPDDR4x-4266)": (68.3, 2.1),
    "Apple M2 (10 cores)": (100, 3.6),
    "NVIDIA GeForce RTX 4060": (272, 15.1),
}


def count(program: Any, position: int) -> dict[str, Any]:
    """One optimised Program as the webgpu executor lowers it."""
    from candlewick.executors.webgpu import WebgpuExecutor

    lowering = WebgpuExecutor(host=None)._lower(program)
    kernels = Counter(d.kernel for d in lowering.dispatches)
    layers = {m[0] for i in program.instructions if (m := re.match(r".*?\blayers\.\d+\b", i.scope))}
    in_layers = sum(end - start for i, start, end in zip(program.instructions, [0, *lowering.marks], lowering.marks)
                    if re.match(r".*?\blayers\.\d+\b", i.scope))
    kept = moved = flops = 0
    for i in program.instructions:
        k, m = traffic(i, position)
        kept, moved, flops = kept + k, moved + m, flops + operations(i, position)
    ends = sum(size(v) for v in (*program.inputs.values(), *program.outputs.values()))
    pipelines = {(d.kernel, d.entry, d.constants) for d in lowering.dispatches}
    return {
        "entry": program.name, "dispatches": len(lowering.dispatches), "pipelines": len(pipelines),
        "dispatches_a_layer": round(in_layers / len(layers), 1) if layers else None, "kernels": dict(kernels.most_common()),
        "operations": flops, "bytes": kept + moved, "floor_bytes": kept + ends,
        "floor_ms": {name: round(max((kept + ends) / gbps / 1e6, flops / tflops / 1e9), 3)
                     for name, (gbps, tflops) in GPUS.items()},
    }


async def run(model: str, position: int) -> list[dict[str, Any]]:
    from candlewick.commands.common import find_checkpoint
    from candlewick.commands.families import load_any
    from candlewick.passes import optimise

    loaded = await load_any(find_checkpoint(model))
    return [count(optimise(p), position) for p in loaded.programs.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="whisper-tiny.en")
    parser.add_argument("--position", type=int, default=200, help="position of a decode step")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = asyncio.run(run(options.model, options.position))
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['entry']}: {row['dispatches']} dispatches ({row['dispatches_a_layer']} a layer) of {row['pipelines']} "
              f"pipelines; {row['operations'] / 1e9:.2f} G operations; {row['bytes'] / 1e6:.1f} MB, "
              f"floor {row['floor_bytes'] / 1e6:.1f} MB ({row['bytes'] / row['floor_bytes']:.2f})")
        print("  " + ", ".join(f"{kernel} {n}" for kernel, n in row["kernels"].items()))
        print("  " + ", ".join(f"{name} {ms} ms" for name, ms in row["floor_ms"].items()))


if __name__ == "__main__":
    main()
