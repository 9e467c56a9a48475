"""`candlewick bench transcribe`: how long the parts of a transcription take, in the browser or in CPython.

One JSON object comes out. All times are milliseconds in lists over the runs; a list is never summed up here, so that
the reader sees the spread.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

from candlewick.commands import browser as web
from candlewick.commands.bench_page import PageBench, loads, milliseconds, resident_bytes
from candlewick.commands.common import emit, find_speech_model, readable, writable
from candlewick.commands.transcribe import read_recording

PARTS = ("mel_ms", "encode_ms", "decode_ms")


def bench_transcribe(input: Path, browser: bool, model: str, executor: str, threads: int | None, runs: int,
                     starts: int, output: str) -> None:
    readable(input, "an audio file")
    target = None if output == "-" else writable(Path(output))
    folder = find_speech_model(model)
    if browser:
        with tempfile.TemporaryDirectory(prefix="candlewick-bench-") as work, web.server() as address:
            bench = TranscribeBench(address, Path(work), input, folder, executor, threads)
            report = bench.report(*bench.measure(starts, runs))
    else:
        report = asyncio.run(native(folder, input, executor, threads, runs))
    emit(json.dumps(report), target)


class TranscribeBench(PageBench):
    """The page that measures a transcription."""

    def __init__(self, address: str, work: Path, input: Path, model: Path, executor: str, threads: int | None):
        super().__init__(address, work, "", as_wav(input, work), model, executor, threads)

    def report(self, cold: list[dict], cached: list[dict], warm: dict) -> dict[str, Any]:
        """The object that is printed. `first_text_ms`: navigation to the first finished segment, all cached;
        `first_partial_ms`: to the first word; `ready_cached_ms`: to the model being ready."""
        again, result = warm["again"], warm["again"][-1]["result"]
        part = {name: [run["result"]["timings"][name] for run in again] for name in PARTS}
        return {
            **loads(cold, cached, warm),
            "first_text_ms": [one["run"]["first_segment_at"] for one in cached],
            **part, "tokens": result["timings"]["tokens"], "total_ms": [run["total_ms"] for run in again],
            "text": result["text"], "segments": result["segments"],
            "first_partial_ms": [one["run"]["first_partial_at"] for one in cached],
            "first_result_ms": [one["run"]["done_at"] for one in cached],
            "duration_s": result.get("duration"), "cpus": os.cpu_count(), "load_average": os.getloadavg()[0],
        }


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
                await asyncio.sleep(0)  # where Ctrl-C can end it
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
