"""Several transcripts at once: the rules against a plain statement of the reference's, the shared tree against one by one."""

from __future__ import annotations

import math
import random
from itertools import groupby

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.whisper import TranscribeOptions, Transcriber
from candlewick.models.whisper.beam import Beams, Samples, Transcript, best, decode_several
from candlewick.models.whisper.decoding import TokenReader, WindowDecoder, prompt_room, rules_for
from candlewick.models.whisper.mel import window
from candlewick.models.whisper.options import Search
from candlewick.models.whisper.readout import Readout
from candlewick.trace import Spec, trace
from candlewick.weights.load import Checkpoint, Weights
from tests.golden.whisper import clips
from tests.unit.test_whisper_rules import BEGIN, EOT, RULES, N, transcripts
from tests.unit.test_whisper_transcribe import ENGLISH, MULTILINGUAL, WINDOW, Scripted, events, loaded, single_segment


@pytest.fixture(params=["numpy", "wasm"])
async def executor(request):
    try:
        found = executors.create(request.param)
    except (executors.ExecutorUnavailable, ImportError) as e:
        pytest.skip(f"executor {request.param}: {e}")
    yield found
    await found.close()


# ---- rules without a model ------------------------------------------------------------------------------------------


def chain(seed: int, n: int = 9):
    """A language of n words in which what may come depends on the last two. -> tokens -> log-probabilities of all n"""
    table = np.random.default_rng(seed).standard_normal((n, n, n)) * 2
    table -= np.log(np.exp(table).sum(-1, keepdims=True))
    return lambda tokens: table[([0, 0, *tokens])[-2], ([0, 0, *tokens])[-1]]


def reference_search(logprobs, width: int, patience: float, steps: int, eot: int) -> dict[tuple[int, ...], float]:
    """openai-whisper's loop on dictionaries of whole sequences. -> finished sequences (without the end) and their sums"""
    wanted, finished, alive = round(width * patience), {}, {(): 0.0}
    for _ in range(steps):
        scores = {}
        for tokens, total in alive.items():
            row = logprobs(tokens)
            for token in np.argsort(-row)[: width + 1]:
                scores[(*tokens, int(token))] = total + float(row[token])
        alive, new = {}, {}
        for tokens in sorted(scores, key=scores.get, reverse=True):
            if tokens[-1] == eot:
                new[tokens[:-1]] = scores[tokens]
            else:
                alive[tokens] = scores[tokens]
                if len(alive) == width:
                    break
        for tokens in sorted(new, key=new.get, reverse=True):
            if len(finished) < wanted:
                finished[tokens] = new[tokens]
        if len(finished) >= wanted:
            break
    for tokens in sorted(alive, key=alive.get, reverse=True):
        if len(finished) >= width:
            break
        finished[tokens] = alive[tokens]
    return finished


@pytest.mark.parametrize(("width", "patience"), [(1, 1.0), (2, 1.0), (5, 1.0), (5, 2.0), (5, 0.4), (3, 1.5)])
def test_beams_are_those_of_the_reference(width, patience):
    for seed in range(20):
        logprobs, eot = chain(seed), 4
        beams = Beams(Search(width, patience=patience if width > 1 else 1.0), eot)
        for _ in range(12):
            found = []
            for one in beams.alive:
                row = logprobs(one.tokens)
                found.append([(int(t), float(row[t])) for t in np.argsort(-row)[: width + 1]])
            before = beams.alive
            over = beams.extend(found)
            assert all(before[source].tokens == one.tokens[:-1] for source, one in zip(beams.sources, beams.alive))
            if over:
                break
        wanted = reference_search(logprobs, width, patience, 12, eot)
        got = {t.tokens: t.sum_logprob for t in beams.results()}
        assert got.keys() == wanted.keys() and all(math.isclose(got[t], wanted[t]) for t in wanted)


def test_the_best_for_its_length():
    """Means over tokens, sums, and the penalty of Wu et al.; nothing said is no division by zero."""
    short, long, none = Transcript((1,) * 2, -1.0), Transcript((1,) * 10, -3.0), Transcript((), -2.0)
    assert best([short, long, none], None) is long and best([short, long, none], 0.0) is short
    for alpha in (0.0, 0.3, 0.6, 1.0):
        scores = [t.sum_logprob / ((5 + len(t.tokens)) / 6) ** alpha for t in (short, long, none)]
        assert best([short, long, none], alpha) is (short, long, none)[int(np.argmax(scores))]


def test_samples_end_one_by_one():
    samples = Samples(Search(best_of=3), eot=9)
    assert not samples.extend([(1, -1.0), (9, -2.0), (2, -3.0)])
    assert samples.sources == [0, 2] and [t.tokens for t in samples.alive] == [(1,), (2,)]
    assert not samples.extend([(9, -0.5), (3, -0.25)]) and samples.sources == [1]
    assert samples.extend([(9, -0.25)])
    assert samples.results() == [Transcript((), -2.0), Transcript((1,), -1.5), Transcript((2, 3), -3.5)]


