"""Regions, run lengths, PNG, outlines, duplicates."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from candlewick import image
from candlewick.models.sam import outputs, regions
from candlewick.models.sam.everything import EverythingOptions, grid, stability
from candlewick.models.sam.sizes import Sizes

masks = arrays.arrays(bool, arrays.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9))


@given(masks)
def test_run_lengths_come_back(mask):
    counts = outputs.run_lengths(mask)
    assert np.array_equal(outputs.from_run_lengths(counts, *mask.shape), mask)
    assert outputs.from_coco_string(outputs.coco_string(counts)) == counts


def test_run_lengths_are_cocos():
    mask = np.zeros((3, 4), bool)
    mask[1, 1] = mask[2, 1] = mask[0, 2] = True
    assert outputs.run_lengths(mask) == [4, 3, 5]
    assert outputs.run_lengths(~mask) == [0, 4, 3, 5]
    # pycocotools 2.0: encode(asfortranarray(mask)) of the same
    assert outputs.coco_string([4, 3, 5]) == "435"


@given(st.lists(st.integers(0, 2**31), max_size=12))
def test_coco_strings_of_any_numbers_come_back(counts):
    assert outputs.from_coco_string(outputs.coco_string(counts)) == counts


def test_run_lengths_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="run lengths"):
        outputs.from_run_lengths([3, 3], 2, 2)
    with pytest.raises(ValueError, match="letter"):
        outputs.from_coco_string("\x00")


@given(masks)
def test_outlines_enclose_exactly_the_mask(mask):
    """Even-odd filling of the lines gives the mask back."""
    filled = np.zeros_like(mask)
    for line in outputs.outlines(mask):
        assert len(line) >= 4
        for (x0, y0), (x1, y1) in zip(line, line[1:] + line[:1]):
            assert (x0 == x1) != (y0 == y1)  # along the pixels, and no corner twice
            if x0 == x1:  # a ray to the right from each pixel left of it crosses here
                filled[min(y0, y1) : max(y0, y1), :x0] ^= True
    assert np.array_equal(filled, mask)


def test_svg_holds_every_mask():
    mask = np.zeros((5, 7), bool)
    mask[1:4, 2:6] = True
    mask[2, 3] = False
    text = outputs.svg([mask, ~mask], 7, 5)
    assert text.count("<path") == 2 and 'viewBox="0 0 7 5"' in text
    assert len(re.findall("M", text.split("\n")[1])) == 2  # the hole is a line of its own


def test_png_is_read_by_others():
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    rng = np.random.default_rng(0)
    mask = rng.random((13, 9)) > 0.5
    assert np.array_equal(np.asarray(image.open(io.BytesIO(outputs.mask_png(mask)))) > 0, mask)
    rgb = rng.integers(0, 256, (13, 9, 3), dtype=np.uint8)
    cut = np.asarray(image.open(io.BytesIO(outputs.cutout_png(rgb, np.where(mask, 3.0, -3.0)))))
    assert np.array_equal(cut[:, :, :3], rgb) and np.array_equal(cut[:, :, 3] == 255, mask)


def test_annotations_say_where_and_how_large():
    mask = np.zeros((10, 12), bool)
    mask[2:5, 3:9] = True
    found = outputs.annotation(mask, predicted_iou=0.5)
    assert found["bbox"] == [3, 2, 6, 3] and found["area"] == 18 and found["predicted_iou"] == 0.5
    assert outputs.annotation(~(mask | ~mask))["bbox"] == [0, 0, 0, 0]
    assert json.loads(outputs.to_json(12, 10, [found]))["image"] == {"width": 12, "height": 10}


def test_boxes_that_overlap_give_way_to_better_ones():
    boxes = np.array([[0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30], [0, 0, 4, 4], [5, 5, 5, 5]], float)
    assert regions.nms(boxes, np.array([0.5, 0.9, 0.1, 0.8, 0.7]), 0.7) == [1, 3, 4, 2]


def test_small_pieces_go_and_small_holes_are_filled():
    mask = np.zeros((12, 12), bool)
    mask[1:9, 1:9] = True
    mask[4, 4] = False  # a hole of one
    mask[10, 10] = True  # an island of one
    clean = regions.without_small(mask, 4)
    assert clean[4, 4] and not clean[10, 10] and clean.sum() == 64
    assert np.array_equal(regions.without_small(mask, 0), mask)
    alone = np.zeros((5, 5), bool)
    alone[2, 2] = True
    assert regions.without_small(alone, 10)[2, 2]  # the largest island stays, however small
    corners = np.eye(6, dtype=bool)
    assert [size for size, _ in regions.components(corners)] == [6]  # pixels that touch at corners belong together


@given(masks)
def test_components_are_a_partition(mask):
    seen = np.zeros(mask.shape, int)
    for size, runs in regions.components(mask):
        assert size == sum(stop - start for _, start, stop in runs)
        for row, start, stop in runs:
            seen[row, start:stop] += 1
    assert np.array_equal(seen, mask.astype(int))


def test_everything_words():
    assert grid(2, 8, 4) == [[2, 1], [6, 1], [2, 3], [6, 3]]
    assert stability((3, 2, 1)) == pytest.approx(1 / 3)
    assert stability((0, 0, 0)) == 0.0
    with pytest.raises(ValueError, match="points_per_side"):
        EverythingOptions(points_per_side=0)
    with pytest.raises(ValueError, match="box_nms_thresh"):
        EverythingOptions(box_nms_thresh=1.5)


@pytest.mark.parametrize("size", [(1800, 1200), (90, 61), (33, 200), (1, 1), (1, 70), (4000, 100), (640, 640)])
@pytest.mark.parametrize("seed", range(3))
def test_masks_are_measured_as_if_they_were_made(size, seed):
    width, height = size
    y, x = np.mgrid[:64, :64] / 64
    rng = np.random.default_rng(seed)
    a, b, c = rng.uniform(2, 25, 3)
    logits = (8 * np.sin(a * x + b * y) * np.cos(c * y) + rng.normal(0, 0.3, (64, 64)) - 2 * seed).astype(np.float32)
    made = image.upsample(logits, width, height, 256)
    got = Sizes(width, height, 256, 64).measure(logits, (-1.0, 0.0, 1.0))
    wanted = [int((made > t).sum()) for t in (-1, 0, 1)]
    assert np.abs(np.array(got.counts) - wanted).max() <= 2 + made.size // 100_000  # float32 sums in another order
    rows, columns = np.nonzero(made > 0)
    box = [columns.min(), rows.min(), columns.max(), rows.max()] if len(rows) else [0] * 4
    assert np.abs(got.box() - box).max() <= 1


def test_a_mask_of_nothing_and_one_of_everything():
    sizes = Sizes(300, 200, 256, 64)
    assert sizes.measure(np.full((64, 64), -9, np.float32), (0.0,)).counts == (0,)
    whole = sizes.measure(np.full((64, 64), 9, np.float32), (0.0,))
    assert whole.counts == (60_000,) and whole.box().tolist() == [0, 0, 299, 199]
