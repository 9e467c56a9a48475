"""Python half of the engine worker: requests in, results and notifications out (workers/protocol.js lists them all).

`engine.worker.js` calls one Worker, one request at a time. Parameters and results cross as JSON text; sound, pictures and
files as JavaScript objects that are copied from at once or read by ranges; many numbers back as typed arrays. Nothing here
knows a model: a family registers its task (tasks/) in FAMILIES by the name its config.json gives.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np

import candlewick
from candlewick import audio, executors, verify
from candlewick.executors.example import example_inputs
from candlewick.executors.wasm.host_browser import Host
from candlewick.executors.webgpu.host_browser import Host as Device
from candlewick.tasks import BadInput, BrowserSource, Cancelled
from candlewick.tasks.estimate import estimate
from candlewick.tasks.generate import Generation
from candlewick.tasks.segment import Segmentation
from candlewick.tasks.transcribe import Transcription
from candlewick.verify import speed
from candlewick.weights.load import Checkpoint
from candlewick.weights.source import WeightsError

FAMILIES: tuple[Any, ...] = (Transcription, Segmentation, Generation)
"""The tasks; each says whether a checkpoint is one of its family."""
KINDS = {"whisper": "a speech model", "sam": "a model for pictures", "llama": "a language model"}
PAGES = {"whisper": "Whisper", "sam": "Segment", "llama": "Llama"}


class Worker:
    """One engine, and the Desk of its tasks. page: JavaScript functions notify(json), attach(name, array),
    cancelled() -> bool, python_bytes(), kernel_bytes() -> int."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._task: Any = None
        self._executor: executors.Executor | None = None
        self._files: dict[str, BrowserSource] = {}
        self.kept: dict[str, Any] = {}
        random.seed(os.urandom(16))  # a memory snapshot holds the state of the visit that made it

    # ---- requests: each returns JSON {"result": ...} or {"error": {code, message, data}} --------------------------

    async def load(self, params: str, name: str, sources: Any, host: Any, reason: str) -> str:
        """sources: Map of file name -> source; host: a KernelHost, or None for the numpy executor; reason: why."""
        return await self._answer(self._load(json.loads(params), name, sources, host, reason), "bad_weights")

    async def task(self, method: str, params: str, data: Any, again: bool = False) -> str:
        """A request to the loaded task: transcribe, for one. data: JavaScript objects that JSON does not hold; again: it is the
        one of before, which a device did not bring to an end."""
        if not again:
            self.kept = {}
        return await self._answer(self._ask(method, json.loads(params), data))

    async def profile(self, params: str) -> str:
        """{entry, rounds, position}: least time of each instruction, and of whole runs, in milliseconds."""
        return await self._answer(self._profile(**json.loads(params)))

    async def verify(self, host: Any, sources: Any, quick: bool = False) -> str:
        """host: an empty one, for every kernel (quick: for some), or None; sources: the loaded model's files again, for a step
        of it, or None."""
        return await self._answer(self._verify(host, sources, quick))

    async def trial(self, host: Any, rival: Any) -> str:
        """How many times as fast as its rival a device is for the loaded task, by a short trial; both hosts are empty."""
        return await self._answer(speed.compare_speed(executor_for(host), executor_for(rival), self._task.usual))

    async def describe(self) -> str:
        return await self._answer(self._describe())

    async def examine(self, name: str, sources: Any) -> str:
        """What the files of a Map of name -> source are and will take, from their headers; see tasks/estimate.py."""
        return await self._answer(self._examine(name, sources), "bad_weights")

    async def unload(self) -> str:
        return await self._answer(self._unload())

    async def _answer(self, work: Any, blame: str = "bad_input") -> str:
        """blame: code of a ValueError that says nothing nearer."""
        try:
            return json.dumps({"result": await work}, allow_nan=False)
        except Exception as error:
            answer = json.dumps({"error": error_value(error, blame)}, default=str)
            # frames of a traceback hold arrays and proxies
            traceback.clear_frames(error.__traceback__)
            return answer
        finally:
            gc.collect(0)

    # ---- the work -------------------------------------------------------------------------------------------------

    async def _load(self, params: Mapping[str, Any], name: str, sources: Any, host: Any, reason: str) -> dict[str, Any]:
        await self._unload()
        began = time.perf_counter()
        self._files = {key: BrowserSource(key, sources.get(key)) for key in sources.keys()}
        checkpoint = Checkpoint(self._files, name)
        task = await family_of(checkpoint, params.get("family"))
        executor = executor_for(host)
        if reason:
            executor.reason = reason
        first_weights: float | None = None

        def on_progress(stage: str, done: int, total: int, unit: str) -> None:
            nonlocal first_weights
            if stage == "weights" and first_weights is None:
                first_weights = time.perf_counter()
            self._check()
            self.notify({"event": "progress", "stage": stage, "done": done, "total": total, "unit": unit})

        gc.disable()  # tracing makes many objects that stay, and few that go
        try:
            options = {key: params[key] for key in getattr(task, "load_options", ()) if params.get(key) is not None}
            loaded = await task.load(checkpoint, executor, on_progress, **options)
            self._check()
        except BaseException:
            await executor.close()
            raise
        finally:
            gc.enable()
        end = time.perf_counter()
        self._task, self._executor = loaded, executor
        trace_ms = ((first_weights or end) - began) * 1000
        timings = {"trace_ms": trace_ms, "weights_ms": (end - began) * 1000 - trace_ms}
        return {"model": name, **loaded.describe(), "memory": self._memory(), "timings": timings}

    async def _ask(self, method: str, params: Mapping[str, Any], data: Any) -> dict[str, Any]:
        if self._task is None:
            raise BadInput(f"{method}: no model is loaded; load one first")
        if method not in self._task.methods:
            raise BadInput(f"{method}: the loaded model cannot do that; it can {', '.join(self._task.methods)}")
        return await getattr(self._task, method)(params, data, self)

    async def _profile(self, entry: str, rounds: int = 5, position: int = 0) -> dict[str, Any]:
        if self._executor is None or entry not in self._executor.programs:
            raise BadInput(f"profile: no entry {entry!r} is loaded")
        executor = self._executor
        inputs = example_inputs(executor.programs[entry], position)
        rows: list[list[Any]] = []
        run_ms = []
        for _ in range(rounds):
            times = await executor.profile(entry, inputs)
            rows = [[i, op, min(ms, row[2])] for (i, op, ms), row in zip(times, rows or [[0, "", ms] for _, _, ms in times])]
            start = time.perf_counter()
            await executor.run(entry, inputs, ())
            run_ms.append((time.perf_counter() - start) * 1000)
        if hasattr(self._task, "forget"):
            self._task.forget()  # the entry has written into what it keeps
        return {"entry": entry, "rows": rows, "run_ms": run_ms}

    async def _verify(self, host: Any, sources: Any, quick: bool) -> dict[str, Any]:
        """Of the loaded model each entry takes one step, and what it kept from earlier requests is lost."""
        rows: list[dict[str, Any]] = []

        def on_progress(done: int, total: int, what: str) -> None:
            if self.cancelled():
                raise executors.Stopped
            stage = "verify" if entries is None else "verify model"
            wrong = sorted({row["op"] for row in rows if not row["ok"] and not row.get("lost")})
            self.notify({"event": "progress", "stage": stage, "done": done, "total": total, "unit": "steps", "file": what,
                         "wrong": wrong})

        entries = None
        try:
            if host is not None:
                chosen = [case for case in verify.cases() if case.quick] if quick else None
                await verify.verify_kernels(executor_for(host), rows, on_progress, chosen)
            if sources is not None and self._executor is not None:
                for name, file in self._files.items():
                    file.js = sources.get(name)  # those of the load are closed
                entries = self._executor.programs
                try:
                    await verify.verify_model(self._executor, self._task.weights, rows, on_progress)
                finally:
                    if hasattr(self._task, "forget"):
                        self._task.forget()
        except executors.Stopped:
            raise Cancelled({"rows": rows, **verify.summary(rows)}) from None
        return {"rows": rows, **verify.summary(rows)}

    async def _examine(self, name: str, sources: Any) -> dict[str, Any]:
        checkpoint = Checkpoint({key: BrowserSource(key, sources.get(key)) for key in sources.keys()}, name)
        return await estimate(checkpoint, (await family_of(checkpoint)).family)

    async def _describe(self) -> dict[str, Any]:
        versions = {"candlewick": candlewick.__version__, "numpy": np.__version__, "python": sys.version.split()[0]}
        model = self._task.describe() if self._task else None
        return {"versions": versions, "model": model, "memory": self._memory()}

    async def _unload(self) -> dict[str, Any]:
        executor, self._executor, self._task, self._files = self._executor, None, None, {}
        if executor is not None:
            await executor.close()
            del executor
            gc.collect()
        return {}

    # ---- the desk -------------------------------------------------------------------------------------------------

    def notify(self, event: Mapping[str, Any]) -> None:
        self._page.notify(json.dumps(event))

    def attach(self, name: str, array: np.ndarray) -> None:
        self._page.attach(name, np.ascontiguousarray(array, np.float32).reshape(-1))

    def cancelled(self) -> bool:
        return bool(self._page.cancelled())

    # ---- helpers --------------------------------------------------------------------------------------------------

    def _memory(self) -> dict[str, int]:
        """Bytes of weights, state, arena; python is the interpreter's heap; total is all of it, kernel memory included."""
        memory = dict(self._executor.describe()["memory"]) if self._executor else {}
        python, kernel = int(self._page.python_bytes()), int(self._page.kernel_bytes())
        parts = {key: int(memory.get(key, 0)) for key in ("weights", "state", "arena")}
        return {**parts, "python": python, "kernel": kernel, "total": python + kernel}

    def _check(self) -> None:
        if self.cancelled():
            raise Cancelled


