"""The webgpu executor in Chromium on its software adapter: the same answers, devices that are destroyed, memory that is flat.

The adapter is an emulator on the processor, some thousand times slower than a graphics card: miniatures only. What the adapter
cannot be made to do is in test_gpu_host.py and test_engine_gpu_faults.py.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from candlewick.executors.webgpu import KERNELS
from candlewick.executors.webgpu.elementwise import FORMULAS, kernel
from candlewick.executors.webgpu.variants import ANYWHERE, VARIANTS, variant
from tests.browser.engine_site import MINIATURE, ROOT, answer_with, needs_miniature, noise_wav, open_page, serving
from tests.browser.test_engine import load
from tests.conftest import CHROMIUM_FLAGS, chromium_path

OPTIONS = {"temperatures": [0.0], "compression_ratio_threshold": None, "logprob_threshold": None, "no_speech_threshold": None}
GPU_FLAGS = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
ADAPTER = """async () => {
  const adapter = await navigator.gpu?.requestAdapter();
  return adapter ? adapter.info.description || adapter.info.vendor || "a GPU" : null;
}"""
# Devices that a test destroys, each after so many submits, while its readback is pending; put into the engine worker.
LOSABLE = b"""
{
  let after = [], submits = 0;
  // on a busy machine an emulator answers late
  const later = self.setTimeout;
  self.setTimeout = (work, ms, ...more) => later(work, ms >= 20000 ? 1800000 : ms, ...more);
  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...how) {
    const device = await request.apply(this, how);
    const submit = device.queue.submit.bind(device.queue);
    device.queue.submit = (buffers) => {
      submit(buffers);
      submits += buffers.length;
      if (!buffers.length || !after.length || --after[0] > 0) return;
      after.shift();
      queueMicrotask(() => device.destroy());
    };
    return device;
  };
  const channel = new BroadcastChannel("losses");
  channel.onmessage = ({ data }) => {
    if (!Array.isArray(data)) return;
    channel.postMessage(submits);
    after = data;
    submits = 0;
  };
}
"""
SETUP = """() => {
  window.engine = new Engine({ onEvent, startMs: 180000 });
  const channel = new BroadcastChannel("losses");
  window.lose = (after) => new Promise((resolve) => {
    channel.onmessage = ({ data }) => resolve(data);   // how many submits there were since it was called last
    channel.postMessage(after);
  });
}"""


@pytest.fixture(scope="module")
def page(browser, built):
    """One page and one engine in a Chromium that has WebGPU; skipped where it finds no adapter."""
    chromium = browser.browser_type.launch(executable_path=chromium_path(), args=[*CHROMIUM_FLAGS, *GPU_FLAGS])
    with serving() as site:
        page = open_page(chromium.new_context(), site, noise_wav(2.0))
        if not page.evaluate(ADAPTER):
            chromium.close()
            pytest.skip("this Chromium finds no WebGPU adapter, not even a software one")
        text = (site.root / "workers" / "engine.worker.js").read_bytes() + LOSABLE
        site.faults["/workers/engine.worker.js"] = answer_with(text, "text/javascript")
        page.evaluate(SETUP)
        yield page
        page.evaluate("() => window.engine?.close()")
        chromium.close()


COMPILE = """async (sources) => {
  const adapter = await navigator.gpu.requestAdapter();
  const requiredFeatures = ["shader-f16", "subgroups"].filter((feature) => adapter.features.has(feature));
  const device = await adapter.requestDevice({ requiredFeatures });
  const found = [];
  for (const [name, code] of Object.entries(sources)) {
    const { messages } = await device.createShaderModule({ code }).getCompilationInfo();
    for (const { type, message, lineNum } of messages) if (type === "error") found.push(`${name}:${lineNum}: ${message}`);
  }
  device.destroy();
  return found;
}"""


def test_every_kernel_compiles(page):
    """This browser's compiler is stricter than the one that tests in CPython have."""
    sources = {path.stem: path.read_text() for path in KERNELS.glob("*.wgsl")}
    sources |= {op: kernel([(op, (0, 1)[: 1 + ("{1}" in formula)])], 2) for op, formula in FORMULAS.items()}
    there = page.evaluate("async () => [...(await navigator.gpu.requestAdapter()).features]")
    forms = [(name, form) for name, known in VARIANTS.items() for form in known if set(form) <= {*there, *ANYWHERE}]
    assert ("tiles", ("blocks",)) in forms
    sources |= {f"{name}+{form}": variant(name, form) for name, form in forms}
    assert len(sources) > 30
    assert page.evaluate(COMPILE, sources) == []


