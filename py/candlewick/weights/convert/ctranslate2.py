"""CTranslate2 `model.bin` of a Whisper -> Hugging Face names, and the two JSON files that go with them.

Format (binary version 6, little endian; CTranslate2 `src/models/model.cc`): u32 version, text spec name, u32 spec
revision, u32 number of variables; per variable: text name, u8 rank, u32 dims, u8 type, u32 bytes, data; then u32 number
of aliases and for each its name and what it stands for. A text is a u16 length and that many bytes, the last one zero.

CTranslate2 fuses what Hugging Face keeps apart: rows of `self_attention/linear_0` are query, key, value, rows of
`attention/linear_1` key, value. It also stores a bias for keys, which Whisper does not have: it must be all zeros.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from candlewick.dtypes import DTYPES
from candlewick.weights.manifest import write_json
from candlewick.weights.safetensors import TensorInfo, decode, save
from candlewick.weights.source import ByteSource, FileSource, WeightsError, looks_like, parse_json

VERSION, SPEC, REVISION = 6, "WhisperSpec", 3
TYPES = {0: "f32", 1: "i8", 2: "i16", 3: "i32", 4: "f16", 5: "bf16"}
END, START, PREVIOUS, NO_TIMESTAMPS = "<|endoftext|>", "<|startoftranscript|>", "<|startofprev|>", "<|notimestamps|>"
MULTILINGUAL_FROM = 51865  # vocabulary sizes: English-only Whispers have 51864, the others this or one more
WINDOW = 1 << 16  # headers are read this many bytes at a time; they are small and far apart


@dataclass(frozen=True)
class Model:
    """What a file says of itself: variables in file order, by CTranslate2 name, and aliases."""

    spec: str
    revision: int
    variables: dict[str, TensorInfo]
    aliases: dict[str, str]


class _Reader:
    """Fields one after another through a window of bytes. Every read is checked against the file's size."""

    def __init__(self, source: ByteSource):
        self.source, self.position = source, 0
        self._window, self._window_start = b"", 0

    async def take(self, count: int, what: str) -> bytes:
        end = self.position + count
        if end > self.source.size:
            raise WeightsError(
                f"{self.source.name}: {what} at byte {self.position} needs {count} bytes, the file ends at "
                f"{self.source.size}; it is cut short or not a CTranslate2 model"
            )
        if self.position < self._window_start or end > self._window_start + len(self._window):
            ahead = min(self.source.size, self.position + max(count, WINDOW))
            self._window = await self.source.read(self.position, ahead)
            self._window_start = self.position
        offset = self.position - self._window_start
        self.position = end
        return self._window[offset : offset + count]

    async def number(self, kind: str, what: str) -> int:
        return struct.unpack("<" + kind, await self.take(struct.calcsize(kind), what))[0]

    async def text(self, what: str) -> str:
        data = await self.take(await self.number("H", f"length of {what}"), what)
        if not data or b"\0" in data[:-1] or data[-1]:
            raise WeightsError(f"{self.source.name}: {what} before byte {self.position} must end with one zero byte")
        try:
            return data[:-1].decode("utf-8")
        except UnicodeDecodeError as error:
            raise WeightsError(f"{self.source.name}: {what} before byte {self.position} is not UTF-8 text") from error


async def read_model(source: ByteSource) -> Model:
    """Headers of a CTranslate2 Whisper file; data stays where it is. Raises WeightsError naming field and byte."""
    reader = _Reader(source)
    head = await source.read(0, min(source.size, 64))
    version = int.from_bytes(head[:4], "little") if len(head) >= 4 else -1
    if version != VERSION:
        raise WeightsError(
            f"{source.name}: wanted CTranslate2 binary version {VERSION}, got {version}; "
            f"it looks like {looks_like(head)}"
        )
    await reader.take(4, "version")
    spec, revision = await reader.text("spec name"), await reader.number("I", "spec revision")
    if spec != SPEC or revision != REVISION:
        raise WeightsError(f"{source.name}: wanted {SPEC} revision {REVISION}, got {spec[:40]!r} revision {revision}")
    variables: dict[str, TensorInfo] = {}
    for _ in range(await reader.number("I", "number of variables")):
        info = await _variable(reader)
        if info.name in variables:
            raise WeightsError(f"{source.name}: variable {info.name!r} stands twice")
        variables[info.name] = info
    aliases = {}
    for _ in range(await reader.number("I", "number of aliases")):
        alias, target = await reader.text("alias"), await reader.text("alias target")
        if target not in variables:
            raise WeightsError(f"{source.name}: alias {alias!r} stands for {target!r}, which is not in the file")
        aliases[alias] = target
    if reader.position != source.size:
        raise WeightsError(f"{source.name}: {source.size - reader.position} bytes follow the last alias; expected none")
    return Model(spec, revision, variables, aliases)


