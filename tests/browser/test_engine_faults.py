"""What the engine does when something is missing, broken, stopped or killed: every request settles, the next one works."""

from __future__ import annotations

import pytest

from setup.steps import pyodide_folder
from tests.browser.engine_site import (
    MINIATURE,
    ROOT,
    TINY,
    needs_jfk,
    needs_miniature,
    needs_tiny,
    noise_wav,
    not_found,
    open_page,
    serving,
    wav,
)
from tests.browser.pages import engine_is_gone

PYODIDE = pyodide_folder(ROOT).name

# Fake workers: text of a module worker that behaves in one wrong way.
SILENT = "self.onmessage = () => {};"
THROWS = "throw new Error('broken at the top');"
# answers describe after having said that it starts, ever so slowly
SLOW = """
self.onmessage = ({ data }) => {
  if (data.method !== "describe") return;
  let n = 0;
  const timer = setInterval(() => {
    if (++n < 8) return postMessage({ id: 0, event: "progress", stage: "runtime", done: n, total: 8, unit: "steps" });
    clearInterval(timer);
    postMessage({ id: data.id, result: "at last" });
  }, 700);
};
"""
FATAL = """
self.onmessage = ({ data }) => {
  if (data.method === "describe") postMessage({ event: "fatal", message: "Maximum call stack size exceeded" });
};
"""
# ends without a word, as when the browser runs out of memory
ENDS = """
let locked = new Promise(() => {});
self.onmessage = ({ data }) => {
  if (data.method === "describe") void locked.then(() => setTimeout(() => self.close(), 300));
  if (data.method !== "start") return;
  locked = new Promise((resolve) => navigator.locks.request(data.params.lock, () => {
    postMessage({ event: "locked", name: data.params.lock });
    resolve();
    return new Promise(() => {});
  }));
};
"""
# does not hear a cancel
DEAF = """
self.onmessage = ({ data }) => {
  if (data.method === "load") postMessage({ id: data.id, result: {} });
  if (data.method === "describe") postMessage({ id: data.id, result: "here" });
};
"""


@pytest.fixture(scope="module")
def ours(built):
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def context(browser):
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture
def page(context, ours):
    ours.faults.clear()
    page = open_page(context, ours, noise_wav(6.0))
    yield page
    page.close()
    ours.faults.clear()


@pytest.fixture
def gated(context, ours):
    """A page whose engine stands still where a test wants, and whose client waits long for it to answer a stop."""
    ours.faults.clear()
    page = open_page(context, ours, noise_wav(6.0), gated=True)
    page.evaluate("() => { window.engine = new Engine({ onEvent, cancelMs: 120000, startMs: 180000 }); }")
    yield page
    page.close()


def fake(page, text, method="describe", **options):
    """Outcome of one request to an engine whose worker has this text."""
    return page.evaluate("""async ([text, method, options]) => {
      window.engine = new Engine({ workerUrl: workerOf(text), ...options });
      return outcome(engine.request(method, {}));
    }""", [text, method, options])


LOAD = """async ([model, params]) => {
  window.engine ??= new Engine({ onEvent });
  return outcome(engine.load({ model: `/models/${model}/`, ...params }, { onEvent }));
}"""
TRANSCRIBE = """async (options) => outcome(engine.transcribe({ audio: { kind: "wav", bytes: sound }, options }, { onEvent }))"""
PLAIN = {"temperatures": [0.0], "no_speech_threshold": None, "logprob_threshold": None}


def load(page, **params):
    outcome = page.evaluate(LOAD, [MINIATURE, params])
    assert "result" in outcome, outcome
    return outcome["result"]


def text_of(page):
    outcome = page.evaluate(TRANSCRIBE, PLAIN)
    assert "result" in outcome, outcome
    return [segment["tokens"] for segment in outcome["result"]["segments"]]


# ---- BR-48: a worker that cannot be there ---------------------------------------------------------------------------

def test_missing_worker_file_rejects_with_the_cause(page, ours):
    ours.faults["/workers/engine.worker.js"] = not_found
    outcome = page.evaluate("async () => outcome((window.engine = new Engine()).describe())")
    assert outcome["error"]["code"] == "worker_died" and "engine.worker.js" in outcome["error"]["message"]
    ours.faults.clear()
    outcome = page.evaluate("async () => outcome(engine.describe())")
    assert "versions" in outcome["result"], "a retry must work"


def test_missing_import_of_the_worker(page, ours):
    ours.faults["/workers/boot.js"] = not_found
    outcome = page.evaluate("async () => outcome((window.engine = new Engine()).describe())")
    assert outcome["error"]["code"] == "worker_died"


