"""What several of these tests are given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    """A second of noise as a WAV file."""
    from tests.unit.command import write_wav

    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 16000).astype(np.float32)
    return write_wav(tmp_path / "noise.wav", samples)
