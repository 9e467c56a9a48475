"""`candlewick bench transcribe`: how long the parts of a transcription take, in the browser or in CPython.

One JSON object comes out. All times are milliseconds in lists over the runs; a list is never summed up here, so that
the reader sees the spread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import struct
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from candlewick.commands import browser as web
from candlewick.commands.common import Failure, emit, find_model, writable
from candlewick.commands.transcribe import read_recording

SETTLE_SECONDS = 3.0
"""Chromium writes its compiled-code cache some time after the code has run; a page closed sooner is never primed."""

PARTS = ("mel_ms", "encode_ms", "decode_ms")


def bench_transcribe(input: Path, browser: bool, model: str, executor: str, threads: int | None, runs: int,
                     starts: int, output: str) -> None:
    if not input.exists():
        raise Failure(f"recording {input}: no such file; check the path")
    target = None if output == "-" else writable(Path(output))
    folder = find_model(model)
    if browser:
        with tempfile.TemporaryDirectory(prefix="candlewick-bench-") as work, web.server() as address:
            bench = PageBench(address, Path(work), input, folder.name, executor, threads)
            cold = [bench.cold() for _ in range(starts)]
            bench.prime()
            report = bench.report(cold, [bench.start() for _ in range(starts)], bench.start(runs))
    else:
        report = asyncio.run(native(folder, input, executor, threads, runs))
    emit(json.dumps(report), target)


class PageBench:
    """The bench page in Chromium: cold starts, starts with everything cached, and warm repetitions."""

    def __init__(self, address: str, work: Path, input: Path, model: str, executor: str, threads: int | None):
        settings = {"model": f"/models/{model}/", "executor": executor, "driven": True}
        if threads is not None:
            settings["threads"] = threads
        self.url = f"{address}/web/bench/#{urllib.parse.quote(json.dumps(settings))}"
        self.work = work
        self.profile = work / "profile"
        self.input = as_wav(input, work)
        if not (web.root() / "models" / model).is_dir():
            raise Failure(f"model {model}: the server offers only what is in the checkout's models/; put it there")

    def cold(self) -> dict[str, Any]:
        """A start with nothing cached."""
        shutil.rmtree(self.profile, ignore_errors=True)
        with self.opened() as page:
            return web.evaluate(page, "window.bench.first()")

    def prime(self) -> None:
        """Two visits that fill the profile's caches: files at the first, compiled code at the second."""
        for _ in range(2):
            with self.opened() as page:
                web.evaluate(page, "window.bench.first()")
                web.evaluate(page, "window.bench.again(1)")
                time.sleep(SETTLE_SECONDS)

    def start(self, runs: int = 0) -> dict[str, Any]:
        """A new browser process on the primed profile -> {"loaded", "run", "again": [...], "describe", "renderer_bytes"}."""
        with self.opened() as page:
            first = web.evaluate(page, "window.bench.first()")
            if runs:
                web.evaluate(page, "window.bench.again(1)")  # hot code is compiled again in the first calls
                first["again"] = web.evaluate(page, "runs => window.bench.again(runs)", runs)
                first["describe"] = web.evaluate(page, "window.bench.describe()")
                first["renderer_bytes"] = web.renderer_bytes(self.profile)
        return first

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        with web.chromium(self.profile) as context:
            page = web.open_page(context, self.url)
            page.set_input_files("#file", str(self.input))
            web.wait_for(page, "window.bench")
            yield page

    def report(self, cold: list[dict], cached: list[dict], warm: dict) -> dict[str, Any]:
        """The object that is printed. `first_text_ms`: navigation to the first finished segment, all cached;
        `first_partial_ms`: to the first word; `ready_cached_ms`: to the model being ready."""
        again, loaded, result = warm["again"], warm["loaded"], warm["again"][-1]["result"]
        part = {name: [run["result"]["timings"][name] for run in again] for name in PARTS}
        memory = memory_of(warm)
        return {
            "executor": loaded["executor"], "threads": loaded["threads"],
            "load_ms": [one["loaded"]["load_ms"] for one in cold],
            "load_cached_ms": [one["loaded"]["load_ms"] for one in cached],
            "first_text_ms": [one["run"]["first_segment_at"] for one in cached],
            **part, "tokens": result["timings"]["tokens"], "total_ms": [run["total_ms"] for run in again],
            "text": result["text"], "segments": result["segments"],
            "memory_bytes": memory.get("total"), "memory": memory,
            "memory_renderer_bytes": warm.get("renderer_bytes"),
            "ready_cached_ms": [one["loaded"]["ready_ms"] for one in cached],
            "first_partial_ms": [one["run"]["first_partial_at"] for one in cached],
            "first_result_ms": [one["run"]["done_at"] for one in cached],
            "load_parts_cached_ms": [one["loaded"].get("timings") for one in cached],
            "duration_s": result.get("duration"), "reason": loaded.get("reason"), "cpus": os.cpu_count(),
            "load_average": os.getloadavg()[0],
        }


def memory_of(warm: dict[str, Any]) -> dict[str, Any]:
    """Bytes as the engine counts them after the runs, else as it counted them when it had loaded."""
    return (warm.get("describe") or {}).get("memory") or warm["loaded"].get("memory") or {}


def as_wav(path: Path, work: Path) -> Path:
    """The recording as 32-bit float WAV, unless it is a WAV already: decoding is not what is measured."""
    with path.open("rb") as file:
        if file.read(4) in (b"RIFF", b"RIFX"):
            return path
    samples, rate = read_recording(path)
    data = samples.astype("<f4").tobytes()
    channels = samples.shape[1]
    form = struct.pack("<HHIIHH", 3, channels, rate, rate * channels * 4, channels * 4, 32)  # format 3: IEEE float
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    out = work / "input.wav"
    out.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return out


async def native(folder: Path, input: Path, executor_name: str, threads: int | None, runs: int) -> dict[str, Any]:
    """The same object from CPython: times of the task itself; the first transcription is counted apart."""
    from candlewick import executors
    from candlewick.audio import Resampler
    from candlewick.models.whisper import TranscribeOptions, Transcriber
    from candlewick.weights.load import Checkpoint

    samples, rate = read_recording(input)
    executor = executors.create(executor_name, threads=threads)
    try:
        began = time.perf_counter()
        transcriber = await Transcriber.load(Checkpoint.open(folder), executor)
        load_ms = milliseconds(began)
        audio = await Resampler(executor).resample(samples, rate)
        results, total_ms, first_text_ms = [], [], None
        for _ in range(runs + 1):
            start = time.perf_counter()
            async for event in transcriber.transcribe(audio, TranscribeOptions()):
                if first_text_ms is None and event["event"] in ("segment", "result"):
                    first_text_ms = milliseconds(began)
                if event["event"] == "result":
                    results.append(event["result"])
            total_ms.append(milliseconds(start))
        described = executor.describe()
    finally:
        await executor.close()
    last = results[-1]
    part = {name: [result["timings"][name] for result in results[1:]] for name in PARTS}
    return {"executor": described["executor"], "threads": described["threads"], "load_ms": [load_ms],
            "load_cached_ms": [load_ms], "first_text_ms": [first_text_ms], **part, "tokens": last["timings"]["tokens"],
            "total_ms": total_ms[1:], "text": last["text"], "segments": last["segments"],
            "memory_bytes": resident_bytes(), "memory": described.get("memory", {}),
            "duration_s": last.get("duration"), "reason": described.get("reason"), "cpus": os.cpu_count(),
            "load_average": os.getloadavg()[0]}


def milliseconds(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def resident_bytes() -> int | None:
    """Largest resident size of this process so far; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
