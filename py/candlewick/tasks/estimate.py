"""What a checkpoint is and what it will take, from headers alone: told before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from candlewick.dtypes import DTYPES
from candlewick.weights.convert.llama import read_llama
from candlewick.weights.convert.whisper import read_whisper
from candlewick.weights.load import Checkpoint
from candlewick.weights.safetensors import TensorInfo

INTERPRETER = 80_000_000  # bytes: Python with NumPy and this package takes 55 MB when it has started, and more as it works
PICTURES = 190_000_000  # what a picture of 1024 x 1024 takes on its way, and the embedding, measured
DEFAULT_CAPACITY = 2048  # tokens of a conversation for which a language model's need is told


async def estimate(checkpoint: Checkpoint, family: str) -> dict[str, Any]:
    """-> family, bytes of the files, parameters, dtypes (type: parameters of it), memory in bytes on the wasm executor.

    Raises WeightsError for files that are damaged or incomplete as far as their headers tell.
    """
    count = {"whisper": _whisper, "llama": _llama, "sam": _sam}[family]
    dtypes, weights, rest = await count(checkpoint)
    size = sum(source.size for name, source in checkpoint.files.items() if "#" not in name)
    return {"family": family, "bytes": size, "parameters": sum(dtypes.values()), "dtypes": dtypes,
            "memory": weights + rest + INTERPRETER}


def _held(infos: Iterable[TensorInfo]) -> tuple[dict[str, int], int]:
    """Parameters of each type, the most common first, and bytes of all in memory."""
    dtypes: dict[str, int] = {}
    total = 0
    for info in infos:
        n = math.prod(info.shape)
        dtypes[info.dtype] = dtypes.get(info.dtype, 0) + n
        row = DTYPES["f32" if info.dtype == "f64" else info.dtype]
        total += n // row.block * row.bytes
    return dict(sorted(dtypes.items(), key=lambda item: -item[1])), total


def _number(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if type(value) is int and 0 < value < 1 << 31 else 0


async def _whisper(checkpoint: Checkpoint) -> tuple[dict[str, int], int, int]:
    files = await read_whisper(checkpoint)
    width, heard, written, layers = (_number(files.config, key) for key in (
        "d_model", "max_source_positions", "max_target_positions", "decoder_layers"))
    caches = 2 * layers * (heard + written) * width + heard * width
    return *_held(files.tensors.values()), 4 * (caches + 8 * heard * width)


async def _llama(checkpoint: Checkpoint) -> tuple[dict[str, int], int, int]:
    files = await read_llama(checkpoint)
    config = files.config
    heads, layers = _number(config, "num_attention_heads"), _number(config, "num_hidden_layers")
    shared = _number(config, "num_key_value_heads") or heads
    width = _number(config, "head_dim") or (_number(config, "hidden_size") // heads if heads else 0)
    room = min(_number(config, "max_position_embeddings"), DEFAULT_CAPACITY)
    return *_held(files.tensors.values()), 4 * 2 * layers * shared * width * room + 64 * 4 * _number(config, "vocab_size")


async def _sam(checkpoint: Checkpoint) -> tuple[dict[str, int], int, int]:
    """Of a PyTorch file only the size is told: its header is a program of its own kind."""
    if any(name.lower().endswith((".pt", ".pth")) for name in checkpoint.files):
        return {}, sum(source.size for source in checkpoint.files.values()), PICTURES
    return *_held((await checkpoint.tensors()).values()), PICTURES