@pytest.mark.parametrize(("options", "words"), [
    ({"beam_size": 0}, "beam_size: wanted a whole number from 1 to 16, got 0"),
    ({"beam_size": 2.5}, "beam_size: wanted a whole number"), ({"beam_size": 17}, "from 1 to 16"),
    ({"best_of": 0}, "best_of: wanted a whole number"),
    ({"beam_size": 5, "patience": 0}, "patience: wanted a number above 0"),
    ({"beam_size": 5, "patience": -1.0}, "patience: wanted a number above 0"),
    ({"beam_size": 5, "patience": 0.05}, "must leave at least one"),
    ({"patience": 2.0}, "give a beam_size from 2 on"),
    ({"length_penalty": 1.5}, "length_penalty: wanted a number from 0 to 1"),
    ({"beam_size": 5, "temperatures": [0.4]}, "but temperatures is 0.4; give 0, or use best_of"),
    ({"best_of": 5, "temperatures": [0.0]}, "use beam_size"),
    ({"beam_size": 5, "patience": None}, "patience: wanted a number"), ({"length_penalty": True}, "wanted a number, got True"),
    ({"beam_size": 5, "patience": "2"}, "patience: wanted a number, got '2'"), ({"temperatures": ["0"]}, "at least one number"),
    ({"hotwords": 5}, "hotwords: wanted text"), ({"context": "tiny"}, "there are full and short"),
])
def test_options_that_do_not_fit(options, words):
    with pytest.raises(ValueError, match=words):
        TranscribeOptions(**options)


# ---- on the executors -----------------------------------------------------------------------------------------------


async def test_candidates_from_few_numbers_equal_those_from_all(executor):
    """Rows of different transcripts in one run: the same tokens in the same order, the same log-probabilities."""
    readout, k, n = Readout(N, EOT, BEGIN, RULES.suppress), 6, 5
    constants = readout.constants()
    program = trace(lambda logits, first: readout.candidates(logits, first, k),
                    {"logits": Spec((n, N)), "first": Spec((n, 1))}, name="readout")
    await executor.load({"readout": program}, Weights(None, {}, constants))
    rng, noise, seen = random.Random(5), np.random.default_rng(5), set()
    said = [tokens for tokens in transcripts(rng, 300) if tokens]
    for start in range(0, len(said) - n, n):
        rows = said[start : start + n]
        allowed = [RULES.allowed(tokens) for tokens in rows]
        logits = (noise.standard_normal((n, N)) * 3).astype(np.float32)
        logits[:, EOT] += rng.choice([0, 6])
        first = np.array([[a.first - BEGIN] for a in allowed], np.float32)
        out = (await executor.run("readout", {"logits": logits, "first": first}, ("candidates",)))["candidates"]
        for row, one, a in zip(out.tolist(), logits, allowed):
            found = RULES.candidates(row, a, k)
            scores = RULES.scores(one, a, first=False)
            wanted = RULES.most_probable(scores, k)
            assert [token for token, _ in found] == [token for token, _ in wanted]
            assert all(abs(x - y) < 1e-4 for (_, x), (_, y) in zip(found, wanted))
            seen |= {"text" if t < EOT else "end" if t == EOT else "special" if t < BEGIN else "time" for t, _ in found}
    assert seen == {"text", "end", "special", "time"}


async def encoded(executor, folder, prompt=()):
    """-> transcriber and a decoder of 2 s of a chirp that has read its prompt"""
    transcriber = await Transcriber.load(Checkpoint.open(folder), executor)
    model = transcriber.model
    dims, tokenizer = model.dims, model.tokenizer
    mel = await executor.run("mel", {"samples": window(clips.chirp(2), 0, dims.n_samples)})
    await executor.run("encode", {"log_mel": mel["log_mel"], "peak": mel["peak"]}, ())
    await executor.run("remember", {}, ())
    rules = rules_for(tokenizer, dims.n_vocab, model.generation_config, timestamps=True, suppress_blank=True,
                      max_initial_timestamp=1.0, seconds_per_timestamp=0.02)
    decoder = WindowDecoder(executor, tokenizer, rules, dims.n_text_ctx, dims.n_audio_ctx)
    start = tokenizer.prompt(next(iter(tokenizer.languages)), "transcribe", True)
    await decoder.read_prompt(prompt, start)
    before = [tokenizer.start_of_prev, *prompt] if prompt else []
    return transcriber, decoder, [*before, *start]


