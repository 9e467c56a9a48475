"""What the documentation says, held against the code: its examples run, its names, options and codes are those there are."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import candlewick
from tests.unit.command import call, write_wav

PIL = pytest.importorskip("PIL.Image", reason="needs Pillow")

ROOT = Path(__file__).parents[2]
PYTHON = (ROOT / "docs" / "python.md").read_text()
JAVASCRIPT = (ROOT / "docs" / "javascript.md").read_text()
DESIGN = (ROOT / "docs" / "DESIGN.md").read_text()
PROTOCOL = (ROOT / "workers" / "protocol.js").read_text()
SHIPPED = {"whisper-tiny.en": "test-whisper", "mobilesam": "test-sam", "smollm2-135m-instruct": "test-llama"}
"""Miniatures in the place of the checkpoints that the examples take."""


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def test_the_examples_in_python_run(tmp_path, monkeypatch):
    for name, miniature in SHIPPED.items():
        (tmp_path / "models" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "models" / name).symlink_to(ROOT / "models" / miniature)
    monkeypatch.setenv("CANDLEWICK_MODELS", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    write_wav(tmp_path / "talk.mp3", np.random.default_rng(0).uniform(-0.3, 0.3, 16000).astype(np.float32))
    PIL.fromarray(np.random.default_rng(1).integers(0, 256, (480, 640, 3), np.uint8)).save(tmp_path / "cat.jpg")
    runnable = [block for block in blocks(PYTHON, "python") if ") ->" not in block]
    assert len(runnable) >= 3
    names = {name: getattr(candlewick, name) for name in ("transcribe", "segment", "generate")}
    try:
        for block in runnable:
            exec(compile(block, "docs/python.md", "exec"), names)
    finally:
        candlewick.unload()


def test_the_signature_in_the_documentation():
    (written,) = (block for block in blocks(PYTHON, "python") if ") ->" in block)
    parameters = inspect.signature(candlewick.transcribe).parameters
    for name, parameter in parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            assert f"{name}={parameter.default!r}".replace("'", '"') in written
    assert set(re.findall(r"(\w+)=", written)) <= set(parameters)


def test_codes_and_calls_of_the_javascript_page_are_those_there_are():
    codes = set(re.findall(r'"(\w+)"', re.search(r"@typedef \{([^}]*)\} ErrorCode", PROTOCOL)[1]))
    said = JAVASCRIPT[JAVASCRIPT.index("What rejects is"):]
    assert set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", said)) - {"code", "message"} == codes
    client = (ROOT / "workers" / "client.js").read_text()
    for name in re.findall(r"^\| `(\w+)(?:\(\))?`", JAVASCRIPT, re.M):
        assert re.search(rf"^  (?:async )?{name}\(", client, re.M), name


def test_requests_of_the_design_are_those_of_the_protocol():
    listed = DESIGN.split("request   {id, method, params}", 1)[1].split("response  {id, result}")[0]
    methods = re.findall(r'"(\w+)"', re.search(r"@typedef \{([^}]*)\} Method\b", PROTOCOL)[1])
    assert sorted(re.findall(r"\w+", listed)) == sorted(methods)


@pytest.mark.parametrize("page", ["README.md", "docs/python.md", "tests/bench/README.md", "models/README.md", "docs/DESIGN.md"])
def test_commands_in_the_documentation_have_the_options_they_are_given(page, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = (ROOT / page).read_text().replace("\\\n", " ")
    commands = r"(?:transcribe|segment|generate|convert|inspect|graph|compare)"
    for words in re.findall(rf"candlewick((?: bench)? {commands}\b[^`\n]*)", text):
        name = re.match(r"(?: bench)? \w+", words)[0].split()
        options = call(*name, "--help").stdout
        for option in re.findall(r"(?<= )--?[a-z][a-z-]*", words):
            assert re.search(rf"{option}\s", options), f"{page}: candlewick{words}"


@pytest.mark.parametrize("page", ["README.md", "docs/DESIGN.md", "docs/python.md", "docs/javascript.md"])
def test_links_lead_to_files(page):
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text()):
        assert (folder / target).exists(), target
