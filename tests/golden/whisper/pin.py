"""Pins what the miniatures do here and now: PYTHONPATH=py:. python -m tests.golden.whisper.pin

Writes their transcripts (numpy executor) to pinned.json and their Programs, as printed, to programs/. A change of either
shows in the diff, where it can be seen to be meant.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from candlewick import executors
from candlewick.models.whisper import TranscribeOptions, Transcriber
from candlewick.weights.load import Checkpoint
from tests.golden.whisper import clips

HERE = Path(__file__).resolve().parent
MODELS = HERE.parents[2] / "models"
MINIATURES = ("test-whisper", "test-whisper-multilingual")
OPTIONS = {
    "greedy": {"temperatures": (0.0,)},
    "fallback": {"seed": 3},
    "beam": {"temperatures": (0.0,), "beam_size": 5},
    "best of": {"temperatures": (0.7,), "best_of": 3, "seed": 5},
    "short": {"temperatures": (0.0,), "context": "short"},
    "prompted": {"temperatures": (0.0,), "initial_prompt": "the boats and the lamp " * 20, "timestamps": False},
}


async def transcripts(name: str, executor_name: str) -> dict[str, list]:
    """-> option set -> [[start, end, tokens], ...] of 7 s of a chirp"""
    executor = executors.create(executor_name)
    try:
        transcriber = await Transcriber.load(Checkpoint.open(MODELS / name), executor)
        found = {}
        for label, options in OPTIONS.items():
            events = [e async for e in transcriber.transcribe(clips.chirp(7), TranscribeOptions(**options))]
            found[label] = [[s["start"], s["end"], s["tokens"]] for s in events[-1]["result"]["segments"]]
        return found
    finally:
        await executor.close()


def main() -> None:
    (HERE / "programs").mkdir(exist_ok=True)
    pinned = {}
    for name in MINIATURES:
        pinned[name] = asyncio.run(transcripts(name, "numpy"))
        for entry, program in asyncio.run(printed(name)).items():
            (HERE / "programs" / f"{name}.{entry}.txt").write_text(program)
    lines = json.dumps(pinned, indent=1)
    (HERE / "pinned.json").write_text(lines + "\n")


async def printed(name: str) -> dict[str, str]:
    """-> entry -> its Program as text, those among them that are traced when they are wanted"""
    from candlewick.models.whisper import load_model
    from candlewick.models.whisper.programs import contexts, shortened, tree

    model = await load_model(Checkpoint.open(MODELS / name))
    lazy = {**tree(model, 3), **shortened(model, contexts(model.dims)[1])}
    return {entry: str(program) for entry, program in (model.programs | lazy).items()}


if __name__ == "__main__":
    main()
