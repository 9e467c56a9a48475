"""Candlewick beside what a person would take instead: same Chromium, files and threads, in turn in one run.

    PYTHONPATH=py python tests/bench/peers/run.py whisper [--input RECORDING] [--threads 2] [--rounds 3] [--runs 3]
    PYTHONPATH=py python tests/bench/peers/run.py segment [--input PICTURE] [--point X,Y]
    PYTHONPATH=py python tests/bench/peers/run.py generate [--dtypes as-is,q8_0,q4_0] [--prompt-file F] [--max-tokens 64]

Prints one JSON object: per side the runs of each metric with their median, and `ratios`, ours / theirs (times below 1 and
rates above 1: ours is faster). README.md says what is compared with what. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import generate
import segment
import whisper

from candlewick.commands.common import Failure

KINDS = {"whisper": (whisper, "whisper-tiny.en"), "segment": (segment, "mobilesam"),
         "generate": (generate, "smollm2-135m-instruct")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for name, (_, model) in KINDS.items():
        kind = kinds.add_parser(name)
        kind.add_argument("--model", default=model)
        kind.add_argument("--executor", default="wasm")
        kind.add_argument("--threads", type=int, default=2)
        kind.add_argument("--rounds", type=int, default=3, help="browser starts a side")
        kind.add_argument("--runs", type=int, default=3, help="repetitions a start, after two that warm up")
        kind.add_argument("--setup", action="store_true", help="fetch and make what is wanted, only")
        if name == "generate":
            kind.add_argument("--prompt-file", type=Path, default=generate.PROMPT, help="default: 200 tokens of a story")
            kind.add_argument("--max-tokens", type=int, default=64)
            kind.add_argument("--capacity", type=int, default=1024, help="positions of the KV cache, on all sides")
            kind.add_argument("--dtypes", default="as-is", help="block types to measure, with commas; as-is: the file itself")
            kind.add_argument("--peers", default=",".join(generate.WLLAMA), help="which wllama, with commas")
            kind.add_argument("--no-native", dest="native", action="store_false", help="without native llama.cpp")
        else:
            kind.add_argument("--input", type=Path, help="default: one of the site's samples")
        if name == "segment":
            kind.add_argument("--point", metavar="X,Y", help="default: the middle")
        else:
            kind.add_argument("--no-peer-cache", dest="peer_cache", action="store_false",
                              help="the peer without its own copy of the model in the browser: the HTTP cache alone")
    options = parser.parse_args()
    module = KINDS[options.kind][0]
    try:
        module.set_up(options)
        if not options.setup:
            print(json.dumps(module.measure(options), indent=1))
    except Failure as failure:
        sys.exit(f"error: {failure}")


if __name__ == "__main__":
    main()
