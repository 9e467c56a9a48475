"""Block-quantised weights in headless Chromium: single products, and all of SmolLM2-135M's as one list of instructions.

    PYTHONPATH=py python tests/bench/matmul/quantised.py [--threads 1,2] [--build relaxed|simd128] [--only NAME] [--table]

A token and a chunk of the model read every weight of 135 million once, so they come from memory and not from a cache. Prints
best and median milliseconds, GB/s of packed weights for one row, GOP/s (two operations a weight and row) for many.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from matmul import Case, Files, Room, measure

from candlewick.executors.wasm import abi

LAYERS, WIDTH, QKV, FFN, VOCABULARY = 30, 576, 576 + 2 * 192, 1536, 49152


def product(m: int, n: int, k: int, dtype: str, residual: bool = False) -> tuple[str, dict[str, Any]]:
    """One call of the kernel that reads this type."""
    quantised = dtype in abi.Q_DTYPES
    words: dict[str, Any] = {
        "x": Room(m * k * 4), "ldx": k, "w": Room(abi.panel_bytes(n, k, dtype), half=dtype != "f32"), "y": Room(m * n * 4),
        "ldy": n, "m": m, "n": n, "k": k, "residual": Room(m * n * 4) if residual else 0, "ldr": n,
        "w_dtype": (abi.Q_DTYPES if quantised else abi.W_DTYPES)[dtype]}
    if quantised:
        words["scratch"] = Room(abi.quantised_scratch_bytes(m, k)) if m > 1 else 0
    return ("linear_q" if quantised else "linear"), words


class Calls(Case):
    """Several kernel calls, one after another, each with its own buffers."""

    def __init__(self, name: str, calls: list[tuple[str, dict[str, Any]]], flops: float, read_bytes: float, inner: int = 1):
        self.name, self.inner, self.flops, self.read_bytes = name, inner, flops, read_bytes
        self.halves, self.code, self.addresses = [], [], []
        top = 256
        for kernel, arguments in calls:
            one = Case(name, kernel, inner, **arguments)
            shift = top - 256
            self.halves += [(at + shift, count) for at, count in one.halves]
            self.addresses += [len(self.code) + i for i in one.addresses]
            place = set(one.addresses)
            self.code += [word + shift if i in place else word for i, word in enumerate(one.code)]
            top += one.code_at - 256
        self.code_at, self.n_bytes = top, top + 4 * len(self.code)


def single(name: str, m: int, n: int, k: int, dtype: str, inner: int = 1, **more: Any) -> Case:
    n_bytes = abi.panel_bytes(n, k, dtype)
    return Calls(f"{dtype} {name}", [product(m, n, k, dtype, **more)], 2 * m * n * k, n_bytes, inner)


def model(name: str, m: int, dtype: str, head: str | None) -> Case:
    """Every product of the model with m rows; the head, where there is one, with the last row only."""
    layer = [(QKV, WIDTH, False), (WIDTH, WIDTH, True), (2 * FFN, WIDTH, False), (WIDTH, FFN, True)]
    calls = [product(m, n, k, dtype, residual) for _ in range(LAYERS) for n, k, residual in layer]
    flops = 2 * m * LAYERS * sum(n * k for n, k, _ in layer)
    n_bytes = LAYERS * sum(abi.panel_bytes(n, k, dtype) for n, k, _ in layer)
    if head:
        calls.append(product(1, VOCABULARY, WIDTH, head))
        flops += 2 * VOCABULARY * WIDTH
        n_bytes += abi.panel_bytes(VOCABULARY, WIDTH, head)
    return Calls(f"{dtype} {name}", calls, flops, n_bytes)


def cases() -> list[Case]:
    out: list[Case] = []
    for dtype in ("q4_1", "q4_0", "q8_0"):
        out += [model("token", 1, dtype, "q8_0"), model("chunk of 64", 64, dtype, None)]
    for dtype in abi.Q_DTYPES:
        k = 512 if abi.Q_BLOCKS[dtype][0] == 256 else WIDTH
        out += [single("vector in cache", 1, QKV, k, dtype, 50), single("64 rows in cache", 64, QKV, k, dtype, 2)]
    for m in (2, 3, 4, 8):
        out.append(single(f"{m} rows in cache", m, QKV, WIDTH, "q4_1", 20))
    out += [single("vector from memory", 1, VOCABULARY, WIDTH, dtype) for dtype in ("q4_1", "q8_0", "f16", "f32")]
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--build", default="relaxed", choices=["relaxed", "simd128"])
    parser.add_argument("--only", default="", help="only cases whose name holds one of these texts")
    parser.add_argument("--modules", type=Path, default=Files.modules, help="folder of the kernel modules")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--table", action="store_true", help="lines to read instead of JSON")
    options = parser.parse_args()
    Files.modules = options.modules.resolve()
    chosen = [case for case in cases() if any(part in case.name for part in options.only.split(","))]
    threads = [int(t) for t in options.threads.split(",")]
    report = measure(options.build, threads, chosen, options.repeats)
    for case, row in zip(chosen, report["cases"], strict=True):
        for n in threads:
            times = row[f"threads_{n}"]
            row[f"threads_{n}"] = {"ms": times["ms"], "median_ms": times["median_ms"],
                                   "gb_per_s": round(case.read_bytes / times["ms"] / 1e6, 1),
                                   "gop_per_s": round(case.flops / times["ms"] / 1e6, 1)}
    if not options.table:
        print(json.dumps(report, indent=1))
        return 0
    print(f"{report['build']}, Chromium {report['browser']}, f32 peak {report['peak_gflops']} GFLOP/s a thread")
    for row in report["cases"]:
        cells = [(n, row[f"threads_{n}"]) for n in threads]
        print(f"{row['name']:26}", *(f"{n}: {t['ms']:8.3f} ms (median {t['median_ms']:8.3f}) {t['gb_per_s']:6.1f} GB/s "
                                     f"{t['gop_per_s']:6.1f} GOP/s  " for n, t in cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
