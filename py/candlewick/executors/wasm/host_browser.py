"""The kernel host of a page: Python's side of `KernelHost` in `workers/wasm.js`.

Method for method the same as `host_wasmtime.Host`. What crosses is numbers, JSON text, and views of kernel memory that are
copied in or out at once. Only the views of small places, which every step writes and reads, are kept until memory grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..lending import lent

SMALL_BYTES = 1 << 16


class Host:
    """js: a KernelHost with its threads running. Closing it is the business of whoever made that."""

    def __init__(self, js: Any) -> None:
        self._js = js
        self.heap_base, self.free_base = int(js.heapBase), int(js.freeBase)
        self.threads, self.threads_asked = int(js.threads), int(js.threadsAsked)
        self.relaxed, self.shared = bool(js.relaxed), bool(js.shared)
        self.reason = str(js.reason)
        self._views: dict[tuple[int, int], Any] = {}
        self.sources: dict[str, Any] = {}  # file name -> BrowserSource; set by the executor before load_weights

    def close(self) -> None:
        """Ends the threads and lets go of the memory; the host cannot be used afterwards."""
        self._views.clear()
        self._js.dispose()

    def reserve(self, end: int) -> int:
        """Bytes [0, end) exist afterwards, new ones as zeros, or the JavaScript side throws out_of_memory with the numbers.

        -> how many there were before.
        """
        self._views.clear()  # they are of the memory as it was
        return int(self._js.reserve(end))

    def write(self, address: int, data: Any) -> None:
        """Copies an array or bytes to `address`."""
        if type(data) is not bytes:
            data = memoryview(np.ascontiguousarray(data) if isinstance(data, np.ndarray) else data).cast("B")
        if len(data):
            self._view(address, len(data)).assign(data)

    def read(self, address: int, n_bytes: int) -> bytes:
        """A copy of n_bytes from `address`."""
        return self._view(address, n_bytes).to_bytes()

    def _view(self, address: int, n_bytes: int) -> Any:
        if n_bytes > SMALL_BYTES:
            return self._js.view(address, n_bytes)
        view = self._views.get((address, n_bytes))
        if view is None:
            view = self._js.view(address, n_bytes)
            if len(self._views) < 64:
                self._views[address, n_bytes] = view
        return view

    def run(self, code: int, code_end: int) -> int:
        """Runs instructions on all threads and blocks: 0 done, 1 stopped. Raises RuntimeError when a kernel failed."""
        status = self._js.run(code, code_end)
        if status > 1:
            raise RuntimeError(f"a kernel failed, the results of this run are lost: {self._js.failure}")
        return status

    def pack(self, kind: int, src: int, src_dtype: int, dst: int, row0: int, rows: int, n: int, k: int, taps: int,
             dst_dtype: int) -> None:
        """The kernels' packing function on bytes that are in kernel memory already."""
        self._js.pack(kind, src, src_dtype, dst, row0, rows, n, k, taps, dst_dtype)

    async def load_weights(self, recipe: str, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Streams weights by a recipe (see wasm.js) from the files of `sources`.

        Bytes of files do not pass through here; those of a source made in Python do, a chunk at a time.
        """
        with lent(self._js, self.sources):
            await self._js.loadWeights(recipe, on_progress)
