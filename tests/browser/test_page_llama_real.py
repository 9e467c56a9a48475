"""The Llama page with SmolLM2: a talk that is stopped and goes on, whole characters, and no network after the first visit."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.llama_page import WRITTEN_MS, answered, ask, dial, said
from tests.browser.pages import ROOT, held_back, hold, release, visit, wait_held, wait_ready
from tests.browser.test_page_offline import KEPT_MS, server  # noqa: F401  a fixture

pytestmark = pytest.mark.skipif(not (ROOT / "models" / "smollm2-135m-instruct" / "model.gguf").is_file(),
                                reason="smollm2-135m-instruct is not here; run python3 serve.py --setup")


WEIGHTS = "**/models/smollm2-135m-instruct/model.gguf"


def test_three_turns_stop_in_the_middle_and_another(browser, site):
    with visit(browser, site, "/web/", gated=True) as page, held_back(page, WEIGHTS) as let_go:
        page.goto(f"{site}/web/llama/")
        expect(page.locator("#model-facts")).to_contain_text("98.4 MB")  # before it is loaded
        expect(page.locator("#model-facts")).to_contain_text("Memory it needs")
        page.get_by_label("Greedy").check()
        page.locator("#say").fill("What is the capital of France?")
        page.locator("#say").press("Enter")  # waits for the model
        expect(page.locator("#doing")).to_contain_text("Waiting for the model")
        let_go()
        wait_ready(page)
        answered(page)
        assert "Paris" in said(page)[0]

        page.locator("#say").fill("Tell me a very long story about a candle.")
        hold(page, "token", nth=20)
        page.locator("#say").press("Enter")
        wait_held(page)
        expect(page.locator("#doing")).to_contain_text(re.compile(r"Writing: 20 tokens, .+ tokens/s"))
        page.locator("#say").fill("a draft")  # the field is free meanwhile
        page.get_by_role("button", name="Stop", exact=True).click()
        page.locator("#chat[aria-busy=false]").wait_for(timeout=WRITTEN_MS)
        page.keyboard.press("Escape")  # once more, with nothing to stop
        kept = said(page)[1]
        assert len(kept.split()) > 5
        expect(page.locator(".facts-line").nth(1)).to_contain_text("stopped by you")
        page.wait_for_timeout(500)
        assert said(page)[1] == kept, "it went on behind the scenes"
        expect(page.locator("#say")).to_have_value("a draft")

        dial(page, "Longest answer").fill("40")
        ask(page, "What is the capital of Italy?", 3)
        assert "Rome" in said(page)[2]
        assert said(page)[1] == kept

        page.get_by_role("button", name="New", exact=True).click()
        texts = []
        for _ in range(2):  # Stop left nothing behind: twice the same words
            ask(page, "Name three colours.")
            texts.append(said(page)[0])
            page.get_by_role("button", name="New", exact=True).click()
        assert texts[0] == texts[1] and len(texts[0]) > 10


def test_stop_before_the_first_word_and_while_loading(browser, site):
    with visit(browser, site, "/web/") as page, held_back(page, WEIGHTS) as let_go:
        page.goto(f"{site}/web/llama/")
        page.locator("#say").fill("Hello")
        page.locator("#say").press("Enter")
        page.get_by_role("button", name="Stop", exact=True).click()
        page.locator("#chat[aria-busy=false]").wait_for(timeout=WRITTEN_MS)
        expect(page.locator(".facts-line")).to_have_text("stopped by you")
        let_go()
        dial(page, "Longest answer").fill("30")
        ask(page, "What is 2 + 2?", 2)  # loads by itself, and stands without the answer that never came
        assert said(page)[1]


def test_whole_characters_stream(browser, site):
    """No half of an emoji is ever seen: each is made of several tokens."""
    with visit(browser, site, "/web/llama/", gated=True) as page:
        wait_ready(page)
        page.get_by_label("Continue a text").check()
        page.get_by_label("Greedy").check()
        dial(page, "Repeat penalty").fill("1")
        dial(page, "Longest answer").fill("60")
        page.evaluate("""() => {
          window.seen = [];
          new MutationObserver(() => window.seen.push(document.querySelector(".turn.model .said")?.textContent ?? ""))
            .observe(document.querySelector("#log"), { childList: true, subtree: true, characterData: true });
        }""")
        hold(page, "token")
        page.locator("#say").fill("🎉🥳🎂🎉🥳🎂🎉🥳🎂🎉🥳🎂🎉🥳")
        page.locator("#say").press("Enter")
        for n in range(1, 17):  # each token is drawn by itself, however fast they come
            wait_held(page)
            expect(page.locator("#doing")).to_contain_text(re.compile(rf"Writing: {n} token"))
            hold(page, "token")
        release(page)
        answered(page)
        seen = page.evaluate("window.seen")
        emoji = [letter for letter in said(page)[0] if ord(letter) > 0x1F000]
        assert len(emoji) > 5 and len(set(seen)) > 3
        # Half a character would be seen as U+FFFD, or as half of a pair, and would then be taken back.
        assert all(seen[-1].startswith(text) for text in seen), "text came and went"
        assert all(not text or not 0xD800 <= ord(text[-1]) < 0xDC00 for text in seen)


def test_second_visit_without_a_server(browser, server):  # noqa: F811
    site, process = server
    with visit(browser, site, "/web/llama/", allow=("ERR_CONNECTION_REFUSED", "ERR_FAILED", "Failed to fetch")) as page:
        wait_ready(page)
        expect(page.locator("#offline-note")).to_have_text("Works offline from now on.", timeout=KEPT_MS)
        process.kill()
        process.wait()
        page.reload()
        wait_ready(page)
        page.get_by_label("Greedy").check()
        dial(page, "Longest answer").fill("30")
        ask(page, "What is the capital of France?")
        assert "Paris" in said(page)[0]
