"""The Python half of the engine worker, with plain objects in place of the page's JavaScript."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from candlewick import executors, worker
from candlewick.executors import Stopped
from candlewick.tasks import estimate
from candlewick.weights.load import Checkpoint
from candlewick.weights.source import WeightsError

MINIATURE = Path(__file__).parents[2] / "models" / "test-whisper"


class Bytes:
    """A typed array."""

    def __init__(self, data):
        self.data, self.length = bytes(data), len(bytes(data)) // 4

    def to_bytes(self):
        return self.data


class Source:
    """A source of files.js."""

    def __init__(self, data):
        self.data, self.size = data, len(data)

    async def read(self, start, end):
        return Bytes(self.data[start:end])


class Page:
    def __init__(self):
        self.events, self.cancel_after = [], None

    def notify(self, text):
        self.events.append(json.loads(text))

    def cancelled(self):
        return self.cancel_after is not None and len(self.events) >= self.cancel_after

    def python_bytes(self):
        return 1000

    def kernel_bytes(self):
        return 24


def sources(**changed):
    files = {path.name: Source(path.read_bytes()) for path in MINIATURE.iterdir() if path.suffix in (".json", ".safetensors")}
    return files | {name.replace("__", "."): Source(data) for name, data in changed.items()}


def tone(seconds=1.0, rate=16000):
    """As workers/sound.js gives it."""
    wave = (np.sin(np.arange(int(rate * seconds)) / 9) / 4).astype(np.float32)

    async def read(first, n):
        return Bytes(wave[first : first + n].tobytes())

    return SimpleNamespace(wav=None, sound=SimpleNamespace(rate=rate, frames=len(wave), note="", read=read))


@pytest.fixture
def page():
    return Page()


@pytest.fixture
def engine(page):
    return worker.Worker(page)


async def load(engine, files=None):
    return json.loads(await engine.load("{}", "test-whisper", sources() if files is None else files, None, "for a test"))


async def transcribe(engine, sound, **options):
    return json.loads(await engine.task("transcribe", json.dumps({"options": options}), sound))


async def test_load_transcribe_describe_unload(engine, page):
    loaded = (await load(engine))["result"]
    facts = [loaded[key] for key in ("model", "family", "executor", "reason")]
    assert facts == ["test-whisper", "whisper", "numpy", "for a test"]
    assert loaded["memory"]["total"] == 1024 and loaded["memory"]["weights"] > 0 and loaded["timings"]["trace_ms"] > 0
    result = (await transcribe(engine, tone(), temperatures=[0.0], no_speech_threshold=None))["result"]
    assert result["duration"] == pytest.approx(1.0) and "read_ms" in result["timings"]
    assert {"token", "progress"} <= {event["event"] for event in page.events}
    assert all(event["unit"] for event in page.events if event["event"] == "progress")
    described = json.loads(await engine.describe())["result"]
    assert described["model"]["family"] == "whisper" and described["versions"]["numpy"] == np.__version__
    assert json.loads(await engine.unload()) == {"result": {}}
    assert json.loads(await engine.describe())["result"]["model"] is None


async def test_wav_is_read_by_ranges(engine):
    """The same samples from a file, a piece at a time; at another rate they are resampled."""
    await load(engine)
    plain = {"temperatures": [0.0], "no_speech_threshold": None}
    wave = (np.sin(np.arange(16000) / 9) / 4 * 32767).astype("<i2")
    head = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16)
    file = Source(head + b"data" + struct.pack("<I", wave.nbytes) + wave.tobytes())
    from_file = (await transcribe(engine, SimpleNamespace(wav=file, sound=None), **plain))["result"]
    assert [s["text"] for s in from_file["segments"]] == [s["text"] for s in
                                                          (await transcribe(engine, tone(), **plain))["result"]["segments"]]
    assert from_file["duration"] == 1
    other = (await transcribe(engine, tone(rate=8000), **plain))["result"]
    assert other["duration"] == pytest.approx(1)
    error = (await transcribe(engine, SimpleNamespace(wav=Source(b"fLaC...."), sound=None), **plain))["error"]
    assert error["code"] == "bad_input" and "FLAC" in error["message"]


async def test_cancel_keeps_what_there_is_and_the_next_run_is_fresh(engine, page):
    await load(engine)
    plain = {"temperatures": [0.0], "no_speech_threshold": None, "logprob_threshold": None}
    fresh = (await transcribe(engine, tone(), **plain))["result"]["segments"]
    page.events.clear()
    page.cancel_after = 3
    error = (await transcribe(engine, tone(), **plain))["error"]
    assert error["code"] == "cancelled" and error["data"]["result"]["stopped"] is True
    page.cancel_after = None
    assert (await transcribe(engine, tone(), **plain))["result"]["segments"] == fresh


async def test_a_request_goes_on_after_a_lost_device(engine, page):
    """Lost in the second window, and begun anew on a model that was loaded again: no window is heard twice, and the result is
    an undisturbed one's. The request after that begins at the beginning."""
    plain = {"temperatures": [0.0], "no_speech_threshold": None, "logprob_threshold": None, "compression_ratio_threshold": None}
    encoded = []

    async def load_counted(fails_at=None):
        await load(engine)
        executor, run = engine._executor, engine._executor.run

        async def counted(entry, *more, **how):
            if entry == "encode":
                if len(encoded) == fails_at:
                    raise RuntimeError("the device is lost")
                encoded.append(1)
            return await run(entry, *more, **how)

        executor.run = counted

    await load_counted()
    want = (await transcribe(engine, tone(4.5), **plain))["result"]
    windows, events = len(encoded), [event["event"] for event in page.events]
    assert windows > 2 and want["segments"]
    encoded.clear()
    page.events.clear()
    await load_counted(fails_at=1)
    assert "is lost" in (await transcribe(engine, tone(4.5), **plain))["error"]["message"]
    await load_counted()
    got = json.loads(await engine.task("transcribe", json.dumps({"options": plain}), tone(4.5), True))["result"]
    assert len(encoded) == windows, "no window twice"
    for key in ("segments", "text", "no_speech", "language", "duration"):
        assert got[key] == want[key]
    told = [event["segment"] for event in page.events if event["event"] == "segment"]
    assert told == want["segments"] and events.count("segment") == len(told)
    encoded.clear()
    assert (await transcribe(engine, tone(4.5), **plain))["result"]["segments"] == want["segments"] and len(encoded) == windows


