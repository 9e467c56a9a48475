"""After one visit the site works without its server; the copy is whole, and follows the server when that changes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from playwright.sync_api import expect

from tests.browser.pages import ROOT, try_sample, visit, wait_ready, words

KEPT_MS = 240_000
KINDS = (".html", ".js", ".css", ".svg", ".wasm", ".webmanifest", ".wav", ".jpg")


@pytest.fixture
def server(built):
    """A server in a process of its own, to be killed with all its connections: (address, process)."""
    command = [sys.executable, str(ROOT / "serve.py"), "--no-setup", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    yield re.search(r"http://[^/]+", process.stdout.readline())[0], process
    process.kill()
    process.wait()


def test_list_names_every_file(browser, site):
    with visit(browser, site, "/web/") as page:
        files = set(page.evaluate("async () => (await import('/web/lib/offline.js')).FILES"))
    there = set()
    for folder in ("web", "workers"):
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in KINDS and not name.startswith("web/bench/"):
                there.add(name.removesuffix("index.html"))
    there.discard("web/sw.js")  # the browser keeps it itself
    listed = {name for name in files if name.startswith(("web/", "workers/"))}
    assert listed == there, f"not in FILES of web/lib/offline.js: {there - listed}; listed, but not there: {listed - there}"


@pytest.mark.skipif(
    not (ROOT / "models" / "whisper-tiny.en" / "model.safetensors").is_file(),
    reason="whisper-tiny.en is not here; run python3 serve.py --setup",
)
def test_second_visit_without_a_server(browser, server):
    site, process = server
    with visit(browser, site, allow=("ERR_CONNECTION_REFUSED", "ERR_FAILED", "Failed to fetch")) as page:
        wait_ready(page)
        expect(page.locator("#offline-note")).to_have_text("Works offline from now on.", timeout=KEPT_MS)
        process.kill()
        process.wait()

        page.reload()
        wait_ready(page)
        try_sample(page)
        assert "small candle" in words(page)
        assert page.evaluate("() => crossOriginIsolated") is True, "the kept page lost its isolation headers"
        expect(page.locator("#offline-note")).to_have_text("Works offline.", timeout=KEPT_MS)

        page.goto(site + "/")
        expect(page.get_by_role("heading", name="What this device can do")).to_be_visible()
        page.goto(site + "/web/whisper/?from=somewhere")
        expect(page.get_by_role("heading", name="Speak, and read it")).to_be_visible()


def test_copy_follows_the_server_and_is_replaced_whole(browser, site):
    with visit(browser, site, "/web/") as page:
        expect(page.locator("#offline-note")).to_have_text("Works offline from now on.", timeout=KEPT_MS)
        names = page.evaluate("() => caches.keys()")
        assert len(names) == 1
        page.evaluate("""async (name) => {
          const cache = await caches.open(name);
          await cache.put("/web/home.js", new Response("old", { headers: { etag: '"old"' } }));
        }""", names[0])
        page.reload()
        expect(page.locator("#offline-note")).to_have_text("Works offline from now on.", timeout=KEPT_MS)
        after = page.evaluate("""async () => {
          const names = await caches.keys();
          return [names, await (await (await caches.open(names[0])).match("/web/home.js")).text()];
        }""")
        assert len(after[0]) == 1 and after[0] != names
        assert "The landing page" in after[1]
        page.reload()
        expect(page.locator("#offline-note")).to_have_text("Works offline from now on.", timeout=KEPT_MS)
        assert page.evaluate("() => caches.keys()") == after[0], "nothing changed, yet the copy was made anew"


def test_the_script_is_active_without_an_answer_of_every_worker(browser):
    """In Firefox a claim waits for all workers of the page, and threads between two runs never answer."""
    page = browser.new_page()
    active = page.evaluate("""async (script) => {
      const heard = {}, waited = [];
      const self = {
        location: { href: "https://site.example/web/sw.js" },
        addEventListener: (name, listener) => { heard[name] = listener; },
        clients: { claim: () => { self.claimed = true; return new Promise(() => {}); } },
        skipWaiting: () => new Promise(() => {}),
      };
      new Function("self", script)(self);
      for (const name of ["install", "activate"]) heard[name]({ waitUntil: (promise) => waited.push(promise) });
      const late = new Promise((resolve) => setTimeout(resolve, 2000, false));
      const over = await Promise.race([Promise.all(waited).then(() => true), late]);
      return { over, claimed: self.claimed };
    }""", (ROOT / "web" / "sw.js").read_text())
    page.close()
    assert active == {"over": True, "claimed": True}
