"""How fast the committed kernels are in headless Chromium, beside the register-only peak of the same module and minute.

    PYTHONPATH=py python tests/bench/matmul/matmul.py [--threads 1,2] [--build relaxed|simd128] [--only NAME] [--modules DIR]

Prints one JSON object: the peak of one thread in GFLOP/s, then for each shape and thread count the best and median
milliseconds, GFLOP/s (or GB/s of weights for matrix times vector), and the share of threads x peak. Shapes are those of
Whisper tiny.en. Machines are noisy: look at the best time, and compare only within one run.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from candlewick.executors.wasm import abi

ROOT = Path(__file__).resolve().parents[3]
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
                  "--disable-component-update", "--disable-sync"]
REPEATS = 20
FLAGS: list[str] = []


class Case:
    """One kernel call, its buffers laid out from 0 (the worker adds the base), repeated `inner` times in a list."""

    def __init__(self, name: str, kernel: str, inner: int, flops: float = 0, read_bytes: float = 0, **arguments: Any):
        self.name, self.inner, self.flops, self.read_bytes = name, inner, flops, read_bytes
        self.halves: list[tuple[int, int]] = []
        top, words, addresses = 256, [abi.IDS[kernel], 2 + len(abi.KERNELS[kernel])], []
        for argument in abi.KERNELS[kernel]:
            value = arguments.get(argument, 0)
            if isinstance(value, Room):
                if value.half:
                    self.halves.append((top, value.n_bytes // 2))
                addresses.append(len(words))
                words.append(top)
                top += -(-value.n_bytes // 64) * 64
            elif argument in abi.FLOATS:
                words.append(1040187392)  # 0.125
            else:
                words.append(value)
        self.code_at = top
        self.code = words * inner
        self.addresses = [i * len(words) + a for i in range(inner) for a in addresses]
        self.n_bytes = top + 4 * len(self.code)

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "bytes": -(-self.n_bytes // 64) * 64, "halves": self.halves, "codeAt": self.code_at,
                "code": self.code, "addresses": self.addresses, "inner": self.inner}


class Room:
    """A buffer of n_bytes, filled with random float32 or float16 values."""

    def __init__(self, n_bytes: int, half: bool = False):
        self.n_bytes, self.half = n_bytes, half


def linear(name: str, m: int, n: int, k: int, inner: int, ldx: int = 0, dtype: str = "f16", activation: str = "none",
           residual: bool = False) -> Case:
    ldx = ldx or k
    return Case(name, "linear", inner, flops=2 * m * n * k, read_bytes=n * k * (4 if dtype == "f32" else 2),
                x=Room(((m - 1) * ldx + k) * 4), ldx=ldx, w=Room(abi.panel_bytes(n, k, dtype), dtype == "f16"),
                bias=Room(n * 4), residual=Room(m * n * 4) if residual else 0, ldr=n, y=Room(m * n * 4), ldy=n, m=m, n=n, k=k,
                w_dtype=abi.W_DTYPES[dtype], activation=abi.ACTIVATIONS[activation])


def attention(name: str, n_q: int, n_k: int, inner: int, heads: int = 6, d: int = 64, group: int = 1) -> Case:
    width = heads * d
    return Case(name, "attention", inner, flops=4 * heads * n_q * n_k * d, read_bytes=2 * width // group * n_k * 4,
                q=Room(n_q * width * 4), q_head=d, q_row=width, k=Room(n_k * width * 4), k_head=n_k * d, k_row=d,
                v=Room(n_k * width * 4), v_head=n_k * d, v_row=d, y=Room(n_q * width * 4), y_head=d, y_row=width,
                n_head=heads, n_group=group, n_q=n_q, n_k=n_k, d=d, scale=0.125,
                scratch=Room(abi.attention_scratch_bytes(heads, n_q, n_k, d)) if n_q >= abi.ATTENTION_PACK_MIN else 0)


def layer_norm(m: int, n: int) -> Case:
    return Case("layer norm", "layer_norm", 20, read_bytes=m * n * 4, x=Room(m * n * 4), w=Room(n * 4), b=Room(n * 4),
                y=Room(m * n * 4), m=m, n=n, eps=0.125)


CASES = [
    linear("projection f32", 1500, 384, 384, 4, dtype="f32"),
    linear("projection", 1500, 384, 384, 4),
    linear("projection + residual", 1500, 384, 384, 4, residual=True),
    linear("query, key, value", 1500, 1152, 384, 2),
    linear("mlp in + gelu", 1500, 1536, 384, 1, activation="gelu"),
    linear("mlp in f32", 1500, 1536, 384, 1, dtype="f32"),
    linear("mlp out + residual", 1500, 384, 1536, 1, residual=True),
    linear("convolution 1 + gelu", 3000, 384, 240, 3, ldx=80, activation="gelu"),
    linear("convolution 2 + gelu", 1500, 384, 1152, 1, ldx=768, activation="gelu"),
    linear("mel spectrum f32", 3000, 402, 400, 2, ldx=160, dtype="f32"),
    linear("prefill of 4", 4, 384, 384, 100),
    linear("prefill of 16", 16, 1536, 384, 20),
    attention("encoder attention", 1500, 1500, 1),
    attention("decoder cross attention", 1, 1500, 50),
    attention("decoder self attention", 1, 200, 100),
    attention("grouped attention", 1, 200, 100, heads=9, group=3),
    attention("grouped attention, long", 1, 2000, 20, heads=9, group=3),
    Case("barrier", "fill", 4000, read_bytes=4, dst=Room(4), count=1),
    Case("top 128 of a vocabulary", "top_k", 50, read_bytes=49152 * 4, x=Room(49152 * 4), y=Room(512), m=1, n=49152, k=128),
    Case("log sum of a vocabulary", "reduce", 50, read_bytes=49152 * 4, op=abi.REDUCE["log_sum_exp"], x=Room(49152 * 4),
         y=Room(4), m=1, n=49152),
    linear("vector 384 x 384", 1, 384, 384, 300),
    linear("vector 384 x 1536", 1, 1536, 384, 100, activation="gelu"),
    linear("vector 1536 x 384", 1, 384, 1536, 100),
    linear("logits", 1, 51864, 384, 4),
    linear("logits f32", 1, 51864, 384, 2, dtype="f32"),
    layer_norm(1500, 384),
]


class Files(SimpleHTTPRequestHandler):
    """The checkout, isolated so that memory may be shared; modules from another folder if asked for."""

    modules = ROOT / "workers"

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def translate_path(self, path: str) -> str:
        if path.startswith("/workers/"):
            return str(self.modules / Path(path.split("?")[0]).name)
        return super().translate_path(path)

    def log_message(self, *_: Any) -> None:
        pass


def measure(build: str, thread_counts: list[int], cases: list[Case], repeats: int = REPEATS) -> dict[str, Any]:
    """Times the cases in one browser, one thread count after the other."""
    from playwright.sync_api import sync_playwright

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(ROOT)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    report: dict[str, Any] = {"build": build, "cases": []}
    rows: dict[str, dict[str, Any]] = {case.name: {"name": case.name} for case in cases}
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM_FLAGS + FLAGS)
            report["browser"] = browser.version
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/tests/bench/matmul/index.html")
            for threads in thread_counts:
                answer = page.evaluate("(settings) => window.run(settings)", {
                    "url": f"/workers/kernels.{'threads' if threads > 1 else 'single'}.{build}.wasm", "shared": threads > 1,
                    "threads": threads, "scratchBytes": abi.THREAD_SCRATCH_BYTES, "repeats": repeats,
                    "cases": [case.settings() for case in cases]})
                peak = report["peak_gflops"] = round(max(report.get("peak_gflops", 0), *answer["peaks"]), 1)
                for case, result in zip(cases, answer["results"], strict=True):
                    best = min(result["times"])
                    row: dict[str, Any] = {"ms": round(best, 6), "median_ms": round(median(result["times"]), 6)}
                    if case.flops and case.read_bytes / case.flops < 0.1:
                        row["gflops"] = round(case.flops / best / 1e6, 1)
                        row["of_peak"] = round(row["gflops"] / peak / threads, 3)
                    else:
                        row["gb_per_s"] = round(case.read_bytes / best / 1e6, 1)
                    rows[case.name][f"threads_{threads}"] = row
            browser.close()
    finally:
        server.shutdown()
    report["cases"] = list(rows.values())
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--build", default="relaxed", choices=["relaxed", "simd128"])
    parser.add_argument("--only", default="", help="only cases whose name holds this text")
    parser.add_argument("--modules", type=Path, default=ROOT / "workers", help="folder of the kernel modules")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--table", action="store_true", help="lines to read instead of JSON")
    parser.add_argument("--flag", action="append", default=[], help="one more flag for Chromium")
    options = parser.parse_args()
    FLAGS.extend(options.flag)
    Files.modules = options.modules.resolve()
    cases = [case for case in CASES if any(part in case.name for part in options.only.split(","))]
    report = measure(options.build, [int(t) for t in options.threads.split(",")], cases, options.repeats)
    if not options.table:
        print(json.dumps(report, indent=1))
        return 0
    print(f"{report['build']}, Chromium {report['browser']}, peak {report['peak_gflops']} GFLOP/s a thread")
    for row in report["cases"]:
        print(f"{row['name']:26}", *(f"{name[8:]}: {' '.join(f'{k} {v}' for k, v in r.items()):58}"
                                     for name, r in row.items() if name != "name"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
