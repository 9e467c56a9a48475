"""Candlewick: speech, pictures and language models in plain Python, traced once and run anywhere, also in a browser page.

    from candlewick import transcribe

    transcribe("talk.mp3").text
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import nn, ops
from .trace import Spec, trace

if TYPE_CHECKING:
    from .api import Generated, Masks, Transcript, generate, segment, transcribe, unload

__version__ = "0.1.0"
__all__ = ["Generated", "Masks", "Spec", "Transcript", "generate", "nn", "ops", "segment", "trace", "transcribe", "unload"]


def __getattr__(name: str) -> Any:
    """What lies in api.py comes when it is first asked for: it brings the models with it."""
    if name in __all__:
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
