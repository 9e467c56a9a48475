"""whisper.cpp's files on the executors: the same tokens as the folder that they were made of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.whisper import TranscribeOptions, Transcriber
from candlewick.weights.load import Checkpoint
from candlewick.weights.source import MemorySource
from tests.ggml_files import ggml_file
from tests.models.whisper.test_parity import FOLDER, clip

MODELS = Path(__file__).parents[3] / "models"


async def tokens(checkpoint: Checkpoint, executor_name: str, audio: np.ndarray, **options) -> list[list[int]]:
    executor = executors.create(executor_name)
    try:
        transcriber = await Transcriber.load(checkpoint, executor)
        events = [event async for event in transcriber.transcribe(audio, TranscribeOptions(**options))]
        return [segment["tokens"] for segment in events[-1]["result"]["segments"]]
    finally:
        await executor.close()


async def loose(blob: bytes) -> Checkpoint:
    return Checkpoint({"ggml-mine.bin": MemorySource(blob, "ggml-mine.bin")}, "mine")


@pytest.mark.skipif(not (FOLDER / "model.safetensors").is_file(), reason="the weights of whisper-tiny.en are not here")
@pytest.mark.parametrize("dtype, same", [("f16", True), ("q8_0", True), ("q5_1", False)])
async def test_real_weights(dtype, same):
    """f16 and q8_0 give the tokens of the folder; with five bits a time may be another, the words are not."""
    blob = await asyncio.to_thread(ggml_file, FOLDER, dtype)
    folder = await tokens(Checkpoint.open(FOLDER), "auto", clip("jfk"))
    found = await tokens(await loose(blob), "auto", clip("jfk"))
    assert len(found) == len(folder) == 2
    words = [[[t for t in piece if same or t < 50256] for piece in pieces] for pieces in (found, folder)]
    assert words[0] == words[1]


@pytest.mark.parametrize("executor_name", ["numpy", "wasm"])
async def test_the_quantised_miniature(executor_name):
    """What is committed is what the writer makes, and every executor hears the same in it."""
    committed = MODELS / "test-whisper-ggml" / "ggml-model.bin"
    assert committed.read_bytes() == await asyncio.to_thread(ggml_file, MODELS / "test-whisper", "q8_0")
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 32000).astype(np.float32)
    options = {"temperatures": (0.0,), "no_speech_threshold": None, "logprob_threshold": None,
               "compression_ratio_threshold": None}
    found = await tokens(Checkpoint.open(committed), executor_name, noise, **options)
    plain = await tokens(Checkpoint.open(committed.parent), "numpy", noise, **options)
    assert found == plain and sum(map(len, found)) > 10
