"""Live listening as a person meets it: Chromium's fake microphone plays a file, and the words are read while it plays."""

from __future__ import annotations

import re
import time
import wave

import numpy as np
import pytest
from playwright.sync_api import expect

from candlewick.commands.browser import chromium_path
from tests.browser.pages import DONE_MS, ROOT, SAMPLE, give, until, visit, wait_done, wait_ready, wav, words

pytestmark = pytest.mark.skipif(
    not (ROOT / "models" / "whisper-tiny.en" / "model.safetensors").is_file(),
    reason="whisper-tiny.en is not here; run python3 serve.py --setup",
)

FAKE = "--use-fake-device-for-media-stream"
SHOWN = "[...document.querySelectorAll('#live-lines .said')].map((line) => line.textContent).join(' ').toLowerCase()"


@pytest.fixture(scope="module")
def talking(browser, tmp_path_factory):
    """A browser whose microphone says the sample, is quiet for some seconds, and says it again."""
    with wave.open(str(SAMPLE)) as file:
        clip = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    quiet = np.zeros(16_000 * 4)
    path = tmp_path_factory.mktemp("live") / "talk.wav"
    path.write_bytes(wav(np.concatenate([quiet[:16_000], clip, quiet, clip, quiet])))
    other = browser.browser_type.launch(executable_path=chromium_path(), args=[
        "--no-sandbox", FAKE, "--use-fake-ui-for-media-stream", f"--use-file-for-fake-audio-capture={path}"])
    yield other
    other.close()


# what a test takes away: the microphone's stream, the engine's workers
HOLD = """
  const ask = MediaDevices.prototype.getUserMedia, Real = Worker;
  MediaDevices.prototype.getUserMedia = async function (wish) { return window.stream = await ask.call(this, wish); };
  window.workers = [];
  window.Worker = class extends Real { constructor(...all) { super(...all); workers.push(this); } };
"""


@pytest.fixture(scope="module")
def page(talking, site):
    """One page for all: each test leaves it able to listen again."""
    with visit(talking, site, "/web/") as page:
        page.add_init_script(HOLD)
        page.goto(site + "/web/whisper/")
        wait_ready(page)
        yield page


def start(page) -> None:
    page.get_by_role("button", name="Live", exact=True).click()
    expect(page.locator("#live-card")).to_have_attribute("data-state", "listening", timeout=DONE_MS)


def wait_words(page, text: str) -> None:
    """This text is seen in the live lines."""
    page.wait_for_function(f"(text) => {SHOWN}.includes(text)", arg=text, timeout=DONE_MS)


def ended(page) -> str:
    """Live listening is over, and its job is shown -> the name of the job."""
    page.locator("#live-card").wait_for(state="hidden", timeout=DONE_MS)
    title = page.locator("#job-name")
    expect(title).to_have_text(re.compile(r"Live \d+"))
    wait_done(page, title.inner_text())
    return title.inner_text()


def test_words_appear_while_they_are_said(page):
    start(page)
    expect(page).to_have_title(re.compile("^● Live"))
    expect(page.get_by_role("meter", name="Microphone level")).to_be_visible()
    expect(page.get_by_role("button", name="Record", exact=True)).to_be_disabled()
    wait_words(page, "small candle")
    expect(page.locator("#live-facts")).to_contain_text("after they are said")
    # a line that is over is dark, and readers were told its words
    page.locator("#live-lines li:not(.pending)").first.wait_for(timeout=DONE_MS)
    expect(page.locator("#live-said")).to_contain_text("candle")
    assert page.locator("#live-lines").get_attribute("aria-live") is None
    page.get_by_role("button", name="Stop", exact=True).click()
    name = ended(page)
    assert "small candle" in words(page)
    expect(page.locator("#job-facts")).to_contain_text("of sound")
    # it is a job like any other: played, copied, saved, with its times
    expect(page.locator("#player")).to_be_visible()
    with page.expect_download() as got:
        page.get_by_role("button", name="Download SRT subtitles").click()
    text = open(got.value.path(), encoding="utf-8").read()
    assert got.value.suggested_filename == f"{name}.srt" and text.startswith("1\n00:00:") and "candle" in text
    starts = [float(s) for s in re.findall(r"00:00:(\d\d),", text)]
    assert starts == sorted(starts)
    with page.expect_download() as got:
        page.get_by_role("button", name="Save recording").click()
    with wave.open(str(got.value.path())) as file:
        assert file.getnframes() / file.getframerate() > 4
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert np.abs(sound).max() > 1000
    expect(page).not_to_have_title(re.compile("Live"))
    expect(page.get_by_role("button", name="Record", exact=True)).to_be_enabled()


