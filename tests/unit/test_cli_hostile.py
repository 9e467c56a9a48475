"""The command in hostile hands: whatever comes, one line of words and the right exit status, and nothing half-written left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.unit.command import MODEL, ROOT, call, failure

PIL = pytest.importorskip("PIL.Image", reason="needs Pillow")
MODELS = ROOT / "models"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "py")}
LLAMA, SAM = MODELS / "test-llama", MODELS / "test-sam"


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    PIL.fromarray(np.zeros((37, 53, 3), np.uint8)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_what_is_read_is_never_written_over(noise, photo, tmp_path):
    before = noise.read_bytes(), photo.read_bytes()
    (tmp_path / "link.wav").symlink_to(noise)
    for output in (noise, tmp_path / "link.wav"):
        assert "is what is to be read; give another name" in failure("transcribe", noise, "-m", MODEL, "-o", output)
    assert "is what is to be read" in failure("segment", photo, "-m", SAM, "--point", "1,1", "-o", photo)
    assert (noise.read_bytes(), photo.read_bytes()) == before


@pytest.mark.parametrize(("command", "said"), [
    ("segment PHOTO -m SAM --everything --multimask", "leave --multimask out"),
    ("segment PHOTO -m SAM --point 1,1 --points-per-side 4", "--points-per-side does nothing without --everything"),
    ("transcribe NOISE -m MODEL --carry-prompt", "--carry-prompt does nothing without --prompt"),
    ("transcribe NOISE -m MODEL --words -f srt", "--words does nothing without --format json, or --line"),
    ("generate Hi -m LLAMA --greedy --temperature 0.5", "--temperature 0.5: --greedy always takes"),
    ("graph MODEL -o x.svg", "--output does nothing without an entry"),
    ("bench transcribe --input NOISE -m MODEL --starts 2", "--starts does nothing without --browser"),
    ("bench generate --prompt-file NOISE -m LLAMA --profile", "--profile does nothing without --browser"),
    ("compare MODEL --browser --input NOISE", "leave one of the two out"),
])  # fmt: skip
def test_options_that_would_be_ignored_are_refused(noise, photo, command, said):
    names = {"PHOTO": photo, "NOISE": noise, "MODEL": MODEL, "SAM": SAM, "LLAMA": LLAMA}
    assert said in failure(*(names.get(word, word) for word in command.split()))


def test_convert_into_what_is_no_folder(tmp_path):
    for target in (tmp_path / "x.pdf", tmp_path / "x.onnx", Path(os.devnull)):
        assert "is no folder's name; give x.gguf" in failure("convert", LLAMA, target)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    """Ctrl-C while the weights are written: not even the folder is there. Then the same into an empty folder."""
    from candlewick.commands import convert

    monkeypatch.setattr(convert, "progress", lambda *_: signal.raise_signal(signal.SIGINT))
    result = call("convert", LLAMA, tmp_path / "new", code=130)
    assert result.stderr.strip() == "stopped" and list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    (tmp_path / "new").mkdir()
    call("convert", LLAMA, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new" / "model.safetensors").is_file() and (tmp_path / "new" / "config.json").is_file()


def test_convert_keeps_a_link(tmp_path):
    (tmp_path / "b.gguf").write_bytes(b"")
    (tmp_path / "a.gguf").symlink_to(tmp_path / "b.gguf")
    call("convert", LLAMA, tmp_path / "a.gguf")
    assert (tmp_path / "a.gguf").is_symlink() and (tmp_path / "b.gguf").stat().st_size > 1000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="wants a system with pipes that have names")
def test_pipes_and_devices(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "a pipe or a device" in failure("transcribe", tmp_path / "pipe", "-m", MODEL)
    assert "a pipe or a device" in failure("inspect", tmp_path / "pipe")
    assert "no sound file" in failure("transcribe", os.devnull, "-m", MODEL)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="wants a device that is always full")
def test_a_full_output_is_named(noise):
    said = failure("transcribe", noise, "-m", MODEL, "-q", "-o", "/dev/full")
    assert said == "error: /dev/full: no space left on the disk; free some, or write to another one\n"


@pytest.mark.skipif(os.name == "nt", reason="names there are no bytes")
def test_names_that_are_no_utf_8(noise, photo, tmp_path):
    name = os.fsdecode(b"n\xff")
    shutil.copy(noise, tmp_path / f"{name}.wav")
    call("transcribe", tmp_path / f"{name}.wav", "-m", MODEL, "-q", "--temperature", "0", "-o", tmp_path / f"{name}.txt")
    assert (tmp_path / f"{name}.txt").is_file()
    assert call("generate", name, "-m", LLAMA, "--max-tokens", "2", "--stop", name, "-q").stderr == ""
    words = [sys.executable, "-m", "candlewick.cli", "transcribe", str(tmp_path / f"{name}.mp3"), "-m", str(MODEL)]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, check=False, errors="replace")
    assert done.returncode == 1 and done.stderr.startswith("error: recording ") and done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="wants a shell that closes files")
def test_closed_input_and_a_reader_that_leaves():
    line = f"{sys.executable} -m candlewick.cli"
    for words, said in ((f"generate --chat -m {LLAMA} <&-", "standard input is closed"),
                        (f"generate -m {LLAMA} <&-", "say what to go on from")):
        done = subprocess.run(f"{line} {words}", shell=True, capture_output=True, text=True, env=ENVIRONMENT, check=False)
        assert done.returncode == 1 and done.stderr.startswith(f"error: {said}") and done.stderr.count("\n") == 1
    first = f"{line} inspect {MODEL} --json | head -c 1"
    done = subprocess.run(first, shell=True, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.stderr == "" and done.stdout == "{"


def test_inspect_by_name():
    assert call("inspect", "test-whisper").stdout == call("inspect", MODELS / "test-whisper").stdout
    assert "or give one of " in failure("inspect", "no-such-model")
