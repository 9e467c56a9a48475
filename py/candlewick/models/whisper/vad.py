"""Is somebody speaking? A detector of our own, small enough to read: how far sound rises above the noise around it.

Speech moves, noise stays. In each of five octaves the noise floor is followed as the least smoothed energy of the last seconds,
which the gaps between syllables let through even while somebody speaks (minimum statistics: R. Martin, "Noise power spectral
density estimation based on optimal smoothing and minimum statistics", IEEE Transactions on Speech and Audio Processing 9(5),
2001). A frame is active where two octaves rise above their floors: two, as vowels lie low and an s lies high. No level is
absolute but one: what is quieter than 16-bit dither is silence. So a whisper far away counts, and a fan, hum or hiss does not,
some seconds after it began. What to make of active frames (onsets, pauses) is the listener's affair (`live.py`).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from candlewick.models.whisper.mel import SAMPLE_RATE

HOP = 320  # samples from frame to frame, 20 ms
N_FFT = 512  # samples that a frame looks at, 32 ms
EDGES = (200, 400, 800, 1600, 3200, 6400)  # Hz: octaves between them. Mains hum lies mostly below
RISE = 7.0  # decibels above the floor, mean of the two octaves that rise most
SMOOTHING = 0.7, 0.4  # of the energy from frame to frame: for the floor (60 ms), for what rises above it
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
        self._slow: np.ndarray | None = None  # (bands,) power, smoothed for the floor
        self._fast = np.empty(0)  # and to rise above it
        self._stretches: list[np.ndarray] = []  # least power of each stretch, the one under way last
        self._frames = 0

    def push(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """samples float32 (n,), behind those before -> for each frame that is complete: active, level in dB.

        Frame i looks at samples i * HOP .. i * HOP + N_FFT of all that was pushed.
        """
        sound = np.concatenate([self._tail, samples])
        n = max(0, (len(sound) - N_FFT) // HOP + 1)
        self._tail = sound[n * HOP :].copy()
        active, level = np.zeros(n, bool), np.full(n, QUIETEST, np.float32)
        if not n:
            return active, level
        frames = np.lib.stride_tricks.sliding_window_view(sound, N_FFT)[: (n - 1) * HOP + 1 : HOP]
        power = np.abs(np.fft.rfft(frames * self._window)) ** 2 * self._scale  # (n, bins)
        bands = np.stack([power[:, bins].sum(1) for bins in self._bands], 1)  # (n, bands)
        quietest = 10 ** (QUIETEST / 10)
        for i, energy in enumerate(bands):
            rise = self._rise(np.maximum(energy, quietest))
            active[i] = rise > RISE
        level[:] = 10 * np.log10(np.maximum(bands.sum(1), quietest))
        return active, level

    def _rise(self, energy: np.ndarray) -> float:
        """energy (bands,) of the next frame -> decibels that the two highest rise above their floors."""
        stretches, length = MEMORY
        if self._slow is None:
            self._slow = self._fast = energy
        slow, fast = SMOOTHING
        self._slow = slow * self._slow + (1 - slow) * energy
        self._fast = fast * self._fast + (1 - fast) * energy
        if self._frames % length == 0:
            self._stretches = [*self._stretches[1 - stretches :], self._slow]
        else:
            self._stretches[-1] = np.minimum(self._stretches[-1], self._slow)
        self._frames += 1
        floor = np.min(self._stretches, 0)
        over = np.sort(10 * np.log10(self._fast / floor))
        return float(over[-2:].mean())
