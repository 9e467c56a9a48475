"""What a person may choose for one transcription. Everything that can be refused without a model is refused here, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from candlewick.options import OptionError

WIDEST = 16  # transcripts that are decoded together


def is_number(given: Any) -> bool:
    """A finite one; True and False are none."""
    return isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < 1e300


@dataclass(frozen=True)
class Search:
    """How a window is decoded. At temperature 0 a beam search, or greedily; above it one sample, or the best of several."""

    beam_size: int = 1
    best_of: int = 1
    patience: float = 1.0  # a beam search ends when beam_size * patience transcripts have ended (Kasai et al. 2022)
    length_penalty: float | None = None  # exponent of Wu et al. 2016, None: the mean over tokens counts

    def __post_init__(self) -> None:
        for name in ("beam_size", "best_of"):
            number = getattr(self, name)
            if type(number) is not int or not 1 <= number <= WIDEST:
                raise OptionError(f"{{{name}}}: wanted a whole number from 1 to {WIDEST}, got {{got!r}}", got=number)
        penalty = 0 if self.length_penalty is None else self.length_penalty
        for name, number in (("patience", self.patience), ("length_penalty", penalty)):
            if not is_number(number):
                raise OptionError(f"{{{name}}}: wanted a number, got {{got!r}}", got=number)
        if not 0 < self.patience < 100:
            raise OptionError("{patience}: wanted a number above 0 and below 100, got {got!r}", got=self.patience)
        if self.patience != 1 and self.beam_size == 1:
            raise OptionError("{patience}: {got} says how long a beam search goes on; give a {beam_size} from 2 on, too",
                              got=self.patience)
        if round(self.beam_size * self.patience) < 1:
            raise OptionError("{patience}: {got} of {beams} beams is none; it must leave at least one", got=self.patience,
                              beams=self.beam_size)
        if not 0 <= penalty <= 1:
            raise OptionError("{length_penalty}: wanted a number from 0 to 1, got {got!r}", got=self.length_penalty)

    def width(self, temperature: float) -> int:
        """How many transcripts are decoded together."""
        return self.best_of if temperature > 0 else self.beam_size


@dataclass(frozen=True)
class TranscribeOptions:
    """The defaults are those of the reference, decoding greedily."""

    language: str | None = None  # code such as "de"; None detects it (multilingual checkpoints)
    task: str = "transcribe"  # or "translate": into English (multilingual checkpoints)
    timestamps: bool = True  # without them a window is one segment, and windows follow each other every 30 s
    initial_prompt: str = ""  # text that is taken as said before: names, spelling, style
    carry_initial_prompt: bool = False  # before every window, not only the first
    hotwords: str = ""  # words to expect, told before every window
    condition_on_previous_text: bool = True
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # tried in this order
    compression_ratio_threshold: float | None = 2.4  # text that zlib shrinks more is a loop
    logprob_threshold: float | None = -1.0  # a transcript less certain than this is tried again
    no_speech_threshold: float | None = 0.6
    beam_size: int = 1  # transcripts that are followed at temperature 0; 1 is greedy
    best_of: int = 1  # samples at a temperature above 0, of which the most probable one is taken
    patience: float = 1.0  # a beam search ends when beam_size * patience transcripts have
    length_penalty: float | None = None  # 0 to 1 (Wu et al. 2016); None: the mean log-probability of a token decides
    word_timestamps: bool = False  # when each word is said, by what the decoder looks at
    suppress_blank: bool = True
    max_initial_timestamp: float | None = 1.0  # seconds
    context: str = "full"  # or "short": what is shorter than a window is encoded as less than 30 s; quicker, text may differ
    seed: int = 0

    def __post_init__(self) -> None:
        given = self.temperatures
        if not isinstance(given, list | tuple) or not given or not all(is_number(t) and 0 <= t < 100 for t in given):
            raise OptionError("{temperatures}: wanted at least one number from 0 to 100 in a list, got {got!r}", got=given)
        object.__setattr__(self, "temperatures", tuple(given))
        for name in ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold", "max_initial_timestamp"):
            number = getattr(self, name)
            if number is not None and not is_number(number):
                raise OptionError(f"{{{name}}}: wanted a number, or null for none, got {{got!r}}", got=number)
        if not 0 <= (self.max_initial_timestamp or 0) <= 30:
            raise OptionError("{max_initial_timestamp}: wanted seconds from 0 to 30, got {got!r}",
                              got=self.max_initial_timestamp)
        if type(self.seed) is not int:
            raise OptionError("{seed}: wanted a whole number, got {got!r}", got=self.seed)
        for name, choices in (("task", ("transcribe", "translate")), ("context", ("full", "short"))):
            if getattr(self, name) not in choices:
                raise OptionError(f"{{{name}}}: there are {' and '.join(choices)}, got {{got!r}}", got=getattr(self, name))
        for name in ("initial_prompt", "hotwords"):
            if not isinstance(getattr(self, name), str):
                raise OptionError(f"{{{name}}}: wanted text, got {{got!r}}", got=getattr(self, name))
        search = self.search()
        if search.beam_size > 1 and 0 not in self.temperatures:
            raise OptionError("{beam_size}: {beams} beams are followed at temperature 0, but {temperatures} is {given}; give "
                              "0, or use {best_of}", beams=search.beam_size, given=", ".join(map(str, self.temperatures)))
        if search.best_of > 1 and not any(self.temperatures):
            raise OptionError("{best_of}: {samples} samples are drawn at temperatures above 0, but {temperatures} is 0; give "
                              "one, or use {beam_size}", samples=search.best_of)

    def search(self) -> Search:
        """Those that say how a window is decoded."""
        return Search(self.beam_size, self.best_of, self.patience, self.length_penalty)
