"""llama2.c's own checkpoints: the greedy ids and texts of its reference program, on every executor."""

from __future__ import annotations

import json

import pytest

from candlewick import executors
from candlewick.models.llama import GenerateOptions, Generator
from candlewick.weights.load import Checkpoint
from candlewick.weights.source import FileSource


@pytest.fixture(params=["numpy", "wasm"])
def executor(request):
    try:
        return executors.create(request.param)
    except (executors.ExecutorUnavailable, ImportError) as e:
        pytest.skip(f"executor {request.param}: {e}")


@pytest.mark.parametrize("name", ["stories260K.bin", "dreams260K.bin"])
async def test_ids_and_texts_of_the_reference(executor, name, shared):
    folder = shared / "data" / "llama2c"
    golden = json.loads((folder / "golden.json").read_text())[name]
    files = {file: FileSource(folder / file) for file in (name, "tok512.bin")}
    generator = await Generator.load(Checkpoint({"model.bin": files[name], "tokenizer.bin": files["tok512.bin"]}), executor)

    async def answer(prompt, n):
        options = GenerateOptions(max_tokens=n, greedy=True, repeat_penalty=1.0)
        return [e async for e in generator.generate(prompt, options)][-1]["result"]

    first = await answer([generator.tokenizer.bos], len(golden["ids"]))
    assert first["token_ids"] == golden["ids"]
    if "text" in golden:
        assert first["text"] == golden["text"]
        prompt = golden["prompt"]["text"]
        n = golden["prompt"]["n"] - len(generator.encode(prompt)) + 1  # the program counts the prompt's tokens, without bos
        assert prompt + (await answer(prompt, n))["text"] == golden["prompt"]["output"]
    await executor.close()
