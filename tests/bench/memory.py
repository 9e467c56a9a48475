"""Does memory stay flat? One page, many transcriptions in a row; bytes after the second and after the last.

    PYTHONPATH=py python tests/bench/memory.py --input CLIP [--runs 50] [--threads 2]

Prints one JSON object. `engine` is what the engine counts (kernel memory, Python heap), `browser` what Chromium counts
for page and workers, `renderer` the resident size of its process (Linux), which garbage not yet collected lifts.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from candlewick.commands import browser as web
from candlewick.commands.bench_transcribe import TranscribeBench
from candlewick.commands.common import Failure, find_model


def sample(page: Any, profile: Path, ask_browser: bool) -> dict[str, Any]:
    """Chromium waits a minute for the threads, which sleep until there is work: it is asked at the ends only."""
    found = {"engine": web.evaluate(page, "window.bench.describe()").get("memory"),
             "renderer": web.renderer_bytes(profile)}
    if ask_browser and (browser := web.evaluate(page, "window.bench.memory()")):
        found["browser"] = browser["bytes"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--model", default="whisper-tiny.en")
    parser.add_argument("--executor", default="wasm")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=50)
    options = parser.parse_args()
    try:
        checkpoint = find_model(options.model)
        with tempfile.TemporaryDirectory(prefix="candlewick-memory-") as work, web.server() as address:
            bench = TranscribeBench(address, Path(work), options.input, checkpoint, options.executor, options.threads)
            with bench.opened() as page:
                web.evaluate(page, "window.bench.first()")
                web.evaluate(page, "window.bench.again(1)")
                samples = {2: sample(page, bench.profile, True)}
                done = 2
                while done < options.runs:
                    step = min(8, options.runs - done)
                    last = web.evaluate(page, "runs => window.bench.again(runs)", step)
                    done += step
                    samples[done] = sample(page, bench.profile, done == options.runs)
        weights = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
        print(json.dumps({"weights_file_bytes": weights, "runs": options.runs, "after": samples,
                          "total_ms_last": [run["total_ms"] for run in last]}, indent=1))
    except Failure as failure:
        sys.exit(f"error: {failure}")


if __name__ == "__main__":
    main()
