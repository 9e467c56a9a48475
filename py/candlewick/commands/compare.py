"""`candlewick compare`: the same Programs on two executors, one instruction after the other.

Both run the optimised Program with the same inputs, each on its own state; what an entry hands to the next comes from
the first executor. An error is the largest absolute difference; relative, as a share of the value's largest magnitude.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from candlewick.commands.common import find_checkpoint, readable
from candlewick.options import OptionError


def compare(model: str, names: str, input: Path | None, threads: int | None, tolerance: float, as_json: bool) -> bool:
    """Prints what was found; True where nothing differs beyond the tolerance."""
    pair = [name.strip() for name in names.split(",") if name.strip()]
    if len(pair) != 2 or not set(pair) <= {"numpy", "wasm", "webgpu"}:
        raise OptionError("{executors}: wanted two of numpy, wasm and webgpu with a comma between, such as numpy,wasm; got "
                          "{names!r}", names=names)
    if input is not None:
        readable(input, "an audio file")
    checkpoint = find_checkpoint(model)
    report = asyncio.run(run(checkpoint, pair, input, threads, tolerance))
    if as_json:
        print(json.dumps(report))
    else:
        show(report)
    return report["same"]


async def run(checkpoint: Any, pair: list[str], input: Path | None, threads: int | None,
              tolerance: float) -> dict[str, Any]:
    """-> {"model", "executors", "tolerance", "same", "entries": [{"entry", "instructions", "first", "ops"}]}."""
    from candlewick import executors
    from candlewick.commands.families import load_any
    from candlewick.executors.example import advance, example_inputs

    loaded = await load_any(checkpoint)
    both = []
    try:
        for name in pair:
            both.append(executors.create(name, threads=threads))
            await both[-1].load(loaded.programs, loaded.weights)
            if both[-1].describe()["executor"] != name:
                raise OptionError("{executors}: {name} is not to be had here: {why}", name=name,
                                  why=both[-1].describe().get("reason"))
        known = {"samples": await samples_for(loaded.programs, input, both[0])}
        entries = []
        position = 0
        for entry, program in loaded.programs.items():
            inputs = example_inputs(program, position, known)
            position += advance(program)
            entries.append(await compare_entry(entry, both, inputs, tolerance))
            known.update(await both[0].fetch(entry, tuple(program.outputs)))
    finally:
        for executor in both:
            await executor.close()
    return {"model": checkpoint.name, "executors": pair, "tolerance": tolerance, "entries": entries,
            "same": all(entry["first"] is None for entry in entries)}


async def compare_entry(entry: str, both: list[Any], inputs: dict[str, Any], tolerance: float) -> dict[str, Any]:
    """Runs one entry on both -> the first instruction beyond the tolerance (or None) and the largest errors per op."""
    import numpy as np

    first, count = None, 0
    ops: dict[str, dict[str, Any]] = {}
    other_steps = both[1].steps(entry, inputs)
    async for instruction, wanted in both[0].steps(entry, inputs):
        other, got = await anext(other_steps)
        if str(other) != str(instruction):
            raise RuntimeError(f"{entry}: the executors run different instructions: {instruction} and {other}")
        wanted, got = np.asarray(wanted, np.float64), np.asarray(got, np.float64).reshape(np.shape(wanted))
        error = largest(np.abs(wanted - got))
        scale = largest(np.abs(wanted))
        relative = error / scale if scale else error
        row = ops.setdefault(instruction.op, {"instructions": 0, "max_abs": 0.0, "max_rel": 0.0, "worst": count})
        row["instructions"] += 1
        row["max_abs"] = max(row["max_abs"], error)
        if relative > row["max_rel"]:
            row["max_rel"], row["worst"] = relative, count
        if first is None and not relative <= tolerance:
            first = {"index": count, "instruction": str(instruction).split(" # ")[0].strip(), "scope": instruction.scope,
                     "max_abs": error, "max_rel": relative}
        count += 1
        await asyncio.sleep(0)  # where Ctrl-C can end it
    return {"entry": entry, "instructions": count, "first": first, "ops": ops}


def largest(values: Any) -> float:
    """Largest element, 0 for none; infinite where an element is not finite."""
    import numpy as np

    if not values.size:
        return 0.0
    return float(np.max(np.where(np.isfinite(values), values, np.inf)))


async def samples_for(programs: dict[str, Any], input: Path | None, executor: Any):
    """What the entry that hears gets: the recording's start at 16 kHz, or noise; None where no entry hears."""
    import numpy as np

    value = next((p.inputs["samples"] for p in programs.values() if "samples" in p.inputs), None)
    if value is None:
        return None
    if input is None:
        return np.random.default_rng(0).uniform(-0.3, 0.3, value.shape).astype(np.float32)
    from candlewick.audio import Resampler
    from candlewick.commands.transcribe import read_recording

    samples, rate = read_recording(input)
    audio = await Resampler(executor).resample(samples, rate)
    out = np.zeros(value.size, np.float32)
    out[: min(len(audio), value.size)] = audio[: value.size]
    return out.reshape(value.shape)


def show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    left, right = report["executors"]
    for entry in report["entries"]:
        table = Table(title=f"{entry['entry']}: {entry['instructions']} instructions, {right} against {left}",
                      title_justify="left", box=None, header_style="bold", pad_edge=False)
        for column in ("op", "instructions", "max abs error", "max relative error", "worst at"):
            table.add_column(column, justify="left" if column == "op" else "right")
        for op, row in sorted(entry["ops"].items(), key=lambda item: -item[1]["max_rel"]):
            table.add_row(op, str(row["instructions"]), f"{row['max_abs']:.3g}", f"{row['max_rel']:.3g}",
                          f"#{row['worst']}")
        console.print(table)
        if entry["first"] is None:
            console.print(f"no instruction differs by more than {report['tolerance']:g} of its largest value\n")
        else:
            first = entry["first"]
            console.print(f"first that differs: #{first['index']} {first['instruction']}\n  in {first['scope']}: max abs "
                          f"error {first['max_abs']:.3g}, relative {first['max_rel']:.3g}\n",
                          markup=False, style="red", soft_wrap=True)