def executor_for(host: Any) -> executors.Executor:
    """The executor of what the engine worker chose: a KernelHost, a GpuHost, or nothing."""
    if host is None:
        return executors.create("numpy")
    if getattr(host, "kind", "") == "webgpu":
        return executors.create("webgpu", Device(host))
    return executors.create("wasm", Host(host))


async def family_of(checkpoint: Checkpoint, wanted: str | None = None) -> Any:
    """The task of FAMILIES that recognises a checkpoint.

    Raises WeightsError naming what there is and what is wanted; also for a family other than `wanted`, if that is given.
    """
    for task in FAMILIES:
        if await task.recognises(checkpoint):
            if wanted not in (None, task.family):
                raise WeightsError(f"{checkpoint.name} is {KINDS[task.family]}; this page takes {KINDS[wanted]}. Open it on "
                                   f"the {PAGES[task.family]} page")
            return task
    kinds = "; ".join(f"{task.family}: {task.wanted}" for task in FAMILIES)
    if "config.json" in checkpoint.files:
        found = f"config.json says model_type {(await checkpoint.json('config.json')).get('model_type')!r}"
    else:
        found = f"it has {', '.join(sorted(checkpoint.files)[:8]) or 'no files'}"
    raise WeightsError(f"{checkpoint.name} is no model that can be read here: {found}. Readable are {kinds}")


