"""Several sounds: they wait for each other, none is lost, each keeps its result, and all can be taken away at once."""

from __future__ import annotations

import base64
import json
import re
import zipfile

import numpy as np
import pytest
from playwright.sync_api import expect

from candlewick.commands.browser import chromium_path
from candlewick.models.whisper import subtitles
from tests.browser.pages import (
    DONE_MS,
    ROOT,
    SAMPLE,
    give,
    held_back,
    hold,
    sample_times,
    visit,
    wait_done,
    wait_held,
    wait_ready,
    wav,
    words,
)

pytestmark = pytest.mark.skipif(
    not (ROOT / "models" / "whisper-tiny.en" / "model.safetensors").is_file(),
    reason="whisper-tiny.en is not here; run python3 serve.py --setup",
)
RATE = 16_000


def clip() -> np.ndarray:
    return np.frombuffer(SAMPLE.read_bytes()[44:], "<i2").astype(np.float32) / 32768


@pytest.fixture(scope="module")
def shared_page(browser, site):
    with visit(browser, site, gated=True) as page:
        wait_ready(page)
        yield page


@pytest.fixture
def page(shared_page):
    """The page with an empty list."""
    yield shared_page
    shared_page.keyboard.press("Escape")
    expect(shared_page.locator("#job[aria-busy=true]")).to_have_count(0, timeout=DONE_MS)
    while shared_page.locator("#files li").count():
        shared_page.locator("#files .remove").first.evaluate("(button) => button.click()")


def drop_all(page, files: list[tuple[str, bytes]]) -> None:
    page.evaluate(
        """(files) => {
          const dataTransfer = new DataTransfer();
          for (const [name, text] of files) {
            dataTransfer.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name));
          }
          const drop = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
          document.querySelector("main").dispatchEvent(drop);
        }""",
        [[name, base64.b64encode(data).decode()] for name, data in files])


def row(page, name: str):
    return page.locator("#files li").filter(has=page.locator(".name", has_text=re.compile(f"^{re.escape(name)}$")))


def wait_state(page, name: str, state: str) -> None:
    page.locator(f"#files li[data-state={state}]").filter(
        has=page.locator(".name", has_text=re.compile(f"^{re.escape(name)}$"))).wait_for(timeout=DONE_MS)


def test_several_files_one_of_them_bad_each_with_its_result(page):
    """Names that are HTML stay names; a file that fails stops nothing; a pick shows what was found in it."""
    drop_all(page, [("one.wav", SAMPLE.read_bytes()), ("<b>bad</b>.mp3", b"\x89PNG\r\n\x1a\n" + bytes(99)),
                    ("silent.wav", wav(np.zeros(RATE * 2))), ("one.wav", SAMPLE.read_bytes()),
                    ("half.wav", wav(clip()[: int(3.3 * RATE)]))])
    expect(page.locator("#files li")).to_have_count(5)
    wait_state(page, "half.wav", "done")
    expect(page.locator("#queue-sum")).to_have_text("4 of 5 done, 1 failed")
    expect(page.locator("#files li .state")).to_have_text(
        ["done · 0:07", re.compile("failed: This is a PNG picture"), "no speech found", "done · 0:07", "done · 0:03"])
    expect(page.locator("#job-name")).to_have_text("half.wav")
    short = words(page)
    row(page, "one.wav").first.locator(".pick").click()
    expect(page.locator("#job-name")).to_have_text("one.wav")
    assert len(words(page)) > len(short) and "small candle" in words(page)
    expect(row(page, "one.wav").first).to_have_attribute("aria-current", "true")
    expect(page.locator("#length")).to_have_text("0:07")
    row(page, "<b>bad</b>.mp3").locator(".pick").click()
    expect(page.get_by_role("alert")).to_contain_text("PNG picture")
    expect(page.get_by_role("button", name="Copy text")).to_be_hidden()
    row(page, "half.wav").locator(".pick").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    assert words(page) == short

    for kind in ("txt", "srt", "vtt", "json"):
        with page.expect_download() as got:
            page.locator(f"#save-all [data-all={kind}]").click()
        assert got.value.suggested_filename == f"transcripts-{kind}.zip"
        with zipfile.ZipFile(got.value.path()) as archive:
            assert archive.testzip() is None
            assert archive.namelist() == [f"one.{kind}", f"one (2).{kind}", f"half.{kind}"]
            texts = [archive.read(name).decode() for name in archive.namelist()]
        assert texts[0] != texts[2] and "candle" in texts[0]
        with page.expect_download() as got:
            page.locator(f"#take-away [data-format={kind}]").click()
        assert got.value.path().read_text() == texts[2]


