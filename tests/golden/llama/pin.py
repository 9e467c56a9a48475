"""Pins what the miniatures do here and now: PYTHONPATH=py:. python -m tests.golden.llama.pin

Writes answers (numpy executor) to pinned.json and the Programs of one of them, as printed, to programs/. A change of either
shows in the diff, where it can be seen to be meant.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from candlewick import executors
from candlewick.models.llama import GenerateOptions, Generator, load_model
from candlewick.weights.load import Checkpoint

HERE = Path(__file__).resolve().parent
MODELS = HERE.parents[2] / "models"
ANSWERS = ("test-llama", "test-llama-tied", "test-llama-qwen2", "test-llama-mistral", "test-llama-bin")
CHAT = [{"role": "user", "content": "Is the lamp lit? <|im_end|>"}]
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "greedy": ("The keeper", {"greedy": True, "repeat_penalty": 1.0}),
    "greedy, penalty": ("The keeper", {"greedy": True, "repeat_penalty": 1.3}),
    "chat, defaults": (CHAT, {}),
    "hot": ("The keeper", {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}),
    "top-p": ("The keeper", {"temperature": 1.2, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "repeat_penalty": 1.2}),
    "min-p": ("The keeper", {"temperature": 1.2, "top_k": 0, "top_p": 1.0, "min_p": 0.1, "repeat_penalty": 1.0}),
    "top-k": ("The keeper", {"temperature": 1.2, "top_k": 7, "top_p": 1.0, "min_p": 0.0}),
}


async def answers(name: str, executor_name: str) -> dict[str, list[int]]:
    """-> case -> token ids, 40 at most"""
    executor = executors.create(executor_name)
    try:
        generator = await Generator.load(Checkpoint.open(MODELS / name), executor)
        found = {}
        for label, (prompt, options) in CASES.items():
            events = [e async for e in generator.generate(prompt, GenerateOptions(max_tokens=40, seed=5, **options))]
            found[label] = events[-1]["result"]["token_ids"]
        return found
    finally:
        await executor.close()


def printed(name: str) -> dict[str, str]:
    """-> entry -> its Program as text"""
    model = asyncio.run(load_model(Checkpoint.open(MODELS / name)))
    return {entry: str(program) for entry, program in model.programs.items()}


def row(item: tuple[str, dict[str, list[int]]]) -> str:
    """One checkpoint as JSON, a case a line."""
    cases = ",\n".join(f"    {json.dumps(label)}: {json.dumps(ids)}" for label, ids in item[1].items())
    return f"  {json.dumps(item[0])}: {{\n{cases}\n  }}"


def main() -> None:
    (HERE / "programs").mkdir(exist_ok=True)
    pinned = {name: asyncio.run(answers(name, "numpy")) for name in ANSWERS}
    (HERE / "pinned.json").write_text("{\n" + ",\n".join(map(row, pinned.items())) + "\n}\n")
    for entry, program in printed("test-llama-tied").items():
        (HERE / "programs" / f"test-llama-tied.{entry}.txt").write_text(program)


if __name__ == "__main__":
    main()
