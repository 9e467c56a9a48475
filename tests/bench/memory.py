"""Does memory stay flat? One page, the same work again and again, and the bytes that it holds on the way.

    PYTHONPATH=py python tests/bench/memory.py transcribe --input RECORDING [--runs 50]
    PYTHONPATH=py python tests/bench/memory.py segment --input PICTURE [--runs 100]     set anew and clicked into each time
    PYTHONPATH=py python tests/bench/memory.py generate [--runs 50]
    PYTHONPATH=py python tests/bench/memory.py loads [--models smollm2-135m-instruct,whisper-tiny.en] [--runs 10]

Prints one JSON object. `engine` is what the engine counts (kernel memory, Python heap), `browser` what Chromium counts
for page and workers (at the ends only), `renderer` the resident size of its process (Linux), which garbage not yet collected
lifts; `renderer_collected` after the browser has collected it to answer. `growth`: bytes from the second sample to the last,
as the engine counts them. The first of `--models` must be one that writes text.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from candlewick.commands import browser as web
from candlewick.commands.bench_generate import GenerateBench
from candlewick.commands.bench_page import PageBench
from candlewick.commands.bench_segment import SegmentBench
from candlewick.commands.bench_transcribe import TranscribeBench
from candlewick.commands.common import Failure, find_model
from candlewick.commands.segment import Prompt

PROMPT = Path(__file__).parent / "peers" / "prompt.txt"
STEP = 8  # repetitions between two samples


def sample(page: Any, profile: Path, ask_browser: bool) -> dict[str, Any]:
    """Chromium waits a minute for the threads, which sleep until there is work: it is asked at the ends only."""
    found = {"engine": web.evaluate(page, "window.bench.describe()").get("memory"),
             "renderer": web.renderer_bytes(profile)}
    if ask_browser and (browser := web.evaluate(page, "window.bench.memory()")):
        found |= {"browser": browser["bytes"], "renderer_collected": web.renderer_bytes(profile)}
    return found


def bench_of(options: argparse.Namespace, address: str, work: Path) -> PageBench:
    """The page that does the work. For loads it is the one that writes text."""
    how = (options.executor, options.threads)
    if options.kind == "transcribe":
        return TranscribeBench(address, work, options.input, find_model(options.model), *how)
    if options.kind == "segment":
        return SegmentBench(address, work, options.input, find_model(options.model), *how, Prompt([], [], None))
    first = options.models.split(",")[0] if options.kind == "loads" else options.model
    return GenerateBench(address, work, PROMPT, first, *how, None, 32)


def repeated(page: Any, profile: Path, runs: int) -> dict[int, dict[str, Any]]:
    """Samples after 2 runs, some between, and all."""
    web.evaluate(page, "window.bench.again(1)")
    done, samples = 2, {2: sample(page, profile, True)}
    while done < runs:
        step = min(STEP, runs - done)
        web.evaluate(page, "runs => window.bench.again(runs)", step)
        done += step
        samples[done] = sample(page, profile, done == runs)
    return samples


def loaded(page: Any, profile: Path, models: list[str], runs: int) -> dict[int, dict[str, Any]]:
    """Samples after each load; the models take turns. Only loads of one model are alike, so `growth` compares those."""
    samples = {1: {"model": models[0], **sample(page, profile, True)}}
    for done in range(2, runs + 1):
        model = models[(done - 1) % len(models)]
        web.evaluate(page, "model => window.bench.load(model)", f"/models/{find_model(model).name}/")
        samples[done] = {"model": model, **sample(page, profile, done == runs)}
    return samples


def growth(samples: dict[int, dict[str, Any]]) -> dict[str, int]:
    """Bytes of kernel memory and Python's heap from the second sample of a kind (the first, of two) to the last of it."""
    grown = {}
    for model in {one.get("model", "") for one in samples.values()}:
        alike = [one["engine"] for one in samples.values() if one.get("model", "") == model]
        start = alike[1] if len(alike) > 2 else alike[0]
        for part in ("kernel", "python", "total"):
            grown[" ".join(filter(None, (model, part)))] = alike[-1][part] - start[part]
    return grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, runs, model in (("transcribe", 50, "whisper-tiny.en"), ("segment", 100, "mobilesam"),
                              ("generate", 50, "smollm2-135m-instruct"), ("loads", 10, "")):
        one = kinds.add_parser(kind)
        if kind in ("transcribe", "segment"):
            one.add_argument("--input", type=Path, required=True)
        if kind == "loads":
            one.add_argument("--models", default="smollm2-135m-instruct,whisper-tiny.en,mobilesam", help="names, with commas")
        else:
            one.add_argument("--model", default=model)
        one.add_argument("--runs", type=int, default=runs)
        one.add_argument("--executor", default="wasm")
        one.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="candlewick-memory-") as work, web.server() as address:
            bench = bench_of(options, address, Path(work))
            with bench.opened() as page:
                web.evaluate(page, "window.bench.first()")
                if options.kind == "loads":
                    samples = loaded(page, bench.profile, options.models.split(","), options.runs)
                else:
                    samples = repeated(page, bench.profile, options.runs)
        print(json.dumps({"kind": options.kind, "runs": options.runs, "growth": growth(samples), "after": samples}, indent=1))
    except Failure as failure:
        sys.exit(f"error: {failure}")


if __name__ == "__main__":
    main()
