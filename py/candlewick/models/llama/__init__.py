"""Llama: text -> more text. `model.py` is the network, `generate.py` the task; the rest stands between the two."""

from candlewick.models.llama.generate import ContextFull, Generator
from candlewick.models.llama.programs import LoadedModel, load_model
from candlewick.models.llama.sampling import GenerateOptions

__all__ = ["ContextFull", "GenerateOptions", "Generator", "LoadedModel", "load_model"]
