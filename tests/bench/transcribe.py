"""`candlewick bench transcribe` as a table: median, least and most of each time.

    PYTHONPATH=py python tests/bench/transcribe.py --input CLIP [--threads 2] [--runs 5] [--native] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any


def table(report: dict[str, Any]) -> str:
    """The lists of the report, one line each, then what is a single thing."""
    lines = [f"{report['executor']}, {report['threads']} threads, {report['duration_s']:.1f} s of audio, "
             f"{report['tokens']} tokens", f"{'ms':<20} {'median':>9} {'least':>9} {'most':>9}   n"]
    for name, values in report.items():
        if isinstance(values, list) and values and all(isinstance(value, int | float) for value in values):
            lines.append(f"{name.removesuffix('_ms'):<20} {statistics.median(values):>9.1f} {min(values):>9.1f} "
                         f"{max(values):>9.1f} {len(values):>3}")
    if report["tokens"]:
        lines.append(f"{'decode per token':<20} {statistics.median(report['decode_ms']) / report['tokens']:>9.2f}")
    lines.append(f"real-time factor {statistics.median(report['total_ms']) / 1000 / report['duration_s']:.3f}; memory "
                 + ", ".join(f"{name} {value / 1e6:.1f} MB" for name, value in report["memory"].items())
                 + f"; load average {report['load_average']:.2f}")
    lines.append(report["text"].strip())
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--model", default="whisper-tiny.en")
    parser.add_argument("--executor", default="wasm")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--starts", type=int)
    parser.add_argument("--native", action="store_true", help="in CPython instead of Chromium")
    parser.add_argument("--json", type=Path, help="keep the JSON here")
    options = parser.parse_args()
    command = [sys.executable, "-m", "candlewick.cli", "bench", "transcribe", "--input", options.input, "--model",
               options.model, "--executor", options.executor, "--threads", options.threads, "--runs", options.runs]
    command += ["--starts", options.starts] if options.starts else []
    command += [] if options.native else ["--browser"]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    if options.json:
        options.json.write_text(done.stdout)
    print(table(json.loads(done.stdout)))


if __name__ == "__main__":
    main()
