"""`candlewick generate`: text that goes on from a prompt, or a chat, written as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from candlewick.commands.common import Failure, find_text_model, stdout
from candlewick.commands.transcribe import Progress

HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer; a line that ends in \\ goes on."
ENDINGS = {"length": "(cut at --max-tokens)", "context": "(the context is full; /reset, or a larger --capacity)"}


@dataclass(frozen=True)
class Settings:
    """What the command line asks for. options: fields of GenerateOptions, those that were given."""

    model: str
    tokenizer: Path | None = None
    executor: str = "auto"
    threads: int | None = None
    capacity: int | None = None
    system: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    as_json: bool = False
    logprobs: bool = False
    quiet: bool = False

    def checked(self) -> Any:
        """The options as GenerateOptions. Raises OptionError."""
        from candlewick.models.llama import GenerateOptions

        return GenerateOptions(**self.options)


def generate(prompt: str | None, chat: bool, settings: Settings) -> None:
    """A prompt, once; with chat a question, or as many as come from the terminal or standard input, a line each."""
    if settings.system is not None and not chat:
        raise Failure("--system is for --chat: plain text has no system message; write it into the prompt")
    if settings.logprobs and chat and not settings.as_json:
        raise Failure("--logprobs with --chat wants --json: they would hide the conversation")
    if prompt is None and not chat and (sys.stdin is None or sys.stdin.isatty()):
        raise Failure("say what to go on from: candlewick generate PROMPT, a pipe into it, or --chat")
    if chat and prompt is None and sys.stdin is None:
        raise Failure("standard input is closed; give a question: candlewick generate --chat QUESTION")
    settings.checked()
    out = stdout()
    checkpoint = find_text_model(settings.model, settings.tokenizer)
    if prompt == "-" or (prompt is None and not chat):
        prompt = sys.stdin.read()
    with asyncio.Runner() as runner, Session(settings, out, runner) as session:
        session.load(checkpoint)
        if not chat:
            ended = session.say(prompt)
        elif prompt is not None:
            ended = session.ask(prompt)
        else:
            ended = session.converse()
    if ended["stop_reason"] == "stopped":
        raise KeyboardInterrupt


class Session:
    """A loaded model, the conversation so far, and where its text goes."""

    def __init__(self, settings: Settings, out: TextIO, runner: asyncio.Runner):
        self.settings, self.out, self.runner = settings, out, runner
        self.generator: Any = None
        self.executor: Any = None
        self.messages: list[dict[str, str]] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        if self.executor is not None:
            self.runner.run(self.executor.close())

    def load(self, checkpoint: Any) -> None:
        """Raises ValueError, or KeyboardInterrupt for Ctrl-C."""
        from candlewick import executors
        from candlewick.models.llama import Generator

        view = Progress(self.settings.quiet)

        def show(stage: str, done: int, total: int, unit: str) -> None:
            if stage != "memory":  # which is no progress, but what will be wanted
                view.on_load(stage, done, total, unit)

        self.executor = executors.create(self.settings.executor, threads=self.settings.threads)
        with view:
            self.generator = self.runner.run(
                Generator.load(checkpoint, self.executor, show, capacity=self.settings.capacity))

    def say(self, text: str) -> dict[str, Any]:
        """Plain text goes on from `text` -> the result."""
        return self._write(text)

    def ask(self, question: str) -> dict[str, Any]:
        """One turn of the conversation -> the result. What an error or nothing came of is not kept."""
        before = list(self.messages)
        if not before and self.settings.system is not None:
            self.messages.append({"role": "system", "content": self.settings.system})
        self.messages.append({"role": "user", "content": question})
        try:
            result = self._write(self.messages)
        except BaseException:
            self.messages = before
            raise
        self.messages.append({"role": "assistant", "content": result["text"]})
        return result

    def converse(self) -> dict[str, Any]:
        """Questions, a line each, until there are no more -> the last result."""
        person = sys.stdin is not None and sys.stdin.isatty()
        if person and not self.settings.quiet:
            print(HELP, file=sys.stderr)
        result = {"stop_reason": "end"}
        for line in lines(person):
            if line == "/exit":
                break
            if line in ("/reset", "/help"):
                if line == "/reset":
                    self.messages = []
                if not self.settings.quiet:
                    print("the conversation begins anew" if line == "/reset" else HELP, file=sys.stderr)
                continue
            try:
                result = self.ask(line)
            except ValueError as error:  # such as a question longer than the context
                if not person:
                    raise
                print(f"error: {error}", file=sys.stderr)
                continue
            if result["stop_reason"] == "stopped" and not person:
                break
            if (words := ENDINGS.get(result["stop_reason"])) and not self.settings.quiet:
                print(words, file=sys.stderr)
        return result if not person else {"stop_reason": "end"}

    def _write(self, prompt: str | list[dict[str, str]]) -> dict[str, Any]:
        """One generation, written as it comes. Ctrl-C ends it and keeps the text."""
        show = self._show_json if self.settings.as_json else self._show_logprobs if self.settings.logprobs else self._show_text
        with interruptible() as pressed:
            began = time.perf_counter()
            result = self.runner.run(self._generate(prompt, show, pressed))
            seconds = time.perf_counter() - began
        if self.settings.as_json:
            self.out.write(json.dumps(result) + "\n")
        elif not result["text"].endswith("\n"):
            self.out.write("\n")
        self.out.flush()
        if not self.settings.quiet and sys.stderr.isatty():
            print(summary(result, seconds), file=sys.stderr)
        return result

    async def _generate(self, prompt: str | list[dict[str, str]], show: Callable[[dict[str, Any]], None],
                        stop: Callable[[], bool]) -> dict[str, Any]:
        tokens: list[dict[str, Any]] = []
        async for event in self.generator.generate(prompt, self.settings.checked(), stop):
            if event["event"] == "token":
                show(event)
                if self.settings.logprobs:
                    tokens.append({key: event[key] for key in ("id", "text", "logprob", "top")})
            elif event["event"] == "result":
                return event["result"] | ({"tokens": tokens} if self.settings.logprobs else {})
            await asyncio.sleep(0)
        raise RuntimeError("the generation ended without a result")

    def _show_text(self, event: dict[str, Any]) -> None:
        self.out.write(visible(event["text"]) if self.out.isatty() else event["text"])
        self.out.flush()

    def _show_logprobs(self, event: dict[str, Any]) -> None:
        """A line for each token: its log-probability, itself, and what else might have come."""
        if event["id"] is None:
            return
        name = self.generator.tokenizer.token_text(event["id"])  # its text may be part of a character
        others = "  ".join(f"{json.dumps(text)} {logprob:.2f}" for _, text, logprob in event["top"])
        self.out.write(f"{event['logprob']:8.3f}  {json.dumps(name):<20} {others}\n")
        self.out.flush()

    def _show_json(self, event: dict[str, Any]) -> None:
        """All of it comes at the end."""


def lines(person: bool) -> Iterator[str]:
    """Questions without the white space around them, those that are not empty; a \\ at the end of a line joins the next."""
    if person:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  line editing and history for input()
    parts: list[str] = []
    while True:
        try:
            line = input("… " if parts else "> ") if person else next(sys.stdin).rstrip("\n")
        except KeyboardInterrupt:
            if not person:
                raise
            print(file=sys.stderr)
            parts = []
            continue
        except (EOFError, StopIteration):
            if person:
                print(file=sys.stderr)
            line = ""
            if not parts:
                return
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        question = "\n".join([*parts, line]).strip()
        parts = []
        if question:
            yield question


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """-> whether Ctrl-C was pressed: generation looks at each step. Pressed again it ends at once."""
    pressed: list[bool] = []

    def on_signal(_number: int, _frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def visible(text: str) -> str:
    """What a model wrote, with everything escaped that could steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def summary(result: Mapping[str, Any], seconds: float) -> str:
    """`37 tokens, first after 0.21 s, 45.1 a second; 120 of 2048 positions used; seed 7`"""
    timings, context = result["timings"], result["context"]
    decoded = timings["tokens"] - 1
    rate = f", {decoded * 1000 / timings['decode_ms']:.1f} a second" if decoded > 0 and timings["decode_ms"] > 0 else ""
    first = f", first after {timings['first_token_ms'] / 1000:.2f} s" if timings["tokens"] else f" in {seconds:.2f} s"
    return (f"{timings['tokens']} tokens{first}{rate}; {context['used']} of {context['capacity']} positions used; "
            f"seed {result['seed']}")
