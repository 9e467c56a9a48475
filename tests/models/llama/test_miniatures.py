"""The committed miniatures (random weights), every architecture in every file format, on every executor.

Logits against transformers (tests/golden/llama/make.py); printed Programs and answers against what is pinned (pin.py).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.llama import load_model
from candlewick.models.llama.model import Dims, rope_frequencies
from candlewick.models.llama.programs import CHUNK
from candlewick.weights.load import Checkpoint
from candlewick.weights.source import MemorySource, WeightsError
from tests.golden.llama import formats, make, pin

GOLDEN = np.load(Path(make.__file__).with_name("golden.npz"))
PINNED = json.loads(Path(make.__file__).with_name("pinned.json").read_text())
FORMATS = [(name, kind) for name in make.MINIATURES for kind in ("folder", "gguf")] + [("test-llama", "llama2c")]
"""The other miniatures have what llama2.c's header cannot say: head width, bias, rotary base."""
CASES = [(executor, *case) for executor in ("numpy", "wasm") for case in FORMATS] + [
    ("webgpu", name, "folder") for name in make.MINIATURES]
TOLERANCE = 5e-5  # logits go up to 25


def opened(name: str, kind: str, folder: Path) -> Checkpoint:
    """A miniature as a Hugging Face folder, as GGUF, or as a llama2.c file."""
    source = make.MODELS / name
    if kind == "folder":
        return Checkpoint.open(source)
    if kind == "llama2c":
        return Checkpoint.open(make.MODELS / "test-llama-bin")
    pytest.importorskip("gguf", reason="no gguf: pip install -r requirements-dev.txt")
    formats.write_gguf(source, folder / "model.gguf")
    return Checkpoint.open(folder)


async def loaded(executor_name: str, checkpoint: Checkpoint):
    try:
        executor = executors.create(executor_name)
    except (executors.ExecutorUnavailable, ImportError) as e:
        pytest.skip(f"executor {executor_name}: {e}")
    model = await load_model(checkpoint)
    await executor.load(model.programs, model.weights)
    return model, executor


async def prefilled(executor, ids: list[int]) -> dict[str, np.ndarray]:
    """Outputs of the last chunk of a prompt."""
    outputs = {}
    for pos in range(0, len(ids), CHUNK):
        piece = ids[pos : pos + CHUNK]
        tokens = np.zeros((1, CHUNK), np.int32)
        tokens[0, : len(piece)] = piece
        outputs = await executor.run("prefill", {"tokens": tokens, "pos": pos, "count": len(piece), "last": len(piece) - 1})
    return outputs


@pytest.mark.parametrize(("executor_name", "name", "kind"), CASES)
async def test_every_format_gives_the_logits_of_transformers(executor_name, name, kind, tmp_path):
    """BR-29: rotary layout, base, scaling and head width are right at positions 0, 1, 50 and the last, by both entries."""
    _, executor = await loaded(executor_name, opened(name, kind, tmp_path))
    ids, wanted = make.token_ids(name), GOLDEN[f"{name}.logits"]
    steps = np.array([(await executor.run("decode", {"tokens": [[t]], "pos": i}, ("logits",)))["logits"][0]
                      for i, t in enumerate(ids)])
    assert np.abs(steps[list(make.POSITIONS)] - wanted).max() < TOLERANCE
    for position, logits in zip(make.POSITIONS, wanted):
        outputs = await prefilled(executor, ids[: position + 1])
        assert np.abs(outputs["logits"][0] - logits).max() < TOLERANCE
    order = np.argsort(-outputs["logits"][0], kind="stable")[:128]
    assert outputs["top_ids"][0].tolist() == order.tolist()
    assert outputs["top"][0].tolist() == outputs["logits"][0][order].tolist()
    assert abs(outputs["log_sum"][0] - np.log(np.exp(outputs["logits"][0].astype(np.float64)).sum())) < 1e-5
    await executor.close()


