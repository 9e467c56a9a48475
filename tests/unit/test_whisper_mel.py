"""The log-mel front end by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.whisper.mel import HOP, N_FFT, LogMel, dft_filters, mel_filters, window
from candlewick.trace import Spec, trace
from candlewick.weights.load import Weights

GOLDEN = np.load(Path(__file__).resolve().parents[1] / "golden/whisper/golden.npz")


@pytest.mark.parametrize("n_mels", [80, 128])
def test_filters_equal_those_of_transformers(n_mels):
    assert np.abs(mel_filters(n_mels) - GOLDEN[f"mel_filters.{n_mels}"]).max() < 1e-8


def test_dft_filters_are_the_transform():
    x = np.random.default_rng(0).standard_normal(N_FFT)
    hann = np.hanning(N_FFT + 1)[:-1]
    wanted = np.fft.rfft(x * hann)
    got = dft_filters()[:, 0].astype(np.float64) @ x
    assert np.abs(got - np.concatenate([wanted.real, -wanted.imag])).max() < 1e-5


def plain_log_mel(x: np.ndarray, n_mels: int, n_frames: int) -> np.ndarray:
    """The textbook way in float64: pad, cut into frames, FFT, mel, logarithm. (n_frames, n_mels)"""
    x = np.pad(x.astype(np.float64), (0, n_frames * HOP + N_FFT - len(x)))
    x = np.pad(x, (N_FFT // 2, 0), mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(x, N_FFT)[::HOP][:n_frames]
    power = np.abs(np.fft.rfft(frames * np.hanning(N_FFT + 1)[:-1])) ** 2
    return np.log10(np.maximum(power @ mel_filters(n_mels).T.astype(np.float64), 1e-10))


@pytest.fixture(params=["numpy", "wasm"])
async def log_mel(request):
    """-> function (audio, start frame, n_mels) -> (50, n_mels)"""
    try:
        executor = executors.create(request.param)
    except (executors.ExecutorUnavailable, ImportError) as e:
        pytest.skip(f"executor {request.param}: {e}")
    n_samples = 49 * HOP + N_FFT

    async def run(audio, start, n_mels=80):
        front = LogMel(n_mels)
        front.constants()
        front.bands.name = f"bands_{n_mels}"  # an executor shares constants by name
        constants = {c.name: c.array for c in (front.dft, front.bands)}
        program = trace(front, {"samples": Spec((1, n_samples, 1))}, name=f"mel_{n_mels}")
        await executor.load({program.name: program}, Weights(None, {}, constants))
        return (await executor.run(program.name, {"samples": window(audio, start, n_samples)}))["out"][0]

    yield run
    await executor.close()


@pytest.mark.parametrize("n", [0, 1, 2, 100, 199, 200, 201, 400, 7000])
async def test_short_recordings(log_mel, n):
    """BR-10: padding looks at no sample that is not there, and all features are finite."""
    audio = np.random.default_rng(n).uniform(-0.5, 0.5, n).astype(np.float32)
    got = await log_mel(audio, 0)
    assert np.isfinite(got).all() and np.abs(got - plain_log_mel(audio, 80, 50)).max() < 2e-3


async def test_windows_have_their_real_neighbours(log_mel):
    """A frame is the same in whatever window it is computed."""
    audio = np.random.default_rng(1).uniform(-0.5, 0.5, 16000).astype(np.float32)
    whole = plain_log_mel(audio, 80, 100)
    for start in (0, 1, 7, 50, 90):
        got = await log_mel(audio, start)
        assert np.abs(got[: 100 - start] - whole[start : start + 50]).max() < 2e-3


async def test_silence_and_loudness(log_mel):
    """BR-06: zeros are finite, all at the floor; a full-scale tone stands 100 dB above it at its own place."""
    assert (await log_mel(np.zeros(9000, np.float32), 0) < -9.9999).all()
    t = np.arange(16000) / 16000
    got = await log_mel(np.sin(2 * np.pi * 1000 * t).astype(np.float32), 10, 128)
    wanted = plain_log_mel(np.sin(2 * np.pi * 1000 * t), 128, 100)[10:60]
    assert got.shape == (50, 128) and np.array_equal(got.argmax(1)[:40], wanted.argmax(1)[:40])
    assert np.abs(np.maximum(got, wanted.max() - 8) - np.maximum(wanted, wanted.max() - 8)).max() < 2e-3
