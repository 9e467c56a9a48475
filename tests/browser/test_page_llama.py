"""The Llama page as a person uses it, in Chromium, with the real engine on a miniature whose weights are random: what it
writes is noise, how the page treats that is not. What is asserted is what is seen."""

from __future__ import annotations

import base64
import json
import re
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from tests.browser.pages import ROOT, visit, wait_ready

MODELS = ROOT / "models"
MINIATURE = "/web/llama/#model=test-llama"
WRITTEN_MS = 60_000

pytestmark = pytest.mark.skipif(not (MODELS / "test-llama" / "model.safetensors").is_file(), reason="models/test-llama is not here")


@contextmanager
def open_page(browser, site, path=MINIATURE, **how):
    how.setdefault("permissions", ["clipboard-read", "clipboard-write"])
    with visit(browser, site, path, **how) as page:
        wait_ready(page)
        yield page


@pytest.fixture(scope="module")
def page(browser, site):
    """One page for many tests: each begins a new conversation with the usual settings."""
    with open_page(browser, site) as page:
        yield page


@pytest.fixture
def fresh(page):
    page.get_by_role("button", name="Reset").click()
    page.get_by_label("Longest answer").and_(page.get_by_role("spinbutton")).fill("12")
    page.get_by_label("Chat", exact=True).check()
    page.get_by_role("button", name="New", exact=True).click()
    return page


def answered(page, n: int = 1) -> None:
    """Nothing is being written, and there are n answers."""
    page.locator("#chat[aria-busy=false]").wait_for(timeout=WRITTEN_MS)
    expect(page.locator(".turn.model")).to_have_count(n)


def ask(page, text: str, n: int = 1) -> None:
    page.locator("#say").fill(text)
    page.locator("#say").press("Enter")
    answered(page, n)


def said(page) -> list[str]:
    return page.locator(".turn.model .said").evaluate_all("(all) => all.map((e) => e.textContent)")


def dial(page, name: str):
    return page.get_by_role("spinbutton", name=name, exact=True)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def clipboard(page) -> str:
    return page.evaluate("() => navigator.clipboard.readText()")


# ---- talking ----------------------------------------------------------------------------------------------------------


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
    expect(facts).to_have_text(re.compile(r"(ended by itself|reached 12 tokens).* · \d+ tokens.* · first after .* · seed \d+"))
    run = page.locator("#run-facts")
    for name in ("Executor", "Weights", "Context", "Load", "First token", "Read", "Memory in use"):
        expect(run.get_by_text(name, exact=True)).to_be_visible()
    expect(page.locator("#live")).to_have_text(re.compile(r"(ended by itself|reached 12 tokens).*\.$"))


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
    parsed = page.evaluate(r"""async () => (await import("/web/llama/options.js")).stopStrings("a\n\\n\\n\n\"b\"\n\\\"c\n\\x\n\\\\n")""")
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
    page.get_by_role("button", name="Copy a link that makes this answer again").click()
    expect(page.get_by_role("button").filter(has_text="Copied")).to_be_visible()
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
    page.get_by_role("button", name="Copy the whole text").click()
    expect(page.get_by_role("button").filter(has_text="Copied")).to_be_visible()
    assert clipboard(page) == whole
    assert page.locator("#log b, #log em").count() == 0


def test_context_limits_in_words_with_the_text_kept(fresh):
    page = fresh
    long = "much too long " * 30
    ask(page, long, 0)
    alert = page.locator("#outcome").get_by_role("alert")
    expect(alert).to_contain_text(re.compile(r"Too long.*the prompt has \d{3,} tokens, and prompt and answer together may have 128"))
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


# ---- look inside -------------------------------------------------------------------------------------------------------


def test_probabilities_by_pointer_and_by_keys(fresh):
    page = fresh
    ask(page, "hello")
    odds = page.locator("#odds")
    page.locator(".turn.model .tok").nth(2).hover()
    expect(odds).to_be_visible()
    rows = odds.locator("p")
    assert rows.count() in (5, 6) and odds.locator(".chosen").count() == 1
    assert all(re.fullmatch(r"(under 0\.1|[\d.]+)%", each) for each in odds.locator(".number").all_inner_texts())
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


# ---- out, kept, gone ------------------------------------------------------------------------------------------------------


def test_copy_and_downloads(fresh):
    page = fresh
    ask(page, "**hello** <i>")
    page.get_by_role("button", name="Copy the answer").click()
    expect(page.get_by_role("button").filter(has_text="Copied")).to_be_visible()
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
        assert page.locator("#log .said").all_inner_texts() == before
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
        page.reload()
        expect(page.locator("#greeting")).to_be_visible()
        expect(page.locator("#history-card")).to_be_hidden()
        assert page.evaluate("async () => (await (await import('/web/llama/store.js')).all()).length") == 0


