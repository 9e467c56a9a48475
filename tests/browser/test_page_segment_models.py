"""A person's own Segment Anything model in the page: PyTorch's files as their makers give them, damaged ones, scarce memory."""

from __future__ import annotations

import asyncio
import io
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from candlewick import executors
from candlewick.models.sam import Segmenter, best
from candlewick.weights.load import Checkpoint
from candlewick.weights.source import MemorySource
from tests.browser.engine_site import answer_with, serving
from tests.browser.pages import ROOT, drop, give, visit, wait_ready
from tests.browser.test_page_segment import DONE_MS, answered, at, masks, wait_encoded
from tests.torch_files import pt, taken_apart

image = pytest.importorskip("PIL.Image", reason="no Pillow: pip install -r requirements-dev.txt")
MINIATURE, VIT = ROOT / "models/test-sam", ROOT / "models/test-sam-vit"
needs_mobilesam = pytest.mark.skipif(not (ROOT / "models/mobilesam/model.safetensors").is_file(),
                                     reason="no weights in models/mobilesam: python3 serve.py --setup fetches them")


def run(coroutine):
    """In an event loop of a thread of its own: Playwright's is running in this one."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def picture() -> np.ndarray:
    y, x = np.mgrid[:200, :320]
    waves = np.sin(x / 25) * np.cos(y / 18) + np.random.default_rng(5).normal(0, 0.3, x.shape)
    return np.clip(np.stack([waves, waves[::-1], waves[:, ::-1]], axis=2) * 60 + 128, 0, 255).astype(np.uint8)


def png(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    image.fromarray(array).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def torch_file() -> bytes:
    """The miniature as a MobileSAM's .pt: batch norms, tables of biases, a transposed matrix, a shared storage."""
    state, _ = run(taken_apart(Checkpoint.open(MINIATURE)))
    return pt(state)


async def expected(data: bytes, name: str, x: float, y: float) -> np.ndarray:
    """The mask that CPython finds with this file for a click."""
    executor = executors.create("numpy")
    segmenter = await Segmenter.load(Checkpoint({name: MemorySource(data, name)}, "own"), executor)
    await segmenter.set_image(picture())
    answer = await segmenter.predict([[x * 320 - 0.5, y * 200 - 0.5]], [1])
    return segmenter.upsample(answer["masks"][best(answer, 1, False)]) > 0


def test_a_mobilesam_as_its_makers_give_it(browser, site, torch_file):
    with visit(browser, site, "/web/segment/") as page:
        page.locator("#own > summary").click()
        page.locator("#own-file").set_input_files(
            {"name": "mobile_sam.pt", "mimeType": "application/zip", "buffer": torch_file})
        expect(page.locator("#model-name")).to_have_text("mobile_sam")
        expect(page.locator("#model-facts")).to_contain_text("Memory it needs")
        page.get_by_role("button", name=re.compile("^Load the model")).click()
        wait_ready(page)
        needed = float(re.search(r"needs\s*about (\d+) MB", page.locator("#model-facts").inner_text())[1])
        used = float(re.search(r"in use\s*([\d.]+) MB", page.locator("#run-facts").inner_text())[1])
        assert used < needed < used + 120, "what was told before anything was read, the browser's own part included"
        give(page, "waves.png", png(picture()), "image/png")
        wait_encoded(page, "waves.png")
        answered(page, lambda: page.mouse.click(*at(page, 0.4, 0.6)))
        mask = masks(page)[0]
        wanted = run(expected(torch_file, "mobile_sam.pt", 0.4, 0.6))
        assert (mask & wanted).sum() / max(1, (mask | wanted).sum()) > 0.98 or mask.sum() == wanted.sum() == 0
        answered(page, lambda: page.get_by_role("button", name="Refine with this mask").click())


def test_a_sam_with_a_vit_dropped_on_the_page(browser, site):
    async def state() -> dict[str, np.ndarray]:
        ours = Checkpoint.open(VIT)
        return {name: await ours.read(info) for name, info in (await ours.tensors()).items()}

    with visit(browser, site, "/web/segment/") as page:
        drop(page, "sam_vit_test.pth", pt(run(state())))
        expect(page.locator("#model-name")).to_have_text("sam_vit_test")
        give(page, "waves.png", png(picture()), "image/png")
        wait_encoded(page, "waves.png")
        answered(page, lambda: page.mouse.click(*at(page, 0.5, 0.5)))


@pytest.mark.parametrize(("data", "words"), [
    (b"not a zip at all", "no end of a zip file"),
    (pt({"tok_embeddings.weight": np.ones((4, 4), np.float32)}), "no model that can be read here"),
])
def test_files_that_are_no_such_model(browser, site, data, words):
    with visit(browser, site, "/web/segment/") as page:
        drop(page, "other.pt", data)
        expect(page.locator("#own-outcome")).to_contain_text(words, timeout=DONE_MS)
        expect(page.locator("#own-outcome")).to_contain_text("MobileSAM is used as before.")
        expect(page.locator("#model-name")).to_have_text("MobileSAM")


@needs_mobilesam
def test_too_little_memory_is_told_with_numbers_and_a_smaller_model_works_after(browser, built, torch_file):
    """BR-38: kernel memory ends below what the encoder needs. That is found before weights are read."""
    source = (ROOT / "workers/wasm.js").read_text()
    capped = re.sub(r"const MAXIMA = \[[^\]]*\]", "const MAXIMA = [1600]", source)
    assert capped != source
    with serving() as ours:
        ours.faults["/workers/wasm.js"] = answer_with(capped.encode(), "text/javascript")
        with visit(browser, ours.address, "/web/segment/") as page:
            notice = page.locator("#load-outcome")
            expect(notice).to_contain_text("Not enough memory", timeout=DONE_MS)
            expect(notice).to_contain_text(re.compile(r"\d+ MB are wanted, this browser allows 105 MB"))
            drop(page, "mobile_sam.pt", torch_file)
            give(page, "waves.png", png(picture()), "image/png")
            expect(page.locator("#outcome, #load-outcome").first).not_to_contain_text("Not enough memory", timeout=DONE_MS)
            wait_encoded(page, "waves.png")
            answered(page, lambda: page.mouse.click(*at(page, 0.5, 0.5)))
