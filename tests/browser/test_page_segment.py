"""The Segment page in Chromium with the real model, as a person uses it; masks against ONNX Runtime's (tests/golden/sam)."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from candlewick.models.sam import outputs
from tests.browser.pages import ROOT, drop, give, hold, release, until, visit, wait_held
from tests.golden.sam.prompts import prompts

image = pytest.importorskip("PIL.Image", reason="no Pillow: pip install -r requirements-dev.txt")
GOLDEN = np.load(ROOT / "tests/golden/sam/golden.npz")
SAMPLES = ROOT / "web" / "samples"
DONE_MS = 240_000
pytestmark = pytest.mark.skipif(
    not (ROOT / "models/mobilesam/model.safetensors").is_file(),
    reason="no weights in models/mobilesam: python3 serve.py --setup fetches them",
)


@pytest.fixture(scope="module")
def page(browser, site):
    with visit(browser, site, "/web/segment/", gated=True) as page:
        yield page


def wait_encoded(page, name: str) -> None:
    title = page.get_by_role("heading", name=name, exact=True)
    page.locator("#job[aria-busy=false]").filter(has=title).wait_for(timeout=DONE_MS)
    expect(page.locator("#job-facts")).to_contain_text(re.compile("encoded in|known from before"), timeout=DONE_MS)


def at(page, x: float, y: float) -> tuple[float, float]:
    """A place in parts of the picture -> on the screen."""
    page.locator("#picture").scroll_into_view_if_needed()
    box = page.locator("#picture").bounding_box()
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


def answered(page, act) -> None:
    """Do something and wait for the mask that comes of it."""
    page.evaluate("() => { document.querySelector('#live').textContent = ''; }")
    act()
    expect(page.locator("#live")).to_contain_text(re.compile("Found|Nothing was found"), timeout=DONE_MS)


def drag(page, start, stop) -> None:
    page.mouse.move(*at(page, *start))
    page.mouse.down()
    page.mouse.move(*at(page, *stop), steps=4)
    page.mouse.up()


def saved(page, press: str) -> bytes:
    with page.expect_download() as download:
        page.locator(press).click()
    with open(download.value.path(), "rb") as file:
        return file.read()


def masks(page) -> list[np.ndarray]:
    """The objects as the JSON file has them."""
    annotations = json.loads(saved(page, "#save-json"))["annotations"]
    made = []
    for each in annotations:
        height, width = each["segmentation"]["size"]
        mask = outputs.from_run_lengths(outputs.from_coco_string(each["segmentation"]["counts"]), height, width)
        assert outputs.annotation(mask)["bbox"] == each["bbox"] and mask.sum() == each["area"]
        made.append(mask)
    return made


def like_reference(mask: np.ndarray, prompt: int, candidate: int) -> float:
    """Overlap with ONNX Runtime's mask, at the places of its logits."""
    height, width = mask.shape
    theirs = np.unpackbits(GOLDEN["truck.masks"][prompt], axis=-1).astype(bool)[candidate]
    scale = 256 / max(width, height)
    rows, columns = (int(n * scale) for n in (height, width))
    y, x = ((np.arange(n) + 0.5) / scale for n in (rows, columns))
    ours, theirs = mask[np.ix_(y.astype(int), x.astype(int))], theirs[:rows, :columns]
    return (ours & theirs).sum() / (ours | theirs).sum()


