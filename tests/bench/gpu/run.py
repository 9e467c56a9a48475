"""The WGSL kernels on the GPU of this machine, through PyPI wgpu: right, and how fast for what the GPU can do.

    PYTHONPATH=py python tests/bench/gpu/run.py [--json] [--ms 40] [--only WORD] [--models] [--no-verify]

First every kernel is compared with numpy (`candlewick.verify`). Then the GPU is measured: bytes a second of a copy (read and
written), float32 operations a second of multiply-adds in registers. Then the kernels run at shapes of the three models, each
many times in one submit, over as many copies of its weights as no cache holds; the table gives the shares of those two rates,
by the bytes and operations that are unavoidable. With --models whole entries of the checkpoints that are here follow. On a
software driver take --ms 1 --smoke, which leaves out what would take it minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from floor import operations, traffic

from candlewick import ops
from candlewick.executors import create
from candlewick.verify import summary, traced, verify_kernels
from candlewick.verify.cases import Case

CACHE_BYTES = 256e6
"""More than the caches of today's GPUs hold."""
SMOKE_OPERATIONS = 2e7
RATE = """
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
override ROUNDS = 1024u;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3u) {
    let a = vec4f(0.999, 0.998, 0.997, 0.996);
    var p = vec4f(f32(id.x)); var q = p + 1.0; var r = p + 2.0; var s = p + 3.0;
    for (var i = 0u; i < ROUNDS; i++) {
        p = fma(p, a, a); q = fma(q, a, a); r = fma(r, a, a); s = fma(s, a, a);
    }
    y[id.x] = dot(p + q, r + s);
}
"""
OPERATIONS_A_ROUND = 4 * 4 * 2


def linear(m: int, k: int, n: int, dtype: str, words: str = "") -> Case:
    def fn(w: Any, x: Any) -> Any:
        y = ops.linear(x, w.w)
        return getattr(ops, words)(y) if words else y

    return Case("linear", fn, {"x": (1, m, k)}, {"w": (dtype, (n, k))}, note=words)


