"""Numbers that stand both in Python and in JavaScript are the same."""

from __future__ import annotations

import re
from pathlib import Path

from candlewick.executors.wasm import abi
from setup.steps import pyodide_folder

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "workers" / "wasm.js").read_text()


def constant(name: str):
    """Value of a `const` of wasm.js that is a shifted number."""
    (number, shift) = re.search(rf"^const {name} = (\d+) << (\d+);$", TEXT, re.MULTILINE).groups()
    return int(number) << int(shift)


def test_same_in_both_languages():
    assert constant("THREAD_SCRATCH_BYTES") == abi.THREAD_SCRATCH_BYTES


def test_same_pyodide_as_set_up_makes():
    (version,) = re.findall(r'^export const PYODIDE = "(.*)";$', (ROOT / "workers" / "protocol.js").read_text(), re.MULTILINE)
    assert pyodide_folder(ROOT) == ROOT / "build" / "pyodide" / version
