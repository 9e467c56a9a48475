"""Candlewick: speech, pictures and language models in plain Python, traced once and run anywhere, also in a browser page."""

from . import nn, ops
from .trace import Spec, trace

__version__ = "0.1.0"
__all__ = ["Spec", "nn", "ops", "trace"]
