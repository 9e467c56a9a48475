"""The engine in Chromium: start, load, transcribe on each executor, and what stays behind."""

from __future__ import annotations

import json

import pytest

from tests.browser.engine_site import (
    JFK_TEXT,
    MINIATURE,
    ROOT,
    TINY,
    lan_address,
    needs_jfk,
    needs_miniature,
    needs_tiny,
    noise_wav,
    open_page,
    serving,
    wav,
)

LOAD = """
async ([model, params]) => {
  window.engine ??= new Engine({ onEvent });
  return outcome(engine.load({ model: `/models/${model}/`, ...params }, { onEvent }));
}
"""
OWN_FILES = "async () => outcome(engine.load({ model: null, files: [...document.querySelector('input').files] }))"
TRANSCRIBE = "async (options) => outcome(engine.transcribe({ audio: { kind: 'wav', bytes: sound }, options }, { onEvent }))"


@pytest.fixture(scope="module")
def ours(built):
    """A server of our own, whose faults a test may set; the session's `built` makes sure that the wheel is of this code."""
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def context(browser):
    """One browser profile: the first test starts cold, the others warm."""
    context = browser.new_context()
    yield context
    context.close()


def load(page, model, **params):
    outcome = page.evaluate(LOAD, [model, params])
    assert "result" in outcome, outcome
    return outcome["result"]


def transcribe(page, **options):
    outcome = page.evaluate(TRANSCRIBE, options)
    assert "result" in outcome, outcome
    return outcome["result"]


def describe(page):
    return page.evaluate("async () => (window.engine ??= new Engine({ onEvent })).describe()")


def test_first_visit_installs_and_the_second_starts_from_the_snapshot(browser, ours):
    context = browser.new_context()
    page = open_page(context, ours)
    cold = describe(page)
    assert cold["cache"]["snapshot"] in ("stored", "unavailable") and cold["versions"]["pyodide"] and cold["versions"]["numpy"]
    page.evaluate("() => until(() => events.some((event) => event.event === 'log' && event.message.includes('later visits')))")
    page.close()
    ours.asked.clear()
    page = open_page(context, ours)
    warm = describe(page)
    assert warm["cache"]["snapshot"] == "used"
    assert warm["versions"] == cold["versions"]
    assert "snapshot_restore_ms" in warm["timings"] and "snapshot_restore_ms" not in cold["timings"]
    assert warm["timings"].get("import_ms", 0) == 0, "Python is there as it was left"
    assert not [path for path, _ in ours.asked if path.endswith(".whl")], "a warm start must install nothing"
    context.close()


def test_python_from_a_snapshot_is_whole(context, ours):
    """Exceptions, extension modules that load later, linear algebra and fresh randomness all work after a warm start."""
    page = open_page(context, ours)
    describe(page)
    page.evaluate("() => until(async () => (await engine.describe()).cache.snapshot !== 'unavailable')")
    code = """
import json, random, numpy as np
try:
    np.zeros(3) @ np.zeros(4)
except ValueError as error:
    words = str(error)
np.random.default_rng(0)   # extension modules that are not in the snapshot
json.dumps({"words": words, "inverse": np.linalg.inv(np.eye(2) * 4).tolist(), "fft": float(np.fft.fft(np.ones(4))[0].real),
            "normal": np.random.default_rng(1).normal(size=2).tolist(), "text": np.array2string(np.arange(3.0)),
            "big": float(np.ones((300, 300)).sum()), "sorted": np.sort(np.array([3, 1, 2])).tolist()})
"""
    body = f"""
      const {{ boot }} = await import("ORIGIN/workers/boot.js");
      const {{ Store }} = await import("ORIGIN/workers/storage.js");
      const {{ py, how }} = await boot(await Store.open(), () => {{}});
      return [how, py.runPython({code!r})];
    """
    outcome = page.evaluate("(body) => inWorker(body)", body)
    assert "result" in outcome, outcome
    how, text = outcome["result"]
    got = json.loads(text)
    assert how == "snapshot"
    assert "mismatch" in got["words"] and got["inverse"] == [[0.25, 0.0], [0.0, 0.25]] and got["fft"] == 4.0
    assert got["text"] == "[0. 1. 2.]" and got["big"] == 90000 and got["sorted"] == [1, 2, 3] and len(got["normal"]) == 2


