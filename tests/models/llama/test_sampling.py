"""Which token comes next: the rules by themselves, on made-up logits."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from candlewick.models.llama.sampling import GenerateOptions, Sampler, SplitMix64, StopStrings

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}


def best(logits: np.ndarray, k: int) -> tuple[list[int], list[float], float]:
    """What a Program brings back of the logits."""
    order = np.argsort(-logits, kind="stable")[:k]
    x = logits.astype(np.float64)
    return order.tolist(), logits[order].tolist(), float(np.log(np.exp(x - x.max()).sum()) + x.max())


def logits_of(seed: int, n: int = 1000, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * spread).astype(np.float32)


def reference(logits: np.ndarray, recent: list[int], o: GenerateOptions) -> dict[int, float]:
    """Token -> probability, straight from the rules."""
    x = {i: float(v) for i, v in enumerate(logits)}
    for token in set(recent):
        x[token] = x[token] / o.repeat_penalty if x[token] > 0 else x[token] * o.repeat_penalty
    order = sorted(x, key=lambda i: (-x[i], i))
    if o.top_k:
        order = order[: o.top_k]
    total = sum(math.exp(x[i]) for i in order)
    kept, passed = [], 0.0
    for i in order:
        kept.append(i)
        passed += math.exp(x[i]) / total
        if passed >= o.top_p:
            break
    kept = [i for i in kept if math.exp(x[i] - x[order[0]]) >= o.min_p]
    weights = {i: math.exp((x[i] - x[order[0]]) / o.temperature) for i in kept}
    return {i: w / sum(weights.values()) for i, w in weights.items()}


RULES = [{}, {"top_k": 5}, {"top_k": 64}, {"top_k": 500}, {"top_p": 0.6}, {"top_p": 0.999}, {"min_p": 0.05},
         {"top_k": 40, "top_p": 0.9}, {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.3},
         {"repeat_penalty": 1.5, "top_k": 60},
         {"repeat_penalty": 0.8, "top_k": 10}, {"repeat_penalty": 1.2, "top_p": 0.8}, {"top_p": 0.7, "min_p": 0.2},
         {"temperature": 0.3, "top_k": 20}, {"temperature": 2.5, "min_p": 0.02}]


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_few_logits_and_all_give_the_same_token(rules):
    """What `pick` settles with the 128 best is what all logits give, and every token is one that the rules allow."""
    settled = 0
    for seed in range(40):
        logits = logits_of(seed)
        recent = np.random.default_rng(seed + 1000).choice(np.argsort(-logits)[:200], 64).tolist()
        options = GenerateOptions(**{**OFF, **rules})
        token = Sampler(options, seed, recent).pick(*best(logits, 128), len(logits))
        whole = Sampler(options, seed, recent).pick_from(logits)
        assert whole in reference(logits, recent, options)
        if token is not None:
            settled += 1
            assert token == whole
    quick = rules.get("top_k", 0) in range(1, 65) and rules.get("repeat_penalty", 1) >= 1
    assert settled == 40 if quick else True


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_frequencies(rules):
    """3,000 draws from 30 tokens come as often as the rules say."""
    logits, options, recent = logits_of(3, 30, 1.5), GenerateOptions(**{**OFF, **rules}), [1, 2, 3, 3]
    wanted = reference(logits, recent, options)
    sampler = Sampler(options, 17, recent)
    ids, top, log_sum = best(logits, 30)
    found: Counter[int] = Counter()
    for _ in range(3000):
        token = sampler.pick(ids, top, log_sum, 30)
        found[sampler.pick_from(logits) if token is None else token] += 1
    assert set(found) <= set(wanted)
    for token, p in wanted.items():
        assert abs(found[token] - 3000 * p) < 5 * math.sqrt(3000 * p * (1 - p)) + 1


def test_greedy_and_its_penalty():
    logits = np.array([1.0, 4.0, 3.9, -1.0, 3.5], np.float32)
    for options, recent, wanted in [({}, [1, 1, 2], 1), ({"repeat_penalty": 1.05}, [1], 2),
                                    ({"repeat_penalty": 1.2}, [1, 2, 2], 4),
                                    ({"repeat_penalty": 1.2}, [], 1), ({"repeat_penalty": 0.5}, [4], 4),
                                    ({"repeat_penalty": 1.2, "repeat_last_n": 2}, [1, 0, 0], 1),
                                    ({"repeat_penalty": 1.2, "repeat_last_n": -1}, [1, 0, 0], 2),
                                    ({"repeat_penalty": 1.2, "repeat_last_n": 0}, [1, 2], 1)]:
        o = GenerateOptions(**{**OFF, **options, "greedy": True})
        for k in (2, 5):
            sampler = Sampler(o, 0, recent)
            token = sampler.pick(*best(logits, k), 5)
            assert (sampler.pick_from(logits) if token is None else token) == wanted
        assert Sampler(GenerateOptions(**{**OFF, **options, "temperature": 0}), 0, recent).pick_from(logits) == wanted


def test_negative_logits_are_made_smaller_by_a_penalty():
    logits = np.array([-2.0, -2.1], np.float32)
    assert Sampler(GenerateOptions(**{**OFF, "greedy": True, "repeat_penalty": 1.2}), 0, [0]).pick(*best(logits, 2), 2) == 1


def test_recent_tokens_are_forgotten_in_order():
    sampler = Sampler(GenerateOptions(repeat_last_n=3, repeat_penalty=1.5), 0, [7, 8])
    for token in (7, 9, 9):
        sampler.accept(token)
    assert set(sampler._counts) == {7, 9}
    sampler.accept(5)
    assert set(sampler._counts) == {9, 5}


@pytest.mark.parametrize("options", [{"temperature": 1e-9}, {"temperature": 1e-320}, {"top_p": 0.0}, {"top_k": 1},
                                     {"min_p": 1.0}])
def test_extremes_are_the_best_token(options):
    """BR-32: nothing divides by zero, nothing is infinite."""
    for seed in range(20):
        logits = logits_of(seed)
        o = GenerateOptions(**{**OFF, **options})
        token = Sampler(o, seed, []).pick(*best(logits, 128), 1000)
        assert token in (None, logits.argmax()) and Sampler(o, seed, []).pick_from(logits) == logits.argmax()


@pytest.mark.parametrize("options", [{"temperature": 1e6}, {"top_k": 10**9}, {"top_p": 1.0}, {"min_p": 0.0}])
def test_extremes_that_leave_everything(options):
    o = GenerateOptions(**{**OFF, **options})
    found = {Sampler(o, seed, []).pick_from(logits_of(0, 50, 0.5)) for seed in range(300)}
    assert len(found) > 30 and found <= set(range(50))


@pytest.mark.parametrize(("options", "word"), [
    ({"temperature": -1}, "temperature"), ({"temperature": math.nan}, "temperature"), ({"top_p": 1.5}, "top_p"),
    ({"top_k": -1}, "top_k"), ({"top_k": 2.5}, "top_k"), ({"min_p": "a"}, "min_p"), ({"repeat_penalty": 0}, "repeat_penalty"),
    ({"max_tokens": 0}, "max_tokens"), ({"seed": -1}, "seed"), ({"seed": 2**60}, "seed"), ({"stop": [""]}, "stop"),
    ({"stop": [1]}, "stop"), ({"repeat_last_n": -2}, "repeat_last_n"), ({"max_tokens": True}, "max_tokens"),
])
def test_options_that_make_no_sense(options, word):
    with pytest.raises(ValueError, match=f"^{word}"):
        GenerateOptions(**options)


def test_splitmix64():
    """The numbers that its authors' C code gives for this seed."""
    rng = SplitMix64(1234567)
    assert [rng.next() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    draws = [SplitMix64(seed).random() for seed in range(2000)]
    assert 0 <= min(draws) and max(draws) < 1 and abs(np.mean(draws) - 0.5) < 0.02


def through(stop: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """-> all that was shown, the stop string; nothing shown may be taken back"""
    strings, shown = StopStrings(stop), ""
    for piece in pieces:
        text, met = strings.push(piece)
        shown += text
        if met is not None:
            return shown, met
    return shown + strings.flush(), None


@pytest.mark.parametrize(("stop", "text", "shown", "met"), [
    ([], "abc", "abc", None), (["END"], "one END two", "one ", "END"), (["END"], "ENND EN", "ENND EN", None),
    (["aab"], "aaab", "a", "aab"), (["\n\n", "User:"], "hi\nUser: x", "hi\n", "User:"), (["abc", "b"], "xabc", "xa", "b"),
    (["ababc"], "abababc!", "ab", "ababc"),
    (["🙂🙂"], "a🙂b🙂🙂c", "a🙂b", "🙂🙂"),
])
def test_stop_strings_however_they_are_cut(stop, text, shown, met):
    assert through(stop, list(text)) == (shown, met)
    if len(stop) < 2:  # of several, the one that is complete first ends the text
        for size in range(2, len(text) + 1):
            assert through(stop, [text[i : i + size] for i in range(0, len(text), size)]) == (shown, met)


def test_a_stop_string_is_never_shown_in_part():
    strings = StopStrings(["<END>"])
    assert [strings.push(c)[0] for c in "a<EN"] == ["a", "", "", ""]
    assert strings.push("x") == ("<ENx", None) and strings.push("<") == ("", None) and strings.flush() == "<"
