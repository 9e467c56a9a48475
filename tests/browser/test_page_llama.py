"""The Llama page as a person uses it, in Chromium, with the real engine on a miniature whose weights are random: what it
writes is noise, how the page treats that is not. What is asserted is what is seen."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.llama_page import (
    WRITTEN_MS,
    answered,
    ask,
    clipboard,
    dial,
    needs_miniature,
    open_page,
    quoted,
    said,
)
from tests.browser.pages import copied, visit, wait_ready

pytestmark = needs_miniature


@pytest.fixture(scope="module")
def page(browser, site):
    """One page for many tests: each begins a new conversation with the usual settings."""
    with open_page(browser, site) as page:
        yield page


@pytest.fixture
def fresh(page):
    page.get_by_role("button", name="Reset").click()
    page.get_by_label("Longest answer").and_(page.get_by_role("spinbutton")).fill("6")
    page.get_by_label("Chat", exact=True).check()
    page.get_by_role("button", name="New", exact=True).click()
    return page


# ---- talking ---------------------------------------------------------------------------------------------------------


def test_three_turns_with_facts_and_context(fresh):
    page = fresh
    used = 0
    for n, text in enumerate(("one", "two", "three"), 1):
        ask(page, text, n)
        now = int(re.match(r"(\d+) of 128 tokens", page.locator("#context-words").inner_text())[1])
        assert now > used
        used = now
    assert page.locator(".turn.you .said").all_inner_texts() == ["one", "two", "three"]
    facts = page.locator(".turn.model .facts-line").last
    expect(facts).to_have_text(re.compile(r"(ended by itself|reached 6 tokens).* · \d+ tokens.* · first after .* · seed \d+"))
    run = page.locator("#run-facts")
    for name in ("Executor", "Weights", "Context", "Load", "First token", "Read", "Memory in use"):
        expect(run.get_by_text(name, exact=True)).to_be_visible()
    expect(page.locator("#live")).to_have_text(re.compile(r"(ended by itself|reached 6 tokens).*\.$"))


def test_length_is_told_and_the_answer_goes_on_in_its_place(fresh):
    page = fresh
    dial(page, "Longest answer").fill("3")
    page.get_by_label("Greedy").check()
    ask(page, "hello")
    [first] = said(page)
    expect(page.locator(".facts-line")).to_contain_text("reached 3 tokens, the longest answer you allow")
    page.get_by_role("button", name="Go on").click()
    answered(page)
    [longer] = said(page)
    assert longer.startswith(first) and len(longer) > len(first)


def test_stop_strings(fresh):
    page = fresh
    page.get_by_label("Greedy").check()
    ask(page, "hello")
    tokens = page.locator(".turn.model .tok").all_inner_texts()
    whole = "".join(tokens)
    stop = whole.strip()[3]
    page.get_by_label("Stop at").fill(quoted(stop)[1:-1])
    page.get_by_role("button", name="Write this answer again").click()
    answered(page)
    assert said(page)[0].rstrip() == whole[: whole.index(stop)].rstrip()
    expect(page.locator(".facts-line")).to_contain_text(f"stopped at {quoted(stop)}")


def test_stop_strings_as_they_are_written(page):
    written = "\n".join(["a", r"\n\n", '"b"', r"\"c", r"\x", r"\\n"])
    parsed = page.evaluate("""async (text) => (await import("/web/llama/options.js")).stopStrings(text)""", written)
    assert parsed == ["a", "\n\n", '"b"', '"c', "\\x", "\\n"]


def test_seed_is_another_one_each_time_and_can_be_kept(fresh):
    page = fresh
    dial(page, "Temperature").fill("2")
    seeds, texts = [], []
    for _ in range(2):
        page.get_by_role("button", name="New", exact=True).click()
        ask(page, "hello")
        seeds.append(page.get_by_role("button", name=re.compile("Seed")).inner_text())
        texts += said(page)
    assert seeds[0] != seeds[1] and texts[0] != texts[1]
    page.get_by_role("button", name=re.compile("Seed")).click()
    assert f"seed {dial(page, 'Seed').input_value()}" == seeds[1]
    page.get_by_role("button", name="New", exact=True).click()
    ask(page, "hello")
    assert said(page) == texts[1:]


def test_link_makes_the_same_answer_elsewhere(browser, site, fresh):
    page = fresh
    dial(page, "Temperature").fill("1.5")
    page.get_by_label("System prompt").fill("Speak of <b>cats</b> & \"dogs\"")
    page.get_by_label("Stop at").fill("\\n\\n\\n\nqqqq")
    ask(page, "hello äöü 🎉 & more=1")
    copied(page, page.get_by_role("button", name="Copy a link that makes this answer again").click)
    link = clipboard(page)
    assert link.startswith(site + "/web/llama/#")
    with visit(browser, site, link.removeprefix(site)) as other:
        wait_ready(other)
        expect(other.locator("#say")).to_have_value("hello äöü 🎉 & more=1")
        assert dial(other, "Temperature").input_value() == "1.5"
        expect(other.get_by_label("System prompt")).to_have_value("Speak of <b>cats</b> & \"dogs\"")
        other.get_by_role("button", name="Send").click()
        answered(other)
        assert said(other) == said(page)
        assert "#model=test-llama" in other.url and "hello" not in other.url, "the words stay in the address"


def test_edit_asks_again_from_there_and_can_be_given_up(fresh):
    page = fresh
    ask(page, "first")
    ask(page, "second", 2)
    page.locator("#say").fill("a draft")
    page.locator(".turn.you").first.hover()
    page.get_by_role("button", name="Edit, and ask again from here").first.click()
    expect(page.locator("#say")).to_have_value("first")
    page.locator("#say").press("Escape")
    expect(page.locator("#say")).to_have_value("a draft")
    expect(page.locator(".turn")).to_have_count(4)
    page.locator("#say").fill("")
    page.locator("#say").press("ArrowUp")
    expect(page.locator("#say")).to_have_value("second")
    ask(page, "another", 2)
    assert page.locator(".turn.you .said").all_inner_texts() == ["first", "another"]


def test_continue_a_text(fresh):
    """What people add and what the model adds are one text; the person's words are kept as they are."""
    page = fresh
    page.get_by_label("Continue a text").check()
    expect(page.get_by_label("System prompt")).to_be_hidden()
    ask(page, "The  *sea* is\n<b>")
    ask(page, "and then", 2)
    page.locator("#send").click()  # nothing to add: it goes on in its own words
    answered(page, 2)
    first, second = page.locator(".turn.you .said").evaluate_all("(all) => all.map((e) => e.textContent)")
    assert first == "The  *sea* is\n<b>" and second.strip() == "and then"
    whole = page.locator("#log .said").evaluate_all("(all) => all.map((e) => e.textContent).join('')")
    copied(page, page.get_by_role("button", name="Copy the whole text").click)
    assert clipboard(page) == whole
    assert page.locator("#log b, #log em").count() == 0


