"""generate: a prompt or a conversation of the page -> text that grows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from candlewick import executors
from candlewick.models.llama import GenerateOptions, Generator
from candlewick.tasks import TURN_SECONDS, BadInput, Cancelled, Desk
from candlewick.weights.load import Checkpoint, Weights

MODEL_TYPES = ("llama", "mistral", "qwen2")


class Generation:
    """A loaded language model, and the text it has read."""

    methods = ("generate",)
    load_options = ("capacity",)
    family = "llama"
    usual = {"wide": 0.2, "chain": 0.8}  # a prompt, and an answer of a hundred tokens
    wanted = ("a .gguf file, a llama2.c .bin file with tokenizer.bin, or a folder with config.json (model_type "
              f"{', '.join(MODEL_TYPES)}), tokenizer.json and weights")

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    @classmethod
    async def recognises(cls, checkpoint: Checkpoint) -> bool:
        """Whether load() may be called with this checkpoint. Reads no weights."""
        if any(name.lower().endswith(".gguf") for name in checkpoint.files):
            return True
        if "config.json" in checkpoint.files:
            return (await checkpoint.json("config.json")).get("model_type") in MODEL_TYPES
        return any(name.lower().endswith(".bin") for name in checkpoint.files)

    @classmethod
    async def load(
        cls, checkpoint: Checkpoint, executor: executors.Executor, on_progress: Callable[..., None],
        capacity: int | None = None,
    ) -> Generation:
        return cls(await Generator.load(checkpoint, executor, on_progress, capacity))

    @property
    def weights(self) -> Weights:
        return self._generator.model.weights

    def describe(self) -> dict[str, Any]:
        return self._generator.describe()

    def forget(self) -> None:
        """Somebody else ran an entry: what the cache holds is not known any more."""
        self._generator.forget()

    async def generate(self, params: Mapping[str, Any], data: Any, desk: Desk) -> dict[str, Any]:
        """params: {prompt} or {messages}, {options}: the fields of GenerateOptions. Stopped: what there is comes with it."""
        options = generate_options(params.get("options") or {})
        result: dict[str, Any] = {}
        turned = time.perf_counter()
        async for event in self._generator.generate(prompt_of(params), options, desk.cancelled):
            if event["event"] == "result":
                result = event["result"]
                break
            if event["event"] == "token":  # in a notification, `id` is the request's
                event["token"] = event.pop("id")
            desk.notify(event)
            now = time.perf_counter()
            if now - turned > TURN_SECONDS:
                await asyncio.sleep(0)
                turned = now
        if result["stop_reason"] == "stopped":
            raise Cancelled(result)
        return result


def prompt_of(params: Mapping[str, Any]) -> str | list[dict[str, str]]:
    """The text, or the messages, of a request; BadInput unless it is just one of the two."""
    prompt, messages = params.get("prompt"), params.get("messages")
    if isinstance(prompt, str) and messages is None:
        return prompt
    if prompt is None and isinstance(messages, list) and messages and all(isinstance(m, dict) for m in messages):
        return messages
    raise BadInput("generate: wanted a prompt (a text), or messages (one or more, each with role and content)")


def generate_options(given: Mapping[str, Any]) -> GenerateOptions:
    """Fields of GenerateOptions by name; BadInput lists unknown ones."""
    try:
        return GenerateOptions(**given)
    except TypeError as error:
        known = ", ".join(GenerateOptions.__dataclass_fields__)
        raise BadInput(f"options: {error}; known are {known}") from error
