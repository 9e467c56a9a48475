"""`candlewick transcribe`: a recording in, text out."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from candlewick.commands.common import emit, find_speech_model, readable, stdout, writable


def transcribe(audio: Path, model: str, executor: str, threads: int | None, format: str, output: Path | None,
               quiet: bool, line: int | None, options: dict[str, Any]) -> None:
    """options: fields of TranscribeOptions, None for its default. line: characters in a line, for times by words.

    Everything that can be refused is refused before the model loads; the output appears whole or not at all."""
    readable(audio, "an audio file")
    folder = find_speech_model(model)
    if output is not None and str(output) != "-":
        output = writable(output, audio)
    else:
        stdout()

    from candlewick.models.whisper import subtitles

    result = asyncio.run(run(folder, executor, threads, audio, options, quiet))
    if not result["segments"] and not quiet:
        print("no speech found", file=sys.stderr)
    if note := result.get("note"):
        print(f"{audio.name}: {note}", file=sys.stderr)
    if line is not None:
        result = subtitles.in_lines(result, line)
    emit(getattr(subtitles, f"to_{format}")(result), output)


def read_recording(path: Path):
    """-> (samples float32 (n_samples, channels), rate in Hz), whole."""
    from candlewick.audio_file import read_audio_file

    return read_audio_file(readable(path, "an audio file"))


async def run(folder: Path, executor_name: str, threads: int | None, recording: Path, options: dict[str, Any],
              quiet: bool) -> dict[str, Any]:
    """Loads the model, hears the recording by the piece; shows progress on stderr. -> the result event's dict."""
    from candlewick import executors
    from candlewick.audio import Resampler
    from candlewick.audio_file import open_audio_file
    from candlewick.models.whisper import TranscribeOptions, Transcriber
    from candlewick.recording import Recording
    from candlewick.weights.load import Checkpoint

    sound = await open_audio_file(recording)
    settings = TranscribeOptions(**{name: value for name, value in options.items() if value is not None})
    executor = executors.create(executor_name, threads=threads)
    view = Progress(quiet)
    try:
        with view:
            transcriber = await Transcriber.load(Checkpoint.open(folder), executor, view.on_load)
            async for event in transcriber.transcribe(Recording(sound, Resampler(executor)), settings):
                if event["event"] == "result":
                    return event["result"] | ({"note": sound.note} if getattr(sound, "note", None) else {})
                view.on_event(event)
                await asyncio.sleep(0)  # the executor never waits, so this is where Ctrl-C can end the task
    finally:
        await executor.close()
    raise RuntimeError("the transcription ended without a result")


class Progress:
    """Progress on stderr: a bar while it loads and runs; on a terminal each segment as it is found."""

    def __init__(self, quiet: bool):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True)
        self.bar = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
                            TimeRemainingColumn(), TextColumn("{task.fields[text]}", markup=False),
                            console=self.console, transient=True, disable=quiet or not self.console.is_terminal)
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def show(self, stage: str, done: float, total: float, text: str = "") -> None:
        if stage not in self.tasks:
            for earlier in self.tasks.values():  # stages follow each other
                self.bar.update(earlier, visible=False)
            self.tasks[stage] = self.bar.add_task(stage, total=None, text="")
        self.bar.update(self.tasks[stage], completed=done, total=total or None, text=text)

    def on_load(self, stage: str, done: int, total: int, _unit: str) -> None:
        self.show(stage, done, total)

    def on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            self.show(event["stage"], event["done"], event["total"])
        elif event["event"] == "token" and "transcribe" in self.tasks:
            room = max(0, self.console.width - 60)
            self.bar.update(self.tasks["transcribe"], text=event["text"][-room:] if room else "")
        elif event["event"] == "segment" and not self.bar.disable:
            segment = event["segment"]
            self.console.print(f"{clock(segment['start'])}  {segment['text'].strip()}", markup=False, highlight=False)


def clock(seconds: float) -> str:
    """75.2 -> 01:15.2; hours only when there are any."""
    tenths = round(seconds * 10)
    hours, minutes, rest = tenths // 36000, tenths // 600 % 60, tenths % 600
    head = f"{hours}:" if hours else ""
    return f"{head}{minutes:02d}:{rest // 10:02d}.{rest % 10}"