def test_stop_at_once_keeps_the_words(page):
    """Stopped in the middle of a sentence: what was said until then is decoded, and nothing is listened to any more."""
    start(page)
    wait_words(page, "upon a time")
    page.keyboard.press("Escape")
    ended(page)
    assert "upon a time" in words(page)
    live = page.evaluate("navigator.mediaDevices.enumerateDevices().then((all) => all.length)")
    assert live and page.locator("#chip").inner_text() == "Ready"


def test_the_last_words_are_skipped_and_what_was_sure_stays(page):
    start(page)
    page.wait_for_function("() => document.querySelector('#live-lines .sure')?.textContent.includes('upon')", timeout=DONE_MS)
    page.evaluate("() => { const stop = document.querySelector('#live-stop'); stop.click(); stop.click(); }")
    ended(page)
    assert "upon" in words(page)


def test_a_file_waits_for_its_turn(page):
    """What is given while listening is transcribed afterwards; live does not begin while something is transcribed."""
    start(page)
    give(page, "second.wav", SAMPLE.read_bytes(), "audio/wav")
    expect(page.locator("#doing")).to_have_text("Waits until live listening ends")
    wait_words(page, "small candle")
    page.keyboard.press("l")
    page.locator("#live-card").wait_for(state="hidden", timeout=DONE_MS)
    page.locator("#files li").filter(has_text="second.wav").filter(has_text="done").wait_for(timeout=DONE_MS)
    page.locator("#files .pick").filter(has_text="second.wav").click()
    wait_done(page, "second.wav")
    assert "small candle" in words(page)


# what a browser does to a page that nobody sees: nothing is drawn, and timers come once a second
HIDE = """(hidden) => {
  const give = (name, get) => Object.defineProperty(document, name, { configurable: true, get });
  give("hidden", () => hidden);
  give("visibilityState", () => (hidden ? "hidden" : "visible"));
  window.seen ??= { requestAnimationFrame, setTimeout };
  window.requestAnimationFrame = hidden ? () => 0 : seen.requestAnimationFrame;
  const slow = (act, ms = 0, ...more) => seen.setTimeout.call(window, act, Math.max(ms, 1000), ...more);
  window.setTimeout = hidden ? slow : seen.setTimeout;
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_page_in_the_background_goes_on_hearing(page):
    """Words come while nobody looks; the microphone goes away meanwhile. All of it stands there on return."""
    start(page)
    page.evaluate(HIDE, True)
    until(page, "async () => /small candle/i.test(document.querySelector('#live-lines').textContent)", DONE_MS)
    until(page, "async () => document.querySelector('#live-lines li:not(.pending)')", DONE_MS)
    page.evaluate("""() => {
      const [track] = stream.getAudioTracks();
      track.stop();
      track.dispatchEvent(new Event("ended"));
    }""")
    until(page, "async () => document.querySelector('#live-card').hidden", DONE_MS)
    page.evaluate(HIDE, False)
    ended(page)
    expect(page.locator("#input-outcome")).to_contain_text("The microphone went away. What was heard until then is kept.")
    assert "small candle" in words(page)
    expect(page.locator("#job-facts")).not_to_contain_text("missing")


def test_a_page_that_the_browser_froze_goes_on(page):
    """Frozen for some seconds, as phones do: nothing is lost, or what is lost is told; listening goes on by itself."""
    start(page)
    wait_words(page, "upon a time")
    session = page.context.new_cdp_session(page)
    session.send("Page.setWebLifecycleState", {"state": "frozen"})
    time.sleep(3)
    session.send("Page.setWebLifecycleState", {"state": "active"})
    wait_words(page, "small candle")
    expect(page.locator("#live-card")).to_have_attribute("data-state", "listening")
    page.keyboard.press("Escape")
    ended(page)
    assert "small candle" in words(page)


def test_a_page_in_the_background_is_told_what_is_missing(page):
    """Sound that did not come while time went by: told when the page is looked at again."""
    start(page)
    wait_words(page, "upon a time")
    page.evaluate("""() => {
      const now = performance.now.bind(performance);
      performance.now = () => now() + 60_000;             // a minute, of which no sound came
      document.dispatchEvent(new Event("visibilitychange"));
    }""")
    expect(page.locator("#live-notes")).to_contain_text(re.compile(r"For \d{2,3} s no sound came from the microphone"))
    page.keyboard.press("Escape")
    ended(page)
    expect(page.locator("#job-facts")).to_contain_text("What was said then is missing")


def test_the_device_goes_away(page):
    start(page)
    wait_words(page, "upon a time")
    page.evaluate("""() => {
      const [track] = stream.getAudioTracks();
      track.stop();
      track.dispatchEvent(new Event("ended"));
    }""")
    ended(page)
    expect(page.locator("#input-outcome")).to_contain_text("The microphone went away. What was heard until then is kept.")
    assert "upon a time" in words(page)


def test_refused_in_words(browser, site):
    args = ["--no-sandbox", FAKE, "--deny-permission-prompts"]
    refusing = browser.browser_type.launch(executable_path=chromium_path(), args=args)
    try:
        with visit(refusing, site) as page:
            page.get_by_role("button", name="Live", exact=True).click()
            expect(page.get_by_role("alert")).to_contain_text(re.compile("Allow it in the address bar|No microphone was found"))
            expect(page.locator("#live-card")).to_be_hidden()
            expect(page.get_by_role("button", name="Live", exact=True)).to_be_enabled()
            expect(page.get_by_role("button", name="Record", exact=True)).to_be_enabled()
    finally:
        refusing.close()


ASKING = """
  const ask = MediaDevices.prototype.getUserMedia;
  window.answers = [], window.streams = [];
  MediaDevices.prototype.getUserMedia = async function (wish) {
    await new Promise((resolve) => answers.push(resolve));
    const stream = await ask.call(this, wish);
    streams.push(stream);
    return stream;
  };
