"""How the pages look to everyone: contrast in light and dark, phone width, less motion, what the landing page tells."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.pages import ROOT, visit

# foreground token, backgrounds it stands on, least contrast (WCAG AA: 4.5 for text, 3 for what only shapes)
PAIRS = [
    ("--text", ("--bg", "--surface", "--sunken", "--accent-soft", "--danger-soft"), 4.5),
    ("--muted", ("--bg", "--surface", "--sunken"), 4.5),
    ("--accent", ("--bg", "--surface", "--sunken", "--accent-soft"), 4.5),
    ("--accent-hover", ("--bg", "--surface", "--sunken"), 4.5),
    ("--on-accent", ("--accent", "--accent-hover"), 4.5),
    ("--danger", ("--surface", "--danger-soft"), 4.5),
    ("--ok", ("--surface",), 3),
    ("--line-strong", ("--bg", "--surface"), 3),
]


def luminance(colour: str) -> float:
    """"#rrggbb" -> relative luminance as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(browser, site, scheme):
    with visit(browser, site, "/web/", color_scheme=scheme) as page:
        token = {name: page.evaluate("(n) => getComputedStyle(document.documentElement).getPropertyValue(n).trim()", name)
                 for pair in PAIRS for name in (pair[0], *pair[1])}
        assert (luminance(token["--bg"]) < 0.1) == (scheme == "dark")
        for front, backs, least in PAIRS:
            for back in backs:
                light, dark = sorted((luminance(token[front]), luminance(token[back])), reverse=True)
                ratio = (light + 0.05) / (dark + 0.05)
                assert ratio >= least, f"{scheme}: {front} {token[front]} on {back} {token[back]} is {ratio:.2f}:1"


@pytest.mark.parametrize("path", ["/web/", "/web/whisper/", "/web/segment/"])
def test_phone_width(browser, site, path):
    """360 px: nothing to scroll sideways, also with everything open, and targets big enough for a thumb."""
    with visit(browser, site, path, viewport={"width": 360, "height": 740}, has_touch=True) as page:
        for summary in page.locator("summary").all():
            if summary.is_visible():  # what a page shows only where it has something to say
                summary.click()
        page.evaluate("""() => {
          const box = document.querySelector("#job");
          if (box) {
            const parts = "#job, #player, #meter, #take-away, #take-away button, #again, #stop, #things-card, #look";
            for (const e of document.querySelectorAll(parts)) e.hidden = false;
            document.querySelector("#job-name").textContent = "a_very_long_file_name_without_any_spaces_".repeat(6) + ".flac";
          }
        }""")
        assert page.evaluate("() => document.documentElement.scrollWidth") == 360
        small = page.evaluate("""() => [...document.querySelectorAll("a, button, select, summary")]
          .map((e) => [e.textContent.trim().slice(0, 30), e.getBoundingClientRect()])
          .filter(([, r]) => r.width && (r.height < 24 || r.width < 24)).map(([name]) => name)""")
        assert [s for s in small if not s.startswith("Skip to the")] == []


def test_less_motion(browser, site):
    with visit(browser, site, reduced_motion="reduce") as page:
        moving = page.evaluate("""() => [...document.querySelectorAll("*")].filter((e) => [null, "::before", "::after"]
          .some((part) => {
          const style = getComputedStyle(e, part);
          return style.animationName !== "none" || parseFloat(style.transitionDuration) > 0;
        })).map((e) => e.id || e.className || e.tagName)""")
        assert moving == []


def test_no_inline_style_script_or_markup_from_data():
    """The content security policy forbids the first two; the third is how text from a model would become HTML."""
    for path in (ROOT / "web").rglob("*.html"):
        text = path.read_text()
        assert not re.search(r"\sstyle=|<style|\son\w+=|<script(?![^>]*\ssrc=)", text), path
    for path in (ROOT / "web").rglob("*.js"):
        markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function"
        assert not re.search(markup, path.read_text()), path


def test_landing_page_tells_the_device_and_leads_on(browser, site):
    with visit(browser, site, "/") as page:
        assert page.url == site + "/web/"
        can = page.locator("#device li")
        expect(can).to_have_count(6)
        expect(can.nth(0)).to_contain_text("SIMD")
        expect(can.nth(1)).to_contain_text(re.compile("core"))
        for line in can.all():
            expect(line.get_by_role("img")).to_have_attribute("aria-label", re.compile("Yes:|Partly:|No:"))
        page.get_by_role("link", name=re.compile("Speak, and read it")).click()
        expect(page.get_by_role("heading", name="Speak, and read it")).to_be_visible()
        page.get_by_role("link", name="Candlewick").click()
        expect(page.get_by_role("heading", name="What this device can do")).to_be_visible()


def test_pages_work_as_an_app(browser, site):
    with visit(browser, site, "/web/") as page:
        manifest = page.evaluate("""async () => {
          const link = document.querySelector("link[rel=manifest]");
          const data = await (await fetch(link.href)).json();
          const icon = await fetch(new URL(data.icons[0].src, link.href));
          return [data.name, icon.ok, icon.headers.get("content-type")];
        }""")
        assert manifest == ["Candlewick", True, "image/svg+xml"]