async def _variable(reader: _Reader) -> TensorInfo:
    name = await reader.text("variable name")
    where = f"{reader.source.name}: variable {name!r}"
    rank = await reader.number("B", f"rank of {name!r}")
    shape = struct.unpack(f"<{rank}I", await reader.take(4 * rank, f"dimensions of {name!r}"))
    kind, size = await reader.number("B", f"type of {name!r}"), await reader.number("I", f"size of {name!r}")
    if kind not in TYPES:
        raise WeightsError(f"{where} has type id {kind}; known are {', '.join(f'{k} ({v})' for k, v in TYPES.items())}")
    dtype = TYPES[kind]
    if (wanted := math.prod(shape) * DTYPES[dtype].bytes) != size:
        raise WeightsError(f"{where}: {dtype} {shape} needs {wanted} bytes, the file says {size}")
    start, end = reader.position, reader.position + size
    if end > reader.source.size:
        raise WeightsError(f"{where}: its data ends at byte {end}, the file at {reader.source.size}; it is cut short")
    reader.position = end
    return TensorInfo(name, dtype, shape, reader.source.name, start, end)


@dataclass(frozen=True)
class Row:
    """One line of the renaming table: part `part` of `parts` equal groups of rows of a variable -> a tensor.

    A row without `target` says that the part must be all zeros and is dropped.
    """

    variable: str
    target: str | None
    part: int = 0
    parts: int = 1


def _pair(variable: str, target: str, weight: str = "weight", bias: str = "bias") -> Iterator[Row]:
    yield Row(f"{variable}/{weight}", f"{target}.weight")
    yield Row(f"{variable}/{bias}", f"{target}.bias")


def _norm(variable: str, target: str) -> Iterator[Row]:
    return _pair(variable, target, "gamma", "beta")


def _fused(variable: str, target: str, names: tuple[str, ...]) -> Iterator[Row]:
    for part, name in enumerate(names):
        yield Row(f"{variable}/weight", f"{target}.{name}.weight", part, len(names))
        yield Row(f"{variable}/bias", None if name == "k_proj" else f"{target}.{name}.bias", part, len(names))


def renaming(encoder_layers: int, decoder_layers: int) -> list[Row]:
    """The whole table for a Whisper of so many layers: every tensor of the file once, nothing by pattern."""
    rows = [*_pair("encoder/conv1", "model.encoder.conv1"), *_pair("encoder/conv2", "model.encoder.conv2")]
    rows += [
        Row("encoder/position_encodings/encodings", "model.encoder.embed_positions.weight"),
        Row("decoder/position_encodings/encodings", "model.decoder.embed_positions.weight"),
        Row("decoder/embeddings/weight", "model.decoder.embed_tokens.weight"),
    ]
    for side, n_layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        rows += _norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        for i in range(n_layers):
            theirs, ours = f"{side}/layer_{i}", f"model.{side}.layers.{i}"
            rows += _norm(f"{theirs}/self_attention/layer_norm", f"{ours}.self_attn_layer_norm")
            rows += _fused(f"{theirs}/self_attention/linear_0", f"{ours}.self_attn", ("q_proj", "k_proj", "v_proj"))
            rows += _pair(f"{theirs}/self_attention/linear_1", f"{ours}.self_attn.out_proj")
            if side == "decoder":
                rows += _norm(f"{theirs}/attention/layer_norm", f"{ours}.encoder_attn_layer_norm")
                rows += _pair(f"{theirs}/attention/linear_0", f"{ours}.encoder_attn.q_proj")
                rows += _fused(f"{theirs}/attention/linear_1", f"{ours}.encoder_attn", ("k_proj", "v_proj"))
                rows += _pair(f"{theirs}/attention/linear_2", f"{ours}.encoder_attn.out_proj")
            rows += _norm(f"{theirs}/ffn/layer_norm", f"{ours}.final_layer_norm")
            rows += _pair(f"{theirs}/ffn/linear_0", f"{ours}.fc1")
            rows += _pair(f"{theirs}/ffn/linear_1", f"{ours}.fc2")
    return rows


