"""The whole engine on a GPU that computes nothing and fails on demand (fake_gpu.js): every request settles, the next one works,
the reason is told, and no buffer stays behind. Answers are of no worth while the fake is in use, and right on WebAssembly."""

from __future__ import annotations

import pytest

from tests.browser.engine_site import MINIATURE, ROOT, answer_with, needs_miniature, needs_tiny, noise_wav, open_page, serving
from tests.browser.test_gpu_host import FAKE

pytestmark = needs_miniature

OPTIONS = {"temperatures": [0.0], "compression_ratio_threshold": None, "logprob_threshold": None, "no_speech_threshold": None}
SETUP = """async () => {
  const channel = new BroadcastChannel("fake gpu");
  // change the fake's faults, from nothing; what it has counted
  window.gpu = (faults = {}, more = {}) => new Promise((resolve) => {
    const ask = Math.random();
    const hear = ({ data }) => {
      if (data.answer !== ask) return;
      channel.removeEventListener("message", hear);
      resolve(data.counts);
    };
    channel.addEventListener("message", hear);
    channel.postMessage({ ask, reset: true, faults, ...more });
  });
  window.start = async () => {
    window.engine = new Engine({ onEvent, startMs: 180000, cancelMs: 60000 });
    await engine.describe();
  };
  window.load = (executor, model = "test-whisper") =>
    outcome(engine.load({ model: `/models/${model}/`, executor, threads: 1 }, { onEvent }));
  window.hear = (audio, more) => outcome(engine.transcribe({ audio, options: { ...OPTIONS, ...more } }, { onEvent }));
  window.say = () => hear({ kind: "wav", bytes: sound.slice(0) });
  window.words = async () => {
    const { result, error } = await say();
    if (error) throw new Error(`${error.code}: ${error.message}`);
    return result.segments.flatMap((segment) => segment.tokens);
  };
  await start();
  await load("wasm");
  window.want = JSON.stringify(await words());
  window.untouched = (await gpu()).asked;
}"""


@pytest.fixture(scope="module")
def site(built):
    with serving() as server:
        worker = (server.root / "workers" / "engine.worker.js").read_bytes()
        text = b'import { remote } from "/fake_gpu.js";\nremote(self);\n' + worker
        server.faults["/fake_gpu.js"] = answer_with(FAKE.read_bytes(), "text/javascript")
        server.faults["/workers/engine.worker.js"] = answer_with(text, "text/javascript")
        yield server


@pytest.fixture(scope="module")
def page(browser, site):
    import json

    context = browser.new_context()
    page = open_page(context, site, noise_wav(2.0), gated=True)
    page.evaluate(SETUP.replace("OPTIONS", json.dumps(OPTIONS)))
    yield page
    page.evaluate("() => engine.close()")
    context.close()


def on(page, body, argument=None):
    """Run the body of an async function, with the fake's faults and our events as new."""
    return page.evaluate(f"async (argument) => {{ await gpu(); events.length = 0; {body} }}", argument)


# ---- BR-44: who has no GPU, or does not want one --------------------------------------------------------------------

def test_the_processor_never_touches_the_gpu(page):
    assert page.evaluate("() => untouched") == 0


@pytest.mark.parametrize(("faults", "words"), [
    ({"adapter": "absent"}, "this browser has no WebGPU"),
    ({"adapter": "null"}, "found no GPU"),
    ({"adapter": "throws"}, "switched off"),
    ({"refused": True}, "gave no device"),
    ({"software": True}, "emulator"),
    ({"dead": True}, "gone already"),
    ({"room": 20_000}, "no room"),
    ({"limits": {"maxStorageBufferBindingSize": 1024}}, "more than this device allows in a buffer"),
    ({"limits": {"maxStorageBufferBindingSize": 200_000}}, "mel: conv1d of log_mel, f32[1,200,402], wants a buffer of 0.3 MB"),
    ({"broken": "layer_norm"}, "kernel layer_norm"),
])
def test_what_stands_against_a_gpu_leads_to_webassembly(page, faults, words):
    """Chosen by itself: the model is loaded all the same, the reason is there, and nothing is left on the GPU."""
    found = on(page, """
      await gpu(argument);
      const { result, error } = await load("auto");
      const { live, bytes } = await gpu();
      const same = JSON.stringify(await words()) === want;
      return { error, executor: result?.executor, reason: result?.reason, live, bytes, same };
    """, faults)
    assert found["executor"] == "wasm" and "WebGPU cannot be used" in found["reason"] and words in found["reason"], found
    assert found["same"] and (found["live"], found["bytes"]) == (0, 0)


