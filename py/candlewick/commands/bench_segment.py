"""`candlewick bench segment`: how long a picture and a click take, in the browser or in CPython.

One JSON object comes out. All times are milliseconds in lists over the runs (clicks: three a run).
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from candlewick.commands import browser as web
from candlewick.commands.bench_page import PageBench, loads, milliseconds, resident_bytes
from candlewick.commands.common import emit, find_model, writable
from candlewick.commands.segment import Prompt, read_picture, segmenter

CLICKS = 3


def bench_segment(input: Path, browser: bool, model: str, executor: str, threads: int | None, runs: int, starts: int,
                  points: Sequence[str], box: str | None, output: str) -> None:
    prompt = Prompt.parse(points, box)
    picture = read_picture(input)
    if prompt.empty:
        prompt = Prompt([[picture.shape[1] / 2, picture.shape[0] / 2]], [1], None)
    prompt.check(picture)
    target = None if output == "-" else writable(Path(output))
    folder = find_model(model)
    if browser:
        with tempfile.TemporaryDirectory(prefix="candlewick-bench-") as work, web.server() as address:
            bench = SegmentBench(address, Path(work), input, folder, executor, threads, prompt)
            report = bench.report(*bench.measure(starts, runs), picture)
    else:
        report = asyncio.run(native(folder, picture, executor, threads, runs, prompt))
    emit(json.dumps(report), target)


class SegmentBench(PageBench):
    """The page that measures a picture and clicks into it."""

    extra = {"masks": "window.bench.masks()"}

    def __init__(self, address: str, work: Path, input: Path, model: Path, executor: str, threads: int | None, prompt: Prompt):
        super().__init__(address, work, "segment.html", input, model, executor, threads, points=prompt.points,
                         labels=prompt.labels, box=prompt.box)
        self.prompt = prompt

    def report(self, cold: list[dict], cached: list[dict], warm: dict, picture: np.ndarray) -> dict[str, Any]:
        """The object that is printed. `first_mask_ms`: navigation to the first mask, all cached."""
        again, dims = warm["again"], warm["loaded"]["dims"]
        masks = np.array(warm["masks"], np.float32).reshape(-1, dims["mask_size"], dims["mask_size"])
        return {
            **loads(cold, cached, warm),
            "first_mask_ms": [one["run"]["first_mask_at"] for one in cached],
            "preprocess_ms": [run["preprocess_ms"] for run in again],
            "encode_ms": [run["encode_ms"] for run in again],
            "image_ms": [run["image_ms"] for run in again],
            "click_ms": [ms for run in again for ms in run["click_ms"]],
            **chosen(masks, np.array(again[-1]["iou"]), self.prompt, picture, dims["image_size"]),
            "cpus": os.cpu_count(), "load_average": os.getloadavg()[0],
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
            await asyncio.sleep(0)  # where Ctrl-C can end it
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
