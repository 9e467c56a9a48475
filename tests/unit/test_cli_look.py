"""`candlewick inspect`, `graph` and `compare` on the miniatures: what they print, and what they say when they cannot."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

from candlewick.program import Program
from candlewick.weights.load import Checkpoint
from candlewick.weights.safetensors import save
from tests.unit.command import MODEL, ROOT, call, failure

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
    assert "wanted two of numpy" in failure("compare", MODEL, "--executors", "numpy")
    assert "abacus" in failure("compare", MODEL, "--executors", "numpy,abacus")
    assert "no such file" in failure("compare", MODEL, "--input", tmp_path / "nothing.wav")


@pytest.mark.parametrize("option", [("--input", "a.wav"), ("--tolerance", "0.05")])
def test_compare_in_a_browser_refuses_what_it_would_ignore(option):
    assert " ".join(option) + ": --browser has" in failure("compare", MODEL, "--browser", *option)


def test_example_inputs_stay_within_tables():
    from candlewick.commands.graph import traced
    from candlewick.executors.example import advance, example_inputs

    programs = asyncio.run(traced(Checkpoint.open(MODEL)))
    config = json.loads((MODEL / "config.json").read_text())
    program = programs["decode_1"]
    inputs = example_inputs(program, position=10**6)
    assert inputs["pos"] == config["max_target_positions"] - 1 and inputs["last"] == 0
    assert advance(program) == 1 and inputs["tokens"].max() < config["vocab_size"]
