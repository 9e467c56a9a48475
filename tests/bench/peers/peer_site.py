"""What all comparisons share: the peers' page on a server of its own, one Chromium a start, medians and ratios."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from candlewick.commands import browser as web
from candlewick.commands.bench_page import SETTLE_SECONDS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
WORK = Path(os.environ.get("CANDLEWICK_PEERS", ROOT / "build" / "peers"))


def run_quietly(*command: Any, **options: Any) -> None:
    print("+", *command, file=sys.stderr)
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr, **options)


def npm_packages() -> None:
    """The pinned npm packages in WORK, unless they are there already."""
    WORK.mkdir(parents=True, exist_ok=True)
    lock, kept = HERE / "package-lock.json", WORK / "node_modules" / ".installed"
    if kept.is_file() and kept.read_bytes() == lock.read_bytes():
        return
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, WORK)
    run_quietly("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", WORK)
    shutil.copy(lock, kept)


def environment(name: str, requirements: str, **variables: str) -> Path:
    """The Python of an environment in WORK with the requirements of a file here, made when it is not there or has others."""
    folder, wanted = WORK / name, HERE / requirements
    kept = folder / requirements
    if not (kept.is_file() and kept.read_bytes() == wanted.read_bytes()):
        run_quietly(sys.executable, "-m", "venv", folder)
        run_quietly(folder / "bin" / "python", "-m", "pip", "install", "-q", "-r", wanted, env={**os.environ, **variables})
        shutil.copy(wanted, kept)
    return folder / "bin" / "python"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the peers' page, packages and files as a well-kept site would: isolated, and cacheable for a day."""

    protocol_version = "HTTP/1.1"
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".js": "text/javascript",
                      ".mjs": "text/javascript", ".wasm": "application/wasm"}

    def __init__(self, *args: Any, files: Mapping[str, Path], **kwargs: Any):
        self.files = files
        super().__init__(*args, **kwargs)

    def translate_path(self, path: str) -> str:
        path = urllib.parse.unquote(urllib.parse.urlsplit(path).path)
        if path in self.files:
            return str(self.files[path])
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


@contextlib.contextmanager
def served(files: Mapping[str, Path]) -> Iterator[str]:
    """The peers' site with further files by address -> its address without the last slash."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, files=files))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


class PeerBench:
    """One peer in Chromium, with a profile of its own. settings: see peer.js."""

    def __init__(self, address: str, profile: Path, module: str, peer: str, **settings: Any):
        self.address, self.settings = address, {"module": module, "peer": peer, **settings}
        self.profile = profile

    def start(self, runs: int, prime: bool = False) -> dict[str, Any]:
        """A new browser process -> {"first": ..., "again": [...]}; one repetition warms up and is not counted.

        prime: a visit that only fills the profile's caches; the page may do less work then.
        """
        chosen = json.dumps({**self.settings, "prime": prime})
        with web.chromium(self.profile) as context:
            page = web.open_page(context, f"{self.address}/page.html#{urllib.parse.quote(chosen)}")
            web.wait_for(page, "window.bench")
            first = web.evaluate(page, "window.bench.first()")
            again: list[Any] = []
            if runs or prime:
                web.evaluate(page, "window.bench.again(1)")
            if runs:
                again = web.evaluate(page, "runs => window.bench.again(runs)", runs)
            if prime:
                time.sleep(SETTLE_SECONDS)
        return {"first": first, "again": again}

    def prime(self) -> None:
        for _ in range(2):
            self.start(0, prime=True)


def numbers_of(start: Mapping[str, Any]) -> dict[str, list[float]]:
    """A peer's answer -> lists of all its numbers, by name."""
    numbers: dict[str, list[float]] = {}
    for run in (start["first"], *start["again"]):
        for name, value in run.items():
            values = value if isinstance(value, list) else [value]
            if values and all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
                numbers.setdefault(name, []).extend(values)
    return numbers


def merge(parts: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, dict[str, Any]]:
    """Rounds one after the other -> {metric: {"median", "min", "max", "runs"}}."""
    whole: dict[str, list[float]] = {}
    for part in parts:
        for name, values in part.items():
            whole.setdefault(name, []).extend(round(value, 2) for value in values)
    return {name: {"median": round(statistics.median(runs), 2), "min": min(runs), "max": max(runs), "runs": runs}
            for name, runs in whole.items() if runs}


def ratios(sides: Mapping[str, Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, float]:
    """Ours / theirs by medians, for each peer that has the metric: times below 1 and rates above 1 say that ours is faster."""
    ours = sides["candlewick"]
    return {f"{name} / {peer}": round(ours[name]["median"] / side[name]["median"], 3)
            for peer, side in sides.items() if peer != "candlewick"
            for name in metrics if name in side and name in ours and side[name]["median"]}


def report(sides: Mapping[str, list[Any]], metrics: Sequence[str], **facts: Any) -> dict[str, Any]:
    """The object that a comparison prints. sides: a list of numbers by name for each round."""
    merged = {name: merge(parts) for name, parts in sides.items() if parts}
    versions = json.loads((HERE / "package.json").read_text())["devDependencies"]
    return {"cpus": os.cpu_count(), **facts, "versions": versions, "ratios": ratios(merged, metrics), "sides": merged}