@pytest.mark.parametrize("path", [f"/build/pyodide/{PYODIDE}/pyodide.asm.mjs", "/build/wheels/index.json"])
def test_start_that_fails_is_told_and_tried_again(browser, ours, path):
    context = browser.new_context()  # another visit would have given its cache the files that never change
    page = open_page(context, ours)
    ours.faults[path] = not_found
    outcome = page.evaluate("async () => outcome((window.engine = new Engine()).describe())")
    assert outcome["error"]["code"] == "network" and "/build/" in outcome["error"]["message"], outcome
    ours.faults.clear()
    assert "versions" in page.evaluate("async () => outcome(engine.describe())")["result"]
    context.close()


def test_worker_that_throws_at_the_top(page):
    outcome = fake(page, THROWS)
    assert outcome["error"]["code"] == "worker_died" and "broken at the top" in outcome["error"]["message"]


def test_message_that_cannot_be_cloned(page):
    outcome = page.evaluate("""async (text) => {
      window.engine = new Engine({ workerUrl: workerOf(text) });
      return outcome(engine.request("load", { model: () => 1 }));
    }""", DEAF)
    assert outcome["error"]["code"] == "bad_input" and "cannot be sent" in outcome["error"]["message"]
    assert page.evaluate("async () => outcome(engine.describe())") == {"result": "here"}


def test_silent_worker_times_out_and_a_slow_one_does_not(page):
    outcome = fake(page, SILENT, startMs=300)
    assert outcome["error"]["code"] == "worker_died" and "no sign of life" in outcome["error"]["message"]
    assert fake(page, SLOW, startMs=4000) == {"result": "at last"}, "5.6 s in all, and a sign each 0.7 s"


# ---- BR-50 and workers that die -------------------------------------------------------------------------------------

def test_fatal_error_of_the_interpreter_replaces_the_worker(page):
    outcome = fake(page, FATAL)
    assert outcome["error"]["code"] == "worker_died" and "Maximum call stack" in outcome["error"]["message"]


def test_pyodide_tells_of_a_fatal_error(page):
    """The hook that the engine listens to is called by this version of Pyodide."""
    outcome = page.evaluate("(body) => inWorker(body)", """
      const { boot } = await import("ORIGIN/workers/boot.js");
      const { py } = await boot(null, () => {});
      let told = null;
      py._api.on_fatal = (error) => (told = String(error.message ?? error));
      try { py.runPython("from _pyodide_core import trigger_fatal_error; trigger_fatal_error()"); } catch {}
      return told;
    """)
    assert isinstance(outcome["result"], str), outcome


def test_worker_that_ends_without_a_word(page):
    outcome = fake(page, ENDS, startMs=60000)
    assert outcome["error"]["code"] == "worker_died" and "ended unexpectedly" in outcome["error"]["message"]


def test_all_waiting_requests_settle_when_the_worker_dies(page):
    outcomes = page.evaluate("""async (text) => {
      const engine = new Engine({ workerUrl: workerOf(text) });
      return Promise.all([engine.describe(), engine.describe(), engine.unload()].map(outcome));
    }""", FATAL)
    assert [outcome["error"]["code"] for outcome in outcomes] == ["worker_died"] * 3


@needs_miniature
def test_killed_worker_is_noticed_and_the_model_comes_back(page):
    load(page)
    expected = text_of(page)
    worker = page.workers[0]
    running = page.evaluate_handle("() => ({ outcome: outcome(engine.transcribe({ audio: { kind: 'wav', bytes: sound } })) })")
    try:
        worker.evaluate("() => self.close()")
    except Exception as error:  # the worker is gone before it can answer
        assert "closed" in str(error)
    outcome = running.evaluate("async ({ outcome }) => outcome")
    assert "result" in outcome or outcome["error"]["code"] == "worker_died", outcome
    engine_is_gone(page)
    assert text_of(page) == expected, "the model is loaded again at the next use"


def test_closed_engine_refuses(page):
    outcome = page.evaluate("""async (text) => {
      const engine = new Engine({ workerUrl: workerOf(text) });
      const first = outcome(engine.request("load", {}));
      engine.close();
      return [await first, await outcome(engine.describe())];
    }""", SILENT)
    assert [o["error"]["code"] for o in outcome] == ["cancelled", "worker_died"]


# ---- kernels that are not there -------------------------------------------------------------------------------------

