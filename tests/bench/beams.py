"""What a token costs when several transcripts are decoded together, beside greedy decoding in the same run.

    PYTHONPATH=py python tests/bench/beams.py --input RECORDING [--beams 5] [--best-of 5] [--threads 2] [--rounds 5]

In headless Chromium: greedy, beam search and samples in turn, round after round. Prints one JSON object: milliseconds of
decoding a token (median, least, all) of each way, the kernels' part of a step, and ratios to greedy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from candlewick.commands import browser as web
from candlewick.commands.bench_transcribe import TranscribeBench
from candlewick.commands.common import Failure, find_model

SAMPLED = {"temperatures": [0.4], "logprob_threshold": None, "compression_ratio_threshold": None}
"""One temperature that will do whatever comes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--model", default="whisper-tiny.en")
    parser.add_argument("--executor", default="wasm")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--best-of", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ways: dict[str, dict[str, Any]] = {
        "greedy": {}, "beam": {"beam_size": options.beams}, "sample": SAMPLED,
        "best_of": {**SAMPLED, "best_of": options.best_of}}
    per_token: dict[str, list[float]] = {way: [] for way in ways}
    text: dict[str, str] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="candlewick-beams-") as work, web.server() as address:
            bench = TranscribeBench(address, Path(work), options.input, find_model(options.model), options.executor,
                                    options.threads)
            with bench.opened() as page:
                web.evaluate(page, "window.bench.first()")
                for number in range(options.rounds + 1):
                    for way, chosen in ways.items():
                        web.evaluate(page, "options => window.bench.use(options)", chosen)
                        (run,) = web.evaluate(page, "window.bench.again(1)")
                        text[way] = run["result"]["text"]
                        timings = run["result"]["timings"]
                        if number:  # hot code is compiled again in the first calls
                            per_token[way].append(timings["decode_ms"] / timings["tokens"])
                steps = {way: web.evaluate(page, "params => window.bench.profile(params)", {"entry": entry, "position": 30})
                         for way, entry in (("greedy", "decode_1"), ("beam", f"grow_{options.beams}"))}
    except Failure as failure:
        sys.exit(f"error: {failure}")
    middle = {way: statistics.median(times) for way, times in per_token.items()}
    print(json.dumps({
        "model": options.model, "executor": options.executor, "threads": options.threads, "beams": options.beams,
        "ms_per_token": {way: {"median": middle[way], "least": min(times), "all": times} for way, times in per_token.items()},
        "run_ms": {way: step["run_ms"] for way, step in steps.items()},
        "beam_to_greedy": middle["beam"] / middle["greedy"], "best_of_to_sample": middle["best_of"] / middle["sample"],
        "load_average": os.getloadavg()[0], "text": text}, indent=1))


if __name__ == "__main__":
    main()
