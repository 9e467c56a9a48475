"""Imports point left: the line of docs/DESIGN.md, section 1, held against the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "py" / "candlewick"

# A part may import from itself and from parts further up in this list.
ORDER = [
    ("dtypes", "options"),
    ("weights", "text"),
    ("program",),
    ("tensor",),
    ("trace",),
    ("ops",),
    ("nn",),
    ("passes",),
    ("executors",),
    ("verify",),
    ("audio",),
    ("recording",),
    ("audio_file",),
    ("image",),
    ("image_file",),
    ("models",),
    ("tasks",),
    ("worker", "commands"),
    ("api", "cli"),
]
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
ALLOWED = {("program", "ops"): "printing and verifying look the op table up, inside functions"}


def imported(path: Path):
    """Parts of the package that a file imports, wherever in the file that stands."""
    here = path.relative_to(PACKAGE).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(["candlewick", *here[: len(here) - node.level]]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            names = [module] if module != "candlewick" else [f"candlewick.{a.name}" for a in node.names]
        yield from (n.split(".")[1] for n in names if n.startswith("candlewick."))


def test_python_imports_point_left():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if part == "__init__":
            continue
        assert part in RANK, f"{path.relative_to(ROOT)}: say in ORDER where {part} stands on the line"
        wrong += [
            f"{path.relative_to(ROOT)} imports {other}"
            for other in imported(path)
            if other in RANK and RANK[other] > RANK[part] and (part, other) not in ALLOWED
        ]
        wrong += [
            f"{path.relative_to(ROOT)} imports its neighbour {other}"
            for other in imported(path)
            if other in RANK and other != part and RANK[other] == RANK[part]
        ]
    assert not wrong, "\n".join(wrong)


def javascript_imports(folder: str):
    for path in (ROOT / folder).rglob("*.js"):
        code = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)  # types in comments may come from anywhere
        for target in re.findall(r"""(?:from\s+|import\s*\(?\s*)["'](\.[^"']+)["']""", code):
            yield path, (path.parent / target).resolve().relative_to(ROOT)


def test_pages_import_only_the_client():
    wrong = [
        f"{p.relative_to(ROOT)} imports {t}"
        for p, t in javascript_imports("web")
        if t.parts[0] != "web" and t.as_posix() not in ("workers/client.js", "workers/protocol.js")
    ]
    assert not wrong, "\n".join(wrong)


def test_workers_know_no_page():
    wrong = [f"{p.relative_to(ROOT)} imports {t}" for p, t in javascript_imports("workers") if t.parts[0] == "web"]
    assert not wrong, "\n".join(wrong)
