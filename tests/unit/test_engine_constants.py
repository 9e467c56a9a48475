"""Numbers that stand both in Python and in JavaScript are the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from candlewick.executors.wasm import abi
from setup.steps import pyodide_folder

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "workers" / "wasm.js").read_text()


def constant(name: str):
    """Value of a `const` of wasm.js: a number, a shift, or an object of numbers."""
    (value,) = re.findall(rf"^const {name} = (.*);$", TEXT, re.MULTILINE)
    if "<<" in value:
        number, shift = value.split("<<")
        return int(number) << int(shift)
    return ast.literal_eval(re.sub(r"(\w+):", r'"\1":', value))


@pytest.mark.parametrize(("name", "value"), [
    ("THREAD_SCRATCH_BYTES", abi.THREAD_SCRATCH_BYTES), ("PANEL_ROWS", abi.PANEL), ("PACK_KINDS", abi.PACK_KINDS),
    ("SOURCE_DTYPES", abi.SOURCE_DTYPES), ("W_DTYPES", abi.W_DTYPES),
])
def test_same_in_both_languages(name, value):
    assert constant(name) == value


def test_same_pyodide_as_set_up_makes():
    (version,) = re.findall(r'^export const PYODIDE = "(.*)";$', (ROOT / "workers" / "protocol.js").read_text(), re.MULTILINE)
    assert pyodide_folder(ROOT) == ROOT / "build" / "pyodide" / version
