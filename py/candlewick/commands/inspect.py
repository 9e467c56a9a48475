"""`candlewick inspect`: what is in a weights file, from its header alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from candlewick.commands.common import Failure


def inspect(path: Path, as_json: bool) -> None:
    """path: a safetensors file, or a folder with one or with shards."""
    if not path.exists():
        raise Failure(f"{path}: no such file or folder; check the path")
    report = asyncio.run(read(path))
    if as_json:
        print(json.dumps(report))
    else:
        show(report)


async def read(path: Path) -> dict[str, Any]:
    """-> {"path", "metadata", "config", "tensors": [{name, dtype, shape, bytes, file}], "totals"}."""
    config: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    if path.is_dir():
        from candlewick.weights.load import Checkpoint

        checkpoint = Checkpoint.open(path)
        tensors = list((await checkpoint.tensors()).values())
        if (path / "config.json").is_file():
            config = await checkpoint.json("config.json")
        for name in sorted({tensor.file for tensor in tensors}):
            metadata.update((await header(path / name))[1])
    else:
        tensors, metadata = await header(path)
    rows = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "bytes": t.end - t.start, "file": t.file}
            for t in tensors]
    return {"path": str(path), "metadata": metadata, "config": config, "tensors": rows, "totals": totals(rows)}


async def header(path: Path):
    """-> (list of TensorInfo, metadata). Raises WeightsError that says what the file looks like instead."""
    from candlewick.weights.safetensors import read_header
    from candlewick.weights.source import FileSource

    return await read_header(FileSource(path))


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Tensors, elements and bytes, in all and per dtype."""
    by_dtype: dict[str, dict[str, int]] = {}
    for row in rows:
        entry = by_dtype.setdefault(row["dtype"], {"tensors": 0, "elements": 0, "bytes": 0})
        elements = 1
        for length in row["shape"]:
            elements *= length
        entry["tensors"] += 1
        entry["elements"] += elements
        entry["bytes"] += row["bytes"]
    whole = {key: sum(entry[key] for entry in by_dtype.values()) for key in ("tensors", "elements", "bytes")}
    return {**whole, "by_dtype": by_dtype}


def printable(text: str) -> str:
    """A text of the file with everything escaped that could steer a terminal or not be written at all."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # in a file or a pipe names stay on one line
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tensor", overflow="fold")
    table.add_column("dtype")
    table.add_column("shape")
    table.add_column("bytes", justify="right")
    shards = len({row["file"] for row in report["tensors"]}) > 1
    if shards:
        table.add_column("file", overflow="fold")
    for row in report["tensors"]:
        cells = [printable(row["name"]), row["dtype"], "(" + ", ".join(map(str, row["shape"])) + ")", f"{row['bytes']:,}"]
        table.add_row(*(Text(cell) for cell in cells + ([row["file"]] if shards else [])))
    console.print(table)
    for title in ("metadata", "config"):
        for key, value in report[title].items():
            key, shown = printable(key), printable(value if isinstance(value, str) else json.dumps(value))
            shown = shown if len(shown) <= 200 else shown[:200] + "..."
            console.print(f"{title}.{key} = {shown}", markup=False, highlight=False)
    whole = report["totals"]
    parts = ", ".join(f"{name} {entry['bytes']:,}" for name, entry in whole["by_dtype"].items())
    console.print(f"{whole['tensors']} tensors, {whole['elements']:,} elements, {whole['bytes']:,} bytes ({parts})",
                  markup=False, highlight=False)
