"""A person's own Whisper: told before it loads, refused in words, kept and deleted; what is stored; the mirror; languages."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from candlewick.weights import safetensors
from candlewick.weights.load import Checkpoint
from tests.browser.engine_site import needs_miniature, noise_wav
from tests.browser.pages import DONE_MS, READY_MS, ROOT, until, visit, wait_done, wait_ready

MODELS = ROOT / "models"
FOLDER = MODELS / "test-whisper"
FILES = ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors")
pytestmark = needs_miniature


@contextmanager
def quiet_page(browser, site):
    """A page whose own model cannot be had: what loads is what the test gives."""
    fresh = browser.new_context(viewport={"width": 1280, "height": 900})
    page = fresh.new_page()
    fresh.route("**/models/whisper-tiny.en/**", lambda route: route.fulfill(status=404, body="not in this test"))
    try:
        page.goto(f"{site}/web/whisper/")
        yield page
    finally:
        fresh.close()


def drop(page, files: dict[str, bytes]) -> None:
    """Let files go over the page."""
    page.evaluate(
        """(files) => {
          const dataTransfer = new DataTransfer();
          for (const [name, text] of files)
            dataTransfer.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name));
          document.querySelector("main").dispatchEvent(
            new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
        }""",
        [[name, base64.b64encode(data).decode()] for name, data in files.items()],
    )


def folder(path: Path, names=FILES) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in names}


def shards() -> dict[str, bytes]:
    """The miniature in two parts and their index."""
    found = folder(FOLDER, FILES[:3])
    weight_map = {}
    for i in (0, 1):
        name = f"model-0000{i + 1}-of-00002.safetensors"
        part = dict(list(TENSORS.items())[i::2])
        found[name] = b"".join(bytes(piece) for piece in safetensors.pieces(part))
        weight_map |= dict.fromkeys(part, name)
    return {**found, "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()}


async def tensors() -> dict[str, np.ndarray]:
    checkpoint = Checkpoint.open(FOLDER)
    return {name: await checkpoint.read(info) for name, info in (await checkpoint.tensors()).items()}


TENSORS = asyncio.run(tensors())  # before Playwright runs: while it does, no other event loop can be started
SHARDS = shards()
LACKING = b"".join(bytes(piece) for piece in safetensors.pieces(
    {name: data for name, data in TENSORS.items() if name != "model.decoder.layer_norm.weight"}))


def load(page) -> None:
    page.locator("#load").click()
    wait_ready(page)


def transcribe(page, name="noise.wav") -> None:
    page.locator("#file").set_input_files({"name": name, "mimeType": "audio/wav", "buffer": noise_wav(2.0)})
    wait_done(page, name)


def fact(page, name: str) -> str:
    return page.locator(f"#model-facts dt:text-is('{name}') + dd").inner_text()


def open_list(page) -> None:
    if page.locator("#stored").get_attribute("open") is None:
        page.get_by_text("Stored models", exact=True).click()


@pytest.fixture(scope="module")
def own(browser, site):
    """One page for the tests of files, in which nothing is kept at the end of each."""
    with quiet_page(browser, site) as page:
        yield page


def test_a_whisper_cpp_file(own):
    """Dropped: told what it is and takes from its header; loaded; heard with."""
    drop(own, {"ggml-mine.bin": (MODELS / "test-whisper-ggml" / "ggml-model.bin").read_bytes()})
    expect(own.locator("#model-name")).to_have_text("ggml-mine")
    expect(own.locator("#model-facts")).to_contain_text("Q8_0", timeout=READY_MS)
    assert fact(own, "Size") == "180 KB" and fact(own, "Memory it needs").startswith("about ")
    load(own)
    transcribe(own)
    expect(own.locator("#job")).not_to_contain_text("cannot be used")
    expect(own.locator("#language")).to_be_disabled()


def use_shards(page) -> None:
    """A model that works."""
    if page.locator("#model-name").inner_text() == "Your model":
        return wait_ready(page)
    page.locator("#own-file").set_input_files([{"name": name, "mimeType": "application/octet-stream", "buffer": data}
                                               for name, data in SHARDS.items()])
    expect(page.locator("#model-name")).to_have_text("Your model", timeout=READY_MS)
    expect(page.locator("#model-facts")).to_contain_text("F16", timeout=READY_MS)
    load(page)


def test_a_folder_in_shards(own):
    use_shards(own)
    transcribe(own, "again.wav")


@pytest.mark.parametrize("files, says", [
    (lambda: {"llama.gguf": (MODELS / "test-llama-gguf" / "model.gguf").read_bytes()},
     "This is a language model. It can be used on the Llama page."),
    (lambda: {name: (MODELS / "test-sam" / name).read_bytes() for name in ("config.json", "model.safetensors")},
     "This is a model for pictures. It can be used on the Segment page."),
    (lambda: {"ggml-cut.bin": (MODELS / "test-whisper-ggml" / "ggml-model.bin").read_bytes()[:100_000]}, "cut short"),
    (lambda: {"ggml-page.bin": b"<!doctype html><title>404</title>"}, "ggml-page.bin"),
    (lambda: {k: v for k, v in folder(FOLDER).items() if k != "tokenizer.json"}, "A Whisper model needs tokenizer.json"),
    (lambda: {k: v for k, v in SHARDS.items() if not k.startswith("model-00002")}, "1 of 2 shards are missing"),
], ids=["llama", "sam", "cut", "page", "no tokenizer", "no shard"])
def test_what_cannot_be_used_is_said_and_what_worked_goes_on(own, files, says):
    use_shards(own)
    drop(own, files())
    expect(own.locator("#own-outcome")).to_contain_text(says, timeout=READY_MS)
    expect(own.locator("#model-name")).to_have_text("Your model")
    expect(own.locator("#chip")).to_have_text("Ready")
    transcribe(own, f"after {says[:8]}.wav")


def test_refused_in_the_middle_of_a_transcription(own):
    """The model in use has no time to look at it: that is done beside, and nothing is stopped."""
    use_shards(own)
    own.locator("#file").set_input_files({"name": "long.wav", "mimeType": "audio/wav", "buffer": noise_wav(30.0)})
    drop(own, {"llama.gguf": (MODELS / "test-llama-gguf" / "model.gguf").read_bytes()})
    expect(own.locator("#own-outcome")).to_contain_text("It can be used on the Llama page", timeout=READY_MS)
    wait_done(own, "long.wav")
    expect(own.locator("#job-facts")).to_contain_text("written in")


def test_what_turns_out_useless_as_it_loads_gives_way_to_what_worked(own):
    """Its headers are in order, a tensor is missing: a file that was given meanwhile is heard with the model of before."""
    use_shards(own)
    drop(own, {**folder(FOLDER, FILES[:3]), "model.safetensors": LACKING})
    expect(own.locator("#model-facts")).to_contain_text("F16", timeout=READY_MS)
    own.locator("#load").click()
    own.locator("#file").set_input_files({"name": "meanwhile.wav", "mimeType": "audio/wav", "buffer": noise_wav(2.0)})
    said = own.locator("#own-outcome")
    expect(said).to_contain_text("could not be loaded", timeout=READY_MS)
    expect(said).to_contain_text("model.decoder.layer_norm.weight")
    expect(said).to_contain_text("Your model is used again.")
    wait_done(own, "meanwhile.wav")
    expect(own.locator("#job-facts")).to_contain_text("written in")
    assert fact(own, "Weights").startswith("F16") and own.locator("#model-name").inner_text() == "Your model"


def test_a_model_that_is_too_large_is_refused_with_numbers(own):
    """A header that says so would need a file of that length, which nobody wants in a test: the engine's answer is changed."""
    own.evaluate("""async () => {
      const { Engine } = await import("../../workers/client.js");
      window.realExamine = Engine.prototype.examine;
      Engine.prototype.examine = async function (params, options) {
        return { ...(await window.realExamine.call(this, params, options)), memory: 6.2e9 };
      };
    }""")
    try:
        drop(own, {"ggml-huge.bin": (MODELS / "test-whisper-ggml" / "ggml-model.bin").read_bytes()})
        expect(own.locator("#own-outcome")).to_contain_text("It needs about 6.2 GB of memory; a page may have 4.3 GB at most",
                                                            timeout=READY_MS)
        expect(own.locator("#own-outcome")).to_contain_text("is used as before.")
        expect(own.locator("#chip")).to_have_text("Ready")
    finally:
        own.evaluate("async () => { (await import('../../workers/client.js')).Engine.prototype.examine = window.realExamine; }")


