"""The Segment page with a small model: camera, clipboard, other threads, many pictures, odd clicks and files."""

from __future__ import annotations

import base64
import io
import json
import re
import time

import numpy as np
import pytest
from playwright.sync_api import expect

from candlewick.commands.browser import chromium_path
from tests.browser.engine_site import open_page, serving
from tests.browser.pages import ROOT, copied, engine_is_gone, give, visit, wait_ready
from tests.browser.test_page_segment import answered, at, drag, masks, saved, wait_encoded
from tests.browser.test_page_segment_models import image, picture, png

MINIATURE = ROOT / "models/test-sam"
FILES = [{"name": name, "mimeType": "application/octet-stream", "buffer": (MINIATURE / name).read_bytes()}
         for name in ("config.json", "model.safetensors")]


def use_miniature(page) -> None:
    page.locator("#own > summary").click()
    page.locator("#own-file").set_input_files(FILES)
    expect(page.locator("#model-note")).to_contain_text("Your own files")


@pytest.fixture(scope="module")
def page(browser, site):
    with visit(browser, site, "/web/segment/") as page:
        use_miniature(page)
        give(page, "waves.png", png(picture()), "image/png")
        wait_encoded(page, "waves.png")
        yield page


@pytest.fixture
def other_browser(browser):
    opened = []

    def start(*switches: str):
        opened.append(browser.browser_type.launch(executable_path=chromium_path(), args=["--no-sandbox", *switches]))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


# ---- where pictures come from and go ----------------------------------------------------------------------------------


