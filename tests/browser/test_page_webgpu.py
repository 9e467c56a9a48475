"""The three pages on webgpu in Chromium on its software adapter, with miniatures: answers as on wasm, a device destroyed in the
middle of each, and verification: what a right and a wrong GPU look like."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from candlewick import executors
from candlewick.models.sam import Segmenter, best
from candlewick.weights.load import Checkpoint
from tests.browser.engine_site import answer_with, noise_wav, serving
from tests.browser.llama_page import MINIATURE, said
from tests.browser.pages import ROOT, give, hold, visit
from tests.browser.test_engine_webgpu import ADAPTER, GPU_FLAGS
from tests.browser.test_page_segment import at, masks
from tests.browser.test_page_segment_models import picture, png, run
from tests.conftest import CHROMIUM_FLAGS, chromium_path

MODELS = ROOT / "models"
SLOW_MS = 600_000
"""The emulator on a busy machine."""
# What a test asks of the engine worker, whose text ends with this. lose: devices are destroyed, each after so many submits,
# while what was submitted is under way; spoil: every number that a product gives is one hundredth too large; real: the adapter
# does not say that it is an emulator; late: milliseconds that each run of "gpu" or "wasm" takes longer by the worker's clock.
TAMPER = b"""
{
  let lose = [], spoil = false, devices = 0, real = false, late = {}, ahead = 0;
  const now = performance.now.bind(performance);
  performance.now = () => now() + ahead;
  const map = GPUBuffer.prototype.mapAsync, run = KernelHost.prototype.run;
  GPUBuffer.prototype.mapAsync = function (...how) { ahead += late.gpu ?? 0; return map.apply(this, how); };
  KernelHost.prototype.run = function (...how) { ahead += late.wasm ?? 0; return run.apply(this, how); };
  const info = Object.getOwnPropertyDescriptor(GPUAdapter.prototype, "info").get;
  const another = { vendor: "test", architecture: "one", device: "", description: "", isFallbackAdapter: false };
  Object.defineProperty(GPUAdapter.prototype, "info", { get() { return real ? another : info.call(this); } });
  // on a busy machine an emulator answers late
  const later = self.setTimeout;
  self.setTimeout = (work, ms, ...more) => later(work, ms >= 20000 ? 1800000 : ms, ...more);
  const make = GPUDevice.prototype.createShaderModule;
  GPUDevice.prototype.createShaderModule = function (how) {
    const wrong = how.code.replaceAll(/(\\by\\[[^\\]]*\\] = )(.*?);/g, "$1 1.01 * ($2);");
    return make.call(this, spoil && /linear/.test(how.label) ? { ...how, code: wrong } : how);
  };
  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...how) {
    devices++;
    const device = await request.apply(this, how);
    const submit = device.queue.submit.bind(device.queue);
    device.queue.submit = (buffers) => {
      submit(buffers);
      if (!buffers.length || !lose.length || --lose[0] > 0) return;
      lose.shift();
      queueMicrotask(() => device.destroy());
    };
    return device;
  };
  const channel = new BroadcastChannel("tamper");
  channel.onmessage = ({ data }) => {
    if (!data.ask) return;
    lose = data.lose ?? lose;
    spoil = data.spoil ?? spoil;
    real = data.real ?? real;
    late = data.late ?? late;
    channel.postMessage({ devices });
  };
}
"""
ASK = """(what) => new Promise((resolve) => {
  const channel = new BroadcastChannel("tamper");
  channel.onmessage = ({ data }) => resolve(data.devices);
  channel.postMessage({ ask: true, ...what });
})"""


@pytest.fixture(scope="module")
def gpu(browser, built):
    """(Chromium with WebGPU, a site whose engine worker can lose its device); skipped where there is no adapter."""
    chromium = browser.browser_type.launch(executable_path=chromium_path(), args=[*CHROMIUM_FLAGS, *GPU_FLAGS])
    with serving() as site:
        page = chromium.new_page()
        page.goto(f"{site.address}/web/none.html")
        found = page.evaluate(ADAPTER)
        page.close()
        if not found:
            chromium.close()
            pytest.skip("this Chromium finds no WebGPU adapter, not even a software one")
        text = (site.root / "workers" / "engine.worker.js").read_bytes() + TAMPER
        site.faults["/workers/engine.worker.js"] = answer_with(text, "text/javascript")
        yield chromium, site
        chromium.close()


@contextmanager
def on_webgpu(gpu, path, gated=False):
    """The page as who chose WebGPU at an earlier visit finds it."""
    chromium, site = gpu
    chosen = {"origin": site.address, "localStorage": [{"name": "candlewick.executor", "value": "webgpu"}]}
    with visit(chromium, site.address, path, gated=gated, storage_state={"cookies": [], "origins": [chosen]}) as page:
        page.set_default_timeout(SLOW_MS)
        yield page


def tamper(page, **what) -> int:
    """-> how many devices the engine worker has asked for."""
    return page.evaluate(ASK, what)


def fact(page, name: str) -> str:
    term = page.locator("#run-facts dt", has_text=re.compile(f"^{name}$"))
    return term.locator("xpath=following-sibling::dd[1]").inner_text()


def own_model(page, folder: str) -> None:
    page.locator("#own > summary").click()
    page.locator("#own-files").set_input_files(MODELS / folder)
    expect(page.locator("#model-name")).to_have_text(folder)
    page.get_by_role("button", name=re.compile("^Load the model")).click()
    page.locator("#chip[data-state=ready]").wait_for()
    expect(page.locator("#run-why")).to_contain_text("WebGPU on")


def choose(page, executor: str) -> None:
    page.locator("#executor").select_option(executor)
    page.locator("#chip[data-state=ready]").wait_for()


def transcript(page) -> list[str]:
    expect(page.locator("#job-facts")).to_contain_text("written in", timeout=SLOW_MS)
    assert page.locator(".notice.bad").count() == 0
    return page.locator("#lines .said").all_text_contents()


def test_whisper_goes_on_with_a_new_device(gpu):
    with on_webgpu(gpu, "/web/whisper/") as page:
        own_model(page, "test-whisper")
        before = tamper(page)
        tamper(page, lose=[9])
        give(page, "noise.wav", noise_wav(2.0), "audio/wav")
        words = transcript(page)
        assert tamper(page) == before + 1
        assert words and fact(page, "Executor") == "WebGPU"
        choose(page, "wasm")
        page.evaluate("() => { document.querySelector('#job-facts').textContent = ''; }")  # of the run before
        page.locator("#again").click()
        assert transcript(page) == words


async def mask_of_numpy(x: float, y: float):
    segmenter = await Segmenter.load(Checkpoint.open(MODELS / "test-sam"), executors.create("numpy"))
    await segmenter.set_image(picture())
    answer = await segmenter.predict([[x * 320 - 0.5, y * 200 - 0.5]], [1])
    return segmenter.upsample(answer["masks"][best(answer, 1, False)]) > 0


def test_segment_goes_on_with_a_new_device(gpu):
    """The picture, which the device before held, is encoded again."""
    with on_webgpu(gpu, "/web/segment/") as page:
        own_model(page, "test-sam")
        before = tamper(page)
        give(page, "waves.png", png(picture()), "image/png")
        page.get_by_role("heading", name="waves.png", exact=True).wait_for()
        page.locator("#job[aria-busy=false]").wait_for()
        expect(page.locator("#job-facts")).to_contain_text("encoded in", timeout=SLOW_MS)
        tamper(page, lose=[1])
        page.mouse.click(*at(page, 0.4, 0.6))
        expect(page.locator("#live")).to_contain_text("Found", timeout=SLOW_MS)
        assert tamper(page) == before + 1
        got, want = masks(page)[0], run(mask_of_numpy(0.4, 0.6))
        assert (got != want).mean() < 0.01, "numbers next to zero may fall on either side"
        assert fact(page, "Executor") == "WebGPU"


def answer(page) -> str:
    """To a new conversation's first question."""
    page.locator("#new").click()
    page.locator("#say").fill("a b c")
    page.locator("#say").press("Enter")
    expect(page.locator(".turn.model")).to_have_count(1)
    page.locator("#chat[aria-busy=false]").wait_for()
    (text,) = said(page)
    return text