def test_context_limits_in_words_with_the_text_kept(fresh):
    page = fresh
    long = "much too long " * 30
    ask(page, long, 0)
    alert = page.locator("#outcome").get_by_role("alert")
    both = r"Too long.*The prompt has \d{3,} tokens, and .*128"
    expect(alert).to_contain_text(re.compile(both))
    expect(page.locator("#say")).to_have_value(long.strip())
    expect(page.locator("#context-words")).to_have_text(re.compile(r"\d{3,} of 128 tokens"))

    page.locator("#say").fill("")
    dial(page, "Longest answer").fill("40")
    ask(page, "hello there, it is me again")
    n = 1
    while not alert.is_visible():
        page.locator("#say").fill(f"and once more, for the time {n}")
        page.locator("#say").press("Enter")
        page.locator("#chat[aria-busy=false]").wait_for(timeout=WRITTEN_MS)
        n += 1
        assert n < 20
    turns = page.locator(".turn").count()
    page.get_by_role("button", name="Leave out the oldest question and ask again").click()
    page.locator("#chat[aria-busy=false]").wait_for(timeout=WRITTEN_MS)
    if alert.is_visible():  # one was not enough
        page.get_by_role("button", name="Leave out the oldest question and ask again").click()
        page.locator("#chat[aria-busy=false]").wait_for(timeout=WRITTEN_MS)
    expect(page.get_by_text("The model no longer sees what is above.")).to_be_visible()
    assert page.locator(".turn").count() == turns + 2
    page.locator("#say").fill(long)  # too long by itself, whatever is left out
    page.locator("#say").press("Enter")
    expect(alert).to_contain_text("Too long")
    expect(alert.get_by_role("button")).to_have_text(["New conversation"])
    page.locator("#say").fill("")
    page.locator(".turn.model").first.hover()  # what the model sees now is not what this answer was made of
    copied(page, page.get_by_role("button", name="Copy a link that makes this answer again").first.click)
    given = parse_qs(urlsplit(clipboard(page)).fragment)["messages"]
    assert json.loads(given[0]) == [["user", "hello there, it is me again"]]


