"""Decoding rules: which token may come next, how one is picked, how tokens become segments."""

from __future__ import annotations

import random

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.whisper.decoding import GREEDY, Decoded, Rules
from candlewick.models.whisper.readout import Readout
from candlewick.models.whisper.segments import Timeline, cut
from candlewick.trace import Spec, trace
from candlewick.weights.load import Weights

EOT, BEGIN, N = 50, 60, 111  # text 0..49 | end and special 50..59 | timestamps 60..110
RULES = Rules(EOT, BEGIN, N, suppress=(3, 4, 52, 59), blank=(7, EOT), last_initial=10)


def reference_mask(tokens: list[int], logits: np.ndarray) -> np.ndarray:
    """The filters of openai-whisper in their order, on infinities, as an independent statement of the rules."""
    x = logits.astype(np.float64).copy()
    if not tokens:
        x[[7, EOT]] = -np.inf
    x[[3, 4, 52, 59]] = -np.inf
    was_time = len(tokens) >= 1 and tokens[-1] >= BEGIN
    before_was_time = len(tokens) < 2 or tokens[-2] >= BEGIN
    if was_time:
        if before_was_time:
            x[BEGIN:] = -np.inf
        else:
            x[:EOT] = -np.inf
    times = [t for t in tokens if t >= BEGIN]
    if times:
        x[BEGIN : times[-1] + (0 if was_time and not before_was_time else 1)] = -np.inf
    if not tokens:
        x[:BEGIN] = -np.inf
        x[BEGIN + 10 + 1 :] = -np.inf
    with np.errstate(divide="ignore"):
        log_p = x - np.log(np.exp(x - x.max()).sum()) - x.max()
        if np.log(np.exp(log_p[BEGIN:]).sum()) > log_p[:BEGIN].max():
            x[:BEGIN] = -np.inf
    return x


def transcripts(rng: random.Random, count: int):
    """Transcripts that obey the rules, at random."""
    for _ in range(count):
        tokens: list[int] = []
        for _ in range(rng.randrange(12)):
            a = RULES.allowed(tokens)
            choices = [*(range(EOT) if a.text else ()), *range(a.first, a.stop)]
            if not choices:
                break
            times = [c for c in choices if c >= BEGIN]
            tokens.append(rng.choice(times if times and rng.random() < 0.4 else choices))
        yield tokens


def test_allowed_tokens_are_those_of_the_reference():
    rng, noise = random.Random(1), np.random.default_rng(1)
    for tokens in transcripts(rng, 1500):
        logits = noise.standard_normal(N) * 3
        wanted = reference_mask(tokens, logits)
        got = RULES.scores(logits, RULES.allowed(tokens), first=not tokens)
        assert np.array_equal(np.isinf(wanted), got < -1e8), tokens
        assert np.allclose(got[got > -1e8], wanted[np.isfinite(wanted)])


@pytest.mark.parametrize("name", ["numpy", "wasm"])
async def test_greedy_from_few_numbers_equals_greedy_from_all(name):
    """The outputs of Readout are enough: same token, same log-probability, for every kind of transcript."""
    try:
        executor = executors.create(name)
    except (executors.ExecutorUnavailable, ImportError) as e:
        pytest.skip(f"executor {name}: {e}")
    readout = Readout(N, EOT, BEGIN, RULES.suppress)
    constants = readout.constants()
    program = trace(readout, {"logits": Spec((1, N))}, name="readout")
    await executor.load({"readout": program}, Weights(None, {}, constants))
    rng, noise = random.Random(2), np.random.default_rng(2)
    picked = set()
    for tokens in transcripts(rng, 300):
        if not tokens:
            continue
        logits = (noise.standard_normal(N) * 3).astype(np.float32)
        logits[EOT] += rng.choice([0, 6])
        step = await executor.run("readout", {"logits": logits[None]}, GREEDY)
        allowed = RULES.allowed(tokens)
        token, logprob = RULES.greedy(step, allowed)
        wanted, wanted_logprob = RULES.sample(RULES.scores(logits, allowed, first=False), 0.0, rng)
        assert token == wanted and abs(logprob - wanted_logprob) < 1e-4
        picked.add("text" if token < EOT else "end" if token == EOT else "special" if token < BEGIN else "time")
    assert {"text", "end", "time"} <= picked
    await executor.close()


