"""SmolLM2-135M-Instruct, Q4_1, against the same weights dequantised (tests/golden/llama/smollm2.py says by what).

The numpy executor computes with the dequantised weights and must agree closely. Quantised kernels round activations to 8 bits,
as llama.cpp's do, or to 16: they must stay near. llama.cpp's own distance is printed beside theirs.
"""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.llama import GenerateOptions, Generator, load_model
from candlewick.models.llama.programs import CHUNK
from candlewick.trace import Spec, trace
from candlewick.weights.load import Checkpoint
from tests.golden.llama import measure, smollm2
from tests.golden.llama.texts import TEXTS

ARRAYS = np.load(smollm2.HERE / "smollm2.npz")
FACTS = json.loads((smollm2.HERE / "smollm2.json").read_text())

pytestmark = pytest.mark.skipif(not (smollm2.FOLDER / "model.gguf").exists(),
                                reason="no weights in models/smollm2-135m-instruct; python3 serve.py --setup fetches them")


@pytest.fixture(scope="module")
def plain() -> Generator:
    """On the numpy executor, loaded once: opening the blocks of all weights takes longer than reading a text."""
    return asyncio.run(Generator.load(Checkpoint.open(smollm2.FOLDER), executors.create("numpy"), capacity=512))


def best(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids, logits of the best tokens, log of the sum of all exponentials, of the reference"""
    return ARRAYS[f"{name}.ids"], ARRAYS[f"{name}.best"], ARRAYS[f"{name}.log_sum"]


async def wasm() -> executors.Executor:
    try:
        return executors.create("wasm", threads=2)
    except (executors.ExecutorUnavailable, ImportError) as e:
        pytest.skip(f"executor wasm: {e}")


async def test_tokens():
    """Ours are llama.cpp's, for prose, code, a chat with its markers, and many scripts."""
    model = await load_model(Checkpoint.open(smollm2.FOLDER), 64)
    for name, text in TEXTS.items():
        assert model.tokenizer.encode(text, special=name == "chat") == ARRAYS[f"{name}.tokens"].tolist()
        assert model.tokenizer.decode(ARRAYS[f"{name}.tokens"].tolist(), special=True) == text


async def test_numpy_has_the_logits_of_the_reference(plain, record_property):
    model, executor = plain.model, plain.executor
    cache = model.network.new_cache()

    def read(tokens, pos):
        return {"logits": model.network(tokens, cache, pos)[0]}

    for name in TEXTS:
        tokens = ARRAYS[f"{name}.tokens"][None]
        await executor.load({name: trace(read, {"tokens": Spec(tokens.shape, "i32")}, ("pos",), name=name)}, model.weights)
        logits = (await executor.run(name, {"tokens": tokens, "pos": 0}))["logits"]
        ids, wanted, log_sum = best(name)
        errors = [np.abs(np.take_along_axis(logits, ids.astype(np.int64), -1) - wanted).max(),
                  np.abs(logits[smollm2.SAMPLE] - ARRAYS[f"{name}.sample"]).max(),
                  np.abs(measure.log_sum_exp(logits) - log_sum).max()]
        record_property(name, [float(error) for error in errors])
        print("numpy", name, [f"{error:.1e}" for error in errors])
        assert max(errors) < 1e-2


async def read_by_wasm(executor, tokens: list[int], n_prefill: int) -> np.ndarray:
    """Logits (n - n_prefill, n_vocab) of the positions behind n_prefill tokens that are read in pieces."""
    for pos in range(0, n_prefill, CHUNK):
        piece = np.array([tokens[pos : pos + CHUNK]], np.int32)
        await executor.run("prefill", {"tokens": piece, "pos": pos, "count": CHUNK, "last": CHUNK - 1}, ())
    return np.array([(await executor.run("decode", {"tokens": [[tokens[pos]]], "pos": pos}, ("logits",)))["logits"][0]
                     for pos in range(n_prefill, len(tokens))])


async def test_wasm_stays_near_the_reference(record_property):
    """One token after the other, and behind a prompt of 128 tokens that was read in pieces (with activations of 8 bits)."""
    model, executor = await load_model(Checkpoint.open(smollm2.FOLDER), 512), await wasm()
    await executor.load(model.programs, model.weights)
    for n_prefill in (0, 2 * CHUNK):
        kl, same = [], []
        for name in TEXTS:
            logits = await read_by_wasm(executor, ARRAYS[f"{name}.tokens"].tolist(), n_prefill)
            ids, wanted, log_sum = (x[n_prefill:] for x in best(name))
            kl.append(measure.divergence(ids, wanted, log_sum, logits))
            same.append(measure.agreement(ids, logits))
        found = {"kl": np.concatenate(kl).mean(), "top1": np.concatenate(same).mean()}
        for key, value in found.items():
            record_property(f"{key}, {n_prefill} read in pieces", float(value))
        print(f"wasm, {n_prefill} read in pieces", {key: f"{value:.2g}" for key, value in found.items()}, "llama.cpp", native())
        assert found["kl"] < 0.005 and found["top1"] > 0.97
    await executor.close()


def native() -> dict[str, str]:
    """The same two figures for llama.cpp, over all texts."""
    texts = FACTS["texts"].values()
    n = sum(text["tokens"] for text in texts)
    return {key: f"{sum(text[f'native_{key}'] * text['tokens'] for text in texts) / n:.2g}" for key in ("kl", "top1")}


async def test_greedy_answer(plain):
    """The numpy executor writes what the reference writes."""
    options = GenerateOptions(max_tokens=8, greedy=True, repeat_penalty=1.0)
    events = [e async for e in plain.generate(ARRAYS["chat.tokens"].tolist(), options)]
    assert events[-1]["result"]["token_ids"] == FACTS["greedy"][:8]
