"""The Llama page when things change or go wrong: settings, a person's own models, an engine that dies, a phone. A fresh page
each."""

from __future__ import annotations

import base64
import re
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from tests.browser.llama_page import (
    MINIATURE,
    MODELS,
    WRITTEN_MS,
    answered,
    ask,
    clipboard,
    dial,
    needs_miniature,
    open_page,
    said,
)
from tests.browser.pages import copied, visit, wait_ready

pytestmark = needs_miniature

# ---- settings --------------------------------------------------------------------------------------------------------


def test_settings_are_held_to_their_range_and_reset(browser, site):
    with open_page(browser, site) as page:
        dial(page, "Top-p").fill("7")
        dial(page, "Top-p").blur()
        expect(dial(page, "Top-p")).to_have_value("1")
        page.get_by_role("slider", name="Temperature").fill("1.2")
        expect(dial(page, "Temperature")).to_have_value("1.2")
        page.get_by_label("Greedy").check()
        expect(dial(page, "Temperature")).to_be_disabled()
        expect(dial(page, "Repeat penalty")).to_be_enabled()
        ask(page, "hello")
        expect(page.locator(".facts-line")).to_contain_text("greedy")
        page.get_by_role("button", name="Reset").click()
        expect(dial(page, "Temperature")).to_have_value("0.5")
        expect(dial(page, "Longest answer")).to_have_value("512")
        expect(page.get_by_label("Greedy")).not_to_be_checked()


def test_longest_answer_may_fill_the_context(browser, site):
    with visit(browser, site, MINIATURE + "&max_tokens=8000") as page:
        expect(dial(page, "Longest answer")).to_have_value("8000")
        wait_ready(page)
        dial(page, "Longest answer").fill("5000")
        dial(page, "Longest answer").blur()
        expect(dial(page, "Longest answer")).to_have_value("128")


def test_less_context_loads_the_model_anew_and_the_conversation_stays(browser, site):
    with open_page(browser, site, "/web/llama/#model=test-llama-gguf") as page:
        dial(page, "Longest answer").fill("5")
        page.get_by_label("Chat", exact=True).check()
        ask(page, "hello")
        smallest = page.locator("#capacity option").evaluate_all("(all) => all.map((e) => e.value)")
        assert smallest[0] == ""
        page.get_by_label("Context", exact=True).select_option(smallest[-1])
        wait_ready(page)
        expect(page.locator("#run-facts")).to_contain_text("of 128 tokens", timeout=WRITTEN_MS)
        expect(page.locator(".turn")).to_have_count(2)


# ---- own models ------------------------------------------------------------------------------------------------------


def drop(page, *files) -> None:
    page.evaluate(
        """([files]) => {
          const dataTransfer = new DataTransfer();
          for (const [name, text] of files) {
            dataTransfer.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name));
          }
          const say = (kind) => document.querySelector("main").dispatchEvent(
            new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
          say("dragenter");
          window.sawDropZone = !document.querySelector("#drop").hidden;
          say("drop");
        }""",
        [[(name, base64.b64encode(data).decode()) for name, data in files]],
    )


def test_own_gguf_by_drop(browser, site):
    name = "<img src=x onerror=window.hurt=1>"
    with open_page(browser, site) as page:
        drop(page, (f"{name}.gguf", (MODELS / "test-llama-gguf" / "model.gguf").read_bytes()))
        assert page.evaluate("window.sawDropZone")
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        expect(page.locator("#model-facts")).to_contain_text("92.1 KB")
        expect(page.locator("#model-facts")).to_contain_text("Memory it needs")
        ask(page, "hello")
        expect(page.locator("#chip")).to_have_text("Ready")
        copied(page, page.get_by_role("button", name="Copy a link that makes this answer again").click)
        assert "model=" not in clipboard(page) and "own=" in clipboard(page)
        assert page.evaluate("window.hurt") is None and page.locator("img").count() == 0
        page.get_by_text("Use another language model").click()
        page.get_by_role("button", name="Back to SmolLM2").click()
        expect(page.get_by_role("heading", name="SmolLM2 135M Instruct")).to_be_visible()


