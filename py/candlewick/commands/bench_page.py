"""The pages of web/bench/ in Chromium: starts with nothing cached, starts with everything cached, warm repetitions.

Each `candlewick bench` command has such a page; what they share on the page's side is web/bench/measure.js.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from candlewick.commands import browser as web
from candlewick.options import OptionError

SETTLE_SECONDS = 3.0
"""Chromium writes its compiled-code cache some time after the code has run; a page closed sooner is never primed."""


class PageBench:
    """A measuring page in Chromium, in a profile of its own below `work`.

    model: a checkpoint's folder, which the server offers, or with `own` files that are picked in the page. settings: further
    ones of the page. extra: {name: script} whose values a start with repetitions brings too.
    """

    extra: dict[str, str] = {}

    def __init__(self, address: str, work: Path, page: str, input: Path, model: Path, executor: str, threads: int | None,
                 own: list[Path] | None = None, **settings: Any):
        if own is None and model.resolve().parent != (web.root() / "models").resolve():
            raise OptionError("{model} {name}: the server offers only what is in the checkout's models/; put it there",
                              name=model)
        address_of = None if own else f"/models/{model.name}/"
        chosen = {"model": address_of, "executor": executor, "threads": threads, "driven": True, **settings}
        known = {name: value for name, value in chosen.items() if value is not None or name == "model"}
        self.url = f"{address}/web/bench/{page}#{urllib.parse.quote(json.dumps(known))}"
        self.work, self.profile, self.input, self.own = work, work / "profile", input, own

    def cold(self) -> dict[str, Any]:
        """A start with nothing cached."""
        shutil.rmtree(self.profile, ignore_errors=True)
        with self.opened() as page:
            return web.evaluate(page, "window.bench.first()")

    def prime(self) -> None:
        """Two visits that fill the profile's caches: files at the first, compiled code at the second."""
        for _ in range(2):
            with self.opened() as page:
                web.evaluate(page, "window.bench.first()")
                web.evaluate(page, "window.bench.again(1)")
                time.sleep(SETTLE_SECONDS)

    def start(self, runs: int = 0) -> dict[str, Any]:
        """A new browser process on the primed profile -> {"loaded", "run"}; with runs also "again" (a list), "describe",
        "renderer_bytes" and what `extra` names."""
        with self.opened() as page:
            first = web.evaluate(page, "window.bench.first()")
            if runs:
                web.evaluate(page, "window.bench.again(1)")  # hot code is compiled again in the first calls
                first["again"] = web.evaluate(page, "runs => window.bench.again(runs)", runs)
                first |= {name: web.evaluate(page, script) for name, script in self.extra.items()}
                first["describe"] = web.evaluate(page, "window.bench.describe()")
                first["renderer_bytes"] = web.renderer_bytes(self.profile)
        return first

    def measure(self, starts: int, runs: int) -> tuple[list[dict], list[dict], dict]:
        """-> (starts with nothing cached, starts with everything cached, a start with repetitions)"""
        cold = [self.cold() for _ in range(starts)]
        self.prime()
        return cold, [self.start() for _ in range(starts)], self.start(runs)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        with web.chromium(self.profile) as context:
            page = web.open_page(context, self.url)
            page.set_input_files("#file", str(self.input))
            if self.own:
                page.set_input_files("#model", [str(path) for path in self.own])
            web.wait_for(page, "window.bench")
            yield page


def loads(cold: list[dict], cached: list[dict], warm: dict) -> dict[str, Any]:
    """What every report tells of the starts: load times, executor, memory (bytes as the engine counts them after the runs)."""
    loaded = warm["loaded"]
    memory = (warm.get("describe") or {}).get("memory") or loaded.get("memory") or {}
    return {
        "executor": loaded["executor"], "threads": loaded["threads"],
        "load_ms": [one["loaded"]["load_ms"] for one in cold],
        "load_cached_ms": [one["loaded"]["load_ms"] for one in cached],
        "ready_cached_ms": [one["loaded"]["ready_ms"] for one in cached],
        "load_parts_cached_ms": [one["loaded"].get("timings") for one in cached],
        "memory_bytes": memory.get("total"), "memory": memory, "memory_renderer_bytes": warm.get("renderer_bytes"),
        "reason": loaded.get("reason"),
    }


def milliseconds(began: float) -> float:
    """Since a time of perf_counter."""
    return (time.perf_counter() - began) * 1000


def resident_bytes() -> int | None:
    """Largest resident size of this process so far; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