def test_a_real_gpu_is_chosen_by_itself_and_needs_no_feature(page):
    found = on(page, """
      await gpu({ features: [] });
      const { result } = await load("auto");
      const { gpu: told } = await engine.describe();
      const { live, bytes } = await gpu();
      await engine.unload();
      const { live: left, bytes: held } = await gpu();
      return { executor: result.executor, reason: result.reason, gpu: result.gpu, told, live, bytes, after: [left, held] };
    """)
    assert found["executor"] == "webgpu" and found["reason"] == "WebGPU on test paper"
    assert found["gpu"]["features"] == [] and found["gpu"]["times"] is None and not found["gpu"]["software"]
    assert (found["told"]["buffers"], found["told"]["bytes"]) == (found["live"], found["bytes"]) and found["live"] > 10
    assert found["after"] == [0, 0]


def test_a_gpu_that_was_found_slower_is_passed_by(page):
    """By itself, not by hand; and not another GPU. Nothing is left on it. So is one whose trial failed."""
    found = on(page, """
      const told = [];
      for (const [executor, gpu, failed] of [["auto", "test paper"], ["auto", "another"], ["webgpu", "test paper"],
                                             ["auto", "test paper", "it went away"]]) {
        const params = { model: "/models/test-whisper/", executor, threads: 1, slow: { gpu, times: failed ? 0 : 0.4, failed } };
        const { executor: used, reason, version } = await engine.load(params);
        const { live } = await gpu_counts();
        told.push([used, reason, live > 0, version]);
      }
      return told;
    """.replace("gpu_counts", "window.gpu"))
    why = "which is faster here: in a short trial the GPU test paper took 2.5 times as long"
    assert [row[:3] for row in found] == [
        ["wasm", f"WebAssembly SIMD on 1 thread, {why}", False],
        ["webgpu", "WebGPU on test paper", True], ["webgpu", "WebGPU on test paper", True],
        ["wasm", "WebAssembly SIMD on 1 thread, as a short trial of the GPU test paper failed (it went away); choose WebGPU to "
                 "try it again", False]]
    assert len({row[3] for row in found}) == 1 and found[0][3]


def test_shaders_are_counted_while_they_compile(page):
    found = on(page, """
      await load("webgpu");
      return events.filter((event) => event.stage === "shaders").map(({ done, total }) => [done, total]);
    """)
    total = found[0][1]
    assert found[0] == [0, total] and found[-1] == [total, total] and len(found) == total + 1 > 10


REQUESTS = {
    "test-whisper": "say()",
    "test-llama": """outcome(engine.generate({ prompt: 'once upon',
        options: { max_tokens: 8, greedy: true, ignore_end: true, repeat_penalty: 1 } }))""",
    "test-sam": "outcome(engine.predict({ id: 'a', points: [[20, 20]], labels: [1], box: null }))",
}


@pytest.mark.parametrize("model", REQUESTS)
def test_no_run_waits_twice_or_makes_anything(page, model):
    """A request like one before it: a run of an entry is one submit and one readback; no buffer, group or pipeline is made."""
    if not (ROOT / "models" / model / "model.safetensors").is_file():
        pytest.skip(f"models/{model} is missing")
    found = on(page, """
      await load("webgpu", argument);
      if (argument === "test-sam") {
        const rgba = new Uint8ClampedArray(60 * 40 * 4).map((_, i) => i * 7);
        await engine.setImage({ id: "a", image: { rgba, width: 60, height: 40 } });
      }
      const runs = async () => Object.values((await engine.describe()).gpu.times).reduce((sum, time) => sum + time.runs, 0);
      const ask = async () => REQUEST;
      const first = await ask();
      const before = { ...(await gpu()), runs: await runs() };
      const second = await ask();
      const after = { ...(await gpu()), runs: await runs() };
      const made = Object.fromEntries(Object.keys(after).map((key) => [key, after[key] - before[key]]));
      return { errors: [first.error ?? null, second.error ?? null], made };
    """.replace("REQUEST", REQUESTS[model]), model)
    made = found["made"]
    assert found["errors"] == [None, None] and made["runs"] > 0
    assert made["submits"] == made["maps"] == made["passes"] == made["runs"]
    assert [made[key] for key in ("created", "live", "bytes", "groups", "pipelines", "modules")] == [0] * 6


# ---- BR-43: the device goes away ------------------------------------------------------------------------------------

