"""From the tokens of a window to segments of the recording. Pure functions on frames of 10 ms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

FRAMES_PER_TIMESTAMP = 2  # the encoder halves the frames, and timestamps count its positions
TOO_SHORT = 10  # frames: in 0.1 s nothing is said, and to listen to no more would only invite an invented phrase


@dataclass(frozen=True)
class Piece:
    """Tokens between two timestamps (both among them); frames count from the start of the window."""

    start: int
    end: int
    tokens: tuple[int, ...]


def cut(tokens: Sequence[int], timestamp_begin: int, n_frames: int) -> tuple[list[Piece], int]:
    """tokens of one window with n_frames of sound -> (its pieces, frames by which to go on).

    Where a pair of timestamps closes one segment and opens the next, the next window starts: what comes after the last
    pair is heard again from its beginning. A window that ends with a single timestamp, or has none, is done with.
    """
    is_time = [t >= timestamp_begin for t in tokens]
    single_end = is_time[-2:] == [False, True]
    pairs = [i for i in range(1, len(tokens)) if is_time[i - 1] and is_time[i]]  # where a second one of two stands

    def frame(token: int) -> int:
        return min(max(token - timestamp_begin, 0) * FRAMES_PER_TIMESTAMP, n_frames)

    if not pairs:
        times = [t for t, timed in zip(tokens, is_time) if timed]
        start = frame(times[0]) if is_time[:1] == [True] else 0
        end = frame(times[-1]) if len(times) > 1 else n_frames
        return [Piece(start, max(start, end), tuple(tokens))], n_frames
    bounds = [0, *pairs, *([len(tokens)] if single_end else [])]
    pieces = [Piece(frame(tokens[a]), max(frame(tokens[a]), frame(tokens[b - 1])), tuple(tokens[a:b]))
              for a, b in pairwise(bounds)]
    stuck = pieces[-1].end <= TOO_SHORT  # going on from there would take the same window again and again
    return pieces, n_frames if single_end or stuck else pieces[-1].end


@dataclass
class Timeline:
    """Turns frames into seconds that never go back and never leave the recording."""

    duration: float
    reached: float = 0.0

    def place(self, start: float, end: float) -> tuple[float, float]:
        """Seconds from the start of the recording -> (start, end)."""
        start = min(max(start, self.reached), self.duration)
        end = min(max(end, start), self.duration)
        self.reached = end
        return round(start, 3), round(end, 3)


def segment(id: int, times: tuple[float, float], text: str, tokens: Sequence[int], decoded: Any) -> dict[str, Any]:
    """One segment as events and results carry it; decoded: the `Decoded` it is from."""
    return {"id": id, "start": times[0], "end": times[1], "text": text, "tokens": list(tokens),
            "temperature": decoded.temperature, "avg_logprob": decoded.avg_logprob,
            "compression_ratio": decoded.compression_ratio, "no_speech_prob": decoded.no_speech_prob}
