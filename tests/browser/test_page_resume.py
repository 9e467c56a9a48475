"""A long run that a reload interrupts is offered again, and goes on where it was; nothing is left when it is complete."""

from __future__ import annotations

import base64
import re

import pytest
from playwright.sync_api import expect

from tests.browser.pages import (
    DONE_MS,
    READY_MS,
    ROOT,
    SAMPLE,
    give,
    hold,
    sample_times,
    until,
    visit,
    wait_held,
    wait_ready,
    words,
)

pytestmark = pytest.mark.skipif(
    not (ROOT / "models" / "whisper-tiny.en" / "model.safetensors").is_file(),
    reason="whisper-tiny.en is not here; run python3 serve.py --setup",
)
KEPT = """() => new Promise((resolve) => {
  const request = indexedDB.open("candlewick-whisper");
  request.onupgradeneeded = () => request.result.createObjectStore("places", { keyPath: "key" });
  request.onsuccess = () => {
    const all = request.result.transaction("places").objectStore("places").getAll();
    all.onsuccess = () => {
      request.result.close();
      resolve(all.result.map(({ name, place }) => ({ name, at: place.at, total: place.total })));
    };
  };
})"""


FORGET = """() => new Promise((resolve) => {
  const request = indexedDB.open("candlewick-whisper");
  request.onupgradeneeded = () => request.result.createObjectStore("places", { keyPath: "key" });
  request.onsuccess = () => {
    const forgetting = request.result.transaction("places", "readwrite");
    forgetting.objectStore("places").clear();
    forgetting.oncomplete = () => { request.result.close(); resolve(); };
  };
})"""
TIMES = 5


# the picker of files that can be opened again; browsers without it have the older one
OLDER = "delete window.showOpenFilePicker;"
# nobody can choose in a test: what it gives is a real handle, of a file of this site's own
NEWER = """
  window.showOpenFilePicker = async () => {
    const folder = await navigator.storage.getDirectory();
    return [await folder.getFileHandle("long.wav")];
  };
"""


@pytest.fixture(scope="module")
def shared_page(browser, site):
    with visit(browser, site, "/web/", gated=True) as page:
        page.add_init_script(OLDER)
        page.goto(f"{site}/web/whisper/")
        wait_ready(page)
        yield page


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    """On disk: a file's date is a part of what it is. Places of sounds below 45 s are not kept."""
    path = tmp_path_factory.mktemp("sound") / "long.wav"
    path.write_bytes(sample_times(TIMES))
    return path


def kept_in_the_middle(page, choose) -> None:
    """Choose the file, and leave the engine standing where a place of it is kept."""
    wait_ready(page)
    page.wait_for_function("() => performance.now() > 4500")  # places are kept every 4 s
    hold(page, "progress", stage="transcribe", least=1)
    choose()
    wait_held(page)
    kept = until(page, f"async () => {{ const kept = await ({KEPT})(); return kept.length ? kept : null; }}")
    assert kept[0]["name"] == "long.wav" and 0 < kept[0]["at"] < kept[0]["total"]


@pytest.fixture
def page(shared_page, long_file):
    """The page after a visit that ended in the middle of long.wav."""
    page = shared_page
    page.reload()
    page.evaluate(FORGET)
    page.reload()
    kept_in_the_middle(page, lambda: page.locator("#file").set_input_files(long_file))
    page.reload()
    return page


def offer(page):
    return page.get_by_role("region", name="Unfinished: long.wav")


def test_reload_then_go_on_with_the_same_file(page, long_file):
    expect(offer(page).get_by_role("heading")).to_have_text(re.compile(r"^Go on with long\.wav from \d:\d\d\?$"))
    expect(offer(page)).to_contain_text(re.compile(r"\d:\d\d of 1:23 were transcribed on \w+ \d+"))
    with page.expect_file_chooser() as chooser:
        offer(page).get_by_role("button", name="Go on").click()
    expect(page.locator("#input-outcome")).to_contain_text("Choose long.wav once more")
    assert chooser.value.is_multiple()
    page.locator("#file").set_input_files(long_file)
    expect(page.locator("#job-facts")).to_contain_text(re.compile(r"went on from \d:\d\d"), timeout=READY_MS)
    expect(offer(page)).to_have_count(0)
    page.locator("#job[aria-busy=false]").wait_for(timeout=DONE_MS)
    assert words(page).count("once upon a time") == TIMES
    starts = page.locator("#lines .time").all_text_contents()
    assert starts == sorted(starts) and len(set(starts)) == len(starts)
    until(page, f"async () => (await ({KEPT})()).length === 0")


def test_another_file_of_that_name_is_taken_for_what_it_is(page):
    with page.expect_file_chooser():
        offer(page).get_by_role("button", name="Go on").click()
    give(page, "long.wav", SAMPLE.read_bytes())
    expect(page.locator("#input-outcome")).to_contain_text("is another file than before", timeout=DONE_MS)
    page.locator("#job[aria-busy=false]").wait_for(timeout=DONE_MS)
    expect(page.locator("#job-facts")).not_to_contain_text("went on")
    assert words(page).count("once upon a time") == 1


def test_what_there_is_can_be_read_and_saved_without_the_file(page):
    offer(page).get_by_role("button", name="Show what there is").click()
    assert "once upon a time" in words(page)
    expect(page.locator("#player")).to_be_hidden()
    expect(page.get_by_role("button", name="Transcribe again")).to_be_hidden()
    with page.expect_download() as got:
        page.get_by_role("button", name="Download as text").click()
    assert "candle" in got.value.path().read_text()
    offer(page).get_by_role("button", name="Forget it").click()
    expect(offer(page)).to_have_count(0)
    until(page, f"async () => (await ({KEPT})()).length === 0")


def test_a_file_of_the_picker_is_opened_again_by_itself(browser, site, long_file):
    """Its handle is kept: after a reload one click goes on, and nobody is asked for the file."""
    with visit(browser, site, "/web/", gated=True) as page:
        page.add_init_script(NEWER)
        page.goto(f"{site}/web/whisper/")
        # a file's date is a part of what it is, and that of a written file stays
        page.evaluate("""async (text) => {
          const handle = await (await navigator.storage.getDirectory()).getFileHandle("long.wav", { create: true });
          const file = await handle.createWritable();
          await file.write(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
          await file.close();
        }""", base64.b64encode(long_file.read_bytes()).decode())
        kept_in_the_middle(page, page.get_by_role("button", name="Open a file").click)
        page.reload()
        offer(page).get_by_role("button", name="Go on").click()
        expect(page.locator("#job-facts")).to_contain_text(re.compile(r"went on from \d:\d\d"), timeout=READY_MS)
        expect(page.locator("#input-outcome")).to_be_empty()
        page.locator("#job[aria-busy=false]").wait_for(timeout=DONE_MS)
        assert words(page).count("once upon a time") == TIMES
        until(page, f"async () => (await ({KEPT})()).length === 0")