@needs_miniature
def test_missing_kernels_fall_to_numpy_and_say_so(page, ours):
    for build in ("threads.relaxed", "threads.simd128", "single.relaxed", "single.simd128"):
        ours.faults[f"/workers/kernels.{build}.wasm"] = not_found
    loaded = load(page)
    assert loaded["executor"] == "numpy" and "404" in loaded["reason"]
    error = page.evaluate(LOAD, [MINIATURE, {"executor": "wasm"}])["error"]
    assert error["code"] == "network" and "kernels" in error["message"], "asked for by name, it is an error"


@needs_miniature
def test_missing_thread_worker_falls_to_one_thread_and_says_so(page, ours):
    ours.faults["/workers/thread.worker.js"] = not_found
    loaded = load(page, threads=2)
    assert (loaded["executor"], loaded["threads"], loaded["threads_asked"]) == ("wasm", 1, 2)
    assert "threads could not be started" in loaded["reason"]


KERNEL_HOST = """
  const { KernelHost } = await import("ORIGIN/workers/wasm.js");
  const host = await KernelHost.create(THREADS);
  const put = (address, words) => host.view(address, words.length * 4).set(new Uint8Array(Int32Array.from(words).buffer));
  // instructions at free base: [kernel id, words, arguments...]; fill is (dst, count, value)
  const code = host.freeBase;
  host.reserve(code + (1 << 20));
  const run = (words) => { put(code, words); return host.run(code, code + words.length * 4); };
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_kernel_that_traps_ends_the_run_for_all_threads(page, threads):
    """A trap on any thread ends the run with an error, and the next run works."""
    from candlewick.executors.wasm.abi import IDS

    fill, unary = IDS["fill"], IDS["unary"]
    body = KERNEL_HOST.replace("THREADS", str(threads)) + f"""
      const good = () => run([{fill}, 5, code + 4096, 1000, 0x3f800000]);
      const out = [good(), new Float32Array(host.view(code + 4096, 4000).slice().buffer).every((x) => x === 1)];
      for (let i = 0; i < 20; i++) {{
        out.push(run([{unary}, 6, 0, 0x7fff0000, 0x7fff0000, 50000000]), host.failure !== "", good());
      }}
      out.push(run([9999, 3, 0]), good());
      host.dispose();
      return out;
    """
    outcome = page.evaluate("(body) => inWorker(body)", body)
    assert "result" in outcome, outcome
    first, filled, *rest = outcome["result"]
    assert (first, filled) == (0, True)
    traps, unknown = rest[:60], rest[60:]
    assert all(status >= 2 for status in traps[0::3]) and all(traps[1::3]) and not any(traps[2::3]), traps
    assert unknown[0] >= 2 and unknown[1] == 0


def test_out_of_memory_is_told_with_numbers(page):
    """BR-38: no bare 'unreachable'; wanted and allowed are in the error, and a smaller job works afterwards."""
    body = KERNEL_HOST.replace("THREADS", "1") + """
      let error;
      try { host.reserve(5e9); } catch (caught) { error = caught; }
      host.reserve(code + (8 << 20));
      return { code: error.code, message: error.message, data: error.data, size: host.size };
    """
    got = page.evaluate("(body) => inWorker(body)", body)["result"]
    assert got["code"] == "out_of_memory" and got["data"]["wanted"] == 5e9 and got["data"]["allowed"] < 4.4e9
    assert "5000 MB" in got["message"] and got["size"] >= 8 << 20


# ---- BR-49: stop ----------------------------------------------------------------------------------------------------

# In the middle by construction: the worker stands still behind the message at which it is stopped, until it sees the stop.
STOP_AT = """
async ([method, params, when]) => {
  if (when.event !== "at once") gate.hold(when);
  const control = new AbortController();
  let seen = 0;
  const listen = (event) => {
    onEvent(event);
    const meant = event.event === when.event && (!when.stage || event.stage === when.stage);
    if (meant && ++seen === (when.nth ?? 1)) control.abort();
  };
  const request = method === "load" ? { ...params, model: new URL(params.model, location.href).href }
    : { audio: { kind: "wav", bytes: sound }, options: params };
  const running = outcome(engine.request(method, request, { signal: control.signal, onEvent: listen }));
  if (when.event === "at once") control.abort();
  const out = await running;
  control.abort();  // twice, and with nothing running
  gate.release();
  return { ...out, seen };
}
"""


@needs_miniature
@pytest.mark.parametrize("when", [
    {"event": "at once"}, {"event": "token"}, {"event": "token", "nth": 5}, {"event": "progress", "stage": "transcribe"},
], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_stop_while_transcribing(gated, when, threads):
    page = gated
    load(page, threads=threads)
    expected = text_of(page)
    stopped = page.evaluate(STOP_AT, ["transcribe", PLAIN, when])
    assert stopped["error"]["code"] == "cancelled", stopped
    if when["event"] == "token":
        assert stopped["error"]["data"]["result"]["stopped"] is True, "what was done is kept and marked"
    assert page.evaluate("() => window.engine !== undefined") and text_of(page) == expected, "the next run equals a fresh one"


@needs_miniature
@pytest.mark.parametrize(("when", "model"), [
    ({"event": "at once"}, MINIATURE), ({"event": "progress", "stage": "download"}, MINIATURE),
    ({"event": "progress", "stage": "weights"}, TINY),  # a miniature's weights are all there before a stop can come
], ids=str)
def test_stop_while_loading(gated, when, model):
    page = gated
    if not (ROOT / "models" / model / "model.safetensors").is_file():
        pytest.skip(f"{model} is not here; run python3 serve.py --setup")
    load(page, threads=2)
    expected = text_of(page)
    stopped = page.evaluate(STOP_AT, ["load", {"model": f"/models/{model}/", "threads": 2}, when])
    assert stopped["error"]["code"] == "cancelled", stopped
    load(page, threads=2)
    assert text_of(page) == expected


def test_stop_while_the_engine_starts(gated):
    page = gated
    stopped = page.evaluate(STOP_AT, ["load", {"model": f"/models/{MINIATURE}/"}, {"event": "at once"}])
    assert stopped["error"]["code"] == "cancelled"
    assert "versions" in page.evaluate("async () => outcome(engine.describe())")["result"]


def test_stop_of_a_request_that_waits(page):
    outcome = page.evaluate("""async (text) => {
      const engine = new Engine({ workerUrl: workerOf(text) });
      const control = new AbortController();
      const first = outcome(engine.request("unload", {}));   // never answered
      const second = outcome(engine.describe({ signal: control.signal }));
      control.abort();
      const out = await second;
      engine.close();
      const late = new Engine({ workerUrl: workerOf(text) });
      return [out, await first, await outcome(late.describe({ signal: AbortSignal.abort() }))];
    }""", DEAF)
    assert [o["error"]["code"] for o in outcome] == ["cancelled"] * 3


def test_worker_that_does_not_hear_a_cancel_is_replaced(page):
    """After 2 s (here 0.2 s) the worker is replaced; what waits is served by the new one, with the model loaded again."""
    got = page.evaluate("""async (text) => {
      const engine = new Engine({ workerUrl: workerOf(text), cancelMs: 200 });
      await engine.load({ model: "x" });
      const control = new AbortController();
      const deaf = outcome(engine.transcribe({ audio: null }, { signal: control.signal }));
      const next = outcome(engine.describe());
      setTimeout(() => control.abort(), 50);
      return [await deaf, await next];
    }""", DEAF)
    assert got[0]["error"]["code"] == "cancelled" and got[1] == {"result": "here"}


@needs_tiny
@needs_jfk
def test_stop_halts_a_real_run(browser, built):
    """On threads the stop word ends the encoder between two instructions, and what was heard until then is handed over."""
    context = browser.new_context()
    with serving() as ours:
        page = open_page(context, ours, wav())
        page.evaluate("() => { window.engine = new Engine({ onEvent, cancelMs: 120000 }); }")
        assert "result" in page.evaluate(LOAD, [TINY, {"threads": 2}])
        got = page.evaluate("""async () => {
          const head = sound.slice(0, 44), rest = sound.slice(44), times = 12;   // long on any machine: over two minutes
          const sizes = new DataView(head);
          if (sizes.getUint32(40, true) !== rest.byteLength) throw new Error("the head is longer than it was");
          sizes.setUint32(4, 36 + times * rest.byteLength, true);
          sizes.setUint32(40, times * rest.byteLength, true);
          const control = new AbortController();
          // the first window is done: the second is heard, most of which is the encoder's work
          const first = ({ stage, done }) => stage === "transcribe" && done > 0 && setTimeout(() => control.abort(), 30);
          const audio = { kind: "wav", bytes: new Blob([head, ...Array(times).fill(rest)]) };
          return outcome(engine.transcribe({ audio }, { signal: control.signal, onEvent: first }));
        }""")
        assert got["error"]["code"] == "cancelled"
        found = got["error"]["data"]["result"]
        assert found["stopped"] is True, "the engine itself stopped, it was not replaced"
        assert found["segments"] and found["segments"][-1]["end"] < 120
        assert "fellow Americans" in page.evaluate(TRANSCRIBE, {})["result"]["text"]
    context.close()
