"""A recording that is never whole in memory: mono at 16 kHz, by the piece, whatever stands behind it.

A sound gives mono samples at its own rate; a Recording brings them to 16 kHz in blocks of some seconds, exactly as if the
whole had been resampled at once, and keeps only the blocks that the last piece was made of.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from candlewick import audio
from candlewick.audio import TARGET_RATE, AudioError, Resampler, WavData
from candlewick.weights.source import ByteSource

PIECE_BYTES = 4 << 20  # of a WAV file that are read at once
LACKING_SECONDS = 0.5  # less than this nobody misses


class Sound(Protocol):
    """Mono samples at a rate. `frames` is how many there are: before the end was read as far as is known, and more than was
    read; then exactly."""

    rate: int
    frames: int

    async def read(self, first: int, n: int) -> np.ndarray:
        """n samples from `first` on, float32; fewer only at the end."""
        ...


def cut_short(reached: float, told: float) -> str:
    """What to say of a sound that ends before its head says, both in seconds."""
    return f"cut short or damaged: only {reached:.1f} of {told:.1f} s could be read"


class Samples:
    """A sound in memory: (n,), or (n, channels)."""

    def __init__(self, samples: np.ndarray, rate: int = TARGET_RATE) -> None:
        self.samples, self.rate, self.frames = samples, rate, len(samples)

    async def read(self, first: int, n: int) -> np.ndarray:
        return audio.to_mono(self.samples[first : first + n])


class WavSound:
    """A WAV file of any length, read by ranges. `note` says where it ends before its head says."""

    def __init__(self, source: ByteSource, data: WavData) -> None:
        self._source, self._start, self._format = source, data.start, data.format
        self.rate, self.frames = data.format.rate, (data.end - data.start) // data.format.frame
        seconds, lacking = self.frames / self.rate, data.lacking / data.format.frame / self.rate
        self.note = cut_short(seconds, seconds + lacking) if lacking >= LACKING_SECONDS else None

    @classmethod
    async def open(cls, source: ByteSource) -> WavSound:
        """Finds the samples. Raises AudioError in words for what is no readable WAV file."""
        search = audio.find_samples(source.size)
        try:
            start, end = next(search)
            while True:
                start, end = search.send(await source.read(start, end))
        except StopIteration as found:
            return cls(source, found.value)

    async def read(self, first: int, n: int) -> np.ndarray:
        end, frame, parts = min(first + n, self.frames), self._format.frame, [np.zeros(0, np.float32)]
        step = max(1, PIECE_BYTES // frame)  # many channels at a high rate are many bytes a second
        for at in range(first, end, step):
            raw = await self._source.read(self._start + at * frame, self._start + min(at + step, end) * frame)
            parts.append(audio.to_mono(audio.read_frames(raw, self._format)))
        return np.concatenate(parts)


class Recording:
    """A sound at 16 kHz. It is meant to be heard forwards: going back reads, and resamples, anew."""

    def __init__(self, sound: Sound, resampler: Resampler | None = None) -> None:
        """resampler: for sounds at another rate."""
        audio.check_rate(sound.rate)
        if sound.rate != TARGET_RATE and resampler is None:
            raise AudioError(f"a sound at {sound.rate} Hz: wanted one at {TARGET_RATE} Hz, or a Resampler with it")
        self._sound, self._resampler = sound, resampler
        self._blocks: dict[int, np.ndarray] = {}

    @property
    def n_samples(self) -> int:
        """Samples at 16 kHz, as far as is known before the end was read."""
        return audio.n_resampled(self._sound.frames, self._sound.rate)

    async def read(self, first: int, n: int) -> np.ndarray:
        """n samples at 16 kHz from `first` on, float32; fewer only at the end."""
        if self._sound.rate == TARGET_RATE or self._resampler is None:
            return await self._sound.read(first, n)
        made = await self._resampler.block_samples(self._sound.rate)
        wanted = range(first // made, -(-(first + n) // made))
        self._blocks = {block: samples for block, samples in self._blocks.items() if block in wanted}
        parts = [await self._block(block, made) for block in wanted]
        if not parts:
            return np.zeros(0, np.float32)
        start = wanted.start * made
        return np.concatenate(parts)[first - start : max(min(first + n, self.n_samples) - start, 0)]

    async def _block(self, block: int, made: int) -> np.ndarray:
        if block not in self._blocks:
            assert self._resampler is not None
            first, n = await self._resampler.wanted(self._sound.rate, block)
            have = await self._sound.read(max(first, 0), n + min(first, 0))
            self._blocks[block] = await self._resampler.block(self._sound.rate, block, have)
        return self._blocks[block]
