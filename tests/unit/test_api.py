"""The calls of `from candlewick import ...` in CPython, on the miniatures: with and without an event loop, files and arrays,
models that come and go, and everything that can be given wrongly."""

from __future__ import annotations

import asyncio
import wave
from pathlib import Path

import numpy as np
import pytest

import candlewick
from candlewick import api, generate, segment, transcribe, unload
from candlewick.audio import AudioError
from tests.ggml_files import ggml_file

MODELS = Path(__file__).parents[2] / "models"
WHISPER, SAM, LLAMA = MODELS / "test-whisper", MODELS / "test-sam", MODELS / "test-llama"
NOISE = np.random.default_rng(0).uniform(-0.3, 0.3, 24000).astype(np.float32)
PICTURE = np.random.default_rng(1).integers(0, 255, (48, 64, 3), dtype=np.uint8)
SURE = {"temperatures": (0.0,), "no_speech_threshold": None, "logprob_threshold": None}


@pytest.fixture(autouse=True)
def forget():
    yield
    unload()


def wav_file(path: Path, samples: np.ndarray, rate: int) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def test_sound_in_text_out(tmp_path):
    """An array, a file, its bytes, and stereo: the same sound, the same text."""
    told = []
    result = transcribe(NOISE, model=WHISPER, on_event=told.append, **SURE)
    assert result.text and result.segments and result.duration == 1.5 and result.language == "en"
    assert [e["segment"] for e in told if e["event"] == "segment"] == result.segments
    path = wav_file(tmp_path / "noise.wav", NOISE, 16000)
    by_file = transcribe(path, model=WHISPER, **SURE)
    assert by_file.text == transcribe(path.read_bytes(), model=str(WHISPER), **SURE).text
    assert transcribe(np.stack([NOISE, NOISE], axis=1), model=WHISPER, **SURE).text == result.text
    assert "-->" in result.to_srt() and result.to_vtt().startswith("WEBVTT")
    assert transcribe(NOISE, model=WHISPER, word_timestamps=True, **SURE).segments[0]["words"]
    assert "segments" not in repr(result)


def test_a_file_that_is_cut_short_is_heard_as_far_as_it_goes(tmp_path):
    path = wav_file(tmp_path / "noise.wav", NOISE, 16000)
    assert transcribe(path, model=WHISPER, **SURE).note is None
    path.write_bytes(path.read_bytes()[: 44 + 2 * 8000])
    result = transcribe(path, model=WHISPER, **SURE)
    assert (result.duration, result.note) == (0.5, "cut short or damaged: only 0.5 of 1.5 s could be read")


def test_unload_ends_the_host():
    """Threads of a page, and their memory, end with nothing else."""
    pytest.importorskip("wasmtime")
    transcribe(NOISE, model=WHISPER, executor="wasm", **SURE)
    host = api._loaded["whisper"].executor.host
    unload()
    assert host._memory is None


def test_another_rate_and_no_sound():
    assert transcribe(np.zeros(44100, np.float32), model=WHISPER, rate=44100).text == ""
    assert transcribe(np.zeros(0, np.float32), model=WHISPER).segments == []


async def test_where_a_loop_runs_it_is_awaited():
    """Notebooks; and calls that come together wait for each other."""
    first, second = await asyncio.gather(transcribe(NOISE, model=WHISPER, **SURE), transcribe(NOISE, model=WHISPER, **SURE))
    assert first.text == second.text
    await unload()


def test_the_model_stays_until_another_is_wanted(tmp_path):
    transcribe(NOISE, model=WHISPER)
    kept = api._loaded["whisper"]
    transcribe(NOISE, model=WHISPER)
    assert api._loaded["whisper"] is kept
    file = tmp_path / "ggml-tiny.bin"
    file.write_bytes(ggml_file(WHISPER))
    assert transcribe(NOISE, model=file, executor="numpy", **SURE).text
    assert api._loaded["whisper"] is not kept and api._loaded["whisper"].executor.name == "numpy"
    unload()
    assert not api._loaded


