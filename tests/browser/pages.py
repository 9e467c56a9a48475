"""What the page tests share: open a page as a person would and keep what its console says; small sounds to give it."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
JFK = ROOT.parent / "shared" / "data" / "audio" / "jfk.flac"
SAMPLE = ROOT / "web" / "samples" / "candle.wav"
READY_MS = 240_000  # the first start on a busy machine; nothing waits longer than it must
DONE_MS = 240_000
GATE = Path(__file__).with_name("gate.js")

# A browser without a graphics processor says so itself, whatever the page does.
HARMLESS = ("No available adapters", "WebGPU")


@contextmanager
def visit(browser, site: str, path: str = "/web/whisper/", *, allow: tuple[str, ...] = (), gated: bool = False,
          **context) -> Iterator:
    """A page in a fresh profile. At the end its console must hold no error, and nothing may have left the site.

    allow: parts of console errors that the test provokes. gated: its engine can be held, see `hold`.
    """
    context.setdefault("viewport", {"width": 1280, "height": 800})
    fresh = browser.new_context(accept_downloads=True, **context)
    fresh.set_default_timeout(60_000)
    if gated:
        fresh.add_init_script(path=GATE)
    page = fresh.new_page()
    wrong: list[str] = []
    page.on("console", lambda m: m.type == "error" and wrong.append(m.text))
    page.on("pageerror", lambda e: wrong.append(str(e)))
    foreign: list[str] = []
    fresh.on("request", lambda r: r.url.startswith((site, "blob:", "data:")) or foreign.append(r.url))
    try:
        page.goto(site + path)
        yield page
        assert not [w for w in wrong if not any(part in w for part in allow + HARMLESS)], wrong
        assert not foreign, f"asked for by a page that must keep to its own site: {foreign}"
    finally:
        fresh.close()


def wait_ready(page) -> None:
    """The model is loaded."""
    page.locator("#chip[data-state=ready]").wait_for(timeout=READY_MS)


def wait_done(page, name: str) -> None:
    """The job with this name has ended, well or badly."""
    title = page.get_by_role("heading", name=name, exact=True)
    page.locator("#job[aria-busy=false]").filter(has=title).wait_for(timeout=DONE_MS)


def try_sample(page, press=None) -> None:
    """Start the sample, by its button unless `press` does it otherwise, and wait for its end."""
    page.evaluate("() => { document.querySelector('#job-name').textContent = ''; }")  # an earlier sample is not this one
    if press:
        press()
    else:
        page.get_by_role("button", name="Try the sample").click()
    wait_done(page, "Sample")


def words(page) -> str:
    """The transcript as one line of lower-case words. As text: what the browser has not drawn yet has no inner text."""
    return " ".join(page.locator("#lines .said").all_text_contents()).lower()


def give(page, name: str, data: bytes, mime: str = "application/octet-stream") -> None:
    """Choose a file in the picker."""
    page.locator("#file").set_input_files({"name": name, "mimeType": mime, "buffer": data})


def drop(page, name: str, data: bytes, mime: str = "application/octet-stream") -> None:
    """Drag a file over the page and let it go."""
    page.evaluate(
        """async ([name, text, type]) => {
          const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([bytes], name, { type }));
          const say = (kind) => document.querySelector("main").dispatchEvent(
            new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
          say("dragenter"); say("dragover");
          window.sawDropZone = !document.querySelector("#drop").hidden;
          say("drop");
        }""",
        [name, base64.b64encode(data).decode(), mime],
    )


def wav(samples: np.ndarray, rate: int = 16_000) -> bytes:
    """Mono float samples -> the bytes of a 16-bit WAV file."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return out.getvalue()


def sample_times(n: int, pause: float = 9) -> bytes:
    """The sample clip n times over, with pauses (without, the model takes the repetition for its own fault)."""
    with wave.open(str(SAMPLE)) as file:
        clip = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    return wav(np.tile(np.concatenate([clip, np.zeros(int(16_000 * pause))]), n))