@needs_miniature
def test_software_adapters_are_not_chosen_by_themselves(page):
    info = load(page, MINIATURE, executor="auto")
    assert info["executor"] == "wasm" and "emulator" in info["reason"]


ASK = {
    "test-whisper": """async () => {
        const audio = { kind: "wav", bytes: sound.slice(0) };
        return (await engine.transcribe({ audio, options: OPTIONS }, { onEvent })).segments.flatMap(({ tokens }) => tokens);
      }""",
    "test-llama": """async () => (await engine.generate(
        { prompt: "Once upon a time", options: { max_tokens: 6, greedy: true, ignore_end: true } }, { onEvent })).token_ids""",
    "test-sam": """async () => {
        const prompt = { id: "p", points: [[20, 12]], labels: [1], box: null };
        const { masks, iou } = await engine.predict(prompt, { onEvent });
        return [...masks, ...iou];
      }""",
}
PICTURE = """async () => {
  const rgba = new Uint8ClampedArray(60 * 40 * 4).map((_, i) => (i % 4 === 3 ? 255 : (i * 7) ^ (i >> 5)));
  await engine.request("set_image", { id: "p", image: { rgba, width: 60, height: 40 } }, { onEvent });
}"""


@needs_miniature
@pytest.mark.parametrize(("model", "losses"), [("test-whisper", [3, 2]), ("test-llama", [3]), ("test-sam", [1])])
def test_a_device_destroyed_in_the_middle(page, model, losses):
    """BR-43: once goes on with a new device, twice on WebAssembly; the answer is the one that an untroubled engine gives."""
    if not (ROOT / "models" / model / "model.safetensors").is_file():
        pytest.skip(f"models/{model} is missing")
    ask = ASK[model].replace("OPTIONS", json.dumps(OPTIONS))
    info = load(page, model, executor="wasm", threads=1)
    assert info["executor"] == "wasm"
    if model == "test-sam":
        page.evaluate(PICTURE)
    want = page.evaluate(ask)
    info = load(page, model, executor="webgpu")
    assert info["executor"] == "webgpu" and info["gpu"]["name"] and info["gpu"]["buffers"] > 10
    if model == "test-sam":
        page.evaluate(PICTURE)
    plain = page.evaluate(ask)  # WebGPU without any trouble
    before = page.evaluate("() => engine.describe()")["gpu"]
    page.evaluate("() => { events.length = 0; }")
    page.evaluate("(after) => lose(after)", losses)
    got = page.evaluate(ask)
    restarts = [event["executor"] for event in page.evaluate("() => events") if event["event"] == "restart"]
    assert restarts == ["webgpu", "wasm"][: len(losses)]
    told = page.evaluate("() => engine.describe()")
    assert told["model"]["executor"] == restarts[-1]
    if model == "test-sam":
        for answer in (plain, got):
            assert np.abs(np.subtract(answer, want)).max() < 1e-3 * np.abs(want).max()
    else:
        assert plain == got == want and any(want)
    if restarts[-1] == "webgpu":  # the new device holds what the old one held, and the old one's is not counted any more
        assert [told["gpu"][key] for key in ("bytes", "buffers")] == [before[key] for key in ("bytes", "buffers")]
    if "timestamp-query" in before["features"]:
        assert before["times"] and all(time["runs"] > 0 and time["gpu_ms"] >= 0 for time in before["times"].values())
    page.evaluate("() => engine.unload()")
    told = page.evaluate("() => engine.describe()")
    assert told["memory"]["kernel"] == 0 and told["gpu"] is None


