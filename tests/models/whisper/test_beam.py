"""Beam search on real weights: the tokens of the reference under each option (tests/golden/whisper/make_beam.py)."""

from __future__ import annotations

import json

import pytest

from candlewick.models.whisper import TranscribeOptions
from candlewick.models.whisper.beam import decode_several
from candlewick.models.whisper.decoding import WindowDecoder, rules_for
from candlewick.models.whisper.mel import window
from tests.golden.whisper import clips
from tests.models.whisper.test_parity import GOLDEN, pytestmark, transcriber  # noqa: F401  (fixture, skip)

FACTS = json.loads((GOLDEN / "beam.json").read_text())


@pytest.mark.parametrize("name", FACTS["clips"])
async def test_tokens_are_the_reference_ones(transcriber, name):  # noqa: F811
    """Greedy and with beams, patience, penalties and prompts; one encoding serves all. On numpy, where several rows cost as
    many times one, the two that matter on the shortest clip."""
    executor, model = transcriber.executor, transcriber.model
    if executor.name == "numpy" and name != "jfk":
        pytest.skip("decoded on wasm only")
    try:
        audio = clips.CLIPS[name]()
    except clips.NotHere as e:
        pytest.skip(str(e))
    if clips.fingerprint(audio) != FACTS["clips"][name]["fingerprint"]:
        pytest.skip(f"clip {name} differs from the one of the golden numbers: another espeak-ng, or another FLAC decoder")
    mel = await executor.run("mel", {"samples": window(audio, 0, model.dims.n_samples)})
    await executor.run("encode", {"log_mel": mel["log_mel"], "peak": mel["peak"]}, ())
    await executor.run("remember", {}, ())
    for label, wanted in FACTS["clips"][name]["decoded"].items():
        if executor.name == "numpy" and label not in ("greedy", "beam"):
            continue
        given = FACTS["options"][label]
        options = TranscribeOptions(timestamps=not given.get("without_timestamps"), **{
            key: given[key] for key in ("beam_size", "patience", "length_penalty") if key in given})
        decoded = await decode(transcriber, options, given.get("prompt", ""))
        assert decoded.tokens == wanted["tokens"], label
        assert decoded.avg_logprob == pytest.approx(wanted["avg_logprob"], abs=1e-3), label


async def decode(transcriber, options, prompt):  # noqa: F811
    """The window that is encoded, at temperature 0."""
    model, tokenizer = transcriber.model, transcriber.model.tokenizer
    rules = rules_for(tokenizer, model.dims.n_vocab, model.generation_config, timestamps=options.timestamps,
                      suppress_blank=True, max_initial_timestamp=1.0, seconds_per_timestamp=0.02)
    decoder = WindowDecoder(transcriber.executor, tokenizer, rules, model.dims.n_text_ctx, model.dims.n_audio_ctx)
    previous = tokenizer.encode(" " + prompt.strip()) if prompt else []
    await decoder.read_prompt(previous, tokenizer.prompt("en", "transcribe", options.timestamps))
    search, rng = options.search(), None
    if search.beam_size > 1:
        await transcriber.load_tree(search.beam_size)
        run = decode_several(decoder, search, 0.0, rng)
    else:
        run = decoder.decode(0.0, rng)
    return [decoded async for decoded in run][-1]
