"""When each word is said. A few attention heads of the decoder (the checkpoint's alignment heads) look at the sound of the word
they are about to write; the path of dynamic time warping through what they look at gives each token its moment.

The method is that of the reference (github.com/openai/whisper, timing.py), its constants included.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from candlewick.executors import Executor
from candlewick.models.whisper.programs import ALIGN_CHUNK
from candlewick.models.whisper.tokenizer import SECONDS_PER_TIMESTAMP, Tokenizer

FILTER = 7  # frames of 20 ms in the median filter
LONGEST_MEDIAN = 0.7  # seconds: how long a usual word is at most taken to be
SENTENCE_ENDS = ".。!！?？"
OPENING, CLOSING = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"  # belong to the word behind, before them
WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")  # in these every character is a word


@dataclass(frozen=True)
class Word:
    """Text with its leading space, its tokens, seconds from the start of the window, mean probability of its tokens."""

    text: str
    tokens: tuple[int, ...]
    start: float
    end: float
    probability: float


async def find_words(
    executor: Executor, tokenizer: Tokenizer, prompt: Sequence[int], text: Sequence[int], n_frames: int, language: str,
    heard: int,
) -> list[Word]:
    """text: ids of a window without timestamps; prompt: what stood before them; n_frames of 10 ms with sound; heard: positions
    of audio in the cache -> its words.

    The window's audio must be in the cache; the cache of tokens is overwritten.
    """
    words = split_words(tokenizer, text, language)
    if not words:
        return []
    ids = [*prompt, tokenizer.no_timestamps, *text, tokenizer.eot]
    looks, logprob = await _look(executor, ids, tokenizer.eot, heard)
    looks = looks[:, :, : max(n_frames // 2, 1)]  # the encoder halves the frames
    rows = _mean_look(looks)[len(prompt) : -1]  # a row looks for the token that comes after its own
    tokens_at, frames_at = warp(-rows)
    firsts = np.flatnonzero(np.diff(tokens_at, prepend=-1))  # where the path comes to another token
    moments = frames_at[firsts] * SECONDS_PER_TIMESTAMP
    probability = np.exp(logprob[len(prompt) : -1])
    found, at = [], 0
    for word in words:
        end = at + len(word)
        found.append(Word(tokenizer.decode(word), tuple(word), float(moments[at]), float(moments[end]),
                          float(probability[at:end].mean())))
        at = end
    return found


async def _look(executor: Executor, ids: Sequence[int], eot: int, heard: int) -> tuple[np.ndarray, np.ndarray]:
    """-> scores (heads, n, n_audio_ctx) of every token, log-probability (n,) of the text token that follows each of them"""
    looks, logprob = [], []
    for pos in range(0, len(ids), ALIGN_CHUNK):
        piece = ids[pos : pos + ALIGN_CHUNK]
        tokens, following = np.zeros((1, ALIGN_CHUNK), np.int32), np.zeros((ALIGN_CHUNK, 1), np.int32)
        tokens[0, : len(piece)] = piece
        ahead = ids[pos + 1 : pos + 1 + len(piece)]
        following[: len(ahead), 0] = [i if i < eot else 0 for i in ahead]
        out = await executor.run("align", {"tokens": tokens, "following": following, "pos": pos, "heard": heard - 1})
        looks.append(out["looks"][:, : len(piece)])
        logprob.append(out["logprob"][: len(piece)])
    return np.concatenate(looks, 1), np.concatenate(logprob)


def _mean_look(scores: np.ndarray) -> np.ndarray:
    """scores (heads, n, frames) -> (n, frames): attention of each head, standardised over tokens, smoothed over frames; mean"""
    x = np.exp(scores - scores.max(-1, keepdims=True))
    x /= x.sum(-1, keepdims=True)
    x -= x.mean(1, keepdims=True)
    deviation = np.sqrt((x * x).mean(1, keepdims=True))
    x /= np.where(deviation > 0, deviation, 1)
    return median_filter(x).mean(0)


def median_filter(x: np.ndarray, width: int = FILTER) -> np.ndarray:
    """Median of `width` (odd) neighbours along the last axis, mirrored at the ends; x itself where it is too short for that."""
    side = width // 2
    if x.shape[-1] <= side:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(side, side)], mode="reflect")
    rows = [padded[..., i : i + x.shape[-1]].copy() for i in range(width)]
    for end in range(width - 1, side - 1, -1):  # the largest of what is left goes to the end, until the middle one is there
        for i in range(end):
            low, high = np.minimum(rows[i], rows[i + 1]), np.maximum(rows[i], rows[i + 1])
            rows[i], rows[i + 1] = low, high
    return rows[side]


def warp(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Dynamic time warping: cost (n, m) -> the cheapest path from (0, 0) to the far corner as (rows, columns).

    A step goes one down, one right, or both. Diagonals are computed as a whole: each needs only the two before it.
    """
    n, m = cost.shape
    total = np.full((n + 1, m + 1), np.inf)
    total[0, 0] = 0
    came = np.full((n + 1, m + 1), 2, np.int8)  # 0 from both, 1 from above, 2 from the left
    came[:, 0] = 1
    flat, wide = total.reshape(-1), m + 1
    steps = came.reshape(-1)
    for diagonal in range(2, n + m + 1):
        rows = np.arange(max(1, diagonal - m), min(n, diagonal - 1) + 1)
        at = rows * wide + (diagonal - rows)
        both, above, left = flat[at - wide - 1], flat[at - wide], flat[at - 1]
        choice = np.where((both < above) & (both < left), 0, np.where((above < both) & (above < left), 1, 2))
        flat[at] = cost[rows - 1, diagonal - rows - 1] + np.choose(choice, (both, above, left))
        steps[at] = choice
    path = []
    i, j = n, m
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        step = came[i, j] if i and j else (2 if not i else 1)
        i, j = i - (step != 2), j - (step != 1)
    rows_, columns = np.array(path[::-1]).T
    return rows_, columns