@pytest.mark.parametrize("kind", ["default", "linear", "llama3"])
def test_rotary_frequencies(kind):
    dims = Dims(n_vocab=1, n_ctx=1, dim=2048, n_layer=1, n_head=32, n_kv_head=8, d_head=64, n_hidden=1, rope_base=500000.0,
                rope_scaling=make.SCALINGS[kind])
    ours, theirs = rope_frequencies(dims), GOLDEN[f"rope.{kind}"]
    assert np.abs(ours / theirs - 1).max() < 1e-5  # theirs is made in float32
    plain = rope_frequencies(replace(dims, rope_scaling=None))
    assert (np.abs(ours / plain - 1).max() > 0.5) == (kind != "default")


def test_programs_are_pinned():
    for name, text in pin.printed("test-llama-tied").items():
        assert text == (Path(pin.__file__).parent / "programs" / f"test-llama-tied.{name}.txt").read_text()


@pytest.mark.parametrize("executor_name", ["numpy", "wasm"])
@pytest.mark.parametrize("name", pin.ANSWERS)
async def test_answers_are_pinned(executor_name, name):
    try:
        executors.create(executor_name)
    except (executors.ExecutorUnavailable, ImportError) as e:
        pytest.skip(f"executor {executor_name}: {e}")
    assert await pin.answers(name, executor_name) == PINNED[name]


# ---- files that do not fit ------------------------------------------------------------------------------------------


def changed(name: str, **keys) -> Checkpoint:
    """A miniature with another config.json: entries set, or (None) taken away."""
    checkpoint = Checkpoint.open(make.MODELS / name)
    config = json.loads((make.MODELS / name / "config.json").read_text())
    config = {key: value for key, value in {**config, **keys}.items() if value is not None}
    data = json.dumps(config).encode()
    return Checkpoint({**checkpoint.files, "config.json": MemorySource(data, "config.json")}, name)


@pytest.mark.parametrize(("keys", "words"), [
    ({"num_hidden_layers": 3}, "missing"),
    ({"num_hidden_layers": 1}, "unexpected"),
    ({"hidden_size": 64}, r"\(320, 32\).*\(320, 64\)"),
    ({"num_key_value_heads": 3}, "share 3 heads"),
    ({"num_attention_heads": 0}, "1 to"),
    ({"hidden_size": None}, "hidden_size"),
    ({"hidden_size": 2**40}, "damaged"),
    ({"rms_norm_eps": float("1e300")}, "out of range"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
    ({"hidden_act": "gelu"}, "gelu"),
    ({"vocab_size": 300}, "tokenizer|320"),
])
async def test_configurations_that_do_not_fit(keys, words):
    with pytest.raises(ValueError, match=words):
        await load_model(changed("test-llama", **keys))


async def test_a_head_is_tied_only_where_the_file_has_none():
    """BR-21: no second copy of the embedding; a head that is asked for and missing is an error that names it."""
    model = await load_model(Checkpoint.open(make.MODELS / "test-llama-tied"))
    assert "lm_head.weight" not in model.weights.bound and model.dims.tied
    with pytest.raises(WeightsError, match="lm_head.weight"):
        await load_model(changed("test-llama-tied", tie_word_embeddings=False))
    assert not (await load_model(changed("test-llama", tie_word_embeddings=None))).dims.tied


async def test_capacity_follows_the_checkpoint():
    for capacity, wanted in ((None, 128), (40, 40), (128, 128), (4096, 128)):
        model = await load_model(Checkpoint.open(make.MODELS / "test-llama"), capacity)
        assert model.capacity == wanted and model.memory_estimate()["state"] == 2 * 2 * 2 * 8 * 4 * (wanted + CHUNK)
    assert (await load_model(changed("test-llama-mistral", sliding_window=48))).capacity == 48
    for bad in (0, 1, -5, 3.5):
        with pytest.raises(ValueError, match="capacity"):
            await load_model(Checkpoint.open(make.MODELS / "test-llama"), bad)


async def test_biases_that_are_missing_are_told(tmp_path):
    """BR-21: every Qwen2 has biases of queries, keys and values; without them it is another model's file."""
    folder = shutil.copytree(make.MODELS / "test-llama-qwen2", tmp_path / "mixed")
    shutil.copy(make.MODELS / "test-llama" / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(ValueError, match="6 missing: model.layers.0.self_attn.q_proj.bias"):
        await load_model(Checkpoint.open(folder))
