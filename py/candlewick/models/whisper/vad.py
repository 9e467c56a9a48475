"""Is somebody speaking? A detector of our own, small enough to read: how far sound rises above the noise around it.

Speech moves, noise stays. In each of five octaves the noise floor is followed as the least smoothed energy of the last seconds,
which the gaps between syllables let through even while somebody speaks (minimum statistics: R. Martin, "Noise power spectral
density estimation based on optimal smoothing and minimum statistics", IEEE Transactions on Speech and Audio Processing 9(5),
2001). A frame is active where two octaves rise above their floors: two, as vowels lie low and an s lies high. No level is
absolute but one: what is quieter than 16-bit dither is silence. So a whisper far away counts, and a fan, hum or hiss does not,
some seconds after it began. What to make of active frames (onsets, pauses) is the listener's affair (`live.py`).
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from candlewick.models.whisper.mel import SAMPLE_RATE

HOP = 320  # samples from frame to frame, 20 ms
N_FFT = 512  # samples that a frame looks at, 32 ms
EDGES = (200, 400, 800, 1600, 3200, 6400)  # Hz: octaves between them. Mains hum lies mostly below
RISE = 7.0  # decibels above the floor, mean of the two octaves that rise most
SMOOTHING = 0.7  # of the energy from frame to frame, for the floor: about 60 ms
MEAN = 3  # frames whose mean is held against the floor; a knock is over after them
MEMORY = 6, 25  # the floor is the least of so many stretches of so many frames: 3 s
QUIETEST = -104.0  # dB of full scale in an octave; 16-bit dither lies below in each of them


class Detector:
    """Sound of any length in pieces -> which of its frames are active. Keeps some kilobytes."""

    def __init__(self) -> None:
        hz = np.fft.rfftfreq(N_FFT, 1 / SAMPLE_RATE)
        self._bands = [np.flatnonzero((hz >= low) & (hz < high)) for low, high in pairwise(EDGES)]
        self._window = np.hanning(N_FFT).astype(np.float32)
        # power of a full-scale sine is 1 in the bin it lies in
        self._scale = 4 / float(self._window.sum()) ** 2
        self._tail = np.empty(0, np.float32)
        self._smooth: list[float] = []  # (bands,) power, for the floor
        self._last: list[list[float]] = []  # (bands,) power of the last MEAN frames
        self._stretches: list[list[float]] = []  # least power of each stretch, the one under way last
        self._frames = 0

    def push(self, samples: np.ndarray) -> tuple[list[float], list[float]]:
        """samples float32 (n,), behind those before -> for each frame that is complete: how far two octaves rise above their
        floors, in decibels (more than RISE is active); and its level in dB of full scale.

        Frame i looks at samples i * HOP .. i * HOP + N_FFT of all that was pushed.
        """
        sound = np.concatenate([self._tail, samples])
        n = max(0, (len(sound) - N_FFT) // HOP + 1)
        self._tail = sound[n * HOP :].copy()
        if not n:
            return [], []
        frames = np.lib.stride_tricks.sliding_window_view(sound, N_FFT)[: (n - 1) * HOP + 1 : HOP]
        power = np.abs(np.fft.rfft(frames * self._window)) ** 2 * self._scale  # (n, bins)
        least = 10 ** (QUIETEST / 10)
        bands = np.maximum(np.stack([power[:, bins].sum(1) for bins in self._bands], 1), least)  # (n, bands)
        level = 10 * np.log10(bands.sum(1))
        return [self._rise(energy) for energy in bands.tolist()], level.tolist()

    def _rise(self, energy: list[float]) -> float:
        """energy (bands,) of the next frame -> decibels that the two highest rise above their floors."""
        # plain numbers: of five, Python makes less work than NumPy
        stretches, length = MEMORY
        smooth = [SMOOTHING * s + (1 - SMOOTHING) * e for s, e in zip(self._smooth or energy, energy)]
        self._smooth = smooth
        self._last = [*self._last[1 - MEAN :], energy]
        if self._frames % length == 0:
            self._stretches = [*self._stretches[1 - stretches :], smooth]
        else:
            self._stretches[-1] = [min(s, new) for s, new in zip(self._stretches[-1], smooth)]
        self._frames += 1
        over = sorted(sum(last) / len(last) / min(floor)
                      for last, floor in zip(zip(*self._last), zip(*self._stretches)))
        return 5 * math.log10(over[-1] * over[-2])
