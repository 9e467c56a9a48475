"""Whisper: speech -> text. `model.py` is the network, `transcribe.py` the task; the rest stands between the two."""

from candlewick.models.whisper.live import LiveSession
from candlewick.models.whisper.options import TranscribeOptions
from candlewick.models.whisper.programs import LoadedModel, load_model
from candlewick.models.whisper.transcribe import Transcriber

__all__ = ["LiveSession", "LoadedModel", "TranscribeOptions", "Transcriber", "load_model"]
