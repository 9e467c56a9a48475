"""A picture, then any number of prompts -> masks. The picture is encoded once; every prompt is answered from that.

All places are in pixels of the picture, x to the right and y down, (0, 0) the middle of the upper left pixel. Places beyond the
picture are moved to its nearest pixel, corners of a box are put in order, a box thinner than a pixel becomes one pixel wide.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from candlewick import image
from candlewick.executors import Executor, Progress
from candlewick.models.sam import everything
from candlewick.models.sam.programs import LoadedModel, decoder, entry, halves, load_model
from candlewick.models.sam.prompt_encoder import BACKGROUND, FOREGROUND, LOWER_RIGHT, NOT_A_POINT, UPPER_LEFT
from candlewick.options import OptionError
from candlewick.weights.load import Checkpoint


@dataclass(frozen=True)
class Picture:
    """The size of the picture that was set."""

    width: int
    height: int


class Segmenter:
    """A loaded checkpoint on an executor, and at most one picture."""

    def __init__(self, model: LoadedModel, executor: Executor) -> None:
        self.model, self.executor = model, executor
        self.picture: Picture | None = None

    @classmethod
    async def load(cls, checkpoint: Checkpoint, executor: Executor, on_progress: Progress | None = None) -> Segmenter:
        """Reads, checks, traces and loads. Raises ValueError in words for files that do not fit each other."""
        model = await load_model(checkpoint)
        await executor.load(model.programs, model.weights, on_progress)
        await executor.run("prepare", {}, ())
        return cls(model, executor)

    def describe(self) -> dict[str, Any]:
        """Sizes of the checkpoint and of the memory it takes."""
        dims, side = self.model.dims, 4 * self.model.dims.grid
        parameters = sum(int(np.prod(p.shape)) for p in self.model.network.parameters().values())
        return {"family": "sam", "dims": {"image_size": dims.image_size, "grid": dims.grid, "d": dims.decoder.d,
                                          "masks": dims.decoder.n_masks, "mask_size": side},
                "parameters": parameters, "entries": list(self.executor.programs), **self.executor.describe()}

    # ---- the picture ------------------------------------------------------------------------------------------------

    async def set_image(self, picture: np.ndarray) -> dict[str, Any]:
        """picture (height, width[, channels]), 8 or 16 bits (see image.to_rgb) -> width, height, timings in ms."""
        began = time.perf_counter()
        rgb = image.to_rgb(picture)
        dims = self.model.dims
        pixels = image.model_pixels(rgb, dims.image_size, dims.pixel_mean, dims.pixel_std)
        ready = time.perf_counter()
        self.picture = None  # an encoder that is stopped leaves nothing that could be asked
        await self.executor.run("encode", {"pixels": pixels}, ())
        self.picture = Picture(rgb.shape[1], rgb.shape[0])
        done = time.perf_counter()
        return {"width": self.picture.width, "height": self.picture.height,
                "timings": {"preprocess_ms": (ready - began) * 1000, "encode_ms": (done - ready) * 1000}}

    async def embedding(self) -> np.ndarray:
        """The embedding of the picture, (grid, grid, d) float32: all that set_embedding needs."""
        self._picture()
        return (await self.executor.run("recall", {}))["embedding"][0].copy()  # of numpy's executor it is the state itself

    async def set_embedding(self, embedding: np.ndarray, width: int, height: int) -> None:
        """What `embedding` gave for a picture of this size: prompts are about it from now on."""
        dims = self.model.dims
        wanted = (dims.grid, dims.grid, dims.decoder.d)
        embedding = np.asarray(embedding, np.float32)
        if embedding.shape != wanted or not np.isfinite(embedding).all():
            raise ValueError(f"embedding: wanted finite numbers of shape {list(wanted)}, got {list(embedding.shape)}; encode "
                             "the picture again")
        if width < 1 or height < 1:
            raise ValueError(f"embedding: a picture has at least one pixel, got {width} x {height}")
        self.picture = None
        await self.executor.run("remember", {"embedding": embedding[None]}, ())
        self.picture = Picture(int(width), int(height))

    def _picture(self) -> Picture:
        if self.picture is None:
            raise ValueError("no picture is set: call set_image before asking for masks")
        return self.picture

    async def prepare(self, n_tokens: int, with_mask: bool) -> str:
        """The decoder for prompts of n_tokens is traced and loaded, if it is not yet; -> its entry."""
        name = entry(n_tokens, with_mask)
        if name not in self.executor.programs:
            await self.executor.load(decoder(self.model.network, self.model.memory, n_tokens, with_mask), self.model.weights)
        return name

    # ---- prompts ----------------------------------------------------------------------------------------------------

    async def predict(
        self,
        points: Sequence[Sequence[float]] | np.ndarray = (),
        labels: Sequence[int] | np.ndarray = (),
        box: Sequence[float] | np.ndarray | None = None,
        mask_input: np.ndarray | None = None,
        multimask: bool | None = None,
    ) -> dict[str, Any]:
        """points (n, 2) with labels (n,), 1 in the object, 0 not; box x0, y0, x1, y1; mask_input (m, m): logits of an answer.

        -> masks (k, m, m) float32 logits of the model's whole square (see `upsample`), iou (k,) as the model guesses, timings.
        multimask False: the one mask for a clear prompt; True: the three for a vague one; None: all four in this order.
        """
        picture = self._picture()
        began = time.perf_counter()
        tokens, kinds = self.tokens(picture, points, labels, box)
        inputs = {"points": tokens, "labels": kinds}
        if mask_input is not None:
            side = 4 * self.model.dims.grid
            mask = np.asarray(mask_input, np.float32)
            if mask.size != side * side or not np.isfinite(mask).all():
                raise ValueError(f"mask_input: wanted {side} x {side} finite logits of an answer, got {list(mask.shape)}")
            inputs["mask"] = mask.reshape(1, side, side)
        answer = await self.executor.run(await self.prepare(len(tokens), mask_input is not None), inputs)
        kept = {None: slice(None), True: slice(1, None), False: slice(0, 1)}[multimask]
        ms = (time.perf_counter() - began) * 1000
        return {"masks": answer["masks"][kept], "iou": answer["iou"][kept], "timings": {"decode_ms": ms}}

    async def look(self, point: Sequence[float]) -> np.ndarray:
        """How good the model thinks its three masks for a vague point are, (3,); `looked` gives them."""
        if "look" not in self.executor.programs:
            await self.executor.load(halves(self.model.network, self.model.memory), self.model.weights)
        tokens, kinds = self.tokens(self._picture(), [point], [FOREGROUND], None)
        return (await self.executor.run("look", {"points": tokens, "labels": kinds}))["iou"][1:]

    async def looked(self) -> np.ndarray:
        """Logits (3, m, m) of the point that was looked at last."""
        return (await self.executor.run("masks", {}))["masks"][1:]

    def tokens(self, picture: Picture, points: Any, labels: Any, box: Any) -> tuple[np.ndarray, np.ndarray]:
        """A prompt -> places in the model's square (n, 2) and labels (n,), as the reference makes them.

        Points first; then the two corners of the box, or, without a box, one token that is not a point.
        """
        points = as_points(points)
        labels = numbers(labels).reshape(-1)
        if len(points) != len(labels):
            raise OptionError("{labels}: wanted one for each of {n} points, got {m}", n=len(points), m=len(labels))
        if not np.isin(labels, (BACKGROUND, FOREGROUND)).all():
            raise OptionError("{labels}: wanted 1 (in the object) and 0 (not), got {got}", got=sorted(set(labels.tolist())))
        if not len(points) and box is None:
            raise ValueError("predict: wanted at least one point or a box")
        corners = np.zeros((0, 2)) if box is None else as_box(box)
        places = np.clip(np.concatenate([points, corners]), 0, [picture.width - 1, picture.height - 1])
        if box is not None:
            places[-1] = np.maximum(places[-1], np.minimum(places[-2] + 1, [picture.width - 1, picture.height - 1]))
        fit = image.fitted(picture.width, picture.height, self.model.dims.image_size)
        places *= np.array(fit) / (picture.width, picture.height)
        ends = [NOT_A_POINT] if box is None else [UPPER_LEFT, LOWER_RIGHT]
        if box is None:
            places = np.concatenate([places, np.zeros((1, 2))])
        return places.astype(np.float32), np.concatenate([labels, ends]).astype(np.float32)

    def upsample(self, logits: np.ndarray) -> np.ndarray:
        """Logits (..., m, m) of an answer -> (..., height, width) of the picture; above 0 is in the object."""
        picture = self._picture()
        return image.upsample(logits, picture.width, picture.height, self.model.dims.image_size)

    async def segment_everything(
        self, options: everything.EverythingOptions | None = None, stop: Callable[[], bool] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Every object of the picture, found from a grid of points -> events: progress, mask, one result (everything.py)."""
        async for event in everything.segment(self, options or everything.EverythingOptions(), stop or (lambda: False)):
            yield event