def test_own_llama2c_and_own_folder_by_picker(browser, site):
    with open_page(browser, site) as page:
        page.get_by_text("Use another language model").click()
        picker = page.locator("#own-file")
        folder = MODELS / "test-llama-bin"
        picker.set_input_files(folder / "model.bin")
        lacks = "A language model needs tokenizer.bin; the chosen files do not have it."
        expect(page.locator("#own-outcome")).to_have_text(lacks)
        picker.set_input_files([folder / "model.bin", folder / "tokenizer.bin"])
        expect(page.locator("#own-outcome")).to_be_empty()
        page.get_by_role("button", name=re.compile("Load the model")).click()
        wait_ready(page)
        expect(page.get_by_label("Continue a text")).to_be_checked()  # it has no template
        dial(page, "Longest answer").fill("5")
        ask(page, "a")
        page.locator("#own-files").set_input_files(MODELS / "test-llama-qwen2")
        expect(page.get_by_role("heading", name="test-llama-qwen2")).to_be_visible()
        page.get_by_role("button", name="New", exact=True).click()
        page.get_by_label("Chat", exact=True).check()
        ask(page, "hello")


def test_what_is_no_model_is_told_and_a_text_is_taken_as_words(browser, site):
    with open_page(browser, site) as page:
        drop(page, ("photo.jpg", b"\xff\xd8\xff"))
        expect(page.locator("#outcome").get_by_role("alert")).to_contain_text("needs a .gguf file")
        drop(page, ("broken.gguf", b"GGUF" + bytes(20)))
        expect(page.locator("#outcome").get_by_role("alert")).to_contain_text("broken.gguf", timeout=WRITTEN_MS)
        expect(page.locator("#outcome").get_by_role("alert")).to_contain_text("is used as before.")
        ask(page, "hello", 1)  # by the model that worked
        drop(page, ("notes.txt", b"Some notes."))
        expect(page.locator("#say")).to_have_value("Some notes.")
        page.locator("#say").fill("")


# ---- errors ----------------------------------------------------------------------------------------------------------


@contextmanager
def open_mortal(browser, site):
    """A page whose workers a test can end."""
    with visit(browser, site, "/web/") as page:
        page.add_init_script("""
          window.workers = [];
          window.Worker = class extends Worker { constructor(...how) { super(...how); window.workers.push(this); } };""")
        page.goto(site + MINIATURE)
        wait_ready(page)
        yield page


def die_at_the_next_answer(page) -> None:
    """The worker is ended in the middle of it, as a browser does it for want of memory."""
    page.evaluate("""() => {
      new MutationObserver((_, observer) => {
        observer.disconnect();
        window.workers.splice(0).forEach((each) => each.terminate());
      }).observe(document.querySelector("#chat"), { attributes: true, attributeFilter: ["aria-busy"] });
    }""")


def test_engine_that_dies_is_told_and_the_conversation_goes_on(browser, site):
    with open_mortal(browser, site) as page:
        dial(page, "Longest answer").fill("8")
        ask(page, "hello")
        die_at_the_next_answer(page)
        page.locator("#say").fill("again")
        page.locator("#say").press("Enter")
        alert = page.locator("#outcome").get_by_role("alert")
        expect(alert).to_contain_text("The engine stopped unexpectedly", timeout=WRITTEN_MS)
        assert page.locator(".turn.you .said").all_inner_texts() == ["hello", "again"]
        page.get_by_role("button", name="Try again").click()
        answered(page, 2)
        expect(alert).to_have_count(0)


