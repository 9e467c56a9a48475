"""A shortened audio context: which encoder a window gets, what becomes of a text that is not good, executors agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.whisper import TranscribeOptions, Transcriber, load_model
from candlewick.models.whisper.mel import n_samples, window
from candlewick.models.whisper.programs import contexts
from candlewick.weights.load import Checkpoint
from tests.golden.whisper import clips
from tests.unit.test_whisper_transcribe import ENGLISH, MULTILINGUAL, WINDOW, Scripted, events, loaded, single_segment

SHORT = TranscribeOptions(temperatures=(0.0,), context="short", no_speech_threshold=None)


async def encoders(transcriber, seconds: float, options=SHORT) -> tuple[list[str], dict]:
    """-> encoder entries that ran, in order, and the result"""
    run, entries = transcriber.executor.run, []

    async def noted(entry, inputs, fetch=None):
        if entry.startswith("encode"):
            entries.append(entry)
        return await run(entry, inputs, fetch)

    transcriber.executor.run = noted
    seen = await events(transcriber, clips.chirp(seconds), options)
    return entries, seen[-1]["result"]


async def test_contexts_of_published_checkpoints():
    model = await load_model(Checkpoint.open(ENGLISH))
    assert contexts(model.dims) == (16, 33, 66, 100)  # of 100; of 1500: 250, 500, 1000, 1500


@pytest.mark.parametrize(("seconds", "wanted"), [
    (0.1, ["encode_66"]), (0.3, ["encode_66"]), (0.4, ["encode"]), (2.0, ["encode"]), (WINDOW + 0.3, ["encode", "encode_66"])])
async def test_the_smallest_encoder_that_leaves_a_second(seconds, wanted):
    """A second of silence stands behind the sound; only the last window of a recording is short."""
    t = await loaded()
    Scripted(t, single_segment(t))
    entries, final = await encoders(t, seconds)
    assert entries == wanted
    assert final["segments"] and all(0 <= s["start"] <= s["end"] <= final["duration"] for s in final["segments"])
    assert (await encoders(t, seconds, TranscribeOptions(temperatures=(0.0,))))[0].count("encode") == len(wanted)


async def test_what_is_unsure_is_heard_whole():
    """Its own threshold calls every transcript unsure: the short one, and then the whole one, at all temperatures."""
    t = await loaded()
    options = TranscribeOptions(temperatures=(0.0, 0.4), context="short", logprob_threshold=1.0, no_speech_threshold=None)
    assert (await encoders(t, 0.3, options))[0] == ["encode_66", "encode"]


async def test_a_loop_ends_early():
    """A decoder that never ends gets 12 tokens a second of the short context, and then the whole window."""
    t = await loaded()
    tokenizer = t.model.tokenizer
    word = tokenizer.encode("w")[0]
    script = Scripted(t, lambda read: {tokenizer.timestamp_begin: 20.0, word: 20.0})
    entries, _ = await encoders(t, 0.3, replace(SHORT, compression_ratio_threshold=None))
    assert entries == ["encode_66", "encode"]
    assert len(script.windows[-1]) == 16  # 12 tokens for each of 1.32 s; the last one is not read, the first one is told


@pytest.mark.parametrize("folder", [ENGLISH, MULTILINGUAL], ids=lambda f: f.name)
async def test_executors_agree(folder):
    """Encoder and decoder of a shortened context, behind a whole window whose keys and values are still in the cache."""
    found = []
    for name in ("numpy", "wasm"):
        try:
            executor = executors.create(name)
        except (executors.ExecutorUnavailable, ImportError) as e:
            pytest.skip(f"executor {name}: {e}")
        t = await Transcriber.load(Checkpoint.open(folder), executor)
        n_ctx = contexts(t.model.dims)[1]
        await t.load_context(n_ctx)
        outputs = []
        for end, n in (("", t.model.dims.n_audio_ctx), (f"_{n_ctx}", n_ctx)):
            mel = await executor.run(f"mel{end}", {"samples": window(clips.chirp(0.5), 0, n_samples(2 * n))})
            await executor.run(f"encode{end}", {"log_mel": mel["log_mel"], "peak": mel["peak"]}, ())
            await executor.run(f"remember{end}", {}, ())
            tokens = np.arange(16, dtype=np.int32)[None]
            inputs = {"tokens": tokens, "pos": 0, "last": 15, "heard": n - 1}
            outputs.append((await executor.run("decode_16", inputs))["logits"])
        found.append(outputs)
        await executor.close()
    assert np.abs(np.array(found[0]) - found[1]).max() < 2e-4
    assert np.abs(found[0][0] - found[0][1]).max() > 1e-2  # and it does hear less