def test_answer_that_fills_the_context_says_so(fresh):
    page = fresh
    dial(page, "Longest answer").fill("1000")
    page.get_by_label("Continue a text").check()
    for _ in range(30):
        page.get_by_role("button", name="New", exact=True).click()
        ask(page, "hello " * 12)
        if "context full" in page.locator(".facts-line").inner_text():
            break
    expect(page.locator(".facts-line")).to_contain_text("context full: 128 of 128 tokens")


# ---- look inside -----------------------------------------------------------------------------------------------------


def test_probabilities_by_pointer_and_by_keys(fresh):
    page = fresh
    page.get_by_label("Greedy").check()  # what chance writes may be over at once
    ask(page, "hello")
    odds = page.locator("#odds")
    page.locator(".turn.model .tok:not(:empty)").nth(2).hover()
    expect(odds).to_be_visible()
    rows = odds.locator("p")
    assert rows.count() in (5, 6) and odds.locator(".chosen").count() == 1
    assert all(re.fullmatch(r"(< 0\.1|[\d.]+)%", each) for each in odds.locator(".number").all_inner_texts())
    expect(odds).to_contain_text("The model's own probabilities, before penalty, temperature and cuts")
    page.locator("#say").hover()
    expect(odds).to_be_hidden()

    page.get_by_role("button", name="Probabilities").click()
    expect(odds).to_be_visible()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    focused = page.evaluate("() => document.activeElement.dataset.piece")
    assert focused == "2"
    expect(page.locator("#live")).to_have_text(re.compile(r"%\. Others: .+%"))
    shown = "".join(page.locator(".turn.model .tok").all_inner_texts())
    page.get_by_role("button", name="Probabilities").click()
    assert page.locator(".turn.model .tok[tabindex]").count() == 0
    assert shown


def test_token_that_is_held_back_has_its_name(page):
    names = page.evaluate("""async () => {
      const { nameOf, visible } = await import("/web/llama/odds.js");
      const top = [[7, "\\n", -1], [8, "<0xE6>", -2]];
      return [7, 8, 9].map((token) => visible(nameOf({ text: "", token, logprob: -1, top })));
    }""")
    assert names == ["⏎", "<0xE6>", "(shown with a later token)"]


# ---- out, kept, gone -------------------------------------------------------------------------------------------------


def test_copy_and_downloads(fresh):
    page = fresh
    ask(page, "**hello** <i>")
    copied(page, page.get_by_role("button", name="Copy the answer").click)
    answer = clipboard(page)
    saved = {}
    for label, kind in (("as Markdown", "md"), ("conversation as text", "txt"), ("everything as JSON", "json")):
        with page.expect_download() as got:
            page.get_by_role("button", name=re.compile(label)).click()
        assert got.value.suggested_filename == f"__hello__ _i_.{kind}"
        saved[kind] = open(got.value.path(), encoding="utf-8").read()
    assert saved["txt"] == f"You:\n**hello** <i>\n\ntest-llama:\n{answer.strip()}\n"
    assert saved["md"] == f"# **hello** <i>\n\n## You\n\n**hello** <i>\n\n## test-llama\n\n{answer.strip()}\n"
    told = json.loads(saved["json"])
    question, reply = told["messages"]
    assert question == {"role": "user", "content": "**hello** <i>"}
    assert reply["content"] == answer == "".join(piece["text"] for piece in reply["tokens"])
    assert reply["timings"]["tokens"] == sum(piece["token"] is not None for piece in reply["tokens"])
    assert reply["seed"] >= 0 and reply["context"]["capacity"] == 128 and reply["options"]["top_k"] == 40


