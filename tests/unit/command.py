"""The `candlewick` command as tests call it: its words in, its exit status checked."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from candlewick.cli import app

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "test-whisper"


def call(*words: object, code: int = 0):
    """Runs the command and checks its exit status; anything but SystemExit is a bug and is raised."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def failure(*words: object) -> str:
    """The one line that a failing command prints."""
    result = call(*words, code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def write_wav(path: Path, samples: np.ndarray, rate: int = 16000) -> Path:
    """samples float32 (n_samples,), -1 to 1, as 16-bit mono."""
    data = (samples * 32767).astype("<i2").tobytes()
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16,
                       b"data", len(data))
    path.write_bytes(head + data)
    return path
