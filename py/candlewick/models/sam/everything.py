"""Every object of a picture: a grid of points, three masks each, and of these the ones that are sure, steady and new.

Kirillov et al. 2023, appendix B, "Automatic mask generation", on one crop, the whole picture. As in the reference, steadiness
and boxes are measured at the size of the picture (sizes.py says how that costs little). Small holes and islands are cleaned up
on the decoder's own grid of logits (a quarter of the model's square), since what is given out are logits.

One point a run: nearly all of the decoder's time goes into the image as that one prompt changes it, so that more prompts in a
run would save a twentieth. What saves more: a point whose scores are too low ends after half a run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from candlewick.executors import Stopped
from candlewick.models.sam import regions
from candlewick.models.sam.sizes import Sizes
from candlewick.options import OptionError

if TYPE_CHECKING:
    from candlewick.models.sam.predictor import Segmenter


ROUGHLY = 0.1
"""A mask whose stability on the grid of logits is lower than wanted by more than this is not measured exactly."""


@dataclass(frozen=True)
class EverythingOptions:
    """What a person may choose. The defaults are those of the reference, but for min_mask_region_area."""

    points_per_side: int = 32
    pred_iou_thresh: float = 0.88  # the model's own guess must be better
    stability_score_thresh: float = 0.95  # and the mask must not change much
    stability_score_offset: float = 1.0  # when the threshold of the logits is moved up and down by this
    box_nms_thresh: float = 0.7  # of two whose boxes overlap more, the surer stays
    min_mask_region_area: float = 100.0  # holes and islands of fewer pixels of the picture are filled and removed

    def __post_init__(self) -> None:
        if not 1 <= self.points_per_side <= 128:
            raise OptionError("{points_per_side}: wanted 1 to 128, got {got}", got=self.points_per_side)
        for name in ("pred_iou_thresh", "stability_score_thresh", "box_nms_thresh"):
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"{{{name}}}: wanted 0 to 1, got {{got}}", got=getattr(self, name))
        if not (self.stability_score_offset >= 0 and self.min_mask_region_area >= 0):
            raise OptionError("{stability_score_offset} and {min_mask_region_area}: wanted numbers from 0 on, got {offset} "
                              "and {area}", offset=self.stability_score_offset, area=self.min_mask_region_area)


@dataclass
class Found:
    """Masks that passed, one entry a mask. Logits are kept in 16 bits: there may be hundreds until duplicates are gone."""

    logits: list[np.ndarray] = field(default_factory=list)  # (m, m)
    iou: list[float] = field(default_factory=list)
    stability: list[float] = field(default_factory=list)
    points: list[list[float]] = field(default_factory=list)
    boxes: list[np.ndarray] = field(default_factory=list)  # in pixels of the picture


async def segment(
    segmenter: Segmenter, options: EverythingOptions, stop: Callable[[], bool]
) -> AsyncIterator[dict[str, Any]]:
    """Events: progress (done and total points), then mask for each object, large ones first, then one result.

    mask: logits (m, m) float32, iou, stability, area in pixels, point [x, y]. When stop says yes the masks found so far come at
    once, and the result has "stopped": True.
    """
    began = time.perf_counter()
    picture = segmenter._picture()
    points = grid(options.points_per_side, picture.width, picture.height)
    sizes = Sizes(picture.width, picture.height, segmenter.model.dims.image_size, 4 * segmenter.model.dims.grid)
    found, stopped = Found(), False
    for done, point in enumerate(points):
        yield {"event": "progress", "done": done, "total": len(points)}
        if stop():
            stopped = True
            break
        if segmenter.picture is not picture:
            raise ValueError("another picture was set while everything was being segmented; start again")
        try:
            iou = await segmenter.look(point)
            if (iou > options.pred_iou_thresh).any():
                _keep(found, await segmenter.looked(), iou, point, options, sizes)
        except Stopped:
            stopped = True
            break
        await asyncio.sleep(0)
    if not stopped:
        yield {"event": "progress", "done": len(points), "total": len(points)}
    masks = _distinct(found, options, sizes)
    for mask in masks:
        yield {"event": "mask", **mask}
    ms = (time.perf_counter() - began) * 1000
    yield {"event": "result", "result": {"masks": len(masks), "stopped": stopped, "timings": {"total_ms": ms}}}


def grid(per_side: int, width: int, height: int) -> list[list[float]]:
    """Points in the middle of per_side x per_side equal fields of a picture."""
    side = (np.arange(per_side) + 0.5) / per_side
    return [[float(x * width), float(y * height)] for y in side for x in side]


def _keep(
    found: Found, masks: np.ndarray, scores: np.ndarray, point: list[float], options: EverythingOptions, sizes: Sizes
) -> None:
    """Of the masks for a point, remember those that are sure and steady."""
    offset = options.stability_score_offset
    for logits, iou in zip(masks, scores):
        if iou <= options.pred_iou_thresh:
            continue
        thresholds = (-offset, 0.0, offset)
        if stability(sizes.roughly(logits, thresholds)) < options.stability_score_thresh - ROUGHLY:
            continue
        measured = sizes.measure(logits, thresholds)
        steady = stability(measured.counts)
        if steady < options.stability_score_thresh or not measured.counts[1]:
            continue
        found.logits.append(logits.astype(np.float16))
        found.iou.append(float(iou))
        found.stability.append(steady)
        found.points.append(point)
        found.boxes.append(measured.box())


def stability(counts: Sequence[int]) -> float:
    """How much of the mask stays when the threshold moves up and down: smallest mask / largest mask. counts: of pixels above
    the lower, usual and upper threshold."""
    return counts[2] / counts[0] if counts[0] else 0.0


def _distinct(found: Found, options: EverythingOptions, sizes: Sizes) -> list[dict[str, Any]]:
    """Without duplicates, cleaned up, large ones first."""
    if not found.boxes:
        return []
    kept = regions.nms(np.stack(found.boxes), np.array(found.iou), options.box_nms_thresh)
    made = []
    for i in kept:
        logits = found.logits[i].astype(np.float32)
        changed = _clean(logits, options.min_mask_region_area, sizes)
        made.append((i, logits, changed, sizes.measure(logits, (0.0,))))
    if options.min_mask_region_area > 0:  # boxes may have changed; of two alike, the one that was whole before stays
        again = regions.nms(np.stack([m.box() for *_, m in made]), np.array([0.0 if c else 1.0 for _, _, c, _ in made]),
                            options.box_nms_thresh)
        made = [made[j] for j in again]
    made.sort(key=lambda each: -each[3].counts[0])
    return [{"logits": logits, "iou": found.iou[i], "stability": found.stability[i], "point": found.points[i],
             "area": measured.counts[0]} for i, logits, _, measured in made if measured.counts[0]]


def _clean(logits: np.ndarray, smallest: float, sizes: Sizes) -> bool:
    """Fills holes and removes islands of fewer than `smallest` pixels of the picture, in place. -> whether there were any"""
    seen = logits[: sizes.seen[1], : sizes.seen[0]]
    mask = seen > 0
    clean = regions.without_small(mask, smallest * sizes.seen[0] * sizes.seen[1] / (sizes.width * sizes.height))
    flips = clean != mask
    seen[flips] = np.where(clean, 1.0, -1.0)[flips] * np.maximum(np.abs(seen[flips]), 1.0)
    return bool(flips.any())
