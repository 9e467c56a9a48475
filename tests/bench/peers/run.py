"""Candlewick beside transformers.js and ONNX Runtime Web: same Chromium, recording and threads, in turn in one run.

    PYTHONPATH=py python tests/bench/peers/run.py [--input CLIP] [--threads 2] [--rounds 3] [--runs 3] [--setup]

Prints one JSON object: per side the runs of each metric with their median, and `ratios`, ours / theirs (below 1 is
faster). README.md says what is compared with what. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import http.server
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

from candlewick.commands import browser as web
from candlewick.commands.bench_page import SETTLE_SECONDS
from candlewick.commands.bench_transcribe import TranscribeBench
from candlewick.commands.common import Failure, find_model

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
WORK = Path(os.environ.get("CANDLEWICK_PEERS", ROOT / "build" / "peers"))

COMPARED = ("mel_ms", "encode_ms", "decode_ms_per_token", "total_ms", "ready_ms", "first_partial_ms", "first_text_ms")


def run_quietly(*command: Any) -> None:
    print("+", *command, file=sys.stderr)
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)


def set_up(checkpoint: Path) -> None:
    """Fetches and exports what is not there yet: npm packages, the export environment, the ONNX files."""
    WORK.mkdir(parents=True, exist_ok=True)
    if not (WORK / "node_modules" / "onnxruntime-web").is_dir():
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, WORK)
        run_quietly("npm", "ci", "--ignore-scripts", "--prefix", WORK)
    out = WORK / "onnx" / checkpoint.name
    if (out / "onnx" / "decoder_model_merged.onnx").is_file():
        return
    python = WORK / "venv" / "bin" / "python"
    if not (WORK / "venv" / "done").is_file():
        run_quietly(sys.executable, "-m", "venv", WORK / "venv")
        run_quietly(python, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt")
        (WORK / "venv" / "done").touch()
    partial = WORK / "onnx" / f"{checkpoint.name}.part"
    shutil.rmtree(partial, ignore_errors=True)
    run_quietly(python, HERE / "export.py", checkpoint, partial)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the peers' page, packages and models as a well-kept site would: isolated, and cacheable for a day."""

    protocol_version = "HTTP/1.1"
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".js": "text/javascript",
                      ".mjs": "text/javascript", ".wasm": "application/wasm"}

    def __init__(self, *args: Any, recording: Path, **kwargs: Any):
        self.recording = recording
        super().__init__(*args, **kwargs)

    def translate_path(self, path: str) -> str:
        path = urllib.parse.unquote(urllib.parse.urlsplit(path).path)
        if path == "/recording.f32":
            return str(self.recording)
        for prefix, folder in (("/npm/", WORK / "node_modules"), ("/onnx/", WORK / "onnx"), ("/", HERE)):
            if path.startswith(prefix):
                return str(folder / path[len(prefix):])
        return str(HERE)

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "max-age=86400")
        super().end_headers()

    def log_message(self, *args: Any) -> None:
        pass


class PeerBench:
    """One peer in Chromium, with a profile of its own."""

    def __init__(self, address: str, profile: Path, peer: str, threads: int, model: str,
                 cache: bool = True):
        settings = json.dumps({"peer": peer, "threads": threads, "model": model, "cache": cache})
        self.url = f"{address}/page.html#{urllib.parse.quote(settings)}"
        self.profile = profile

    def start(self, runs: int, settle: bool = False) -> dict[str, Any]:
        """A new browser process -> {"first": ..., "again": [...]}; one repetition warms up and is not counted."""
        with web.chromium(self.profile) as context:
            page = web.open_page(context, self.url)
            web.wait_for(page, "window.bench")
            first = web.evaluate(page, "window.bench.first()")
            web.evaluate(page, "window.bench.again(1)")
            again = web.evaluate(page, "runs => window.bench.again(runs)", runs) if runs else []
            if settle:
                time.sleep(SETTLE_SECONDS)
        return {"first": first, "again": again}

    def prime(self) -> None:
        for _ in range(2):
            self.start(0, settle=True)


def ours(start: dict[str, Any]) -> dict[str, list[float]]:
    """Our page's answer in the peers' words. The mel part of a run is the sum over its passes."""
    runs = start["again"]
    part = {name: [run["result"]["timings"][name] for run in runs]
            for name in ("mel_ms", "encode_ms", "decode_ms", "tokens")}
    return {**part, "decode_ms_per_token": [a / b for a, b in zip(part["decode_ms"], part["tokens"])],
            "total_ms": [run["total_ms"] for run in runs], "ready_ms": [start["loaded"]["ready_ms"]],
            "first_partial_ms": [start["run"]["first_partial_at"]], "first_text_ms": [start["run"]["done_at"]]}


