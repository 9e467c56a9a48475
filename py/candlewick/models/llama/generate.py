"""A prompt or a conversation -> text, token by token, as a stream of events.

The cache of keys and values stays between calls: what a prompt has in common with the tokens read before is not read again.
It is only trusted as far as finished runs have written it, so after Stop or an error the next call begins where the last
whole run ended.

The rule for long texts: at most `capacity` tokens are read, prompt and answer together. A longer prompt is refused with both
numbers; an answer ends, and says so, with the token that comes after the last that can be read.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from candlewick.executors import Executor, Progress, Stopped
from candlewick.models.llama.programs import CHUNK, LoadedModel, load_model
from candlewick.models.llama.sampling import GenerateOptions, Sampler, StopStrings, random_seed
from candlewick.weights.load import Checkpoint

SEEN = ("top_ids", "top", "log_sum")  # outputs of a run that most steps need
SHOWN = 5  # most probable tokens that an event lists
DIMS = ("dim", "n_layer", "n_head", "n_kv_head", "d_head", "n_hidden", "tied")

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


class ContextFull(ValueError):
    """A prompt that is longer than what can be read. data: {prompt_tokens, capacity}"""

    def __init__(self, n_prompt: int, capacity: int) -> None:
        super().__init__(
            f"the prompt has {n_prompt} tokens, and at most {capacity} can be read, prompt and answer together; shorten it, "
            "begin a new conversation, or load the model with a larger context"
        )
        self.data = {"prompt_tokens": n_prompt, "capacity": capacity}


class Generator:
    """A loaded checkpoint on an executor, and the text it has read."""

    def __init__(self, model: LoadedModel, executor: Executor) -> None:
        self.model, self.executor = model, executor
        self.tokenizer, self.chat = model.tokenizer, model.chat
        self.past: list[int] = []  # the tokens whose keys and values the cache holds, from position 0
        self.n_read = 0  # how many of them were read as a prompt; the others were written one by one
        self.names: dict[int, str] = {}  # texts of tokens that were shown
        self.run: Answer | None = None

    @classmethod
    async def load(
        cls, checkpoint: Checkpoint, executor: Executor, on_progress: Progress | None = None, capacity: int | None = None
    ) -> Generator:
        """Reads, checks, traces and loads. Raises ValueError in words for files that do not fit each other.

        capacity: see load_model. on_progress hears of "memory", the bytes that are going to be taken, before weights are read.
        """
        model = await load_model(checkpoint, capacity)
        if on_progress:
            on_progress("memory", 0, model.memory_estimate()["total"], "bytes")
        asyncio.get_running_loop().call_soon(model.chat.prepare)  # while weights are on their way
        await executor.load(model.programs, model.weights, on_progress)
        return cls(model, executor)

    def describe(self) -> dict[str, Any]:
        """Sizes of the checkpoint, what it can do, and the memory it takes."""
        model, tokenizer = self.model, self.tokenizer
        dims, by_type = model.dims, model.bytes_by_type()
        parameters = sum(math.prod(p.shape) for p in model.network.parameters().values())
        return {
            "family": "llama", "name": model.name, "parameters": parameters, "vocab": dims.n_vocab, "context": dims.n_ctx,
            "capacity": model.capacity, "kv_bytes_per_token": model.kv_bytes(), "dtype": next(iter(by_type)),
            "quantisation": by_type, "chat": model.has_template, "entries": list(model.programs),
            "dims": {key: getattr(dims, key) for key in DIMS},
            "tokenizer": {"kind": model.tokenizer_kind, "n_vocab": tokenizer.n_vocab, "ends": sorted(model.ends)},
            "memory_estimate": model.memory_estimate(), **self.executor.describe(),
        }

    def encode(self, prompt: Prompt) -> list[int]:
        """A text to go on with, a conversation, or token ids -> token ids. Raises ValueError in words.

        A conversation whose last message is the assistant's is gone on with inside that message.
        """
        known = isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray))
        if not known:
            raise ValueError(f"prompt: wanted a text, a conversation or token ids, got {type(prompt).__name__}")
        if isinstance(prompt, str):
            ids = self.tokenizer.prompt(prompt)
            if not ids and self.tokenizer.bos is not None:
                ids = [self.tokenizer.bos]
        elif all(isinstance(item, Mapping) for item in prompt) and len(prompt):
            go_on = prompt[-1].get("role") == "assistant"
            ids = self.chat.encode(prompt, add_generation_prompt=not go_on, go_on=go_on)
        else:
            ids = list(prompt)
            bad = [i for i in ids if type(i) is not int or not 0 <= i < self.model.dims.n_vocab]
            if bad:
                raise ValueError(f"token ids: wanted whole numbers from 0 to {self.model.dims.n_vocab - 1}, got {bad[:3]}")
        if not ids:
            raise ValueError("the prompt is empty, and this model has no token for the beginning of a text; write a word")
        if len(ids) > self.model.capacity:
            raise ContextFull(len(ids), self.model.capacity)
        return ids

    def forget(self) -> None:
        """Others have used the cache: nothing in it is known."""
        self.past, self.n_read = [], 0

    async def generate(
        self, prompt: Prompt, options: GenerateOptions | None = None, stop: Callable[[], bool] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """prompt: see encode -> events: prefill, token, and one result at the end.

            {"event": "prefill", "done", "total"}                               tokens of the prompt that are read
            {"event": "token", "text", "id", "logprob", "top": [[id, text, logprob], ...]}
            {"event": "result", "result": {...}}                                see Answer.result

        Log-probabilities are the model's own: before penalty, temperature and cuts. The texts of all token events joined are
        the text of the result; a last one with id None brings what was held back. stop is asked before every run; when it says
        yes, the result comes at once, with what there is and stop_reason "stopped". A new call ends one that is not over.
        """
        ids = self.encode(prompt)
        is_chat = not isinstance(prompt, str) and isinstance(prompt[0], Mapping)
        begins = is_chat and prompt[-1]["role"] != "assistant"
        answer = self.run = Answer(self, ids, options or GenerateOptions(), stop or (lambda: False), is_chat, begins)
        async for event in answer.events():
            yield event


class Answer:
    """One text on its way."""

    def __init__(
        self, generator: Generator, prompt: list[int], options: GenerateOptions, stop: Callable[[], bool], is_chat: bool,
        begins: bool,
    ) -> None:
        """begins: the answer is a text of its own, and does not go on with one in the prompt."""
        self.generator, self.model, self.executor = generator, generator.model, generator.executor
        self.prompt, self.options, self.stop = prompt, options, stop
        self.seed = random_seed() if options.seed is None else options.seed
        self.sampler = Sampler(options, self.seed, prompt)
        # a text of its own begins without a space; one that goes on with the prompt's may need it
        self.stream = generator.tokenizer.stream(start=begins or prompt == [generator.tokenizer.bos])
        self.stops = StopStrings((*options.stop, *(generator.chat.stops if is_chat else ())))
        self.tokens: list[int] = []
        self.texts: list[str] = []
        self.reused = 0
        self.stop_reason = ""
        self.stop_string: str | None = None
        self.ms = {"prefill_ms": 0.0, "first_token_ms": 0.0, "decode_ms": 0.0}
        self.began = time.perf_counter()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        try:
            async for event in self.read_prompt():
                yield event
            self.ms["prefill_ms"] = self.since()
            if not self.stop_reason:
                async for event in self.write():
                    yield event
        except Stopped:
            self.stop_reason = "stopped"
        tail = "" if self.stop_string else self.held_back()
        if tail:
            self.texts.append(tail)
            yield {"event": "token", "text": tail, "id": None, "logprob": None, "top": []}
        yield {"event": "result", "result": self.result()}

    # ---- the steps ----------------------------------------------------------------------------------------------

    async def read_prompt(self) -> AsyncIterator[dict[str, Any]]:
        """Reads what the cache does not hold yet; at least the last tokens, for what follows them.

        Executors may compute a token by itself more exactly than many at once. So that a prompt gives the same numbers whether
        or not its beginning was read before, it is never read by a single token, unless it is one; and an answer that has
        become part of the next prompt is read again.
        """
        prompt, generator = self.prompt, self.generator
        done = min(common(generator.past, prompt[:-2]), generator.n_read)
        past = generator.past = prompt[:done]  # a list of this answer's own: one that was given up may still hold the other
        generator.n_read = self.reused = done
        yield {"event": "prefill", "done": done, "total": len(prompt)}
        while done < len(prompt):
            if self.is_over():
                return
            left = len(prompt) - done
            piece = prompt[done : done + (CHUNK - 1 if left == CHUNK + 1 else CHUNK)]
            fetch = SEEN if len(piece) == left else ()
            if left == 1:
                self.entry = "decode"
                self.outputs = await self.executor.run("decode", {"tokens": [piece], "pos": done}, fetch)
                self.mine()
            else:
                self.entry = "prefill"
                tokens = np.zeros((1, CHUNK), np.int32)
                tokens[0, : len(piece)] = piece
                inputs = {"tokens": tokens, "pos": done, "count": len(piece), "last": len(piece) - 1}
                self.outputs = await self.executor.run("prefill", inputs, fetch)
                self.mine()
                generator.n_read = done + len(piece)
            past += piece
            done += len(piece)
            yield {"event": "prefill", "done": done, "total": len(prompt)}

    async def write(self) -> AsyncIterator[dict[str, Any]]:
        """Tokens until something ends the text."""
        past, tokens, sampler = self.generator.past, self.tokens, self.sampler
        run, push, ends = self.executor.run, self.stream.push, self.model.ends
        most = min(self.options.max_tokens, self.model.capacity - len(self.prompt) + 1)
        ids = np.zeros((1, 1), np.int32)
        inputs: dict[str, Any] = {"tokens": ids, "pos": 0}
        while True:
            token, logprob, best = await self.pick()
            now = self.since()
            if not tokens:
                self.ms["first_token_ms"] = now
            if token in ends and not self.options.ignore_end:
                self.stop_reason = "end"
                return
            self.ms["decode_ms"] = now - self.ms["first_token_ms"]
            tokens.append(token)
            sampler.accept(token)
            text, self.stop_string = self.stops.push(push(token))
            self.texts.append(text)
            yield {"event": "token", "text": text, "id": token, "logprob": logprob, "top": best}
            if self.stop_string is not None:
                self.stop_reason = self.reason_of(self.stop_string)
            elif len(tokens) == most:
                self.stop_reason = "length" if most == self.options.max_tokens else "context"
            if self.stop_reason or self.is_over():
                return
            ids[0, 0], inputs["pos"] = token, len(past)
            self.outputs = await run("decode", inputs, SEEN)
            self.entry = "decode"
            self.mine()
            past.append(token)

    async def pick(self) -> tuple[int, float, list[list[Any]]]:
        """-> the next token, its log-probability, and the most probable ones as [id, text, log-probability]"""
        outputs, names = self.outputs, self.generator.names
        ids, top, log_sum = outputs["top_ids"][0].tolist(), outputs["top"][0].tolist(), float(outputs["log_sum"][0])
        if not math.isfinite(log_sum):
            self.generator.forget()
            raise ValueError("the model gives no finite numbers (NaN or infinity): its weights are damaged")
        token = self.sampler.pick(ids, top, log_sum, self.model.dims.n_vocab)
        logits = None
        if token is None:
            logits = (await self.executor.fetch(self.entry, ("logits",)))["logits"][0]
            token = self.sampler.pick_from(logits)
        best = []
        for i, x in zip(ids[:SHOWN], top):
            name = names.get(i)
            if name is None:
                name = names[i] = self.generator.tokenizer.token_text(i)
            best.append([i, name, x - log_sum])
        logprob = (top[ids.index(token)] if logits is None else float(logits[token])) - log_sum
        return token, logprob, best

    def is_over(self) -> bool:
        """Asks whether to stop."""
        self.mine()
        if not self.stop_reason and self.stop():
            self.stop_reason = "stopped"
        return bool(self.stop_reason)

    def mine(self) -> None:
        """Raises RuntimeError when another answer has begun on the same cache."""
        if self.generator.run is not self:
            raise RuntimeError("this answer was given up: another one has begun; generate one text at a time")

    # ---- the end ------------------------------------------------------------------------------------------------

    def held_back(self) -> str:
        """Text that was not shown because it might have become something else: a character, a stop string."""
        text, self.stop_string = self.stops.push(self.stream.flush())
        if self.stop_string is not None:
            self.stop_reason = self.reason_of(self.stop_string)
            return text
        return text + self.stops.flush()

    def reason_of(self, met: str) -> str:
        """A stop string that nobody asked for is how a plain chat ends: without a template there is no token for it."""
        return "stop" if met in self.options.stop else "end"

    def since(self) -> float:
        """Milliseconds since the call."""
        return (time.perf_counter() - self.began) * 1000

    def result(self) -> dict[str, Any]:
        """stop_reason: end (a token that ends the answer), stop (a stop string, named in `stop`), length (max_tokens), context
        (the capacity is reached) or stopped (by a person). decode_ms runs from the first token to the last."""
        return {
            "text": "".join(self.texts), "token_ids": list(self.tokens), "prompt_tokens": len(self.prompt),
            "reused_tokens": self.reused, "stop_reason": self.stop_reason,
            "stop": self.stop_string if self.stop_reason == "stop" else None, "seed": self.seed,
            "context": {"used": min(len(self.prompt) + len(self.tokens), self.model.capacity), "capacity": self.model.capacity},
            "timings": {**self.ms, "tokens": len(self.tokens), "total_ms": self.since()},
        }


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