def conv2d(side: int, c_in: int, c_out: int, kernel: int, stride: int, groups: int = 1) -> Case:
    def fn(w: Any, x: Any) -> Any:
        return ops.conv2d(x, w.w, stride=stride, padding=kernel // 2, groups=groups)

    return Case("conv2d", fn, {"x": (1, side, side, c_in)}, {"w": ("f16", (c_out, c_in // groups, kernel, kernel))},
                note=f"stride {stride}")


def attention(heads: int, kv_heads: int, n: int, m: int, d: int, start: int | None = None) -> Case:
    def fn(w: Any, q: Any, k: Any, v: Any, start: Any = None) -> Any:
        return ops.attention(q, k, v, start=start, causal=start is not None)

    kv = (1, kv_heads, m, d)
    return Case("attention", fn, {"q": (1, heads, n, d), "k": kv, "v": kv}, scalars={} if start is None else {"start": start})


def window_attention(side: int, heads: int, window: int) -> Case:
    c, n = 32 * heads, window * window
    return Case("window_attention", lambda w, x, b, outside: ops.window_attention(x, b, outside, n_head=heads, window=window),
                {"x": (1, side, side, 3 * c), "b": (heads, n, n), "outside": (1, 3 * c)}, note=f"window {window}")


def models() -> list[tuple[str, Case]]:
    quantised = ("f16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q6_k")
    return [
        ("whisper encode, projections", linear(1500, 384, 1152, "f32")),
        ("whisper encode, up", linear(1500, 384, 1536, "f32", "gelu")),
        ("whisper encode, down", linear(1500, 1536, 384, "f32")),
        ("whisper encode, attention", attention(6, 6, 1500, 1500, 64)),
        ("whisper encode, convolution", Case("conv1d", lambda w, x: ops.conv1d(x, w.w, stride=2, padding=1),
                                              {"x": (1, 3000, 384)}, {"w": ("f32", (384, 384, 3))})),
        ("whisper decode, up", linear(1, 384, 1536, "f32")),
        ("whisper decode, cross-attention", attention(6, 6, 1, 1500, 64)),
        ("whisper decode, vocabulary", linear(1, 384, 51_864, "f32")),
        ("sam encode, first convolution", conv2d(1024, 3, 32, 3, 2)),
        ("sam encode, second convolution", conv2d(512, 32, 64, 3, 2)),
        ("sam encode, each channel alone", conv2d(256, 256, 256, 3, 1, 256)),
        ("sam encode, pointwise", linear(256 * 256, 64, 256, "f16", "gelu")),
        ("sam encode, windows of 7", window_attention(128, 4, 7)),
        ("sam encode, windows of 14", window_attention(64, 5, 14)),
        ("sam encode, neck", conv2d(64, 256, 256, 3, 1)),
        ("sam decode, tokens to picture", attention(8, 8, 7, 4096, 16)),
        ("sam decode, picture to tokens", attention(8, 8, 4096, 7, 16)),
        ("sam decode, upscaling", Case("conv_transpose2d", lambda w, x: ops.conv_transpose2d(x, w.w, stride=2),
                                       {"x": (1, 128, 128, 64)}, {"w": ("f16", (64, 32, 2, 2))})),
        *((f"smollm2 read, down, {dtype}", linear(64, 1536, 576, dtype)) for dtype in quantised),
        ("smollm2 read, attention", attention(9, 3, 64, 512, 64, 448)),
        *((f"smollm2 write, down, {dtype}", linear(1, 1536, 576, dtype)) for dtype in quantised),
        *((f"smollm2 write, vocabulary, {dtype}", linear(1, 576, 49_152, dtype)) for dtype in ("f16", "q8_0", "q4_0", "q4_1")),
        ("smollm2 write, attention", attention(9, 3, 1, 2048, 64, 1023)),
    ]


class Bench:
    def __init__(self, ms: float, smoke: bool) -> None:
        self.executor: Any = create("webgpu")
        self.host = self.executor.host
        self.ms, self.smoke = ms, smoke

    async def timed(self, entry: str) -> float:
        """Milliseconds of all dispatches of an entry: the GPU's own clock, else ours."""
        n = len(self.host._entries[entry])
        read = [(0, 0, 4)] if self.host._buffers else []
        begin = time.perf_counter()
        await self.host.run(entry, 0, n, read)
        ours = (time.perf_counter() - begin) * 1000
        return self.host.gpu_ms or ours

    async def repeated(self, steps: list[Any], once: int) -> float:
        """Milliseconds of `once` steps, of as many as take the time that was asked for; the least of three."""
        entries = self.host._entries
        entries["repeated"] = list(steps)
        first = await self.timed("repeated")  # also compiles what the driver left for later
        first = min(first, await self.timed("repeated"))
        rounds = int(np.clip(self.ms / max(first, 1e-3), 1, 2000))
        entries["repeated"] = list(steps) * rounds
        return min([await self.timed("repeated") for _ in range(3)]) / (len(steps) * rounds) * once

    async def rates(self) -> tuple[float, float]:
        """-> (1e9 bytes a second of a copy, 1e9 float32 operations a second)"""
        n_bytes = 1 << (24 if self.smoke else 28)
        device, usage = self.host._device, self.host._wgpu.BufferUsage
        a, b = (device.create_buffer(size=n_bytes, usage=usage.COPY_SRC | usage.COPY_DST | usage.STORAGE) for _ in range(2))
        back = device.create_buffer(size=16, usage=usage.COPY_DST | usage.MAP_READ)

        def copies(n: int) -> float:
            encoder = device.create_command_encoder()
            for _ in range(n):
                encoder.copy_buffer_to_buffer(a, 0, b, 0, n_bytes)
            encoder.copy_buffer_to_buffer(b, 0, back, 0, 16)
            begin = time.perf_counter()
            device.queue.submit([encoder.finish()])
            back.map_sync(self.host._wgpu.MapMode.READ)
            back.unmap()
            return time.perf_counter() - begin

        copies(1)
        few, many = (2, 4) if self.smoke else (4, 24)
        seconds = min(copies(many) for _ in range(3)) - min(copies(few) for _ in range(3))
        gbps = 2 * n_bytes * (many - few) / max(seconds, 1e-9) / 1e9
        groups, rounds = (16, 64) if self.smoke else (16_384, 1024)
        y = self.host.buffer(groups * 256 * 4)
        await self.host.prepare(json.dumps({
            "kernels": {"rate": RATE}, "pipelines": [{"kernel": "rate", "entry": "main", "constants": {"ROUNDS": rounds}}],
            "entries": {"rate": [[0, [y], [groups, 1, 1]]]}}))
        ms = await self.repeated(self.host._entries["rate"], 1)
        for buffer in (a, b, back):
            buffer.destroy()
        self.host.release()
        return gbps, groups * 256 * rounds * OPERATIONS_A_ROUND / ms / 1e6

    async def case(self, name: str, case: Case, gbps: float, gflops: float) -> dict[str, Any] | None:
        program, weights = traced(case)
        flops = n_bytes = 0
        for i in program.instructions:
            start = case.scalars.get("start", 0)
            flops += operations(i, start)
            n_bytes += sum(traffic(i, start))
        if self.smoke and flops > SMOKE_OPERATIONS:
            return None
        copies = 1 if self.smoke else int(np.clip(CACHE_BYTES / n_bytes, 1, 200))
        arrays = {**case.arrays(), **case.scalars}
        steps: list[Any] = []
        try:
            for number in range(copies):
                entry = f"copy {number}"
                if number:
                    program, weights = traced(case, f" {number}")
                await self.executor.load({entry: program}, weights)
                self.executor._write_inputs(entry, arrays)
                steps += self.host._entries[entry]
            ms = await self.repeated(steps, len(steps) // copies)
        finally:
            await self.executor.close()
        row = {"name": name, "op": case.op, "dtype": case.dtype, "shape": case.shape, "copies": copies, "ms": ms,
               "gflops": flops / ms / 1e6, "gbps": n_bytes / ms / 1e6}
        return {**row, "share_of_rate": row["gflops"] / gflops, "share_of_bandwidth": row["gbps"] / gbps}

    async def model(self, name: str, gbps: float, gflops: float) -> list[dict[str, Any]]:
        """Whole entries of a checkpoint, one submit each."""
        from candlewick.commands.common import find_checkpoint
        from candlewick.commands.families import load_any
        from candlewick.executors.example import example_inputs

        loaded = await load_any(find_checkpoint(name))
        rows = []
        try:
            await self.executor.load(loaded.programs, loaded.weights)
            for entry, program in self.executor.programs.items():
                inputs = example_inputs(program)
                times = []
                for _ in range(1 if self.smoke else 6):
                    begin = time.perf_counter()
                    await self.executor.run(entry, inputs, tuple(program.outputs)[:1])
                    times.append(self.host.gpu_ms or (time.perf_counter() - begin) * 1000)
                ms = min(times[1:] or times)
                flops = sum(operations(i) for i in program.instructions)
                kept = sum(traffic(i)[0] for i in program.instructions)
                ends = sum(prod(v.shape) * 4 for v in (*program.inputs.values(), *program.outputs.values()))
                floor = max(flops / gflops, (kept + ends) / gbps) / 1e6
                rows.append({"name": f"{name} {entry}", "ms": ms, "floor_ms": floor, "share_of_floor": floor / ms})
        finally:
            await self.executor.close()
        return rows


async def run(options: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(options.ms, options.smoke)
    adapter = {key: str(value) for key, value in bench.host.adapter.items()}
    report: dict[str, Any] = {"adapter": adapter, "features": sorted(bench.host.features)}
    if not options.no_verify:
        checked: list[dict[str, Any]] = []
        await verify_kernels(bench.executor, checked)
        report["verify"] = {**summary(checked), "wrong": [row for row in checked if not row["ok"]]}
        print(f"{summary(checked)}", file=sys.stderr)
    gbps, gflops = await bench.rates()
    report |= {"copy_gbps": gbps, "f32_gflops": gflops, "rows": [], "entries": []}
    print(f"copy {gbps:.1f} GB/s, float32 {gflops:.1f} GFLOP/s", file=sys.stderr)
    for name, case in models():
        if options.only in name:
            row = await bench.case(name, case, gbps, gflops)
            if row:
                report["rows"].append(row)
                print(line(row), file=sys.stderr)
    if options.models:
        for name in ("whisper-tiny.en", "mobilesam", "smollm2-135m-instruct"):
            try:
                report["entries"] += await bench.model(name, gbps, gflops)
            except Exception as error:
                print(f"{name}: {error}", file=sys.stderr)
    return report


def line(row: dict[str, Any]) -> str:
    return (f"{row['name']:34} {row['dtype']:5} {row['ms']:10.4f} ms {row['gflops']:9.1f} GFLOP/s {row['share_of_rate']:6.1%} "
            f"{row['gbps']:8.1f} GB/s {row['share_of_bandwidth']:6.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ms", type=float, default=40, help="about how long each kernel is measured")
    parser.add_argument("--only", default="", help="shapes whose name has this word")
    parser.add_argument("--models", action="store_true", help="also whole entries of the checkpoints that are here")
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="leave out what takes an emulator long")
    options = parser.parse_args()
    report = asyncio.run(run(options))
    if options.json:
        print(json.dumps(report))
        return
    print(f"{report['adapter'].get('device') or report['adapter']}: copy {report['copy_gbps']:.1f} GB/s, "
          f"float32 {report['f32_gflops']:.1f} GFLOP/s; features {', '.join(report['features'])}")
    for row in report["rows"]:
        print(line(row))
    for row in report["entries"]:
        print(f"{row['name']:34} {row['ms']:10.3f} ms, floor {row['floor_ms']:.3f} ms ({row['share_of_floor']:.1%})")


if __name__ == "__main__":
    main()