# Scalars that describe the architecture: name -> the value we can convert, or None where it is read elsewhere.
SETTINGS = {
    "encoder/num_heads": None,
    "decoder/num_heads": None,
    "decoder/activation": 3,  # GELU, the exact one
    "decoder/alibi": 0,
    "decoder/alignment_heads": 1,  # averages the heads of alignment_layer; the heads themselves are in config.json
    "decoder/alignment_layer": -1,
    "decoder/pre_norm": 1,
    "decoder/scale_embeddings": 0,
    "decoder/start_from_zero_embedding": 0,
}


def _layers(model: Model, side: str) -> int:
    count = 0
    while f"{side}/layer_{count}/self_attention/linear_0/weight" in model.variables:
        count += 1
    return count


async def convert_tensors(source: ByteSource, model: Model) -> dict[str, np.ndarray]:
    """All tensors under their Hugging Face names, in the file's own float type (f16 stays f16).

    Raises WeightsError when variables are missing, unknown, of an integer type, or a key bias is not zero.
    """
    rows = renaming(_layers(model, "encoder"), _layers(model, "decoder"))
    wanted = dict.fromkeys(row.variable for row in rows)
    missing = [name for name in wanted if name not in model.variables]
    unknown = [name for name in model.variables if name not in wanted and name not in SETTINGS]
    found = [model.variables[name] for name in wanted if name in model.variables]
    integers = [info.name for info in found if DTYPES[info.dtype].kind != "float"]
    if missing or unknown or integers:
        raise WeightsError(
            f"{source.name}: cannot convert: missing {missing[:8]}, unknown {unknown[:8]}, quantised {integers[:8]}"
        )
    for name, value in SETTINGS.items():
        if value is not None and name in model.variables:
            got = await _scalar(source, model, name)
            if got != value:
                raise WeightsError(f"{source.name}: {name} is {got}, only {value} can be converted")
    tensors: dict[str, np.ndarray] = {}
    for row in rows:
        info = model.variables[row.variable]
        if not info.shape or info.shape[0] % row.parts:
            raise WeightsError(f"{source.name}: {row.variable} {info.shape} does not split into {row.parts} parts")
        step = (info.end - info.start) // row.parts
        start = info.start + row.part * step
        shape = (info.shape[0] // row.parts, *info.shape[1:])
        piece = TensorInfo(row.variable, info.dtype, shape, info.file, start, start + step)
        array = decode(piece, await source.read(piece.start, piece.end))
        if row.target is not None:
            tensors[row.target] = array
        elif array.any():
            raise WeightsError(f"{source.name}: {row.variable} holds a key bias that is not zero; Whisper has none")
    return tensors


async def _scalar(source: ByteSource, model: Model, name: str) -> int:
    info = model.variables.get(name)
    if info is None or info.shape != ():
        raise WeightsError(f"{source.name}: wanted the number {name}, got {info.shape if info else 'nothing'}")
    return int(decode(info, await source.read(info.start, info.end)))


def special_tokens(tokenizer: dict[str, Any]) -> dict[str, int]:
    """tokenizer.json -> {text of a special token: id}. Raises WeightsError when one that Whisper needs is absent."""
    added = tokenizer.get("added_tokens")
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise WeightsError("tokenizer.json: wanted a list added_tokens of objects")
    tokens = {token.get("content"): token.get("id") for token in added}
    absent = [text for text in (END, START, PREVIOUS, NO_TIMESTAMPS) if type(tokens.get(text)) is not int]
    if absent:
        raise WeightsError(f"tokenizer.json: {', '.join(absent)} missing from added_tokens; not a Whisper's tokenizer")
    return tokens


async def whisper_config(
    source: ByteSource, model: Model, tensors: dict[str, np.ndarray], tokenizer: dict[str, Any]
) -> dict[str, Any]:
    """config.json in Hugging Face's names, from the shapes of the converted tensors and the numbers of heads."""
    vocab_size, d_model = tensors["model.decoder.embed_tokens.weight"].shape
    tokens = special_tokens(tokenizer)
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "activation_function": "gelu",
        "d_model": d_model,
        "encoder_layers": _layers(model, "encoder"),
        "decoder_layers": _layers(model, "decoder"),
        "encoder_attention_heads": await _scalar(source, model, "encoder/num_heads"),
        "decoder_attention_heads": await _scalar(source, model, "decoder/num_heads"),
        "encoder_ffn_dim": tensors["model.encoder.layers.0.fc1.weight"].shape[0],
        "decoder_ffn_dim": tensors["model.decoder.layers.0.fc1.weight"].shape[0],
        "num_mel_bins": tensors["model.encoder.conv1.weight"].shape[1],
        "max_source_positions": tensors["model.encoder.embed_positions.weight"].shape[0],
        "max_target_positions": tensors["model.decoder.embed_positions.weight"].shape[0],
        "vocab_size": vocab_size,
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "bos_token_id": tokens[END],
        "eos_token_id": tokens[END],
        "pad_token_id": tokens[END],
        "decoder_start_token_id": tokens[START],
    }


