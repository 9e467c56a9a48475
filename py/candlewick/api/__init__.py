"""The whole of Candlewick in three calls, for scripts, notebooks and Pyodide pages.

    from candlewick import transcribe

    transcribe("talk.mp3").text                 # a script, the Python prompt
    (await transcribe("talk.wav")).text         # wherever an event loop runs: notebooks, Pyodide

A call does its work and gives the result; where an event loop runs already it gives something to await instead. Models are
loaded at their first use and kept, one of each kind, until another is wanted or `unload` is called. One call at a time works
on a model; others wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np

from candlewick import executors
from candlewick.api import sources
from candlewick.api.results import Generated, Masks, Transcript

__all__ = ["Generated", "Masks", "Transcript", "generate", "segment", "transcribe", "unload"]

Result = TypeVar("Result")
Path = str | PathLike[str]
Listener = Callable[[dict[str, Any]], None]

WHISPER, SAM, LLAMA = "whisper-tiny.en", "mobilesam", "smollm2-135m-instruct"


def transcribe(
    audio: Path | bytes | np.ndarray, *, model: Path = WHISPER, rate: int = 16000, executor: str = "auto",
    threads: int | None = None, on_event: Listener | None = None, **options: Any,
) -> Transcript:
    """Speech -> text with times.

    audio: a file (in a page also its URL), the bytes of one, or samples (n,) or (n, channels) at `rate` Hz, floats of -1 to 1.
    model: a checkpoint's name, its folder, a whisper.cpp .bin file; in a page also the URL of a folder.
    executor: "auto", "wasm", "webgpu" (CPython) or "numpy". on_event: hears of progress, tokens and segments as they come.
    options: the fields of TranscribeOptions: language, task="translate", word_timestamps=True, initial_prompt, temperatures...

    Raises ValueError in words for sound, models and options that cannot be used. To be awaited where an event loop runs.
    """
    from candlewick.models.whisper import TranscribeOptions

    settings = made(TranscribeOptions, options)
    return now(_transcribe(audio, Wanted("whisper", model, executor, threads), rate, settings, on_event))


def segment(
    image: Path | np.ndarray, points: Sequence[Sequence[float]] = (), *, labels: Sequence[int] | None = None,
    box: Sequence[float] | None = None, model: Path = SAM, executor: str = "auto", threads: int | None = None,
) -> Masks:
    """A picture and a prompt -> masks, the most fitting first.

    image: a file (CPython), or (height, width[, 3 or 4]) uint8. points: [x, y] in pixels; labels: 1 for points on the object,
    0 for points beside it, all 1 by default. box: x0, y0, x1, y1. Both must lie in the picture. The same picture is looked at
    once, however many prompts follow. A lone point is vague: it gets three masks, part to whole. Everything else gets one.

    Raises ValueError in words. To be awaited where an event loop runs.
    """
    if not len(points) and box is None:
        raise ValueError("segment: wanted one or more points, or a box, to say which object is meant; got neither")
    labels = [1] * len(points) if labels is None else labels
    return now(_segment(image, points, labels, box, Wanted("sam", model, executor, threads)))


def generate(
    prompt: str | Sequence[Mapping[str, str]], *, model: Path = LLAMA, executor: str = "auto", threads: int | None = None,
    on_event: Listener | None = None, **options: Any,
) -> Generated:
    """A text to go on with, or a conversation [{"role": "user", "content": ...}, ...] -> what a language model writes.

    model: a checkpoint's name, its folder, a .gguf file or llama2.c .bin file; in a page also the URL of a folder.
    on_event: hears of every token. options: the fields of GenerateOptions: max_tokens=256, temperature, greedy=True, seed...

    Raises ValueError in words. To be awaited where an event loop runs.
    """
    from candlewick.models.llama.sampling import GenerateOptions

    return now(_generate(prompt, Wanted("llama", model, executor, threads), made(GenerateOptions, options), on_event))


def unload() -> None:
    """Let go of all models and their memory. To be awaited where an event loop runs."""
    return now(_unload())


# ---- the work ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """A model as somebody asked for it."""

    family: str
    model: Path
    executor: str
    threads: int | None


@dataclass
class Loaded:
    """A model that is in memory."""

    wanted: Wanted
    task: Any  # Transcriber, Segmenter or Generator
    executor: executors.Executor
    picture: Any = field(default=None, repr=False)  # what a Segmenter looked at last


_loaded: dict[str, Loaded] = {}
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def now(work: Coroutine[Any, Any, Result]) -> Result:
    """The work's result; where an event loop runs, the work itself, to be awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    return cast(Result, work)


