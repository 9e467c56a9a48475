"""A recording of any length -> text with times, as a stream of events.

The recording is heard in windows of 30 s. Each window starts where the last timestamp of the one before it says that a
segment ended, so words are not cut. The steps: find the loudest point, then for each window hear it (log-mel, encoder),
decode it (again at a higher temperature while the text looks wrong), cut it into segments, go on.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from candlewick.executors import Executor, Progress, Stopped
from candlewick.models.whisper.beam import decode_several
from candlewick.models.whisper.decoding import Decoded, WindowDecoder, detect_language, prompt_room, rules_for
from candlewick.models.whisper.hearing import Hearing, timed
from candlewick.models.whisper.mel import FRAMES_PER_SECOND, first_sample
from candlewick.models.whisper.options import TranscribeOptions
from candlewick.models.whisper.programs import LoadedModel, alignment, load_model, shortened, tree
from candlewick.models.whisper.segments import TOO_SHORT, Piece, Timeline, cut, segment
from candlewick.models.whisper.tokenizer import SECONDS_PER_TIMESTAMP
from candlewick.models.whisper.words import Word, as_dict, find_words, fit, join_marks, shorten, usual_length
from candlewick.options import OptionError
from candlewick.recording import Recording, Samples
from candlewick.weights.load import Checkpoint

TOKENS_PER_SECOND = 12  # of a shortened context; speech has at most 8, a loop any number


class Transcriber:
    """A loaded checkpoint on an executor."""

    def __init__(self, model: LoadedModel, executor: Executor) -> None:
        self.model, self.executor = model, executor
        self._aligns = False

    async def load_alignment(self) -> None:
        """What word times need and nothing else does; at the first call."""
        if not self._aligns:
            await self.executor.load(alignment(self.model), self.model.weights)
            self._aligns = True

    async def load_tree(self, width: int) -> None:
        """What decodes `width` transcripts together; at the first call for each."""
        if f"grow_{width}" not in self.executor.programs:
            await self.executor.load(tree(self.model, width), self.model.weights)

    async def load_context(self, n_ctx: int) -> None:
        """The encoder for n_ctx positions, one of `contexts`; at the first call for each."""
        if n_ctx != self.model.dims.n_audio_ctx and f"encode_{n_ctx}" not in self.executor.programs:
            await self.executor.load(shortened(self.model, n_ctx), self.model.weights)

    @classmethod
    async def load(cls, checkpoint: Checkpoint, executor: Executor, on_progress: Progress | None = None) -> Transcriber:
        """Reads, checks, traces and loads. Raises ValueError in words for files that do not fit each other."""
        model = await load_model(checkpoint)
        await executor.load(model.programs, model.weights, on_progress)
        return cls(model, executor)

    def describe(self) -> dict[str, Any]:
        """Sizes of the checkpoint and of the memory it takes."""
        dims, tokenizer = self.model.dims, self.model.tokenizer
        parameters = sum(int(np.prod(p.shape)) for p in self.model.network.parameters().values())
        return {"family": "whisper", "dims": dict(vars(dims)), "parameters": parameters,
                "multilingual": tokenizer.multilingual,
                "languages": list(tokenizer.languages) if tokenizer.multilingual else ["en"],
                "window_seconds": dims.n_frames / FRAMES_PER_SECOND, "entries": list(self.model.programs),
                **self.executor.describe()}

    def check(self, options: TranscribeOptions) -> None:
        """Raises ValueError if the checkpoint cannot do what the options ask."""
        tokenizer = self.model.tokenizer
        if tokenizer.multilingual:
            if options.language is not None and options.language not in tokenizer.languages:
                known = ", ".join(tokenizer.languages)
                raise OptionError("{language} {got!r}: this checkpoint knows {known}", got=options.language, known=known)
        elif options.language not in (None, "en") or options.task != "transcribe":
            name, got = ("task", options.task) if options.task != "transcribe" else ("language", options.language)
            raise OptionError(f"{{{name}}} {{got!r}}: this checkpoint is English-only; choose a multilingual one (a name "
                              "without .en)", got=got)

    async def transcribe(self, audio: np.ndarray | Recording, options: TranscribeOptions | None = None,
                         stop: Callable[[], bool] | None = None,
                         state: Mapping[str, Any] | None = None) -> AsyncIterator[dict[str, Any]]:
        """audio: mono at 16 kHz, (n_samples,), or by the piece -> events: progress, token, segment, and one result at the end.

        stop is asked at every step; when it says yes, the result comes at once, with what there is and "stopped": True.
        state: the "state" of an earlier run's progress; this one goes on from there, and tells only what comes after.
        """
        options = options or TranscribeOptions()
        self.check(options)
        if not isinstance(audio, Recording):
            audio = np.asarray(audio, np.float32)
            if audio.ndim != 1:
                raise ValueError(f"audio: wanted mono samples (n,), got shape {list(audio.shape)}; mix the channels first")
            audio = Recording(Samples(audio))
        run = Transcription(self, audio, options, stop or (lambda: False))
        if state:
            run.go_on(state)
        try:
            async for event in run.events():
                yield event
        except Stopped:
            run.stopped = True
        yield {"event": "result", "result": run.result()}


@dataclass
class Transcription:
    """One recording on its way through the windows."""

    transcriber: Transcriber
    audio: Recording
    options: TranscribeOptions
    stop: Callable[[], bool]
    stopped: bool = False
    language: str | None = None
    language_probability: float | None = None
    seek: int = 0  # frames done
    first_id: int = 0  # of the segments
    segments: list[dict[str, Any]] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)  # tokens that the next window is told as context
    n_tokens: int = 0
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        model, options = self.transcriber.model, self.options
        self.executor, self.dims, self.tokenizer = self.transcriber.executor, model.dims, model.tokenizer
        self.rules = rules_for(
            self.tokenizer, self.dims.n_vocab, model.generation_config, timestamps=options.timestamps,
            suppress_blank=options.suppress_blank, max_initial_timestamp=options.max_initial_timestamp,
            seconds_per_timestamp=SECONDS_PER_TIMESTAMP)
        self.search = options.search()
        self.hearing = Hearing(self.dims, self.executor, self.transcriber.load_context, self.audio,
                               shorten=self.options.context != "full")
        self.timeline = Timeline(self.hearing.duration)
        self.language = (options.language or None) if self.tokenizer.multilingual else "en"
        hotwords, prompt = (self.tokenizer.encode(" " + text.strip()) if text.strip() else []
                            for text in (options.hotwords, options.initial_prompt))
        self.always = hotwords + (prompt if options.carry_initial_prompt else [])
        self.previous = [] if options.carry_initial_prompt else prompt

    # ---- the line of steps --------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Everything but the result."""
        if not self.audio.n_samples:
            return
        if self.hearing.peak is None:
            async for event in self.hearing.find_peak(self.asked_to_stop):
                yield event
        else:  # the end says how long it is, or what was not known to be there before
            await self.audio.read(max(self.audio.n_samples - 1, first_sample(self.seek)), self.dims.n_samples)
            if self.seek > self.hearing.n_frames:
                raise self.strange()
        yield self.progress()
        while self.seek < max(self.hearing.n_frames, 1) and not self.stopped:
            if self.seek and self.hearing.n_frames - self.seek <= TOO_SHORT:
                self.seek = self.hearing.n_frames
            else:
                async for event in self.hear_window():
                    yield event
            yield self.progress()

    async def hear_window(self) -> AsyncIterator[dict[str, Any]]:
        """Hear, decode, cut and move on by at least one frame."""
        if self.asked_to_stop():
            return
        self.seek, found = await self.hearing.find_sound(self.seek)
        if not found:
            return
        n_frames = self.hearing.left(self.seek)
        await self.hearing.encode(self.seek)
        self.timeline.duration = self.hearing.duration  # as far as it is known by now
        await self.know_language()
        decoded: Decoded | None = None
        async for decoded in self.decode():
            start = self.seek / FRAMES_PER_SECOND
            yield {"event": "token", "text": decoded.text, "start": start}
            if self.asked_to_stop():
                break
        if decoded is None or self.is_silence(decoded):
            self.seek += n_frames
            return
        pieces, advance = cut(decoded.tokens, self.rules.timestamp_begin, n_frames)
        pieces = [p for p in pieces if p.start < p.end and self.tokenizer.decode(p.tokens).strip()]
        words = await self.find_words(pieces, n_frames)
        for piece, its_words in zip(pieces, words):
            number, text = self.first_id + len(self.segments), self.tokenizer.decode(piece.tokens)
            new = segment(number, (0.0, 0.0), text, piece.tokens, decoded)
            self.segments.append(self.place(new, piece, its_words))
            yield {"event": "segment", "segment": new}
        self.remember([t for piece in pieces for t in piece.tokens], decoded)
        self.seek += advance

    async def find_words(self, pieces: Sequence[Piece], n_frames: int) -> list[list[Word]]:
        """The words of each piece, in seconds of the recording; none of any where they are not asked for."""
        if not self.options.word_timestamps or not pieces:
            return [[] for _ in pieces]
        with timed(self.hearing.ms, "align"):
            await self.transcriber.load_alignment()
            language, task, eot = self.language or "en", self.options.task, self.tokenizer.eot
            prompt = self.tokenizer.prompt(language, task, True)
            text = [t for piece in pieces for t in piece.tokens if t < eot]
            words = await find_words(self.executor, self.tokenizer, prompt, text, n_frames, language, self.hearing.n_ctx)
        usual, offset = usual_length(words), self.seek / FRAMES_PER_SECOND
        left = [replace(w, start=w.start + offset, end=w.end + offset) for w in join_marks(shorten(words))]
        by_piece, spoken = [], self.timeline.reached
        for piece in pieces:
            n_tokens, its_words = sum(t < eot for t in piece.tokens), []
            while left and n_tokens > 0:
                its_words.append(left.pop(0))
                n_tokens -= len(its_words[-1].tokens)
            if its_words:
                start, end = (offset + frame / FRAMES_PER_SECOND for frame in (piece.start, piece.end))
                its_words = fit(its_words, start, end, spoken, usual)
                spoken = its_words[-1].end
            by_piece.append(its_words)
        return by_piece

    def place(self, segment: dict[str, Any], piece: Piece, words: Sequence[Word]) -> dict[str, Any]:
        """Times for a segment: those of its words where they are known, else those of its timestamps."""
        if not words:
            begin, end = ((self.seek + frame) / FRAMES_PER_SECOND for frame in (piece.start, piece.end))
            segment["start"], segment["end"] = self.timeline.place(begin, end)
            return segment
        segment["words"] = [as_dict(w, *self.timeline.place(w.start, w.end)) for w in words]
        segment["start"], segment["end"] = segment["words"][0]["start"], segment["words"][-1]["end"]
        return segment

    # ---- the steps ----------------------------------------------------------------------------------------------

    async def know_language(self) -> None:
        """Asks the model in the first window with sound, unless the language is given."""
        if self.language is None:
            with timed(self.hearing.ms, "decode"):
                self.language, all_ = await detect_language(
                    self.executor, self.tokenizer, self.dims.n_text_ctx, self.hearing.n_ctx)
            self.language_probability = all_[self.language]

    async def decode(self) -> AsyncIterator[Decoded]:
        """Yields transcripts as they grow. What a shortened context did not do well is heard again as a whole window."""
        if self.hearing.n_ctx < self.dims.n_audio_ctx:
            room, decoded = round(TOKENS_PER_SECOND * self.hearing.n_ctx * SECONDS_PER_TIMESTAMP), None
            async for decoded in self.attempts(self.options.temperatures[:1], room):
                yield decoded
            if decoded and len(decoded.tokens) < room and not self.needs_retry(decoded):
                return
            await self.hearing.encode(self.seek, whole=True)
        async for decoded in self.attempts(self.options.temperatures):
            yield decoded

    async def attempts(self, temperatures: Sequence[float], room: int | None = None) -> AsyncIterator[Decoded]:
        """At one temperature after the other until one will do; room: how many tokens a transcript may have."""
        decoder = WindowDecoder(self.executor, self.tokenizer, self.rules, self.dims.n_text_ctx, self.hearing.n_ctx)
        start = self.tokenizer.prompt(self.language or "en", self.options.task, self.options.timestamps)
        began = time.perf_counter()
        rng = random.Random(f"{self.options.seed} {self.seek}")  # a run that goes on from here draws the same
        await decoder.read_prompt(self.prompt(), start)
        decoded = Decoded(0.0, 0.0)
        for temperature in temperatures:
            width = self.search.width(temperature)
            if width > 1:
                await self.transcriber.load_tree(width)
            run = (decode_several(decoder, self.search, temperature, rng, room) if width > 1
                   else decoder.decode(temperature, rng, room))
            async for decoded in run:
                self.hearing.ms["decode"] += (time.perf_counter() - began) * 1000
                yield decoded
                began = time.perf_counter()  # what the listener did in between is not decoding
            self.n_tokens += len(decoded.tokens)
            if not self.needs_retry(decoded):
                break

    def prompt(self) -> list[int]:
        """What the window is told: what it is told always, and as much of what was said last as there is room for."""
        room = prompt_room(self.dims.n_text_ctx)
        always = self.always[-room:]
        return always + self.previous[len(self.previous) - min(len(self.previous), room - len(always)) :]

    def needs_retry(self, decoded: Decoded) -> bool:
        """A loop, or a guess; but uncertain text in what is probably silence is not worth more tries."""
        o = self.options
        loops = o.compression_ratio_threshold is not None and decoded.compression_ratio > o.compression_ratio_threshold
        unsure = o.logprob_threshold is not None and decoded.avg_logprob < o.logprob_threshold
        silent = o.no_speech_threshold is not None and decoded.no_speech_prob > o.no_speech_threshold and unsure
        return (loops or unsure) and not silent

    def is_silence(self, decoded: Decoded) -> bool:
        return nobody_speaks(self.options, decoded)

    def remember(self, tokens: list[int], decoded: Decoded) -> None:
        """What the next window is told; a window that had to be guessed is not passed on, nor anything before it."""
        bad = decoded.temperature > 0.5 or self.needs_retry(decoded)
        if not self.options.condition_on_previous_text or bad:
            self.previous = []
        else:
            self.previous = (self.previous + tokens)[-self.dims.n_text_ctx :]

    # ---- bookkeeping --------------------------------------------------------------------------------------------

    def asked_to_stop(self) -> bool:
        """Asks once more until the answer was yes."""
        self.stopped = self.stopped or bool(self.stop())
        return self.stopped

    def progress(self) -> dict[str, Any]:
        """Seconds of the recording that are done, and what is needed to go on from here another day."""
        done = self.seek / FRAMES_PER_SECOND if self.seek < self.hearing.n_frames else self.hearing.duration
        event = {"event": "progress", "stage": "transcribe", "done": done, "total": self.hearing.duration}
        peak = self.hearing.peak
        if peak is not None and np.isfinite(peak):
            event["state"] = {"seek": self.seek, "peak": peak, "unit": self.hearing.unit, "previous": self.previous,
                              "language": self.language, "language_probability": self.language_probability,
                              "reached": self.timeline.reached, "segments": self.first_id + len(self.segments)}
        return event

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Be where another run was when it told this state. Raises ValueError for what cannot be one."""
        try:
            self.seek, self.first_id, self.previous = int(state["seek"]), int(state["segments"]), [*map(int, state["previous"])]
            hearing = self.hearing
            hearing.peak, hearing.unit, self.timeline.reached = (float(state[key]) for key in ("peak", "unit", "reached"))
            self.language, self.language_probability = state["language"], state["language_probability"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"state: wanted that of an earlier run's progress, got {error!r}; begin anew") from error
        if self.seek < 0 or not all(0 <= t < self.dims.n_vocab for t in self.previous):
            raise self.strange()

    def strange(self) -> ValueError:
        return ValueError(f"state: at {self.seek / FRAMES_PER_SECOND:.1f} s of {self.hearing.duration:.1f} s, it belongs to "
                          "another recording or another model; begin anew")

    def result(self) -> dict[str, Any]:
        """The transcript as it stands."""
        timings = {f"{stage}_ms": ms for stage, ms in self.hearing.ms.items()}
        return {"text": "".join(s["text"] for s in self.segments).strip(), "segments": self.segments,
                "language": self.language, "language_probability": self.language_probability, "duration": self.hearing.duration,
                "no_speech": not self.segments, "stopped": self.stopped,
                "timings": {**timings, "tokens": self.n_tokens, "total_ms": (time.perf_counter() - self.began) * 1000}}


def nobody_speaks(options: TranscribeOptions, decoded: Decoded) -> bool:
    """The model says that nobody speaks, and is not sure of the words it found either. Here we go beyond the reference: it
    is enough that the model half says so if the words are mere guesses, as they are for tones and music."""
    least = options.logprob_threshold
    if options.no_speech_threshold is None or decoded.no_speech_prob <= options.no_speech_threshold / 2:
        return False
    if decoded.no_speech_prob > options.no_speech_threshold:
        return least is None or decoded.avg_logprob <= least
    return least is not None and decoded.avg_logprob <= 2 * least
