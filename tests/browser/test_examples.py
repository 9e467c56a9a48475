"""The example pages for people who build their own: from JavaScript, and from Python in a plain Pyodide page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.engine_site import needs_miniature, needs_tiny, noise_wav
from tests.browser.pages import DONE_MS, READY_MS, visit

SAID = "wick"  # a word of the sample


@needs_tiny
def test_from_javascript(browser, site):
    with visit(browser, site, "/web/examples/transcribe.html", allow=("404",)) as page:
        expect(page.locator("#status")).to_have_text("Ready", timeout=READY_MS)
        page.get_by_role("button", name="Transcribe the sample").click()
        expect(page.locator("#status")).to_contain_text("Done in", timeout=READY_MS + DONE_MS)
        assert len(page.locator("#text").inner_text().split()) > 8
        expect(page.get_by_role("button", name="Stop")).to_be_disabled()
        # what is no sound is refused in words, and the page goes on
        page.locator("#file").set_input_files({"name": "x.wav", "mimeType": "audio/wav", "buffer": b"no sound at all"})
        expect(page.locator("#status")).to_contain_text("That did not work: ", timeout=DONE_MS)
        # a sample that is not there, too
        page.route("**/candle.wav", lambda route: route.fulfill(status=404))
        page.get_by_role("button", name="Transcribe the sample").click()
        expect(page.locator("#status")).to_have_text("That did not work: the sample: the server answered 404", timeout=DONE_MS)
        page.unroute("**/candle.wav")
        page.get_by_role("button", name="Transcribe the sample").click()
        expect(page.locator("#status")).to_contain_text("Done in", timeout=DONE_MS)


def test_stop_from_javascript(browser, site):
    """Stopped before the model is there: at once, and it can be begun again."""
    with visit(browser, site, "/web/examples/transcribe.html") as page:
        page.route("**/models/whisper-tiny.en/manifest.json", lambda route: None)  # never answered
        expect(page.locator("#status")).to_have_text("Ready", timeout=READY_MS)
        page.get_by_role("button", name="Transcribe the sample").click()
        stop = page.get_by_role("button", name="Stop")
        expect(stop).to_be_enabled(timeout=READY_MS)
        stop.click()
        expect(page.locator("#status")).to_have_text("Stopped", timeout=READY_MS)
        expect(stop).to_be_disabled()


@pytest.fixture(scope="module")
def python_page(browser, site):
    with visit(browser, site, "/web/examples/python.html", allow=("404",)) as page:
        expect(page.locator("#status")).to_have_text("Ready", timeout=READY_MS)
        yield page


def run(page, code: str) -> str:
    """Type a program, run it, and give what it prints."""
    page.get_by_label("Python").fill(code)
    page.get_by_role("button", name="Run").click()
    page.wait_for_function("() => document.querySelector('#output').textContent && !document.querySelector('#run').disabled",
                           timeout=READY_MS + DONE_MS)
    return page.locator("#output").inner_text()


@needs_tiny
def test_from_python(python_page):
    """What stands in the page when it opens: the sample with its words' times, on the site's own kernels."""
    assert not python_page.locator("#output").inner_text()
    code = python_page.get_by_label("Python").input_value()
    lines = run(python_page, code).splitlines()
    assert python_page.locator("#status").inner_text().startswith("Done in")
    words = [line.split() for line in lines[1:]]
    assert len(words) > 8 and len(words) == len(lines[0].split())
    times = [float(time) for time, _ in words]
    assert times == sorted(times)
    assert "wasm" in run(python_page, "from candlewick import api\napi._loaded['whisper'].executor.name")


@needs_miniature
def test_what_a_person_writes_in_python(python_page):
    """A model by its address, samples from NumPy, subtitles; and an error reads as an error of Python."""
    code = """
import numpy as np
from candlewick import transcribe
noise = np.random.default_rng(0).uniform(-0.3, 0.3, 16000).astype(np.float32)
result = await transcribe(noise, model="../../models/test-whisper/", executor="numpy", temperatures=(0.0,),
                          no_speech_threshold=None, logprob_threshold=None)
print(result.duration, "-->" in result.to_srt())
"""
    assert run(python_page, code).split() == ["1.0", "True"]
    for wrong, says in (("model='no-such-model'", "models/no-such-model/"), ("langauge='de'", "langauge is not known"),
                        ("model='../../models/test-llama/'", "is a model for generate()")):
        said = run(python_page, f"from candlewick import transcribe\nawait transcribe('../samples/candle.wav', {wrong})")
        assert (says in said and "ValueError" in said) or "WeightsError" in said, said
    code = "from candlewick import generate\nresult = await generate([{'role': 'user', 'content': 'hello'}], " \
           "model='test-llama', max_tokens=4, greedy=True)\nlen(result.token_ids)"
    assert run(python_page, code).strip() == "4"
    assert "404" in run(python_page, "from candlewick import transcribe\nawait transcribe('nowhere.wav')")


@needs_miniature
def test_bytes_and_compressed_sound_in_python(python_page, browser):
    """The browser decodes what Python does not read."""
    assert browser.version
    python_page.evaluate("(bytes) => { window.wavBytes = Uint8Array.from(bytes); }", list(noise_wav(1.0)))
    code = """
import js
from candlewick import transcribe
data = js.wavBytes.to_bytes()
result = await transcribe(data, model="test-whisper")
print(round(result.duration, 1))
try:
    await transcribe(b"ID3" + bytes(400), model="test-whisper")
except ValueError as error:
    print(error)
"""
    said = run(python_page, code).splitlines()
    assert said[0] == "1.0" and "this browser cannot read it" in said[1]
