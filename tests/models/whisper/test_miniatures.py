"""The committed miniatures (random weights): other sizes, the multilingual kind, 128 mel bands, on every executor.

Features and logits against transformers; transcripts and printed Programs against what is pinned
(tests/golden/whisper/pin.py writes them anew).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.whisper import Transcriber, load_model
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
