"""Word times: the real weights against openai-whisper's (tests/golden/whisper/words.json), and the pure functions."""

from __future__ import annotations

import json

import numpy as np
import pytest

from candlewick.models.whisper.programs import alignment_heads
from candlewick.models.whisper.words import Word, fit, join_marks, median_filter, shorten, usual_length, warp
from tests.models.whisper.test_parity import FACTS, GOLDEN, clip, pytestmark  # noqa: F401  (the skip)
from tests.models.whisper.test_speech import result, transcriber  # noqa: F401  (the fixture)

WANTED = json.loads((GOLDEN / "words.json").read_text())


@pytest.mark.parametrize("name", ["jfk", "lighthouse"])
async def test_against_the_reference(transcriber, name):  # noqa: F811
    """Mean and largest difference of starts and ends, probabilities; never back, never past the end."""
    audio = clip(name)
    final = await result(transcriber, audio, word_timestamps=True, temperatures=(0.0,))
    words = [w for s in final["segments"] for w in s["words"]]
    want = WANTED[name]
    assert [w["word"] for w in words] == [word for word, *_ in want]
    differences = np.abs([[w["start"] - start, w["end"] - end] for w, (_, start, end, _) in zip(words, want)])
    assert differences.mean() < 0.01 and differences.max() <= 0.1, differences.max(1)
    assert max(abs(w["probability"] - p) for w, (*_, p) in zip(words, want)) < 0.02
    times = [t for w in words for t in (w["start"], w["end"])]
    assert times == sorted(times) and 0 <= times[0] and times[-1] <= len(audio) / 16000
    plain = await result(transcriber, audio, temperatures=(0.0,))
    assert plain["text"] == final["text"] and not any("words" in s for s in plain["segments"])


async def test_long_recording(transcriber):  # noqa: F811
    """Several windows. The reference lets word times say where it goes on, and then hears other windows than without them;
    here the text is the same with and without."""
    audio = clip("long")
    final = await result(transcriber, audio, word_timestamps=True, temperatures=(0.0,))
    words = [w for s in final["segments"] for w in s["words"]]
    assert [s["text"] for s in final["segments"]] == [s["text"] for s in FACTS["long"]["segments"]]
    assert all("".join(w["word"] for w in s["words"]) == s["text"] for s in final["segments"])
    times = [t for w in words for t in (w["start"], w["end"])]
    assert times == sorted(times) and times[-1] <= len(audio) / 16000
    assert max(w["end"] - w["start"] for w in words) < 2.5


def brute_force(cost):
    """The cheapest path by looking at every cell in turn, ties as in the reference."""
    n, m = cost.shape
    total, came = np.full((n + 1, m + 1), np.inf), np.zeros((n + 1, m + 1), int)
    total[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            both, above, left = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
            came[i, j] = 0 if both < above and both < left else 1 if above < both and above < left else 2
            total[i, j] = cost[i - 1, j - 1] + (both, above, left)[came[i, j]]
    path, i, j = [], n, m
    while i or j:
        path.append((i - 1, j - 1))
        step = came[i, j] if i and j else 2 if not i else 1
        i, j = i - (step != 2), j - (step != 1)
    return np.array(path[::-1]).T


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 50), (40, 41), (7, 7)])
def test_warp(shape):
    cost = np.random.default_rng(1).normal(size=shape)
    assert np.array_equal(np.array(warp(cost)), brute_force(cost))
    assert np.array_equal(np.array(warp(np.zeros(shape))), brute_force(np.zeros(shape)))


@pytest.mark.parametrize("n", [1, 3, 4, 7, 40])
def test_median_filter(n):
    x = np.random.default_rng(2).normal(size=(2, n))
    padded = np.pad(x, [(0, 0), (3, 3)], mode="reflect") if n > 3 else None
    want = x if n <= 3 else np.median(np.lib.stride_tricks.sliding_window_view(padded, 7, -1), -1)
    assert np.array_equal(median_filter(x), want)


def word(text, start, end):
    return Word(text, (len(text),), start, end, 0.5)


def test_marks_join_their_words():
    words = [word(' "', 0, 1), word("Well", 1, 2), word(",", 2, 3), word(" sir", 3, 4), word('."', 4, 5)]
    joined = join_marks(words)
    assert [(w.text, w.start, w.end) for w in joined] == [(' "Well,', 1, 2), (' sir."', 3, 4)]
    assert sum(len(w.tokens) for w in joined) == len(words)


def test_words_that_hold_a_pause_are_cut():
    words = [word(" a", 0, 0.2), word(" b", 0.2, 0.4), word(".", 0.4, 3.0), word(" c", 3.0, 3.2)]
    assert usual_length(words) == pytest.approx(0.2)
    assert shorten(words)[2].end == pytest.approx(0.8)
    late = fit([word(" d", 10.0, 14.0), word(" e", 14.0, 14.2)], 13.0, 14.2, 9.9, 0.2)
    assert late[0].start == pytest.approx(13.6) and late[0].end == 14.0
    assert fit([word(" d", 10.0, 14.0)], 13.0, 14.2, 13.5, 0.2)[0].start == pytest.approx(13.0)
    assert fit([word(" c", 9.8, 10.0), word(" d", 10.0, 19.0)], 9.8, 12.0, 9.7, 0.2)[1].end == pytest.approx(12.0)
    assert shorten([]) == [] and usual_length([word(" x", 1, 1)]) == 0


def test_heads():
    class Dims:
        n_text_layer, n_text_head = 4, 2

    assert alignment_heads({}, Dims) == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert alignment_heads({"alignment_heads": [[3, 1], [0, 0]]}, Dims) == [(0, 0), (3, 1)]
    for bad in ([], [[4, 0]], [[0]], "0", [[0, True]], [[0, 2]]):
        with pytest.raises(ValueError, match="alignment_heads must list"):
            alignment_heads({"alignment_heads": bad}, Dims)
