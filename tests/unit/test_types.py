"""The JavaScript against its own JSDoc types, by TypeScript's checker: pages, workers and audio worklets know other globals."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

TYPES = Path(__file__).parents[1] / "types"


@pytest.mark.parametrize("kind", ["pages", "workers", "worklets"])
def test_types(kind):
    checker = TYPES / "node_modules" / "typescript" / "lib" / "tsc.js"
    node = shutil.which("node")
    if not node or not checker.exists():
        pytest.skip(f"no type checker: npm ci --prefix {TYPES.relative_to(TYPES.parents[1])} installs it")
    command = [node, checker, "-p", TYPES / f"{kind}.json", "--pretty", "false"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=TYPES.parents[1])
    errors = re.findall(r"^(\S.*: error TS.*)$", done.stdout, re.MULTILINE)
    ours = [error for error in errors if not error.startswith("build/")]  # Pyodide's files are imported, and not ours
    assert not ours, "\n".join(ours)
    assert errors or done.returncode == 0, done.stdout + done.stderr
