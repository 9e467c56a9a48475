"""A llama checkpoint that was read (llama.py) -> files of another kind: GGUF, a folder in Hugging Face's layout, llama2.c.

Tensors go through one after the other, some rows at a time. Where the type stays, bytes are copied; rows of the query and key
projections are put into the order in which the target turns them by positions.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from candlewick.dtypes import DTYPES, n_bytes
from candlewick.options import OptionError
from candlewick.weights import gguf_writer, llama2c, safetensors
from candlewick.weights.convert.llama import BASE, EPSILON, LLAMA2C, LLAMA2C_OUTER, ROPE_FACTORS, LlamaFiles, to_gguf_name
from candlewick.weights.load import Checkpoint, decode
from candlewick.weights.manifest import write_json
from candlewick.weights.packing import ENCODE, quantise
from candlewick.weights.safetensors import TensorInfo
from candlewick.weights.source import WeightsError

FLOATS = ("f32", "f16", "bf16")
TYPES = (*FLOATS, *ENCODE)  # that can be asked for
CHUNK = 16 << 20  # bytes of a tensor read at a time
TABLES = ("model.embed_tokens.weight", "lm_head.weight")
IN_TABLES = {"q4_0": "q8_0", "q4_1": "q8_0", "q5_0": "q8_0", "q5_1": "q8_0", "q4_k": "q6_k"}  # they take packing worse
SHORT_ROWS = {"q4_k": "q5_0", "q6_k": "q8_0"}  # for rows that are no whole number of 256, as in llama.cpp
FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q4_k": 14, "q6_k": 18, "bf16": 32}
GROUP = 64  # numbers that share a scale in llama2.c's int8 files, or a half of it, and so on

Progress = Callable[[int, int], None]  # bytes written, bytes in all
Part = tuple[Callable[[], AsyncIterator[bytes]], int]  # of a file: makes its bytes; zeros that follow them


@dataclass(frozen=True)
class Row:
    """One tensor of the target: where it comes from, and what is done to it."""

    name: str
    dtype: str
    info: TensorInfo
    head_dim: int = 0  # rows are put into another order within heads so wide
    to_pairs: bool = False  # halves -> neighbours, or the other way

    @property
    def size(self) -> int:
        return n_bytes(self.dtype, math.prod(self.info.shape))


def plan(files: LlamaFiles, pairs: bool, dtype: Callable[[TensorInfo], str]) -> list[Row]:
    """The tensors under the names they have here, for a target that turns `pairs` of neighbours, or halves.

    Left out: rotary frequencies that some files keep, and a second copy of the embeddings as the output matrix.
    """
    turn = files.config.get("rope_pairs", False) != pairs
    rows = []
    for name, info in files.tensors.items():
        if name.endswith(".inv_freq") or (name == TABLES[1] and files.config.get("tie_word_embeddings")):
            continue
        turned = turn and name.split(".")[-2] in ("q_proj", "k_proj")
        rows.append(Row(name, dtype(info), info, head_dim(files.config) if turned else 0, pairs))
    return rows


def head_dim(config: Mapping[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


async def pieces(checkpoint: Checkpoint, row: Row) -> AsyncIterator[bytes]:
    """The bytes of one tensor of the target."""
    info = row.info
    width = info.shape[-1] if len(info.shape) > 1 else 1
    n_rows = math.prod(info.shape) // width
    row_bytes = n_bytes(info.dtype, width)
    step = max(1, CHUNK // row_bytes)
    order = _order(row)
    if order is not None:
        step = max(len(order), step // len(order) * len(order))
    source = checkpoint.source(info.file)
    for at in range(0, n_rows, step):
        n = min(step, n_rows - at)
        data: Any = await source.read(info.start + at * row_bytes, info.start + (at + n) * row_bytes)
        if row.dtype == info.dtype:
            values = np.frombuffer(data, np.uint8).reshape(n, row_bytes)
        else:
            values = decode(TensorInfo(info.name, info.dtype, (n, width), info.file, 0, len(data)), data)
        if order is not None:
            values = values.reshape(-1, len(order), values.shape[1])[:, order].reshape(values.shape)
        try:
            data = values.tobytes() if row.dtype == info.dtype else quantise(values, row.dtype)
        except WeightsError as error:
            raise WeightsError(f"tensor {row.name}: {error}") from error
        yield data


def _order(row: Row) -> np.ndarray | None:
    """Which row of a head comes first, second ... in the target"""
    if not row.head_dim:
        return None
    if row.info.shape[0] % row.head_dim:
        raise WeightsError(f"tensor {row.name!r} has {row.info.shape[0]} rows, which are no whole heads of {row.head_dim}")
    rows = np.arange(row.head_dim)
    return (rows.reshape(2, -1) if row.to_pairs else rows.reshape(-1, 2)).T.ravel()


async def _write(path: Path, head: bytes, parts: Iterable[Part], total: int, on_progress: Progress) -> None:
    """A file of a header and of parts, each followed by so many zeros; there under its name only when it is complete."""
    path = path.resolve()  # a link keeps pointing at what is written
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("wb") as file:
            file.write(head)
            for part, pad in parts:
                async for piece in part():
                    file.write(piece)
                    on_progress(file.tell(), total)
                file.write(bytes(pad))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


# ---- GGUF -------------------------------------------------------------------------------------------------------


async def write_gguf(
    checkpoint: Checkpoint, files: LlamaFiles, path: Path, dtype: str | None, tokenizer: Mapping[str, Any],
    on_progress: Progress,
) -> None:
    """dtype: of matrices, None for what they have; tokenizer: the metadata tokenizer.ggml.*"""
    architecture = "qwen2" if files.config.get("model_type") == "qwen2" else "llama"
    metadata = gguf_metadata(files, architecture, tokenizer)
    if dtype is not None:
        metadata["general.file_type"] = FILE_TYPES[dtype]
    if any(DTYPES[info.dtype].kind == "quant" for info in files.tensors.values()) or dtype not in (None, *FLOATS):
        metadata["general.quantization_version"] = 2
    rows = plan(files, architecture == "llama", lambda info: gguf_dtype(info, dtype))
    entries = [(to_gguf_name(row.name), row.dtype, row.info.shape) for row in rows]
    factors = rope_factors(files.config)
    alignment = int(metadata.get("general.alignment", gguf_writer.ALIGNMENT))
    parts: list[Part] = [(partial(pieces, checkpoint, row), len(gguf_writer.padding(row.size, alignment))) for row in rows]
    if factors is not None:
        entries.append((ROPE_FACTORS, "f32", factors.shape))
        parts.append((partial(_made, factors.astype("<f4").tobytes()), 0))
    head = gguf_writer.header(metadata, entries)
    await _write(path, head, parts, len(head) + sum(row.size for row in rows), on_progress)


async def _made(data: bytes) -> AsyncIterator[bytes]:
    yield data


def gguf_dtype(info: TensorInfo, wanted: str | None) -> str:
    """Vectors are float32; matrices what is wanted, as far as their rows allow, and the two tables a little more."""
    if len(info.shape) < 2:
        return "f32"
    if wanted is None:
        return info.dtype if DTYPES[info.dtype].kind == "quant" or info.dtype in FLOATS else "f32"
    dtype = IN_TABLES.get(wanted, wanted) if info.name in TABLES else wanted
    if info.shape[-1] % DTYPES[dtype].block:
        dtype = SHORT_ROWS.get(dtype, dtype)
    return "f16" if info.shape[-1] % DTYPES[dtype].block else dtype


def gguf_metadata(files: LlamaFiles, architecture: str, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """What a GGUF file says of a model: what the source said if it was one, else its configuration in GGUF's names."""
    config = files.config
    if files.metadata:
        return {key: value for key, value in files.metadata.items() if key != "general.alignment"}
    d = head_dim(config)
    keys: dict[str, Any] = {
        "context_length": config["max_position_embeddings"], "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"], "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config.get("num_key_value_heads") or config["num_attention_heads"],
        "attention.layer_norm_rms_epsilon": float(config.get("rms_norm_eps", 1e-6)),
        "rope.freq_base": float(config.get("rope_theta", BASE)), "rope.dimension_count": d,
        "vocab_size": config["vocab_size"],
    }  # fmt: skip
    if d * config["num_attention_heads"] != config["hidden_size"]:
        keys |= {"attention.key_length": d, "attention.value_length": d}
    if config.get("sliding_window"):
        keys["attention.sliding_window"] = config["sliding_window"]
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling["factor"])}
    elif kind not in ("default", "llama3"):
        raise WeightsError(f"{files.name}: rope_scaling {kind!r} cannot be written; default, linear and llama3 can")
    out: dict[str, Any] = {"general.architecture": architecture, "general.type": "model", "general.name": files.name}
    out |= {f"{architecture}.{key}": value for key, value in keys.items()} | dict(tokenizer)
    if files.chat_template is not None:
        out["tokenizer.chat_template"] = files.chat_template
    return out


