"""What a Program must cost at least: operations and bytes of each instruction, and the time they need at a given peak.

    PYTHONPATH=py python tests/bench/floor.py [MODEL] --gflops 100 --gbps 20 [--by op|part|layer] [--measured wasm --threads 2]

MODEL is a Whisper or a language model, as for the other commands. Operations: a multiply-add counts as two; an elementwise
function as one an element. Bytes: weights (as many as they have in their file, so blocks stay blocks) and state that have to
come from memory at least once in a run, apart from activations, which may stay in a cache. The floor of an entry is the larger
of operations / peak and bytes / bandwidth, instruction by instruction. Prints a table, or JSON (--json).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
from typing import Any

from candlewick.dtypes import n_bytes
from candlewick.executors.cost import FREE, keys_seen, operations

KEPT = ("weight", "constant", "state")


def size(value: Any) -> int:
    return n_bytes(value.dtype, math.prod(value.shape))


def traffic(instruction: Any, position: int = 0) -> tuple[int, int]:
    """-> (bytes of weights and state, bytes of activations) that one instruction reads and writes."""
    op, out = instruction.op, instruction.out
    if op in FREE:
        return 0, 0
    kept = moved = 0
    for place, argument in enumerate(instruction.args):
        if argument is None or argument.kind in ("number", "scalar"):
            continue
        if op == "update" and place == 0:
            continue  # written below; the rest of the buffer is not touched
        amount = size(argument)
        if op in ("rows", "embedding", "slice") and argument.kind in KEPT:
            amount = n_bytes(argument.dtype, math.prod(out.shape))  # only the rows that are taken
        if op == "rope" and place in (1, 2):
            amount = amount // argument.shape[0] * out.shape[2]  # only the rows of these positions
        if op == "attention" and place in (1, 2):
            amount = amount * keys_seen(instruction, position) // argument.shape[2]
        if argument.kind in KEPT:
            kept += amount
        else:
            moved += amount
    if op == "update":
        return kept + size(instruction.args[1]), moved
    return kept, moved + size(out)


def group_of(instruction: Any, by: str) -> str:
    """Where an instruction is counted: its op, its part of every layer (model.layers.*.mlp), or its layer (model.layers.3)."""
    if by == "op":
        return instruction.op
    scope = instruction.scope or "(outside)"
    if by == "part":
        return re.sub(r"\b\d+\b", "*", scope)
    return found[0] if (found := re.match(r".*?\b\d+\b", scope)) else scope


def floor(program: Any, gflops: float, gbps: float, position: int = 0, by: str = "op") -> dict[str, Any]:
    """Counts and floors of a Program, whole and per group (see group_of) under "ops"; times in milliseconds.

    gflops: peak of all threads together, 1e9 operations a second; gbps: 1e9 bytes a second.
    """
    kinds: dict[str, dict[str, float]] = {}
    for instruction in program.instructions:
        flops = operations(instruction, position)
        kept, moved = traffic(instruction, position)
        row = kinds.setdefault(group_of(instruction, by), dict.fromkeys(
            ("instructions", "operations", "weight_bytes", "activation_bytes", "floor_ms"), 0))
        row["instructions"] += 1
        row["operations"] += flops
        row["weight_bytes"] += kept
        row["activation_bytes"] += moved
        row["floor_ms"] += max(flops / gflops, kept / gbps) / 1e6
    whole = {key: sum(row[key] for row in kinds.values()) for key in
             ("instructions", "operations", "weight_bytes", "activation_bytes", "floor_ms")}
    whole["operations_ms"] = whole["operations"] / gflops / 1e6
    whole["bytes_ms"] = whole["weight_bytes"] / gbps / 1e6
    return {"entry": program.name, "position": position, **whole, "ops": kinds}


async def measure(loaded: Any, programs: dict[str, Any], executor_name: str, threads: int | None, position: int,
                  rounds: int, by: str) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """-> (milliseconds per group of each entry on an executor, for each instruction the least of `rounds` runs; the bytes of
    weights, state and arena that the executor took)"""
    from candlewick import executors
    from candlewick.executors.example import example_inputs

    executor = executors.create(executor_name, threads=threads)
    times: dict[str, dict[str, float]] = {}
    try:
        await executor.load(loaded.programs, loaded.weights)
        for entry, program in programs.items():
            inputs = example_inputs(loaded.programs[entry], position)
            least: dict[int, tuple[str, float]] = {}
            for _ in range(rounds):
                for index, op, ms in await executor.profile(entry, inputs):
                    least[index] = (op, min(ms, least.get(index, (op, math.inf))[1]))
            row = times.setdefault(program.name, {})
            for index, (_, ms) in least.items():
                group = group_of(program.instructions[index], by)
                row[group] = row.get(group, 0.0) + ms
        memory = executor.describe()["memory"]
    finally:
        await executor.close()
    return times, memory


def table(reports: list[dict[str, Any]]) -> str:
    lines = []
    for report in reports:
        lines.append(f"{report['entry']}: {report['operations'] / 1e9:.3f} G operations, "
                     f"{report['weight_bytes'] / 1e6:.1f} MB of weights and state, "
                     f"floor {report['floor_ms']:.2f} ms (operations {report['operations_ms']:.2f}, "
                     f"bytes {report['bytes_ms']:.2f})"
                     + (f", measured {report['measured_ms']:.2f} ms" if "measured_ms" in report else ""))
        for op, row in sorted(report["ops"].items(), key=lambda item: -item[1]["floor_ms"]):
            lines.append(f"  {op:<34} x{row['instructions']:<4} {row['operations'] / 1e6:>10.1f} M ops "
                         f"{row['weight_bytes'] / 1e6:>8.2f} MB kept {row['activation_bytes'] / 1e6:>8.2f} MB moved "
                         f"floor {row['floor_ms']:>8.3f} ms"
                         + (f"  measured {row['measured_ms']:>8.3f} ms" if "measured_ms" in row else ""))
    return "\n".join(lines)


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    from candlewick.commands.common import find_checkpoint
    from candlewick.commands.families import load_any
    from candlewick.passes import optimise

    loaded = await load_any(find_checkpoint(options.model))
    wanted = options.entries.split(",") if options.entries else list(loaded.programs)
    programs = {name: optimise(loaded.programs[name]) for name in wanted}
    reports = [floor(program, options.gflops, options.gbps, options.position, options.by)
               for program in programs.values()]
    if options.measured:
        times, memory = await measure(loaded, programs, options.measured, options.threads, options.position, options.rounds,
                                      options.by)
        for report in reports:
            measured = times[report["entry"]]
            report["memory"] = memory
            report["measured_ms"] = sum(measured.values())
            for op, row in report["ops"].items():
                row["measured_ms"] = measured.get(op, 0.0)
    return reports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="whisper-tiny.en")
    parser.add_argument("--by", choices=["op", "part", "layer"], default="op")
    parser.add_argument("--entries", help="names with commas; default: all")
    parser.add_argument("--gflops", type=float, required=True, help="peak of all threads together")
    parser.add_argument("--gbps", type=float, required=True, help="memory bandwidth of all threads together, GB/s")
    parser.add_argument("--position", type=int, default=40, help="position of a decode step; default 40")
    parser.add_argument("--measured", metavar="EXECUTOR", help="time each instruction too (numpy or wasm)")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    reports = asyncio.run(run(options))
    print(json.dumps(reports) if options.json else table(reports))


if __name__ == "__main__":
    main()
