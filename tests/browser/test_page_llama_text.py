"""Text of models and people on the Llama page: the small renderer of Markdown, and that nothing ever becomes markup (BR-59)."""

from __future__ import annotations

import pytest

from tests.browser.pages import visit


@pytest.fixture(scope="module")
def page(browser, site):
    with visit(browser, site, "/web/llama/") as page:
        page.evaluate("""async () => {
          const { parse, nodeOf } = await import("/web/llama/markdown.js");
          // the element names and the text of a rendered source, in one line
          const line = (node) => node.nodeType === 3 ? node.data.replaceAll("\\n", "|")
            : `<${tag(node)}>${[...node.childNodes].map(line).join("")}</${node.localName}>`;
          const tag = (node) => node.localName + (node.hasAttribute("start") ? " " + node.getAttribute("start") : "");
          window.render = (source) => {
            const leaf = (a, b) => [document.createTextNode(source.slice(a, b))];
            const nodes = parse(source).map((block) => nodeOf(block, leaf, () => {}));
            return nodes.map(line).join("");
          };
        }""")
        yield page


def code(name: str, text: str) -> str:
    head = f"<figcaption><span>{name}</span><button>Copy code</button></figcaption>"
    return f"<figure>{head}<pre><code>{text}</code></pre></figure>"


LINKS = "[a](javascript:alert(1)) ![b](http://x.y/z.png) <http://x.y> http://x.y"
CASES = {
    "two  words\nin lines": "<p>two  words|in lines</p>",
    "one\n\n\ntwo": "<p>one</p><p>two</p>",
    "a **b *c* d** `e*f*` _g_": "<p>a <strong>b <em>c</em> d</strong> <code>e*f*</code> <em>g</em></p>",
    "***h***": "<p><strong><em>h</em></strong></p>",
    "snake_case_name 2*3*4 ** * __": "<p>snake_case_name 2*3*4 ** * __</p>",
    "**open and *never closed": "<p>**open and *never closed</p>",
    "# Head\n## *Two*\nText": "<p>Head</p><p><em>Two</em></p><p>Text</p>",
    "- a\n- b\n  more\n  - c\n* d": "<ul><li>a</li><li>b|more<ul><li>c</li></ul></li><li>d</li></ul>",
    "1. a\n\n2. **b**: c\n\nend": "<ol><li>a</li><li><strong>b</strong>: c</li></ol><p>end</p>",
    "3) x\n4) y": "<ol 3><li>x</li><li>y</li></ol>",
    "```py\nif a < b:\n\n  **x**\n```\nend": code("py", "if a < b:||  **x**") + "<p>end</p>",
    "```\nstill open": code("code", "still open"),
    "```\nx\n```And so on": code("code", "x") + "<p>And so on</p>",
    "> a\n> b\nc": "<blockquote>a|b</blockquote><p>c</p>",
    "a\n\n---\nb": "<p>a</p><hr></hr><p>b</p>",
    LINKS: f"<p>{LINKS}</p>",
    "<script>x</script> & &lt; <img src=x onerror=y>": "<p><script>x</script> & &lt; <img src=x onerror=y></p>",
    "Grüße, 世界 **🕯️** *한국어*": "<p>Grüße, 世界 <strong>🕯️</strong> <em>한국어</em></p>",
    "": "",
}


@pytest.mark.parametrize("source", CASES)
def test_markdown(page, source):
    assert page.evaluate("(source) => render(source)", source) == CASES[source]


ENDLESS = ["*_`" * 2000, "- x\n" * 2000, "**a " * 3000, "*a*b" * 3000, "> " * 3000, "  - a\n\n" * 1500, "`" * 5000 + "a",
           "".join(" " * i + "- a\n" for i in range(200)), "```\n" * 3001]


@pytest.mark.parametrize("source", ENDLESS, ids=range(len(ENDLESS)))
def test_endless_marks_take_no_endless_time(page, source):
    """Small models like to repeat themselves; a test runner's limit is the only clock here."""
    page.evaluate("(source) => render(source)", source)


def test_growing_text_is_whole_at_every_length(page):
    """While an answer grows, its words are all there and each token keeps its place, whatever is half open."""
    source = "# T\n\n1. **a** `b`\n   - c *d*\n\n```js\nx\n```\n> q _r_\n\nend"
    lost = page.evaluate("""(source) => {
      const marks = /[#*`>_\\s\\d.-]|js/g;
      const lost = [];
      for (let n = 0; n <= source.length; n++) {
        const part = source.slice(0, n);
        const shown = render(part).replaceAll("Copy code", "").replaceAll("<span>code</span>", "").replace(/<[^>]*>/g, "");
        if (shown.replace(marks, "").replaceAll("|", "") !== part.replace(marks, "")) lost.push(part);
      }
      return lost;
    }""", source)
    assert lost == []


EVIL = "<img src=/nothing.png onerror=window.hurt=1><script>window.hurt=1</script> [x](javascript:window.hurt=1) `<b>` **<i>**"


@pytest.mark.parametrize("mode", ["chat", "text"])
def test_whatever_a_model_says_is_text(browser, site, mode):
    """BR-59: in answers, questions, probabilities, stop strings, names of models, titles and errors."""
    asked = []
    with visit(browser, site, "/web/llama/") as page:
        page.on("request", lambda request: asked.append(request.url))
        page.locator("#ideas button").first.wait_for()  # from then on the page draws nothing by itself
        shown = page.evaluate("""async ([evil, mode]) => {
          const { Log } = await import("/web/llama/log.js");
          const { message, newChat } = await import("/web/llama/conversation.js");
          const { History } = await import("/web/llama/history.js");
          const { errorNotice } = await import("/web/lib/words.js");
          const chat = newChat(mode);
          const [question, answer] = chat.messages = [message("user", evil), message("assistant", evil)];
          const top = [[1, evil, -1], [2, evil, -2]];
          answer.pieces = [...evil].map((text) => ({ text, token: 1, logprob: -1, top }));
          answer.outcome = { reason: "stop", stop: evil, seed: 1, options: { max_tokens: 5 }, system: evil, model: evil,
            prompt_tokens: 1, reused_tokens: 0, context: null, continued: false,
            timings: { tokens: 3, decode_ms: 1, first_token_ms: 1 } };
          document.querySelector("#log").hidden = false;
          const log = new Log();
          log.show(chat, null);
          log.odds.show(document.querySelector(".turn.model .tok"));
          new History().show([chat], "other");
          document.querySelector("#outcome").append(errorNotice({ code: "bad_input", message: evil }, () => {}));
          await new Promise((resolve) => setTimeout(resolve, 300));
          const places = [".turn.you .said", ".turn.model .said", "#odds .what", "#history .open span"];
          return places.map((place) => document.querySelector(place).textContent);
        }""", [EVIL, mode])
        assert shown[0] == EVIL
        assert shown[1] == (EVIL if mode == "text" else EVIL.replace("`", "").replace("**", ""))
        assert shown[2] == EVIL.replace(" ", "·")
        assert shown[3].startswith("<img")
        assert page.evaluate("window.hurt") is None
        made = page.locator("#log, #outcome, #odds, #history").locator("img, script, a, b, em, i:not(.bar i)")
        assert made.count() == 0
        assert not [url for url in asked if "nothing.png" in url or "javascript" in url]
