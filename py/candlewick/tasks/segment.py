"""set_image, predict, everything, embedding, prepare: a picture of the page, then prompts about it -> masks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from candlewick import executors
from candlewick.models.sam import EverythingOptions, Segmenter
from candlewick.models.sam.programs import is_sam
from candlewick.tasks import TURN_SECONDS, BadInput, Cancelled, Desk
from candlewick.weights.load import Checkpoint, Weights


class Segmentation:
    """A loaded segmentation model and the page's name of the picture that is set."""

    methods = ("set_image", "predict", "everything", "embedding", "prepare")
    family = "sam"
    usual = {"wide": 1.0}  # a picture; clicks are quick everywhere
    wanted = "a folder with config.json (model_type sam) and safetensors, or a .pt or .pth file of MobileSAM or SAM alone"

    def __init__(self, segmenter: Segmenter) -> None:
        self._segmenter = segmenter
        self._id: str | None = None

    @classmethod
    async def recognises(cls, checkpoint: Checkpoint) -> bool:
        """Whether load() may be called with this checkpoint. Reads no weights."""
        return await is_sam(checkpoint)

    @classmethod
    async def load(
        cls, checkpoint: Checkpoint, executor: executors.Executor, on_progress: Callable[..., None]
    ) -> Segmentation:
        segmenter = await Segmenter.load(checkpoint, executor, on_progress)
        # a mask as a prompt reads weights of its own, and the files are closed when loading is over
        await segmenter.prepare(2, True)
        return cls(segmenter)

    @property
    def weights(self) -> Weights:
        return self._segmenter.model.weights

    def describe(self) -> dict[str, Any]:
        return self._segmenter.describe()

    def forget(self) -> None:
        """Others have used the model's memory: no picture is set."""
        self._id = None

    async def set_image(self, params: Mapping[str, Any], data: Any, desk: Desk) -> dict[str, Any]:
        """params: {id, width, height}; data: {rgba} bytes (height, width, 4), or {embedding} float32 (64, 64, 256)."""
        width, height = int(params["width"]), int(params["height"])
        self._id = None  # also when it fails: the picture before is gone
        if data.embedding is not None:
            dims = self._segmenter.model.dims
            values = np.frombuffer(data.embedding.to_bytes(), np.float32)
            shape = (dims.grid, dims.grid, dims.decoder.d)
            if values.size != np.prod(shape):
                raise BadInput(f"set_image: an embedding is {np.prod(shape)} numbers, got {values.size}; send the pixels")
            start = time.perf_counter()
            await self._segmenter.set_embedding(values.reshape(shape), width, height)
            timings = {"restore_ms": (time.perf_counter() - start) * 1000}
        else:
            pixels = np.frombuffer(data.rgba.to_bytes(), np.uint8)
            if width < 1 or height < 1 or pixels.size != width * height * 4:
                raise BadInput(f"set_image: {width} x {height} pixels take {width * height * 4} bytes, got {pixels.size}")
            timings = (await self._segmenter.set_image(pixels.reshape(height, width, 4)[..., :3]))["timings"]
        self._id = params["id"]
        return {"id": self._id, "width": width, "height": height, "timings": timings}

    async def predict(self, params: Mapping[str, Any], data: Any, desk: Desk) -> dict[str, Any]:
        """params: {id, points, labels, box}; data: {mask_input}, logits or None. The answer's masks are attached."""
        self._is_set(params["id"])
        mask = None if data.mask_input is None else np.frombuffer(data.mask_input.to_bytes(), np.float32)
        if mask is not None:
            side = 4 * self._segmenter.model.dims.grid
            if mask.size != side * side:
                raise BadInput(f"predict: mask_input is {side * side} logits, got {mask.size}")
            mask = mask.reshape(side, side)
        answer = await self._segmenter.predict(
            params.get("points") or (), params.get("labels") or (), params.get("box"), mask, None
        )
        desk.attach("masks", answer["masks"])
        return {"id": self._id, "iou": [float(value) for value in answer["iou"]], "timings": answer["timings"]}

    async def everything(self, params: Mapping[str, Any], data: Any, desk: Desk) -> dict[str, Any]:
        """params: {id, options}; progress and a region for each object on the way. Stopped: the regions found come first."""
        self._is_set(params["id"])
        try:
            options = EverythingOptions(**(params.get("options") or {}))
        except TypeError as error:
            known = ", ".join(EverythingOptions.__dataclass_fields__)
            raise BadInput(f"options: {error}; known are {known}") from error
        result: dict[str, Any] = {}
        turned = time.perf_counter()
        async for event in self._segmenter.segment_everything(options, desk.cancelled):
            if event["event"] == "result":
                result = event["result"]
            elif event["event"] == "mask":
                desk.attach("logits", event["logits"])
                facts = {key: float(event[key]) for key in ("iou", "stability")}
                desk.notify({"event": "region", "point": [float(place) for place in event["point"]], **facts})
            else:
                desk.notify({"event": "progress", "stage": "everything", "unit": "steps", "done": event["done"],
                             "total": event["total"]})
            if time.perf_counter() - turned > TURN_SECONDS:
                await asyncio.sleep(0)
                turned = time.perf_counter()
        if result.get("stopped"):
            raise Cancelled(result)
        return result

    async def embedding(self, params: Mapping[str, Any], data: Any, desk: Desk) -> dict[str, Any]:
        """params: {id}. The picture's embedding is attached; set_image takes it in place of pixels."""
        self._is_set(params["id"])
        desk.attach("embedding", await self._segmenter.embedding())
        return {"id": self._id}

    async def prepare(self, params: Mapping[str, Any], data: Any, desk: Desk) -> dict[str, Any]:
        """params: {tokens, mask}: be ready for prompts of so many tokens (a point is one, a box two, and one more where there
        is no box), with a mask or without. The first of its kind would wait for that; answers the milliseconds it took."""
        began = time.perf_counter()
        tokens = params.get("tokens")
        if not isinstance(tokens, int) or not 2 <= tokens <= 64:
            raise BadInput(f"prepare: tokens is a number from 2 to 64, got {tokens!r}")
        await self._segmenter.prepare(tokens, bool(params.get("mask")))
        return {"ms": (time.perf_counter() - began) * 1000}

    def _is_set(self, wanted: Any) -> None:
        if self._id is None or wanted != self._id:
            raise BadInput("the picture asked about is not the one that is set; set it again", {"image": self._id})