def rope_factors(config: Mapping[str, Any]) -> np.ndarray | None:
    """What GGUF keeps as a tensor for Llama 3's scaling: the divisor of each frequency, float32 (head_dim / 2,)."""
    if config.get("rope_factors") is not None:
        return np.asarray(config["rope_factors"], np.float32)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) != "llama3":
        return None
    d = head_dim(config)
    frequency = float(config.get("rope_theta", BASE)) ** -(np.arange(0, d, 2) / d)
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * np.pi)  # within a text of training
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / (keep + (1 - keep) / scaling["factor"])).astype(np.float32)


# ---- folders in the layout of Hugging Face ----------------------------------------------------------------------


async def write_folder(
    checkpoint: Checkpoint, files: LlamaFiles, folder: Path, dtype: str | None, tokenizer: Mapping[str, Any],
    on_progress: Progress,
) -> None:
    """A new folder, there under its name only when it is complete. dtype: f32, f16, bf16, or None for what tensors have (packed
    ones become f32). tokenizer: JSON files by name."""
    if dtype not in (None, *FLOATS):
        raise OptionError("{dtype} {given}: folders (safetensors) hold {floats} here; packed weights go into GGUF", given=dtype,
                          floats=", ".join(FLOATS))
    config = folder_config(files, dtype)
    rows = plan(files, False, lambda info: dtype or (info.dtype if info.dtype in FLOATS else "f32"))
    rows.sort(key=lambda row: (-DTYPES[row.dtype].bytes, row.name))
    head = safetensors.header([(row.name, row.dtype, row.info.shape) for row in rows], {"format": "pt"})
    unfinished = folder.with_name(folder.name + ".part")
    unfinished.mkdir()
    try:
        await _write(unfinished / "model.safetensors", head, [(partial(pieces, checkpoint, row), 0) for row in rows],
                     len(head) + sum(row.size for row in rows), on_progress)
        for name, content in {"config.json": config, **tokenizer}.items():
            write_json(unfinished / name, content)
        if folder.is_dir():
            folder.rmdir()  # an empty one
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def folder_config(files: LlamaFiles, dtype: str | None) -> dict[str, Any]:
    """A config.json. Raises WeightsError for what it cannot say."""
    config = {key: value for key, value in files.config.items() if key not in ("rope_pairs", "rope_factors")}
    factors = files.config.get("rope_factors")
    if factors is not None:
        config["rope_scaling"] = llama3_scaling(files.config, factors)
    kind = config["model_type"]
    config.setdefault("architectures", [{"qwen2": "Qwen2", "mistral": "Mistral"}.get(kind, "Llama") + "ForCausalLM"])
    config.setdefault("hidden_act", "silu")
    if kind == "llama":  # Mistral and Qwen2 have a rule of their own
        config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in files.tensors
    if dtype is not None or "torch_dtype" not in config:
        config["torch_dtype"] = {"f16": "float16", "bf16": "bfloat16"}.get(dtype or "f32", "float32")
    return config


