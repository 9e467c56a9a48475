"""Text generation: our bench page, llama.cpp in WebAssembly (wllama, two versions) and native, all on one GGUF file."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from peer_site import HERE, WORK, PeerBench, environment, npm_packages, numbers_of, report, run_quietly, served

from candlewick.commands import browser as web
from candlewick.commands.bench_generate import GenerateBench, read_prompt
from candlewick.commands.common import Failure, find_model

METRICS = ("prefill_tok_s", "decode_tok_s", "ready_ms", "first_token_ms")
WLLAMA = {"wllama-3": "wllama3", "wllama-2": "wllama2"}
PROMPT = HERE / "prompt.txt"


def set_up(options: argparse.Namespace) -> None:
    """npm packages, llama.cpp for this processor, and the model in other block types."""
    npm_packages()
    if options.native:
        native_python()
    for dtype in dtypes(options):
        quantised(options.model, dtype)


def dtypes(options: argparse.Namespace) -> list[str]:
    """Block types to measure; "" is the file as it is."""
    return ["" if word == "as-is" else word for word in options.dtypes.split(",")]


def native_python() -> Path | None:
    """The Python that has llama.cpp, built for this processor (minutes); None where that fails, with the reason on stderr."""
    try:
        return environment("native", "requirements-native.txt", CMAKE_ARGS="-DGGML_NATIVE=ON")
    except subprocess.CalledProcessError as error:
        print(f"native llama.cpp is left out: {error}", file=sys.stderr)
        return None


def gguf_of(model: str) -> Path:
    """The one GGUF file of a model that is named by path or by name."""
    path = Path(model)
    if path.is_file():
        return path
    found = sorted(find_model(model).glob("*.gguf"))
    if len(found) != 1:
        raise Failure(f"model {model}: wanted a folder with one .gguf file, it has {len(found)}")
    return found[0]


def quantised(model: str, dtype: str) -> Path:
    """The model's file in another block type, made by `candlewick convert`; without a dtype the file itself."""
    source = gguf_of(model)
    if not dtype:
        return source
    name = source.parent.name if source.stem == "model" else source.stem
    out = WORK / "models" / f"{name}-{dtype}.gguf"
    if not out.is_file() or out.stat().st_mtime < source.stat().st_mtime:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name("part-" + out.name)
        run_quietly(sys.executable, "-m", "candlewick.cli", "convert", source, partial, "--dtype", dtype)
        partial.rename(out)
    return out


def ours(start: dict[str, Any]) -> dict[str, list[float]]:
    runs = start["again"]
    return {**{name: [run[name] for run in runs] for name in ("prefill_tok_s", "decode_tok_s", "prefill_tokens", "tokens")},
            "ready_ms": [start["loaded"]["ready_ms"]], "first_token_ms": [start["run"]["first_token_at"]],
            "memory_bytes": [start["describe"]["memory"]["total"]], "renderer_bytes": [start["renderer_bytes"] or 0],
            **({"step_ms": [start["steps"]["step_ms"]], "outside": [start["steps"]["outside"]]} if start["steps"] else {})}


def native(python: Path, model: Path, options: argparse.Namespace, prompt: Path) -> dict[str, Any]:
    """One process of native_llama.py -> its numbers and text."""
    command = [python, HERE / "native_llama.py", model, prompt, options.threads, options.max_tokens, options.runs]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def agreement(ids: dict[str, list[int]]) -> dict[str, int]:
    """How many tokens each peer's text begins with that are ours too."""
    mine = ids["candlewick"]
    return {name: next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
            for name, theirs in ids.items() if name != "candlewick"}


def one_file(model: Path, served_as: str, python: Path | None, options: argparse.Namespace, address: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="candlewick-peers-") as name, \
            served({"/model.gguf": model, "/prompt": options.prompt_file}) as there:
        work = Path(name)
        (work / "ours").mkdir()
        candlewick = GenerateBench(address, work / "ours", options.prompt_file, served_as, options.executor, options.threads,
                                   options.capacity, options.max_tokens)
        chosen = {"threads": options.threads, "max_tokens": options.max_tokens, "capacity": options.capacity,
                  "cache": options.peer_cache}
        peers = {name: PeerBench(there, work / name, "generate", peer, **chosen) for name, peer in WLLAMA.items()
                 if name in options.peers.split(",")}
        for side in (candlewick, *peers.values()):
            side.prime()
        sides: dict[str, list[Any]] = {name: [] for name in ("candlewick", *peers, "llama.cpp")}
        texts: dict[str, str] = {}
        ids: dict[str, list[int]] = {}
        load = os.getloadavg()[0]
        for _ in range(options.rounds):  # in turn, so that all sides share what the machine does meanwhile
            start = candlewick.start(options.runs)
            sides["candlewick"].append(ours(start))
            texts["candlewick"], ids["candlewick"] = start["again"][-1]["text"], start["again"][-1]["token_ids"]
            for name, peer in peers.items():
                start = peer.start(options.runs)
                sides[name].append(numbers_of({**start, "again": [without_ids(run) for run in start["again"]]}))
                texts[name] = start["again"][-1]["text"]
                if start["again"][-1].get("token_ids"):
                    ids[name] = start["again"][-1]["token_ids"]
            if python:
                answer = native(python, model, options, options.prompt_file)
                sides["llama.cpp"].append({name: answer[name] for name in ("prefill_tok_s", "decode_tok_s", "load_ms")})
                texts["llama.cpp"], ids["llama.cpp"] = answer["text"], answer["token_ids"]
    prompt_tokens = statistics.median(sides["candlewick"][0]["prefill_tokens"])
    return report(sides, METRICS, model=model.name, bytes=model.stat().st_size, threads=options.threads,
                  executor=options.executor, rounds=options.rounds, runs=options.runs, load_average_before=load,
                  prompt_tokens=prompt_tokens, same_tokens=agreement(ids), texts=texts)


def without_ids(run: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name != "token_ids"}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """-> {block type: report}"""
    read_prompt(options.prompt_file)
    python = native_python() if options.native else None
    with web.server() as address:
        return {dtype or "as-is": one_file(model, options.model if not dtype else str(model), python, options, address)
                for dtype in dtypes(options) for model in [quantised(options.model, dtype)]}
