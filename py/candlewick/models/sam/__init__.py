"""Segment Anything: a picture and a click -> masks. `model.py` is the network, `predictor.py` the task; `outputs.py` writes."""

from candlewick.models.sam.everything import EverythingOptions
from candlewick.models.sam.predictor import Segmenter, best, check_inside
from candlewick.models.sam.programs import LoadedModel, load_model

__all__ = ["EverythingOptions", "LoadedModel", "Segmenter", "best", "check_inside", "load_model"]
