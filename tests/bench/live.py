"""Live listening in the page: how late words are, what it costs, and how the text compares with that of the whole recording.

    PYTHONPATH=py python tests/bench/live.py [--input CLIP.wav] [--threads 2] [--batch FILE] [--shots FOLDER]

Chromium's fake microphone plays CLIP once into the page (two minutes of the clips in tests/golden/whisper with pauses, if
none is given). What is shown is looked at every 50 ms. The times at which words are said are those of the batch transcript
of the same recording (word_timestamps, in CPython); FILE keeps it for the next time. Prints one JSON object:

`shown` and `stable`: seconds from the end of a word to when it was shown at all, and as text that will not change; `wer`: word
errors of the final text against the batch text; `real_time_factor`: engine time by sound; `core_share`: processor time of all
browser processes by the clock, 1 is one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from candlewick import executors  # noqa: E402
from candlewick.commands import browser as web  # noqa: E402
from candlewick.models.whisper import TranscribeOptions, Transcriber  # noqa: E402
from candlewick.weights.load import Checkpoint  # noqa: E402
from tests.golden.whisper import clips  # noqa: E402

LOOK = """
window.seen = [];
window.stopLooking = (() => {
  const timer = setInterval(() => {
    const lines = [...document.querySelectorAll('#live-lines li')];
    if (!lines.length) return;
    const of = (line) => line.children[1].textContent, sure = (line) => line.querySelector('.sure')?.textContent ?? of(line);
    const entry = [performance.now(), lines.map(of).join(' '), lines.map(sure).join(' ')], last = seen.at(-1);
    if (!last || last[1] !== entry[1] || last[2] !== entry[2]) seen.push(entry);
  }, 50);
  return () => clearInterval(timer);
})();
"""


def words(text: str) -> list[str]:
    return "".join(c for c in text.lower().replace("-", " ") if c.isalnum() or c in " '").split()


def matches(want: list[str], found: list[str]) -> tuple[list[bool], int]:
    """-> which words of `want` are found in order, and the word errors between the two."""
    cost = [list(range(len(found) + 1))]
    for i, a in enumerate(want, 1):
        above, row = cost[-1], [i]
        for j, b in enumerate(found, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
        cost.append(row)
    there = [False] * len(want)
    i, j = len(want), len(found)
    while i and j:
        if cost[i][j] == cost[i - 1][j - 1] + (want[i - 1] != found[j - 1]):
            there[i - 1] = want[i - 1] == found[j - 1]
            i, j = i - 1, j - 1
        elif cost[i][j] == cost[i - 1][j] + 1:
            i -= 1
        else:
            j -= 1
    return there, cost[-1][-1]


def two_minutes() -> np.ndarray:
    """The golden clips and the site's sample, with pauses of 3 to 6 s."""
    def quiet(seconds: float) -> np.ndarray:
        return np.zeros(round(16000 * seconds), np.float32)

    with wave.open(str(ROOT / "web/samples/candle.wav")) as file:
        candle = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    market = clips.spoken(clips.MARKET_TEXT, 140)
    return np.concatenate([quiet(2), clips.jfk(), quiet(3), clips.lighthouse(), quiet(4), candle, quiet(6), market, quiet(5),
                           clips.jfk(), quiet(4)])


def read(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, 16000):
            sys.exit(f"error: {path}: wanted 16-bit mono at 16 kHz, as the microphone's file")
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


async def batch(audio: np.ndarray) -> dict[str, Any]:
    executor = executors.create("auto", threads=2)
    transcriber = await Transcriber.load(Checkpoint.open(ROOT / "models/whisper-tiny.en"), executor)
    *_, last = [event async for event in transcriber.transcribe(audio, TranscribeOptions(word_timestamps=True))]
    await executor.close()
    return last["result"]


