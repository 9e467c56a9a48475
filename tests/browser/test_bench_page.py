"""`candlewick bench ... --browser` on the miniatures: the pages that measure, in Chromium, by the commands' own code."""

from __future__ import annotations

import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("playwright", reason="the browser measurement wants playwright")

from candlewick.commands import browser as web
from candlewick.commands.bench_generate import GenerateBench
from candlewick.commands.bench_segment import SegmentBench
from candlewick.commands.bench_transcribe import TranscribeBench, as_wav
from candlewick.commands.common import Failure
from candlewick.commands.segment import Prompt, read_picture
from candlewick.options import OptionError

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "test-whisper"

NO_BROWSER = pytest.mark.skipif(web.chromium_path() is None, reason="no Chromium: bash tests/run installs it")


@pytest.fixture
def apart() -> Iterator[Callable]:
    """Runs a function in a thread of its own: Playwright cannot be started twice in one."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda work: pool.submit(work).result()


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    """A second of noise, 16-bit WAV at 8 kHz."""
    data = (np.random.default_rng(0).uniform(-0.5, 0.5, 8000) * 32767).astype("<i2").tobytes()
    form = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    path = tmp_path / "noise.wav"
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


@NO_BROWSER
def test_report_of_a_start_and_warm_runs(built, apart, tmp_path, noise):
    def measure():
        with web.server() as address:
            bench = TranscribeBench(address, tmp_path, noise, MODEL, "wasm", 2)
            start = bench.start(2)
        return bench.report([start], [start], start)

    report = apart(measure)
    assert report["executor"] == "wasm" and report["threads"] == 2
    for name in ("mel_ms", "encode_ms", "decode_ms", "total_ms"):
        assert len(report[name]) == 2 and all(value >= 0 for value in report[name])
    assert 0 < report["load_ms"][0] < report["ready_cached_ms"][0] < report["first_text_ms"][0]
    assert report["memory_bytes"] > (MODEL / "model.safetensors").stat().st_size
    if sys.platform == "linux":
        assert report["memory_renderer_bytes"] > 0
    assert isinstance(report["text"], str) and isinstance(report["segments"], list)


@NO_BROWSER
@pytest.mark.parametrize("own", [False, True])
def test_report_of_generation(built, apart, tmp_path, own):
    """own: a file that the server does not offer; it is picked in the page."""
    prompt, model = tmp_path / "prompt.txt", ROOT / "models" / "test-llama-gguf"
    prompt.write_text("Once upon a time there was a cat")
    if own:
        shutil.copy(model / "model.gguf", tmp_path / "own.gguf")
        model = tmp_path / "own.gguf"

    def measure():
        with web.server() as address:
            bench = GenerateBench(address, tmp_path, prompt, str(model), "wasm", 2, 100, 8, profile=True)
            start = bench.start(2)
        return bench.report([start], [start], start)

    report = apart(measure)
    assert report["executor"] == "wasm" and report["threads"] == 2
    for name in ("prefill_tokens", "prefill_tok_s", "decode_tok_s", "token_ids", "text"):
        assert len(report[name]) == 2
    assert report["token_ids"][0] == report["token_ids"][1] and len(report["token_ids"][0]) == 8
    assert report["prefill_tokens"][0] == report["prefill_tokens"][1] > 10, "nothing of the prompt was in the cache"
    assert report["load_ms"][0] > 0 and report["first_token_ms"][0] > report["ready_cached_ms"][0]
    assert report["memory_bytes"] > 0 and report["step"]["loop_ms"] > 0
    assert report["profile"]["ops"]["linear"]["count"] > 0


@NO_BROWSER
def test_report_of_a_picture(built, apart, tmp_path):
    picture = ROOT / "web" / "samples" / "cat.jpg"

    def measure():
        with web.server() as address:
            bench = SegmentBench(address, tmp_path, picture, ROOT / "models" / "test-sam", "wasm", 2,
                                 Prompt([[200.0, 150.0]], [1], None))
            start = bench.start(2)
        return bench.report([start], [start], start, read_picture(picture))

    report = apart(measure)
    assert len(report["encode_ms"]) == 2 and len(report["click_ms"]) == 6 and len(report["iou_predictions"]) == 4
    assert report["first_mask_ms"][0] > report["ready_cached_ms"][0] and report["rle"]["size"]


@NO_BROWSER
def test_a_page_that_fails_says_why(built, apart, tmp_path, noise):
    def fail():
        with web.server() as address:
            bench = TranscribeBench(address, tmp_path, noise, MODEL, "wasm", 1)
            bench.url = bench.url.replace(MODEL.name, "no-such-model")
            bench.start()

    with pytest.raises(Failure, match="no-such-model"):
        apart(fail)


def test_only_checkpoints_that_the_server_offers(tmp_path, noise):
    with pytest.raises(OptionError, match="models/"):
        TranscribeBench("http://127.0.0.1:1", tmp_path, noise, tmp_path / "elsewhere", "wasm", 2)


def test_no_browser_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "nothing"))
    with pytest.raises(Failure, match="no such file"):
        web.chromium_path()


def test_no_playwright_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(Failure, match=r"pip install playwright"), web.chromium(tmp_path):
        pass


def test_a_recording_of_another_kind_becomes_wav(tmp_path, noise):
    soundfile = pytest.importorskip("soundfile", reason="FLAC wants soundfile")
    samples, rate = soundfile.read(noise, dtype="float32", always_2d=True)
    flac = tmp_path / "noise.flac"
    soundfile.write(flac, samples, rate, subtype="PCM_16")
    (tmp_path / "work").mkdir()
    wav = as_wav(flac, tmp_path / "work")
    again, same_rate = soundfile.read(wav, dtype="float32", always_2d=True)
    assert same_rate == rate and np.array_equal(again, samples)
    assert as_wav(noise, tmp_path) == noise
    shutil.rmtree(tmp_path / "work")
