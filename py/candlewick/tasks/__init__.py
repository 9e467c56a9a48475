"""What the engine worker can be asked for, one file a task: requests of the page in, answers of a model family out.

A task is loaded with its model and has one method for each request of workers/protocol.js that it serves. A method gets the
parameters as plain values, `data` (JavaScript objects: sound, pictures, masks) and the Desk it reports to. Two things that a
task may have: `load_options`, parameters of a load request that its load() takes; forget(), for when others ran its entries.
`usual` is how the time of a usual request on WebAssembly falls into the parts of verify/speed.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from candlewick.weights.source import WeightsError, check_range

TURN_SECONDS = 0.02
"""Longest work between two looks at the messages: a cancel that is no shared word comes as one."""


class Cancelled(Exception):
    """The person stopped this request; `result` is what was done until then, or None."""

    def __init__(self, result: dict[str, Any] | None = None) -> None:
        super().__init__("stopped")
        self.result = result


class BadInput(ValueError):
    """What the page sent cannot be used. data: what the page may act on."""

    def __init__(self, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.data = data


class BrowserSource:
    """A ByteSource over a source of files.js: a download, a stored file, or a person's own file."""

    def __init__(self, name: str, js: Any) -> None:
        self.name, self.size, self.js = name, int(js.size), js

    async def read(self, start: int, end: int) -> bytes:
        check_range(self.name, self.size, start, end)
        data = (await self.js.read(start, end)).to_bytes()
        if len(data) != end - start:
            raise WeightsError(f"{self.name}: wanted {end - start} bytes at {start}, got {len(data)}; the file got shorter")
        return data


class Desk(Protocol):
    """Where a task reports while it works."""

    kept: dict[str, Any]
    """What a task puts here is there again where the same request begins anew, after the device was lost; else it is empty."""

    def notify(self, event: Mapping[str, Any]) -> None:
        """Send a notification of the running request."""

    def attach(self, name: str, array: np.ndarray) -> None:
        """Send float32 numbers along with the next notification or the answer, as a flat Float32Array under `name`."""

    def cancelled(self) -> bool:
        """Whether the person asked to stop."""