def numbers(given: Any) -> np.ndarray:
    """-> float64, of any shape; empty for what holds anything else, or rows of different lengths."""
    try:
        return np.asarray(given, np.float64)
    except (TypeError, ValueError):
        return np.full((1, 1), np.nan)


def as_points(points: Any) -> np.ndarray:
    """-> (n, 2). Raises ValueError for anything but a list of x, y."""
    places = numbers(points)
    if not places.size:
        return np.zeros((0, 2))
    if places.ndim != 2 or places.shape[1] != 2 or not np.isfinite(places).all():
        raise OptionError("{points}: wanted a list of x, y in pixels, such as [[400, 300]], got {got}", got=str(points)[:80])
    return places


def as_box(box: Any) -> np.ndarray:
    """x0, y0, x1, y1 in any order of the corners -> ((left, top), (right, bottom)). Raises ValueError for anything else."""
    corners = numbers(box)
    if corners.size != 4 or not np.isfinite(corners).all():
        raise OptionError("{box}: wanted x0, y0, x1, y1 in pixels, got {got}", got=str(box)[:80])
    corners = corners.reshape(2, 2)
    return np.stack([corners.min(axis=0), corners.max(axis=0)])


def check_inside(points: Any, box: Any, width: int, height: int) -> None:
    """Raises ValueError that names a point, or the box, that does not lie in a picture of this size.

    For those who write numbers: `Segmenter.predict` moves places to the nearest pixel, as a hand that draws in a page wants.
    """
    size = f"outside the picture, which is {width} x {height} pixels: x goes from 0 to {width - 1}, y from 0 to {height - 1}"
    for x, y in as_points(points):
        if not (0 <= x < width and 0 <= y < height):
            raise OptionError("{points} {x:g},{y:g}: {size}", x=x, y=y, size=size)
    if box is None:
        return
    corners = as_box(box)
    if (corners < 0).any() or (corners > (width, height)).any():
        raise OptionError("{box} {given}: {size}", given=",".join(f"{n:g}" for n in corners.ravel()), size=size)


def best(answer: dict[str, Any], n_points: int, has_box: bool) -> int:
    """Which of all four masks to show first: the single one for a clear prompt, else the best guess among the vague ones.

    A box, or more than one point, is clear. Without all four the best guess is taken.
    """
    iou = answer["iou"]
    if len(iou) < 2:
        return 0
    if has_box or n_points > 1:
        return 0 if len(iou) == 4 else int(np.argmax(iou))
    start = 1 if len(iou) == 4 else 0
    return start + int(np.argmax(iou[start:]))