def test_llama_goes_on_without_a_gpu(gpu):
    """The first device goes, then the next: the answer comes from WebAssembly."""
    with on_webgpu(gpu, MINIATURE) as page:
        page.locator("#chip[data-state=ready]").wait_for()
        page.get_by_label("Greedy").check()
        before = answer(page)
        tamper(page, lose=[5, 5])
        assert answer(page) == before
        assert fact(page, "Executor") == "WASM SIMD"
        expect(page.locator("#run-why")).to_contain_text("the GPU went away")


def test_verify(gpu):
    with on_webgpu(gpu, MINIATURE) as page:
        page.locator("#chip[data-state=ready]").wait_for()
        page.get_by_label("Greedy").check()
        before = answer(page)

        page.locator("#gpu > summary").click()
        facts = page.locator("#gpu-facts")
        for words in ("Adapter", "an emulator", "Features used", "Largest buffer", "GPU memory"):
            expect(facts).to_contain_text(words)
        page.get_by_role("button", name="Verify on this GPU").click()
        page.locator("#verify-outcome h3").wait_for()
        verdict = page.locator("#verify-outcome h3").inner_text()
        assert re.fullmatch(r"All \d\d kernels agree with the reference on this GPU", verdict), verdict
        page.locator("#verify-errors > summary").click()
        assert page.locator("#verify-errors tbody tr").count() > 40
        assert page.locator("#verify-errors tr.wrong").count() == 0

        # what the model had read is read again
        assert answer(page) == before