@pytest.mark.parametrize("folder", [ENGLISH, MULTILINGUAL], ids=lambda f: f.name)
async def test_a_tree_equals_transcripts_one_by_one(executor, folder):
    """The whole search, with every transcript read anew from its beginning at each step, finds the same."""
    transcriber, decoder, start = await encoded(executor, folder, prompt=[5, 6, 7])
    search = Search(3, patience=1.4, length_penalty=0.3)
    dims, rules = transcriber.model.dims, decoder.rules
    await transcriber.load_tree(3)
    seen = [d async for d in decode_several(decoder, search, 0.0, random.Random(0), room=8)]
    assert all(len(d.tokens) == i + 1 for i, d in enumerate(seen[:-1]))

    rows: dict[tuple[int, ...], np.ndarray] = {}
    beams, over = Beams(search, rules.eot), False
    while not over and len(beams.alive[0].tokens) < 8:
        found = []
        for one in beams.alive:
            if one.tokens not in rows:
                reader = TokenReader(executor, dims.n_text_ctx, dims.n_audio_ctx)
                rows[one.tokens] = (await reader.feed([*start, *one.tokens], ("logits",)))["logits"][0]
            scores = rules.scores(rows[one.tokens], rules.allowed(one.tokens), first=not one.tokens)
            found.append(rules.most_probable(scores, 4))
        over = beams.extend(found)
    wanted = best(beams.results(), 0.3)
    assert seen[-1].tokens == list(wanted.tokens) and abs(seen[-1].sum_logprob - wanted.sum_logprob) < 1e-3


async def test_samples_are_scored_as_they_are_read_alone(executor):
    """The best of three at a temperature: its sum is what reading its tokens one by one gives."""
    transcriber, decoder, start = await encoded(executor, ENGLISH)
    await transcriber.load_tree(3)
    rules, dims = decoder.rules, transcriber.model.dims
    (*_, last) = [d async for d in decode_several(decoder, Search(best_of=3), 0.8, random.Random(4), room=8)]
    assert last.temperature == 0.8 and len(last.tokens) == 8
    total = 0.0
    for i, token in enumerate(last.tokens):
        logits = (await TokenReader(executor, dims.n_text_ctx, dims.n_audio_ctx).feed([*start, *last.tokens[:i]], ("logits",)))
        scores = rules.scores(logits["logits"][0], rules.allowed(last.tokens[:i]), first=i == 0)
        total += scores[token] - np.log(np.exp(scores - scores.max()).sum()) - scores.max()
    assert abs(total - last.sum_logprob) < 1e-3


async def test_beams_at_zero_and_samples_above_it():
    """A beam search that will not do is followed by the best of several samples; half of the context ends both."""
    t = await loaded()
    real, entries = t.executor.run, []

    async def run(entry, inputs, fetch=None):
        entries.append(entry)
        return await real(entry, inputs, fetch)

    t.executor.run = run
    seen = await events(t, clips.chirp(WINDOW), TranscribeOptions(
        temperatures=(0.0, 0.5), beam_size=2, best_of=3, logprob_threshold=1.0, no_speech_threshold=None))
    grown = [(entry, len(list(steps))) for entry, steps in groupby(e for e in entries if e.startswith("grow"))]
    assert [entry for entry, _ in grown[:2]] == ["grow_2", "grow_3"]
    assert all(steps <= 31 for _, steps in grown)  # 32 tokens are half of 64 positions, and the last is not read
    assert {s["temperature"] for s in seen[-1]["result"]["segments"]} <= {0.5}


@pytest.mark.parametrize(("options", "told"), [
    ({}, " candle boatsThe lamp"), ({"carry_initial_prompt": True}, " candle boatsThe lamp"),
    ({"logprob_threshold": 1.0}, " candle"), ({"logprob_threshold": 1.0, "carry_initial_prompt": True}, " candle boats"),
    ({"condition_on_previous_text": False}, " candle"),
])
async def test_what_every_window_is_told(options, told):
    """Hot words first, then what was said; a bad window takes away that, and the initial prompt where it is not carried."""
    t = await loaded()
    sot = t.model.tokenizer.sot
    script = Scripted(t, single_segment(t))
    await events(t, clips.chirp(2 * WINDOW), TranscribeOptions(
        temperatures=(0.0,), hotwords=" candle ", initial_prompt="boats", no_speech_threshold=None, **options))
    first, second = (read[: read.index(sot)] for read in [*script.windows[1:], script.read])
    assert first[0] == second[0] == t.model.tokenizer.start_of_prev
    assert [t.model.tokenizer.decode(tokens) for tokens in (first, second)] == [" candle boats", told]


async def test_hotwords_leave_half_of_the_context():
    t = await loaded()
    script = Scripted(t, single_segment(t))
    await events(t, clips.chirp(WINDOW), TranscribeOptions(temperatures=(0.0,), hotwords="w" * 200, initial_prompt="boats"))
    told = script.read[: script.read.index(t.model.tokenizer.sot)]
    assert len(told) == 1 + prompt_room(64) == 32 and t.model.tokenizer.decode(told) == "w" * 31