def whisper_generation_config(
    ct2_config: dict[str, Any], tokenizer: dict[str, Any], vocab_size: int
) -> dict[str, Any]:
    """generation_config.json in Hugging Face's names, from the config.json and the tokenizer by a CTranslate2 model."""
    tokens = special_tokens(tokenizer)
    multilingual = vocab_size >= MULTILINGUAL_FROM
    config: dict[str, Any] = {
        "is_multilingual": multilingual,
        "bos_token_id": tokens[END],
        "eos_token_id": tokens[END],
        "pad_token_id": tokens[END],
        "decoder_start_token_id": tokens[START],
        "prev_sot_token_id": tokens[PREVIOUS],
        "no_timestamps_token_id": tokens[NO_TIMESTAMPS],
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "return_timestamps": False,
    }
    for ours, theirs in (
        ("alignment_heads", "alignment_heads"),
        ("suppress_tokens", "suppress_ids"),
        ("begin_suppress_tokens", "suppress_ids_begin"),
    ):
        value = ct2_config.get(theirs)
        if not isinstance(value, list):
            raise WeightsError(f"config.json of the CTranslate2 model: wanted a list {theirs}, got {str(value)[:80]}")
        config[ours] = value
    if multilingual:
        config["task_to_id"] = {task: tokens[f"<|{task}|>"] for task in ("transcribe", "translate")}
        languages = set(ct2_config.get("lang_ids", ()))
        config["lang_to_id"] = {text: number for text, number in tokens.items() if number in languages}
    return config


async def convert_whisper(
    source: ByteSource, ct2_config: dict[str, Any], tokenizer: dict[str, Any], folder: str | Path
) -> list[str]:
    """Write model.safetensors, config.json and generation_config.json into `folder` -> their names."""
    folder = Path(folder)
    model = await read_model(source)
    tensors = await convert_tensors(source, model)
    config = await whisper_config(source, model, tensors, tokenizer)
    generation_config = whisper_generation_config(ct2_config, tokenizer, config["vocab_size"])
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "model.safetensors", tensors, {"format": "pt"})
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", generation_config)
    return ["config.json", "generation_config.json", "model.safetensors"]


def main(source: str, target: str) -> None:
    """A folder with model.bin, config.json and tokenizer.json -> a checkpoint folder, tokenizer included."""
    sources, folder = Path(source), Path(target)
    files = {name: parse_json((sources / name).read_bytes(), name) for name in ("config.json", "tokenizer.json")}
    model = FileSource(sources / "model.bin")
    asyncio.run(convert_whisper(model, files["config.json"], files["tokenizer.json"], folder))
    shutil.copyfile(sources / "tokenizer.json", folder / "tokenizer.json")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python -m {__spec__.name} FOLDER_OF_SOURCES CHECKPOINT_FOLDER")
    main(*sys.argv[1:])
