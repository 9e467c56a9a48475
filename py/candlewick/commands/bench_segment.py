"""`candlewick bench segment`: how long a picture and a click take, in the browser or in CPython.

One JSON object comes out. All times are milliseconds in lists over the runs (clicks: three a run).
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from candlewick.commands import browser as web
from candlewick.commands.bench import PageBench, memory_of, milliseconds, resident_bytes
from candlewick.commands.common import Failure, emit, find_model, writable
from candlewick.commands.segment import Prompt, read_picture, segmenter

CLICKS = 3


def bench_segment(input: Path, browser: bool, model: str, executor: str, threads: int | None, runs: int, starts: int,
                  points: Sequence[str], box: str | None, output: str) -> None:
    prompt = Prompt.parse(points, box)
    picture = read_picture(input)
    if prompt.empty:
        prompt = Prompt([[picture.shape[1] / 2, picture.shape[0] / 2]], [1], None)
    target = None if output == "-" else writable(Path(output))
    folder = find_model(model)
    if browser:
        with tempfile.TemporaryDirectory(prefix="candlewick-bench-") as work, web.server() as address:
            bench = SegmentBench(address, Path(work), input, folder.name, executor, threads, prompt)
            cold = [bench.cold() for _ in range(starts)]
            bench.prime()
            report = bench.results(cold, [bench.start() for _ in range(starts)], bench.start(runs), picture)
    else:
        report = asyncio.run(native(folder, picture, executor, threads, runs, prompt))
    emit(json.dumps(report), target)


class SegmentBench(PageBench):
    """The segment bench page in Chromium."""

    def __init__(self, address: str, work: Path, input: Path, model: str, executor: str, threads: int | None, prompt: Prompt):
        if not (web.root() / "models" / model).is_dir():
            raise Failure(f"model {model}: the server offers only what is in the checkout's models/; put it there")
        settings = {"model": f"/models/{model}/", "executor": executor, "driven": True, "points": prompt.points,
                    "labels": prompt.labels, "box": prompt.box}
        if threads is not None:
            settings["threads"] = threads
        self.url = f"{address}/web/bench/segment.html#{urllib.parse.quote(json.dumps(settings))}"
        self.work, self.profile, self.input = work, work / "profile", input
        self.prompt = prompt

    def start(self, runs: int = 0) -> dict[str, Any]:
        """A new browser process on the primed profile; with runs, the masks of the last answer too."""
        with self.opened() as page:
            first = web.evaluate(page, "window.bench.first()")
            if runs:
                web.evaluate(page, "window.bench.again(1)")  # hot code is compiled again in the first calls
                first["again"] = web.evaluate(page, "runs => window.bench.again(runs)", runs)
                first["masks"] = web.evaluate(page, "window.bench.masks()")
                first["describe"] = web.evaluate(page, "window.bench.describe()")
                first["renderer_bytes"] = web.renderer_bytes(self.profile)
        return first

    def results(self, cold: list[dict], cached: list[dict], warm: dict, picture: np.ndarray) -> dict[str, Any]:
        """The object that is printed. `first_mask_ms`: navigation to the first mask, all cached."""
        again, loaded = warm["again"], warm["loaded"]
        memory = memory_of(warm)
        side = loaded["dims"]["mask_size"]
        masks = np.array(warm["masks"], np.float32).reshape(-1, side, side)
        return {
            "executor": loaded["executor"], "threads": loaded["threads"],
            "load_ms": [one["loaded"]["load_ms"] for one in cold],
            "load_cached_ms": [one["loaded"]["load_ms"] for one in cached],
            "first_mask_ms": [one["run"]["first_mask_at"] for one in cached],
            "preprocess_ms": [run["preprocess_ms"] for run in again],
            "encode_ms": [run["encode_ms"] for run in again],
            "image_ms": [run["image_ms"] for run in again],
            "click_ms": [ms for run in again for ms in run["click_ms"]],
            **chosen(masks, np.array(again[-1]["iou"]), self.prompt, picture, loaded["dims"]["image_size"]),
            "memory_bytes": memory.get("total"), "memory": memory, "memory_renderer_bytes": warm.get("renderer_bytes"),
            "ready_cached_ms": [one["loaded"]["ready_ms"] for one in cached],
            "load_parts_cached_ms": [one["loaded"].get("timings") for one in cached],
            "reason": loaded.get("reason"), "cpus": os.cpu_count(), "load_average": os.getloadavg()[0],
        }


def chosen(masks: np.ndarray, iou: np.ndarray, prompt: Prompt, picture: np.ndarray, image_size: int) -> dict[str, Any]:
    """Scores of all masks, and the run lengths of the one that is shown first, at the size of the picture."""
    from candlewick import image
    from candlewick.models.sam import best, outputs

    height, width = picture.shape[:2]
    which = best({"iou": iou}, len(prompt.points), prompt.box is not None)
    mask = image.upsample(masks[which], width, height, image_size) > 0
    return {"iou_predictions": [float(x) for x in iou], "mask": which, "rle": outputs.annotation(mask)["segmentation"]}


async def native(folder: Path, picture: np.ndarray, executor_name: str, threads: int | None, runs: int,
                 prompt: Prompt) -> dict[str, Any]:
    """The same object from CPython; the first picture is counted apart."""
    began = perf_counter()
    async with segmenter(folder, executor_name, threads) as task:
        load_ms = milliseconds(began)
        timings, clicks, first = [], [], None
        for _ in range(runs + 1):
            timings.append((await task.set_image(picture))["timings"])
            for _ in range(CLICKS):
                answer = await task.predict(prompt.points, prompt.labels, prompt.box)
                clicks.append(answer["timings"]["decode_ms"])
                first = first or milliseconds(began)
        described = task.describe()
    return {
        "executor": described["executor"], "threads": described["threads"], "load_ms": [load_ms], "load_cached_ms": [load_ms],
        "first_mask_ms": [first], "preprocess_ms": [t["preprocess_ms"] for t in timings[1:]],
        "encode_ms": [t["encode_ms"] for t in timings[1:]], "click_ms": clicks[CLICKS:],
        **chosen(answer["masks"], answer["iou"], prompt, picture, described["dims"]["image_size"]),
        "memory_bytes": resident_bytes(), "memory": described["memory"], "reason": described.get("reason"),
        "cpus": os.cpu_count(), "load_average": os.getloadavg()[0],
    }