@needs_tiny
@needs_jfk
def test_transcribes_a_recording_on_threads(context, ours):
    page = open_page(context, ours, wav())
    loaded = load(page, TINY, threads=2)
    assert (loaded["executor"], loaded["threads"], loaded["family"]) == ("wasm", 2, "whisper")
    assert {"runtime_ms", "numpy_ms", "import_ms", "trace_ms", "weights_ms", "load_ms"} <= loaded["timings"].keys()
    memory = loaded["memory"]
    assert memory["total"] < 1.25 * memory["weights"] + 250e6
    result = transcribe(page)
    assert result["text"] == JFK_TEXT
    events = page.evaluate("events")
    kinds = {event["event"] for event in events}
    assert {"progress", "token", "segment"} <= kinds
    assert {"download", "weights", "transcribe"} <= {event["stage"] for event in events if event["event"] == "progress"}
    page.close()


@needs_tiny
@needs_jfk
def test_without_isolation_headers_one_thread_gives_the_same(browser, built):
    """BR-45: the same words on one thread; threads in use and asked, and the cause, are said."""
    with serving(isolated=False) as ours:
        context = browser.new_context()
        page = open_page(context, ours, wav())
        loaded = load(page, TINY, threads=2)
        assert (loaded["executor"], loaded["threads"], loaded["threads_asked"]) == ("wasm", 1, 2)
        assert "isolation headers" in loaded["reason"]
        assert transcribe(page)["text"] == JFK_TEXT
        context.close()


@needs_miniature
def test_insecure_address_works_on_one_thread_and_says_why(browser, built):
    """BR-45: opened by http and an IP of the network: no shared memory, nothing can be kept, and the result is the same."""
    if (address := lan_address()) is None:
        pytest.skip("this machine has no address but its loopback")
    context = browser.new_context()
    with serving(host=address) as ours:
        page = open_page(context, ours, noise_wav(1.0))
        loaded = load(page, MINIATURE, threads=2)
        assert (loaded["executor"], loaded["threads"], loaded["threads_asked"]) == ("wasm", 1, 2)
        assert "neither https nor" in loaded["reason"]
        assert "text" in transcribe(page)
        facts = describe(page)
        assert not facts["features"]["secure"] and not facts["cache"]["stored"] and facts["cache"]["snapshot"] == "unavailable"
    context.close()


@needs_miniature
def test_executors_agree(context, ours):
    page = open_page(context, ours, noise_wav())
    results = []
    for params in ({"threads": 2}, {"threads": 1}, {"executor": "numpy"}):
        loaded = load(page, MINIATURE, **params)
        assert loaded["executor"] == params.get("executor", "wasm")
        result = transcribe(page, temperatures=[0.0], no_speech_threshold=None, logprob_threshold=None)
        results.append([segment["tokens"] for segment in result["segments"]])
    assert results[0] == results[1] == results[2]
    page.close()


@needs_miniature
def test_sound_as_samples_of_any_rate_and_channels(context, ours):
    page = open_page(context, ours, noise_wav(1.0))
    load(page, MINIATURE)
    for rate, channels in ((16000, 1), (44100, 2), (48000, 6), (8000, 1)):
        outcome = page.evaluate(
            """async ([rate, count]) => {
              const tone = (c) => Float32Array.from({ length: rate }, (_, i) => Math.sin((i * (c + 1)) / 9) / 4);
              const channels = Array.from({ length: count }, (_, c) => tone(c));
              return outcome(engine.transcribe({ audio: { kind: "pcm", channels, rate } }));
            }""", [rate, channels])
        assert outcome["result"]["duration"] == pytest.approx(1.0, abs=1e-3), outcome
    page.close()


@needs_miniature
@pytest.mark.parametrize(("audio", "words"), [
    ("{ kind: 'wav', bytes: new ArrayBuffer(0) }", "empty"),
    ("{ kind: 'wav', bytes: new TextEncoder().encode('fLaC....').buffer }", "FLAC"),
    ("{ kind: 'mp3', bytes: new ArrayBuffer(9) }", "kind"),
    ("{ kind: 'pcm', channels: [], rate: 16000 }", "channels"),
    ("{ kind: 'pcm', channels: [new Float32Array(4), new Float32Array(5)], rate: 16000 }", "equal length"),
    ("undefined", "kind"),
])
def test_bad_sound_is_told_in_words_and_the_engine_goes_on(context, ours, audio, words):
    page = open_page(context, ours, noise_wav(0.5))
    load(page, MINIATURE)
    outcome = page.evaluate(f"async () => outcome(engine.transcribe({{ audio: {audio} }}))")
    assert outcome["error"]["code"] == "bad_input" and words in outcome["error"]["message"], outcome
    assert "text" in transcribe(page)
    page.close()


@needs_miniature
def test_bad_options_are_told(context, ours):
    page = open_page(context, ours, noise_wav(0.5))
    load(page, MINIATURE)
    outcome = page.evaluate(TRANSCRIBE, {"temprature": 1})
    assert outcome["error"]["code"] == "bad_input" and "temperatures" in outcome["error"]["message"], outcome
    page.close()