def test_kept_on_purpose_and_back_after_a_reload(browser, site):
    with quiet_page(browser, site) as page:
        drop(page, {"ggml-mine.bin": (MODELS / "test-whisper-ggml" / "ggml-model.bin").read_bytes()})
        expect(page.locator("#model-facts")).to_contain_text("Q8_0", timeout=READY_MS)
        page.get_by_text("Use another Whisper model").click()
        page.get_by_role("button", name="Keep this model in this browser").click()
        expect(page.get_by_role("button", name="Kept in this browser")).to_be_disabled(timeout=DONE_MS)
        page.reload()
        open_list(page)
        row = page.locator("#stored-list li").filter(has_text="ggml-mine")
        expect(row).to_contain_text("180 KB · used today · yours", timeout=DONE_MS)
        page.get_by_role("button", name="Use ggml-mine").click()
        expect(page.locator("#model-note")).to_have_text("Your own model, kept in this browser.")
        load(page)
        transcribe(page)
        # another of that name stands beside it
        drop(page, {"ggml-mine.bin": (MODELS / "test-whisper-ggml" / "ggml-model.bin").read_bytes()})
        page.get_by_text("Use another Whisper model").click()
        page.get_by_role("button", name="Keep this model in this browser").click()
        expect(page.locator("#own-outcome")).to_contain_text("as ggml-mine (2) beside what was kept before", timeout=DONE_MS)
        page.get_by_role("button", name="Delete ggml-mine (2)", exact=True).click()
        expect(row).to_have_count(1, timeout=DONE_MS)
        page.get_by_role("button", name="Use ggml-mine").click()
        load(page)
        # deleted while it is loaded: the list is right, and the model goes on working
        page.get_by_role("button", name="Delete ggml-mine").click()
        expect(row).to_have_count(0, timeout=DONE_MS)
        expect(page.locator("#stored-outcome")).to_contain_text("ggml-mine: deleted")
        transcribe(page, "after.wav")
        page.reload()
        open_list(page)
        expect(page.locator("#stored-total")).to_contain_text("are used", timeout=DONE_MS)
        expect(row).to_have_count(0)


