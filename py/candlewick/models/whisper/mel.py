"""Log-mel spectrogram: what Whisper hears (Radford et al. 2022, section 2.1), as a part of the traced model.

A window of samples becomes frames by one convolution with windowed cosines and sines, as the discrete Fourier
transform is a matrix like any other. The scale of the picture depends on the loudest point of the whole recording, so
that peak is found in a first pass (`transcribe.py`) and handed to the encoder as a number.
"""

from __future__ import annotations

import numpy as np

from candlewick import nn, ops
from candlewick.tensor import Tensor

SAMPLE_RATE = 16000
N_FFT = 400  # 25 ms seen by a frame
HOP = 160  # 10 ms from frame to frame
FRAMES_PER_SECOND = SAMPLE_RATE // HOP  # 100
N_BINS = N_FFT // 2 + 1  # 0 to 8000 Hz in steps of 40 Hz
FLOOR = 1e-10  # power below which nothing is told apart; its decimal logarithm is -10
DYNAMIC_RANGE = 8.0  # decades below the peak that the model is shown


class LogMel(nn.Module):
    """samples -> decimal logarithm of the power in each mel band."""

    def __init__(self, n_mels: int) -> None:
        bands = mel_filters(n_mels)  # (n_mels, N_BINS)
        self.dft = nn.Constant(dft_filters())  # (2 N_BINS, 1, N_FFT)
        self.bands = nn.Constant(np.concatenate([bands, bands], axis=1))  # (n_mels, 2 N_BINS): power = re² + im²

    def __call__(self, samples: Tensor) -> Tensor:
        """samples (batch, n_samples, 1) -> (batch, n_frames, n_mels)"""
        spectrum = ops.conv1d(samples, self.dft, stride=HOP)  # (batch, n_frames, 2 N_BINS)
        power = ops.linear(ops.square(spectrum), self.bands)  # (batch, n_frames, n_mels)
        return ops.log10(ops.maximum(power, FLOOR))

    def normalise(self, log_mel: Tensor, peak: Tensor) -> Tensor:
        """log_mel (batch, n_frames, n_mels), peak () -> what the encoder is trained on, about -1 to 1"""
        return (ops.maximum(log_mel, peak - DYNAMIC_RANGE) + 4.0) / 4.0


def dft_filters() -> np.ndarray:
    """-> (2 N_BINS, 1, N_FFT) float32: cosines, then sines, each under a periodic Hann window of N_FFT samples."""
    n = np.arange(N_FFT)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / N_FFT)
    # the angle goes round N_FFT times a cycle: reduced as an integer first, it is exact
    angle = 2 * np.pi / N_FFT * (np.outer(np.arange(N_BINS), n) % N_FFT)
    return (np.concatenate([np.cos(angle), np.sin(angle)]) * hann).astype(np.float32)[:, None, :]


def mel_filters(n_mels: int) -> np.ndarray:
    """-> (n_mels, N_BINS) float32: triangles of equal area, evenly spaced on Slaney's mel scale (1998)."""
    corners = mel_to_hz(np.linspace(hz_to_mel(0.0), hz_to_mel(SAMPLE_RATE / 2), n_mels + 2))  # Hz
    hz = np.linspace(0, SAMPLE_RATE / 2, N_BINS)
    low, mid, high = (corners[i : i + n_mels, None] for i in range(3))
    triangles = np.clip(np.minimum((hz - low) / (mid - low), (high - hz) / (high - mid)), 0, None)
    return (triangles * 2 / (high - low)).astype(np.float32)


# Slaney's scale is linear up to 1000 Hz (15 mel there) and logarithmic above: a factor of 6.4 every 27 mel.
_BEND_HZ, _BEND_MEL, _STEP = 1000.0, 15.0, np.log(6.4) / 27.0


def hz_to_mel(hz: float) -> float:
    """Frequency in Hz -> Slaney's mel."""
    return hz * _BEND_MEL / _BEND_HZ if hz < _BEND_HZ else _BEND_MEL + np.log(hz / _BEND_HZ) / _STEP


def mel_to_hz(mel: np.ndarray) -> np.ndarray:
    """Slaney's mel -> frequency in Hz."""
    above = _BEND_HZ * np.exp(_STEP * (np.maximum(mel, _BEND_MEL) - _BEND_MEL))
    return np.where(mel < _BEND_MEL, mel * _BEND_HZ / _BEND_MEL, above)


def n_samples(n_frames: int) -> int:
    """Samples that so many frames look at: N_FFT of them, every HOP."""
    return (n_frames - 1) * HOP + N_FFT


def first_sample(start_frame: int) -> int:
    """The first sample of the recording that the frames from start_frame on look at."""
    return max(start_frame * HOP - N_FFT // 2, 0)


def window(audio: np.ndarray, start_frame: int, n_samples: int, skipped: int = 0) -> np.ndarray:
    """Samples that the frames from start_frame on look at: audio float32 (n,) -> (1, n_samples, 1).

    A frame is centred on its time, so the first one begins N_FFT / 2 samples early. Before the recording stands its
    mirror image, after it silence: the same as padding it to the full window and taking the transform of that. Of audio,
    the first `skipped` samples may be missing, up to `first_sample`.
    """
    begin = start_frame * HOP - N_FFT // 2
    before = max(-begin, 0)  # samples that stand before the recording
    out = np.zeros(n_samples, np.float32)
    mirror = audio[1 : before + 1]  # sample i stands at -i; a very short recording has fewer
    out[before - len(mirror) : before] = mirror[::-1]
    part = audio[max(begin, 0) - skipped : begin + n_samples - skipped]
    out[before : before + len(part)] = part
    return out.reshape(1, n_samples, 1)