# ---- text ---------------------------------------------------------------------------------------------------------------


def split_words(tokenizer: Tokenizer, text: Sequence[int], language: str) -> list[list[int]]:
    """Ids -> ids of each word: a word begins with a space or is a mark; in a language without spaces each character is one."""
    characters: list[list[int]] = []  # tokens that together are whole characters
    pieces: list[str] = []
    stream, held = tokenizer.stream(), []
    for token in text:
        held.append(token)
        piece = stream.push(token)
        if piece:
            characters.append(held)
            pieces.append(piece)
            held = []
    if held:
        characters.append(held)
        pieces.append(stream.flush())
    if language in WITHOUT_SPACES:
        return characters
    words: list[list[int]] = []
    for ids, piece in zip(characters, pieces):
        if piece.startswith(" ") or not words or piece.strip() in string.punctuation:
            words.append(list(ids))
        else:
            words[-1] += ids
    return words


def join_marks(words: Sequence[Word]) -> list[Word]:
    """Opening marks go to the word behind them, closing ones to the word before."""
    joined: list[Word] = []
    for word in words:
        mark = word.text.strip()
        if joined and mark and not word.text.startswith(" ") and all(c in CLOSING for c in mark):
            joined[-1] = _with(joined[-1], word, joined[-1].start, joined[-1].end)
        elif joined and joined[-1].text.startswith(" ") and joined[-1].text.strip() and all(
                c in OPENING for c in joined[-1].text.strip()):
            joined[-1] = _with(joined[-1], word, word.start, word.end)
        else:
            joined.append(word)
    return joined


def _with(first: Word, second: Word, start: float, end: float) -> Word:
    marks = first if not any(c.isalnum() for c in first.text) else second
    said = second if marks is first else first
    return Word(first.text + second.text, first.tokens + second.tokens, start, end, said.probability)


# ---- times --------------------------------------------------------------------------------------------------------------


def usual_length(words: Sequence[Word]) -> float:
    """Median duration of those that have one, in seconds, at most LONGEST_MEDIAN."""
    durations = [w.end - w.start for w in words if w.end > w.start]
    return min(LONGEST_MEDIAN, float(np.median(durations))) if durations else 0.0


def shorten(words: Sequence[Word]) -> list[Word]:
    """A word that is far too long beside the end of a sentence has a pause in it: it is cut to twice the usual length."""
    longest = 2 * usual_length(words)
    result = list(words)
    if not longest:
        return result
    for i in range(1, len(result)):
        word = result[i]
        if word.end - word.start > longest:
            if word.text.strip() and word.text.strip() in SENTENCE_ENDS:
                result[i] = replace(word, end=word.start + longest)
            elif result[i - 1].text.strip() and result[i - 1].text.strip() in SENTENCE_ENDS:
                result[i] = replace(word, start=word.end - longest)
    return result


def fit(words: list[Word], start: float, end: float, spoken_until: float, usual: float) -> list[Word]:
    """The words of one segment, which by its timestamps lasts from start to end: words at its ends that hold a pause give way.

    All in seconds of one clock; spoken_until: where the segment before ended; usual: usual_length.
    """
    longest, words = 2 * usual, list(words)
    first = words[0]
    if first.end - spoken_until > 4 * usual and (
        first.end - first.start > longest or (len(words) > 1 and words[1].end - first.start > 2 * longest)
    ):
        if len(words) > 1 and words[1].end - words[1].start > longest:
            border = max(words[1].end / 2, words[1].end - longest)
            words[0], words[1] = replace(words[0], end=border), replace(words[1], start=border)
        words[0] = replace(words[0], start=max(0.0, words[0].end - longest))
    if start < words[0].end and start - 0.5 > words[0].start:
        words[0] = replace(words[0], start=max(0.0, min(words[0].end - usual, start)))
    if end > words[-1].start and end + 0.5 < words[-1].end:
        words[-1] = replace(words[-1], end=max(words[-1].start + usual, end))
    return words


def as_dict(word: Word, start: float, end: float) -> dict[str, Any]:
    """One word as results carry it, in seconds of the recording."""
    return {"word": word.text, "start": start, "end": end, "probability": word.probability}
