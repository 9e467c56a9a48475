"""The page's own arithmetic, in Chromium: places, masks of exactly the picture's size, run lengths, outlines."""

from __future__ import annotations

import numpy as np
import pytest

from tests.browser.pages import visit

SIZES = [(1200, 800), (800, 1200), (333, 777), (4000, 100), (1, 9), (1024, 1024), (640, 427)]


@pytest.fixture(scope="module")
def page(browser, site):
    with visit(browser, site, "/web/") as page:
        yield page


def resized(values: np.ndarray, n: int, axis: int) -> np.ndarray:
    """Bilinear without smoothing, pixel centres in place: what torch's interpolate(align_corners=False) does along one axis."""
    m = values.shape[axis]
    at = np.maximum((np.arange(n) + 0.5) * m / n - 0.5, 0)
    low = np.floor(at).astype(int)
    high, part = np.minimum(low + 1, m - 1), at - low
    part = part[:, None] if axis == 0 else part[None, :]
    return np.take(values, low, axis) * (1 - part) + np.take(values, high, axis) * part


def reference(logits: np.ndarray, width: int, height: int) -> np.ndarray:
    """Sam.postprocess_masks: to 1024 x 1024, without the padding, to the size of the picture."""
    scale = 1024 / max(width, height)
    inside = int(height * scale + 0.5), int(width * scale + 0.5)
    big = resized(resized(logits, 1024, 0), 1024, 1)[: max(1, inside[0]), : max(1, inside[1])]
    return resized(resized(big, height, 0), width, 1)


def smooth(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    coarse = rng.normal(size=(9, 9)) * 6
    return resized(resized(coarse, 256, 0), 256, 1).astype(np.float32)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_upsampling_is_the_reference(page, width, height):
    """BR-33: the mask has exactly the picture's size, and each picture's own padding is cut off."""
    logits = smooth()
    got = page.evaluate(
        """async ([logits, width, height]) => {
          const { Upsampler } = await import("/web/lib/mask.js");
          const up = new Upsampler({ width, height });
          const row = new Float32Array(width), all = [];
          for (let y = 0; y < height; y++) { up.read(Float32Array.from(logits), y, row); all.push([...row]); }
          return all;
        }""",
        [logits.ravel().tolist(), width, height],
    )
    assert np.abs(np.array(got) - reference(logits.astype(float), width, height)).max() < 1e-4


def test_binary_runs_and_measures(page):
    width, height = 97, 61
    got = page.evaluate(
        """async ([logits, width, height]) => {
          const m = await import("/web/lib/mask.js");
          const size = { width, height }, mask = m.binary(Float32Array.from(logits), size, 0.5), counts = m.runs(mask, size);
          return { mask: [...mask], counts, text: m.compress(counts), ...m.measure(mask, size),
            same: m.fromRuns(counts, size).every((v, i) => v === mask[i]) };
        }""",
        [smooth().ravel().tolist(), width, height],
    )
    mask = reference(smooth().astype(float), width, height) > 0.5
    assert np.array_equal(np.array(got["mask"]).reshape(height, width), mask)
    assert got["same"] and sum(got["counts"]) == mask.size and sum(got["counts"][1::2]) == mask.sum() == got["area"]
    ys, xs = np.nonzero(mask)
    box = {"x": xs.min(), "y": ys.min(), "width": np.ptp(xs) + 1, "height": np.ptp(ys) + 1}
    assert got["box"] == box
    flat, counts = mask.T.ravel(), []
    for v in np.split(flat, np.flatnonzero(np.diff(flat)) + 1):
        if not counts and v[0]:
            counts.append(0)
        counts.append(len(v))
    assert got["counts"] == counts
    assert uncompressed(got["text"]) == counts


def uncompressed(text: str) -> list[int]:
    """COCO's rleFrString, from its description."""
    counts: list[int] = []
    at = 0
    while at < len(text):
        x = k = 0
        more = True
        while more:
            c = ord(text[at]) - 48
            x |= (c & 31) << 5 * k
            more = bool(c & 32)
            at, k = at + 1, k + 1
            if not more and c & 16:
                x |= -1 << 5 * k
        counts.append(x + counts[-2] if len(counts) > 2 else x)
    return counts


@pytest.mark.parametrize(("mask", "counts"), [("0000", [4]), ("1111", [0, 4]), ("0110", [1, 2, 1])])
def test_runs_of_plain_masks(page, mask, counts):
    got = page.evaluate(
        """async ([bits]) => {
          const m = await import("/web/lib/mask.js");
          return m.runs(Uint8Array.from(bits), { width: 2, height: 2 });
        }""",
        [[int(b) for b in mask]],
    )
    assert got == counts


def test_places_come_from_the_live_box(page):
    """BR-37: canvas 1000 wide shown at 400 CSS px, scrolled, at any zoom; exact at the corners, clamped beside them."""
    got = page.evaluate("""async () => {
      const { toPicture, boxBetween, atMost } = await import("/web/lib/geometry.js");
      const shown = { left: -120.5, top: 33.25, width: 400, height: 240 }, picture = { width: 1000, height: 600 };
      const corner = (x, y) => toPicture(shown, picture, shown.left + x, shown.top + y);
      return {
        corners: [corner(0, 0), corner(400, 0), corner(0, 240), corner(400, 240)],
        middle: corner(200, 120), beside: corner(900, -50),
        reversed: boxBetween({ x: 9, y: 2 }, { x: 1, y: 7 }), flat: boxBetween({ x: 1, y: 1 }, { x: 50, y: 1 }),
        thin: atMost({ width: 12000, height: 1 }, 2048), small: atMost({ width: 3, height: 2 }, 2048),
      };
    }""")
    assert got["corners"] == [{"x": 0, "y": 0}, {"x": 1000, "y": 0}, {"x": 0, "y": 600}, {"x": 1000, "y": 600}]
    assert got["middle"] == {"x": 500, "y": 300} and got["beside"] == {"x": 1000, "y": 0}
    assert got["reversed"] == {"x0": 1, "y0": 2, "x1": 9, "y1": 7} and got["flat"] is None
    assert got["thin"] == {"width": 2048, "height": 1} and got["small"] == {"width": 3, "height": 2}


OUTLINE = """async ([logits, width, height]) => {
  const m = await import("/web/lib/mask.js"), o = await import("/web/lib/outline.js");
  const size = { width, height }, values = Float32Array.from(logits);
  const rings = o.outlines(values, size, 0, { smallest: 0 });
  return { rings: rings.map((r) => r.map(({ x, y }) => [x, y])), area: rings.reduce((sum, r) => sum + o.ringArea(r), 0),
    pixels: m.measure(m.binary(values, size), size).area };
}"""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("width", "height"), [(200, 120), (60, 90), (3000, 2000)])
def test_outlines_hold_what_the_mask_holds(page, seed, width, height):
    got = page.evaluate(OUTLINE, [smooth(seed).ravel().tolist(), width, height])
    assert got["area"] == pytest.approx(got["pixels"], rel=0.01, abs=20)
    points = np.array([p for ring in got["rings"] for p in ring])
    assert points.min() >= 0 and points[:, 0].max() <= width and points[:, 1].max() <= height
    assert len(points) < 3000


