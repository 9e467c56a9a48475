"""A checkpoint folder -> tensors by name, bound strictly to a model's parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from candlewick.dtypes import DTYPES
from candlewick.weights import safetensors
from candlewick.weights.quant import dequantise
from candlewick.weights.safetensors import TensorInfo, read_header
from candlewick.weights.source import ByteSource, FileSource, WeightsError, parse_json, parse_large_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LISTED = 12  # names of each kind that an error lists before it says "and N more"


class Shaped(Protocol):
    """What bind needs of a model's parameter."""

    @property
    def shape(self) -> tuple[int, ...]: ...


class Checkpoint:
    """The files of one checkpoint by name, wherever they lie. Nothing is read before it is asked for.

    tensors: where each lies in `files`, if that is known already; else their headers tell.
    """

    def __init__(
        self,
        files: Mapping[str, ByteSource],
        name: str = "checkpoint",
        tensors: Mapping[str, TensorInfo] | None = None,
    ):
        self.files = dict(files)
        self.name = name
        self._tensors = None if tensors is None else dict(tensors)

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """All files directly inside a folder on disk; or one file, with what belongs to it beside it (see companions).

        Raises WeightsError when there is neither.
        """
        path = Path(path)
        if not path.exists():
            raise WeightsError(f"{path}: no such checkpoint folder or file; `python3 serve.py --setup` makes those that ship")
        paths = (path, *companions(path)) if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
        return cls({p.name: FileSource(p) for p in paths}, path.stem if path.is_file() else path.name)

    def source(self, name: str) -> ByteSource:
        """The file `name`. Raises WeightsError listing what there is."""
        if name not in self.files:
            raise WeightsError(f"{self.name}: {name} is missing; the folder has {self._listing()}")
        return self.files[name]

    def _listing(self) -> str:
        return some(sorted(self.files)) or "no files"

    async def text(self, name: str) -> str:
        """A whole file as UTF-8 text."""
        source = self.source(name)
        try:
            return (await source.read(0, source.size)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise WeightsError(f"{self.name}/{name}: not UTF-8 text ({error.reason} at byte {error.start})") from error

    async def json(self, name: str) -> dict[str, Any]:
        """A whole file as a JSON object; nesting is limited (see parse_json)."""
        source = self.source(name)
        value = parse_json(await source.read(0, source.size), f"{self.name}/{name}")
        if not isinstance(value, dict):
            raise WeightsError(f"{self.name}/{name}: wanted a JSON object, got {type(value).__name__}")
        return value

    async def large_json(self, name: str) -> dict[str, Any]:
        """A whole file of many keys, such as a vocabulary, as a JSON object (see parse_large_json)."""
        source = self.source(name)
        value = parse_large_json(await source.read(0, source.size), f"{self.name}/{name}")
        if not isinstance(value, dict):
            raise WeightsError(f"{self.name}/{name}: wanted a JSON object, got {type(value).__name__}")
        return value

    async def tensors(self) -> dict[str, TensorInfo]:
        """Every tensor of the checkpoint by name, from one safetensors file or from the shards of its index."""
        if self._tensors is None:
            self._tensors = await self._read_tensors()
        return self._tensors

    async def _read_tensors(self) -> dict[str, TensorInfo]:
        if INDEX in self.files and SINGLE not in self.files:
            return await read_shards(self, INDEX, self._read_file)
        name = SINGLE
        if SINGLE not in self.files:
            found = [file for file in self.files if file.endswith(".safetensors")]
            if len(found) != 1:
                raise WeightsError(
                    f"{self.name}: wants {SINGLE}, or {INDEX} with its shards; the folder has {self._listing()}"
                )
            name = found[0]
        return await self._read_file(name)

    async def _read_file(self, name: str) -> dict[str, TensorInfo]:
        infos, _ = await read_header(self.files[name])
        return {info.name: _under(info, name) for info in infos}

    async def read(self, info: TensorInfo) -> np.ndarray:
        """Data of one tensor, of info.shape: see decode."""
        return decode(info, await self.source(info.file).read(info.start, info.end))


async def read_shards(
    checkpoint: Checkpoint, index: str, read: Callable[[str], Awaitable[Mapping[str, TensorInfo]]]
) -> dict[str, TensorInfo]:
    """Tensors of a checkpoint in parts; read(file) -> those of one part.

    Every part that the index names must be there and hold just what the index says; else WeightsError.
    """
    where = f"{checkpoint.name}/{index}"
    weight_map = (await checkpoint.json(index)).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise WeightsError(f"{where}: weight_map must give a file name for each tensor, got {str(weight_map)[:80]}")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if "/" in shard or "\\" in shard or "\0" in shard or shard in ("", ".", ".."):
            raise WeightsError(f"{where}: shard {shard!r} is not a plain file name inside the folder")
    missing = [shard for shard in shards if shard not in checkpoint.files]
    if missing:
        raise WeightsError(f"{where}: {len(missing)} of {len(shards)} shards are missing: {some(missing)}")
    tensors: dict[str, TensorInfo] = {}
    astray = []
    for shard in shards:
        for name, info in (await read(shard)).items():
            if weight_map.get(name) == shard:
                tensors[name] = info
            else:
                astray.append(f"{name} lies in {shard}, the index says {weight_map.get(name, 'nothing')}")
    astray += [f"{name} is not in {shard}" for name, shard in weight_map.items() if name not in tensors]
    if astray:
        raise WeightsError(f"{where}: shards and index differ: {some(astray, '; ')}")
    return tensors


def companions(path: Path) -> list[Path]:
    """Files beside a weights file that say what it lacks: JSON files and chat templates, or a llama2.c tokenizer.

    A .gguf file lacks nothing. Beside other files these count only if a config.json is among them; beside a .bin without one,
    tokenizer.bin does, or the only other file whose name begins with `tok` and ends with .bin.
    """
    if path.suffix.lower() == ".gguf":
        return []
    if (path.parent / "config.json").is_file():
        return sorted(p for p in path.parent.iterdir() if p.is_file() and p.suffix.lower() in (".json", ".jinja")
                      and p != path and not p.name.endswith(".index.json"))
    beside = path.with_name("tokenizer.bin")
    found = [beside] if beside.is_file() else sorted(path.parent.glob("tok*.bin"))
    found = [p for p in found if p != path]
    return found if path.suffix.lower() == ".bin" and len(found) == 1 else []


def decode(info: TensorInfo, data: bytes) -> np.ndarray:
    """Bytes of a tensor -> array of info.shape: bf16 and quantised types as float32, other types as they are."""
    if DTYPES[info.dtype].kind == "quant":
        return dequantise(info.dtype, data, info.shape)
    return safetensors.decode(info, data)


def _under(info: TensorInfo, file: str) -> TensorInfo:
    """The same tensor, with the file named as the checkpoint names it (a source may carry a longer name)."""
    return info if info.file == file else TensorInfo(info.name, info.dtype, info.shape, file, info.start, info.end)


def some(names: list[str], separator: str = ", ") -> str:
    """The first of the names, and how many more there are."""
    rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return separator.join(names[:LISTED]) + rest


def bind(
    parameters: Mapping[str, Shaped],
    tensors: Mapping[str, TensorInfo],
    ignore: Iterable[str] = (),
    wanted_by: str = "config.json",
) -> dict[str, TensorInfo]:
    """Match a model's parameters with a file's tensors by name -> {name: TensorInfo} for every parameter.

    Strict: raises one WeightsError that lists all missing, unexpected and misshapen tensors, with both shapes and both
    files (`wanted_by` is the one the model's sizes came from). `ignore` holds names or patterns (`*`) of tensors that a
    file may have and the model does not use, such as a tied output matrix.
    """
    ignore = tuple(ignore)
    missing = [name for name in parameters if name not in tensors]
    unexpected = [
        name for name in tensors if name not in parameters and not any(fnmatchcase(name, pattern) for pattern in ignore)
    ]
    misshapen = [
        f"{name} is {tuple(tensors[name].shape)} in {tensors[name].file}, {wanted_by} asks for {tuple(parameter.shape)}"
        for name, parameter in parameters.items()
        if name in tensors and tuple(tensors[name].shape) != tuple(parameter.shape)
    ]
    problems = [
        f"{len(names)} {kind}: {some(names, '; ' if kind == 'misshapen' else ', ')}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("misshapen", misshapen))
        if names
    ]
    if problems:
        files = some(sorted({info.file for info in tensors.values()})) or "an empty checkpoint"
        raise WeightsError(
            f"{files} does not fit the model of {wanted_by} ({len(parameters)} tensors): " + "; ".join(problems)
            + ". Use the weights and the configuration of one and the same checkpoint."
        )
    return {name: tensors[name] for name in parameters}


@dataclass
class Weights:
    """Everything an executor loads for a model: tensors bound to a checkpoint, and constants the model makes itself."""

    checkpoint: Checkpoint
    bound: dict[str, TensorInfo]
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        twins = sorted(self.bound.keys() & self.constants.keys())
        if twins:
            raise WeightsError(f"{some(twins)}: each is a tensor of the checkpoint and a constant of the model")

    def names(self) -> list[str]:
        """Names of all tensors and constants."""
        return [*self.bound, *self.constants]

    def info(self, name: str) -> TensorInfo | None:
        """Where a bound tensor lies; None for a constant. Raises KeyError for an unknown name."""
        if name in self.constants:
            return None
        return self.bound[name]

    async def read(self, name: str) -> np.ndarray:
        """Data of a tensor or constant; bf16 and quantised types come as float32."""
        if name in self.constants:
            return self.constants[name]
        return await self.checkpoint.read(self.bound[name])

    async def read_rows(self, name: str, first: int, end: int) -> np.ndarray:
        """Rows [first, end) of its first axis, without reading the others."""
        if name in self.constants:
            return self.constants[name][first:end] if self.constants[name].ndim else self.constants[name]
        info = self.bound[name]
        if not info.shape:
            return await self.checkpoint.read(info)
        row = (info.end - info.start) // info.shape[0]
        data = await self.checkpoint.source(info.file).read(info.start + first * row, info.start + end * row)
        return decode(TensorInfo(name, info.dtype, (end - first, *info.shape[1:]), info.file, 0, len(data)), data)