def test_a_click_and_a_box():
    vague = segment(PICTURE, [[20, 30]], model=SAM)
    assert vague.masks.shape == (3, 48, 64) and vague.masks.dtype == bool and vague.scores == sorted(vague.scores, reverse=True)
    encoded = api._loaded["sam"].picture
    boxed = segment(PICTURE, box=[4, 4, 40, 30], model=SAM)
    assert boxed.masks.shape == (1, 48, 64) and boxed.mask.shape == (48, 64)
    assert api._loaded["sam"].picture is encoded, "the same picture is looked at once"
    segment(PICTURE[:, ::-1], [[20, 30], [1, 1]], labels=[1, 0], model=SAM)
    assert api._loaded["sam"].picture is not encoded


def test_a_text_goes_on():
    told = []
    result = generate("Once", model=LLAMA, max_tokens=8, greedy=True, on_event=told.append)
    assert len(result.token_ids) <= 8 and result.stop_reason in ("length", "end", "context")
    assert "".join(e["text"] for e in told if e["event"] == "token") == result.text
    again = generate([{"role": "user", "content": "hello"}], model=LLAMA, max_tokens=4, seed=3)
    assert again.seed == 3


@pytest.mark.parametrize("call, says", [
    (lambda: transcribe("nowhere.mp3", model=WHISPER), "recording nowhere.mp3: no such file"),
    (lambda: transcribe(b"ID3 not a wav", model=WHISPER), "wanted the bytes of a WAV file"),
    (lambda: transcribe(np.zeros((2, 3, 4), np.float32), model=WHISPER), r"samples \(n,\) or \(n, channels\)"),
    (lambda: transcribe(np.zeros(9, np.int16), model=WHISPER), "as floats of -1 to 1, got int16"),
    (lambda: transcribe(np.stack([NOISE, NOISE]), model=WHISPER), r"got shape \[2, 24000\]; turn it"),
    (lambda: transcribe(NOISE, model="no-such-model"), "no-such-model not found; available models"),
    (lambda: transcribe(NOISE, model=LLAMA), r"transcribe: test-llama is a model for generate\(\)"),
    (lambda: transcribe(NOISE, model=WHISPER, langauge="de"), "langauge is not known; known are language, task"),
    (lambda: transcribe(NOISE, model=WHISPER, language="de"), "this checkpoint is English-only"),
    (lambda: segment(PICTURE, model=SAM), "one or more points, or a box"),
    (lambda: segment(PICTURE, [[10**4, 5]], model=SAM), "points 10000,5: outside the picture, which is "),
    (lambda: segment(PICTURE, box=[-1, 0, 5, 5], model=SAM), "box -1,0,5,5: outside the picture"),
    (lambda: segment(PICTURE, [[1, 2, 3], [4, 5]], model=SAM), "points: wanted a list of x, y in pixels"),
    (lambda: segment("nowhere.png", [[1, 1]], model=SAM), "picture nowhere.png: no such file"),
    (lambda: generate("x", model=LLAMA, max_tokens=0), "max_tokens: wanted a whole number"),
    (lambda: generate(None, model=LLAMA), "prompt: wanted a text, a conversation or token ids, got NoneType"),
    (lambda: generate(b"hi", model=LLAMA), "token ids, got bytes"),
    (lambda: generate("x", model=LLAMA, stop=5), r"stop: wanted strings that are not empty, got \[5\]"),
    (lambda: generate("x", model=WHISPER), r"generate: test-whisper is a model for transcribe\(\)"),
])
def test_what_is_given_wrongly(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_a_model_that_does_not_load_leaves_the_next_call_alone(tmp_path):
    (tmp_path / "broken.bin").write_bytes(b"lmgg" + bytes(20))
    with pytest.raises(ValueError, match="cut short"):
        transcribe(NOISE, model=tmp_path / "broken.bin")
    assert issubclass(AudioError, ValueError) and transcribe(NOISE, model=WHISPER) is not None


def test_the_names_are_public_and_come_late():
    assert candlewick.transcribe is transcribe and "transcribe" in dir(candlewick) + candlewick.__all__
    with pytest.raises(AttributeError, match="no attribute 'transcrib'"):
        _ = candlewick.transcrib
