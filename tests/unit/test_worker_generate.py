"""generate through the Python half of the engine worker, with plain objects in place of the page's JavaScript."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from candlewick import worker

MODELS = Path(__file__).parents[2] / "models"
GREEDY = {"greedy": True, "repeat_penalty": 1, "max_tokens": 8, "seed": 3, "ignore_end": True}
CHAT = [{"role": "user", "content": "Is the lamp lit?"}]


class Source:
    """A source of files.js."""

    def __init__(self, data):
        self.data, self.size = data, len(data)

    async def read(self, start, end):
        return SimpleNamespace(to_bytes=lambda: self.data[start:end])


class Page:
    def __init__(self):
        self.events, self.cancel_after = [], None

    def notify(self, text):
        self.events.append(json.loads(text))

    def cancelled(self):
        return self.cancel_after is not None and len([e for e in self.events if e["event"] == "token"]) >= self.cancel_after

    def python_bytes(self):
        return 1000

    def kernel_bytes(self):
        return 24


@pytest.fixture
def page():
    return Page()


@pytest.fixture
def engine(page):
    return worker.Worker(page)


def files(name):
    kinds = (".json", ".gguf", ".bin", ".safetensors")
    return {p.name: Source(p.read_bytes()) for p in (MODELS / name).iterdir() if p.suffix in kinds}


async def load(engine, name="test-llama-gguf", **params):
    return json.loads(await engine.load(json.dumps(params), name, files(name), None, "for a test"))


async def generate(engine, options=None, **params):
    return json.loads(await engine.task("generate", json.dumps({"options": {**GREEDY, **(options or {})}, **params}), None))


@pytest.mark.parametrize("name", ["test-llama", "test-llama-qwen2", "test-llama-mistral", "test-llama-gguf", "test-llama-bin"])
async def test_every_kind_of_file_is_recognised(engine, page, name):
    loaded = (await load(engine, name))["result"]
    assert loaded["family"] == "llama" and loaded["context"] == 128 and loaded["executor"] == "numpy"
    assert page.events[0] == {"event": "progress", "stage": "memory", "done": 0, "unit": "bytes",
                              "total": loaded["memory_estimate"]["total"]}
    result = (await generate(engine, prompt="The keeper"))["result"]
    assert len(result["token_ids"]) == 8 and result["stop_reason"] == "length"


async def test_capacity_is_a_parameter_of_load(engine):
    assert (await load(engine, capacity=40))["result"]["capacity"] == 40
    assert (await load(engine, capacity=None))["result"]["capacity"] == 128
    error = (await load(engine, capacity="many"))["error"]
    assert "capacity" in error["message"]


async def test_notifications(engine, page):
    await load(engine)
    page.events.clear()
    result = (await generate(engine, messages=CHAT))["result"]
    tokens = [e for e in page.events if e["event"] == "token"]
    assert [e["token"] for e in tokens if e["token"] is not None] == result["token_ids"]
    assert "".join(e["text"] for e in tokens) == result["text"] and all(len(e["top"]) == 5 for e in tokens if e["top"])
    assert all("id" not in e for e in page.events)  # the name of the request's number
    assert [e["done"] for e in page.events if e["event"] == "prefill"] == [0, result["prompt_tokens"]]


async def test_cancel_keeps_the_text_and_the_next_run_is_fresh(engine, page):
    await load(engine)
    whole = (await generate(engine, messages=CHAT))["result"]
    page.events.clear()
    page.cancel_after = 3
    error = (await generate(engine, messages=CHAT))["error"]
    assert error["code"] == "cancelled"
    assert error["data"]["result"]["token_ids"] == whole["token_ids"][:3]
    assert error["data"]["result"]["stop_reason"] == "stopped"
    page.cancel_after = None
    again = (await generate(engine, messages=CHAT))["result"]
    assert again["token_ids"] == whole["token_ids"] and again["reused_tokens"] == again["prompt_tokens"] - 2


@pytest.mark.parametrize(("params", "options", "words"), [
    ({"prompt": "a " * 300}, {}, "128"),
    ({"prompt": "a"}, {"temprature": 1}, "temperature"),
    ({"prompt": "a"}, {"temperature": -1}, "temperature"),
    ({"prompt": "a", "messages": CHAT}, {}, "prompt"),
    ({}, {}, "prompt"),
    ({"messages": []}, {}, "messages"),
    ({"messages": [{"role": "user"}]}, {}, "content"),
    ({"messages": "hello"}, {}, "messages"),
])
async def test_requests_that_make_no_sense(engine, params, options, words):
    """Each fails in words, and the next request works."""
    await load(engine)
    error = (await generate(engine, options, **params))["error"]
    assert error["code"] == "bad_input" and words in error["message"]
    assert (error["data"] is None) or error["data"]["capacity"] == 128 < error["data"]["prompt_tokens"]
    assert "result" in await generate(engine, prompt="The keeper")


async def test_a_failed_run_leaves_the_model_usable(engine):
    await load(engine)
    whole = (await generate(engine, messages=CHAT))["result"]["token_ids"]
    run, calls = engine._executor.run, iter(range(100))

    async def fails(entry, inputs, fetch=None):
        if next(calls) == 3:
            raise RuntimeError("a kernel failed")
        return await run(entry, inputs, fetch)

    engine._executor.run = fails
    error = (await generate(engine, messages=CHAT))["error"]
    assert error["code"] == "internal" and "a kernel failed" in error["message"]
    engine._executor.run = run
    assert (await generate(engine, messages=CHAT))["result"]["token_ids"] == whole


async def test_a_profile_in_between_spoils_no_answer(engine):
    """It runs entries on made-up tokens, which writes over the cache."""
    await load(engine)
    whole = (await generate(engine, messages=CHAT))["result"]["token_ids"]
    assert "result" in json.loads(await engine.profile(json.dumps({"entry": "decode", "rounds": 1, "position": 3})))
    again = (await generate(engine, messages=CHAT))["result"]
    assert again["token_ids"] == whole and again["reused_tokens"] == 0


async def test_another_model_can_be_loaded_after_a_bad_one(engine):
    bad = files("test-llama-gguf")
    bad["model.gguf"] = Source(bad["model.gguf"].data[:-1])
    error = json.loads(await engine.load("{}", "cut", bad, None, ""))["error"]
    assert error["code"] == "bad_weights"
    assert (await generate(engine, prompt="a"))["error"]["code"] == "bad_input"
    assert "result" in await load(engine)
    assert (await generate(engine, prompt="The keeper"))["result"]["stop_reason"] == "length"
