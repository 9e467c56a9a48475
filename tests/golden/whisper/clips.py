"""The recordings that the golden numbers were made from, as float32 at 16 kHz. The resampling here is not the
project's own: the numbers should not move when that does."""

from __future__ import annotations

import hashlib
import io
import subprocess
import wave
from pathlib import Path

import numpy as np

JFK = Path(__file__).resolve().parents[3].parent / "shared/data/audio/jfk.flac"
JFK_TEXT = ("And so my fellow Americans ask not what your country can do for you ask what you can do for your country.")
LIGHTHOUSE_TEXT = (
    "The old lighthouse stood at the edge of the bay, and every evening the keeper climbed its narrow stairs to light "
    "the lamp. On clear nights he could count the boats coming home, and in winter he listened to the wind and wrote "
    "short letters to his sister in the city. When the morning came, he put out the flame and walked down to the "
    "beach to gather driftwood for the fire."
)
MARKET_TEXT = (
    "On the first Saturday of every month the square behind the station turns into a market. Farmers from the valley "
    "bring apples, honey and fresh bread, and a man with a grey beard repairs watches at a small wooden table. "
    "Children run between the stalls until the church bell rings at noon. Later in the afternoon a band plays under "
    "the trees, and people stay to talk about the weather, the harvest and the new bridge across the river. "
    "When the sun goes down, the last visitors carry their baskets home and the street cleaners begin their work."
)


class NotHere(Exception):
    """A recording cannot be made on this machine; the text says why."""


def resample(x: np.ndarray, rate: int) -> np.ndarray:
    """(n,) at `rate` -> 16 kHz, by cutting or extending the spectrum of the whole clip."""
    if rate == 16000:
        return x.astype(np.float32)
    n = round(len(x) * 16000 / rate)
    return (np.fft.irfft(np.fft.rfft(x)[: n // 2 + 1], n) * n / len(x)).astype(np.float32)


def jfk() -> np.ndarray:
    """11 s of a speech of 1961."""
    try:
        import soundfile
    except ImportError:
        raise NotHere("jfk.flac needs the Python package soundfile") from None
    if not JFK.exists():
        raise NotHere(f"{JFK.name} is not here: no shared/ folder beside this checkout")
    x, rate = soundfile.read(JFK, dtype="float64", always_2d=True)
    return resample(x.mean(axis=1), rate)


def lighthouse() -> np.ndarray:
    """22.7 s read by espeak-ng."""
    return spoken(LIGHTHOUSE_TEXT)


def long() -> np.ndarray:
    """78 s: the two clips and a third text, with pauses of a second between them and at the end."""
    pause = np.zeros(16000, np.float32)
    return np.concatenate([jfk(), pause, lighthouse(), pause, spoken(MARKET_TEXT, 140), pause])


def market() -> np.ndarray:
    """25 s: the beginning of the third text, cut in the middle of a sentence."""
    return spoken(MARKET_TEXT, 140)[: 25 * 16000]


def chirp(seconds: float) -> np.ndarray:
    """A tone that rises from 200 Hz by 600 Hz a second."""
    t = np.arange(round(seconds * 16000)) / 16000
    return (0.3 * np.sin(2 * np.pi * (200 + 300 * t) * t)).astype(np.float32)


def spoken(text: str, words_per_minute: int = 150) -> np.ndarray:
    """Text read by espeak-ng, voice en-us."""
    try:
        done = subprocess.run(["espeak-ng", "-v", "en-us", "-s", str(words_per_minute), "--stdout", text],
                              check=True, capture_output=True)
    except FileNotFoundError:
        raise NotHere("espeak-ng is not installed") from None
    data = bytearray(done.stdout)
    with wave.open(io.BytesIO(data)) as w:  # espeak-ng writes to a pipe and leaves the length open
        rate = w.getframerate()
    x = np.frombuffer(bytes(data[44:]), "<i2") / 32768
    return resample(x, rate)


CLIPS = {"jfk": jfk, "lighthouse": lighthouse, "market": market, "long": long}


def fingerprint(x: np.ndarray) -> str:
    """A hash of a clip at 16-bit precision: another espeak-ng reads a text differently."""
    return hashlib.sha256(np.round(x * 32767).astype("<i2").tobytes()).hexdigest()[:16]
