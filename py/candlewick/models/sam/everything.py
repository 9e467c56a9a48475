"""Every object of a picture: a grid of points, three masks each, and of these the ones that are sure, steady and new.

Kirillov et al. 2023, appendix B, "Automatic mask generation", on one crop, the whole picture. Steadiness, boxes and clean-up
are measured on the decoder's own grid of logits (a quarter of the model's square), not at the size of the picture.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from candlewick import image
from candlewick.executors import Stopped
from candlewick.models.sam import regions

if TYPE_CHECKING:
    from candlewick.models.sam.predictor import Segmenter


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
            raise ValueError(f"points_per_side: wanted 1 to 128, got {self.points_per_side}")
        for name in ("pred_iou_thresh", "stability_score_thresh", "box_nms_thresh"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: wanted 0 to 1, got {getattr(self, name)}")
        if not (self.stability_score_offset >= 0 and self.min_mask_region_area >= 0):
            raise ValueError("stability_score_offset and min_mask_region_area: wanted numbers from 0 on")


@dataclass
class Found:
    """Masks that passed, one entry a mask. Logits are kept in 16 bits: there may be hundreds until duplicates are gone."""

    logits: list[np.ndarray] = field(default_factory=list)  # (m, m)
    iou: list[float] = field(default_factory=list)
    stability: list[float] = field(default_factory=list)
    points: list[list[float]] = field(default_factory=list)
    boxes: list[np.ndarray] = field(default_factory=list)  # on the grid of logits


async def segment(
    segmenter: Segmenter, options: EverythingOptions, stop: Callable[[], bool]
) -> AsyncIterator[dict[str, Any]]:
    """Events: progress (done and total points), then mask for each object, large ones first, then one result.

    mask: logits (m, m) float32, iou, stability, point [x, y]. When stop says yes the masks found so far come at once, and the
    result has "stopped": True.
    """
    began = time.perf_counter()
    picture = segmenter._picture()
    points = grid(options.points_per_side, picture.width, picture.height)
    width, height = _seen(segmenter)
    found, stopped = Found(), False
    for done, point in enumerate(points):
        yield {"event": "progress", "done": done, "total": len(points)}
        if stop():
            stopped = True
            break
        if segmenter.picture is not picture:
            raise ValueError("another picture was set while everything was being segmented; start again")
        try:
            answer = await segmenter.predict([point], [1], multimask=True)
        except Stopped:
            stopped = True
            break
        _keep(found, answer, point, options, width, height)
        await asyncio.sleep(0)
    yield {"event": "progress", "done": len(points), "total": len(points)}
    masks = _distinct(found, options, width, height, picture.width * picture.height)
    for mask in masks:
        yield {"event": "mask", **mask}
    ms = (time.perf_counter() - began) * 1000
    yield {"event": "result", "result": {"masks": len(masks), "stopped": stopped, "timings": {"total_ms": ms}}}


def grid(per_side: int, width: int, height: int) -> list[list[float]]:
    """Points in the middle of per_side x per_side equal fields of a picture."""
    side = (np.arange(per_side) + 0.5) / per_side
    return [[float(x * width), float(y * height)] for y in side for x in side]


def _seen(segmenter: Segmenter) -> tuple[int, int]:
    """The part of the grid of logits, width and height, that the picture covers."""
    picture, dims = segmenter.picture, segmenter.model.dims
    fit = image.fitted(picture.width, picture.height, dims.image_size)
    return tuple(max(1, -(-n * 4 * dims.grid // dims.image_size)) for n in fit)


def _keep(
    found: Found, answer: dict[str, Any], point: list[float], options: EverythingOptions, width: int, height: int
) -> None:
    """Of three masks for a point, remember those that are sure and steady."""
    for logits, iou in zip(answer["masks"], answer["iou"]):
        if iou <= options.pred_iou_thresh:
            continue
        seen = logits[:height, :width]
        steady = stability(seen, options.stability_score_offset)
        if steady < options.stability_score_thresh or not (seen > 0).any():
            continue
        found.logits.append(logits.astype(np.float16))
        found.iou.append(float(iou))
        found.stability.append(steady)
        found.points.append(point)
        found.boxes.append(regions.box(seen > 0))


def stability(logits: np.ndarray, offset: float) -> float:
    """How much of the mask stays when the threshold moves by the offset: smaller mask / larger mask."""
    larger = int((logits > -offset).sum())
    return int((logits > offset).sum()) / larger if larger else 0.0


def _distinct(found: Found, options: EverythingOptions, width: int, height: int, area: int) -> list[dict[str, Any]]:
    """Without duplicates, cleaned up, large ones first."""
    if not found.boxes:
        return []
    smallest = options.min_mask_region_area * width * height / area  # in positions of the grid
    kept = regions.nms(np.stack(found.boxes), np.array(found.iou), options.box_nms_thresh)
    cleaned, changed = [], []
    for i in kept:
        logits = found.logits[i].astype(np.float32)
        seen = logits[:height, :width]
        mask = regions.without_small(seen > 0, smallest)
        flips = mask != (seen > 0)
        seen[flips] = np.where(mask, 1.0, -1.0)[flips] * np.maximum(np.abs(seen[flips]), 1.0)
        cleaned.append(logits)
        changed.append(bool(flips.any()))
    boxes = np.stack([regions.box(logits[:height, :width] > 0) for logits in cleaned])
    again = regions.nms(boxes, np.array([0.0 if c else 1.0 for c in changed]), options.box_nms_thresh)
    sizes = {j: int((cleaned[j][:height, :width] > 0).sum()) for j in again}
    return [{"logits": cleaned[j], "iou": found.iou[kept[j]], "stability": found.stability[kept[j]],
             "point": found.points[kept[j]]} for j in sorted(again, key=lambda j: -sizes[j]) if sizes[j]]
