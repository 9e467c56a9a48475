"""Pins the Programs of the miniature, as printed: PYTHONPATH=py:. python -m tests.golden.sam.pin

A change shows in the diff, where it can be seen to be meant.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from candlewick.models.sam import load_model
from candlewick.models.sam.programs import decoder
from candlewick.weights.load import Checkpoint

HERE = Path(__file__).resolve().parent
MINIATURE = HERE.parents[2] / "models" / "test-sam"


async def printed() -> dict[str, str]:
    """-> entry -> its Program as text"""
    model = await load_model(Checkpoint.open(MINIATURE))
    programs = {**model.programs, **decoder(model.network, model.memory, 3, True)}
    return {entry: str(program) for entry, program in programs.items()}


def main() -> None:
    (HERE / "programs").mkdir(exist_ok=True)
    for entry, text in asyncio.run(printed()).items():
        (HERE / "programs" / f"test-sam.{entry}.txt").write_text(text)


if __name__ == "__main__":
    main()