LOST = """
  const { result } = await load("webgpu");
  const before = await gpu(argument);
  const { result: said, error } = await say();
  const after = await gpu();
  const { model, gpu: told } = await engine.describe();
  const counted = await gpu();
  return {
    first: result.executor, error, settled: Boolean(said), executor: model.executor,
    tokens: said && JSON.stringify(said.segments.flatMap((segment) => segment.tokens)) === want,
    adapters: after.adapters - before.adapters, devices: after.devices - before.devices,
    restarts: events.filter((event) => event.event === "restart"), warnings: events.filter((event) => event.event === "log"),
    told, live: counted.live, bytes: counted.bytes,
  };
"""


@pytest.mark.parametrize("when", [1, 3])
def test_lost_once_goes_on_with_a_new_adapter_and_device(page, when):
    found = on(page, LOST, {"lose": when})
    assert found["settled"] and found["error"] is None and found["executor"] == "webgpu"
    assert (found["adapters"], found["devices"]) == (1, 1)
    (restart,) = found["restarts"]
    assert restart["executor"] == "webgpu" and any("pulled the plug" in event["message"] for event in found["warnings"])
    assert (found["told"]["buffers"], found["told"]["bytes"]) == (found["live"], found["bytes"]), "the lost device's are gone"


@pytest.mark.parametrize("faults", [{"lose": 2, "again": 2}, {"invalid": True}, {"stray": True}])
def test_what_cannot_go_on_ends_on_webassembly(page, faults):
    """Lost a second time, or a fault that a new device would have too: the answer is WebAssembly's, and right."""
    found = on(page, LOST, faults)
    assert found["tokens"] and found["executor"] == "wasm" and found["told"] is None
    assert [event["executor"] for event in found["restarts"]] == (["webgpu", "wasm"] if "again" in faults else ["wasm"])
    last = found["restarts"][-1]
    assert "WebGPU cannot be used" in last["reason"] and last["threads"] == 1 and last["memory"]["weights"] > 0
    assert (found["live"], found["bytes"]) == (0, 0)


def test_lost_while_nothing_runs(page):
    found = on(page, """
      await load("webgpu");
      await gpu({}, { lose: true });
      const { gpu: told } = await engine.describe();
      const { result, error } = await say();
      return { lost: told.lost, settled: Boolean(result), error, executor: (await engine.describe()).model.executor };
    """)
    assert found == {"lost": "the test pulled the plug", "settled": True, "error": None, "executor": "webgpu"}


def test_a_lost_device_can_be_unloaded(page):
    found = on(page, """
      await load("webgpu");
      await gpu({}, { lose: true });
      const gone = await outcome(engine.unload());
      const { live, bytes } = await gpu();
      const { result } = await load("webgpu", "test-llama");
      const restarts = events.filter(({ event }) => event === "restart").length;
      return { error: gone.error ?? null, live, bytes, executor: result.executor, restarts };
    """)
    assert found == {"error": None, "live": 0, "bytes": 0, "executor": "webgpu", "restarts": 0}


def test_stop_while_shaders_compile(page):
    """Stopped, the load leaves nothing on the GPU; so does a request that is stopped, apart from the model."""
    found = on(page, """
      gate.hold({ event: "progress", stage: "shaders" });   // it stands still there until it sees the stop
      const stop = new AbortController();
      const onEvent = ({ stage }) => stage === "shaders" && stop.abort();
      const params = { model: "/models/test-whisper/", executor: "webgpu" };
      const { error } = await outcome(engine.load(params, { onEvent, signal: stop.signal }));
      const left = await gpu();
      await load("webgpu");
      const before = await gpu();
      gate.hold({ event: "progress" });
      const halt = new AbortController();
      const channels = [new Float32Array(16000 * 60).map((_, i) => Math.sin(i * i) / 4)];
      const how = { signal: halt.signal, onEvent: () => halt.abort() };   // at the first thing that is told
      const stopped = (await outcome(engine.transcribe({ audio: { kind: "pcm", channels, rate: 16000 } }, how))).error;
      const after = await gpu();
      const settled = Boolean((await say()).result);
      return { codes: [error.code, stopped.code], left: [left.live, left.bytes], settled,
        buffers: after.live - before.live, devices: after.devices - before.devices };
    """)
    assert found["codes"] == ["cancelled", "cancelled"] and found["left"] == [0, 0] and found["settled"]
    assert found["buffers"] in (0, 1) and found["devices"] == 0  # one: the buffer that the first run reads from


