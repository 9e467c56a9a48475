"""Live listening in CPython: voice activity, utterances, agreement of passes, bounded memory, the requests of the worker."""

from __future__ import annotations

import wave
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.whisper import LiveSession, TranscribeOptions, Transcriber
from candlewick.models.whisper.utterances import BEFORE, LONGEST, Utterances
from candlewick.models.whisper.vad import RISE, Detector
from candlewick.tasks import BadInput, Cancelled
from candlewick.tasks.transcribe import Transcription
from candlewick.weights.load import Checkpoint
from tests.golden.whisper import pin

ROOT = Path(__file__).resolve().parents[3]
REAL = ROOT / "models/whisper-tiny.en"
RATE = 16000
weights = pytest.mark.skipif(not (REAL / "model.safetensors").exists(),
                             reason="no weights in models/whisper-tiny.en; python3 serve.py --setup fetches them")


def sample() -> np.ndarray:
    """The spoken sentence of the site, 7.6 s at 16 kHz."""
    with wave.open(str(ROOT / "web/samples/candle.wav")) as file:
        assert file.getframerate() == RATE
        return (np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(RATE * seconds), np.float32)


def dither(seconds: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    n = round(RATE * seconds)
    return ((rng.random(n) - rng.random(n)) / 32768).astype(np.float32)


def hum(seconds: float) -> np.ndarray:
    t = np.arange(round(RATE * seconds)) / RATE
    return sum(0.05 / k * np.sin(2 * np.pi * 50 * k * t + k) for k in range(1, 12)).astype(np.float32)


def hiss(seconds: float) -> np.ndarray:
    return (0.02 * np.random.default_rng(1).standard_normal(round(RATE * seconds))).astype(np.float32)


def activity(sound: np.ndarray) -> np.ndarray:
    return np.array(Detector().push(sound)[0]) > RISE


# ---- voice activity -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [silence, dither, hum, hiss])
def test_what_stays_the_same_is_silence(noise):
    active = activity(noise(8))
    assert active.mean() < 0.01


def test_noise_that_begins_is_silence_after_some_seconds():
    active = activity(np.concatenate([silence(4), hiss(8)]))
    assert active[: round(3.9 * 50)].sum() == 0 and active[8 * 50 :].mean() < 0.02


@pytest.mark.parametrize("gain", [1.0, 1e-3], ids=["loud", "-60 dB"])
@pytest.mark.parametrize("noise", [silence, dither, hum])
def test_speech_is_heard_however_quiet(gain, noise):
    """The same speech with and without the noise of an empty room: a voice 60 dB down is one, if it is the loudest."""
    speech = np.concatenate([silence(1), sample() * np.float32(gain), silence(1)])
    scale = np.float32(0.01 * gain if noise is hum else 1)
    active = activity(speech + noise(len(speech) / RATE)[: len(speech)] * scale)
    assert active[60 : 60 + 7 * 50].mean() > 0.6
    assert active[:45].sum() == 0


def test_pieces_are_judged_as_the_whole():
    sound = np.concatenate([dither(1), sample()])
    rise, level = Detector().push(sound)
    detector = Detector()
    pieces = [detector.push(sound[at : at + 777]) for at in range(0, len(sound), 777)]
    for i, whole in enumerate((rise, level)):
        assert [x for piece in pieces for x in piece[i]] == pytest.approx(whole, abs=1e-6)


# ---- utterances ---------------------------------------------------------------------------------------------------------


def cut(sound: np.ndarray, piece: int = 1600) -> list:
    utterances = Utterances()
    for at in range(0, len(sound), piece):
        utterances.push(sound[at : at + piece])
    utterances.finish()
    return utterances.ended


def test_utterances_end_at_pauses():
    sound = np.concatenate([silence(2), sample(), silence(3), sample(), silence(2)])
    first, second = cut(sound)
    assert first.start <= 2.3 * RATE and first.end >= 9.3 * RATE
    assert second.start >= first.end and 12 * RATE < second.start < 13 * RATE
    for each in (first, second):
        assert (each.sound == sound[each.start : each.end]).all()
        assert each.start <= each.first_active < each.last_active <= each.end
    assert first.first_active - first.start <= (BEFORE + 0.01) * RATE


@pytest.mark.parametrize("piece", [160, 1600, 50000])
def test_utterances_do_not_depend_on_the_pieces(piece):
    sound = np.concatenate([silence(1), sample(), silence(2), sample()])
    assert [(u.start, u.end) for u in cut(sound, piece)] == [(u.start, u.end) for u in cut(sound, 320)]


def test_knocks_are_no_utterances():
    sound = dither(10)
    sound[RATE :: 3 * RATE] = 0.9
    assert cut(sound) == []


@pytest.mark.parametrize("noise", [dither, hum, hiss])
def test_noise_that_begins_is_no_utterance(noise):
    assert cut(np.concatenate([silence(2), noise(6)])) == []


def test_speech_without_a_pause_is_cut():
    """Nothing is lost at the cuts, and none is later than it may be."""
    voice = sample()[RATE : 3 * RATE]
    sound = np.concatenate([silence(1), np.tile(voice, 35), silence(2)])
    found = cut(sound)
    assert len(found) >= 3 and all(len(u.sound) <= (LONGEST + 0.1) * RATE for u in found)
    assert all(a.end == b.start for a, b in pairwise(found) if b.start - a.end < RATE)


# ---- the session --------------------------------------------------------------------------------------------------------


# random weights are sure of nothing, and never come to an end
ANY: dict = {"logprob_threshold": None, "no_speech_threshold": None, "compression_ratio_threshold": None}


@pytest.fixture
async def miniature():
    executor = executors.create("auto")
    yield await Transcriber.load(Checkpoint.open(pin.MODELS / "test-whisper"), executor)
    await executor.close()


@pytest.fixture
async def real():
    executor = executors.create("auto")
    yield await Transcriber.load(Checkpoint.open(REAL), executor)
    await executor.close()


def checked(events: list[dict]) -> list[dict]:
    """-> the segments. Stable text only grows, segments begin with it, times do not go back."""
    stable, reached, segments = "", 0.0, []
    for event in events:
        if event["event"] == "segment":
            segment = event["segment"]
            assert segment["text"].startswith(stable), "a segment takes back what was stable"
            assert reached <= segment["start"] <= segment["end"] <= event["heard"] + 1e-3
            assert segment["id"] == len(segments)
            stable, reached = "", segment["end"]
            segments.append(segment)
        elif event["stable"] or event["unstable"]:
            assert event["stable"].startswith(stable), "stable text was taken back"
            stable = event["stable"]
        else:
            assert not stable, "stable text went away"
    return segments


async def listen(session: LiveSession, sound: np.ndarray, seconds: float) -> list[dict]:
    """Push so many seconds at a time, to the end -> events."""
    step, events = round(seconds * RATE), []
    for at in range(0, len(sound), step):
        session.push(sound[at : at + step])
        events += [event async for event in session.advance()]
    return events + [event async for event in session.finish()]


def words(text: str) -> list[str]:
    return "".join(c for c in text.lower().replace("-", " ") if c.isalpha() or c in " '").split()


def errors(want: list[str], found: list[str]) -> int:
    """Words to be inserted, left out or changed."""
    row = list(range(len(found) + 1))
    for i, a in enumerate(want):
        last, row[0] = row[0], i + 1
        for j, b in enumerate(found):
            last, row[j + 1] = row[j + 1], min(row[j + 1] + 1, row[j] + 1, last + (a != b))
    return row[-1]


@pytest.mark.parametrize("words_too", [False, True], ids=["plain", "words"])
async def test_random_weights_keep_the_promises(miniature, words_too):
    """Random text, with cuts every 1.7 s as the window of this model is short, and every kind of pass in it."""
    session = LiveSession(miniature, TranscribeOptions(**ANY, temperatures=(0.0, 0.4), word_timestamps=words_too))
    segments = checked(await listen(session, np.concatenate([silence(1), sample(), silence(1)]), 0.3))
    assert len(segments) > 2 and all("words" in s for s in segments) == words_too
    times = [t for s in segments for w in s.get("words", ()) for t in (w["start"], w["end"])]
    assert times == sorted(times)


async def test_an_hour_takes_no_more_memory_than_a_minute(miniature):
    session = LiveSession(miniature, TranscribeOptions(**ANY, temperatures=(0.0,)))
    hour = np.concatenate([sample()[: 3 * RATE], dither(17)])
    most, n_prompt = 0.0, 0
    for _ in range(180):
        session.push(hour)
        async for _ in session.advance():
            pass
        about = session.describe()
        most, n_prompt = max(most, about["held_seconds"]), max(n_prompt, len(session.previous))
    assert about["seconds"] == 3600 and about["passes"] >= 180
    assert most < 2 and n_prompt <= 48


async def test_the_language_is_asked_again_until_enough_was_heard(monkeypatch):
    """A word or two may sound like another language."""
    asked = []

    async def detect(executor, tokenizer, n_text_ctx, heard):
        asked.append(heard)
        return ("en" if len(asked) == 1 else "de"), {}

    monkeypatch.setattr("candlewick.models.whisper.live.detect_language", detect)
    executor = executors.create("auto")
    transcriber = await Transcriber.load(Checkpoint.open(pin.MODELS / "test-whisper-multilingual"), executor)
    session = LiveSession(transcriber, TranscribeOptions(**ANY, temperatures=(0.0,)))
    said = np.concatenate([silence(0.5), sample()[: 2 * RATE], silence(2)])
    assert checked(await listen(session, said, 0.3)) and session.language == "de" and len(asked) > 1
    n_asked = len(asked)
    session.push(said)
    assert [event async for event in session.advance()] and len(asked) == n_asked
    await executor.close()


async def test_what_cannot_be_heard_is_refused(miniature):
    session = LiveSession(miniature)
    for bad in (np.zeros((4, 2), np.float32), np.array([0.0, np.nan], np.float32)):
        with pytest.raises(ValueError, match="live: wanted mono samples"):
            session.push(bad)
    with pytest.raises(ValueError, match="English-only"):
        LiveSession(miniature, TranscribeOptions(language="de"))


async def test_stopped_passes_lose_nothing(miniature):
    """A stop in the middle of each first pass: the next advance hears the same."""
    options = TranscribeOptions(**ANY, temperatures=(0.0,))
    sound = np.concatenate([silence(0.5), sample()[: 2 * RATE], silence(2)])
    want = [s["text"] for s in checked(await listen(LiveSession(miniature, options), sound, 5))]
    session = LiveSession(miniature, options)
    session.push(sound)
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    session.stop = stop
    events = [event async for event in session.advance()]
    assert not [e for e in events if e["event"] == "segment" and e["segment"]["text"] in want]
    session.stop = lambda: False
    events = [event async for event in session.advance()] + [event async for event in session.finish()]
    assert want and [s["text"] for s in checked(events)] == want


# ---- the requests -------------------------------------------------------------------------------------------------------


class Desk:
    def __init__(self) -> None:
        self.events: list[dict] = []
        self.stop = False

    def notify(self, event) -> None:
        self.events.append(dict(event))

    def cancelled(self) -> bool:
        return self.stop


async def test_requests(miniature):
    task, desk = Transcription(miniature, miniature.executor), Desk()

    async def push(samples):
        data = SimpleNamespace(samples=SimpleNamespace(to_bytes=np.asarray(samples, np.float32).tobytes))
        return await task.live_push({}, data, desk)

    with pytest.raises(BadInput, match="live_start") as wrong:
        await push([0.0])
    assert wrong.value.data == {"live": False}
    options = {**ANY, "temperatures": [0.0]}
    await task.live_start({"rate": 48000, "options": options, "offset": 100}, None, desk)
    sound = np.repeat(np.concatenate([silence(0.5), sample()[: 2 * RATE], silence(0.3)]), 3)
    for at in range(0, len(sound), 20000):
        about = await push(sound[at : at + 20000])
    assert about["speaking"] and 102 < about["seconds"] < 103
    desk.stop = True
    with pytest.raises(Cancelled):
        await push(np.zeros(48000))
    desk.stop = False
    about = await task.live_end({}, None, desk)
    segments = checked(desk.events)
    assert segments and 100 < segments[0]["start"] < segments[-1]["end"] < 103.9 and not about["speaking"]
    with pytest.raises(BadInput, match="live_start"):
        await task.live_end({}, None, desk)


# ---- real weights -------------------------------------------------------------------------------------------------------


@weights
async def test_nothing_is_invented(real):
    """Silence and noise that begins are not even listened to. Knocks and a chord that swells are, and have no words."""
    knocks = dither(4)
    knocks[RATE :: RATE // 2] = 0.9
    t = np.arange(4 * RATE) / RATE
    chord = 0.1 * sum(np.sin(2 * np.pi * f * t) for f in (220, 277, 330, 440)) * (0.6 + 0.4 * np.sin(4 * np.pi * t))
    session = LiveSession(real)
    sound = np.concatenate([silence(2), dither(2), hum(5), silence(2), hiss(5), silence(1)])
    assert not checked(await listen(session, sound, 0.5)) and session.n_passes == 0
    for noise in (chord.astype(np.float32), knocks):
        assert not checked(await listen(LiveSession(real), np.concatenate([silence(2), noise, silence(2)]), 3))


@weights
async def test_the_text_is_that_of_the_whole(real):
    """Words appear while they are said, and in the end they are nearly those of the recording as a whole: this small model
    hears "enough light" or "in a flight" by how long it is silent before."""
    *_, alone = [event async for event in real.transcribe(sample())]
    want = words(alone["result"]["text"]) * 2
    session = LiveSession(real, TranscribeOptions(word_timestamps=True))
    sound = np.concatenate([silence(1), sample(), silence(2), sample() * np.float32(0.01), silence(1)])
    events = await listen(session, sound, 1.8)
    segments = checked(events)
    found = words("".join(s["text"] for s in segments))
    assert errors(want, found) <= 0.25 * len(want), found
    during = [words(e["stable"] + e["unstable"]) for e in events if e["event"] == "hypothesis" and e["heard"] < 6]
    assert any("candle" in text for text in during) and any(e.get("stable") for e in events)
    assert 0.8 < segments[0]["start"] < 1.6 and any(9.5 < s["start"] < 11.5 for s in segments)
    times = [t for s in segments for w in s["words"] for t in (w["start"], w["end"])]
    assert times == sorted(times) and len(times) >= 2 * len(found)
