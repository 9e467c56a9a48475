"""The `candlewick` command as a whole, and `transcribe` on the miniature: what is printed, and what is said when it fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from candlewick.commands import common
from candlewick.commands.transcribe import clock
from tests.unit.command import MODEL, ROOT, call, failure, write_wav

# ---- the command as a whole ---------------------------------------------------------------------------------------

def test_help_names_the_commands_and_loads_no_model():
    code = ("import sys; from candlewick.cli import app; app(['--help'], standalone_mode=False);"
            "heavy = [m for m in sys.modules if m.startswith(('candlewick.models', 'candlewick.executors', 'playwright',"
            "'wasmtime', 'soundfile'))]; assert not heavy, heavy")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "py")})
    assert done.returncode == 0, done.stderr
    for name in ("transcribe", "inspect", "graph", "compare", "bench"):
        assert name in done.stdout


def test_version():
    from candlewick import __version__

    assert call("--version").stdout.strip() == __version__


def test_unknown_model_lists_the_ones_there_are(noise):
    message = failure("transcribe", noise, "--model", "whisper-enormous")
    assert "whisper-enormous not found" in message and "test-whisper" in message


def test_an_empty_model_file(noise, tmp_path):
    (tmp_path / "empty.bin").write_bytes(b"")
    assert "the file is empty" in failure("transcribe", noise, "--model", tmp_path / "empty.bin")


def test_models_from_the_environment_come_first(tmp_path, monkeypatch):
    shutil.copytree(MODEL, tmp_path / "mine")
    monkeypatch.setenv("CANDLEWICK_MODELS", str(tmp_path))
    assert common.find_model("mine") == (tmp_path / "mine").resolve()
    assert next(iter(common.available_models())) == "mine"


def test_a_model_without_weights_says_how_to_get_them(tmp_path, monkeypatch):
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "manifest.json").write_text("{}")
    monkeypatch.setenv("CANDLEWICK_MODELS", str(tmp_path))
    for name in ("later", tmp_path / "later"):
        assert "serve.py --setup" in failure("graph", name)


def test_a_folder_that_is_no_checkpoint_and_a_file(tmp_path, noise):
    assert "config.json" in failure("graph", tmp_path)
    assert "give the folder" in failure("transcribe", noise, "-m", MODEL / "config.json")


# ---- transcribe ---------------------------------------------------------------------------------------------------

def test_transcribe_writes_text_to_stdout(noise):
    result = call("transcribe", noise, "--model", MODEL, "--format", "json", "--temperature", 0)
    answer = json.loads(result.stdout)
    assert set(answer) >= {"text", "segments", "duration", "timings"} and answer["duration"] == pytest.approx(1)
    lines = call("transcribe", noise, "--model", MODEL, "--temperature", 0).stdout.splitlines()
    assert lines == [" ".join(segment["text"].split()) for segment in answer["segments"]]


@pytest.mark.parametrize(("form", "start"), [("txt", ""), ("srt", ""), ("vtt", "WEBVTT"), ("json", "{")])
def test_transcribe_writes_each_format_to_a_file(noise, tmp_path, form, start):
    out = tmp_path / f"out.{form}"
    result = call("transcribe", noise, "-m", MODEL, "-f", form, "-o", out, "--temperature", 0, "--quiet")
    assert result.stdout == "" and out.read_text().startswith(start)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".candlewick")] == []


def test_transcribe_on_the_wasm_executor_gives_the_same(noise):
    pytest.importorskip("wasmtime", reason="the wasm executor in CPython wants wasmtime")
    words = ("transcribe", noise, "-m", MODEL, "--temperature", 0)
    assert call(*words, "--executor", "wasm").stdout == call(*words, "--executor", "numpy").stdout


def test_transcribe_silence_says_that_nothing_was_said(tmp_path):
    silence = write_wav(tmp_path / "silence.wav", np.zeros(16000, np.float32))
    result = call("transcribe", silence, "-m", MODEL)
    assert result.stdout == "" and "no speech" in result.stderr


def test_transcribe_missing_recording(tmp_path):
    assert "no such file" in failure("transcribe", tmp_path / "nothing.wav", "-m", MODEL)
    assert "folder" in failure("transcribe", tmp_path, "-m", MODEL)


def test_transcribe_a_file_that_is_not_audio(tmp_path):
    page = tmp_path / "talk.wav"
    page.write_text("<!doctype html><html><body>not found</body></html>")
    assert "talk.wav" in failure("transcribe", page, "-m", MODEL)


def test_transcribe_refuses_an_output_before_it_works(noise, tmp_path):
    assert "does not exist" in failure("transcribe", noise, "-m", MODEL, "-o", tmp_path / "no" / "x.txt")
    assert "is a folder" in failure("transcribe", noise, "-m", MODEL, "-o", tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="wants a device that is always full")
@pytest.mark.parametrize("words", [("transcribe", "{noise}", "-q", "-m", MODEL, "-f", "json"), ("inspect", MODEL)])
def test_full_disk_and_closed_output_are_one_line(noise, words):
    command = [sys.executable, "-m", "candlewick.cli", *(str(word).format(noise=noise) for word in words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "py")}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: no space left on the disk") and done.stderr.count("\n") == 1
    if words[0] == "transcribe":
        shell = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
        done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, env=environment, check=False)
        assert done.returncode == 1 and done.stderr == "error: standard output is closed; give a file with -o\n"


def test_errors_of_the_system_say_what_to_do(tmp_path):
    loop = tmp_path / "loop.wav"
    loop.symlink_to(loop)
    for error, words in ((PermissionError(13, "Permission denied", "x.wav"), "x.wav: no permission"),
                         (OSError(28, "No space left on device"), "no space left on the disk; free some"),
                         (OSError(5, "Input/output error", "x.wav"), "x.wav: input/output error")):
        assert common.describe(error).startswith(words)
    assert "error: " in failure("transcribe", loop, "-m", MODEL)


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="wants a folder that not even root can write in")
def test_transcribe_into_a_folder_that_cannot_be_written(noise):
    assert "cannot write" in failure("transcribe", noise, "-m", MODEL, "-o", "/proc/candlewick.txt")


def test_transcribe_with_a_search(noise):
    """Every option of the decoder gets there; on noise a random model guesses, so that beams and samples take their turns."""
    words = ("--beam", 2, "--patience", 1.5, "--length-penalty", 0.6, "--best-of", 2, "--hotwords", "lamp", "--prompt", "boats",
             "--carry-prompt", "--fast", "-q")
    once, again = (json.loads(call("transcribe", noise, "-m", MODEL, "-f", "json", *words).stdout) for _ in range(2))
    assert once["segments"] and once["segments"] == again["segments"]  # the same seed


@pytest.mark.parametrize(("words", "message"), [
    (("--beam", 0), "--beam: wanted"), (("--beam", 5, "--patience", -1), "--patience"), (("--patience", 2), "--beam from 2 on"),
    (("--beam", 5, "--temperature", 0.3), "use --best-of"), (("--best-of", 3, "--temperature", 0), "use --beam"),
    (("--length-penalty", 2), "from 0 to 1"),
])
def test_transcribe_refuses_a_search_that_cannot_be(noise, words, message):
    assert message in failure("transcribe", noise, "-m", MODEL, *words)


def test_transcribe_refuses_what_the_checkpoint_cannot_do(noise):
    config = json.loads((MODEL / "generation_config.json").read_text())
    language = "xx"
    if not config.get("is_multilingual", True):
        language = "de"
    assert language in failure("transcribe", noise, "-m", MODEL, "--language", language)
    assert call("transcribe", noise, "-m", MODEL, "--format", "doc", code=2).stdout == ""


def test_ctrl_c_leaves_no_file_behind(noise, tmp_path, monkeypatch):
    """Ctrl-C while text is found: nothing is written, what was there stays."""
    from candlewick.commands.transcribe import Progress

    out = tmp_path / "out.txt"
    out.write_text("as it was")
    monkeypatch.setattr(Progress, "on_event", lambda self, event: signal.raise_signal(signal.SIGINT))
    result = call("transcribe", noise, "-m", MODEL, "-o", out, code=130)
    assert result.stderr.strip().endswith("stopped") and "Traceback" not in result.stderr
    assert out.read_text() == "as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["noise.wav", "out.txt"]


def test_clock():
    assert [clock(t) for t in (0, 75.25, 59.96, 3600)] == ["00:00.0", "01:15.2", "01:00.0", "1:00:00.0"]


# ---- bench --------------------------------------------------------------------------------------------------------

FIELDS = {"executor", "threads", "load_ms", "load_cached_ms", "first_text_ms", "mel_ms", "encode_ms", "decode_ms",
          "tokens", "total_ms", "text", "segments", "memory_bytes"}


def test_bench_in_cpython_prints_one_json_object(noise):
    report = json.loads(call("bench", "transcribe", "--input", noise, "-m", MODEL, "--executor", "numpy", "--runs", 2).stdout)
    assert set(report) >= FIELDS and report["executor"] == "numpy"
    assert all(len(report[name]) == 2 for name in ("mel_ms", "encode_ms", "decode_ms", "total_ms"))


def test_bench_errors(noise, tmp_path):
    assert "no such file" in failure("bench", "transcribe", "--input", tmp_path / "nothing.wav", "-m", MODEL)
    assert "is a folder" in failure("bench", "transcribe", "--input", noise, "-m", MODEL, "--json", tmp_path)


# ---- writing files ------------------------------------------------------------------------------------------------

def test_write_whole_keeps_the_old_file_when_it_fails(tmp_path):
    target = tmp_path / "x.txt"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        common.write_whole(target, "new \ud800")
    assert target.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["x.txt"]


def test_write_whole_follows_links_keeps_the_mode_and_leaves_devices_alone(tmp_path):
    target, link = tmp_path / "x.txt", tmp_path / "link.txt"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    common.write_whole(link, "new")
    assert link.is_symlink() and target.read_text() == "new" and target.stat().st_mode & 0o777 == 0o640
    common.write_whole(Path(os.devnull), "gone")
    assert not Path(os.devnull).is_file()
