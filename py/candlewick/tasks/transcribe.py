"""transcribe: sound of the page -> segments of text. live_start, live_push, live_end: of sound that is still coming."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import numpy as np

from candlewick import audio, executors
from candlewick.models.whisper import LiveSession, TranscribeOptions, Transcriber
from candlewick.recording import Recording, Sound, WavSound
from candlewick.tasks import TURN_SECONDS, BadInput, BrowserSource, Cancelled, Desk
from candlewick.weights.convert.whisper import lone_ggml
from candlewick.weights.load import Checkpoint

LIVE_BLOCK_SECONDS = 0.1  # resampled in one run: what is being said must not wait for more


class Transcription:
    """A loaded speech model and what brings sound to its rate."""

    methods = ("transcribe", "live_start", "live_push", "live_end")
    family = "whisper"
    usual = {"wide": 0.6, "chain": 0.4}  # a window of speech: the encoder, then some thirty tokens
    wanted = "a folder with config.json (model_type whisper), tokenizer.json and weights, or a whisper.cpp .bin file"

    def __init__(self, transcriber: Transcriber, executor: executors.Executor) -> None:
        self._transcriber, self._resampler = transcriber, audio.Resampler(executor)
        self._live_resampler = audio.Resampler(executor, LIVE_BLOCK_SECONDS)
        self._live: tuple[LiveSession, audio.StreamResampler] | None = None

    @classmethod
    async def recognises(cls, checkpoint: Checkpoint) -> bool:
        """Whether load() may be called with this checkpoint. Reads no weights."""
        if "config.json" in checkpoint.files:
            return (await checkpoint.json("config.json")).get("model_type") == cls.family
        return await lone_ggml(checkpoint) is not None

    @classmethod
    async def load(
        cls, checkpoint: Checkpoint, executor: executors.Executor, on_progress: Callable[..., None]
    ) -> Transcription:
        return cls(await Transcriber.load(checkpoint, executor, on_progress), executor)

    @property
    def weights(self) -> Any:
        return self._transcriber.model.weights

    def describe(self) -> dict[str, Any]:
        return self._transcriber.describe()

    async def transcribe(self, params: Mapping[str, Any], data: Any, desk: Desk) -> dict[str, Any]:
        """params: {options, state}; data: what `sound_of` takes. Begun anew, it goes on where it last told to be."""
        options = transcribe_options(params.get("options") or {})
        sound = await sound_of(data)
        recording = Recording(sound, self._resampler)
        state, told = desk.kept.get("state", params.get("state")), desk.kept.setdefault("segments", [])
        told[:] = [segment for segment in told if segment["id"] < state["segments"]] if "state" in desk.kept else []
        before = list(told)
        result: dict[str, Any] = {}
        turned = time.perf_counter()
        async for event in self._transcriber.transcribe(recording, options, desk.cancelled, state):
            if event["event"] == "result":
                result = after(before, event["result"])
            else:
                if event["event"] == "segment":
                    told.append(event["segment"])
                if "state" in event:
                    desk.kept["state"] = event["state"]
                if event["event"] == "progress":
                    event = {"unit": "seconds" if event["stage"] == "transcribe" else "steps", **event}
                desk.notify(event)
                if time.perf_counter() - turned > TURN_SECONDS:  # a turn costs as much as a tenth of a token
                    await asyncio.sleep(0)
                    turned = time.perf_counter()
        result["note"] = getattr(sound, "note", None)
        if result.get("stopped"):
            raise Cancelled(result)
        return result

    # ---- sound that is still coming ---------------------------------------------------------------------------------

    async def live_start(self, params: Mapping[str, Any], data: Any, desk: Desk) -> dict[str, Any]:
        """params: {rate, options, offset}. Begins to listen; what was heard before is forgotten."""
        self._live = None
        options = transcribe_options(params.get("options") or {})
        stream = audio.StreamResampler(self._live_resampler, int(params["rate"]))
        session = LiveSession(self._transcriber, options, float(params.get("offset") or 0))
        await session.prepare()
        await stream.push(np.zeros(0, np.float32))
        self._live = session, stream
        return session.describe()

    async def live_push(self, params: Mapping[str, Any], data: Any, desk: Desk) -> dict[str, Any]:
        """data: {samples}, float32 (n,) at the rate of the start, behind those before -> what the session tells of itself."""
        session, stream = self._session("live_push")
        samples = await stream.push(np.frombuffer(data.samples.to_bytes(), np.float32))
        session.push(samples)
        return await self._tell(session, session.advance(), desk)

    async def live_end(self, params: Mapping[str, Any], data: Any, desk: Desk) -> dict[str, Any]:
        """Nothing more comes: what is left is heard to its end."""
        session, stream = self._session("live_end")
        session.push(await stream.push(np.zeros(0, np.float32), last=True))
        answer = await self._tell(session, session.finish(), desk)
        self._live = None
        return answer

    def _session(self, method: str) -> tuple[LiveSession, audio.StreamResampler]:
        if self._live is None:
            raise BadInput(f"{method}: nothing is being listened to; start with live_start", {"live": False})
        return self._live

    async def _tell(self, session: LiveSession, events: AsyncIterator[dict[str, Any]], desk: Desk) -> dict[str, Any]:
        """Sends events on. A cancel leaves the session as it is: it hears the same sound again at the next push."""
        session.stop = desk.cancelled
        try:
            async for event in events:
                desk.notify(event)
        except executors.Stopped:
            raise Cancelled from None
        if desk.cancelled():
            raise Cancelled
        return session.describe()


def after(before: list[dict[str, Any]], result: dict[str, Any]) -> dict[str, Any]:
    """The result of a run that went on behind these segments, with them in it; its times are its own."""
    segments = before + result["segments"]
    text = "".join(segment["text"] for segment in segments).strip()
    return {**result, "segments": segments, "text": text, "no_speech": not segments}


def transcribe_options(given: Mapping[str, Any]) -> TranscribeOptions:
    """Fields of TranscribeOptions by name; BadInput lists unknown ones."""
    try:
        return TranscribeOptions(**{key: tuple(v) if isinstance(v, list) else v for key, v in given.items()})
    except TypeError as error:
        known = ", ".join(TranscribeOptions.__dataclass_fields__)
        raise BadInput(f"options: {error}; known are {known}") from error


class PageSound:
    """A sound of workers/sound.js: decoded there, piece by piece."""

    def __init__(self, js: Any) -> None:
        self._js, self.rate = js, int(js.rate)

    @property
    def frames(self) -> int:
        return int(self._js.frames)

    @property
    def note(self) -> str | None:
        """What a person should know about how it was read; known at the end."""
        return self._js.note or None

    async def read(self, first: int, n: int) -> np.ndarray:
        return np.frombuffer((await self._js.read(first, n)).to_bytes(), np.float32)


async def sound_of(data: Any) -> Sound:
    """The sound of a request: data.wav, a source of the bytes of a WAV file, or else data.sound of workers/sound.js."""
    return await WavSound.open(BrowserSource("the recording", data.wav)) if data.wav is not None else PageSound(data.sound)
