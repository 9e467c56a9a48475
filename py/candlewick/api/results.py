"""What the calls give: small objects with the facts as attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Transcript:
    """What was said.

    segments: dicts with start and end in seconds, text, tokens, avg_logprob, and words where they were asked for.
    language_probability: where the model found the language out. timings: milliseconds by stage. note: what to know of how
    the sound was read, such as how much of it is missing.
    """

    text: str
    segments: list[dict[str, Any]] = field(repr=False)
    language: str | None
    language_probability: float | None
    duration: float  # seconds of sound
    timings: dict[str, float] = field(repr=False)
    note: str | None = None

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Transcript:
        """From the result of a task."""
        return cls(**{name: result[name] for name in cls.__dataclass_fields__ if name in result})

    def to_srt(self) -> str:
        """Subtitles."""
        from candlewick.models.whisper import subtitles

        return subtitles.to_srt(vars(self))

    def to_vtt(self) -> str:
        """Subtitles for web pages."""
        from candlewick.models.whisper import subtitles

        return subtitles.to_vtt(vars(self))


@dataclass(frozen=True)
class Masks:
    """Where an object is: masks (n, height, width) bool, the most fitting first, and how well the model thinks each fits."""

    masks: np.ndarray = field(repr=False)
    scores: list[float]

    @property
    def mask(self) -> np.ndarray:
        """The most fitting one, (height, width) bool."""
        return self.masks[0]


@dataclass(frozen=True)
class Generated:
    """What was written, and why it ended: "end", "stop" (a stop string), "length" (max_tokens) or "context" (no room left)."""

    text: str
    token_ids: list[int] = field(repr=False)
    prompt_tokens: int
    stop_reason: str
    seed: int
    timings: dict[str, float] = field(repr=False)

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Generated:
        """From the result of a task."""
        return cls(**{name: result[name] for name in cls.__dataclass_fields__})
