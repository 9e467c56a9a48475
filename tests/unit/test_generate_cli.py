"""`candlewick generate` and `candlewick bench generate` on the miniatures: plain text, chat, Ctrl-C, errors in words."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs typer")

from typer.testing import CliRunner

from candlewick import executors
from candlewick.cli import app
from candlewick.commands import generate as command
from candlewick.models.llama import GenerateOptions, Generator
from candlewick.weights.load import Checkpoint

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "test-llama"
GGUF = ROOT / "models" / "test-llama-gguf"


def run(*words: object, code: int = 0, stdin: str | None = None):
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def generate(*words: object, code: int = 0, stdin: str | None = None, model: Path = MODEL):
    return run("generate", *words, "-m", model, "--executor", "numpy", code=code, stdin=stdin)


def failure(*words: object, stdin: str | None = None) -> str:
    result = generate(*words, code=1, stdin=stdin)
    assert result.stdout == "" and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    return result.stderr


def expected(prompt, **options) -> dict:
    """The result of the Generator itself."""
    async def work():
        executor = executors.create("numpy")
        generator = await Generator.load(Checkpoint.open(MODEL), executor)
        async for event in generator.generate(prompt, GenerateOptions(**options)):
            if event["event"] == "result":
                return event["result"]

    return asyncio.run(work())


# ---- plain text ---------------------------------------------------------------------------------------------------

def test_text_on_standard_output_is_what_the_generator_gives():
    want = expected("Once upon", max_tokens=12, greedy=True, repeat_penalty=1.0)
    assert generate("Once upon", "--greedy", "--max-tokens", 12).stdout.rstrip("\n") == want["text"].rstrip("\n")


def test_prompt_from_a_pipe():
    want = generate("Once upon", "--greedy", "--max-tokens", 6).stdout
    assert generate("--greedy", "--max-tokens", 6, stdin="Once upon").stdout == want
    assert generate("-", "--greedy", "--max-tokens", 6, stdin="Once upon").stdout == want


def test_json_with_every_option():
    words = ("Once", "--temperature", 0.9, "--top-k", 20, "--top-p", 0.9, "--min-p", 0.01, "--repeat-penalty", 1.2,
             "--seed", 7, "--max-tokens", 8, "--json", "--logprobs")
    answer = json.loads(generate(*words).stdout)
    want = expected("Once", temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, repeat_penalty=1.2, seed=7, max_tokens=8)
    assert answer["token_ids"] == want["token_ids"] and answer["text"] == want["text"] and answer["seed"] == 7
    chosen = [row["id"] for row in answer["tokens"] if row["id"] is not None]
    assert chosen == answer["token_ids"] and all(len(row["top"]) == 5 for row in answer["tokens"] if row["id"] is not None)


def test_stop_strings_end_the_text():
    whole = json.loads(generate("Once upon", "--greedy", "--max-tokens", 30, "--json").stdout)["text"]
    stop = next(whole[i:i + 2] for i in range(4, len(whole) - 2) if whole[i:i + 2].isascii())
    answer = json.loads(generate("Once upon", "--greedy", "--max-tokens", 30, "--stop", stop, "--json").stdout)
    assert answer["stop_reason"] == "stop" and answer["text"] == whole[:whole.index(stop)]


def test_logprobs_are_a_line_for_each_token():
    lines = generate("Once upon", "--greedy", "--max-tokens", 4, "--logprobs").stdout.splitlines()
    assert len([line for line in lines if re.match(r" *-?\d+\.\d{3}  \"", line)]) == 4


def test_a_file_and_the_wasm_executor():
    pytest.importorskip("wasmtime", reason="the wasm executor in CPython wants wasmtime")
    (file,) = GGUF.glob("*.gguf")
    by_folder = generate("a", "--greedy", "--max-tokens", 5, model=GGUF).stdout
    assert generate("a", "--greedy", "--max-tokens", 5, model=file).stdout == by_folder
    assert run("generate", "a", "-m", file, "--executor", "wasm", "--threads", 1, "--greedy", "--max-tokens", 5).stdout


def test_a_tokenizer_elsewhere(tmp_path):
    source = ROOT / "models" / "test-llama-bin"
    model = next(path for path in source.glob("*.bin") if path.name != "tokenizer.bin")
    shutil.copy(model, tmp_path / "stories.bin")
    there = generate("a", "--greedy", "--max-tokens", 5, model=source).stdout
    assert generate("a", "--greedy", "--max-tokens", 5, "--tokenizer", source / "tokenizer.bin",
                    model=tmp_path / "stories.bin").stdout == there
    assert "no such file" in run("generate", "a", "-m", tmp_path / "stories.bin", "--tokenizer", tmp_path / "x", code=1).stderr
    assert "tokenizer" in run("generate", "a", "-m", tmp_path / "stories.bin", "--executor", "numpy", code=1).stderr


def test_what_steers_a_terminal_is_escaped():
    assert command.visible("a\x1b[2Jb\n\tä\u202e") == "a\\x1b[2Jb\n\tä\\u202e"


# ---- chat ---------------------------------------------------------------------------------------------------------

def test_one_question():
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hi"}]
    want = expected(messages, max_tokens=6, greedy=True, repeat_penalty=1.0)
    answer = json.loads(generate("hi", "--chat", "--system", "Be short.", "--greedy", "--max-tokens", 6, "--json").stdout)
    assert answer["token_ids"] == want["token_ids"] and answer["prompt_tokens"] == want["prompt_tokens"]


def test_questions_by_the_line_share_a_conversation_until_reset():
    questions = "hi\n\nyou \\\nthere\n/reset\nhi\n/exit\nno\n"
    answers = generate("--chat", "--greedy", "--max-tokens", 4, "--json", "-q", stdin=questions)
    first, second, third = (json.loads(line) for line in answers.stdout.splitlines())
    assert first["token_ids"] == third["token_ids"] and second["prompt_tokens"] > first["prompt_tokens"]
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": first["text"]},
               {"role": "user", "content": "you \nthere"}]
    want = expected(history, max_tokens=4, greedy=True, repeat_penalty=1.0)
    assert second["token_ids"] == want["token_ids"] and second["prompt_tokens"] == want["prompt_tokens"]


def test_a_question_beyond_the_context_is_told_in_words():
    assert "tokens" in failure("--chat", "-q", stdin="word " * 4000)


@pytest.mark.skipif(sys.platform == "win32", reason="wants a pseudo-terminal")
def test_conversation_at_a_terminal():
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "candlewick.cli", "generate", "--chat", "-m", MODEL, "--executor", "numpy", "--max-tokens", "3"],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "py"), "TERM": "dumb"})
    os.close(theirs)
    said = ""

    def until(words: str) -> str:
        nonlocal said
        deadline = time.monotonic() + 120
        while words not in said:
            assert time.monotonic() < deadline, said
            said += os.read(ours, 4096).decode(errors="replace")
        before, _, said = said.partition(words)
        return before

    assert "/reset" in until("> ")
    os.write(ours, b"hi\n")
    assert "seed" in until("> ")
    os.write(ours, b"/reset\n")
    until("anew")
    until("> ")
    os.write(ours, b"/exit\n")
    assert process.wait(60) == 0
    os.close(ours)


# ---- Ctrl-C -------------------------------------------------------------------------------------------------------

def test_ctrl_c_stops_and_keeps_the_text(monkeypatch):
    shown = []
    show = command.Session._show_text

    def press(self, event):
        show(self, event)
        shown.append(event["text"])
        if len(shown) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(command.Session, "_show_text", press)
    before = signal.getsignal(signal.SIGINT)
    result = generate("Once upon", "--greedy", "--max-tokens", 100, code=130)
    whole = expected("Once upon", max_tokens=100, greedy=True, repeat_penalty=1.0)["text"]
    text = result.stdout.rstrip("\n")
    assert 3 <= len(shown) <= 5 and text and whole.startswith(text) and result.stderr.endswith("stopped\n")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_twice_ends_at_once():
    with pytest.raises(KeyboardInterrupt), command.interruptible() as pressed:
        assert not pressed()
        signal.raise_signal(signal.SIGINT)
        assert pressed()
        signal.raise_signal(signal.SIGINT)


# ---- errors -------------------------------------------------------------------------------------------------------

def test_errors_in_words(tmp_path):
    assert "--chat" in failure("x", "--system", "s")
    assert "--json" in failure("x", "--chat", "--logprobs")
    assert "not found" in run("generate", "x", "-m", "no-such-model", code=1).stderr
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"<!doctype html>" + bytes(100))
    assert "bad.gguf" in run("generate", "x", "-m", bad, code=1).stderr
    assert generate("x", "--max-tokens", 0, code=2).stdout == ""


# ---- bench --------------------------------------------------------------------------------------------------------

FIELDS = {"executor", "threads", "load_ms", "load_cached_ms", "prefill_tokens", "prefill_tok_s", "decode_tok_s",
          "first_token_ms", "text", "token_ids", "memory_bytes"}


def test_bench_in_cpython_prints_one_json_object(tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Once upon a time")
    report = json.loads(run("bench", "generate", "--prompt-file", prompt, "-m", MODEL, "--executor", "numpy", "--runs", 2,
                            "--max-tokens", 6).stdout)
    want = expected("Once upon a time", max_tokens=6, greedy=True, repeat_penalty=1.0, ignore_end=True)
    assert set(report) >= FIELDS and report["executor"] == "numpy"
    assert report["token_ids"] == [want["token_ids"]] * 2 and report["text"] == [want["text"]] * 2
    assert report["prefill_tokens"][0] in (want["prompt_tokens"], want["prompt_tokens"] - 1)  # the bos may be there already
    assert all(len(report[name]) == 2 and min(report[name]) > 0 for name in ("prefill_tok_s", "decode_tok_s"))


def test_bench_refuses_what_is_no_prompt(tmp_path):
    for data, words in ((b"", "empty"), (b"\xff\xfe\x00", "UTF-8")):
        (tmp_path / "p").write_bytes(data)
        assert words in run("bench", "generate", "--prompt-file", tmp_path / "p", "-m", MODEL, code=1).stderr
    assert "no such file" in run("bench", "generate", "--prompt-file", tmp_path / "q", "-m", MODEL, code=1).stderr