@needs_miniature
def test_memory_stays_flat(context, ours):
    """BR-40: ten transcriptions, sound going in and results coming out, also on the error path."""
    page = open_page(context, ours, noise_wav(5.0))
    load(page, MINIATURE)
    sizes = []
    for round_ in range(10):
        transcribe(page, temperatures=[0.0])
        page.evaluate("async () => outcome(engine.transcribe({ audio: { kind: 'wav', bytes: new ArrayBuffer(9) } }))")
        memory = describe(page)["memory"]
        if round_ >= 2:
            sizes.append((memory["python"], memory["kernel"]))
    assert len(set(sizes)) == 1, sizes
    page.close()


GROW = """async () => {
  const picture = (id, width, height) => {
    const rgba = new Uint8ClampedArray(4 * width * height).map((_, i) => i * 7);
    return engine.setImage({ id, image: { rgba, width, height } });
  };
  const ask = (id) => engine.predict({ id, points: [[20, 12]], labels: [1], box: null });
  const heap = async () => (await engine.describe()).memory.python;
  await picture("small", 60, 40);
  const { masks } = await ask("small");
  const seen = [...masks], before = await heap();
  await picture("large", 5000, 4000);
  await ask("large");
  const same = masks.every((value, i) => Object.is(value, seen[i]));
  return { own: masks.buffer.byteLength === masks.byteLength, same, grown: (await heap()) - before, some: masks.some(Boolean) };
}"""


@pytest.mark.skipif(not (ROOT / "models" / "test-sam" / "model.safetensors").is_file(), reason="models/test-sam is missing")
def test_answers_are_copies(context, ours):
    """BR-41: what an answer holds is no view of Python's heap: it stays as it was when that is let go of and the heap grows."""
    page = open_page(context, ours)
    load(page, "test-sam", threads=1)
    found = page.evaluate(GROW)
    assert found["own"] and found["same"] and found["some"] and found["grown"] > 0, found
    page.close()


@needs_miniature
def test_loading_again_and_again_gives_memory_back(context, ours):
    page = open_page(context, ours)
    sizes = []
    for params in ({"threads": 2}, {"threads": 1}, {"threads": 2}, {"executor": "numpy"}, {"threads": 2}, {"threads": 2}):
        loaded = load(page, MINIATURE, **params)
        sizes.append(loaded["memory"]["python"])
    assert sizes[-1] == sizes[-2], sizes
    page.evaluate("async () => engine.unload()")
    after = describe(page)
    assert after["memory"]["kernel"] == 0 and after["model"] is None
    outcome = page.evaluate("async () => outcome(engine.transcribe({ audio: { kind: 'wav', bytes: new ArrayBuffer(9) } }))")
    assert outcome["error"]["code"] == "bad_input" and "load" in outcome["error"]["message"]
    page.close()


@needs_miniature
def test_a_persons_own_files(context, ours):
    """The files of a folder, picked: read by ranges, not fetched."""
    page = open_page(context, ours, noise_wav(1.0))
    page.evaluate("() => { const input = document.createElement('input'); input.type = 'file'; input.multiple = true;"
                  " document.body.append(input); }")
    folder = ROOT / "models" / MINIATURE
    page.set_input_files("input", [path for path in folder.iterdir() if path.suffix in (".json", ".safetensors", ".txt")
                                   and path.name != "manifest.json"])
    ours.asked.clear()
    page.evaluate("() => { window.engine = new Engine(); }")
    outcome = page.evaluate(OWN_FILES)
    assert outcome["result"]["family"] == "whisper", outcome
    assert "text" in transcribe(page)
    assert not [path for path, _ in ours.asked if path.startswith("/models/")]
    page.close()


def test_bad_own_files_are_told(context, ours, tmp_path):
    """BR-50: a header nested so deeply that a parser would overflow the stack is refused, and the engine lives on."""
    page = open_page(context, ours)
    page.evaluate("() => { const input = document.createElement('input'); input.type = 'file'; input.multiple = true;"
                  " document.body.append(input); window.engine = new Engine(); }")

    def outcome_of(files):
        paths = []
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
            paths.append(tmp_path / name)
        page.set_input_files("input", paths)
        return page.evaluate(OWN_FILES)

    deep = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
    for files, words in (({"config.json": deep}, "nest"), ({"config.json": b'{"model_type": "bert"}'}, "bert"),
                         ({"weights.bin": b"abc"}, "at least 28 bytes"), ({"config.json": b"<!doctype html>"}, "web page")):
        outcome = outcome_of(files)
        assert outcome["error"]["code"] == "bad_weights" and words in outcome["error"]["message"], outcome
    assert describe(page)["model"] is None
    page.close()