def test_truck_click_box_negative_point_candidates_cut_out(page, shared):
    data = (shared / "data/images/truck.jpg").read_bytes()
    drop(page, "truck.jpg", data, "image/jpeg")
    assert page.evaluate("() => window.sawDropZone")
    wait_encoded(page, "truck.jpg")
    asked = prompts(1800, 1200)
    wheel, box, negative = 1, 12, 16
    iou = GOLDEN["truck.iou"]
    x, y = asked[wheel]["points"][0]
    answered(page, lambda: page.mouse.click(*at(page, (x + 0.5) / 1800, (y + 0.5) / 1200)))
    best = 1 + int(np.argmax(iou[wheel][1:]))
    assert masks(page)[0].shape == (1200, 1800)
    assert like_reference(masks(page)[0], wheel, best) > 0.98
    candidates = page.get_by_role("radio", name=re.compile("Candidate"))
    expect(candidates).to_have_count(3)
    expect(candidates.nth(best - 1)).to_be_checked()
    other = best % 3 + 1
    candidates.nth(other - 1).click()
    assert like_reference(masks(page)[0], wheel, other) > 0.98
    page.keyboard.press("Control+z")
    assert like_reference(masks(page)[0], wheel, best) > 0.98

    page.get_by_role("button", name="Remove object point 1").click()
    answered(page, lambda: drag(page, (0.9, 0.2), (0.1, 0.9)))  # from any corner
    assert like_reference(masks(page)[0], box, 0) > 0.98
    answered(page, lambda: page.mouse.click(*at(page, 0.5, 0.8), button="right"))
    assert like_reference(masks(page)[0], negative, 0) > 0.97
    expect(page.get_by_role("button", name="Remove background point 1")).to_be_visible()

    mask = masks(page)[0]
    ys, xs = np.nonzero(mask)
    cut = image.open(io.BytesIO(saved(page, "#cutout")))
    assert cut.mode == "RGBA" and cut.size == (np.ptp(xs) + 1, np.ptp(ys) + 1)
    alpha = np.array(cut)[..., 3] > 127
    inside = mask[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
    assert (alpha & inside).sum() / (alpha | inside).sum() > 0.995
    white = np.array(image.open(io.BytesIO(saved(page, "#save-mask"))).convert("L"))
    assert np.array_equal(white == 255, mask) and set(np.unique(white)) == {0, 255}
    text = saved(page, "#save-svg").decode()
    assert text.startswith('<svg xmlns="http://www.w3.org/2000/svg" width="1800" height="1200"') and "<path d=\"M" in text


KEPT = """async () => {
  const { database, done } = await import("/web/lib/database.js");
  const kept = await database("candlewick-embeddings", (made) => {
    made.createObjectStore("embeddings", { keyPath: "key" }).createIndex("used", "used");
  })();
  return (await done(kept.transaction("embeddings").objectStore("embeddings").getAllKeys())).length;
}"""


def test_the_embedding_is_kept_and_stale_pictures_give_way(page, shared):
    truck = (shared / "data/images/truck.jpg").read_bytes()
    give(page, "truck.jpg", truck, "image/jpeg")
    wait_encoded(page, "truck.jpg")
    until(page, KEPT)  # written while the page is in use
    page.reload()
    give(page, "cat.jpg", (SAMPLES / "cat.jpg").read_bytes(), "image/jpeg")
    page.get_by_role("heading", name="cat.jpg", exact=True).wait_for(timeout=DONE_MS)
    give(page, "again.jpg", truck, "image/jpeg")
    wait_encoded(page, "again.jpg")
    expect(page.locator("#job-facts")).to_contain_text("known from before")
    x, y = prompts(1800, 1200)[1]["points"][0]
    answered(page, lambda: page.mouse.click(*at(page, (x + 0.5) / 1800, (y + 0.5) / 1200)))
    assert like_reference(masks(page)[0], 1, 1 + int(np.argmax(GOLDEN["truck.iou"][1][1:]))) > 0.98
    assert page.locator("#outcome .bad").count() == 0


def test_objects_names_undo_refine_and_keys(page):
    page.get_by_role("button", name="Sample: a cup of coffee").click()
    wait_encoded(page, "Sample coffee")
    stage = page.locator("#stage")
    stage.focus()
    page.keyboard.press("ArrowRight")
    answered(page, lambda: page.keyboard.press("Enter"))
    first = masks(page)[0]
    page.keyboard.press("Escape")
    page.get_by_role("button", name="New object").click()
    answered(page, lambda: page.mouse.click(*at(page, 0.06, 0.06)))
    name = page.get_by_role("textbox", name="Name of the object")
    expect(name).to_have_count(2)
    name.nth(1).fill("<b>table</b>")
    name.nth(1).press("Enter")
    both = json.loads(saved(page, "#save-json"))["annotations"]
    assert [each["name"] for each in both] == ["Object 1", "<b>table</b>"] and both[0]["area"] == first.sum()
    assert "<title>&lt;b&gt;table&lt;/b&gt;</title>" in saved(page, "#save-svg").decode()
    answered(page, lambda: page.get_by_role("button", name="Refine with this mask").click())
    slider = page.get_by_role("slider", name="Threshold")
    before = masks(page)[1].sum()
    slider.fill("4")
    assert masks(page)[1].sum() < before
    page.get_by_role("button", name="Undo").click()
    assert masks(page)[1].sum() == before
    page.get_by_role("button", name="Remove Object 1").click()
    expect(name).to_have_count(1)
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#take-away")).to_be_hidden()
    page.get_by_role("button", name="Undo").click()
    assert len(masks(page)) == 1


def test_clicks_on_corners_borders_and_twice_in_the_same_place(page):
    page.get_by_role("button", name="Sample: a rocket").click()
    wait_encoded(page, "Sample rocket")
    marks = page.get_by_role("button", name=re.compile("Remove .* point"))
    page.locator("#picture").scroll_into_view_if_needed()
    box = page.locator("#picture").bounding_box()
    last = 1 - 0.5 / box["width"], 1 - 0.5 / box["height"]
    for n, (x, y) in enumerate([(0, 0), (last[0], 0), (0, last[1]), last, (0.5, 0), (0, 0.5)]):
        answered(page, lambda x=x, y=y: page.mouse.click(box["x"] + x * box["width"] + 0.1, box["y"] + y * box["height"] + 0.1))
        expect(marks).to_have_count(n + 1)
    answered(page, lambda: page.mouse.click(*at(page, 0.4, 0.4)))
    page.mouse.click(*at(page, 0.4, 0.4))  # on its mark: takes the point away again
    expect(marks).to_have_count(6)
    points = json.loads(saved(page, "#save-json"))["annotations"][0]["points"]
    assert [0 <= p["x"] <= 640 and 0 <= p["y"] <= 427 for p in points] == [True] * 6
    assert points[0]["x"] < 1 and points[0]["y"] < 1 and points[3]["x"] > 639 and points[3]["y"] > 426


def test_stop_while_the_picture_is_looked_at_and_a_click_after(page, shared):
    hold(page, "result")
    give(page, "stopped.jpg", (shared / "data/images/dog.jpg").read_bytes(), "image/jpeg")
    wait_held(page)
    expect(page.locator("#doing")).to_have_text("Looking at the picture")
    page.get_by_role("button", name="Stop", exact=True).click()
    release(page)
    expect(page.locator("#job")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#job-facts")).not_to_contain_text("encoded in")
    answered(page, lambda: page.mouse.click(*at(page, 0.5, 0.5)))  # which looks at it after all
    wait_encoded(page, "stopped.jpg")


def test_everything_can_be_stopped(page):
    page.get_by_role("button", name="Sample: a rocket").click()
    wait_encoded(page, "Sample rocket")
    hold(page, "progress", stage="everything", least=1)
    page.get_by_role("button", name="Everything").click()
    wait_held(page)
    expect(page.locator("#doing")).to_contain_text(re.compile(r"Looking everywhere: [1-9]\d* of 256"))
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("#outcome")).to_contain_text("Stopped")
    answered(page, lambda: page.mouse.click(*at(page, 0.5, 0.5)))


@pytest.mark.parametrize(("name", "data", "words"), [
    ("empty.png", b"", "The file is empty"),
    ("notes.txt", b"only some words", "This is a text file"),
    ("sound.wav", b"RIFF\x24\0\0\0WAVEfmt ", "sound or video"),
    ("cut.png", (SAMPLES / "cat.jpg").read_bytes()[:300], "damaged"),
    ("<img src=x onerror=window.hurt=1>.png", b"\x89PNG\r\n\x1a\n", "damaged"),
])
def test_files_that_are_no_pictures(page, name, data, words):
    give(page, name, data, "image/png")
    expect(page.locator("#input-outcome")).to_contain_text(words)
    assert page.evaluate("() => window.hurt") is None
    page.get_by_role("button", name="Sample: a cat").click()
    wait_encoded(page, "Sample cat")
    expect(page.locator("#input-outcome")).to_be_empty()


def encoded(picture, kind: str, **how) -> list[int]:
    out = io.BytesIO()
    picture.save(out, kind, **how)
    return list(out.getvalue())


READ = """async (bytes) => {
  const { readPicture, context } = await import("/web/lib/picture.js");
  const p = await readPicture(new Blob([Uint8Array.from(bytes)]), "x", new AbortController().signal);
  const at = (x, y) => [...context(p.view).getImageData(x, y, 1, 1).data];
  return { width: p.width, height: p.height, first: at(0, 0), middle: at(p.view.width >> 1, p.view.height >> 1),
    view: [p.view.width, p.view.height], note: p.note, id: p.id };
}"""


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once(page, orientation):
    """BR-35: the corner that the camera calls upper left is upper left, for all 8 values."""
    upright = image.new("RGB", (40, 24), (20, 20, 20))
    upright.paste((250, 250, 250), (0, 0, 16, 12))
    turn = image.Transpose
    undo = {1: None, 2: turn.FLIP_LEFT_RIGHT, 3: turn.ROTATE_180, 4: turn.FLIP_TOP_BOTTOM, 5: turn.TRANSPOSE, 6: turn.ROTATE_90,
            7: turn.TRANSVERSE, 8: turn.ROTATE_270}[orientation]
    stored = upright if undo is None else upright.transpose(undo)
    exif = image.Exif()
    exif[0x0112] = orientation
    got = page.evaluate(READ, encoded(stored, "JPEG", exif=exif, quality=95))
    assert (got["width"], got["height"]) == (40, 24) and got["first"][0] > 200 and got["middle"][0] < 60


@pytest.mark.parametrize(("mode", "colour", "want"), [
    ("RGBA", (255, 0, 0, 0), [255, 255, 255]), ("RGBA", (0, 0, 0, 128), [127, 127, 127]), ("L", 100, [100] * 3),
    ("LA", (0, 0), [255] * 3), ("I;16", 0x8000, [128] * 3), ("P", 0, None), ("1", 1, [255] * 3),
])
def test_every_kind_of_pixel_becomes_opaque(page, mode, colour, want):
    """BR-36."""
    for size in ((5, 4), (1, 1)):
        got = page.evaluate(READ, encoded(image.new(mode, size, colour), "PNG"))
        assert (got["width"], got["height"]) == size and got["middle"][3] == 255
        assert want is None or np.abs(np.array(got["middle"][:3]) - want).max() <= 1


def test_drawings_big_thin_and_cut_off_pictures(page):
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="60" height="30"><rect width="60" height="30" fill="#0f0"/></svg>'
    got = page.evaluate(READ, list(svg.encode()))
    assert (got["width"], got["height"], got["middle"]) == (60, 30, [0, 255, 0, 255])
    for size in ("", 'width="100%" height="100%"'):  # its own units are no pixels
        free = svg.replace('width="60" height="30"', f'viewBox="0 0 8 4" {size}', 1).replace("#0f0", "#00f")
        got = page.evaluate(READ, list(free.encode()))
        assert (got["width"], got["height"], got["middle"]) == (1024, 512, [0, 0, 255, 255])
    got = page.evaluate(READ, encoded(image.new("L", (12000, 1), 9), "PNG"))
    assert (got["width"], got["height"], got["view"]) == (12000, 1, [2048, 1])
    whole = (SAMPLES / "coffee.jpg").read_bytes()
    try:
        got = page.evaluate(READ, list(whole[: len(whole) // 2]))
        assert got["note"] == "the file is cut off: its end is missing"
    except Exception as error:  # a browser may also refuse it
        assert "damaged, cut off" in str(error)


def test_touch(browser, site):
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
    with visit(browser, site, "/web/segment/", **phone) as page:
        page.get_by_role("button", name="Sample: a cup of coffee").tap()
        wait_encoded(page, "Sample coffee")
        answered(page, lambda: page.touchscreen.tap(*at(page, 0.45, 0.45)))
        expect(page.get_by_role("button", name="Remove object point 1")).to_be_visible()
        page.locator("label", has_text="Background").tap()
        answered(page, lambda: page.touchscreen.tap(*at(page, 0.8, 0.2)))
        expect(page.get_by_role("button", name="Remove background point 2")).to_be_visible()
        page.get_by_role("button", name="Remove background point 2").tap()
        expect(page.get_by_role("button", name=re.compile("Remove .* point"))).to_have_count(1)
        assert page.evaluate("() => document.documentElement.scrollWidth") == 360