def error_value(error: Exception, blame: str = "bad_input") -> dict[str, Any]:
    """What went wrong as {code, message, data} of the protocol; blame: code of a plain ValueError."""
    if isinstance(error, (Cancelled, executors.Stopped)):
        return {"code": "cancelled", "message": "stopped", "data": {"result": getattr(error, "result", None)}}
    js = getattr(error, "js_error", None)  # an error of our JavaScript that passed through here
    if js is not None and getattr(js, "code", None) and isinstance(js.code, str):
        data = js.data.to_py() if hasattr(js.data, "to_py") else None
        return {"code": js.code, "message": str(js.message), "data": data}
    if isinstance(error, MemoryError):
        message = str(error) or "Python's heap is full; use a smaller file or model"
        return {"code": "out_of_memory", "message": message, "data": getattr(error, "data", None)}
    rules: list[tuple[type[Exception], str]] = [(WeightsError, "bad_weights"), (audio.AudioError, "bad_input"),
                                                (executors.ExecutorUnavailable, "gpu_error"), (ValueError, blame)]
    for kind, code in rules:
        if isinstance(error, kind):
            return {"code": code, "message": str(error), "data": getattr(error, "data", None)}
    return {"code": "internal", "message": f"{type(error).__name__}: {error}", "data": {"traceback": short_traceback(error)}}


def short_traceback(error: BaseException) -> str:
    """Where it happened, without paths."""
    frames = traceback.extract_tb(error.__traceback__)
    return "\n".join(f"{os.path.basename(f.filename)}:{f.lineno} in {f.name}: {f.line}" for f in frames[-8:])