def test_outline_of_everything_is_the_border(page):
    got = page.evaluate(OUTLINE, [[5.0] * 65536, 30, 20])
    assert got["area"] == pytest.approx(600, abs=2) and len(got["rings"]) == 1
    assert page.evaluate(OUTLINE, [[-5.0] * 65536, 30, 20])["rings"] == []


def test_outline_of_a_ring_has_a_hole(page):
    y, x = np.mgrid[:256, :256] + 0.5
    r = np.hypot(x - 128, y - 128)
    ring = (30 - np.abs(r - 70)).astype(np.float32)
    got = page.evaluate(OUTLINE, [ring.ravel().tolist(), 512, 512])
    assert len(got["rings"]) == 2
    assert got["area"] == pytest.approx(np.pi * (200**2 - 80**2), rel=0.01)


def test_paint_has_a_soft_edge_and_an_outline(page):
    got = page.evaluate("""async () => {
      const m = await import("/web/lib/mask.js");
      const logits = Float32Array.from({ length: 65536 }, (_, i) => (i % 256 - 127.6) / 8);   // right half
      const up = new m.Upsampler({ width: 512, height: 512 }), area = up.reach(logits, 0, 4);
      const line = { x: 0, y: 200, width: 512, height: 1 };
      const row = (look) => [...m.paint(up, logits, line, 0, look)].filter((_, i) => i % 4 === 3);
      const plain = row({ colour: [1, 2, 3], opacity: 0.5, outline: 0 });
      const lined = row({ colour: [1, 2, 3], opacity: 0.5, outline: 3 });
      return { area, plain: plain.slice(250, 262), lined: lined.slice(250, 264), ends: [plain[0], plain[511]],
        none: up.reach(new Float32Array(65536).fill(-1), 0, 4) };
    }""")
    assert got["area"]["x"] <= 252 and got["area"]["x"] + got["area"]["width"] == 512 and got["area"]["height"] == 512
    assert got["ends"] == [0, 128] and got["none"] is None
    soft = [a for a in got["plain"] if 0 < a < 128]
    assert 1 <= len(soft) <= 2, got["plain"]
    assert max(got["lined"]) == 255 and got["lined"][-1] == 128
