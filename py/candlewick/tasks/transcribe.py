"""transcribe: sound of the page -> segments of text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from candlewick import audio, executors
from candlewick.models.whisper import TranscribeOptions, Transcriber
from candlewick.tasks import TURN_SECONDS, BadInput, Cancelled, Desk
from candlewick.weights.load import Checkpoint


class Transcription:
    """A loaded speech model and what brings sound to its rate."""

    methods = ("transcribe",)
    family = "whisper"
    wanted = "a folder with config.json (model_type whisper), tokenizer.json and safetensors"

    def __init__(self, transcriber: Transcriber, executor: executors.Executor) -> None:
        self._transcriber, self._resampler = transcriber, audio.Resampler(executor)

    @classmethod
    async def recognises(cls, checkpoint: Checkpoint) -> bool:
        """Whether load() may be called with this checkpoint. Reads no weights."""
        return "config.json" in checkpoint.files and (await checkpoint.json("config.json")).get("model_type") == cls.family

    @classmethod
    async def load(
        cls, checkpoint: Checkpoint, executor: executors.Executor, on_progress: Callable[..., None]
    ) -> Transcription:
        return cls(await Transcriber.load(checkpoint, executor, on_progress), executor)

    def describe(self) -> dict[str, Any]:
        return self._transcriber.describe()

    async def transcribe(self, params: Mapping[str, Any], data: Any, desk: Desk) -> dict[str, Any]:
    @property
    def weights(self) -> Any:
        return self._transcriber.model.weights

        """params: {options}; data: {bytes} of a WAV file, or {channels, rate}."""
        options = transcribe_options(params.get("options") or {})
        samples, rate = read_sound(data)
        start = time.perf_counter()
        samples = await self._resampler.resample(samples, rate)
        resample_ms = (time.perf_counter() - start) * 1000
        result: dict[str, Any] = {}
        turned = time.perf_counter()
        async for event in self._transcriber.transcribe(samples, options, desk.cancelled):
            if event["event"] == "result":
                result = event["result"]
            else:
                if event["event"] == "progress":
                    event = {"unit": "seconds" if event["stage"] == "transcribe" else "steps", **event}
                desk.notify(event)
                if time.perf_counter() - turned > TURN_SECONDS:  # a turn costs as much as a tenth of a token
                    await asyncio.sleep(0)
                    turned = time.perf_counter()
        result["timings"]["resample_ms"] = resample_ms
        if result.get("stopped"):
            raise Cancelled(result)
        return result


def transcribe_options(given: Mapping[str, Any]) -> TranscribeOptions:
    """Fields of TranscribeOptions by name; BadInput lists unknown ones."""
    try:
        return TranscribeOptions(**{key: tuple(v) if isinstance(v, list) else v for key, v in given.items()})
    except TypeError as error:
        known = ", ".join(TranscribeOptions.__dataclass_fields__)
        raise BadInput(f"options: {error}; known are {known}") from error


def read_sound(sound: Any) -> tuple[np.ndarray, int]:
    """The sound of a request -> (samples (n, channels) float32, rate in Hz)."""
    if sound.bytes is not None:
        return audio.read_wav_mono(sound.bytes.to_bytes())
    lengths = [int(channel.length) for channel in sound.channels]
    if len(set(lengths)) != 1:
        raise BadInput(f"audio: wanted one or more channels of equal length, got lengths {lengths}")
    mono = np.zeros(lengths[0], np.float32)
    for channel in sound.channels:  # one after the other: an hour of stereo at 48 kHz is 1.4 GB
        mono += np.frombuffer(channel.to_bytes(), np.float32)
    mono /= len(lengths)
    return mono, int(sound.rate)