def until(page, ask: str, timeout: int = READY_MS):
    """What an async function gives in the page, once that is true. wait_for_function would take its promise for true."""
    return page.evaluate(f"""async () => {{
      const ask = {ask};
      for (const end = Date.now() + {timeout}; Date.now() < end;) {{
        const answer = await ask();
        if (answer) return answer;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }}
      throw new Error("not within {timeout} ms: " + ask);
    }}""")


# ---- what is in the middle ----------------------------------------------------------------------------------------------
# A test must not expect to come in time: a fast machine is done before Stop is pressed, a slow one has not begun.


def hold(page, event: str, **more) -> None:
    """The engine of a gated page stops behind its next message of this kind, until it is cancelled or released.

    more: stage; least, what its `done` is at least; nth, that message counted from now.
    """
    page.evaluate("(wanted) => gate.hold(wanted)", {"event": event, **more})


def wait_held(page) -> None:
    """It has come there."""
    page.wait_for_function("() => gate.holds", timeout=DONE_MS)


def release(page) -> None:
    page.evaluate("() => gate.release()")


@contextmanager
def held_back(page, pattern: str) -> Iterator:
    """What the pages of a context ask for at such an address waits; inside, calling what is given lets it go on."""
    waiting, open_ = [], []

    def answer(route) -> None:
        if open_:
            route.continue_()
        else:
            waiting.append(route)

    def let_go() -> None:
        open_.append(True)
        for route in waiting:
            try:
                route.continue_()
            except Exception as error:  # whoever asked may have given up meanwhile
                assert "Protocol error" in str(error) or "closed" in str(error), error
        waiting.clear()

    page.context.route(pattern, answer)
    try:
        yield let_go
    finally:
        let_go()


def copied(page, press) -> None:
    """Copy something: its button says so, for a moment that a busy machine may miss."""
    page.evaluate("""() => {
      window.saidCopied = false;
      const watch = new MutationObserver((all) => {
        if (!all.some(({ target }) => target.localName === "button" && target.textContent === "Copied")) return;
        window.saidCopied = true;
        watch.disconnect();
      });
      watch.observe(document.body, { subtree: true, childList: true });
    }""")
    press()
    page.wait_for_function("() => saidCopied", timeout=DONE_MS)


def engine_is_gone(page) -> None:
    """The page has noticed that its worker ended: nobody holds or awaits the worker's lock."""
    until(page, """async () => {
      const { held, pending } = await navigator.locks.query();
      return ![...held, ...pending].some(({ name }) => name.startsWith("candlewick engine"));
    }""")


# A film that the browser itself makes: moving pictures, with a tone where it is loud. It is as long as it must be for something
# of each to be in it.
FILM = """async (loud) => {
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d"), stream = canvas.captureStream(20);
  const context = loud ? new AudioContext() : null, parts = [];
  if (context) {
    const to = context.createMediaStreamDestination(), tone = context.createOscillator();
    tone.connect(to);
    tone.start();
    await context.resume();
    stream.addTrack(to.stream.getAudioTracks()[0]);
  }
  const tape = new MediaRecorder(stream, { mimeType: "video/webm" });
  tape.ondataavailable = ({ data }) => parts.push(data);
  const ended = new Promise((resolve) => { tape.onstop = resolve; });
  tape.start(100);
  const from = context?.currentTime ?? 0, enough = () => parts.reduce((sum, { size }) => sum + size, 0) > 500;
  for (let i = 0; i < 12 || !enough() || (context && context.currentTime - from < 1); i++) {
    if (i > 1200) throw new Error(`no film: ${parts.length} parts, tone at ${context?.currentTime}`);
    pen.fillRect(i % 200, i % 100, 9, 9);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  tape.stop();
  await ended;
  await context?.close();
  return new Blob(parts);
}"""
