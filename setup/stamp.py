"""Which steps of set-up are done, so that the next start needs neither the network nor time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def digest(*parts: bytes | str) -> str:
    """sha256 over some inputs of a step, in hex."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def _facts(path: Path) -> list[int] | None:
    """Size and time of change of a file; None when it is not there. Whatever touches a file changes them."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return [facts.st_size, facts.st_mtime_ns]


class Stamp:
    """A JSON file with, for each finished step, the digest of its inputs and the facts of the files it made."""

    def __init__(self, path: Path):
        self.path = path
        try:
            value = json.loads(path.read_text())
        except (OSError, ValueError):
            value = {}
        self._steps: dict[str, Any] = value if isinstance(value, dict) else {}

    def fresh(self, step: str, inputs: str) -> bool:
        """Whether a step was done with these inputs and every file it made lies there untouched."""
        entry = self._steps.get(step)
        if not isinstance(entry, dict) or entry.get("inputs") != inputs or not isinstance(entry.get("files"), dict):
            return False
        return all(_facts(Path(path)) == facts for path, facts in entry["files"].items())

    def record(self, step: str, inputs: str, files: Iterable[Path]) -> None:
        """Remember that a step is done."""
        self._steps[step] = {"inputs": inputs, "files": {str(path): _facts(path) for path in files}}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(self.path.name + ".part")
        partial.write_text(json.dumps(self._steps, indent=1))
        os.replace(partial, self.path)