async def test_cancel_while_loading_leaves_no_model(engine, page):
    page.cancel_after = 0
    assert (await load(engine))["error"]["code"] == "cancelled"
    page.cancel_after = None
    assert json.loads(await engine.describe())["result"]["model"] is None
    assert "result" in await load(engine)


@pytest.mark.parametrize(("files", "words"), [
    ({}, "it has no files"),
    ({"config.json": Source(b'{"model_type": "bert"}')}, "Readable are whisper"),
    ({"config.json": Source(b"[1]")}, "object"),
    ({"config.json": Source(b"<html>")}, "web page"),
])
async def test_files_that_are_no_checkpoint(engine, files, words):
    error = (await load(engine, files))["error"]
    assert error["code"] == "bad_weights" and words in error["message"]


async def test_weights_that_are_cut_off(engine):
    data = (MINIATURE / "model.safetensors").read_bytes()
    error = (await load(engine, sources(model__safetensors=data[:-1])))["error"]
    assert error["code"] == "bad_weights"


async def test_nothing_loaded_and_bad_sound(engine):
    assert (await transcribe(engine, tone()))["error"]["code"] == "bad_input"
    await load(engine)
    for sound in (SimpleNamespace(wav=Source(b"RIFF"), sound=None), tone(rate=16)):
        assert (await transcribe(engine, sound))["error"]["code"] == "bad_input"
    error = (await transcribe(engine, tone(), temprature=1))["error"]
    assert error["code"] == "bad_input" and "temperatures" in error["message"]