def started_is_kept(page) -> None:
    """The first visit writes the started interpreter while the page is in use; what is being written cannot be deleted."""
    until(page, """async () => (await (await import("/workers/client.js")).stored()).models
      .some((model) => model.kind === "python" && model.complete)""")


def test_models_of_the_site_are_listed_and_deleted(browser, site):
    """The Llama page's miniature: stored by its first load, gone by a click, all of it gone by two."""
    with visit(browser, site, "/web/llama/#model=test-llama") as page:
        wait_ready(page)
        open_list(page)
        row = page.locator("#stored-list li").filter(has_text="test-llama")
        expect(row).to_contain_text(re.compile(r"9\d\.\d KB · used today"), timeout=DONE_MS)
        expect(page.locator("#stored-total")).to_contain_text(re.compile(r"^[\d.]+ .B of [\d.]+ .B that this browser allows"))
        page.get_by_role("button", name="Delete test-llama", exact=True).click()
        expect(row).to_have_count(0, timeout=DONE_MS)
        started_is_kept(page)
        page.reload()
        wait_ready(page)  # fetched and stored again
        started_is_kept(page)
        open_list(page)
        expect(row).to_have_count(1, timeout=DONE_MS)
        expect(page.locator("#stored-list li").filter(has_text="Python, started")).to_have_count(1, timeout=DONE_MS)
        page.get_by_role("button", name="Delete all").click()
        page.get_by_role("button", name="Delete all of it: sure?").click()
        expect(page.locator("#stored-list")).to_have_text("Nothing is stored yet.", timeout=DONE_MS)


