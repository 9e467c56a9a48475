"""Every error about an option names it as it was typed, with what was wanted and what came."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from candlewick import cli
from candlewick.commands.common import TYPED
from candlewick.models.llama import GenerateOptions
from candlewick.models.whisper import TranscribeOptions
from candlewick.options import OptionError
from tests.unit.command import MODEL, ROOT, call, failure

PIL = pytest.importorskip("PIL.Image", reason="needs Pillow")
LLAMA, SAM = ROOT / "models" / "test-llama", ROOT / "models" / "test-sam"


@pytest.fixture
def given(noise: Path, tmp_path: Path) -> dict[str, Path]:
    """Files of every kind by the words that the cases below have for them."""
    PIL.fromarray(np.zeros((37, 53, 3), np.uint8)).save(tmp_path / "photo.png")
    (tmp_path / "prompt.txt").write_text("Once")
    (tmp_path / "empty.txt").write_text("")
    return {"NOISE": noise, "PHOTO": tmp_path / "photo.png", "PROMPT": tmp_path / "prompt.txt", "EMPTY": tmp_path / "empty.txt",
            "DIR": tmp_path, "NO": tmp_path / "no" / "x"}


def words(text: str, given: dict[str, Path]) -> list[str]:
    files = {**given, "MODEL": MODEL, "LLAMA": LLAMA, "SAM": SAM}
    return [str(files.get(word, word)) for word in text.split()]


@pytest.mark.parametrize(("command", "option", "got"), [
    ("transcribe NOISE -m MODEL --beam 99", "--beam", "99"),
    ("transcribe NOISE -m MODEL --best-of 99", "--best-of", "99"),
    ("transcribe NOISE -m MODEL --beam 3 --patience 1000", "--patience", "1000"),
    ("transcribe NOISE -m MODEL --length-penalty 7", "--length-penalty", "7"),
    ("transcribe NOISE -m MODEL --language klingon", "--language", "klingon"),
    ("transcribe NOISE -m MODEL --task translate", "--task", "translate"),
    ("transcribe NOISE -m nothing", "--model", "nothing"),
    ("transcribe NOISE -m EMPTY", "--model", "empty.txt"),
    ("transcribe NOISE -m MODEL -o NO", "--output", "x"),
    ("segment PHOTO -m SAM --point 1;2", "--point 1;2", "wanted X,Y or X,Y,LABEL in pixels"),
    ("segment PHOTO -m SAM --box 1,2,3", "--box 1,2,3", "wanted X0,Y0,X1,Y1 in pixels"),
    ("segment PHOTO -m SAM --point 53,1", "--point 53,1: outside the picture, which is 53 x 37 pixels", "x goes from 0 to 52"),
    ("segment PHOTO -m SAM --point 1,1 --point 2,-1,0", "--point 2,-1", "y from 0 to 36"),
    ("segment PHOTO -m SAM --box 0,0,54,37", "--box 0,0,54,37", "53 x 37 pixels"),
    ("segment PHOTO -m SAM --point 1,1 -o x.gif", "--output", "x.gif"),
    ("generate Hi -m LLAMA --repeat-penalty 0", "--repeat-penalty", "0.0"),
    ("generate Hi -m LLAMA --temperature 1e7", "--temperature", "10000000.0"),
    ("generate Hi -m LLAMA --seed 9007199254740992", "--seed", "9007199254740992"),
    ("generate Hi -m LLAMA --capacity 1", "--capacity", "1"),
    ("generate Hi -m LLAMA --tokenizer NO", "--tokenizer", "x"),
    ("convert LLAMA NO --dtype q4_0", "output", "x"),
    ("convert LLAMA DIR", "output", "not empty"),
    ("graph MODEL nothing", "entry nothing", "it has mel"),
    ("graph MODEL mel -o x.pdf", "--output", "x.pdf"),
    ("compare MODEL --executors numpy,abacus", "--executors", "numpy,abacus"),
    ("compare MODEL --input NO", "--input", "x"),
    ("compare MODEL --browser --executors wasm,webgpu", "--executors", "wasm,webgpu"),
    ("bench transcribe --input NO -m MODEL", "--input", "x"),
    ("bench segment --input PHOTO -m SAM --point 99,1", "--point 99,1", "53 x 37 pixels"),
    ("bench generate --prompt-file EMPTY -m LLAMA", "--prompt-file", "empty.txt"),
    ("bench generate --prompt-file PROMPT -m LLAMA --json NO", "--json", "x"),
])  # fmt: skip
def test_what_cannot_be_names_the_option(given, command, option, got):
    said = failure(*words(command, given)).removeprefix("error: ")
    assert said.startswith((f"{option} ", f"{option}:"))
    assert got in said and not re.search(r"\b[a-z]+_[a-z_]+:", said), said


@pytest.mark.parametrize(("command", "option", "said"), [
    ("transcribe NOISE --temperature nan", "--temperature", "a number from 0 to 1, got nan"),
    ("transcribe NOISE --patience inf", "--patience", "a number, got inf"),
    ("transcribe NOISE --line 0", "--line", "a whole number from 1 on, got 0"),
    ("transcribe NOISE --beam 1.5", "--beam", "a whole number, got 1.5"),
    ("segment PHOTO --everything --points-per-side 129", "--points-per-side", "a whole number from 1 to 128, got 129"),
    ("generate Hi --top-p 2", "--top-p", "a number from 0 to 1, got 2"),
    ("generate Hi --threads none", "--threads", "a whole number from 1 to 256, got none"),
    ("compare MODEL --tolerance nan", "--tolerance", "a number from 0 on, got nan"),
    ("bench generate --prompt-file PROMPT --max-tokens 1", "--max-tokens", "a whole number from 2 on, got 1"),
])  # fmt: skip
def test_what_is_no_such_number_names_the_option(given, command, option, said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    output = call(*words(command, given), code=2).stderr
    assert option in output and f"wanted {said}" in output


def test_python_hears_the_names_of_python():
    for options, message in (({"beam_size": 0}, "beam_size: wanted"), ({"patience": 2}, "give a beam_size from 2 on"),
                             ({"beam_size": 3, "temperatures": (0.5,)}, "temperatures is 0.5; give 0, or use best_of")):
        with pytest.raises(ValueError, match=message):
            TranscribeOptions(**options)
    with pytest.raises(ValueError, match="max_tokens: wanted a whole number from 1 on, got 0"):
        GenerateOptions(max_tokens=0)


def test_values_are_never_taken_for_names():
    error = OptionError("{model} {name} not found", name="{model}{0}")
    assert str(error) == "model {model}{0} not found"
    assert error.said(lambda name: f"--{name}") == "--model {model}{0} not found"


def test_the_typed_names_are_options_of_the_command():
    """TYPED says what the command has, and what Python has."""
    options = set(re.findall(r'"(--[a-z-]+)"', inspect.getsource(cli)))
    options |= {"--" + name.replace("_", "-") for command in (cli.transcribe, cli.segment, cli.generate)
                for name in inspect.signature(command).parameters}
    assert set(TYPED.values()) <= options
    assert set(TYPED) <= set(TranscribeOptions.__dataclass_fields__) | {"points"}


@pytest.mark.parametrize("name", ["transcribe", "segment", "generate", "convert", "inspect", "graph", "compare",
                                  "bench transcribe", "bench segment", "bench generate"])
def test_help_has_examples_whose_options_there_are(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = call(*name.split(), "--help").stdout
    options, _, examples = text.partition("Examples:")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines and all(line.startswith(f"candlewick {name} ") for line in lines)
    for option in re.findall(r" (--?[a-z][a-z-]*)", examples):
        assert re.search(rf"{option}\s", options), option
