"""The network as a traced Program: published sizes, batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.whisper import load_model
from candlewick.models.whisper.model import Dims, Whisper
from candlewick.models.whisper.programs import check_generation, programs
from candlewick.models.whisper.readout import Readout
from candlewick.trace import Spec, trace
from candlewick.weights.load import Checkpoint
from tests.golden.whisper import clips

MINIATURE = Path(__file__).resolve().parents[2] / "models/test-whisper"


def published(width: int, layers: int, mels: int = 80, vocab: int = 51865) -> Dims:
    return Dims(mels, 1500, 448, vocab, width, layers, width // 64, 4 * width, layers, width // 64, 4 * width)


@pytest.mark.parametrize(("dims", "parameters"), [
    (published(384, 4), 37_760_640), (published(384, 4, vocab=51864), 37_760_256), (published(512, 6), 72_593_920),
    (published(768, 12), 241_734_912), (published(1024, 24), 763_857_920), (published(1280, 32), 1_543_304_960),
    (published(1280, 32, 128, 51866), 1_543_490_560)])
def test_published_sizes(dims, parameters):
    """tiny, tiny.en, base, small, medium, large-v2, large-v3: the parameters of each, and Programs of all entries."""
    network = Whisper(dims, Readout(dims.n_vocab, 50257, dims.n_vocab - 1501))
    assert sum(int(np.prod(p.shape)) for p in network.parameters().values()) == parameters
    if dims.n_audio_layer <= 12:
        made = programs(network)
        assert list(made) == ["mel", "encode", "remember", "decode_1", "decode_16"]
        assert made["encode"].outputs["features"].shape == (1, 1500, dims.n_state)
        assert {name: v.shape for name, v in made["decode_1"].outputs.items()} == {
            "logits": (1, dims.n_vocab), "best": (1, 6), "times": (1, 1501)}
        states = {s.name: s.shape for p in made.values() for s in p.states.values()}
        assert len(states) == 1 + 4 * dims.n_text_layer  # features; keys and values of tokens and of the audio


async def test_two_windows_at_once():
    """A batch of two gives what each gives alone; every row of a chunk can be asked for."""
    model = await load_model(Checkpoint.open(MINIATURE))
    network, dims = model.network, model.dims
    pair = network.new_cache(batch=2)

    def encode(log_mel, peak):
        return {"features": network.encode(log_mel, peak, pair)[0]}

    def remember():
        network.remember(pair)

    def decode(tokens, pos, last, heard):
        return network.decode(tokens, pair, pos, last, heard)[0]

    both = {"mel": trace(network.mel, {"samples": Spec((2, dims.n_samples, 1))}, name="mel"),
            "encode": trace(encode, {"log_mel": Spec((2, dims.n_frames, dims.n_mels))}, {"peak": "f32"}, name="encode"),
            "remember": trace(remember, {}, name="remember"),
            "decode": trace(decode, {"tokens": Spec((2, 4), "i32")}, ("pos", "last", "heard"), name="decode")}
    one, two = executors.create("numpy"), executors.create("numpy")
    await one.load(model.programs, model.weights)
    await two.load(both, model.weights)
    audio = [np.resize(clips.chirp(2), dims.n_samples), np.random.default_rng(0).uniform(-1, 1, dims.n_samples)]
    tokens = np.array([[5, 6, 7, 8], [9, 10, 11, 12]], np.int32)

    mel = (await two.run("mel", {"samples": np.stack(audio)[:, :, None]}))["log_mel"]
    features = (await two.run("encode", {"log_mel": mel, "peak": 1.0}))["features"]
    await two.run("remember", {})
    heard = dims.n_audio_ctx - 1
    for last in range(4):
        logits = (await two.run("decode", {"tokens": tokens, "pos": 0, "last": last, "heard": heard}))["logits"]
        for i in range(2):
            alone = await one.run("mel", {"samples": audio[i].reshape(1, -1, 1)})
            encoded = await one.run("encode", {"log_mel": alone["log_mel"], "peak": 1.0})
            await one.run("remember", {})
            assert np.abs(encoded["features"][0] - features[i]).max() < 1e-4
            for pos in range(last + 1):
                token = tokens[i : i + 1, pos : pos + 1]
                step = await one.run("decode_1", {"tokens": token, "pos": pos, "last": 0, "heard": heard})
            assert np.abs(step["logits"][0] - logits[i]).max() < 1e-3


async def test_positions_beyond_the_context_are_refused():
    model = await load_model(Checkpoint.open(MINIATURE))
    executor = executors.create("numpy")
    await executor.load(model.programs, model.weights)
    for entry, pos in (("decode_1", 64), ("decode_16", 49)):
        n = int(entry.split("_")[1])
        with pytest.raises(ValueError, match="pos"):
            await executor.run(entry, {"tokens": np.zeros((1, n), np.int32), "pos": pos, "last": 0, "heard": 99})
    with pytest.raises(ValueError, match="tokens"):
        await executor.run("decode_1", {"tokens": [[model.dims.n_vocab]], "pos": 0, "last": 0, "heard": 99})
    with pytest.raises(ValueError, match="heard"):
        await executor.run("decode_1", {"tokens": [[0]], "pos": 0, "last": 0, "heard": 100})


CONFIG = json.loads((MINIATURE / "config.json").read_text())


@pytest.mark.parametrize(("key", "value"), [
    ("d_model", 0), ("encoder_layers", -1), ("encoder_layers", 10**9), ("decoder_layers", 0), ("encoder_attention_heads", 0),
    ("decoder_attention_heads", -2), ("num_mel_bins", 10**7), ("max_source_positions", 10**9), ("d_model", 10**40),
    ("vocab_size", "469"), ("d_model", True), ("encoder_ffn_dim", None), ("encoder_ffn_dim", 64.0)])
def test_damaged_sizes_are_refused_before_anything_is_built(key, value):
    with pytest.raises(ValueError, match=f"config.json: .*{key}"):
        Dims.from_config(CONFIG | {key: value})


@pytest.mark.parametrize(("key", "value"), [
    ("suppress_tokens", "abc"), ("suppress_tokens", 5), ("suppress_tokens", [10**9]), ("suppress_tokens", [-1]),
    ("suppress_tokens", [1.5]), ("begin_suppress_tokens", ["x"]), ("begin_suppress_tokens", [469]), ("is_multilingual", "yes")])
def test_damaged_generation_config_names_the_entry(key, value):
    with pytest.raises(ValueError, match=f"generation_config.json: {key} must"):
        check_generation({key: value}, 469)
    assert check_generation({"suppress_tokens": None, "begin_suppress_tokens": [0, 468]}, 469)
