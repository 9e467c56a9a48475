"""What the tests of the Llama page share: ask, wait for the answer, read it."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from tests.browser.pages import ROOT, visit, wait_ready

MODELS = ROOT / "models"
MINIATURE = "/web/llama/#model=test-llama"
WRITTEN_MS = 240_000

needs_miniature = pytest.mark.skipif(not (MODELS / "test-llama" / "model.safetensors").is_file(),
                                     reason="models/test-llama is not here")


@contextmanager
def open_page(browser, site, path=MINIATURE, **how):
    how.setdefault("permissions", ["clipboard-read", "clipboard-write"])
    with visit(browser, site, path, **how) as page:
        wait_ready(page)
        yield page


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
