"""A long recording through the Whisper page: memory on the way, time, text; stopped, reloaded, and gone on with.

    PYTHONPATH=py python tests/bench/long.py --input RECORDING [--minutes 30] [--format wav|flac|mp3] [--rate 48000] [--sparse]

The recording and the site's own sample take turns, with pauses of 1 to 4 s, until the length is reached; --sparse leaves all
but every twentieth out, as silence, for hours in little time. A third of the way the run is stopped and gone on with; two
thirds on, the page is reloaded and given the file again. Prints one JSON object. `renderer` is the memory of the page's
process (Chromium's renderer with its workers) in bytes; the file is on disk and is read by ranges.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from candlewick.audio import to_mono
from candlewick.audio_file import read_audio_file
from candlewick.commands import browser as web
from candlewick.commands.common import Failure

SAMPLE = Path(__file__).resolve().parents[2] / "web" / "samples" / "candle.wav"
EVERY = 5.0  # seconds between two samples
SPARSE = 20


def clip(path: Path, rate: int) -> np.ndarray:
    """A recording, nearly enough at another rate (straight lines between samples)."""
    samples, own = read_audio_file(path)
    mono = to_mono(samples)
    return np.interp(np.arange(int(len(mono) * rate / own)) * own / rate, np.arange(len(mono)), mono).astype(np.float32)


def make(path: Path, recording: Path, minutes: float, rate: int, sparse: bool) -> int:
    """Write the long file, piece by piece, in the format that its name says -> how often the recording is in it."""
    import soundfile

    clips = [clip(recording, rate), clip(SAMPLE, rate)]
    draw = np.random.default_rng(1)
    left, n, times = int(minutes * 60 * rate), 0, 0
    with soundfile.SoundFile(path, "w", rate, 1) as file:
        while left > 0:
            piece = clips[n % 2]
            said = not sparse or n % SPARSE < 2
            piece = np.concatenate([piece if said else 0 * piece, np.zeros(int(draw.uniform(1, 4) * rate), np.float32)])
            file.write(piece[:left])
            times += said and n % 2 == 0 and len(piece) <= left
            left -= len(piece)
            n += 1
    return times


def place(page: Any) -> float:
    """Seconds transcribed, as the page tells them."""
    said = page.locator("#doing").inner_text()
    if not (found := re.match(r"(?:(\d+):)?(\d+):(\d\d) of", said)):
        return 0.0
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def watch(page: Any, profile: Path, curve: list[dict[str, Any]], began: float, until: float) -> None:
    """Sample until the job has ended, or a part of the sound is done."""
    while page.locator("#job[aria-busy=true]").count():
        curve.append({"s": round(time.perf_counter() - began, 1), "at": place(page), "left": page.locator("#left").inner_text(),
                      "renderer": web.renderer_bytes(profile)})
        if curve[-1]["at"] >= until:
            return
        page.wait_for_timeout(EVERY * 1000)


def through(page: Any, profile: Path, file: Path, seconds: float) -> dict[str, Any]:
    """The whole way with its two interruptions."""
    page.locator("#chip[data-state=ready]").wait_for(timeout=300_000)
    curve: list[dict[str, Any]] = []
    empty = web.renderer_bytes(profile)
    began = time.perf_counter()
    page.locator("#file").set_input_files(file)
    page.locator("#job[aria-busy=true]").wait_for()
    watch(page, profile, curve, began, seconds / 3)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.locator("#job[aria-busy=false]").wait_for(timeout=60_000)
    kept = page.locator("#lines li:not(.cut)").count()
    go_on = page.locator("#go-on").inner_text()
    page.locator("#go-on").click()
    page.locator("#job[aria-busy=true]").wait_for()
    watch(page, profile, curve, began, seconds * 2 / 3)
    page.wait_for_timeout(5000)
    page.reload()
    offer = page.locator("#kept h3").inner_text()
    page.locator("#file").set_input_files(file)
    page.locator("#job-facts").filter(has_text="went on from").wait_for(timeout=300_000)
    watch(page, profile, curve, began, float("inf"))
    took = time.perf_counter() - began
    with page.expect_download() as got:
        page.locator("#take-away [data-format=json]").click()
    result = json.loads(Path(got.value.path()).read_text())
    return {"seconds": seconds, "took_s": took, "facts": page.locator("#job-facts").inner_text(), "kept_at_stop": kept,
            "go_on": go_on, "offer": offer, "renderer_before": empty, "renderer_most": max(x["renderer"] for x in curve),
            "renderer_end": curve[-1]["renderer"], "curve": curve, "result": result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--format", choices=("wav", "flac", "mp3"), default="wav")
    parser.add_argument("--rate", type=int, default=48000)
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--phrase", default="ask not", help="words that RECORDING says once: they are counted")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="candlewick-long-") as work, web.server() as address:
            file, profile = Path(work) / f"long.{options.format}", Path(work) / "profile"
            times = make(file, options.input, options.minutes, options.rate, options.sparse)
            with web.chromium(profile) as context:
                page = context.new_page()
                page.goto(f"{address}/web/whisper/")
                report = through(page, profile, file, options.minutes * 60)
            result = report.pop("result")
            segments = result["segments"]
            ordered = all(a["end"] <= b["start"] for a, b in pairwise(segments))
            words = re.sub(r"[^a-z ]", "", result["text"].lower())
            report |= {"file_bytes": file.stat().st_size, "segments": len(segments), "in_order": ordered,
                       "words": len(words.split()), "phrase": {"said": times, "found": words.count(options.phrase)},
                       "last_end": segments[-1]["end"]}
        print(json.dumps(report, indent=1))
    except Failure as failure:
        sys.exit(f"error: {failure}")


if __name__ == "__main__":
    main()