def theirs(start: dict[str, Any]) -> dict[str, list[float]]:
    numbers: dict[str, list[float]] = {}
    for row in ([start["first"]], start["again"]):
        for run in row:
            for name, value in run.items():
                if isinstance(value, int | float):
                    numbers.setdefault(name, []).append(value)
    return numbers


def merge(parts: list[dict[str, list[float]]]) -> dict[str, dict[str, Any]]:
    """Rounds one after the other -> {metric: {"median", "min", "max", "runs"}}."""
    whole: dict[str, list[float]] = {}
    for part in parts:
        for name, values in part.items():
            whole.setdefault(name, []).extend(round(value, 2) for value in values)
    return {name: {"median": round(statistics.median(runs), 2), "min": min(runs), "max": max(runs), "runs": runs}
            for name, runs in whole.items()}


def ratios(sides: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Ours / theirs by medians."""
    def ratio(name: str, peer: str) -> float:
        return round(sides["candlewick"][name]["median"] / sides[peer][name]["median"], 3)

    found = {f"{name} / transformers.js": ratio(name, "transformers.js") for name in COMPARED}
    found["encode_ms / onnxruntime-web"] = ratio("encode_ms", "onnxruntime-web")
    return found


async def sixteen_kilohertz(path: Path, out: Path) -> None:
    """The recording as the peers take it: float32 mono at 16 kHz, by our own reader and resampler."""
    from candlewick import executors
    from candlewick.audio import Resampler
    from candlewick.audio_file import read_audio_file

    executor = executors.create("numpy")
    samples, rate = read_audio_file(path)
    (await Resampler(executor).resample(samples, rate)).astype("<f4").tofile(out)
    await executor.close()


def measure(options: argparse.Namespace, checkpoint: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="candlewick-peers-") as name, web.server() as address:
        work = Path(name)
        (work / "ours").mkdir()
        asyncio.run(sixteen_kilohertz(options.input, work / "recording.f32"))
        handler = functools.partial(Handler, recording=work / "recording.f32")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = f"http://127.0.0.1:{server.server_port}"
        candlewick = TranscribeBench(address, work / "ours", options.input, checkpoint, options.executor,
                               options.threads)
        pipeline = PeerBench(there, work / "transformers", "transformers", options.threads, checkpoint.name,
                             options.peer_cache)
        encoder = PeerBench(there, work / "encoder", "encoder", options.threads, checkpoint.name)
        for side in (candlewick, pipeline, encoder):
            side.prime()
        rows: dict[str, list[Any]] = {"candlewick": [], "transformers.js": [], "onnxruntime-web": []}
        texts = {}
        load = os.getloadavg()[0]
        for _ in range(options.rounds):  # in turn, so that all sides share what the machine does meanwhile
            start = candlewick.start(options.runs)
            texts["candlewick"] = start["again"][-1]["result"]["text"]
            rows["candlewick"].append(ours(start))
            start = pipeline.start(options.runs)
            texts["transformers.js"] = start["again"][-1]["text"]
            rows["transformers.js"].append(theirs(start))
            rows["onnxruntime-web"].append(theirs(encoder.start(options.runs)))
        server.shutdown()
    sides = {name: merge(parts) for name, parts in rows.items()}
    return {"threads": options.threads, "executor": options.executor, "rounds": options.rounds, "runs": options.runs,
            "cpus": os.cpu_count(), "load_average_before": load, "input": options.input.name, "peer_cache": options.peer_cache,
            "versions": json.loads((HERE / "package.json").read_text())["devDependencies"],
            "ratios": ratios(sides), "texts": texts, "sides": sides}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="whisper-tiny.en")
    parser.add_argument("--input", type=Path, help="recording; default: the site's sample")
    parser.add_argument("--executor", default="wasm")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="browser starts a side")
    parser.add_argument("--runs", type=int, default=3, help="repetitions a start, after two that warm up")
    parser.add_argument("--no-peer-cache", dest="peer_cache", action="store_false",
                        help="transformers.js without its Cache API copy: the HTTP cache alone")
    parser.add_argument("--setup", action="store_true", help="fetch and export only")
    options = parser.parse_args()
    try:
        checkpoint = find_model(options.model)
        set_up(checkpoint)
        if options.setup:
            return
        if options.input is None:
            options.input = next(iter(sorted((ROOT / "web" / "samples").glob("*.wav"))), None)
        if options.input is None or not options.input.is_file():
            raise Failure(f"recording {options.input}: no such file; name one with --input")
        print(json.dumps(measure(options, checkpoint), indent=1))
    except Failure as failure:
        sys.exit(f"error: {failure}")


if __name__ == "__main__":
    main()
