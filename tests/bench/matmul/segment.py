"""Every kind of layer of MobileSAM's encoder at 1024 x 1024 and of its mask decoder, in headless Chromium.

    PYTHONPATH=py python tests/bench/matmul/segment.py [--threads 1,2] [--table] [--only NAME]

For each kind: how often it occurs, its operations, milliseconds, GFLOP/s beside the register-only peak of the same minute,
and at the end what the encoder and a click would take if each layer ran at its measured time.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from matmul import Case, Files, Room, attention, measure

from candlewick.executors.wasm import abi

GELU = abi.ACTIVATIONS["gelu"]


def linear(name: str, m: int, n: int, k: int, activation: int = 0, residual: bool = False, final: int = 0) -> Case:
    return Case(name, "linear", 1, flops=2 * m * n * k, x=Room(m * k * 4), ldx=k, w=Room(abi.panel_bytes(n, k, "f32")),
                bias=Room(n * 4), residual=Room(m * n * 4) if residual else 0, ldr=n, y=Room(m * n * 4), ldy=n, m=m, n=n, k=k,
                activation=activation, final=final)


def conv(name: str, size: int, c_in: int, c_out: int, stride: int = 1, activation: int = 0) -> Case:
    out = size // stride
    return Case(name, "conv2d", 1, flops=2 * out * out * c_out * c_in * 9, x=Room(size * size * c_in * 4), batch=1, height=size,
                width=size, c_in=c_in, w=Room(abi.panel_bytes(c_out, 9 * c_in, "f32")), bias=Room(c_out * 4),
                y=Room(out * out * c_out * 4), h_out=out, w_out=out, c_out=c_out, kh=3, kw=3, stride=stride, padding=1,
                activation=activation)


def depthwise(name: str, size: int, channels: int, stride: int = 1, activation: int = 0) -> Case:
    out = size // stride
    return Case(name, "depthwise", 1, flops=18 * out * out * channels, x=Room(size * size * channels * 4), batch=1, height=size,
                width=size, channels=channels, w=Room(abi.panel_bytes(channels, 9, "f32")), bias=Room(channels * 4),
                y=Room(out * out * channels * 4), h_out=out, w_out=out, taps=3, stride=stride, padding=1, activation=activation)


def windows(name: str, size: int, n_head: int, window: int, d: int = 32) -> Case:
    n, c, count = window * window, n_head * d, (-(-size // window)) ** 2
    return Case(name, "window_attention", 1, flops=4 * count * n_head * n * n * d, qkv=Room(size * size * 3 * c * 4),
                outside=Room(3 * c * 4), bias=Room(n_head * n * n * 4), y=Room(size * size * c * 4), batch=1, height=size,
                width=size, window=window, n_head=n_head, d=d, scale=0.125)


def norm(name: str, m: int, n: int) -> Case:
    return Case(name, "layer_norm", 1, flops=8 * m * n, x=Room(m * n * 4), w=Room(n * 4), b=Room(n * 4), y=Room(m * n * 4), m=m,
                n=n, eps=0.125)


def upscale(name: str, size: int, c_in: int, c_out: int, activation: int = 0) -> Case:
    return Case(name, "conv_transpose2d", 1, flops=8 * size * size * c_in * c_out, x=Room(size * size * c_in * 4), batch=1,
                height=size, width=size, c_in=c_in, w=Room(16 * c_in * c_out), bias=Room(4 * c_out),
                y=Room(16 * size * size * c_out), c_out=c_out, stride=2, activation=activation)


def stage(size: int, c: int, n_head: int, window: int, depth: int) -> list[tuple[int, Case]]:
    """The TinyViT blocks of one stage."""
    m, at = size * size, f"{size}x{size}x{c}"
    return [(2 * depth, norm(f"{at} layer norm", m, c)),
            (depth, linear(f"{at} qkv", m, 3 * c, c)),
            (depth, windows(f"{at} window attention {window}", size, n_head, window)),
            (depth, linear(f"{at} proj + residual", m, c, c, residual=True)),
            (depth, depthwise(f"{at} local conv", size, c)),
            (depth, linear(f"{at} fc1 + gelu", m, 4 * c, c, GELU)),
            (depth, linear(f"{at} fc2 + residual", m, c, 4 * c, residual=True))]


ENCODER = [
    (1, conv("patch 1 + gelu", 1024, 3, 32, 2, GELU)),
    (1, conv("patch 2", 512, 32, 64, 2)),
    (2, linear("mbconv expand + gelu", 65536, 256, 64, GELU)),
    (2, depthwise("mbconv depthwise + gelu", 256, 256, 1, GELU)),
    (2, linear("mbconv project + residual + gelu", 65536, 64, 256, 0, True, GELU)),
    (1, linear("merge 1 conv1 + gelu", 65536, 128, 64, GELU)),
    (1, depthwise("merge 1 depthwise + gelu", 256, 128, 2, GELU)),
    (1, linear("merge 1 conv3", 16384, 128, 128)),
    *stage(128, 128, 4, 7, 2),
    (1, linear("merge 2 conv1 + gelu", 16384, 160, 128, GELU)),
    (1, depthwise("merge 2 depthwise + gelu", 128, 160, 2, GELU)),
    (1, linear("merge 2 conv3", 4096, 160, 160)),
    *stage(64, 160, 5, 14, 6),
    (1, linear("merge 3 conv1 + gelu", 4096, 320, 160, GELU)),
    (1, depthwise("merge 3 depthwise + gelu", 64, 320, 1, GELU)),
    (1, linear("merge 3 conv3", 4096, 320, 320)),
    *stage(64, 320, 10, 7, 2),
    (1, linear("neck 1x1", 4096, 256, 320)),
    (1, conv("neck 3x3", 64, 256, 256)),
    (2, norm("neck layer norm", 4096, 256)),
]
CLICK = [
    (1, linear("image key, value 256 -> 256", 4096, 256, 256)),
    (2, attention("token to image", 7, 4096, 1, heads=8, d=16)),
    (2, attention("image to token", 4096, 7, 1, heads=8, d=16)),
    (2, linear("image out_proj + residual", 4096, 256, 128, residual=True)),
    (1, linear("image query", 4096, 128, 256)),
    (2, norm("image layer norm", 4096, 256)),
    (1, upscale("upscale 1", 64, 256, 64)),
    (1, norm("upscale layer norm", 16384, 64)),
    (1, upscale("upscale 2 + gelu", 128, 64, 32, GELU)),
    (1, Case("masks", "matmul", 1, flops=2 * 65536 * 32 * 4, a=Room(65536 * 32 * 4), lda=32, b=Room(4 * 32 * 4), b_k=1, b_n=32,
             y=Room(65536 * 4 * 4), ldy=4, batch=1, m=65536, n=4, k=32)),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--build", default="relaxed", choices=["relaxed", "simd128"])
    parser.add_argument("--only", default="", help="only kinds whose name holds this text")
    parser.add_argument("--modules", type=Path, default=Files.modules, help="folder of the kernel modules")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="lines to read instead of JSON")
    options = parser.parse_args()
    Files.modules = options.modules.resolve()
    threads = [int(t) for t in options.threads.split(",")]
    parts = {name: [(count, case) for count, case in part if any(word in case.name for word in options.only.split(","))]
             for name, part in (("encode", ENCODER), ("click", CLICK))}
    report = measure(options.build, threads, [case for part in parts.values() for _, case in part], options.repeats)
    rows = {row["name"]: row for row in report["cases"]}
    totals: dict[str, Any] = {}
    for name, part in parts.items():
        totals[name] = {"gflop": round(sum(count * case.flops for count, case in part) / 1e9, 2)}
        for n in threads:
            whole = sum(count * rows[case.name][f"threads_{n}"]["ms"] for count, case in part)
            totals[name][f"threads_{n}_ms"] = round(whole, 1)
        for count, case in part:
            rows[case.name] |= {"part": name, "count": count, "mflop": round(case.flops / 1e6, 1)}
    report["totals"] = totals
    if not options.table:
        print(json.dumps(report, indent=1))
        return 0
    print(f"peak {report['peak_gflops']} GFLOP/s a thread")
    for row in report["cases"]:
        times = [row[f"threads_{n}"]["ms"] for n in threads]
        cells = [f"{t:8.2f} ms {row['mflop'] / t:6.1f} GFLOP/s" for t in times]
        print(f"{row['count']:2} x {row['name']:38} {row['mflop']:8.1f} MFLOP {'   '.join(cells)}"
              f"   {row['count'] * row[f'threads_{threads[-1]}']['ms']:7.1f} ms in all")
    print(json.dumps(totals))
    return 0


if __name__ == "__main__":
    sys.exit(main())
