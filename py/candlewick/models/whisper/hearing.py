"""A recording as the model hears it: windows of log-mel at any frame, on one scale of loudness, and their encodings."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from candlewick.executors import Executor
from candlewick.models.whisper.mel import DYNAMIC_RANGE, HOP, SAMPLE_RATE, first_sample, n_samples, window
from candlewick.models.whisper.model import Dims
from candlewick.models.whisper.programs import contexts
from candlewick.models.whisper.segments import TOO_SHORT
from candlewick.recording import Recording

NO_SIGNAL = -7.0  # log-mel of an empty frame: 16-bit dither lies near -8, speech at -80 dB peaks near -6
LEVELS = 2  # a second
LEAD = 100, 30  # frames of silence that a window may begin with; more (a transcript begins within 1 s) is cut to the second
MARGIN = 100  # frames of silence that a shortened context has at least behind the sound
LOUDEST = 16.0  # full scale is 1; beyond this the samples are in other units (16-bit numbers as floats) and are scaled to it


class Hearing:
    """One recording, heard by a loaded checkpoint."""

    def __init__(self, dims: Dims, executor: Executor, load_context: Callable[[int], Awaitable[None]], audio: Recording,
                 shorten: bool) -> None:
        """load_context: loads the encoder for so many positions; shorten: use as few of them as will do."""
        self.dims, self.executor, self.audio, self.shorten = dims, executor, audio, shorten
        self._load_context = load_context
        self.ms = dict.fromkeys(("read", "mel", "encode", "decode", "align"), 0.0)
        self.peak: float | None = None  # the largest log-mel value of the whole recording, once it is known
        self.unit = 1.0  # samples are divided by it, where they are in other units
        self.n_ctx = dims.n_audio_ctx  # positions of the window that was encoded last
        self._heard: tuple[tuple[int, int], dict[str, np.ndarray]] | None = None
        self._loudest = 0.0
        self._whole: int | None = None  # the window at this frame is not to be shortened

    @property
    def n_frames(self) -> int:
        """Frames of the recording, as far as its length is known."""
        return self.audio.n_samples // HOP

    @property
    def duration(self) -> float:
        """Seconds, as far as they are known."""
        return self.audio.n_samples / SAMPLE_RATE

    async def find_peak(self, stop: Callable[[], bool]) -> AsyncIterator[dict[str, Any]]:
        """The loudest point of the whole recording, window by window, in the memory of one; its length is known then, too.
        Tells the level of the sound, LEVELS a second, for whoever draws it."""
        start, peak = 0, -np.inf
        while not stop():
            short = self.n_frames <= self.dims.n_frames
            mel = await self.mel(start, ("log_mel", "peak") if short else ("peak",))
            peak = max(peak, float(mel["peak"]) + 2 * float(np.log10(mel["unit"])))  # the logarithm of a power
            start += self.dims.n_frames
            if not short:
                total = -(-self.n_frames // self.dims.n_frames)
                yield {"event": "progress", "stage": "mel", "done": min(start // self.dims.n_frames, total), "total": total,
                       "levels": levels(mel["samples"]), "seconds": self.duration}
            if start >= max(self.n_frames, 1):
                break
        if self._loudest > LOUDEST:
            self.unit, self._heard = self._loudest, None
        self.peak = peak - 2 * float(np.log10(self.unit))

    async def mel(self, start: int, fetch: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Log-mel of the window at frame `start`; the last one is kept: a short recording asks for it twice."""
        place = start, self.context(start)
        if self._heard is None or self._heard[0] != place or not set(fetch) <= self._heard[1].keys():
            entry, size = await self.entry("mel", start), n_samples(2 * self.context(start))
            skipped = first_sample(start)
            with timed(self.ms, "read"):
                audio = await self.audio.read(skipped, size)
            with timed(self.ms, "mel"):
                loudest = float(max(audio.max(), -audio.min())) if audio.size else 0.0
                if not np.isfinite(loudest):  # NaN passes through both
                    raise ValueError("audio: some samples are not finite numbers (NaN or infinity); the file is damaged")
                self._loudest = max(self._loudest, loudest)
                unit = self.unit if self.peak is not None or loudest <= LOUDEST else loudest  # the first pass does not know
                samples = window(audio, start, size, skipped) / np.float32(unit)
                found = await self.executor.run(entry, {"samples": samples}, fetch=fetch)
                self._heard = place, {"samples": samples, "unit": np.float64(unit), **found}
        return self._heard[1]

    async def find_sound(self, seek: int) -> tuple[int, bool]:
        """The frame just before the first sound of the window at frame `seek`, and true; or past it, and false, if there is
        none: (almost) all frames are digital silence, or below what the model would be shown."""
        mel = await self.mel(seek, ("log_mel", "peak"))
        sound = np.flatnonzero(mel["log_mel"].max(axis=2) > max(NO_SIGNAL, self.peak - DYNAMIC_RANGE))
        if len(sound) <= TOO_SHORT:
            return seek + self.left(seek), False
        return seek + (int(sound[0]) - LEAD[1] if sound[0] > LEAD[0] else 0), True

    def left(self, seek: int) -> int:
        """Frames of the recording in the window at frame `seek`."""
        return min(self.dims.n_frames, max(self.n_frames - seek, 1))

    async def encode(self, seek: int, whole: bool = False) -> None:
        """Encodes the window at frame `seek`; whole: not shortened, from now on."""
        if whole:
            self._whole = seek
        mel = await self.mel(seek, ("log_mel",))
        self.n_ctx = self.context(seek)
        with timed(self.ms, "encode"):
            inputs = {"log_mel": mel["log_mel"], "peak": self.peak}
            await self.executor.run(await self.entry("encode", seek), inputs, fetch=())
        with timed(self.ms, "decode"):
            await self.executor.run(await self.entry("remember", seek), {}, fetch=())

    def context(self, start: int) -> int:
        """Positions of the encoder for the window at frame `start`: all, or in the short mode as few as will do."""
        full = self.dims.n_audio_ctx
        if not self.shorten or start == self._whole:
            return full
        wanted = (max(self.n_frames - start, 1) + MARGIN) / 2
        return next((n for n in contexts(self.dims) if n >= wanted), full)

    async def entry(self, name: str, start: int) -> str:
        """mel, encode or remember for the window at frame `start`, loaded."""
        n_ctx = self.context(start)
        await self._load_context(n_ctx)
        return name if n_ctx == self.dims.n_audio_ctx else f"{name}_{n_ctx}"


@contextmanager
def timed(ms: dict[str, float], stage: str) -> Iterator[None]:
    """Adds the milliseconds of its block to a stage."""
    began = time.perf_counter()
    try:
        yield
    finally:
        ms[stage] += (time.perf_counter() - began) * 1000


def levels(samples: np.ndarray) -> list[float]:
    """A window of samples -> the loudest sample of each stretch, LEVELS of them a second."""
    size = SAMPLE_RATE // LEVELS
    loud = np.abs(samples).reshape(-1)
    return [round(float(x), 3) for x in loud[: len(loud) // size * size].reshape(-1, size).max(axis=1)]
