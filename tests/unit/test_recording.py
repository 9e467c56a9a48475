"""Recordings by the piece: the same samples as whole ones, whatever the rate, the kind of file and the order."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest

from candlewick import executors
from candlewick.audio import AudioError, Resampler, read_wav, to_mono
from candlewick.recording import Recording, Samples, WavSound
from candlewick.weights.source import MemorySource
from tests.unit.test_audio import FORMATS, chunk, encoded, fmt, riff

RNG = np.random.default_rng(3)


@pytest.mark.parametrize(("code", "bits"), FORMATS)
@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("piece", [40, 4 << 20])
async def test_wav_by_ranges(code, bits, channels, piece, monkeypatch):
    """The mean of the channels, from any place on, and nothing past the end; an incomplete frame is none."""
    monkeypatch.setattr("candlewick.recording.PIECE_BYTES", piece)
    x = RNG.uniform(-1, 1, (500, channels))
    tail = b"\1" * (channels * bits // 8 - 1)
    data = riff(chunk(b"LIST", b"odd"), fmt(code, channels, 44100, bits), chunk(b"data", encoded(x, code, bits) + tail))
    sound = await WavSound.open(MemorySource(data))
    assert (sound.rate, sound.frames) == (44100, 500)
    wanted = to_mono(read_wav(data)[0])
    for first, n in [(0, 500), (3, 70), (499, 1), (450, 900), (500, 5), (900, 5)]:
        part = await sound.read(first, n)
        assert part.dtype == np.float32 and np.array_equal(part, wanted[first : first + n])


async def test_what_is_no_wav_is_told():
    with pytest.raises(AudioError, match="it looks like a FLAC file"):
        await WavSound.open(MemorySource(b"fLaC" + bytes(100)))
    with pytest.raises(AudioError, match="it looks like an empty file"):
        await WavSound.open(MemorySource(b""))


async def test_what_is_cut_short_is_read_and_told():
    """Of 10 s by its head, 4 are there: those, and a note. A length that was never known, or nothing to speak of, is none."""
    whole = riff(fmt(1, 2, 8000, 16), chunk(b"data", bytes(10 * 8000 * 4)))
    head = len(whole) - 10 * 8000 * 4

    async def note(data: bytes) -> tuple[int, str | None]:
        sound = await WavSound.open(MemorySource(data))
        return sound.frames, sound.note

    assert await note(whole) == (80_000, None)
    assert await note(whole[: head + 4 * 8000 * 4 + 3]) == (32_000, "cut short or damaged: only 4.0 of 10.0 s could be read")
    assert await note(whole[:-4000]) == (79_000, None)
    for unknown in (0, 0x7FFFF000, 0x80000000, 0xFFFFFFFF):
        assert await note(whole[: head - 4] + struct.pack("<I", unknown) + whole[head:]) == (80_000, None), unknown
    ds64 = chunk(b"ds64", struct.pack("<QQQI", 0, 8 * 8000 * 3600 * 20, 0, 0))  # 20 hours: more than four bytes can tell
    long = b"RF64" + whole[4:12] + ds64 + whole[12 : head - 4] + struct.pack("<I", 0xFFFFFFFF) + whole[head:]
    assert await note(long) == (80_000, "cut short or damaged: only 10.0 of 144000.0 s could be read")


@pytest.mark.parametrize("rate", [16000, 8000, 44100, 48000, 7919])
async def test_pieces_are_those_of_the_whole(rate):
    resampler = Resampler(executors.create("numpy"))
    x = RNG.uniform(-1, 1, int(rate * 33.3)).astype(np.float32)
    whole = await resampler.resample(x, rate)
    recording = Recording(Samples(x, rate), resampler)
    assert recording.n_samples == len(whole)
    for first, n in [(0, 8000), (7000, 90_000), (159_990, 200_000), (100, 50), (len(whole) - 9, 99), (len(whole), 9), (0, 0)]:
        assert np.array_equal(await recording.read(first, n), whole[first : first + n]), (first, n)


async def test_another_rate_wants_a_resampler():
    with pytest.raises(AudioError, match="44100 Hz"):
        Recording(Samples(np.zeros(9), 44100))
    with pytest.raises(AudioError, match="7 Hz"):
        Recording(Samples(np.zeros(9), 7))


class Endless:
    """A WAV file of hours that is nowhere: zeros behind its head."""

    name = "hours.wav"

    def __init__(self, seconds: int) -> None:
        self.head = riff(fmt(1, 2, 48000, 16)) + b"data" + struct.pack("<I", seconds * 48000 * 4)
        self.size = len(self.head) + seconds * 48000 * 4

    async def read(self, start: int, end: int) -> bytes:
        return (self.head[start:end] + bytes(end - start))[: end - start]


async def test_three_hours_take_the_memory_of_a_window():
    resampler = Resampler(executors.create("numpy"))
    recording = Recording(await WavSound.open(Endless(3 * 3600)), resampler)
    assert recording.n_samples == 3 * 3600 * 16000
    await recording.read(0, 480_000)
    tracemalloc.start()
    for start in (480_000, 90_000_000, recording.n_samples - 1000):
        await recording.read(start - 200, 480_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6, peak
