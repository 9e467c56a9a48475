"""`candlewick inspect`: what is in a weights file, from its header alone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from candlewick.commands.common import Failure, available_models

if TYPE_CHECKING:
    from candlewick.weights.load import Checkpoint
    from candlewick.weights.safetensors import TensorInfo

LISTED = 8  # values of a list that are shown


def inspect(path: Path, as_json: bool) -> None:
    """path: a weights file of any kind that is read here, a checkpoint folder, or the name of one under models/."""
    if not path.exists():
        models = available_models()
        if str(path) not in models:
            raise Failure(f"{path}: no such file or folder; check the path, or give one of {', '.join(models) or 'none'}")
        path = models[str(path)]
    elif not (path.is_file() or path.is_dir()):
        raise Failure(f"{path}: a pipe or a device; give a file or a folder")
    report = asyncio.run(read(path))
    if as_json:
        print(json.dumps(report))
    else:
        show(report)


async def read(path: Path) -> dict[str, Any]:
    """-> {"path", "format", "metadata", "config", "tensors": [{name, dtype, shape, bytes, file}], "totals"}."""
    from candlewick.weights.load import Checkpoint

    config: dict[str, Any] = {}
    if path.is_file():
        found = await header(path)
    else:
        checkpoint = Checkpoint.open(path)
        if "config.json" in checkpoint.files:
            config = await checkpoint.json("config.json")
        found = await folder(path, checkpoint)
    rows = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "bytes": t.end - t.start,
             "file": t.file.partition("#")[0]} for t in found.tensors]
    metadata = {key: brief(value) for key, value in found.metadata.items()}
    return {"path": str(path), "format": found.format, "metadata": metadata, "config": config, "tensors": rows,
            "totals": totals(rows)}


@dataclass(frozen=True)
class Header:
    """What a file's header says. Of tensors that are kept packed in a file, the bytes are those that they unpack to."""

    format: str
    tensors: list[TensorInfo]
    metadata: dict[str, Any]


async def folder(path: Path, checkpoint: Checkpoint) -> Header:
    """The weights of a checkpoint folder, in one file or in parts."""
    from candlewick.weights.convert.llama import folder_tensors

    names = [name for name in checkpoint.files if name.lower().endswith((".gguf", ".bin"))]
    alone = [name for name in names if name.lower().endswith(".gguf")] or [n for n in names if not n.startswith("tok")]
    if len(alone) == 1 and not any(name.endswith(".safetensors") for name in checkpoint.files):
        return await header(path / alone[0])
    tensors = list((await folder_tensors(checkpoint)).values())
    files = sorted({tensor.file.partition("#")[0] for tensor in tensors})
    heads = [await header(path / name) for name in files]
    return Header(heads[0].format, tensors, {key: value for head in heads for key, value in head.metadata.items()})


async def header(path: Path) -> Header:
    """The header of one file, told by its first bytes. Raises WeightsError that says what the file looks like instead."""
    from candlewick.weights import ggml, gguf, llama2c, npz, pth, safetensors, zip
    from candlewick.weights.convert import ctranslate2
    from candlewick.weights.source import FileSource, WeightsError

    source = FileSource(path)
    start = await source.read(0, min(source.size, 8))
    suffix = path.suffix.lower()
    if start[:4] == gguf.MAGIC or suffix == ".gguf":
        found = await gguf.read_header(source)
        return Header(f"GGUF version {found.version}", found.tensors, found.metadata)
    if start[:4] == b"PK\x03\x04" and suffix != ".safetensors":
        if any(name.rpartition("/")[2] == "data.pkl" for name in await zip.read_directory(source)):
            return Header("PyTorch", list((await pth.read_state_dict(source)).tensors.values()), {})
        return Header("npz", list((await npz.read_npz(source)).tensors.values()), {})
    if suffix == ".onnx":
        return onnx(path)
    if suffix == ".bin":
        if start[:4] == ggml.MAGIC:
            whisper = await ggml.read_header(source)
            return Header("whisper.cpp", list(whisper.tensors.values()), dict(whisper.sizes))
        if int.from_bytes(start[:4], "little") == ctranslate2.VERSION and len(start) > 4:
            model = await ctranslate2.read_model(source)
            return Header(f"CTranslate2 {model.spec}", list(model.variables.values()), {})
        try:
            sizes = await llama2c.read_header(source)
        except WeightsError as error:
            raise WeightsError(f"{error}. A .bin is read if it is of PyTorch, whisper.cpp, llama2.c or CTranslate2") from error
        return Header(f"llama2.c version {sizes.sizes.version}", list(sizes.tensors.values()), asdict(sizes.sizes))
    infos, metadata = await safetensors.read_header(source)
    return Header("safetensors", infos, dict(metadata))


def onnx(path: Path) -> Header:
    """The constants of an ONNX graph; the file has no header, so that all of it is looked at."""
    from candlewick.dtypes import FROM_NUMPY
    from candlewick.weights.onnx import read_graph
    from candlewick.weights.safetensors import TensorInfo

    graph = read_graph(path.read_bytes(), path.name)
    return Header("ONNX", [TensorInfo(name, FROM_NUMPY[array.dtype.newbyteorder("<")], array.shape, path.name, 0, array.nbytes)
                           for name, array in graph.tensors.items()], {"nodes": len(graph.nodes)})


def brief(value: Any) -> Any:
    """A value of the metadata; of a list that is long, how long it is and how it begins."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list) and len(value) > LISTED:
        return f"{len(value)} values: {json.dumps(value[:LISTED], ensure_ascii=False)[1:-1]} ..."
    return value


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
    console.print(f"{report['format']}: {whole['tensors']} tensors, {whole['elements']:,} elements, {whole['bytes']:,} bytes "
                  f"({parts})", markup=False, highlight=False)