def test_a_wrong_gpu_is_told_and_wasm_is_offered(gpu):
    with on_webgpu(gpu, MINIATURE, gated=True) as page:
        page.locator("#chip[data-state=ready]").wait_for()
        tamper(page, spoil=True)
        hold(page, "progress", stage="verify", least=10)
        page.get_by_role("button", name="Verify on this GPU").click()
        # products come first
        expect(page.locator("#verify-left")).to_have_text(re.compile(r"^(1\d|[2-9]\d|\d{3}) of"), timeout=SLOW_MS)
        page.locator("#verify-stop").click()
        alert = page.locator("#verify-outcome [role=alert]")
        expect(alert).to_contain_text(re.compile("[Ww]rong on this GPU: linear"), timeout=SLOW_MS)
        page.get_by_role("button", name="Use WASM").click()
        page.locator("#chip[data-state=ready]").wait_for()
        assert fact(page, "Executor") == "WASM SIMD"
        assert alert.count() == 0
        tamper(page, spoil=False)
        choose(page, "webgpu")
        expect(alert).to_contain_text("earlier verification")


def test_a_gpu_that_goes_away_is_not_remembered_as_wrong(gpu):
    with on_webgpu(gpu, MINIATURE) as page:
        page.locator("#chip[data-state=ready]").wait_for()
        tamper(page, lose=[2])
        page.get_by_role("button", name="Verify on this GPU").click()
        expect(page.locator("#verify-outcome h3")).to_have_text("The GPU went away", timeout=SLOW_MS)
        assert not page.evaluate("() => Object.keys(localStorage).some((key) => key.includes('wrong') && localStorage[key])")


def test_a_trial_that_fails_is_remembered(gpu):
    with on_webgpu(gpu, MINIATURE) as page:
        page.locator("#chip[data-state=ready]").wait_for()
        tamper(page, real=True, late={"wasm": 1e6}, lose=[1])
        page.locator("#executor").select_option("auto")
        why = page.locator("#run-why")
        expect(why).to_contain_text("as a short trial of the GPU test one failed (the GPU went away", timeout=SLOW_MS)
        assert fact(page, "Executor") == "WASM SIMD"
        choose(page, "webgpu")
        expect(page.locator("#verify-outcome")).to_contain_text("A trial of this GPU failed")
        page.get_by_role("button", name="Try again").click()
        expect(why).to_contain_text("times as fast as WASM here", timeout=SLOW_MS)
        assert '"failed"' not in page.evaluate("() => localStorage['candlewick.gpu-trial llama']")


def test_a_gpu_is_tried_before_it_is_chosen_by_itself(gpu):
    with on_webgpu(gpu, MINIATURE) as page:
        page.locator("#chip[data-state=ready]").wait_for()
        tamper(page, real=True, late={"wasm": 1e6})
        choose(page, "auto")
        why = page.locator("#run-why")
        expect(why).to_contain_text(re.compile(r"test one, \d+\.\d times as fast as WASM here"), timeout=SLOW_MS)
        expect(page.locator("#verify-outcome")).to_contain_text("Before its first use on this GPU")
        assert fact(page, "Executor") == "WebGPU"
        # one that is slower is left
        forget = "() => localStorage.removeItem('candlewick.gpu-trial llama')"
        page.evaluate(forget)
        tamper(page, late={"gpu": 1e6})
        page.locator("#threads").select_option("1")
        expect(why).to_contain_text("faster here: in a short trial the GPU test one took", timeout=SLOW_MS)
        assert fact(page, "Executor") == "WASM SIMD"
        # it is not tried again unless that is forgotten
        page.evaluate(forget)
        tamper(page, spoil=True, late={})
        page.locator("#threads").select_option("")
        page.get_by_label("Greedy").check()
        assert answer(page)  # what was asked meanwhile is answered without it
        expect(page.locator("#run-why")).to_contain_text("a verification found this GPU wrong", timeout=SLOW_MS)
        assert fact(page, "Executor") == "WASM SIMD"
