"""Recordings of any length: by the piece, of a length that shows only at the end, and gone on with another day."""

from __future__ import annotations

import json

import numpy as np
import pytest

from candlewick import executors
from candlewick.audio import Resampler
from candlewick.models.whisper import TranscribeOptions, Transcriber
from candlewick.recording import Recording, Samples
from candlewick.weights.load import Checkpoint
from tests.conftest import ROOT

PLAIN = TranscribeOptions(temperatures=(0.0,), no_speech_threshold=None, logprob_threshold=None,
                          compression_ratio_threshold=None)
SECONDS = 7  # the miniature hears 2 s at a time


@pytest.fixture
async def transcriber():
    return await Transcriber.load(Checkpoint.open(ROOT / "models" / "test-whisper"), executors.create("numpy"))


@pytest.fixture(scope="module")
def audio():
    return (np.random.default_rng(5).standard_normal(SECONDS * 16000) / 9).astype(np.float32)


async def heard(transcriber, audio, until=None, **more):
    """Segments, states, result of a run; it is stopped after `until` states."""
    states, segments, result = [], [], {}
    stop = lambda: until is not None and len(states) >= until  # noqa: E731
    async for event in transcriber.transcribe(audio, PLAIN, stop, **more):
        if event["event"] == "segment":
            segments.append(event["segment"])
        elif event["event"] == "result":
            result = event["result"]
        elif event["stage"] == "transcribe" if event["event"] == "progress" else False:
            states.append(json.loads(json.dumps(event["state"])))  # it is kept as JSON
    return segments, states, result


class Unknown(Samples):
    """A sound that thinks itself longer or shorter than it is, until its end was read."""

    def __init__(self, samples, rate, told):
        super().__init__(samples, rate)
        self.frames = told

    async def read(self, first, n):
        part = await super().read(first, n)
        if len(part) < n:
            self.frames = len(self.samples)
        else:
            self.frames = max(self.frames, first + n + 16000)
        return part


@pytest.mark.parametrize("told", [3, 5.5, 9])
async def test_length_that_shows_at_the_end(transcriber, audio, told):
    wanted, _, whole = await heard(transcriber, audio)
    sound = Unknown(audio, 16000, int(told * 16000))
    segments, _, result = await heard(transcriber, Recording(sound))
    assert segments == wanted and result["duration"] == whole["duration"] == SECONDS


async def test_by_the_piece_and_at_another_rate(transcriber, audio):
    resampler = Resampler(transcriber.executor)
    wanted, _, _ = await heard(transcriber, await resampler.resample(audio, 22050))
    segments, _, _ = await heard(transcriber, Recording(Samples(audio, 22050), resampler))
    assert segments == wanted and segments


@pytest.mark.parametrize("until", [1, 3])
async def test_a_run_goes_on_where_another_was_stopped(transcriber, audio, until):
    """The parts together are the whole, times and numbers included, and nothing is heard twice."""
    wanted, _, _ = await heard(transcriber, audio)
    first, states, result = await heard(transcriber, audio, until)
    assert result["stopped"] and len(first) < len(wanted)
    kept = [s for s in first if s["id"] < states[-1]["segments"]]
    rest, more, result = await heard(transcriber, audio, state=states[-1])
    assert kept + rest == wanted and not result["stopped"]
    assert more[0] == states[-1]


@pytest.mark.parametrize("told", [1, 5, 9])
async def test_a_run_goes_on_in_a_sound_of_unknown_length(transcriber, audio, told):
    """Its head may tell less than was heard already."""
    wanted, states, _ = await heard(transcriber, audio)
    place = states[2]
    sound = Recording(Unknown(audio, 16000, told * 16000))
    segments, _, result = await heard(transcriber, sound, state=place)
    assert segments == [s for s in wanted if s["id"] >= place["segments"]] and segments
    assert result["duration"] == SECONDS


@pytest.mark.parametrize("state", [{"seek": 5}, {"seek": 10**9}, {"previous": [10**6]}, {"peak": "x"}])
async def test_a_state_that_fits_nothing_is_refused(transcriber, audio, state):
    _, states, _ = await heard(transcriber, audio, 2)
    wrong = state if state == {"seek": 5} else states[-1] | state
    with pytest.raises(ValueError, match="begin anew"):
        await heard(transcriber, audio, state=wrong)


async def test_a_window_begins_with_its_sound(transcriber, audio):
    """However long the silence before it is: the same text, later."""
    first, second = [(await heard(transcriber, np.concatenate([np.zeros(n), audio])))[0] for n in (19200, 24000)]
    assert [s["tokens"] for s in first] == [s["tokens"] for s in second] and first
    assert [s["start"] + 0.3 for s in first] == pytest.approx([s["start"] for s in second])


async def test_loud_units_and_damage_are_met_window_by_window(transcriber, audio):
    """Samples of 16-bit numbers are scaled as a whole; a NaN in the last window is found."""
    wanted, _, _ = await heard(transcriber, audio / np.abs(audio).max())
    segments, _, _ = await heard(transcriber, audio / np.abs(audio).max() * 32768)
    assert [s["tokens"] for s in segments] == [s["tokens"] for s in wanted]
    damaged = audio.copy()
    damaged[-5] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        await heard(transcriber, damaged)