LONG = """async () => {
  const channels = [new Float32Array(16000 * 5).map((_, i) => Math.sin(i * i) / 4)];
  const audio = { kind: "pcm", channels, rate: 16000 };
  const { segments } = await engine.transcribe({ audio, options: OPTIONS }, { onEvent });
  return segments.map(({ id, start, end, text }) => [id, start, end, text]);
}"""
WINDOWS = "async () => (await engine.describe()).gpu.times?.encode.runs"


@needs_miniature
def test_a_long_transcription_goes_on_where_it_was(page):
    """A device that is lost behind the first window: what was heard before is not heard again, and is in the result."""
    long = LONG.replace("OPTIONS", json.dumps(OPTIONS))
    load(page, MINIATURE, executor="webgpu")
    page.evaluate("() => lose([])")
    want, windows = page.evaluate(long), page.evaluate(WINDOWS)
    submits = page.evaluate("() => lose([])")
    page.evaluate("() => { events.length = 0; }")
    page.evaluate("(after) => lose(after)", [submits * 3 // 4])
    assert page.evaluate(long) == want and len(want) > 2
    events = page.evaluate("() => events")
    ((restart, state),) = [(n, event["state"]) for n, event in enumerate(events) if event["event"] == "restart"]
    told = [event["segment"]["id"] for event in events if event["event"] == "segment"]
    assert told == [row[0] for row in want], "each segment is told once"
    assert state["seek"] > 0 and state["segments"] == sum(event["event"] == "segment" for event in events[:restart])
    if windows is not None:  # this adapter tells times
        assert page.evaluate(WINDOWS) < windows


HOSTS = """async () => {
  const { GpuHost } = await import("/workers/webgpu.js");
  const add = `override N: u32; @group(0) @binding(0) var<storage, read_write> y: array<f32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3u) { if (at.x < N) { y[at.x] += 1; } }`;
  const plan = JSON.stringify({ kernels: { add }, pipelines: [{ kernel: "add", entry: "main", constants: { N: 100 } }],
    entries: { main: [[0, [0], [2, 1, 1]], [0, [0], [2, 1, 1]]] }, cuts: { main: [1] } });
  const submit = GPUQueue.prototype.submit;
  let submits = 0;
  GPUQueue.prototype.submit = function (list) { submits += list.length; return submit.call(this, list); };
  const seen = new Set();
  let last = 0;
  for (let i = 0; i < 20; i++) {
    const host = await GpuHost.create();
    host.buffer(1 << 24);
    await host.settle();
    await host.prepare(plan, null);
    for (let n = 0; n < 10; n++) last = new Float32Array((await host.run("main", 0, 2, "[[0, 0, 400]]")).slice().buffer)[99];
    const { bytes, buffers, peak } = host.facts();
    host.dispose();
    seen.add(JSON.stringify([last, bytes, buffers, peak, host.facts().bytes, host.facts().buffers]));
  }
  GPUQueue.prototype.submit = submit;
  return { submits, seen: [...seen].map((one) => JSON.parse(one)) };
}"""


def test_twenty_hosts_and_two_hundred_runs(page):
    """Every device is the browser's, every buffer is counted, and the last host holds what the first held. Each run is cut into
    two submits, of which the second sees what the first wrote."""
    found = page.evaluate(HOSTS)
    ((last, held, buffers, peak, left, live),) = found["seen"]
    assert found["submits"] == 400 and last == 20 and held == peak >= 1 << 24 and buffers >= 3 and (left, live) == (0, 0)
