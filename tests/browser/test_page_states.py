"""The Whisper page while things are not ready or not all there: loading, no isolation, an insecure address, no microphone,
other settings, a person's own model. A fresh page each."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from candlewick.commands.browser import chromium_path
from tests.browser.pages import (
    DONE_MS,
    ROOT,
    SAMPLE,
    give,
    held_back,
    sample_times,
    try_sample,
    visit,
    wait_done,
    wait_ready,
    wav,
    words,
)

pytestmark = pytest.mark.skipif(
    not (ROOT / "models" / "whisper-tiny.en" / "model.safetensors").is_file(),
    reason="whisper-tiny.en is not here; run python3 serve.py --setup",
)
MINIATURE = ROOT / "models" / "test-whisper"
WEIGHTS = "**/models/whisper-tiny.en/model.safetensors"


@pytest.fixture(scope="module")
def other_browser(browser):
    """Start the browser under test once more with other switches."""
    opened = []

    def start(*switches: str):
        opened.append(browser.browser_type.launch(executable_path=chromium_path(), args=["--no-sandbox", *switches]))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


# Whether the meter has ever drawn in its upper part: what it shows moves on.
LOUD = """() => {
  window.loud = false;
  const canvas = document.querySelector("#level");
  const look = () => {
    const row = canvas.width > 0 ? canvas.getContext("2d").getImageData(0, canvas.height / 4, canvas.width, 1).data : [];
    loud ||= row.some((x) => x);
    if (!loud) setTimeout(look, 100);
  };
  look();
}"""

# ---- microphone -------------------------------------------------------------------------------------------------------


def test_recording_made_while_the_model_loads_is_transcribed(other_browser, site):
    talking = other_browser("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
                            f"--use-file-for-fake-audio-capture={SAMPLE}%noloop")
    with visit(talking, site) as page:
        page.evaluate(LOUD)
        page.get_by_role("button", name="Record", exact=True).click()
        expect(page.locator("#mic-say")).to_have_text(re.compile(r"Recording \d:(0[1-9]|[1-5]\d)"))
        expect(page.get_by_role("meter", name="Microphone level")).to_be_visible()
        expect(page.get_by_role("button", name="Try the sample")).to_be_disabled()
        expect(page.locator("#mic-say")).to_have_text(re.compile(r"Recording (0:(0[89]|[1-5]\d)|[1-9]:)"), timeout=60_000)
        assert page.evaluate("() => loud"), "nothing was drawn in the upper part of the meter: no level was seen"
        page.get_by_role("button", name="Stop recording").click()
        expect(page.get_by_role("heading", name="Recording 1")).to_be_visible()
        wait_done(page, "Recording 1")
        assert "small candle" in words(page), words(page)
        with page.expect_download() as got:
            page.get_by_role("button", name="Save recording").click()
        assert got.value.suggested_filename == "Recording 1.wav"
        assert open(got.value.path(), "rb").read(4) == b"RIFF"

        # again, with keys, stopped by Escape
        page.keyboard.press("r")
        expect(page.locator("#mic-say")).to_have_text(re.compile(r"Recording \d:(0[1-9]|[1-5]\d)"))
        page.keyboard.press("Escape")
        wait_done(page, "Recording 2")


def test_silent_microphone_is_noticed(other_browser, site, tmp_path):
    (tmp_path / "silence.wav").write_bytes(wav(np.zeros(16_000)))
    muted = other_browser("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
                          f"--use-file-for-fake-audio-capture={tmp_path / 'silence.wav'}")
    with visit(muted, site) as page:
        page.get_by_role("button", name="Record", exact=True).click()
        expect(page.locator("#mic-hint")).to_contain_text("Is it muted?")


def test_refused_microphone_in_words_and_files_still_work(other_browser, site):
    refusing = other_browser("--use-fake-device-for-media-stream", "--deny-permission-prompts")
    with visit(refusing, site) as page:
        page.get_by_role("button", name="Record", exact=True).click()
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("No microphone")
        expect(alert).to_contain_text(re.compile("Allow it in the address bar|No microphone was found"))
        expect(page.get_by_role("button", name="Record", exact=True)).to_be_enabled()
        try_sample(page)
        assert "small candle" in words(page)


# ---- loading -----------------------------------------------------------------------------------------------------------


def test_stop_while_loading_then_go_on(browser, site):
    with visit(browser, site, "/web/") as page, held_back(page, WEIGHTS) as let_go:
        page.goto(f"{site}/web/whisper/")
        expect(page.get_by_role("button", name="Record", exact=True)).to_be_enabled()  # the shell is usable at once
        page.get_by_role("button", name="Try the sample").click()
        expect(page.locator("#doing")).to_contain_text("Waiting for the model")
        page.get_by_role("button", name="Stop", exact=True).click()
        wait_done(page, "Sample")
        expect(page.get_by_role("heading", name="Stopped")).to_be_visible()
        expect(page.locator("#chip")).to_have_text("Not loaded")
        expect(page.get_by_role("button", name=re.compile(r"Load the model \(7\d.* MB\)"))).to_be_visible()
        let_go()
        page.get_by_role("button", name="Transcribe again").click()  # loads by itself
        wait_done(page, "Sample")
        assert "small candle" in words(page)
        expect(page.locator("#chip")).to_have_text("Ready")


def test_loading_is_told_in_order(browser, site):
    """Download and start of Python run side by side; what is shown does not jump between them, nor go back."""
    with visit(browser, site, "/web/") as page:
        devtools = page.context.new_cdp_session(page)
        devtools.send("Network.enable")
        devtools.send("Network.emulateNetworkConditions",
                      {"offline": False, "latency": 5, "downloadThroughput": 12e6, "uploadThroughput": 1e6})
        page.add_init_script("""
          window.told = [];
          addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
            const words = document.querySelector("#load-doing")?.textContent ?? "";
            const part = document.querySelector("#load-bar")?.value;
            if (window.told.at(-1)?.words !== words) window.told.push({ words, part });
          }).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true }));""")
        page.goto(site + "/web/whisper/")
        wait_ready(page)
        told = page.evaluate("window.told")
        stages = [re.sub(":.*", "", each["words"]) for each in told]
        order = [name for name, before in zip(stages, ["", *stages]) if name and name != before]
        assert order.count("Downloading the model") == 1, order
        for stage in ("Downloading the model", "Reading the weights"):
            parts = [each["part"] for each, name in zip(told, stages) if name == stage]
            assert parts == sorted(parts), (stage, parts)


@pytest.mark.parametrize("then", ["again", "load", "sample"])
def test_stop_while_loading_and_on_at_once(browser, site, then):
    """The worker answers a stop late; a person who has changed his mind before that gets a load of his own."""
    with visit(browser, site, "/web/") as page, held_back(page, WEIGHTS) as let_go:
        page.goto(f"{site}/web/whisper/")
        page.get_by_role("button", name="Try the sample").click()
        expect(page.locator("#doing")).to_contain_text("Waiting for the model")
        stop = "load-stop" if then == "load" else "stop"
        page.evaluate("([stop, then]) => { for (const id of [stop, then]) document.getElementById(id).click(); }", [stop, then])
        expect(page.locator("#chip")).to_contain_text("Loading")
        let_go()
        wait_ready(page)
        if then != "load":  # there the recording was stopped with the load it waited for
            wait_done(page, "Sample")
            assert "small candle" in words(page)


def test_model_that_cannot_be_fetched_is_told_and_can_be_loaded_again(browser, site):
    with visit(browser, site, "/web/", allow=("404",)) as page:
        page.context.route("**/models/**", lambda route: route.fulfill(status=404, body="no"))
        page.goto(site + "/web/whisper/")
        alert = page.locator("#load-outcome").get_by_role("alert")
        expect(alert).to_contain_text("The model could not be downloaded", timeout=DONE_MS)
        expect(alert).to_contain_text("/models/whisper-tiny.en/")
        expect(page.locator("#chip")).to_have_text("Not loaded")
        page.context.unroute("**/models/**")
        page.get_by_role("button", name="Load again").click()
        wait_ready(page)
        expect(alert).to_have_count(0)


# ---- threads, isolation, settings -----------------------------------------------------------------------------------------


def test_without_isolation_one_thread_and_the_cause(browser, site):
    """The same words, slower, and the page says why."""

    def bare(route):
        answer = route.fetch()
        kept = {k: v for k, v in answer.headers.items() if not k.startswith("cross-origin-")}
        route.fulfill(response=answer, headers=kept)

    context = browser.new_context()
    page = context.new_page()
    page.route("**/web/whisper/", bare)
    page.goto(site + "/web/whisper/")
    assert page.evaluate("() => crossOriginIsolated") is False
    try_sample(page)
    assert "small candle" in words(page)
    expect(page.locator("#run-why")).to_contain_text("isolation headers")
    expect(page.locator("#run-facts")).to_contain_text("1 of ")
    context.close()


def test_insecure_address_says_what_is_missing_and_still_transcribes(other_browser, site):
    port = site.rsplit(":", 1)[1]
    named = other_browser("--host-resolver-rules=MAP candlewick.test 127.0.0.1")
    with visit(named, f"http://candlewick.test:{port}", allow=("Cross-Origin-Opener-Policy",)) as page:
        assert page.evaluate("() => isSecureContext") is False
        page.get_by_role("button", name=re.compile("Load the model")).click()  # elsewhere than here it waits to be asked
        give(page, "clip.wav", SAMPLE.read_bytes())
        wait_done(page, "clip.wav")
        assert "small candle" in words(page)
        expect(page.locator("#run-why")).to_contain_text("https")
        page.get_by_role("button", name="Record", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("only on https addresses and on localhost")


def test_threads_and_executor_are_the_persons_choice(browser, site):
    with visit(browser, site) as page:
        wait_ready(page)
        page.get_by_label("Threads").select_option("1")
        expect(page.locator("#run-facts")).to_contain_text("1 of ", timeout=DONE_MS)
        page.get_by_label("Executor").select_option("numpy")
        expect(page.locator("#run-facts").get_by_text("NumPy")).to_be_visible(timeout=DONE_MS)
        expect(page.get_by_label("Threads")).to_be_disabled()
        give(page, "long.wav", sample_times(2))
        expect(page.locator("#doing")).to_contain_text("Listening", timeout=DONE_MS)
        page.get_by_label("Executor").select_option("auto")  # in the middle of a run
        wait_done(page, "long.wav")
        wait_ready(page)
        try_sample(page)
        assert "small candle" in words(page)
        page.reload()
        expect(page.get_by_label("Threads")).to_have_value("1")


@pytest.mark.skipif(not MINIATURE.is_dir(), reason="models/test-whisper is not here")
def test_own_model_folder(browser, site):
    with visit(browser, site) as page:
        wait_ready(page)
        page.get_by_text("Use another Whisper model").click()
        page.locator("#own-files").set_input_files(ROOT / "web" / "samples")
        expect(page.locator("#own-outcome")).to_contain_text("needs config.json")
        page.locator("#own-files").set_input_files(MINIATURE)
        expect(page.get_by_role("heading", name="test-whisper")).to_be_visible()
        expect(page.locator("#model-facts")).to_contain_text("Memory it needs")
        page.get_by_role("button", name=re.compile("Load the model")).click()
        wait_ready(page)
        try_sample(page)  # random weights: whatever it says, it ends
        page.get_by_role("button", name="Back to Whisper tiny.en").click()
        try_sample(page)
        assert "small candle" in words(page)
