"""The `candlewick` command on the miniature checkpoint: what each command prints, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from candlewick.cli import app
from candlewick.commands import common
from candlewick.commands.transcribe import clock
from candlewick.program import Program
from candlewick.weights.load import Checkpoint
from candlewick.weights.safetensors import save

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


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 16000).astype(np.float32)
    return write_wav(tmp_path / "noise.wav", samples)


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


# ---- inspect ------------------------------------------------------------------------------------------------------

@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    save(path, {"a.weight": np.zeros((2, 3), np.float32), "[b]": np.ones(4, np.float16)}, {"format": "pt"})
    return path


def test_inspect_lists_tensors_metadata_and_totals(small):
    out = call("inspect", small).stdout
    assert "a.weight" in out and "f32" in out and "(2, 3)" in out and "metadata.format = pt" in out
    assert "[b]" in out, "a name in brackets is not markup"
    assert "2 tensors, 10 elements, 32 bytes" in out


def test_inspect_escapes_what_would_steer_the_terminal(tmp_path):
    path = tmp_path / "hostile.safetensors"
    head = json.dumps({"__metadata__": {"\x1b]0;x\x07": "\x1b[31m"}, "\x1b[2Jname\0\ud800": {
        "dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head)
    out = call("inspect", path).stdout
    assert "\\x1b[2Jname\\x00\\ud800" in out and "metadata.\\x1b]0;x\\x07 = \\x1b[31m" in out
    assert not any(c in out for c in "\x1b\x07\0")


def test_inspect_as_json(small):
    report = json.loads(call("inspect", small, "--json").stdout)
    assert report["totals"]["by_dtype"] == {"f32": {"tensors": 1, "elements": 6, "bytes": 24},
                                            "f16": {"tensors": 1, "elements": 4, "bytes": 8}}
    assert {row["name"]: row["shape"] for row in report["tensors"]} == {"a.weight": [2, 3], "[b]": [4]}


def test_inspect_a_checkpoint_folder_shows_its_config():
    out = call("inspect", MODEL).stdout
    assert "model.encoder.conv1.weight" in out and "config.d_model" in out


def test_inspect_a_folder_of_shards(tmp_path):
    save(tmp_path / "model-1.safetensors", {"a": np.zeros(2, np.float32)})
    save(tmp_path / "model-2.safetensors", {"b": np.zeros(3, np.float32)})
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    rows = json.loads(call("inspect", tmp_path, "--json").stdout)["tensors"]
    assert {row["name"]: row["file"] for row in rows} == index["weight_map"]


@pytest.mark.parametrize(("content", "words"), [
    (b"<!doctype html><html><head><title>Sign in</title>", "web page"),
    (b"", "0"),
    (b'{"weight_map": {"a": "b", "c": "d"}}', "JSON"),
    (b"PK\x03\x04" + bytes(60), "zip"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS"),
])
def test_inspect_says_what_a_wrong_file_looks_like(tmp_path, content, words):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    message = failure("inspect", path)
    assert "model.safetensors" in message and words in message


def test_inspect_a_missing_file(tmp_path):
    assert "no such file" in failure("inspect", tmp_path / "nothing.safetensors")


# ---- graph --------------------------------------------------------------------------------------------------------

def test_graph_lists_the_entries():
    out = call("graph", MODEL).stdout
    for entry in ("mel", "encode", "decode_1"):
        assert entry in out


@pytest.mark.parametrize(("model", "entry"), [("test-sam", "encode"), ("test-llama", "decode"),
                                              ("test-llama-gguf/model.gguf", "prefill")])
def test_graph_of_every_family(model, entry):
    assert entry in call("graph", ROOT / "models" / model).stdout
    assert f"program {entry}(" in call("graph", ROOT / "models" / model, entry).stdout


def test_graph_of_something_else_says_what_can_be_read(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    save(tmp_path / "model.safetensors", {"a": np.zeros(2, np.float32)})
    message = failure("graph", tmp_path)
    assert "whisper" in message and "sam" in message and "llama" in message


def test_graph_prints_the_program_before_and_after_passes():
    before = call("graph", MODEL, "encode", "--no-passes").stdout
    after = call("graph", MODEL, "encode").stdout
    assert before.startswith("program encode(") and "gelu(" in before
    assert "activation=gelu" in after and after.count("\n") < before.count("\n")


def test_graph_as_json_reads_back(tmp_path):
    out = tmp_path / "x.json"
    call("graph", MODEL, "mel", "-o", out)
    assert str(Program.from_json(out.read_text())) == call("graph", MODEL, "mel").stdout


def test_graph_as_dot_holds_every_instruction(tmp_path):
    out = tmp_path / "x.dot"
    call("graph", MODEL, "decode_1", "-o", out)
    text = out.read_text()
    boxes = [line for line in text.splitlines() if line.startswith("  i") and "->" not in line and "shape=note" not in line]
    assert len(boxes) == call("graph", MODEL, "decode_1").stdout.count("\n") - 2
    assert '"output logits"' in text and text.rstrip().endswith("}")


def test_graph_as_svg(tmp_path):
    if shutil.which("dot") is None:
        assert "install graphviz" in failure("graph", MODEL, "mel", "-o", tmp_path / "x.svg")
        pytest.skip("Graphviz's dot is not installed: only the message was checked")
    call("graph", MODEL, "mel", "-o", tmp_path / "x.svg")
    assert xml.etree.ElementTree.parse(tmp_path / "x.svg").getroot().tag.endswith("svg")


def test_graph_svg_without_graphviz_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install graphviz" in failure("graph", MODEL, "mel", "-o", tmp_path / "x.svg")
    assert list(tmp_path.iterdir()) == []


def test_graph_unknown_entry_and_ending(tmp_path):
    assert "it has mel, encode" in failure("graph", MODEL, "nothing")
    assert ".svg" in failure("graph", MODEL, "mel", "-o", tmp_path / "x.pdf")


# ---- compare ------------------------------------------------------------------------------------------------------

def test_compare_an_executor_with_itself():
    report = json.loads(call("compare", MODEL, "--executors", "numpy,numpy", "--json").stdout)
    assert report["same"] and [entry["entry"] for entry in report["entries"]][:2] == ["mel", "encode"]
    assert all(row["max_abs"] == 0 for entry in report["entries"] for row in entry["ops"].values())


def test_compare_numpy_and_wasm(noise):
    pytest.importorskip("wasmtime", reason="the wasm executor in CPython wants wasmtime")
    out = call("compare", MODEL, "--input", noise).stdout
    assert "decode_1" in out and "linear" in out and "no instruction differs" in out


def test_compare_names_the_first_instruction_beyond_the_tolerance():
    pytest.importorskip("wasmtime", reason="the wasm executor in CPython wants wasmtime")
    result = call("compare", MODEL, "--tolerance", 0, "--json", code=1)
    entries = json.loads(result.stdout)["entries"]
    first = next(entry["first"] for entry in entries if entry["first"])
    assert first["max_rel"] > 0 and " = " in first["instruction"]
    assert "first that differs" in call("compare", MODEL, "--tolerance", 0, code=1).stdout


def test_compare_wants_two_known_executors(tmp_path):
    assert "two names" in failure("compare", MODEL, "--executors", "numpy")
    assert "abacus" in failure("compare", MODEL, "--executors", "numpy,abacus")
    assert "no such file" in failure("compare", MODEL, "--input", tmp_path / "nothing.wav")


@pytest.mark.parametrize("option", [("--input", "a.wav"), ("--tolerance", "0.05")])
def test_compare_in_a_browser_refuses_what_it_would_ignore(option):
    assert " ".join(option) + ": --browser has" in failure("compare", MODEL, "--browser", *option)


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
    (("--beam", 0), "beam_size"), (("--beam", 5, "--patience", -1), "patience"), (("--patience", 2), "beam_size from 2 on"),
    (("--beam", 5, "--temperature", 0.3), "use best_of"), (("--best-of", 3, "--temperature", 0), "use beam_size"),
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


# ---- counting what a Program costs (tests/bench/floor.py) -----------------------------------------------------------

def test_floor_counts_operations_and_bytes():
    from candlewick import nn, ops
    from candlewick.trace import Spec, trace
    from tests.bench.floor import floor

    layer = nn.Linear(8, 4)

    class Model(nn.Module):
        def __init__(self):
            self.layer = layer

    Model().parameters()
    program = trace(lambda x: ops.relu(layer(x)), {"x": Spec((1, 3, 8))}, name="p")
    report = floor(program, gflops=1, gbps=1)
    assert report["ops"]["linear"]["operations"] == 2 * 3 * 8 * 4
    assert report["ops"]["linear"]["weight_bytes"] == 4 * (8 * 4 + 4)
    assert report["ops"]["relu"]["activation_bytes"] == 2 * 4 * 3 * 4


def test_floor_of_a_decode_step_reads_each_weight_as_it_lies_in_the_file():
    from candlewick.commands.families import load_any
    from candlewick.passes import optimise
    from tests.bench.floor import floor

    loaded = asyncio.run(load_any(Checkpoint.open(ROOT / "models" / "test-llama-gguf")))
    decode = optimise(loaded.programs["decode"])
    reports = {by: floor(decode, gflops=1, gbps=1, position=9, by=by) for by in ("op", "part", "layer")}
    matrices = [info.end - info.start for name, info in loaded.weights.bound.items()
                if len(info.shape) == 2 and (loaded.dims.tied or "embed" not in name)]
    assert reports["op"]["ops"]["linear"]["weight_bytes"] == sum(matrices)
    assert len({report["weight_bytes"] for report in reports.values()}) == 1
    assert reports["op"]["ops"]["rope"]["weight_bytes"] == 2 * loaded.dims.n_layer * 2 * loaded.dims.d_head // 2 * 4
    layers = [name for name in reports["layer"]["ops"] if name.startswith("model.layers.")]
    assert len(layers) == loaded.dims.n_layer and "model.layers.*.mlp" in reports["part"]["ops"]


def test_example_inputs_stay_within_tables():
    from candlewick.commands.graph import traced
    from candlewick.executors.example import advance, example_inputs

    programs = asyncio.run(traced(Checkpoint.open(MODEL)))
    config = json.loads((MODEL / "config.json").read_text())
    program = programs["decode_1"]
    inputs = example_inputs(program, position=10**6)
    assert inputs["pos"] == config["max_target_positions"] - 1 and inputs["last"] == 0
    assert advance(program) == 1 and inputs["tokens"].max() < config["vocab_size"]
