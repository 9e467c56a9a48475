"""Sound that is still coming -> utterances: stretches of speech between pauses, none of them longer than a window.

Only what an utterance under way needs is kept, so hours take no more memory than seconds. Places are samples at 16 kHz from the
start of the session.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from candlewick.models.whisper.mel import SAMPLE_RATE
from candlewick.models.whisper.vad import HOP, RISE, Detector

# seconds
PAUSE = 1.0  # without speech: the utterance has ended
SHORT_PAUSE = 0.35  # is enough for one that has become long
LONG = 8.0, 18.0  # between these lengths the pause that is waited for goes from PAUSE down to SHORT_PAUSE
LONGEST = 25.0  # (of a window of 30 s) then it is cut at the quietest place of its last seconds
SEARCH = 3.0
BEFORE, BEHIND = 0.4, 0.3  # sound around the speech that belongs to an utterance
SETTLED = 0.2  # behind the last word: it was heard to its end
# frames
ONSET = 3, 5  # active ones among so many: somebody begins to speak
LEAST_ACTIVE = 8  # in an utterance: less is a knock
LIVELY = 3.0  # decibels that the middle half of the active frames of speech spans at least; noise that has begun stays as it is


@dataclass
class Utterance:
    """What is being said, or was. tokens and passes are the affair of `live.py`."""

    start: int
    first_active: int
    last_active: int  # end of the last active frame
    rises: list[float] = field(default_factory=list)  # of the active frames, in decibels
    sound: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))  # from `start` on
    committed: list[int] = field(default_factory=list)  # tokens that are taken as said
    hypothesis: list[int] = field(default_factory=list)  # tokens of the last pass; begins with `committed`
    logprobs: list[float] = field(default_factory=list)  # of the tokens behind `committed`, in the last pass
    passes: list[tuple[int, list[int]]] = field(default_factory=list)  # of late: how far it heard, hypothesis
    heard: int = 0  # how far the last pass heard
    agreed: int = 0  # the words of `committed` lie before this place
    decoded: Any = None  # the last pass: a Decoded

    @property
    def end(self) -> int:
        return self.start + len(self.sound)

    @property
    def speech(self) -> bool:
        """Whether it sounds like speech so far, and not like a knock, or a noise that began."""
        if len(self.rises) < LEAST_ACTIVE:
            return False
        low, high = np.percentile(self.rises, (25, 75))
        return bool(high - low > LIVELY)

    @property
    def settled(self) -> int:
        """From here on the last word is complete."""
        return self.last_active + round(SETTLED * SAMPLE_RATE)


class Utterances:
    """push() takes sound; `current` is being said, `ended` waits to be taken."""

    def __init__(self, window: float = 30.0) -> None:
        """window: seconds that can be heard at once."""
        self.longest = min(LONGEST, LONGEST / 30 * window)
        self.current: Utterance | None = None
        self.ended: list[Utterance] = []
        self.n_samples = 0  # pushed so far
        self._detector = Detector()
        self._judged = 0  # end of the last frame that was judged
        self._recent: deque[tuple[float, float]] = deque(maxlen=round(SEARCH * SAMPLE_RATE / HOP))  # rise, level of frames
        self._sound, self._base = np.empty(0, np.float32), 0  # sound that may still be wanted, and where it begins

    @property
    def held(self) -> int:
        """Samples that are kept."""
        return len(self._sound) + sum(len(u.sound) for u in self.ended)

    def push(self, samples: np.ndarray) -> None:
        """samples float32 (n,), behind those before."""
        self._sound = np.concatenate([self._sound, samples])
        self.n_samples += len(samples)
        for rise, level in zip(*self._detector.push(samples)):
            self._judged += HOP
            self._judge(rise, level, self._judged)
        if self.current is None:
            self._forget(self._judged - round((BEFORE + ONSET[1] * HOP / SAMPLE_RATE) * SAMPLE_RATE))
        else:
            self.current.sound = self._sound[self.current.start - self._base :]

    def finish(self) -> None:
        """No more sound comes."""
        if self.current is not None:
            self._end(self.current, self.n_samples)

    def _judge(self, rise: float, level: float, now: int) -> None:
        """One frame more, that ends at `now`: does an utterance begin, go on, or end?"""
        before = self._recent[-1][0] if self._recent else 0.0
        self._recent.append((rise, level))
        current = self.current
        needed, among = ONSET
        if current is None:
            last = [r for r, _ in islice(reversed(self._recent), among) if r > RISE] if rise > RISE else []
            if len(last) >= needed:
                first = max(now - among * HOP, self._base)
                self.current = Utterance(max(first - round(BEFORE * SAMPLE_RATE), self._base), first, now, last)
            return
        if rise > RISE:
            current.rises.append(rise)
            if before > RISE:  # one alone is no speech
                current.last_active = now
        seconds = (now - current.start) / SAMPLE_RATE
        part = min(max((seconds - LONG[0]) / (LONG[1] - LONG[0]), 0), 1)
        pause = PAUSE + part * (SHORT_PAUSE - PAUSE)
        if now - current.last_active >= pause * SAMPLE_RATE:
            self._end(current, min(current.last_active + round(BEHIND * SAMPLE_RATE), now))
        elif seconds >= self.longest:
            self._cut(current, now)

    def _end(self, current: Utterance, at: int) -> None:
        """It ends there; what is behind may belong to the next."""
        current.sound, self.current = self._sound[current.start - self._base : at - self._base].copy(), None
        if current.speech or current.committed:
            self.ended.append(current)
        self._forget(at)

    def _cut(self, current: Utterance, now: int) -> None:
        """Somebody speaks without a pause: it ends at the quietest frame of late behind all words that were agreed on."""
        earliest = max(current.agreed, now - round(self.longest / 2 * SAMPLE_RATE))
        frames = min(len(self._recent), (now - earliest) // HOP)
        levels = [level for _, level in self._recent][len(self._recent) - frames :]
        at = now - (frames - int(np.argmin(levels))) * HOP + HOP // 2 if levels else now
        self._end(current, at)
        rises = [rise for rise, _ in islice(reversed(self._recent), (now - at) // HOP) if rise > RISE]
        self.current = Utterance(at, at, now, rises)

    def _forget(self, until: int) -> None:
        """Let go of all sound before."""
        n = min(max(until - self._base, 0), len(self._sound))
        if n:
            self._sound, self._base = self._sound[n:].copy(), self._base + n
