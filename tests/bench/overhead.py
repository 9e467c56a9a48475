"""Where a decode step of a language model goes: kernels, barriers between them, JavaScript and Python.

    PYTHONPATH=py python tests/bench/overhead.py [--model smollm2-135m-instruct] [--threads 2] [--rounds 3]

In headless Chromium, all in one run. A step and the part of it that passes in the kernels' loop are timed in the engine
(web/bench/generate.js: steps); what an instruction with nothing to do costs is timed on the same kernel module with as many
threads (tests/bench/matmul). Prints one JSON object: milliseconds a step, and
`share_outside`, what is not the kernels' own work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "matmul"))

from matmul import Case, measure

from candlewick.commands import browser as web
from candlewick.commands.bench_generate import GenerateBench
from candlewick.commands.common import Failure, find_text_model

PROMPT = Path(__file__).parent / "peers" / "prompt.txt"
INNER = 2000


def empty_instruction_ms(threads: int) -> float:
    """Milliseconds of an instruction that has nothing to do: dispatch and barrier."""
    report = measure("relaxed", [threads], [Case("nothing", "fill", INNER)])
    return report["cases"][0][f"threads_{threads}"]["ms"]


async def instructions(model: str, threads: int) -> int:
    """How many instructions a decode step runs. Each ends at a barrier, or else this counts too many."""
    from candlewick import executors
    from candlewick.models.llama import Generator

    executor = executors.create("wasm", threads=threads)
    try:
        await Generator.load(find_text_model(model), executor)
        entry = executor.entries["decode"]
        code = executor.host.read(entry.code_start, entry.code_end - entry.code_start)
    finally:
        await executor.close()
    words = memoryview(code).cast("i")
    count = at = 0
    while at < len(words):
        count, at = count + 1, at + words[at + 1]
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="candlewick-overhead-") as work, web.server() as address:
            bench = GenerateBench(address, Path(work), PROMPT, options.model, "wasm", options.threads, None, options.max_tokens)
            with bench.opened() as page:
                web.evaluate(page, "window.bench.first()")
                web.evaluate(page, "window.bench.again(1)")  # hot code is compiled again in the first calls
                load = os.getloadavg()[0]
                steps: list[dict[str, Any]] = [web.evaluate(page, "window.bench.steps()") for _ in range(options.rounds)]
        empty = empty_instruction_ms(options.threads)
        count = asyncio.run(instructions(options.model, options.threads))
    except Failure as failure:
        sys.exit(f"error: {failure}")
    step, loop = (statistics.median(one[name] for one in steps) for name in ("step_ms", "loop_ms"))
    print(json.dumps({
        "model": options.model, "threads": options.threads, "load_average_before": load, "step_ms": step,
        "kernels_ms": loop - count * empty, "barriers_ms": count * empty, "python_js_ms": step - loop,
        "share_outside": (step - loop + count * empty) / step, "instructions": count, "empty_instruction_ms": empty,
        "rounds": steps}, indent=1))


if __name__ == "__main__":
    main()