"""


def test_stopped_while_the_browser_asks(talking, site):
    """Nobody answers the browser's question: Stop works all the same, and a microphone that is given later goes off at once."""
    with visit(talking, site, "/web/") as page:
        page.add_init_script(ASKING)
        page.goto(site + "/web/whisper/")
        live, say = page.get_by_role("button", name="Live", exact=True), page.locator("#mic-say")
        live.click()
        expect(page.locator("#live-card")).to_have_attribute("data-state", "starting")
        page.locator("#live-stop").click()
        expect(page.locator("#live-card")).to_be_hidden()
        expect(live).to_be_enabled()
        expect(page.locator("#quiet")).to_be_visible()
        page.get_by_role("button", name="Record", exact=True).click()
        expect(say).to_have_text("Asking for the microphone")
        page.get_by_role("button", name="Stop asking for the microphone").click()
        expect(say).to_have_text("Press to record")
        page.evaluate("() => answers.forEach((answer) => answer())")
        page.wait_for_function("() => streams.length === 2 && streams.every((s) => s.getTracks()[0].readyState === 'ended')")
        assert page.get_by_role("alert").count() == 0


def test_a_recording_of_hours_has_an_end(page):
    """The tape: 16-bit pieces that make one WAV file, no more bytes than were agreed, and a picture of all of it."""
    found = page.evaluate("""async () => {
      const { Tape } = await import("/web/lib/tape.js");
      const tape = new Tape(1000, 2 * 25_000);
      for (let i = 0; i < 400; i++) {
        tape.add(Float32Array.from({ length: 100 }, (_, j) => (i % 10) / 10 + (j === 50 ? 0.05 : 0)));
      }
      const bytes = new DataView(await tape.wav().arrayBuffer());
      return { full: tape.full, seconds: tape.seconds, length: bytes.byteLength, data: bytes.getUint32(40, true),
        rate: bytes.getUint32(24, true), sample: bytes.getInt16(44 + 2 * 350, true),
        levels: tape.levels.length, level: tape.levels[3] };
    }""")
    assert found["full"] and found["seconds"] == 25 and found["length"] == 44 + 50_000 and found["data"] == 50_000
    assert found["rate"] == 1000 and found["sample"] == pytest.approx(0.35 * 32767, abs=1) and found["levels"] == 250
    assert found["level"] == pytest.approx(0.35, abs=1e-6)


def test_a_new_engine_goes_on(page):
    """The engine worker ends in the middle: the session goes on with another one, its times too."""
    start(page)
    wait_words(page, "upon a time")
    before = page.evaluate("workers.length")
    page.evaluate("workers.at(-1).dispatchEvent(new ErrorEvent('error', { message: 'gone' }))")
    page.wait_for_function("(n) => workers.length > n", arg=before, timeout=DONE_MS)
    # what is said from now on is heard again, from its own time on
    page.wait_for_function("() => document.querySelector('#live-lines li:last-child:not(:first-child) .said')?.textContent",
                           timeout=DONE_MS)
    wait_words(page, "small candle")
    page.keyboard.press("Escape")
    ended(page)
    times = [int(m) * 60 + int(s) for m, s in (t.split(":") for t in page.locator("#lines .time").all_text_contents())]
    assert times == sorted(times) and len(times) > 1 and "small candle" in words(page)
