"""The committed miniatures (random weights): other sizes, the multilingual kind, 128 mel bands, on every executor.

Features and logits against transformers; transcripts and printed Programs against what is pinned
(tests/golden/whisper/pin.py writes them anew).
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.whisper import TranscribeOptions, Transcriber, load_model
from candlewick.models.whisper.decoding import WindowDecoder, detect_language, rules_for
from candlewick.models.whisper.mel import window
from candlewick.weights.load import Checkpoint
from tests.golden.whisper import clips, pin

GOLDEN = Path(pin.__file__).parent
ARRAYS = np.load(GOLDEN / "golden.npz")
FACTS = json.loads((GOLDEN / "golden.json").read_text())["miniatures"]
PINNED = json.loads((GOLDEN / "pinned.json").read_text())


@pytest.fixture(params=["numpy", "wasm"])
def executor_name(request):
    try:
        executors.create(request.param)
    except (executors.ExecutorUnavailable, ImportError) as e:
        pytest.skip(f"executor {request.param}: {e}")
    return request.param


@pytest.mark.parametrize("name", pin.MINIATURES)
async def test_against_transformers(executor_name, name):
    executor = executors.create(executor_name)
    transcriber = await Transcriber.load(Checkpoint.open(pin.MODELS / name), executor)
    dims = transcriber.model.dims
    audio = clips.chirp(dims.n_frames / 100 - 0.1)
    mel = await executor.run("mel", {"samples": window(audio, 0, dims.n_samples)})
    seen = ((np.maximum(mel["log_mel"], mel["peak"] - 8) + 4) / 4)[0]
    assert np.abs(seen[::3, ::7] - ARRAYS[f"{name}.mel"]).max() < 2e-4
    encoded = await executor.run("encode", {"log_mel": mel["log_mel"], "peak": mel["peak"]})
    await executor.run("remember", {})
    errors = [np.abs(encoded["features"][0, ::7] - ARRAYS[f"{name}.features"]).max()]
    heard = dims.n_audio_ctx - 1
    logits = [(await executor.run("decode_1", {"tokens": [[t]], "pos": i, "last": 0, "heard": heard}))["logits"][0]
              for i, t in enumerate(FACTS[name]["tokens"])]
    errors.append(np.abs(np.array(logits)[:, ::11] - ARRAYS[f"{name}.logits"]).max())
    print(executor_name, name, np.abs(seen[::3, ::7] - ARRAYS[f"{name}.mel"]).max(), errors)
    assert max(errors) < 2e-4
    await executor.close()


@pytest.mark.parametrize("name", pin.MINIATURES)
async def test_transcripts_are_pinned(executor_name, name):
    found = await pin.transcripts(name, executor_name)
    assert json.loads(json.dumps(found)) == PINNED[name]


@pytest.mark.parametrize("name", pin.MINIATURES)
async def test_programs_are_pinned(name):
    for entry, text in (await pin.printed(name)).items():
        assert text == (GOLDEN / "programs" / f"{name}.{entry}.txt").read_text(), f"{entry}: see the top of this file"


async def test_weights_bind_strictly():
    """Every tensor of the file is a parameter and the other way round; sizes come from config.json alone."""
    for name in pin.MINIATURES:
        model = await load_model(Checkpoint.open(pin.MODELS / name))
        assert model.weights.bound.keys() == model.network.parameters().keys()
        assert all(tuple(i.shape) == tuple(model.network.parameters()[n].shape) for n, i in model.weights.bound.items())


async def test_languages_are_those_of_transformers(executor_name):
    """Which language it hears, with the probability of each; what it writes in each of them, and into English."""
    facts = json.loads((GOLDEN / "languages.json").read_text())
    executor = executors.create(executor_name)
    transcriber = await Transcriber.load(Checkpoint.open(pin.MODELS / "test-whisper-multilingual"), executor)
    model, audio = transcriber.model, clips.chirp(facts["seconds"])
    events = [e async for e in transcriber.transcribe(audio, TranscribeOptions(temperatures=(0.0,)))]
    mel = await executor.run("mel", {"samples": window(audio, 0, model.dims.n_samples)})
    await executor.run("encode", {"log_mel": mel["log_mel"], "peak": mel["peak"]}, ())
    await executor.run("remember", {}, ())
    found, all_ = await detect_language(executor, model.tokenizer, model.dims.n_text_ctx, model.dims.n_audio_ctx)
    assert all_ == pytest.approx(facts["probabilities"], abs=1e-4) and sum(all_.values()) == pytest.approx(1)
    assert events[-1]["result"]["language"] == found == max(all_, key=all_.get)
    assert events[-1]["result"]["language_probability"] == pytest.approx(all_[found])
    rules = rules_for(model.tokenizer, model.dims.n_vocab, model.generation_config, timestamps=False, suppress_blank=True,
                      max_initial_timestamp=None, seconds_per_timestamp=0.02)
    for label, tokens in facts["written"].items():
        decoder = WindowDecoder(executor, model.tokenizer, rules, model.dims.n_text_ctx, model.dims.n_audio_ctx)
        await decoder.read_prompt([], model.tokenizer.prompt(*label.split(), timestamps=False))
        written = [d async for d in decoder.decode(0.0, random.Random(0), room=len(tokens))][-1].tokens
        assert written == [t for t in tokens if t != model.tokenizer.eot], label
    await executor.close()