def llama3_scaling(config: Mapping[str, Any], factors: Iterable[float]) -> dict[str, Any]:
    """Divisors of frequencies -> the settings of Llama 3's scaling that give them. Raises WeightsError if none does."""
    wanted = np.asarray(list(factors), np.float32)
    for trained in (8192, config["max_position_embeddings"], 32):
        scaling = {"rope_type": "llama3", "factor": float(wanted.max()), "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": trained}
        found = rope_factors({**config, "rope_factors": None, "rope_scaling": scaling})
        if found is not None and found.shape == wanted.shape and np.allclose(found, wanted, rtol=1e-4):
            return scaling
    raise WeightsError("the file's own factors of rotary frequencies (rope_freqs) are not those of Llama 3's scaling; a "
                       "config.json cannot say them. Convert to GGUF instead")


# ---- llama2.c ---------------------------------------------------------------------------------------------------


async def write_llama2c(
    checkpoint: Checkpoint, files: LlamaFiles, path: Path, dtype: str | None, tokenizer: bytes | None, on_progress: Progress
) -> None:
    """dtype: f32 (version 0, the default) or q8_0 (version 2, int8). tokenizer: a tokenizer.bin to be put beside it."""
    sizes = llama2c_sizes(files, dtype)
    ours = {f"layers.{i}.{theirs}.weight": f"model.layers.{i}.{name}.weight"
            for i in range(sizes.n_layers) for theirs, name in LLAMA2C.items()}
    ours |= {f"{theirs}.weight": f"{name}.weight" for theirs, name in LLAMA2C_OUTER.items()}
    rows = {row.name: row for row in plan(files, True, lambda info: "f32")}
    wanted = [name for name, _ in llama2c.order(sizes) if name != "rotary"]
    missing = [ours[name] for name in wanted if ours[name] not in rows]
    left = sorted(rows.keys() - {ours[name] for name in wanted})
    if missing or left:
        raise WeightsError(f"{files.name}: does not fit into a llama2.c file: missing {missing[:4]}, no place for {left[:4]}")

    async def encoded(name: str, shape: tuple[int, ...]) -> AsyncIterator[bytes]:
        if name == "rotary":
            yield llama2c.rotary(sizes).tobytes()
            return
        row = rows[ours[name]]
        if tuple(row.info.shape) != shape:
            raise WeightsError(f"{files.name}: {row.name} is {row.info.shape}, llama2.c wants {shape}")
        data = b"".join([piece async for piece in pieces(checkpoint, row)])
        yield llama2c.encode(sizes, np.frombuffer(data, "<f4").reshape(shape))

    parts = [(partial(encoded, name, shape), 0) for name, shape in llama2c.order(sizes)]
    await _write(path, llama2c.header(sizes), parts, llama2c.total_bytes(sizes), on_progress)
    if tokenizer is not None:
        path.with_name("tokenizer.bin").write_bytes(tokenizer)