def test_a_picture_is_set_again_on_the_new_device(page):
    found = on(page, """
      await load("webgpu", "test-sam");
      const rgba = new Uint8ClampedArray(60 * 40 * 4).map((_, i) => i * 7);
      const image = () => ({ id: "a", image: { rgba: rgba.slice(), width: 60, height: 40 } });
      const ask = () => outcome(engine.request("predict", { id: "a", points: [[20, 20]], labels: [1], box: null }));
      await engine.request("set_image", image());
      await gpu({ lose: 1, again: 2 });
      const second = await ask();
      await load("wasm", "test-sam");
      await engine.request("set_image", image());
      const first = await ask();
      const same = first.result.masks.every((value, i) => value === second.result?.masks[i]);
      return { error: second.error ?? null, same, executor: (await engine.describe()).model.executor };
    """)
    assert found == {"error": None, "same": True, "executor": "wasm"}


def test_where_the_model_cannot_be_loaded_again_the_next_request_tries(page, site):
    """Lost, and the server does not answer: the request fails with that; the next one gets a new worker and the model."""
    on(page, "await load('webgpu'); await gpu({ lose: 1 });")

    def refuse(handler):
        handler.send_error(500, explain="a test broke it")
        return True

    site.faults[f"/models/{MINIATURE}/manifest.json"] = refuse
    error = page.evaluate("async () => (await say()).error")
    del site.faults[f"/models/{MINIATURE}/manifest.json"]
    assert error["code"] == "network" and "500" in error["message"]
    assert page.evaluate("async () => Boolean((await say()).result)")
    assert page.evaluate("async () => (await engine.describe()).model.executor") == "webgpu"


# ---- BR-39, BR-42: what stays ----------------------------------------------------------------------------------------

def test_any_order_of_loads_and_unloads(page):
    """BR-42: A, unload, B, run, five times over; a run may follow any load, and each unload leaves nothing."""
    found = on(page, """
      const seen = [];
      for (let i = 0; i < 5; i++) {
        await load("webgpu");
        if (i % 2) await say();
        await engine.unload();
        const { live, bytes } = await gpu();
        const { result } = await load("webgpu", "test-llama");
        const answer = await outcome(engine.generate({ prompt: "once", options: { max_tokens: 3, greedy: true } }));
        seen.push([live, bytes, result?.executor, answer.error ?? null]);
      }
      return seen;
    """)
    assert found == [[0, 0, "webgpu", None]] * 5


@needs_tiny
def test_weights_do_not_pass_through_python(page):
    """150 MB go to the GPU, and Python's heap is as large as after the same load on WebAssembly, where it sees none of them."""
    found = on(page, """
      const heap = async (executor) => (await load(executor, "whisper-tiny.en")).result.memory.python;
      const wasm = await heap("wasm");
      const { written } = await gpu();
      const grown = (await heap("webgpu")) - wasm;
      const after = await gpu();
      await engine.unload();
      return { grown, written: after.written - written, flight: after.flight };
    """)
    assert found["written"] > 70e6 and found["grown"] < 12e6 and found["flight"] < 80e6, found


def test_memory_is_flat_over_windows(page):
    """BR-39: the same buffers and bytes after 2 windows (of 2 s, the miniature's) and after 10 more; none after unload."""
    found = on(page, """
      await load("webgpu");
      const held = async () => (({ live, bytes }) => [live, bytes])(await gpu());
      const windows = (n) => {
        const channels = [new Float32Array(16000 * 2 * n).map((_, i) => Math.sin(i * i) / 4)];
        return hear({ kind: "pcm", channels, rate: 16000 }, { timestamps: false, condition_on_previous_text: false });
      };
      const first = await windows(2), two = await held();
      const second = await windows(10), ten = await held();
      const { times } = (await engine.describe()).gpu;
      await engine.unload();
      return { errors: [first.error ?? null, second.error ?? null], two, ten, after: await held(), times };
    """)
    assert found["errors"] == [None, None] and found["two"] == found["ten"] and found["after"] == [0, 0]
    assert found["times"]["encode"] == {"runs": 12, "gpu_ms": 30}


def test_memory_is_flat_over_loads(page):
    """Twenty loads one over another: each holds what the first held, and at most that at any time."""
    found = on(page, """
      const seen = new Set();
      for (let i = 0; i < 20; i++) {
        const { result } = await load("webgpu");
        const { live, bytes } = await gpu();
        seen.add(JSON.stringify([live, bytes, result.gpu.bytes, result.memory.kernel]));
      }
      await engine.unload();
      const { live, bytes } = await gpu();
      return { seen: [...seen].map((one) => JSON.parse(one)), after: [live, bytes] };
    """)
    ((live, held, told, kernel),) = found["seen"]
    assert live > 10 and held == told == kernel and found["after"] == [0, 0]