def test_without_timestamps_there_are_none():
    rules = Rules(EOT, BEGIN, N, (), (7, EOT), timestamps=False)
    x = rules.scores(np.zeros(N), rules.allowed([]), first=True)
    assert x[BEGIN:].max() < -1e8 and x[7] < -1e8 and x[8] == 0
    assert rules.scores(np.zeros(N), rules.allowed([5]), first=False)[EOT] == 0


def test_sampling():
    """Frequencies follow the temperature, a seed repeats, forbidden tokens never come, extreme scores stay finite."""
    scores = np.array([0.0, 1.0, 2.0, -1e9])
    for temperature in (0.5, 1.0):
        rng = random.Random(3)
        counts = np.bincount([RULES.sample(scores, temperature, rng)[0] for _ in range(20000)], minlength=4)
        p = np.exp(scores / temperature)
        assert np.abs(counts / 20000 - p / p.sum()).max() < 0.02 and counts[3] == 0
    a = [RULES.sample(scores, 1.0, random.Random(9)) for _ in range(3)]
    assert a[0] == a[1] == a[2]
    assert RULES.sample(scores, 0.0, random.Random(0))[0] == 2
    for temperature in (1e-9, 1e-3, 99.0):
        token, logprob = RULES.sample(scores * 1e3, temperature, random.Random(1))
        assert 0 <= token < 3 and np.isfinite(logprob)


def test_ratios():
    assert Decoded(0.0, 0.0).compression_ratio == 0.0 and Decoded(0.0, 0.0).avg_logprob == 0.0
    loop, plain = Decoded(0, 0, text=" and then" * 40), Decoded(0, 0, text="The quick brown fox jumps over the lazy dog.")
    assert loop.compression_ratio > 10 and 0.7 < plain.compression_ratio < 1.3


# ---- segments -----------------------------------------------------------------------------------------------------

def at(seconds: float) -> int:
    return BEGIN + round(seconds / 0.02)


@pytest.mark.parametrize(("tokens", "pieces", "advance"), [
    # two segments and the start of a third: go on where the second ends
    ([at(0), 1, 2, at(0.2), at(0.2), 3, at(0.4), at(0.4), 9], [(0, 20, 4), (20, 40, 3)], 40),
    # ends with a single timestamp: nothing more in the window
    ([at(0), 1, at(0.2), at(0.22), 3, at(0.4)], [(0, 20, 3), (22, 40, 3)], 100),
    ([at(0.1), 1, 2, at(0.4)], [(10, 40, 4)], 100),
    # no second timestamp: until the end of the window
    ([at(0.1), 1, 2], [(10, 100, 3)], 100),
    ([1, 2], [(0, 100, 2)], 100),
    ([], [(0, 100, 0)], 100),
    # pairs at zero would stand still
    ([at(0), at(0), 5], [(0, 0, 1)], 100),
    # a timestamp behind the end of the sound
    ([at(0), 1, at(1.0), at(1.0), 2], [(0, 60, 3)], 60),
])
def test_cut(tokens, pieces, advance):
    n_frames = 60 if at(1.0) in tokens else 100
    got, seek = cut(tokens, BEGIN, n_frames)
    assert [(p.start, p.end, len(p.tokens)) for p in got] == pieces and seek == advance


def test_cut_always_goes_on():
    """BR-08: whatever the tokens, the window moves by at least a frame and no segment runs backwards or out of it."""
    rng = random.Random(4)
    for _ in range(3000):
        tokens = [rng.choice([rng.randrange(EOT), rng.randrange(BEGIN, N)]) for _ in range(rng.randrange(10))]
        n_frames = rng.randrange(1, 101)
        pieces, advance = cut(tokens, BEGIN, n_frames)
        assert 0 < advance <= n_frames
        assert all(0 <= p.start <= p.end <= n_frames for p in pieces)


def test_times_stay_inside_and_never_go_back():
    """BR-09"""
    timeline = Timeline(12.34)
    assert timeline.place(0, 5) == (0.0, 5.0)
    assert timeline.place(4.5, 9) == (5.0, 9.0)
    assert timeline.place(8.8, 30) == (9.0, 12.34)
    assert timeline.place(29, 30) == (12.34, 12.34)