@pytest.mark.parametrize("mode", ["Chat", "Continue a text"])
def test_going_on_that_failed_is_tried_again_and_loses_nothing(browser, site, mode):
    with open_mortal(browser, site) as page:
        dial(page, "Longest answer").fill("3")
        page.get_by_label("Greedy").check()
        page.get_by_label(mode, exact=True).check()
        ask(page, "hello")
        [first] = said(page)
        die_at_the_next_answer(page)
        page.get_by_role("button", name="Go on").click()
        expect(page.locator("#outcome").get_by_role("alert")).to_be_visible(timeout=WRITTEN_MS)
        assert said(page) == [first]
        page.get_by_role("button", name="Try again").click()
        answered(page)
        [longer] = said(page)
        assert longer.startswith(first) and len(longer) > len(first)


def test_answer_that_the_engine_repeats_is_there_once(browser, site):
    """Where the GPU is lost, the request is made again elsewhere, and all of its tokens come once more."""
    with open_page(browser, site) as page:
        text, tokens, pieces, spans = page.evaluate("""async () => {
          const { Answer } = await import("/web/llama/writer.js");
          const { Log } = await import("/web/llama/log.js");
          const { message, newChat } = await import("/web/llama/conversation.js");
          const chat = newChat("chat"), log = new Log();
          chat.messages = [message("user", "hello"), message("assistant", "Before")];
          const answer = new Answer(chat, chat.messages[1], { sampling: {}, system: "", seed: 1 }, true);
          log.show(chat, answer.message);
          for (const given of [[" lost", " words"], [" a", "b", "c d", " e"]]) {
            answer.hear({ event: "prefill", done: 0, total: 4 });
            answer.hear({ event: "prefill", done: 4, total: 4 });
            given.forEach((text, token) => answer.hear({ event: "token", text, token, logprob: -1, top: [] }));
            log.grow();
          }
          const spans = [...document.querySelectorAll(".turn.model .tok")].map((e) => [e.dataset.piece, e.textContent]);
          return [answer.message.text, answer.tokens, answer.message.pieces.map(({ text }) => text), spans];
        }""")
        assert text == "Before abc d e" and tokens == 4
        assert pieces == ["Before", " a", "b", "c d", " e"]
        assert spans == [[str(i), piece] for i, piece in enumerate(pieces)]


# ---- phone ------------------------------------------------------------------------------------------------------------


def test_phone(browser, site):
    """Nothing to scroll sideways, targets big enough for a thumb, settings as a sheet, the text field in sight."""
    with open_page(browser, site, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as page:
        page.evaluate("""() => {
          localStorage.setItem("candlewick.llama.max_tokens", "8");
          localStorage.setItem("candlewick.llama.greedy", "on");   // what chance writes may be over at once
        }""")
        page.reload()
        wait_ready(page)
        for n, text in enumerate(("a_very_long_word_without_any_spaces_", "hi"), 1):
            ask(page, text, n)
        assert page.evaluate("() => document.documentElement.scrollWidth") == 360
        box = page.locator("#say").bounding_box()
        assert 0 < box["y"] and box["y"] + box["height"] <= 740
        page.locator(".turn.model .tok:not(:empty)").nth(1).tap()
        expect(page.locator("#odds")).to_be_visible()
        page.get_by_role("button", name="Settings").tap()
        expect(page.get_by_role("heading", name="How it writes")).to_be_visible()
        for summary in page.locator("summary:visible").all():
            summary.click()
        assert page.evaluate("() => document.documentElement.scrollWidth") == 360
        small = page.evaluate("""() => [...document.querySelectorAll("a, button, select, summary")]
          .map((e) => [e.textContent.trim().slice(0, 30), e.getBoundingClientRect()])
          .filter(([, r]) => r.width && (r.height < 24 || r.width < 24)).map(([name]) => name)""")
        assert [s for s in small if not s.startswith(("Skip to the", "seed"))] == []
        page.get_by_role("button", name="Done").tap()
        expect(page.get_by_role("heading", name="How it writes")).to_be_hidden()
        expect(page.get_by_role("button", name="Settings")).to_be_focused()
