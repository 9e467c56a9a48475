"""The Whisper page as a person uses it, in Chromium, with the real engine and the real model: file, drop, sample, keyboard,
downloads, Stop, errors. What is asserted is what is seen."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from candlewick.models.whisper import subtitles
from tests.browser.pages import (
    DONE_MS,
    JFK,
    ROOT,
    SAMPLE,
    copied,
    drop,
    give,
    hold,
    sample_times,
    try_sample,
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


@pytest.fixture(scope="module")
def page(browser, site):
    """One page for many tests: each gives it something new. (The clipboard may be read.)"""
    with visit(browser, site, gated=True, permissions=["clipboard-read", "clipboard-write"]) as page:
        wait_ready(page)
        play_slowly(page)
        yield page


def play_slowly(page) -> None:
    """A sixteenth of the usual speed: the sample must not be over before a test has looked at it while it plays."""
    page.evaluate("""() => {
      const { play } = HTMLMediaElement.prototype;
      HTMLMediaElement.prototype.play = function () { this.playbackRate = 1 / 16; return play.call(this); };
    }""")


def clipboard(page) -> str:
    return page.evaluate("() => navigator.clipboard.readText()")


# ---- in -------------------------------------------------------------------------------------------------------------


def test_file_from_the_picker(page):
    if not JFK.exists():
        pytest.skip(f"{JFK} is not here")
    give(page, "jfk.flac", JFK.read_bytes(), "audio/flac")
    wait_done(page, "jfk.flac")
    said = words(page)
    assert "ask not what your country can do for you" in said
    assert "ask what you can do for your country" in said
    expect(page.locator("#job-facts")).to_contain_text(re.compile(r"0:11 of sound · written in .+ · .+× real time"))
    run = page.locator("#run-facts")
    for name in ("Executor", "Threads", "SIMD", "Load", "Read", "Spectrogram", "Encode", "Decode", "Per token", "Total",
                 "Memory in use"):
        expect(run.get_by_text(name, exact=True)).to_be_visible()
    expect(page.locator("#run-why")).to_contain_text("WebAssembly SIMD on")


def test_dropped_file_and_its_words_as_text_only(page):
    """A name that is HTML stays a name; dropping works anywhere on the page and shows where."""
    name = "<img src=x onerror=window.hurt=1>.wav"
    drop(page, name, SAMPLE.read_bytes(), "audio/wav")
    wait_done(page, name)
    assert page.evaluate("() => window.sawDropZone")
    expect(page.locator("#drop")).to_be_hidden()
    assert "once upon a time there was a small candle" in words(page).replace(",", "")
    assert page.evaluate("() => window.hurt") is None
    assert page.locator("img").count() == 0


def test_model_output_is_text_only(page):
    """BR-59: whatever a model says, also in errors, is put in as text."""
    evil = "<img src=/nothing onerror=window.hurt=1><script>window.hurt=1</script>"
    shown = page.evaluate(
        """async (evil) => {
          const { Transcript, errorNotice } = await import("/web/whisper/result.js");
          const transcript = new Transcript();
          transcript.clear();
          transcript.say(evil, 0);
          transcript.add({ id: 0, start: 0, end: 1, text: evil });
          document.querySelector("#outcome").append(errorNotice({ code: "bad_input", message: evil }, () => {}));
          await new Promise((r) => setTimeout(r, 300));
          const text = document.querySelector("#lines .said").textContent;
          transcript.clear();
          return text;
        }""",
        evil,
    )
    assert shown == evil
    assert page.evaluate("() => window.hurt") is None
    assert page.locator("img").count() == 0


def test_sample_streams_in_then_player_and_lines_go_together(page):
    try_sample(page)
    lines = page.locator("#lines li")
    assert lines.count() == 2
    expect(page.locator("#length")).to_have_text("0:07")
    expect(page.locator("#lines [aria-current]")).to_have_count(0)
    page.get_by_role("button", name=re.compile("Play from 0:0[34]")).click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(lines.nth(1)).to_have_attribute("aria-current", "true")
    place = page.get_by_role("slider", name="Place in the recording")
    expect(place).to_have_attribute("aria-valuetext", re.compile(r"0:0[3-7] of 0:07"))
    page.get_by_role("button", name="Pause").click()
    lines.nth(0).locator(".said").click()  # the words are a way to seek, too
    expect(lines.nth(0)).to_have_attribute("aria-current", "true")
    page.get_by_role("button", name="Pause").click()
    place.focus()
    page.keyboard.press("ArrowRight")
    expect(place).to_have_attribute("aria-valuetext", re.compile("0:0[5-7] of"))


def test_words_are_timed_lit_and_clicked(page):
    page.locator("#options > summary").click()
    page.get_by_label("Time every word").check()
    try_sample(page)
    page.get_by_label("Time every word").uncheck()
    page.locator("#options > summary").click()  # the page goes on to the next test
    line = page.locator("#lines li").nth(1)
    said = line.locator(".word").all_text_contents()
    assert len(said) > 5 and "".join(said) == line.locator(".said").text_content()
    expect(page.locator("#lines .now")).to_have_count(0)
    line.locator(".word").nth(2).click()
    expect(line).to_have_attribute("aria-current", "true")
    expect(page.locator("#lines .now")).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    start = re.match(r"0:0(\d)", line.locator(".word").nth(2).get_attribute("title"))[1]
    place = page.get_by_role("slider", name="Place in the recording")
    expect(place).to_have_attribute("aria-valuetext", re.compile(rf"0:0[{start}-7] of"))
    page.evaluate("() => document.activeElement.blur()")
    page.locator("#seek").fill("1")
    page.keyboard.press(".")  # a word on, another one, and back
    lit = page.locator("#lines .now")
    first = lit.get_attribute("title")
    page.keyboard.press(".")
    expect(lit).not_to_have_attribute("title", first)
    page.keyboard.press(",")
    expect(lit).to_have_attribute("title", first)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download everything as JSON").click()
    segments = json.loads(download.value.path().read_text())["segments"]
    times = [t for s in segments for w in s["words"] for t in (w["start"], w["end"])]
    assert times == sorted(times) and len(times) > 20


def test_silence_is_no_speech(page):
    give(page, "silence.wav", wav(np.zeros(32_000)))
    wait_done(page, "silence.wav")
    expect(page.get_by_role("heading", name="No speech found")).to_be_visible()
    assert words(page) == ""
    expect(page.get_by_role("button", name="Copy text")).to_be_hidden()


# ---- out ------------------------------------------------------------------------------------------------------------


def test_copy_and_downloads(page):
    try_sample(page)
    said = page.locator("#lines .said").all_text_contents()
    copied(page, page.get_by_role("button", name="Copy text").click)
    assert clipboard(page) == "\n".join(said)

    saved = {}
    for label, kind in (("Download as text", "txt"), ("Download SRT subtitles", "srt"), ("Download WebVTT subtitles", "vtt"),
                        ("Download everything as JSON", "json")):
        with page.expect_download() as got:
            page.get_by_role("button", name=label).click()
        assert got.value.suggested_filename == f"Sample.{kind}"
        saved[kind] = open(got.value.path(), encoding="utf-8", newline="").read()
    result = json.loads(saved["json"])
    assert [s["text"].strip() for s in result["segments"]] == said
    for kind, write in (("txt", subtitles.to_txt), ("srt", subtitles.to_srt), ("vtt", subtitles.to_vtt)):
        assert saved[kind] == write(result)


def test_diagnostics_tell_the_device_and_nothing_said(page):
    name = "my secret meeting.wav"
    give(page, name, SAMPLE.read_bytes())
    wait_done(page, name)
    copied(page, page.locator("#diagnostics").click)
    text = clipboard(page)
    told = json.loads(text)
    assert told["engine"]["info"]["executor"] == "wasm" and told["device"]["simd"] is True
    assert "secret" not in text and "candle." not in text.lower() and "once upon" not in text.lower()


def test_options_reach_the_model(page):
    page.locator("#options > summary").click()
    expect(page.get_by_label("Spoken language")).to_be_disabled()
    page.get_by_label("Words to expect").fill("A fairy tale, by Hans Christian Andersen.")
    page.get_by_label("Temperature").select_option("0")
    page.get_by_label("Use what was said before").uncheck()
    try_sample(page)
    assert "small candle" in words(page)
    page.get_by_label("Temperature").select_option("1")
    try_sample(page)
    with page.expect_download() as got:
        page.get_by_role("button", name="Download everything as JSON").click()
    assert {s["temperature"] for s in json.load(open(got.value.path()))["segments"]} == {1}
    page.get_by_label("Temperature").select_option("0")
    page.get_by_label("Search", exact=True).select_option("3")
    page.get_by_label("Fast mode for short sounds").check()
    try_sample(page)
    assert "small candle" in words(page)
    page.get_by_text("Finer points").click()
    page.get_by_label("Beam patience").fill("9")  # out of its range: the default is taken
    sent = page.evaluate("async () => (await import('/web/whisper/options.js')).options()")
    assert sent["beam_size"] == 3 and sent["context"] == "short" and sent["temperatures"] == [0] and "patience" not in sent
    page.get_by_label("Beam patience").fill("2")
    page.get_by_label("Length penalty").fill("0.6")
    expect(page.get_by_label("Tries where it guesses")).to_be_disabled()  # it never guesses at temperature 0
    page.get_by_label("Temperature").select_option("1")
    expect(page.get_by_label("Search", exact=True)).to_be_disabled()
    assert "beam_size" not in page.evaluate("async () => (await import('/web/whisper/options.js')).options()")
    page.get_by_label("Temperature").select_option("auto")
    page.get_by_label("Tries where it guesses").select_option("5")
    sent = page.evaluate("async () => (await import('/web/whisper/options.js')).options()")
    assert (sent["patience"], sent["length_penalty"], sent["best_of"]) == (2, 0.6, 5)
    assert sent["hotwords"].startswith("A fairy tale") and "initial_prompt" not in sent
    page.get_by_label("What was said before", exact=True).fill("It was night.")
    try_sample(page)  # all of them together
    assert "small candle" in words(page)
    page.get_by_label("What was said before", exact=True).fill("")
    page.get_by_label("Search", exact=True).select_option("1")
    expect(page.get_by_label("Beam patience")).to_be_disabled()
    page.get_by_label("Tries where it guesses").select_option("1")
    page.get_by_label("Fast mode for short sounds").uncheck()
    page.get_by_text("Finer points").click()
    page.get_by_label("Words to expect").fill("")
    page.get_by_label("Temperature").select_option("auto")
    page.get_by_label("Use what was said before").check()
    page.locator("#options > summary").click()


# ---- Stop, and what comes after ----------------------------------------------------------------------------------------


def test_stop_while_transcribing_keeps_the_words_and_the_next_run_is_whole(page):
    hold(page, "segment")
    give(page, "long.wav", sample_times(5))
    wait_held(page)
    expect(page.locator("#lines li:not(.pending)").first).to_be_visible(timeout=DONE_MS)
    page.get_by_role("button", name="Stop", exact=True).click()
    wait_done(page, "long.wav")
    expect(page.get_by_role("heading", name="Stopped")).to_be_visible()
    kept = page.locator("#lines li")
    assert 1 <= kept.count() < 10, "of ten lines"
    assert "once upon a time" in words(page)
    expect(page.get_by_role("button", name="Copy text")).to_be_visible()

    try_sample(page)
    expect(page.get_by_role("heading", name="Stopped")).to_be_hidden()
    assert page.locator("#lines li").count() == 2
    page.get_by_role("button", name="Transcribe again").click()
    wait_done(page, "Sample")
    assert page.locator("#lines li").count() == 2


def test_progress_with_time_left(page):
    hold(page, "progress", stage="transcribe", least=1)
    give(page, "long.wav", sample_times(10))
    wait_held(page)
    page.evaluate("() => new Promise((resolve) => setTimeout(resolve, 1500))")  # less than a second tells no speed
    hold(page, "progress", stage="transcribe", least=1)  # the next one
    wait_held(page)
    doing = page.locator("#doing")
    expect(doing).to_contain_text(re.compile(r"\d:\d\d of \d:\d\d · .+× real time"), timeout=DONE_MS)
    expect(page.locator("#left")).to_contain_text("left", timeout=DONE_MS)
    assert 0 < float(page.locator("#bar").get_attribute("value")) < 1
    page.keyboard.press("Escape")
    wait_done(page, "long.wav")


# ---- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("song.mp3", b"\x89PNG\r\n\x1a\n" + bytes(99), "PNG picture"),
        ("empty.wav", b"", "empty (0 bytes)"),
        ("cut.flac", b"fLaC" + bytes(30), "FLAC file"),
        ("notes.txt.wav", b"It was a dark and stormy night.", "a text file"),
    ],
)
def test_what_cannot_be_read_is_told_and_the_next_file_works(page, name, data, told):
    give(page, name, data)
    wait_done(page, name)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("This file cannot be used")
    expect(alert).to_contain_text(told)
    expect(alert.get_by_role("button", name="Copy diagnostics")).to_be_visible()
    expect(page.locator("#player")).to_be_hidden()
    try_sample(page)
    expect(alert).to_be_hidden()
    assert "a small candle" in words(page)


# ---- keyboard and labels ------------------------------------------------------------------------------------------------


def test_keyboard_alone(browser, site):
    """In a page of its own that listens for choosers from the start: asked for too late, one opens unseen and stays."""
    with visit(browser, site, permissions=["clipboard-read", "clipboard-write"]) as page:
        choosers = []
        page.on("filechooser", lambda chooser: choosers.append(chooser))
        page.evaluate("() => { delete window.showOpenFilePicker; }")  # of the newer picker a test is told nothing
        wait_ready(page)
        everything_by_keys(page)
        assert len(choosers) == 1


def everything_by_keys(page):
    try_sample(page, lambda: page.keyboard.press("s"))
    copied(page, lambda: page.keyboard.press("c"))
    play_slowly(page)
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.keyboard.press("p")
    page.keyboard.press("?")
    expect(page.get_by_text("record, and stop recording")).to_be_visible()
    page.keyboard.press("o")

    page.locator("#options > summary").focus()
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Words to expect").focus()
    page.keyboard.type("so a rope")  # letters that are keys elsewhere
    expect(page.locator("#job-name")).to_have_text("Sample")
    page.get_by_role("textbox", name="Words to expect").fill("")

    page.get_by_role("checkbox", name="Use single keys").uncheck()
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press("?")
    expect(page.get_by_text("record, and stop recording")).to_be_visible()
    page.get_by_role("checkbox", name="Use single keys").check()


def test_every_control_is_reached_by_tab_and_has_a_name(page):
    try_sample(page)
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    reached, rounds = set(), 0
    while rounds < 2:  # from where the focus was to the end, then once through the page
        page.keyboard.press("Tab")
        found = page.evaluate("""() => {
          const e = document.activeElement;
          const name = e.getAttribute("aria-label") || e.labels?.[0]?.textContent || e.textContent;
          return e === document.body ? null : { id: e.id || e.className || e.tagName, name: name.trim(),
            ring: getComputedStyle(e).outlineStyle !== "none" || e.id === "seek" };
        }""")
        if found is None:
            rounds += 1
            continue
        assert found["name"], f"{found['id']} has no name for a screen reader"
        assert found["ring"], f"{found['id']} shows no focus ring"
        reached.add(found["id"])
    wanted = {"skip", "record", "open", "sample", "again", "play", "seek", "time", "copy", "executor", "threads", "diagnostics"}
    assert wanted <= reached, f"not reached by Tab: {wanted - reached}"


def test_what_screen_readers_get(page):
    try_sample(page)
    expect(page.locator("#live")).to_have_text(re.compile("Done in"))
    expect(page.get_by_role("log", name="Transcript")).to_be_visible()
    unnamed = page.evaluate("""() => [...document.querySelectorAll("button, input, select, textarea, canvas, svg, progress")]
      .filter((e) => !e.closest("[hidden]") && !e.hidden && e.getClientRects().length)
      .filter((e) => !(e.closest("[aria-hidden=true]") || e.getAttribute("aria-label") || e.labels?.length
        || (e.tagName === "BUTTON" && e.textContent.trim())))
      .map((e) => e.outerHTML.slice(0, 80))""")
    assert unnamed == []
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    assert page.evaluate("() => document.querySelectorAll('h1').length") == 1
