"""whisper-tiny.en on real recordings against other implementations (tests/golden/whisper/make.py says which).

Every executor must give the reference's features and logits within a tolerance, and exactly its tokens.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.whisper import Transcriber
from candlewick.models.whisper.mel import window
from candlewick.weights.load import Checkpoint
from tests.golden.whisper import clips

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "models/whisper-tiny.en"
GOLDEN = ROOT / "tests/golden/whisper"
ARRAYS = np.load(GOLDEN / "golden.npz")
FACTS = json.loads((GOLDEN / "golden.json").read_text())["clips"]

pytestmark = pytest.mark.skipif(not (FOLDER / "model.safetensors").exists(),
                                reason="no weights in models/whisper-tiny.en; python3 serve.py --setup fetches them")


@pytest.fixture(params=["numpy", "wasm"])
async def transcriber(request):
    try:
        executor = executors.create(request.param)
    except (executors.ExecutorUnavailable, ImportError) as e:
        pytest.skip(f"executor {request.param}: {e}")
    yield await Transcriber.load(Checkpoint.open(FOLDER), executor)
    await executor.close()


def clip(name: str) -> np.ndarray:
    try:
        audio = clips.CLIPS[name]()
    except clips.NotHere as e:
        pytest.skip(str(e))
    if clips.fingerprint(audio) != FACTS[name]["fingerprint"]:
        pytest.skip(f"clip {name} differs from the one of the golden numbers: another espeak-ng, or another FLAC decoder")
    return audio


async def run(transcriber, name):
    """-> outputs of mel and encode for a clip of one window"""
    executor = transcriber.executor
    mel = await executor.run("mel", {"samples": window(clip(name), 0, transcriber.model.dims.n_samples)})
    encoded = await executor.run("encode", {"log_mel": mel["log_mel"], "peak": mel["peak"]})
    await executor.run("remember", {})
    return mel, encoded


@pytest.mark.parametrize("name", ["jfk", "lighthouse"])
async def test_mel_features_and_forced_logits(transcriber, name, record_property):
    mel, encoded = await run(transcriber, name)
    seen = (np.maximum(mel["log_mel"][0], mel["peak"] - 8) + 4) / 4
    errors = {"mel": np.abs(seen[::29, ::3] - ARRAYS[f"{name}.mel"]).max(),
              "features": np.abs(encoded["features"][0, ::31, ::5] - ARRAYS[f"{name}.features"]).max()}
    forced = [transcriber.model.tokenizer.sot, *FACTS[name]["tokens"]]
    logits = []
    for pos, token in enumerate(forced):
        inputs = {"tokens": [[token]], "pos": pos, "last": 0, "heard": 1499}
        step = await transcriber.executor.run("decode_1", inputs, ("logits",))
        logits.append(step["logits"][0])
    errors["logits"] = np.abs(np.array(logits)[:, ::211] - ARRAYS[f"{name}.logits"]).max()
    errors["log_sum"] = np.abs([log_sum(x) - y for x, y in zip(logits, FACTS[name]["log_sum"])]).max()
    for what, error in errors.items():
        record_property(what, float(error))
    print(transcriber.executor.name, name, {k: f"{v:.1e}" for k, v in errors.items()})
    assert [int(x.argmax()) for x in logits] == FACTS[name]["best"]
    assert errors["mel"] < 1e-4 and errors["features"] < 1e-3 and errors["logits"] < 1e-3 and errors["log_sum"] < 1e-3


async def test_prompt_chunks_equal_steps(transcriber):
    """A padded chunk of a prompt leaves the same state and the same logits as its tokens one by one."""
    await run(transcriber, "jfk")
    executor, tokens = transcriber.executor, [50257, *FACTS["jfk"]["tokens"][:11]]
    for pos, token in enumerate(tokens):
        one = await executor.run("decode_1", {"tokens": [[token]], "pos": pos, "last": 0, "heard": 1499}, ("logits",))
    padded = np.array([tokens + [0] * (16 - len(tokens))], np.int32)
    chunk = await executor.run("decode_16", {"tokens": padded, "pos": 0, "last": len(tokens) - 1, "heard": 1499}, ("logits",))
    assert np.abs(one["logits"] - chunk["logits"]).max() < 1e-3
    after = [await executor.run("decode_1", {"tokens": [[11]], "pos": len(tokens), "last": 0, "heard": 1499}, ("logits",))]
    assert np.isfinite(after[0]["logits"]).all()


@pytest.mark.parametrize("name", ["jfk", "lighthouse"])
async def test_greedy_tokens_are_the_reference_ones(transcriber, name):
    events = [e async for e in transcriber.transcribe(clip(name))]
    result = events[-1]["result"]
    tokens = [t for s in result["segments"] for t in s["tokens"]]
    assert tokens == FACTS[name]["tokens"]
    first = result["segments"][0]
    assert abs(first["avg_logprob"] - FACTS[name]["avg_logprob"]) < 1e-3
    assert abs(first["no_speech_prob"] - FACTS[name]["no_speech_prob"]) < 1e-3
    texts = [e["text"] for e in events if e["event"] == "token"]
    assert all(b.startswith(a) for a, b in pairwise(texts)) and texts[-1].strip() == result["text"]


async def test_segments_of_a_long_recording(transcriber):
    """73 s, three windows: seeks, context and times as in the reference."""
    events = [e async for e in transcriber.transcribe(clip("long"))]
    ours, theirs = events[-1]["result"]["segments"], FACTS["long"]["segments"]
    assert [s["tokens"] for s in ours] == [s["tokens"] for s in theirs]
    for a, b in zip(ours, theirs):
        assert a["text"] == b["text"] and abs(a["start"] - b["start"]) < 0.011 and abs(a["end"] - b["end"]) < 0.011
        assert abs(a["avg_logprob"] - b["avg_logprob"]) < 1e-3 and abs(a["no_speech_prob"] - b["no_speech_prob"]) < 1e-3
    progress = [e["done"] for e in events if e["event"] == "progress" and e["stage"] == "transcribe"]
    assert progress == sorted(progress) and progress[0] == 0


def log_sum(x: np.ndarray) -> float:
    x = x.astype(np.float64)
    return float(x.max() + np.log(np.exp(x - x.max()).sum()))