def test_conversations_are_kept_here_and_can_be_deleted(browser, site):
    with open_page(browser, site) as page:
        dial(page, "Longest answer").fill("5")
        ask(page, "the first one")
        before = page.locator("#log .said").all_inner_texts()
        page.reload()
        wait_ready(page)
        expect(page.locator("#log .said")).to_have_text(before)
        expect(dial(page, "Longest answer")).to_have_value("5")
        page.locator(".turn.model .tok").first.hover()
        expect(page.locator("#odds")).to_be_visible()  # also what it had thought of

        page.get_by_role("button", name="New", exact=True).click()
        ask(page, "the second one")
        page.get_by_text("Earlier conversations").click()
        expect(page.locator("#history li")).to_have_count(2)
        page.locator("#history").get_by_role("button", name=re.compile("^the first one")).click()
        expect(page.locator(".turn.you .said")).to_have_text("the first one")
        assert page.locator("#log .said").all_inner_texts() == before
        page.get_by_role("button", name="Delete this conversation").click()
        expect(page.locator("#greeting")).to_be_visible()
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".turn")).to_have_count(2)
        page.get_by_role("button", name="Delete: the second one").click()
        expect(page.locator("#history li")).to_have_count(1)
        page.get_by_role("button", name="Delete this conversation").click()
        expect(page.locator("#outcome")).to_contain_text("Deleted")
        page.reload()
        expect(page.locator("#greeting")).to_be_visible()
        expect(page.locator("#history-card")).to_be_hidden()
        assert page.evaluate("async () => (await (await import('/web/llama/store.js')).all()).length") == 0


def test_diagnostics_tell_the_device_and_nothing_written(fresh):
    page = fresh
    page.get_by_label("System prompt").fill("my secret rules")
    ask(page, "my secret question")
    copied(page, page.locator("#diagnostics").click)
    told = json.loads(clipboard(page))
    assert told["chat"]["messages"] == 2 and told["engine"]["info"]["executor"] == "wasm"
    written = [text.strip() for text in said(page) if len(text.strip()) > 8]
    assert not [text for text in ("secret", *written) if text in clipboard(page)]


# ---- everyone --------------------------------------------------------------------------------------------------------


def test_keys(fresh):
    page = fresh
    page.locator("#say").fill("one")
    page.locator("#say").press("Shift+Enter")
    page.keyboard.type("two")
    expect(page.locator("#say")).to_have_value("one\ntwo")
    page.keyboard.press("Enter")
    answered(page)
    assert page.locator(".turn.you .said").inner_text() == "one\ntwo"
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press("/")
    expect(page.locator("#say")).to_be_focused()
    page.keyboard.type("n?/")
    expect(page.locator("#say")).to_have_value("n?/")
    page.locator("#say").fill("")
    page.evaluate("() => document.activeElement.blur()")
    copied(page, lambda: page.keyboard.press("c"))
    page.keyboard.press("n")
    expect(page.locator("#greeting")).to_be_visible()
    page.keyboard.press("Escape")


def test_what_screen_readers_get(fresh):
    """An answer is told once, when it is whole; every control has a name."""
    page = fresh
    page.evaluate("""() => {
      window.told = [];
      new MutationObserver(() => window.told.push(document.querySelector("#live").textContent))
        .observe(document.querySelector("#live"), { childList: true });
    }""")
    ask(page, "hello")
    expect(page.locator("#live")).to_have_text(re.compile("ended by itself|reached 6 tokens"))
    told = [each for each in page.evaluate("window.told") if each]
    assert len(told) <= 2 and re.search("ended by itself|reached 6 tokens", told[-1])
    assert page.locator("#log[aria-live]").count() == 0
    unnamed = page.evaluate("""() => [...document.querySelectorAll("button, input, select, textarea, svg, progress")]
      .filter((e) => !e.closest("[hidden]") && e.getClientRects().length)
      .filter((e) => !(e.closest("[aria-hidden=true]") || e.getAttribute("aria-label") || e.labels?.length
        || (e.tagName === "BUTTON" && e.textContent.trim())))
      .map((e) => e.outerHTML.slice(0, 80))""")
    assert unnamed == []
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    assert page.evaluate("() => document.querySelectorAll('h1').length") == 1