def test_a_later_sound_waits_and_can_be_taken_away(page):
    """The sample, and a file, while another is transcribed: what is shown stays, the list tells, Remove removes."""
    hold(page, "progress", stage="transcribe", least=1)
    give(page, "long.wav", sample_times(4))
    wait_held(page)
    expect(page.locator("#doing")).to_contain_text("of 1:")
    page.get_by_role("button", name="Try the sample").click()
    give(page, "gone.wav", SAMPLE.read_bytes())
    expect(page.locator("#job-name")).to_have_text("long.wav")
    expect(page.locator("#files li")).to_have_count(3)
    expect(row(page, "Sample").locator(".state")).to_have_text("waits")
    row(page, "Sample").locator(".pick").click()
    expect(page.locator("#doing")).to_have_text("Waits for long.wav")
    page.get_by_role("button", name="Remove gone.wav").click()
    expect(page.locator("#files li")).to_have_count(2)
    row(page, "long.wav").locator(".pick").click()
    page.get_by_role("button", name="Stop", exact=True).click()
    wait_state(page, "Sample", "done")  # a stop is of the one that is shown
    wait_state(page, "long.wav", "stopped")
    expect(row(page, "long.wav").locator(".state")).to_have_text(re.compile(r"stopped( at \d:\d\d)?"))


def test_stop_all_and_clear(page):
    hold(page, "progress")
    give(page, "long.wav", sample_times(4))
    give(page, "two.wav", SAMPLE.read_bytes())
    give(page, "three.wav", SAMPLE.read_bytes())
    page.get_by_role("button", name="Stop all").click()
    for name in ("long.wav", "two.wav", "three.wav"):
        wait_state(page, name, "stopped")
    row(page, "two.wav").locator(".pick").click()
    page.get_by_role("button", name="Transcribe again").click()
    wait_state(page, "two.wav", "done")
    page.get_by_role("button", name="Clear the list").click()
    expect(page.locator("#queue")).to_be_hidden()
    expect(page.locator("#job-name")).to_have_text("two.wav")


def test_stop_and_go_on_is_the_whole(page):
    """What a stop keeps is gone on with, and the end is as if there had been none."""
    hold(page, "progress", stage="transcribe", least=10)
    give(page, "long.wav", sample_times(5))
    wait_held(page)
    expect(page.locator("#lines li:not(.pending)").nth(2)).to_be_visible()
    expect(page.locator("#doing")).to_contain_text(re.compile(r"^(0:[1-5]|1:)"))
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("heading", name="Stopped")).to_be_visible(timeout=DONE_MS)
    page.get_by_role("button", name=re.compile(r"^Go on from \d:\d\d$")).click()
    expect(page.locator("#job-facts")).to_contain_text("went on from")
    page.locator("#job[aria-busy=false]").wait_for(timeout=DONE_MS)
    gone_on = page.locator("#lines .time").all_text_contents(), words(page)
    page.get_by_role("button", name="Transcribe again").click()  # busy from then on, until it is done
    page.locator("#job[aria-busy=false]").wait_for(timeout=DONE_MS)
    expect(page.locator("#job-facts")).not_to_contain_text("went on")
    assert (page.locator("#lines .time").all_text_contents(), words(page)) == gone_on
    assert words(page).count("once upon a time") == 5


def test_another_executor_takes_over_what_runs_and_what_waits(page):
    """The one that runs goes on where it is; those that wait go on waiting. None is stopped."""
    hold(page, "progress", stage="transcribe", least=10)
    give(page, "long.wav", sample_times(5))
    give(page, "two.wav", SAMPLE.read_bytes())
    wait_held(page)
    page.get_by_label("Threads").select_option("1")
    wait_state(page, "two.wav", "done")
    wait_state(page, "long.wav", "done")
    page.get_by_label("Threads").select_option("")
    wait_ready(page)
    row(page, "long.wav").locator(".pick").click()
    assert words(page).count("once upon a time") == 5


