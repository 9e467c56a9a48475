"""The webgpu executor in Chromium on its software adapter: the same answers, device loss, and browsers without a GPU.

The adapter is an emulator on the processor, some thousand times slower than a graphics card: miniatures only.
"""

from __future__ import annotations

import pytest

from candlewick.executors.webgpu import KERNELS
from candlewick.executors.webgpu.elementwise import FORMULAS, kernel
from tests.browser.engine_site import MINIATURE, needs_miniature, noise_wav, open_page, serving
from tests.browser.test_engine import load, transcribe
from tests.conftest import CHROMIUM_FLAGS, chromium_path

OPTIONS = {"temperatures": [0.0], "compression_ratio_threshold": None, "logprob_threshold": None, "no_speech_threshold": None}
GPU_FLAGS = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
ADAPTER = """async () => {
  const adapter = await navigator.gpu?.requestAdapter();
  return adapter ? adapter.info.description || adapter.info.vendor || "a GPU" : null;
}"""
# device.lost of the next device can be brought about from outside; put into the engine worker before everything else
LOSABLE = """
  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...how) {
    const device = await request.apply(this, how);
    let lose;
    const lost = new Promise((resolve) => { lose = resolve; });
    Object.defineProperty(device, "lost", { value: Promise.race([device.lost, lost]) });
    const submit = device.queue.submit.bind(device.queue);
    device.queue.submit = (buffers) => {
      if (self.losses > 0 && ++self.submits > 3) {
        self.losses -= 1;
        self.submits = 0;
        lose({ reason: "unknown", message: "the test pulled the plug" });
      }
      return submit(buffers);
    };
    return device;
  };
  self.losses = LOSSES;
  self.submits = 0;
"""


@pytest.fixture(scope="module")
def gpu_context(browser):
    """A profile in a Chromium that has WebGPU; skipped where it finds no adapter."""
    chromium = browser.browser_type.launch(executable_path=chromium_path(), args=[*CHROMIUM_FLAGS, *GPU_FLAGS])
    context = chromium.new_context()
    yield context
    chromium.close()


@pytest.fixture(scope="module")
def ours(built):
    with serving() as server:
        yield server


@pytest.fixture
def page(gpu_context, ours):
    page = open_page(gpu_context, ours, noise_wav(2.0))
    if not page.evaluate(ADAPTER):
        page.close()
        pytest.skip("this Chromium finds no WebGPU adapter, not even a software one")
    yield page
    page.evaluate("() => window.engine?.close()")
    page.close()


COMPILE = """async (sources) => {
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
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
    assert len(sources) > 30
    assert page.evaluate(COMPILE, sources) == []


@needs_miniature
def test_same_words_as_wasm(page):
    info = load(page, MINIATURE, executor="webgpu")
    assert info["executor"] == "webgpu" and info["gpu"]["name"] and info["gpu"]["limits"]["maxBufferSize"] > 0
    on_gpu = transcribe(page, **OPTIONS)
    info = load(page, MINIATURE, executor="wasm", threads=1)
    assert info["executor"] == "wasm"
    on_wasm = transcribe(page, **OPTIONS)
    assert [s["tokens"] for s in on_gpu["segments"]] == [s["tokens"] for s in on_wasm["segments"]]
    assert any(s["tokens"] for s in on_gpu["segments"])


@needs_miniature
def test_software_adapters_are_not_chosen_by_themselves(page):
    assert load(page, MINIATURE, executor="auto")["executor"] == "wasm"


@needs_miniature
def test_memory_is_flat_over_loads_and_runs(page):
    sizes = []
    for _ in range(2):
        info = load(page, MINIATURE, executor="webgpu")
        transcribe(page, **OPTIONS)
        sizes.append(info["memory"]["kernel"])
    assert sizes[0] == sizes[1] > 0
    page.evaluate("() => engine.unload()")
    assert page.evaluate("() => engine.describe()")["memory"]["kernel"] == 0


@needs_miniature
@pytest.mark.parametrize(("losses", "executor"), [(1, "webgpu"), (2, "wasm")])
def test_lost_device(gpu_context, ours, losses, executor):
    """Lost in a run: once it goes on with a new device, twice with WebAssembly; the words are the same."""
    text = (ours.root / "workers" / "engine.worker.js").read_bytes()
    first = LOSABLE.replace("LOSSES", str(losses)).encode()

    def doctored(handler):
        handler.answer(200, {"Content-Type": "text/javascript", "Cache-Control": "no-store"}, text + first)
        return True

    page = open_page(gpu_context, ours, noise_wav(2.0))
    if not page.evaluate(ADAPTER):
        pytest.skip("this Chromium finds no WebGPU adapter, not even a software one")
    load(page, MINIATURE, executor="wasm", threads=1)
    want = transcribe(page, **OPTIONS)
    page.evaluate("() => engine.close()")
    page.close()
    ours.faults["/workers/engine.worker.js"] = doctored
    try:
        page = open_page(gpu_context, ours, noise_wav(2.0))
        load(page, MINIATURE, executor="webgpu")
        got = transcribe(page, **OPTIONS)
        assert [s["tokens"] for s in got["segments"]] == [s["tokens"] for s in want["segments"]]
        said = [e["message"] for e in page.evaluate("() => events") if e["event"] == "log"]
        assert sum("taken away" in words for words in said) == losses, said
        assert page.evaluate("() => engine.describe()")["model"]["executor"] == executor
    finally:
        ours.faults.clear()
        page.evaluate("() => window.engine?.close()")
        page.close()


@needs_miniature
def test_no_gpu(browser, ours):
    """A browser without WebGPU: asked for by hand, the next executor is taken and the reason is shown."""
    context = browser.new_context()
    page = open_page(context, ours, noise_wav(2.0))
    info = load(page, MINIATURE, executor="webgpu")
    assert info["executor"] == "wasm" and "WebGPU cannot be used" in info["reason"], info["reason"]
    assert transcribe(page, **OPTIONS)["segments"]
    context.close()
