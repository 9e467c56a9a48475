"""What a shortened audio context saves and costs: short clips heard as 5, 10 or 20 s instead of 30.

    PYTHONPATH=py:. python tests/bench/context.py [--model whisper-tiny.en] [--executor wasm] [--threads 2] [--texts]

Clips: sentences read by espeak-ng, pieces of its longer texts, and of jfk.flac where it is at hand. Prints one JSON object: for
how many clips the text is the same, letter for letter and in its words, how many were heard again as a whole, and medians of
encoding and of all, beside those of whole windows in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from statistics import median
from typing import Any

import numpy as np

from candlewick import executors
from candlewick.commands.common import find_model
from candlewick.models.whisper import TranscribeOptions, Transcriber
from candlewick.weights.load import Checkpoint
from tests.golden.whisper import clips

SENTENCES = (
    "Turn on the lights in the kitchen.", "What is the weather like tomorrow?", "Please call my sister at five o'clock.", "No.",
    "Yes, of course.", "Stop the music.", "Write a letter to the bank about the missing payment.",
    "Where did you put the keys?",
    "The quick brown fox jumps over the lazy dog.", "One, two, three, four, five.",
    "I would like a cup of tea and some bread.", "He was born in nineteen sixty four in a small town near the sea.")
PIECES = {"jfk": ((0, 2.4), (3.2, 5.5), (3.2, 7.6), (5.3, 7.7), (8, 11), (0, 5.5), (5.3, 11)),
          "lighthouse": ((0, 3), (0, 4.2), (4, 8), (8, 12), (12, 15), (0, 9), (9, 18))}


def samples() -> dict[str, np.ndarray]:
    """name -> clip"""
    found = {text: clips.spoken(text) for text in SENTENCES}
    for name, pieces in PIECES.items():
        try:
            whole = clips.CLIPS[name]()
        except clips.NotHere:
            continue
        found |= {f"{name} {a}-{b} s": whole[round(a * 16000) : round(b * 16000)] for a, b in pieces}
    return found


def words(text: str) -> list[str]:
    """Without case and marks."""
    return "".join(c for c in text.lower() if c.isalnum() or c == " ").split()


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    executor = executors.create(options.executor, threads=options.threads)
    transcriber = await Transcriber.load(Checkpoint.open(find_model(options.model)), executor)
    entries: list[str] = []
    run = executor.run

    async def noted(entry, inputs, fetch=None):
        entries.append(entry)
        return await run(entry, inputs, fetch)

    executor.run = noted
    heard: dict[str, list[dict[str, Any]]] = {"full": [], "short": []}
    again, texts = 0, {}
    for name, audio in {"": np.zeros(0), **samples()}.items():
        for context, results in heard.items():
            entries.clear()
            *_, last = [event async for event in transcriber.transcribe(audio, TranscribeOptions(context=context))]
            if name:
                results.append(last["result"])
        again += context == "short" and "encode" in entries and any(e.startswith("encode_") for e in entries)
        if name:
            texts[name] = [results[-1]["text"] for results in heard.values()]
    await executor.close()
    pairs = list(texts.values())
    return {
        "model": options.model, "executor": options.executor, "threads": options.threads, "clips": len(pairs),
        "same_text": sum(a == b for a, b in pairs), "same_words": sum(words(a) == words(b) for a, b in pairs),
        "heard_again_as_a_whole": again,
        **{f"{part}_ms": {context: round(median(r["timings"][f"{part}_ms"] for r in results), 1)
                          for context, results in heard.items()} for part in ("encode", "total")},
        "load_average": os.getloadavg()[0], **({"texts": texts} if options.texts else {})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="whisper-tiny.en")
    parser.add_argument("--executor", default="wasm")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", action="store_true", help="print what was understood, too")
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