def test_camera(other_browser, site):
    """Chromium's fake camera: a still becomes the picture, the camera goes off, and a refusal is told in words."""
    filming = other_browser("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    with visit(filming, site, "/web/segment/") as page:
        use_miniature(page)
        page.get_by_role("button", name="Camera").click()
        video = page.locator("#video")
        page.wait_for_function("() => document.querySelector('#video').videoWidth > 0")
        width, height = video.evaluate("(video) => [video.videoWidth, video.videoHeight]")
        page.get_by_role("button", name="Take the picture").click()
        wait_encoded(page, "Camera 1")
        expect(page.locator("#job-facts")).to_contain_text(f"{width} × {height}")
        colours = page.locator("#picture").evaluate(
            "(c) => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size")
        assert colours > 8, "the still shows something"
        expect(page.locator("#camera-box")).to_be_hidden()
        assert video.evaluate("(video) => video.srcObject === null"), "the camera is off"
        answered(page, lambda: page.mouse.click(*at(page, 0.5, 0.5)))
        page.get_by_role("button", name="Camera").click()
        page.get_by_role("button", name="Close").click()
        expect(page.locator("#camera-box")).to_be_hidden()
        expect(page.get_by_role("heading", name="Camera 1")).to_be_visible()


def test_refused_camera_in_words(other_browser, site):
    refusing = other_browser("--use-fake-device-for-media-stream", "--deny-permission-prompts")
    with visit(refusing, site, "/web/segment/") as page:
        page.get_by_role("button", name="Camera").click()
        expect(page.locator("#input-outcome")).to_contain_text("not allowed to use the camera")
        expect(page.locator("#camera-box")).to_be_hidden()


PASTE = """(text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)), clipboardData = new DataTransfer();
  clipboardData.items.add(new File([bytes], "image.png", { type: "image/png" }));
  document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}"""
COPIED = """async () => {
  const [item] = await navigator.clipboard.read(), blob = await item.getType("image/png");
  return [item.types, btoa(String.fromCharCode(...new Uint8Array(await blob.arrayBuffer())))];
}"""


def test_a_picture_comes_from_the_clipboard_and_the_cut_out_goes_there(browser, site):
    with visit(browser, site, "/web/segment/", permissions=["clipboard-read", "clipboard-write"]) as page:
        use_miniature(page)
        page.evaluate(PASTE, base64.b64encode(png(picture()[:90, :120])).decode())
        wait_encoded(page, "Pasted 1")
        expect(page.locator("#job-facts")).to_contain_text("120 × 90")
        answered(page, lambda: page.mouse.click(*at(page, 0.5, 0.5)))
        show_something(page)
        copied(page, page.get_by_role("button", name="Copy cut-out").click)
        types, text = page.evaluate(COPIED)
        pasted = image.open(io.BytesIO(base64.b64decode(text)))
        cut = image.open(io.BytesIO(saved(page, "#cutout")))
        assert types == ["image/png"] and pasted.mode == "RGBA" and np.array_equal(np.array(pasted), np.array(cut))
        mask = masks(page)[0]
        rows, columns = np.nonzero(mask)
        assert pasted.size == (np.ptp(columns) + 1, np.ptp(rows) + 1)
        page.keyboard.press("Control+v")  # what was copied, by the browser itself
        wait_encoded(page, "Pasted 2")


def test_what_comes_after_a_first_click_is_prepared_while_nobody_asks(browser, site):
    """Prompts of another size want a program of their own; the usual ones are there before they are asked for."""
    with visit(browser, site, "/web/segment/", permissions=["clipboard-read", "clipboard-write"]) as page:
        use_miniature(page)
        give(page, "waves.png", png(picture()), "image/png")
        wait_encoded(page, "waves.png")
        page.get_by_label("Show what a click would take").uncheck()
        assert "decode_3" not in entries(page)
        answered(page, lambda: page.mouse.click(*at(page, 0.5, 0.5)))
        end = time.monotonic() + 240
        while not {"decode_3", "decode_4", "decode_5"} <= set(entries(page)):
            assert time.monotonic() < end, f"not prepared: {entries(page)}"


def entries(page) -> list[str]:
    """What the engine has loaded, as the diagnostics tell while it has nothing else to do."""
    page.evaluate("() => navigator.clipboard.writeText('')")
    page.locator("#diagnostics").click()
    text = page.evaluate("""async () => {
      for (let text = ""; ; text = await navigator.clipboard.readText()) {
        if (text) return text;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }""")
    described = json.loads(text)["engine"]["describe"]
    return described["model"]["entries"] if described else []


def show_something(page) -> None:
    """The miniature is not sure of anything: the threshold goes down until the mask is not empty."""
    if not masks(page)[0].any():
        page.get_by_role("slider", name="Threshold").fill("-8")
    assert masks(page)[0].any()


# ---- what a person may point at ---------------------------------------------------------------------------------------


def test_clicks_beside_the_picture_do_nothing(page):
    marks = page.get_by_role("button", name=re.compile("Remove .* point"))
    box = page.locator("#picture").bounding_box()
    for x, y in ((-5, 20), (box["width"] + 5, 20), (20, -5), (20, box["height"] + 5)):
        page.mouse.click(box["x"] + x, box["y"] + y)
    expect(marks).to_have_count(0)


def test_nothing_but_background_and_boxes_of_no_size(page):
    answered(page, lambda: page.mouse.click(*at(page, 0.5, 0.5), button="right"))
    expect(page.get_by_role("button", name="Remove background point 1")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    page.locator("label", has_text="Box").click()
    answered(page, lambda: drag(page, (0.5, 0.5), (0.5, 0.5)))  # which is a click
    expect(page.get_by_role("button", name=re.compile("Remove .* point"))).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    answered(page, lambda: drag(page, (0.8, 0.9), (0.2, 0.1)))  # from the lower right
    x0, y0, x1, y1 = json.loads(saved(page, "#save-json"))["annotations"][0]["box"]
    assert (x0, y0) < (x1, y1) and abs(x0 - 64) < 3 and abs(y1 - 180) < 3
    page.locator("label", has_text="Object").first.click()
    page.get_by_role("button", name="Clear").click()


@pytest.mark.parametrize("ratio", [1.5, 0.8])
def test_places_are_exact_at_any_pixel_ratio_when_scrolled_and_zoomed(browser, site, ratio):
    """BR-37 on the page itself: a click lands on the pixel it was aimed at, and so does its mark."""
    with visit(browser, site, "/web/segment/", device_scale_factor=ratio, viewport={"width": 520, "height": 420}) as page:
        use_miniature(page)
        page.evaluate("() => { document.documentElement.style.zoom = 0.8; }")
        give(page, "wide.png", png(np.tile(picture()[:150], (1, 4, 1))[:, :1000]), "image/png")
        wait_encoded(page, "wide.png")
        for x, y in ((0.93, 0.9), (0.05, 0.1)):
            page.mouse.wheel(0, 30)
            answered(page, lambda x=x, y=y: page.mouse.click(*at(page, x, y)))
        points = json.loads(saved(page, "#save-json"))["annotations"][0]["points"]
        shown = page.locator("#picture").bounding_box()
        for point, (x, y) in zip(points, ((0.93, 0.9), (0.05, 0.1))):
            assert abs(point["x"] - 1000 * x) <= 1000 / shown["width"] + 1, (point, shown)
            assert abs(point["y"] - 150 * y) <= 150 / shown["height"] + 1, (point, shown)


# ---- odd files --------------------------------------------------------------------------------------------------------


def test_of_an_animation_the_first_picture_is_taken(page):
    frames = [image.new("RGB", (50, 30), colour) for colour in ((250, 10, 10), (10, 10, 250))]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=40)
    give(page, "moving.gif", out.getvalue(), "image/gif")
    wait_encoded(page, "moving.gif")
    pixel = page.locator("#picture").evaluate("(c) => [...c.getContext('2d').getImageData(9, 9, 1, 1).data]")
    assert pixel[0] > 200 and pixel[2] < 60
    answered(page, lambda: page.mouse.click(*at(page, 0.5, 0.5)))
    assert masks(page)[0].shape == (30, 50)


@pytest.mark.parametrize("size", [(333, 777), (4000, 100), (1, 1), (3, 900)])
def test_odd_sizes_give_masks_of_just_that_size(page, size):
    """BR-33, one after the other in one page."""
    width, height = size
    give(page, f"{width} by {height}.png", png(np.resize(picture(), (height, width, 3))), "image/png")
    wait_encoded(page, f"{width} by {height}.png")
    answered(page, lambda: page.mouse.click(*at(page, 0.5, 0.5)))
    assert masks(page)[0].shape == (height, width)


# ---- the engine changes under the page --------------------------------------------------------------------------------


def test_other_threads_and_executors_get_the_same_picture_and_prompts(page):
    """A change of settings replaces the engine: the picture is brought into the new one, and clicks go on where they were."""
    give(page, "waves.png", png(picture()), "image/png")
    wait_encoded(page, "waves.png")
    answered(page, lambda: page.mouse.click(*at(page, 0.3, 0.4)))
    before = masks(page)[0]
    for choice, value, said in (("Threads", "1", "1 of 1"), ("Executor", "numpy", "NumPy"), ("Executor", "wasm", "WASM"),
                                ("Threads", "", "asked for")):
        page.get_by_label(choice, exact=True).select_option(value)
        wait_ready(page)
        expect(page.locator("#run-facts")).to_contain_text(said)
        wait_encoded(page, "waves.png")
        expect(page.get_by_role("button", name="Remove object point 1")).to_be_visible()
        answered(page, lambda: page.mouse.click(*at(page, 0.7, 0.7)))
        page.get_by_role("button", name="Undo").click()
        same = masks(page)[0]
        assert (same ^ before).sum() <= 0.01 * same.size


def test_an_engine_that_dies_is_replaced_and_the_picture_comes_again(browser, site):
    with visit(browser, site, "/web/segment/", allow=("crash", "worker")) as page:
        page.add_init_script("""
          const Real = Worker;
          window.Worker = class extends Real { constructor(...a) { super(...a); (window.made ??= []).push(this); } };
        """)
        page.reload()
        use_miniature(page)
        give(page, "waves.png", png(picture()), "image/png")
        wait_encoded(page, "waves.png")
        answered(page, lambda: page.mouse.click(*at(page, 0.3, 0.4)))
        before = masks(page)[0]
        page.evaluate("() => window.made[0].terminate()")
        engine_is_gone(page)
        answered(page, lambda: page.mouse.click(*at(page, 0.6, 0.6)))
        page.get_by_role("button", name="Undo").click()
        assert np.array_equal(masks(page)[0], before)


# ---- many in a row ----------------------------------------------------------------------------------------------------

MANY = """async () => {
  const engine = new Engine({});
  await engine.load({ model: "/models/test-sam/", threads: 2, executor: "wasm" });
  const sizes = [[640, 427], [333, 777], [1000, 80], [90, 61], [427, 640]], seen = [];
  const picture = async (n) => {
    const [width, height] = sizes[n % sizes.length], id = `picture ${n}`;
    const rgba = Uint8ClampedArray.from({ length: width * height * 4 }, (_, i) => (i * 7919 + n) >> 3);
    await engine.request("set_image", { id, image: { width, height, rgba } });
    for (const labels of [[1], [1, 0]]) {
      const points = labels.map((_, i) => [10 + i, 20]);
      const { masks } = await engine.request("predict", { id, points, labels, box: null, mask_input: null });
      const mask_input = masks.subarray(0, masks.length / 4);
      await engine.request("predict", { id, points, labels, box: [5, 5, 60, 50], mask_input });
    }
    const { embedding } = await engine.request("embedding", { id });
    await engine.request("set_image", { id, image: { width, height, embedding } });
    const options = { points_per_side: 2, pred_iou_thresh: 0, stability_score_thresh: 0 };
    await engine.request("everything", { id, options });
    const about = { points: [[1, 1]], labels: [1], box: null, mask_input: null };
    const bad = await outcome(engine.request("predict", { id: "another", ...about }));
    if (bad.error?.code !== "bad_input") throw new Error("a stale question was answered");
    seen.push((await engine.describe()).memory);
  };
  for (let n = 0; n < 15; n++) await picture(n);
  engine.close();
  return seen;
}"""


def test_memory_is_flat_over_pictures(browser, built):
    """BR-40: pictures in, masks and embeddings out, refused questions in between: not a byte more after each size was seen."""
    with serving() as ours:
        context = browser.new_context()
        seen = open_page(context, ours).evaluate(MANY)
        context.close()
    for kind in ("kernel", "python"):
        assert len({memory[kind] for memory in seen[5:]}) == 1, [memory[kind] for memory in seen]
