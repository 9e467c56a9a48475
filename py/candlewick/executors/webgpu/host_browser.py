"""The device of a page: Python's side of `GpuHost` in `workers/webgpu.js`; method for method the same as `host_wgpu.Host`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ..lending import lent


class Host:
    """js: a GpuHost. Ending its device is the engine worker's business."""

    def __init__(self, js: Any) -> None:
        self._js = js
        self.adapter = js.about.to_py()
        self.limits: dict[str, int] = js.limits.to_py()
        self.features: set[str] = set(self.adapter["features"])
        self.sources: dict[str, Any] = {}  # file name -> BrowserSource; set by the executor before load_weights

    @property
    def bytes(self) -> int:
        return int(self._js.bytes)

    def buffer(self, n_bytes: int) -> int:
        """A storage buffer of zeros, or the JavaScript side throws out_of_memory with the numbers."""
        return self._js.buffer(n_bytes)

    def write(self, buffer: int, offset: int, data: bytes) -> None:
        if data:
            self._js.stage(len(data)).assign(data)
            self._js.write(buffer, offset, len(data))

    async def settle(self) -> None:
        """Whether the buffers made so far are really there; the JavaScript side throws out_of_memory if not."""
        await self._js.settle()

    async def load_weights(self, recipe: str, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Streams weights by a recipe (see webgpu.js) from the files of `sources`; their bytes do not pass through here."""
        with lent(self._js, self.sources):
            await self._js.loadWeights(recipe, on_progress)

    @property
    def gpu_ms(self) -> float | None:
        """What the device took for the last run, where it tells."""
        return self._js.gpuMs

    async def prepare(self, plan: str, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Compile the pipelines of a Plan and make its bind groups."""
        await self._js.prepare(plan, on_progress)

    async def run(self, entry: str, first: int, last: int, reads: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Dispatches [first, last), then copies of what is to be read, in one submit."""
        data = (await self._js.run(entry, first, last, json.dumps(reads))).to_bytes()
        found, at = [], 0
        for _, _, n in reads:
            found.append(data[at : at + n])
            at += n
        return found

    def release(self, first: int = 0) -> None:
        """Give the buffers from number `first` on back; from 0, everything of all Plans."""
        self._js.release(first)
