"""A mirror on another origin: its files are taken where the site's policy allows it; where not, the refusal says what to do."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from setup.server import CONNECT
from tests.browser.engine_site import MINIATURE, ROOT, needs_miniature, open_page, serving

pytestmark = needs_miniature


class Mirror(SimpleHTTPRequestHandler):
    """The models of this checkout, for pages of any site."""

    asked: list[str] = []

    def end_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Access-Control-Allow-Headers", "Range")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        self.asked.append(self.path)


@pytest.fixture
def mirror():
    Mirror.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Mirror, directory=str(ROOT / "models"))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


LOAD = """async ([model, mirror]) => {
  const engine = new Engine({ startMs: 120_000 });
  const found = await outcome(engine.load({ model, mirror, executor: "numpy" }));
  engine.close();
  return found;
}"""


def test_another_origin(built, browser, mirror):
    model = f"/models/{MINIATURE}/"
    with serving() as site:
        context = browser.new_context()
        page = open_page(context, site)
        refused = page.evaluate(LOAD, [model, mirror])["error"]
        assert refused["code"] == "network" and "the mirror failed" in refused["message"]
        assert f"serve.py --mirror {mirror}" in refused["message"] and not Mirror.asked
        wrong = page.evaluate(LOAD, [model, "javascript:alert(1)"])["error"]
        assert wrong["code"] == "bad_input" and "https:// or http://" in wrong["message"]
        context.close()

        policy = site.headers["Content-Security-Policy"]
        site.headers["Content-Security-Policy"] = policy.replace(CONNECT, f"{CONNECT} {mirror}")
        context = browser.new_context()
        loaded = open_page(context, site).evaluate(LOAD, [model, mirror])
        assert loaded.get("result", {}).get("family") == "whisper", loaded
        assert f"/{MINIATURE}/model.safetensors" in Mirror.asked
        own = [path for path, _ in site.asked if path.startswith(model)]
        assert set(own) == {f"{model}manifest.json"}
        context.close()