async def test_empty_sound_gives_an_empty_result_at_once(engine):
    """BR-10."""
    await load(engine)
    result = (await transcribe(engine, tone(0)))["result"]
    assert result["text"] == "" and result["no_speech"] is True


class JsError(Exception):
    """As an error of our JavaScript reaches Python."""

    def __init__(self, code, message, data=None):
        super().__init__(message)
        self.js_error = SimpleNamespace(code=code, message=message, data=SimpleNamespace(to_py=lambda: data))


@pytest.mark.parametrize(("error", "code"), [
    (worker.Cancelled(), "cancelled"),
    (Stopped("x"), "cancelled"),
    (WeightsError("x"), "bad_weights"),
    (MemoryError(), "out_of_memory"),
    (ValueError("x"), "bad_input"),
    (KeyError("x"), "internal"),
    (JsError("out_of_memory", "m", {"wanted": 1}), "out_of_memory"),
])
def test_codes(error, code):
    value = worker.error_value(error)
    assert value["code"] == code and value["message"]
    json.dumps(value)


def test_internal_errors_say_where_without_paths():
    try:
        {}["absent"]
    except KeyError as error:
        value = worker.error_value(error)
    assert "test_worker.py:" in value["data"]["traceback"] and str(Path(__file__).parent) not in value["data"]["traceback"]


# ---- what files are, before they are loaded ---------------------------------------------------------------------


async def test_files_are_examined_and_nothing_is_loaded(engine):
    found = json.loads(await engine.examine("mine", sources()))["result"]
    assert found["family"] == "whisper" and found["bytes"] == sum(source.size for source in sources().values())
    assert found["dtypes"] == {"f16": found["parameters"]} and 80e6 < found["memory"] < 90e6
    assert json.loads(await engine.describe())["result"]["model"] is None
    cut = json.loads(await engine.examine("mine", sources(model__safetensors=b"xx")))["error"]
    assert cut["code"] == "bad_weights" and "model.safetensors" in cut["message"]


@pytest.mark.parametrize("name, family", [("test-whisper-ggml", "whisper"), ("test-llama", "llama"), ("test-sam", "sam"),
                                          ("test-llama-bin", "llama"), ("test-llama-gguf", "llama")])
async def test_every_family_is_known_by_its_files(engine, name, family):
    files = {path.name: Source(path.read_bytes()) for path in (MINIATURE.parent / name).iterdir() if path.suffix != ".py"}
    found = json.loads(await engine.examine(name, files))["result"]
    assert found["family"] == family and found["parameters"] > 1000 and found["memory"] > found["bytes"]


async def test_a_page_refuses_a_model_of_another_family(engine):
    params = json.dumps({"family": "llama"})
    error = json.loads(await engine.load(params, "mine", sources(), None, ""))["error"]
    assert error["code"] == "bad_weights"
    assert error["message"] == "mine is a speech model; this page takes a language model. Open it on the Whisper page"


@pytest.mark.parametrize("name", ["whisper-tiny.en", "smollm2-135m-instruct"])
async def test_the_estimate_is_near_what_is_taken(name):
    """Told before, against what the wasm executor lays out."""
    folder = MINIATURE.parent / name
    if not any(path.suffix in (".safetensors", ".gguf") for path in folder.iterdir()):
        pytest.skip(f"the weights of {name} are not here; run python3 serve.py --setup")
    executor = executors.create("wasm")
    checkpoint = Checkpoint.open(folder)
    task = await worker.family_of(checkpoint)
    told = (await estimate.estimate(checkpoint, task.family))["memory"] - estimate.INTERPRETER
    options = {"capacity": estimate.DEFAULT_CAPACITY} if task.family == "llama" else {}
    await task.load(Checkpoint.open(folder), executor, lambda *_: None, **options)
    taken = executor.describe()["memory"]["total"]
    await executor.close()
    assert 0.8 < told / taken < 1.25, (told, taken)
