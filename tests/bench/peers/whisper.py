"""Whisper: our bench page, the pipeline of transformers.js, and the encoder alone in ONNX Runtime Web."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from peer_site import HERE, ROOT, WORK, PeerBench, environment, npm_packages, numbers_of, report, run_quietly, served

from candlewick.commands import browser as web
from candlewick.commands.bench_transcribe import TranscribeBench
from candlewick.commands.common import Failure, find_model

METRICS = ("mel_ms", "encode_ms", "decode_ms_per_token", "total_ms", "ready_ms", "first_partial_ms", "first_text_ms")


def set_up(options: argparse.Namespace) -> None:
    """Fetches and exports what is not there yet: npm packages, the export environment, the ONNX files."""
    checkpoint = find_model(options.model)
    npm_packages()
    out = WORK / "onnx" / checkpoint.name
    if (out / "onnx" / "decoder_model_merged.onnx").is_file():
        return
    python = environment("venv", "requirements.txt")
    partial = WORK / "onnx" / f"{checkpoint.name}.part"
    shutil.rmtree(partial, ignore_errors=True)
    run_quietly(python, HERE / "export.py", checkpoint, partial)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)


def ours(start: dict[str, Any]) -> dict[str, list[float]]:
    """Our page's answer in the peers' words. The mel part of a run is the sum over its passes."""
    runs = start["again"]
    part = {name: [run["result"]["timings"][name] for run in runs]
            for name in ("mel_ms", "encode_ms", "decode_ms", "tokens")}
    return {**part, "decode_ms_per_token": [a / b for a, b in zip(part["decode_ms"], part["tokens"])],
            "total_ms": [run["total_ms"] for run in runs], "ready_ms": [start["loaded"]["ready_ms"]],
            "first_partial_ms": [start["run"]["first_partial_at"]], "first_text_ms": [start["run"]["done_at"]]}


async def sixteen_kilohertz(path: Path, out: Path) -> None:
    """The recording as the peers take it: float32 mono at 16 kHz, by our own reader and resampler."""
    from candlewick import executors
    from candlewick.audio import Resampler
    from candlewick.audio_file import read_audio_file

    executor = executors.create("numpy")
    samples, rate = read_audio_file(path)
    (await Resampler(executor).resample(samples, rate)).astype("<f4").tofile(out)
    await executor.close()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    recording = options.input or next(iter(sorted((ROOT / "web" / "samples").glob("*.wav"))), None)
    if recording is None or not recording.is_file():
        raise Failure(f"recording {recording}: no such file; name one with --input")
    checkpoint = find_model(options.model)
    with tempfile.TemporaryDirectory(prefix="candlewick-peers-") as name, web.server() as address:
        work = Path(name)
        (work / "ours").mkdir()
        asyncio.run(sixteen_kilohertz(recording, work / "recording.f32"))
        with served({"/recording.f32": work / "recording.f32"}) as there:
            candlewick = TranscribeBench(address, work / "ours", recording, checkpoint, options.executor, options.threads)
            chosen = {"threads": options.threads, "model": checkpoint.name, "cache": options.peer_cache}
            peers = {"transformers.js": PeerBench(there, work / "transformers", "whisper", "transformers", **chosen),
                     "onnxruntime-web": PeerBench(there, work / "encoder", "whisper", "encoder", **chosen)}
            for side in (candlewick, *peers.values()):
                side.prime()
            sides: dict[str, list[Any]] = {name: [] for name in ("candlewick", *peers)}
            texts, load = {}, os.getloadavg()[0]
            for _ in range(options.rounds):  # in turn, so that all sides share what the machine does meanwhile
                start = candlewick.start(options.runs)
                texts["candlewick"] = start["again"][-1]["result"]["text"]
                sides["candlewick"].append(ours(start))
                for name, peer in peers.items():
                    start = peer.start(options.runs)
                    sides[name].append(numbers_of(start))
                    if "text" in start["again"][-1]:
                        texts[name] = start["again"][-1]["text"]
    return report(sides, METRICS, threads=options.threads, executor=options.executor, rounds=options.rounds, runs=options.runs,
                  load_average_before=load, input=recording.name, peer_cache=options.peer_cache, texts=texts)
