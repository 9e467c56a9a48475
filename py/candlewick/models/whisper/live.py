"""Sound that is still coming -> text while it is said: what is sure, and what may still change.

Whisper hears finished windows. Here it hears the utterance that is being said again and again, each time a little longer. What
successive passes begin alike is taken as said and never changes again (LocalAgreement of D. Macháček, R. Dabre, O. Bojar,
"Turning Whisper into Real-Time Transcription System", 2023, arXiv:2307.14743; github.com/ufal/whisper_streaming); later passes
are told it and decode only what follows. There two passes agree; here they must be some time apart, less for words that the
model is sure of, as a small model is easily of one opinion for a second. An utterance ends at a pause (`utterances.py`); its
sound is then let go. Where nobody speaks, nothing is decoded: no text can be invented in silence.

The clock is that of the samples. Whoever pushes slower than sound comes in gets fewer passes; nothing is queued but utterances,
which have an end.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np

from candlewick.models.whisper.decoding import GREEDY, Decoded, TokenReader, detect_language, rules_for
from candlewick.models.whisper.hearing import MARGIN
from candlewick.models.whisper.mel import FRAMES_PER_SECOND, HOP, N_FFT, SAMPLE_RATE, n_samples
from candlewick.models.whisper.options import TranscribeOptions
from candlewick.models.whisper.programs import contexts
from candlewick.models.whisper.segments import Timeline, segment
from candlewick.models.whisper.tokenizer import SECONDS_PER_TIMESTAMP
from candlewick.models.whisper.transcribe import Transcriber, nobody_speaks
from candlewick.models.whisper.utterances import Utterance, Utterances
from candlewick.models.whisper.words import CLOSING, as_dict, find_words, join_marks, shorten

STEP = 0.4  # seconds of new sound that are worth a pass
SOON, LATE = 1.5, 3.5  # seconds over which passes must agree: about words that the model is sure of, and about others
SURE = math.log(0.7)  # log-probability of each token of a word that the model is sure of
CONTEXT = 48  # tokens of earlier text that a pass is told
TRIES = 3  # temperatures that are tried where the text looks wrong; somebody waits
TOKENS_PER_SECOND, SPARE_TOKENS = 8, 10  # nobody says more than this; a loop would


class LiveSession:
    """One stretch of listening: push() takes sound, advance() listens to it, finish() to what is left.

    Events: {"event": "hypothesis", "start", "stable", "unstable", "heard"} of the utterance under way, whose `stable` only ever
    grows; {"event": "segment", "segment", "heard"} when it has ended, whose text begins with what was stable. Times are seconds
    of the session; heard: up to where the sound was heard for it.
    """

    def __init__(
        self, transcriber: Transcriber, options: TranscribeOptions | None = None, offset: float = 0.0,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """offset: seconds of the session before the first sample, for one that goes on. stop is asked at every token."""
        self.options = options or TranscribeOptions()
        transcriber.check(self.options)
        self.transcriber, self.stop = transcriber, stop or (lambda: False)
        model = transcriber.model
        self.executor, self.dims, self.tokenizer = transcriber.executor, model.dims, model.tokenizer
        self.rules = rules_for(
            self.tokenizer, self.dims.n_vocab, model.generation_config, timestamps=False,
            suppress_blank=self.options.suppress_blank, max_initial_timestamp=None,
            seconds_per_timestamp=SECONDS_PER_TIMESTAMP)
        self.language: str | None = (self.options.language or None) if self.tokenizer.multilingual else "en"
        self._finding = self.language is None  # the first words alone do not tell it: it is asked again until enough was heard
        prompts = (self.options.hotwords.strip(), self.options.initial_prompt.strip())
        self.prompt = [token for text in prompts if text for token in self.tokenizer.encode(" " + text)]
        self.previous: list[int] = []  # tokens of the utterances before
        self.rng = random.Random(self.options.seed)
        self.utterances = Utterances(self.dims.n_frames / FRAMES_PER_SECOND)
        self.offset, self.timeline = offset, Timeline(math.inf, offset)
        self.n_segments = self.n_passes = self.n_tokens = 0
        self.busy_ms = 0.0

    # ---- sound in, text out -----------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """The session's clock."""
        return self._seconds(self.utterances.n_samples)

    async def prepare(self) -> None:
        """Loads what passes need, so that the first words need not wait for it."""
        for n_ctx in contexts(self.dims)[1:]:
            await self.transcriber.load_context(n_ctx)
        if self.options.word_timestamps:
            await self.transcriber.load_alignment()

    def push(self, samples: np.ndarray) -> None:
        """samples: mono at 16 kHz, (n,), behind those before. Raises ValueError for what is no sound."""
        samples = np.asarray(samples, np.float32)
        if samples.ndim != 1 or not np.isfinite(samples).all():
            raise ValueError(f"live: wanted mono samples (n,), all finite numbers, got shape {list(samples.shape)}, "
                             f"{int((~np.isfinite(samples)).sum())} of them NaN or infinite")
        began = time.perf_counter()
        self.utterances.push(samples)
        self.busy_ms += (time.perf_counter() - began) * 1000

    async def advance(self) -> AsyncIterator[dict[str, Any]]:
        """Ends what has ended, and listens once more to what is being said if that is worth it."""
        began = time.perf_counter()
        try:
            while self.utterances.ended:
                event = await self._conclude(self.utterances.ended[0])
                if event is None:
                    return
                self.utterances.ended.pop(0)
                yield event
            current = self.utterances.current
            if current is not None and self._due(current):
                if await self._listen(current):
                    self._agree(current)
                    yield self._told(current)
        finally:
            self.busy_ms += (time.perf_counter() - began) * 1000

    async def finish(self) -> AsyncIterator[dict[str, Any]]:
        """No more sound comes: the words up to its end."""
        self.utterances.finish()
        async for event in self.advance():
            yield event

    def describe(self) -> dict[str, Any]:
        """What the session took, and what it holds."""
        return {"seconds": self.seconds, "speaking": self.utterances.current is not None, "language": self.language,
                "busy_ms": self.busy_ms, "passes": self.n_passes, "tokens": self.n_tokens, "segments": self.n_segments,
                "held_seconds": self.utterances.held / SAMPLE_RATE}

    # ---- an utterance -----------------------------------------------------------------------------------------------

    def _due(self, current: Utterance) -> bool:
        """Whether another pass may tell more than the last one."""
        if not current.speech or current.heard >= current.settled:
            return False
        if self.utterances.n_samples >= current.settled:
            return True  # the last word is complete
        return self.utterances.n_samples - max(current.heard, current.start) >= STEP * SAMPLE_RATE

    def _agree(self, utterance: Utterance) -> None:
        """What this pass and those before begin alike is said: whole words behind which the next one had begun, the surer ones
        after less time than the others."""
        now, heard, done = utterance.hypothesis, utterance.heard, len(utterance.committed)
        sure, agreed, place = done, len(now), utterance.agreed
        while sure < len(now) and utterance.logprobs[sure - done] >= SURE:
            sure += 1
        best = done
        for heard_then, then in reversed(utterance.passes):
            same = next((i for i, (a, b) in enumerate(zip(now, then)) if a != b), min(len(now), len(then)))
            agreed = min(agreed, same)
            n, late = agreed, (heard - heard_then) / SAMPLE_RATE
            if late < SOON:
                continue
            if late < LATE:
                n = min(n, sure)
            while n > best and not (self._starts_word(now, n) and self._starts_word(then, n)):
                n -= 1
            if n > best:
                best, place = n, heard_then
        if best > done:
            utterance.committed, utterance.agreed = now[:best], place
            utterance.logprobs = utterance.logprobs[best - done :]
        utterance.passes = [p for p in utterance.passes if heard - p[0] <= 2 * LATE * SAMPLE_RATE] + [(heard, now)]

    def _starts_word(self, tokens: Sequence[int], at: int) -> bool:
        """Whether another word, or a mark, begins at this place; false at the end."""
        text = self.tokenizer.decode(tokens[at : at + 1])
        return text.startswith(" ") or (bool(text) and text[0] in CLOSING)

    def _told(self, utterance: Utterance) -> dict[str, Any]:
        stable = self.tokenizer.decode(utterance.committed)
        whole = self.tokenizer.decode(utterance.hypothesis)
        return {"event": "hypothesis", "start": self._seconds(utterance.first_active), "stable": stable,
                "unstable": whole[len(stable) :], "heard": self._seconds(utterance.heard)}

    async def _conclude(self, utterance: Utterance) -> dict[str, Any] | None:
        """The segment of an utterance that has ended: of the pass before, if that heard all of its speech, else of one more.
        None if it was stopped."""
        known = utterance.heard >= min(utterance.end, utterance.settled) and not self._bad(utterance)
        for temperature in () if known else self.options.temperatures[:TRIES]:
            # what a shortened context did not do well is heard again as a whole window
            whole = utterance.decoded is not None and self._bad(utterance)
            fine = await self._listen(utterance, temperature, whole)
            if self.stop():
                return None
            if fine and not self._bad(utterance):
                break
        decoded = utterance.decoded
        tokens = utterance.hypothesis if decoded is not None else utterance.committed
        text = self.tokenizer.decode(tokens)
        if self._bad(utterance):
            self.previous = []
        elif self.options.condition_on_previous_text:
            self.previous = (self.previous + tokens)[-CONTEXT:]
        heard = self._seconds(utterance.end)
        if not text.strip() or decoded is None:
            return {"event": "hypothesis", "start": heard, "stable": "", "unstable": "", "heard": heard}
        found = segment(self.n_segments, (0.0, 0.0), text, tokens, decoded)
        self.n_segments += 1
        if len(utterance.sound) >= contexts(self.dims)[0] * SECONDS_PER_TIMESTAMP * SAMPLE_RATE:
            self._finding = False
        words = await self._words(utterance, tokens) if self.options.word_timestamps else []
        if words:
            found.update(words=words, start=words[0]["start"], end=words[-1]["end"])
        else:
            end = min(utterance.last_active, utterance.end)
            found["start"], found["end"] = self.timeline.place(*map(self._seconds, (utterance.first_active, end)))
        return {"event": "segment", "segment": found, "heard": heard}

    async def _words(self, utterance: Utterance, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """When each word was said, in seconds of the session."""
        await self.transcriber.load_alignment()
        n_ctx = self.dims.n_audio_ctx
        await self._hear(utterance.sound, n_ctx)
        language, n_frames = self.language or "en", len(utterance.sound) // HOP
        prompt = self.tokenizer.prompt(language, self.options.task, True)
        words = await find_words(self.executor, self.tokenizer, prompt, tokens, n_frames, language, n_ctx)
        offset = self._seconds(utterance.start)
        first, last = (self._seconds(at) for at in (utterance.first_active, min(utterance.settled, utterance.end)))

        def within(seconds: float) -> float:
            return min(max(offset + seconds, first), last)  # where somebody spoke

        return [as_dict(w, *self.timeline.place(within(w.start), within(w.end))) for w in join_marks(shorten(words))]

    # ---- a pass -----------------------------------------------------------------------------------------------------

    async def _listen(self, utterance: Utterance, temperature: float = 0.0, whole: bool = False) -> bool:
        """Hears an utterance and decodes what follows `committed`; False if that came to nothing: it was stopped, or loops."""
        sound = utterance.sound
        full = self.dims.n_audio_ctx
        fitting = [n for n in contexts(self.dims)[1:] if n == full or 2 * n >= len(sound) / HOP + MARGIN]
        for n_ctx in [full] if whole else fitting[:2]:  # the shorter, the sooner does it loop
            reader = await self._hear(sound, n_ctx)
            if self.language is None or (self._finding and not utterance.committed):
                self.language, _ = await detect_language(self.executor, self.tokenizer, self.dims.n_text_ctx, n_ctx)
            logprobs: list[float] = []  # of the new tokens
            decoded = await self._decode(reader, utterance, temperature, logprobs)
            if decoded is None:
                return False
            self.n_passes += 1
            utterance.heard, utterance.decoded = utterance.start + len(sound), decoded
            if not self._loops(utterance, decoded):
                silent = not utterance.committed and nobody_speaks(self.options, decoded)
                utterance.hypothesis, utterance.logprobs = [] if silent else decoded.tokens, logprobs
                return True
        return False

    async def _hear(self, sound: np.ndarray, n_ctx: int) -> TokenReader:
        """Sound that n_ctx positions of the encoder hold -> what reads tokens in sight of it."""
        await self.transcriber.load_context(n_ctx)
        suffix = "" if n_ctx == self.dims.n_audio_ctx else f"_{n_ctx}"
        samples = np.zeros((1, n_samples(2 * n_ctx), 1), np.float32)
        samples[0, N_FFT // 2 :, 0][: len(sound)] = sound[: samples.shape[1] - N_FFT // 2]
        mel = await self.executor.run(f"mel{suffix}", {"samples": samples}, fetch=("log_mel", "peak"))
        await self.executor.run(f"encode{suffix}", {"log_mel": mel["log_mel"], "peak": mel["peak"]}, fetch=())
        await self.executor.run(f"remember{suffix}", {}, fetch=())
        return TokenReader(self.executor, self.dims.n_text_ctx, n_ctx)

    async def _decode(
        self, reader: TokenReader, utterance: Utterance, temperature: float, logprobs: list[float]
    ) -> Decoded | None:
        """What follows `committed`, and the log-probability of each of its tokens; None if it was stopped."""
        tokenizer, rules, committed = self.tokenizer, self.rules, utterance.committed
        before = (self.prompt + self.previous)[-(reader.n_text_ctx // 2 - 1) :]
        start = tokenizer.prompt(self.language or "en", self.options.task, False)
        context = [tokenizer.start_of_prev, *before] if before else []
        scores = (await reader.feed([*context, start[0]], ("logits",)))["logits"][0].astype(np.float64)
        weights = np.exp(scores - scores.max())
        wanted = GREEDY if temperature == 0 else ("logits",)
        step = await reader.feed([*start[1:], *committed], wanted if committed else ("logits",))
        done = Decoded(temperature, float(weights[tokenizer.no_speech] / weights.sum()), list(committed))
        while not self.stop():
            allowed = rules.allowed(done.tokens)
            if "logits" in step:
                scores = rules.scores(step["logits"][0], allowed, first=not done.tokens)
                token, logprob = rules.sample(scores, temperature, self.rng)
            else:
                token, logprob = rules.greedy(step, allowed)
            logprobs.append(logprob)
            if token != rules.eot:
                done.tokens.append(token)
            if token == rules.eot or len(done.tokens) >= self._most(utterance) or reader.pos + 1 >= reader.n_text_ctx:
                self.n_tokens += len(logprobs)
                done.text = tokenizer.decode(done.tokens)
                # as if all were as sure as the new ones
                done.sum_logprob = sum(logprobs) / len(logprobs) * (len(done.tokens) + 1)
                return done
            step = await reader.feed([token], wanted)
        return None

    # ---- judging ----------------------------------------------------------------------------------------------------

    def _most(self, utterance: Utterance) -> int:
        """Tokens that can have been said."""
        return round(TOKENS_PER_SECOND * len(utterance.sound) / SAMPLE_RATE) + SPARE_TOKENS

    def _loops(self, utterance: Utterance, decoded: Decoded) -> bool:
        threshold = self.options.compression_ratio_threshold
        return threshold is not None and (
            decoded.compression_ratio > threshold or len(decoded.tokens) >= self._most(utterance))

    def _bad(self, utterance: Utterance) -> bool:
        """Its last pass is a loop, or a guess; but not where nobody speaks."""
        decoded, least = utterance.decoded, self.options.logprob_threshold
        if decoded is None or (not utterance.committed and nobody_speaks(self.options, decoded)):
            return False
        return self._loops(utterance, decoded) or (least is not None and decoded.avg_logprob < least)

    def _seconds(self, sample: int) -> float:
        return self.offset + sample / SAMPLE_RATE