def llama2c_sizes(files: LlamaFiles, dtype: str | None) -> llama2c.Sizes:
    """The header of a llama2.c file. Raises WeightsError for a model that llama2.c's program would run wrongly."""
    config = files.config
    if dtype not in (None, "f32", "q8_0"):
        raise OptionError("{dtype} {given}: llama2.c files hold f32 or int8 (q8_0); give one of these, or write a .gguf",
                          given=dtype)
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    scaling = config.get("rope_scaling") or {}
    scaled = config.get("rope_factors") is not None or scaling.get("rope_type", scaling.get("type", "default")) != "default"
    wrong = [words for words, bad in (
        (f"rope_theta {config.get('rope_theta')} (it has {BASE:.0f})", float(config.get("rope_theta", BASE)) != BASE),
        (f"rms_norm_eps {config.get('rms_norm_eps')} (it has {EPSILON})",
         not math.isclose(float(config.get("rms_norm_eps", 1e-6)), EPSILON, rel_tol=1e-4)),
        ("scaled rotary positions", scaled),
        (f"heads {head_dim(config)} wide (it has {dim // heads})", head_dim(config) * heads != dim),
        ("biases", any(name.endswith(".bias") for name in files.tensors)),
    ) if bad]
    if wrong:
        raise WeightsError(f"{files.name}: llama2.c knows no {', no '.join(wrong)}; convert to GGUF instead")
    group = math.gcd(dim, GROUP) if dtype == "q8_0" else 0
    return llama2c.Sizes(dim, config["intermediate_size"], config["num_hidden_layers"], heads,
                         config.get("num_key_value_heads") or heads, config["vocab_size"], config["max_position_embeddings"],
                         files.config.get("tie_word_embeddings") or TABLES[1] not in files.tensors, 2 if group else 0, group)