def test_diagnostics_tell_the_device_and_nothing_written(fresh):
    page = fresh
    page.get_by_label("System prompt").fill("my secret rules")
    ask(page, "my secret question")
    page.locator("#diagnostics").click()
    expect(page.locator("#diagnostics")).to_have_text("Copied")
    told = json.loads(clipboard(page))
    assert told["chat"]["messages"] == 2 and told["engine"]["info"]["executor"] == "wasm"
    assert "secret" not in clipboard(page) and not any(text.strip() in clipboard(page) for text in said(page) if len(text.strip()) > 8)


# ---- settings ---------------------------------------------------------------------------------------------------------------


def test_settings_are_held_to_their_range_and_reset(fresh):
    page = fresh
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


# ---- own models ---------------------------------------------------------------------------------------------------------------


def drop(page, *files) -> None:
    page.evaluate(
        """([files]) => {
          const dataTransfer = new DataTransfer();
          for (const [name, text] of files) dataTransfer.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name));
          const say = (kind) => document.querySelector("main").dispatchEvent(new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
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
        page.get_by_role("button", name="Copy a link that makes this answer again").click()
        expect(page.get_by_role("button").filter(has_text="Copied")).to_be_visible()
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
        expect(page.locator("#own-outcome")).to_have_text("A language model needs tokenizer.bin; the chosen files do not have it.")
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


def test_what_is_no_model_is_told_and_a_text_is_taken_as_words(fresh):
    page = fresh
    drop(page, ("photo.jpg", b"\xff\xd8\xff"))
    expect(page.locator("#outcome").get_by_role("alert")).to_contain_text("needs a .gguf file")
    drop(page, ("broken.gguf", b"GGUF" + bytes(20)))
    ask(page, "hello", 0)
    expect(page.locator("#outcome").get_by_role("alert")).to_contain_text("broken.gguf")
    expect(page.locator(".turn.you")).to_have_count(1)  # what was written is not lost
    page.get_by_text("test-llama", exact=True).click()
    page.get_by_role("button", name="Try again").click()
    answered(page)
    drop(page, ("notes.txt", b"Some notes."))
    expect(page.locator("#say")).to_have_value("Some notes.")
    page.locator("#say").fill("")


# ---- errors -------------------------------------------------------------------------------------------------------------------


def test_engine_that_dies_is_told_and_the_conversation_goes_on(browser, site):
    """The worker is ended in the middle of an answer, as a browser does it for want of memory."""
    with visit(browser, site, "/web/") as page:
        page.add_init_script("""
          window.workers = [];
          window.Worker = class extends Worker { constructor(...how) { super(...how); window.workers.push(this); } };""")
        page.goto(site + MINIATURE)
        wait_ready(page)
        dial(page, "Longest answer").fill("8")
        ask(page, "hello")
        page.evaluate("""() => {
          new MutationObserver(() => window.workers.forEach((each) => each.terminate()))
            .observe(document.querySelector("#chat"), { attributes: true, attributeFilter: ["aria-busy"] });
        }""")
        page.locator("#say").fill("again")
        page.locator("#say").press("Enter")
        alert = page.locator("#outcome").get_by_role("alert")
        expect(alert).to_contain_text("The engine stopped unexpectedly", timeout=WRITTEN_MS)
        assert page.locator(".turn.you .said").all_inner_texts() == ["hello", "again"]
        page.evaluate("() => { window.workers.length = 0; }")
        page.get_by_role("button", name="Try again").click()
        answered(page, 2)
        expect(alert).to_have_count(0)


# ---- everyone ------------------------------------------------------------------------------------------------------------------


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
    page.keyboard.press("c")
    expect(page.get_by_role("button").filter(has_text="Copied")).to_be_visible()
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
    page.wait_for_timeout(100)
    told = [each for each in page.evaluate("window.told") if each]
    assert len(told) <= 2 and re.search("ended by itself|reached 12 tokens", told[-1])
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


def test_phone(browser, site):
    """Nothing to scroll sideways, targets big enough for a thumb, settings as a sheet, the text field in sight."""
    with open_page(browser, site, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as page:
        page.evaluate("() => localStorage.setItem('candlewick.llama.max_tokens', '8')")
        page.reload()
        wait_ready(page)
        for n, text in enumerate(("a_very_long_word_without_any_spaces_", "hi", "hi"), 1):
            ask(page, text, n)
        assert page.evaluate("() => document.documentElement.scrollWidth") == 360
        box = page.locator("#say").bounding_box()
        assert 0 < box["y"] and box["y"] + box["height"] <= 740
        page.locator(".turn.model .tok").nth(1).tap()
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


def test_less_motion(browser, site):
    with visit(browser, site, "/web/llama/", reduced_motion="reduce") as page:
        moving = page.evaluate("""() => [...document.querySelectorAll("*")].filter((e) => [null, "::before", "::after"].some((part) => {
          const style = getComputedStyle(e, part);
          return style.animationName !== "none" || parseFloat(style.transitionDuration) > 0;
        })).map((e) => e.id || e.className || e.tagName)""")
        assert moving == []
