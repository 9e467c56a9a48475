"""Real weights on difficult input: silence, faint speech, cuts at the window's edge, noise, long prompts."""

from __future__ import annotations

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.whisper import TranscribeOptions, Transcriber
from candlewick.weights.load import Checkpoint
from tests.models.whisper.test_parity import FOLDER, clip, pytestmark  # noqa: F401  (the skip)

WORDS = "and so my fellow americans ask not what your country can do for you ask what you can do for your country"


@pytest.fixture
async def transcriber():
    executor = executors.create("auto")
    yield await Transcriber.load(Checkpoint.open(FOLDER), executor)
    await executor.close()


async def result(transcriber, audio, **options) -> dict:
    found = None
    async for event in transcriber.transcribe(np.asarray(audio, np.float32), TranscribeOptions(**options)):
        found = event
    return found["result"]


def words(final: dict) -> str:
    return " ".join("".join(c for c in final["text"].lower() if c.isalpha() or c == " ").split())


def padded(audio: np.ndarray, seconds: float) -> np.ndarray:
    out = np.zeros(round(seconds * 16000), np.float32)
    out[: len(audio)] = audio[: len(out)]
    return out


async def test_silence_and_faint_speech(transcriber):
    """BR-06: no invented phrase for 30 s of zeros, 2 s of zeros, zeros with dither; speech at -60 dB is left alone."""
    rng = np.random.default_rng(0)
    for audio in (np.zeros(480000), np.zeros(32000), (rng.random(160000) - rng.random(160000)) / 32768):
        final = await result(transcriber, audio)
        assert final["text"] == "" and final["no_speech"]
    assert words(await result(transcriber, clip("jfk") * 1e-3)) == WORDS


async def test_tones_are_no_words(transcriber):
    """A pure tone and a chord that swells: in both the model only half doubts that somebody speaks."""
    t = np.arange(20 * 16000) / 16000
    chord = 0.1 * sum(np.sin(2 * np.pi * f * t) for f in (220, 277, 330, 440)) * (0.6 + 0.4 * np.sin(4 * np.pi * t))
    for sound in (0.3 * np.sin(2 * np.pi * 1000 * t), chord):
        final = await result(transcriber, sound)
        assert final["text"] == "" and final["no_speech"]


async def test_floats_on_the_scale_of_16_bit_numbers(transcriber):
    assert words(await result(transcriber, clip("jfk") * 32768)) == WORDS


async def test_cuts_around_the_window(transcriber):
    """BR-07: speech and then silence, cut just before, at and just behind 30 s: the same text, no phrase added."""
    found = {words(await result(transcriber, padded(clip("jfk"), seconds))) for seconds in (11.5, 29.9, 30.0, 30.1, 31.0)}
    assert found == {WORDS}


async def test_silence_before_speech(transcriber):
    """It cuts no phrase at a window's end, and the times are those of the speech."""
    final = await result(transcriber, np.concatenate([np.zeros(27 * 16000), clip("jfk")]))
    assert words(final) == WORDS
    assert final["segments"][0]["start"] == pytest.approx(27, abs=0.5)


async def test_noise_ends(transcriber):
    """BR-08: in a noisy clip no window repeats itself to its end, and seek goes on."""
    speech = clip("jfk")
    rng = np.random.default_rng(1)
    noisy = padded(speech, 40) + 0.02 * rng.standard_normal(640000).astype(np.float32)
    final = await result(transcriber, noisy)
    assert "country" in words(final)
    assert all(s["compression_ratio"] < 2.4 or s["temperature"] == 1.0 for s in final["segments"])
    assert all(0 <= s["start"] <= s["end"] <= 40 for s in final["segments"])


async def test_segments_end_with_the_recording(transcriber):
    """BR-09"""
    final = await result(transcriber, clip("lighthouse")[: round(12.34 * 16000)])
    assert final["duration"] == pytest.approx(12.34) and 12 < final["segments"][-1]["end"] <= 12.34


async def test_long_prompt(transcriber):
    """BR-11: 600 tokens of prompt, and one of a name that it should help to spell."""
    final = await result(transcriber, clip("jfk"), initial_prompt=" And so" * 300)
    assert "country" in words(final)
    final = await result(transcriber, clip("jfk"), initial_prompt="my fellow Americans,")
    assert "country" in words(final)


async def test_without_timestamps(transcriber):
    final = await result(transcriber, clip("jfk"), timestamps=False)
    assert words(final) == WORDS and len(final["segments"]) == 1
    assert (final["segments"][0]["start"], final["segments"][0]["end"]) == (0.0, 11.0)


async def test_short_recordings_in_the_fast_mode(transcriber):
    """2.9 s are heard by the smallest encoder: the same words, and that of the whole window never runs."""
    whole = await result(transcriber, clip("jfk")[8 * 16000 : round(10.9 * 16000)])
    run, entries = transcriber.executor.run, []

    async def noted(entry, inputs, fetch=None):
        entries.append(entry)
        return await run(entry, inputs, fetch)

    transcriber.executor.run = noted
    final = await result(transcriber, clip("jfk")[8 * 16000 : round(10.9 * 16000)], context="short", word_timestamps=True)
    assert words(final) == words(whole) == "ask what you can do for your country"
    assert "encode_250" in entries and "encode" not in entries
    times = [t for s in final["segments"] for w in s["words"] for t in (w["start"], w["end"])]
    assert times == sorted(times) and times[-1] <= 2.9


async def test_noise_is_no_speech(transcriber):
    """White noise, greedily and with beams, and noise behind speech: nothing is made up."""
    noise = np.random.default_rng(2).standard_normal(20 * 16000) * 0.01
    for options in ({}, {"beam_size": 5, "best_of": 2}):
        assert (await result(transcriber, noise[: 8 * 16000], **options))["no_speech"]
    speech = padded(clip("jfk"), 20)
    assert words(await result(transcriber, speech + 0.1 * noise, beam_size=5)).endswith("you can do for your country")
