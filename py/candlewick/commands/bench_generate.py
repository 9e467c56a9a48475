"""`candlewick bench generate`: how fast a prompt is read and text is written, in the browser or in CPython.

One JSON object comes out: lists over the runs, all greedy, each from an empty KV cache. A token's time is taken where a person
would see it: in the page, when its event arrives.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from candlewick.commands import browser as web
from candlewick.commands.bench_page import PageBench, loads, milliseconds, resident_bytes
from candlewick.commands.common import emit, find_model, find_text_model, readable, writable
from candlewick.options import OptionError

LISTED = ("prefill_tokens", "prefill_ms", "prefill_tok_s", "tokens", "decode_ms", "decode_tok_s", "total_ms", "text",
          "token_ids", "stop_reason")


def bench_generate(prompt_file: Path, browser: bool, model: str, executor: str, threads: int | None, capacity: int | None,
                   max_tokens: int, runs: int, starts: int, profile: bool, output: str) -> None:
    prompt = read_prompt(prompt_file)
    target = None if output == "-" else writable(Path(output))
    checkpoint = find_text_model(model)
    if browser:
        with tempfile.TemporaryDirectory(prefix="candlewick-bench-") as work, web.server() as address:
            bench = GenerateBench(address, Path(work), prompt_file, model, executor, threads, capacity, max_tokens, profile)
            report = bench.report(*bench.measure(starts, runs))
    else:
        report = asyncio.run(native(checkpoint, prompt, executor, threads, capacity, max_tokens, runs))
    emit(json.dumps(report), target)


def read_prompt(path: Path) -> str:
    """Raises OptionError for what is no text, or none at all."""
    try:
        text = readable(path, "a text file").read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise OptionError("{input} {path}: not UTF-8 text ({why} at byte {at}); give a plain text file", path=path,
                          why=error.reason, at=error.start) from None
    if not text:
        raise OptionError("{input} {path}: the file is empty; write the text to go on from into it", path=path)
    return text


class GenerateBench(PageBench):
    """The page that measures text generation. A model that is a file, or lies outside models/, is picked in the page."""

    extra = {"steps": "window.bench.steps()"}

    def __init__(self, address: str, work: Path, prompt: Path, model: str, executor: str, threads: int | None,
                 capacity: int | None, max_tokens: int, profile: bool = False):
        path = Path(model)
        folder = path if path.is_file() else find_model(model)
        served = folder.is_dir() and folder.resolve().parent == (web.root() / "models").resolve()
        if served:
            own = None
        elif folder.is_dir():
            own = sorted(file for file in folder.iterdir() if file.is_file())
        else:
            beside = path.with_name("tokenizer.bin")
            own = [path, *([beside] if path.suffix == ".bin" and beside.is_file() else [])]
        if profile:
            self.extra = {**self.extra, "rows": "window.bench.profile({ entry: 'decode', rounds: 20, position: 200 })"}
        super().__init__(address, work, "generate.html", prompt, folder, executor, threads, own, capacity=capacity,
                         max_tokens=max_tokens)

    def report(self, cold: list[dict], cached: list[dict], warm: dict) -> dict[str, Any]:
        """The object that is printed. `first_token_ms`: navigation to the first token after the whole prompt, all cached.

        `step`: milliseconds of a decode step in the engine, `loop_ms` of it in the kernels' loop; `outside` is the share of
        Python and JavaScript.
        """
        again = warm["again"]
        report = {
            **loads(cold, cached, warm),
            "first_token_ms": [one["run"]["first_token_at"] for one in cached],
            **{name: [run[name] for run in again] for name in LISTED},
            "engine_timings": [run["timings"] for run in again],
            "step": warm["steps"], "cpus": os.cpu_count(), "load_average": os.getloadavg()[0],
        }
        return report | ({"profile": by_op(warm["rows"])} if "rows" in warm else {})


def by_op(profile: dict[str, Any]) -> dict[str, Any]:
    """Rows of a profile, op by op: {"count", "ms"} of each; a row holds what it costs to start an instruction alone."""
    ops: dict[str, dict[str, float]] = {}
    for _, op, ms in profile["rows"]:
        row = ops.setdefault(op, {"count": 0, "ms": 0.0})
        row["count"] += 1
        row["ms"] += ms
    return {"run_ms": profile["run_ms"], "ops": dict(sorted(ops.items(), key=lambda item: -item[1]["ms"]))}


async def native(checkpoint: Any, prompt: str, executor_name: str, threads: int | None, capacity: int | None, max_tokens: int,
                 runs: int) -> dict[str, Any]:
    """The same object from CPython; the first generation is counted apart."""
    from candlewick import executors
    from candlewick.models.llama import GenerateOptions, Generator

    executor = executors.create(executor_name, threads=threads)
    try:
        began = perf_counter()
        generator = await Generator.load(checkpoint, executor, None, capacity=capacity)
        load_ms = milliseconds(began)

        async def once(text: str, count: int) -> dict[str, Any]:
            start, at, result = perf_counter(), [], {}
            options = GenerateOptions(max_tokens=count, greedy=True, repeat_penalty=1.0, ignore_end=True)
            async for event in generator.generate(text, options):
                if event["event"] == "token" and event["id"] is not None:
                    at.append(milliseconds(start))
                elif event["event"] == "result":
                    result = event["result"]
                await asyncio.sleep(0)  # where Ctrl-C can end it
            return {"at": at, "total_ms": milliseconds(start), **result}

        first, all_runs = None, []
        for run in range(runs + 1):
            if run:
                await once("1" if prompt.startswith("0") else "0", 1)  # leaves nothing of the prompt in the KV cache
            before = milliseconds(began)
            all_runs.append(await once(prompt, max_tokens))
            first = first or before + all_runs[0]["at"][0]
        described = generator.describe()
    finally:
        await executor.close()
    rows = []
    for run in all_runs[1:]:
        at, prefilled = run["at"], run["prompt_tokens"] - run["reused_tokens"]
        decode_ms = at[-1] - at[0]
        rows.append({**run, "prefill_tokens": prefilled, "prefill_ms": at[0], "prefill_tok_s": prefilled * 1000 / at[0],
                     "tokens": len(run["token_ids"]), "decode_ms": decode_ms,
                     "decode_tok_s": (len(at) - 1) * 1000 / decode_ms if len(at) > 1 else None})
    return {
        "executor": described["executor"], "threads": described["threads"], "load_ms": [load_ms], "load_cached_ms": [load_ms],
        "first_token_ms": [first], **{name: [row[name] for row in rows] for name in LISTED},
        "memory_bytes": resident_bytes(), "memory": described["memory"], "reason": described.get("reason"),
        "cpus": os.cpu_count(), "load_average": os.getloadavg()[0],
    }