def test_what_waits_for_the_model_waits_for_the_one_on_another_executor(browser, site):
    """The weights are held back while the choice changes: the file that waits for them is transcribed in the end."""
    with visit(browser, site, "/web/") as page, held_back(page, "**/whisper-tiny.en/model.safetensors") as let_go:
        page.goto(f"{site}/web/whisper/")
        give(page, "first.wav", SAMPLE.read_bytes())
        expect(page.locator("#doing")).to_contain_text("Waiting for the model", timeout=DONE_MS)
        page.get_by_label("Threads").select_option("1")
        expect(page.locator("#doing")).to_contain_text("Waiting for the model")
        let_go()
        page.locator("#job[aria-busy=false]").wait_for(timeout=DONE_MS)
        assert "small candle" in words(page)
        expect(page.locator("#run-facts")).to_contain_text("1 of ")


def test_a_new_engine_goes_on_where_the_last_one_ended(browser, site):
    """The engine dies in the middle: nobody has to press anything, and what was found stays."""
    with visit(browser, site, "/web/") as page:
        page.add_init_script("""
          const Real = Worker;
          window.workers = [];
          window.Worker = class extends Real { constructor(...all) { super(...all); workers.push(this); } };
        """)
        page.goto(f"{site}/web/whisper/")
        wait_ready(page)
        page.evaluate("""() => {   // when a line of the second window is there, however fast the machine is
          const watch = new MutationObserver(() => {
            if (document.querySelectorAll("#lines li:not(.pending)").length < 5) return;
            watch.disconnect();
            workers.at(-1).dispatchEvent(new ErrorEvent("error", { message: "gone" }));
          });
          watch.observe(document.querySelector("#lines"), { childList: true, subtree: true, attributes: true });
        }""")
        give(page, "long.wav", sample_times(4))
        page.wait_for_function("() => workers.length === 2", timeout=DONE_MS)
        page.locator("#job[aria-busy=false]").wait_for(timeout=DONE_MS)
        expect(page.locator("#job-facts")).to_contain_text(re.compile(r"went on from \d:\d\d"))
        assert words(page).count("once upon a time") == 4
        starts = page.locator("#lines .time").all_text_contents()
        assert starts == sorted(starts)


def test_lines_of_chosen_length(page):
    page.locator("#options > summary").click()
    page.get_by_label("Time every word").check()
    give(page, "words.wav", SAMPLE.read_bytes())
    wait_done(page, "words.wav")
    page.get_by_label("Time every word").uncheck()
    page.locator("#options > summary").click()
    with page.expect_download() as got:
        page.locator("#take-away [data-format=json]").click()
    result = json.loads(got.value.path().read_text())
    for length in ("20", "1"):
        page.get_by_label("Lines of subtitles").select_option(length)
        with page.expect_download() as got:
            page.locator("#take-away [data-format=srt]").click()
        assert got.value.path().read_text() == subtitles.to_srt(subtitles.in_lines(result, int(length)))
    page.get_by_label("Lines of subtitles").select_option("")


def test_a_recording_made_meanwhile_and_a_microphone_that_goes_away(browser, site):
    """What was recorded until the microphone was taken waits behind the file that is transcribed."""
    switches = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    talking = browser.browser_type.launch(executable_path=chromium_path(), args=switches)
    try:
        with visit(talking, site, gated=True) as page:
            wait_ready(page)
            page.evaluate("""() => {
              const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
              navigator.mediaDevices.getUserMedia = async (wish) => window.taken = await ask(wish);
            }""")
            hold(page, "progress")
            give(page, "long.wav", sample_times(4))
            wait_held(page)
            page.get_by_role("button", name="Record", exact=True).click()
            expect(page.locator("#mic-say")).to_have_text(re.compile(r"Recording \d:(0[1-9]|[1-5]\d)"), timeout=DONE_MS)
            drop_all(page, [("dropped.wav", SAMPLE.read_bytes())])
            page.evaluate("() => taken.getAudioTracks()[0].dispatchEvent(new Event('ended'))")
            expect(page.locator("#files li .name")).to_have_text(["long.wav", "dropped.wav", "Recording 1"], timeout=DONE_MS)
            expect(page.locator("#mic-say")).to_have_text("Press to record")
            page.get_by_role("button", name="Stop", exact=True).click()
            page.locator("#files li[data-state=done]").filter(has_text="dropped.wav").wait_for(timeout=DONE_MS)
            page.locator("#files li[data-state=done]").filter(has_text="Recording 1").wait_for(timeout=DONE_MS)
            row(page, "Recording 1").locator(".pick").click()
            with page.expect_download() as got:
                page.get_by_role("button", name="Save recording").click()
            assert got.value.path().read_bytes()[:4] == b"RIFF"
    finally:
        talking.close()
