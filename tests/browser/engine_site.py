"""What the engine's browser tests share: the real server with faults that a test asks for, and a page that has the client.

The page is the server's own answer to an address that does not exist: the right origin, headers and security policy, and
no script. Tests import `workers/client.js` into it, or start a worker of their own text from a blob.
"""

from __future__ import annotations

import base64
import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from setup.server import Handler, Server

ROOT = Path(__file__).resolve().parents[2]
GATE = Path(__file__).with_name("gate.js")
TINY = "whisper-tiny.en"
MINIATURE = "test-whisper"
JFK = ROOT.parent / "shared" / "data" / "audio" / "jfk.flac"
JFK_TEXT = "And so my fellow Americans ask not what your country can do for you ask what you can do for your country."

needs_tiny = pytest.mark.skipif(not (ROOT / "models" / TINY / "model.safetensors").is_file(),
                                reason=f"the weights of {TINY} are missing; run python3 serve.py --setup")
needs_miniature = pytest.mark.skipif(not (ROOT / "models" / MINIATURE / "model.safetensors").is_file(),
                                     reason=f"models/{MINIATURE} is missing")
needs_jfk = pytest.mark.skipif(not JFK.is_file(), reason="../shared/data/audio/jfk.flac is not here")

Fault = Callable[[Handler], bool]


class FaultyHandler(Handler):
    """The server's handler, with a chance for the test to answer first."""

    server: FaultySite

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append((path, self.headers.get("Range")))
        fault = self.server.faults.get(path)
        if fault is None or not fault(self):
            super().do_GET()

    do_HEAD = do_GET

    def send_header(self, keyword: str, value: str) -> None:
        if self.server.isolated or not keyword.startswith("Cross-Origin-"):
            super().send_header(keyword, value)


class FaultySite(Server):
    """asked: (path, Range) of all requests. faults: path -> function that answers itself and returns True."""

    def __init__(self, isolated: bool = True, host: str = "127.0.0.1") -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.faults: dict[str, Fault] = {}
        self.isolated = isolated
        super().__init__(ROOT, host=host, port=0)
        self.RequestHandlerClass = FaultyHandler

    @property
    def address(self) -> str:
        return f"http://{self.server_address[0]}:{self.server_address[1]}"


@contextmanager
def serving(isolated: bool = True, host: str = "127.0.0.1") -> Iterator[FaultySite]:
    with FaultySite(isolated, host) as site:
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        yield site
        site.shutdown()


def not_found(handler: Handler) -> bool:
    handler.send_error(404, explain="a test took it away")
    return True


def answer_with(body: bytes, kind: str) -> Fault:
    """200 with this body, whatever was asked."""

    def answer(handler: Handler) -> bool:
        handler.answer(200, {"Content-Type": kind, "Cache-Control": "no-store"}, body)
        return True

    return answer


def cut_off(after: int, path: Path, seen: threading.Event) -> Fault:
    """The first request gets only `after` bytes of the file at `path`; once they are `seen`, the connection ends.

    A browser forgets what it has not handed out yet when the connection ends.
    """
    left = [1]

    def answer(handler: Handler) -> bool:
        if left[0] == 0:
            return False
        left[0] -= 1
        handler.close_connection = True
        handler.answer(200, {"Content-Type": "application/octet-stream"}, length=path.stat().st_size)
        handler.wfile.write(path.read_bytes()[:after])
        handler.wfile.flush()
        seen.wait(120)
        return True

    return answer


HELPERS = """
async () => {
  const client = await import("/workers/client.js");
  window.Engine = client.Engine;
  window.events = [];
  window.onEvent = (event) => window.events.push(event);
  // settle a promise into plain data
  window.outcome = async (promise) => {
    try {
      return { result: await promise };
    } catch (error) {
      return { error: { name: error.name, code: error.code, message: error.message, data: error.data } };
    }
  };
  // a worker of the test's own text; imports need whole addresses
  window.workerOf = (text) =>
    URL.createObjectURL(new Blob([text.replaceAll("ORIGIN", location.origin)], { type: "text/javascript" }));
  // run `body` (an async function's) in such a worker
  window.inWorker = (body) => new Promise((resolve) => {
    const worker = new Worker(workerOf(`
      const plain = ({ name, code, message, data }) => ({ name, code, message, data });
      (async () => { ${body} })().then((result) => postMessage({ result }), (error) => postMessage({ error: plain(error) }));`),
      { type: "module" });
    worker.onmessage = ({ data }) => { worker.terminate(); resolve(data); };
    worker.onerror = (event) => resolve({ error: { message: event.message } });
  });
  window.until = async (is) => {
    for (const end = Date.now() + 240_000; Date.now() < end;) {
      if (await is()) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`this did not come: ${is}`);
  };
}
"""


def open_page(context: Any, site: FaultySite, sound: bytes = b"", gated: bool = False) -> Any:
    """A page without scripts on the site's origin, with HELPERS; `sound` becomes the ArrayBuffer window.sound.

    gated: its engines can be held (gate.js).
    """
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{site.address}/web/none.html")
    if gated:
        page.evaluate(f"() => {{ {GATE.read_text()} }}")
    page.evaluate(HELPERS)
    if sound:
        page.evaluate("(text) => { window.sound = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer; }",
                      base64.b64encode(sound).decode())
    return page


def wav(seconds: float = 0.0) -> bytes:
    """The test recording as 16-bit WAV; `seconds` cuts it."""
    import soundfile

    samples, rate = soundfile.read(JFK, dtype="float32")
    if seconds:
        samples = samples[: int(seconds * rate)]
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format="WAV", subtype="PCM_16")
    return out.getvalue()


def lan_address() -> str | None:
    """An address of this machine that is not its own loopback, or None. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = probe.getsockname()[0]
    return None if address.startswith("127.") else address


def noise_wav(seconds: float = 3.0) -> bytes:
    """Noise that the miniature has something to say about."""
    import wave

    import numpy as np

    samples = (np.random.default_rng(0).uniform(-0.3, 0.3, int(16000 * seconds)) * 32767).astype("<i2")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(samples.tobytes())
    return out.getvalue()