def test_a_mirror(browser, site):
    """Files come from the mirror, the manifest from here; what is wrong with an address is said at once; reset."""
    asked: list[str] = []
    with visit(browser, site, "/web/llama/#model=test-llama", allow=("404", "ERR_FAILED", "Failed to load")) as page:
        def mirrored(route) -> None:
            asked.append(route.request.url)
            name = route.request.url.rpartition("/")[2]
            data = (MODELS / "test-llama" / name).read_bytes()
            route.fulfill(status=200, body=data if not page.damage else bytes(len(data)))

        page.damage = False
        page.context.route("**/mirror/models/**", mirrored)
        wait_ready(page)
        open_list(page)
        field, hint = page.get_by_label("Fetch models from a mirror"), page.locator("#mirror-hint")
        for wrong, says in (("no address", "wanted a whole address"), ("ftp://x.org/", "begins with https:// or http://"),
                            ("https://me:secret@x.org/", "without a name and a password"),
                            ("https://x.org/?a=1", "without ? and #")):
            field.fill(wrong)
            field.blur()
            expect(hint).to_contain_text(says)
            expect(field).to_have_attribute("aria-invalid", "true")
        page.get_by_role("button", name="Delete test-llama", exact=True).click()
        expect(page.locator("#stored-outcome")).to_contain_text("deleted", timeout=DONE_MS)
        field.fill(f"{site}/mirror/models")
        field.blur()
        expect(hint).to_contain_text("that server sees which ones")
        wait_ready(page)  # loaded anew, from there
        assert sorted(url.removeprefix(f"{site}/mirror/models/test-llama/") for url in set(asked)) == [
            "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
        # another file than the manifest says is refused, and the mirror named
        page.damage = True
        page.get_by_role("button", name="Delete test-llama", exact=True).click()
        expect(page.locator("#stored-list li").filter(has_text="test-llama")).to_have_count(0, timeout=DONE_MS)
        page.reload()
        expect(page.locator("#load-outcome")).to_contain_text("the mirror failed", timeout=READY_MS)
        expect(page.locator("#load-outcome")).to_contain_text("sha256 is")
        open_list(page)
        page.get_by_role("button", name="Fetch from this site again").click()
        expect(page.get_by_label("Fetch models from a mirror")).to_have_value("")
        page.get_by_role("button", name="Load again").or_(page.locator("#load")).first.click()
        wait_ready(page)


# ---- languages -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def multilingual(browser, site):
    with quiet_page(browser, site) as page:
        drop(page, folder(MODELS / "test-whisper-multilingual"))
        expect(page.locator("#model-facts")).to_contain_text("F16", timeout=READY_MS)
        load(page)
        page.locator("#options > summary").click()
        yield page


def test_languages_are_offered_where_the_checkpoint_has_them(multilingual):
    names = multilingual.locator("#language option").all_inner_texts()
    assert names[0].startswith("Find out") and set(names[1:]) == {"Chinese", "English", "German", "Spanish"}
    expect(multilingual.get_by_label("Translate into English")).to_be_visible()
    transcribe(multilingual, "found.wav")
    expect(multilingual.locator("#job-facts")).to_contain_text(
        re.compile(r"(Chinese|English|German|Spanish), found with \d+ % certainty"), timeout=DONE_MS)


def test_a_language_is_picked_and_translated(multilingual):
    multilingual.get_by_label("Spoken language").select_option("de")
    multilingual.get_by_label("Translate into English").check()
    transcribe(multilingual, "picked.wav")
    expect(multilingual.locator("#job-facts")).to_contain_text("German, translated into English", timeout=DONE_MS)
    multilingual.get_by_label("Translate into English").uncheck()
    multilingual.get_by_label("Spoken language").select_option("")


def test_a_long_list_of_languages_is_searched(multilingual):
    """The checkpoint at hand has four; large ones have a hundred."""
    search, language = multilingual.get_by_label("Search languages"), multilingual.locator("#language")
    expect(search).to_be_hidden()
    offer = "async (languages) => (await import('./options.js')).applyLanguages({ multilingual: true, languages })"
    multilingual.evaluate(offer, "en zh de es ru ko fr ja pt tr pl ca nl ar sv it haw yue".split())
    search.fill("man")
    expect(language).to_have_value("de")
    search.fill("ne")
    assert language.locator("option").all_inner_texts()[1:] == ["Cantonese", "Chinese", "Japanese"]
    search.press("Enter")
    expect(language).to_have_value("yue")
    expect(language.locator("option")).to_have_count(19)
    language.select_option("")
    multilingual.evaluate(offer, ["en", "zh", "de", "es"])
    expect(search).to_be_hidden()


def test_an_english_model_offers_neither(multilingual):
    drop(multilingual, folder(FOLDER))
    expect(multilingual.locator("#model-facts")).to_contain_text("F16", timeout=READY_MS)
    load(multilingual)
    expect(multilingual.get_by_label("Spoken language")).to_be_disabled()
    expect(multilingual.get_by_label("Translate into English")).to_be_hidden()
    transcribe(multilingual, "english.wav")
    expect(multilingual.locator("#job-facts")).not_to_contain_text("found")