def turn() -> asyncio.Lock:
    """What callers in this event loop wait for."""
    return _locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())


def made(kind: type[Result], options: Mapping[str, Any]) -> Result:
    """Options as the family's own class. Raises ValueError that lists the known ones."""
    known = [field.name for field in fields(cast(Any, kind))]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(f"options: {', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} not known; known are "
                         + ", ".join(known))
    return kind(**options)


async def load(wanted: Wanted) -> Loaded:
    """The model, loaded now unless it is already; the one before of its family goes."""
    found = _loaded.get(wanted.family)
    if found is not None and found.wanted == wanted:
        return found
    await drop(wanted.family)
    checkpoint = await sources.checkpoint(wanted.model)
    task = await family_task(checkpoint, wanted.family)
    executor = await sources.executor(wanted.executor, wanted.threads)
    try:
        loaded = Loaded(wanted, await task.load(checkpoint, executor), executor)
    except BaseException:
        await end(executor)
        raise
    _loaded[wanted.family] = loaded
    return loaded


async def family_task(checkpoint: Any, family: str) -> Any:
    """What loads a checkpoint of the family. Raises ValueError for one of another."""
    from candlewick.models.llama import Generator
    from candlewick.models.sam import Segmenter
    from candlewick.models.whisper import Transcriber
    from candlewick.worker import family_of

    calls = {"whisper": (Transcriber, "transcribe"), "sam": (Segmenter, "segment"), "llama": (Generator, "generate")}
    found = (await family_of(checkpoint)).family
    task, call = calls[family]
    if found != family:
        raise ValueError(f"{call}: {checkpoint.name} is a model for {calls[found][1]}()")
    return task


async def drop(family: str) -> None:
    loaded = _loaded.pop(family, None)
    if loaded is not None:
        await end(loaded.executor)


async def end(executor: executors.Executor) -> None:
    """With its threads and their memory, which in a page nothing else would let go of."""
    await executor.close()
    if (host := getattr(executor, "host", None)) and hasattr(host, "close"):
        host.close()


async def _unload() -> None:
    async with turn():
        for family in list(_loaded):
            await drop(family)


async def events(stream: Any, on_event: Listener | None) -> dict[str, Any]:
    """Everything that a task tells -> its result. The event loop gets its turn between any two."""
    result: dict[str, Any] = {}
    async for event in stream:
        if event["event"] == "result":
            result = event["result"]
        elif on_event:
            on_event(event)
        await asyncio.sleep(0)
    return result


async def _transcribe(audio: Any, wanted: Wanted, rate: int, options: Any, on_event: Listener | None) -> Transcript:
    from candlewick.audio import Resampler
    from candlewick.recording import Recording

    async with turn():
        sound = await sources.sound(audio, rate)
        loaded = await load(wanted)
        recording = Recording(sound, Resampler(loaded.executor))
        result = await events(loaded.task.transcribe(recording, options), on_event)
        return Transcript.of({**result, "note": getattr(sound, "note", None)})


async def _segment(image: Any, points: Any, labels: Any, box: Any, wanted: Wanted) -> Masks:
    from candlewick.models.sam import best, check_inside

    async with turn():
        picture = await sources.picture(image)
        check_inside(points, box, picture.shape[1], picture.shape[0])
        loaded = await load(wanted)
        if loaded.picture is None or not np.array_equal(loaded.picture, picture):
            loaded.picture = None
            await loaded.task.set_image(picture)
            loaded.picture = picture.copy()
        answer = await loaded.task.predict(points, labels, box)
        vague = len(points) == 1 and box is None
        order = 1 + np.argsort(-answer["iou"][1:], kind="stable") if vague else [best(answer, len(points), box is not None)]
        masks = np.stack([loaded.task.upsample(answer["masks"][i]) > 0 for i in order])
        return Masks(masks, [float(answer["iou"][i]) for i in order])


async def _generate(prompt: Any, wanted: Wanted, options: Any, on_event: Listener | None) -> Generated:
    async with turn():
        loaded = await load(wanted)
        return Generated.of(await events(loaded.task.generate(prompt, options), on_event))