def processor_seconds(marker: str) -> float:
    """User and system time of all processes whose command line, or that of an ancestor, has the marker in it."""
    parents, own, hits = {}, {}, set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        parents[int(folder.name)], own[int(folder.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
        if marker in command:
            hits.add(int(folder.name))

    def belongs(process: int) -> bool:
        while process in parents:
            if process in hits:
                return True
            process = parents[process]
        return False

    return sum(ticks for process, ticks in own.items() if belongs(process)) / os.sysconf("SC_CLK_TCK")


def delays(said: list[tuple[str, float]], seen: list[list[Any]], column: int) -> list[float]:
    """For each word that is shown at some time, seconds from its end to the first look at which it stood there."""
    first: dict[int, float] = {}
    for moment, *texts in seen:
        soon = [word for word, end in said if end < moment + 1]  # later words cannot stand there yet
        for i, there in enumerate(matches(soon, words(texts[column]))[0]):
            if there:
                first.setdefault(i, moment)
    return [moment - said[i][1] for i, moment in first.items()]


def summary(values: list[float]) -> dict[str, float]:
    low, middle, high = np.percentile(values, (10, 50, 95))
    return {"words": len(values), "p10": round(float(low), 2), "median": round(float(middle), 2), "p95": round(float(high), 2),
            "most": round(max(values), 2)}


def play(audio_file: Path, seconds: float, threads: int, shots: Path | None, work: Path) -> dict[str, Any]:
    flags = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
             f"--use-file-for-fake-audio-capture={audio_file}%noloop")
    profile = work / "profile"
    with web.server() as address, web.chromium(profile, flags) as context:
        page = web.open_page(context, f"{address}/web/")
        page.evaluate(f"localStorage.setItem('candlewick.threads', '{threads}')")
        page.goto(f"{address}/web/whisper/")
        page.locator("#chip[data-state=ready]").wait_for(timeout=120_000)
        page.evaluate("""() => {
          const ask = MediaDevices.prototype.getUserMedia;
          MediaDevices.prototype.getUserMedia = async function (wish) {
            const stream = await ask.call(this, wish);
            window.opened = performance.now();
            return stream;
          };
        }""")
        page.evaluate(f"() => {{ {LOOK} }}")
        before = processor_seconds(str(profile))
        began = time.monotonic()
        page.locator("#live-button").click()
        page.wait_for_timeout(1000 * seconds / 2)
        if shots:
            page.screenshot(path=shots / "live-during.png")
        page.wait_for_timeout(max(0.0, 1000 * (seconds - (time.monotonic() - began))))
        spent, clock = processor_seconds(str(profile)) - before, time.monotonic() - began
        page.locator("#live-stop").click()
        page.locator("#job[aria-busy=false]").wait_for(timeout=60_000)
        if shots:
            page.screenshot(path=shots / "live-after.png")
        seen = page.evaluate("(stopLooking(), seen.map(([at, ...texts]) => [(at - opened) / 1000, ...texts]))")
        with page.expect_download() as got:
            page.get_by_role("button", name="Download everything as JSON").click()
        return {"seen": seen, "result": json.loads(Path(got.value.path()).read_text()), "core_share": spent / clock}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=Path)
    parser.add_argument("--shots", type=Path)
    options = parser.parse_args()
    audio = read(options.input) if options.input else two_minutes()
    if options.batch and options.batch.exists():
        whole = json.loads(options.batch.read_text())
    else:
        whole = asyncio.run(batch(audio))
        if options.batch:
            options.batch.write_text(json.dumps(whole))
    said = [(words(w["word"])[0], w["end"]) for s in whole["segments"] for w in s["words"] if words(w["word"])]
    with tempfile.TemporaryDirectory(prefix="candlewick-live-") as work:
        file = Path(work) / "talk.wav"
        with wave.open(str(file), "wb") as out:
            out.setparams((1, 2, 16000, 0, "NONE", ""))
            out.writeframes((np.clip(audio, -1, 1) * 32767).astype("<i2").tobytes())
        seconds = len(audio) / 16000
        live = play(file, seconds + 3, options.threads, options.shots, Path(work))
    result = live["result"]
    want, found = words(whole["text"]), words(result["text"])
    _, errors = matches(want, found)
    print(json.dumps({
        "seconds": round(seconds, 1), "shown": summary(delays(said, live["seen"], 0)),
        "stable": summary(delays(said, live["seen"], 1)), "wer": round(errors / len(want), 4), "words": len(want),
        "real_time_factor": round(result["timings"]["busy_ms"] / 1000 / seconds, 3),
        "core_share": round(live["core_share"], 2), "passes": result["timings"]["passes"],
        "load_average": round(os.getloadavg()[0], 2), "batch": whole["text"], "live": result["text"],
    }, indent=1))


if __name__ == "__main__":
    main()
