"""The Programs of any checkpoint that can be read here, for commands that look inside."""

from __future__ import annotations

import importlib
from typing import Any

from candlewick.commands.common import Failure
from candlewick.weights.load import Checkpoint


async def load_any(checkpoint: Checkpoint) -> Any:
    """-> what the family's load_model gives: at least `programs` and `weights`. No weights are read."""
    from candlewick.tasks.generate import Generation
    from candlewick.tasks.segment import Segmentation
    from candlewick.tasks.transcribe import Transcription

    tasks: tuple[Any, ...] = (Transcription, Segmentation, Generation)
    for task in tasks:
        if await task.recognises(checkpoint):
            return await importlib.import_module(f"candlewick.models.{task.family}.programs").load_model(checkpoint)
    kinds = "; ".join(f"{task.family}: {task.wanted}" for task in tasks)
    raise Failure(f"{checkpoint.name} is no model that can be read here. Readable are {kinds}")
