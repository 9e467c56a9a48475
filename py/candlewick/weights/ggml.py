"""whisper.cpp's model files: sizes, mel filters, a vocabulary, then named tensors to the end of the file.

Format: github.com/ggml-org/whisper.cpp, `models/convert-pt-to-ggml.py` and `whisper_model_load`; little endian. The magic
number, eleven int32 (SIZES), int32 bands and bins of the mel filters and their float32, int32 number of words and for each
its int32 length and bytes. A tensor: int32 rank, length of its name, type; the dimensions, the last one first; the name; the
data, not aligned. Types are numbered as in GGUF. (whisper.cpp 1.8.5 reads what is written here, and hears the same text and
times in it as we do, with f16, q8_0, q5_1 and q4_0.) Headers alone are read; every length is checked against the file's size
before anything is allocated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from candlewick.dtypes import DTYPES, FROM_GGML
from candlewick.weights.packing import quantise
from candlewick.weights.safetensors import TensorInfo
from candlewick.weights.source import ByteSource, WeightsError, looks_like

MAGIC = b"lmgg"  # 0x67676d6c
SIZES = ("n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer", "n_text_ctx", "n_text_state",
         "n_text_head", "n_text_layer", "n_mels", "ftype")  # fmt: skip
MOST = {"n_audio_layer": 256, "n_text_layer": 256, "n_mels": 1024, "n_vocab": 1 << 22, "ftype": 1 << 16}  # of others: 2^20
N_BINS = 201  # frequencies that a mel band weighs
MAX_RANK = 4
MAX_NAME = 256  # bytes; the longest in use has 45
MAX_TENSORS = 1 << 14  # large-v3 has 1,259
QUANT_VERSION = 2  # of the layout of quantised blocks: thousands of ftype
WINDOW = 1 << 13  # bytes read at once for a tensor's header
CHUNK = 1 << 20  # bytes of the vocabulary read at once
TYPES = {number: name for number, name in FROM_GGML.items() if name in ("f32", "f16") or DTYPES[name].kind == "quant"}


@dataclass(frozen=True)
class Ggml:
    """What a file says of itself. words: the pieces of the vocabulary as bytes, by their ids."""

    sizes: dict[str, int]
    words: list[bytes]
    tensors: dict[str, TensorInfo]


async def is_ggml(source: ByteSource) -> bool:
    """Whether a file begins as whisper.cpp's do (and as the oldest files of language models did)."""
    return source.size >= 4 and await source.read(0, 4) == MAGIC


async def read_header(source: ByteSource) -> Ggml:
    """Sizes, vocabulary and places of all tensors. Raises WeightsError that names the file and what is wrong where."""
    sizes, at = await read_sizes(source)
    words, at = await _words(source, at, sizes)
    return Ggml(sizes, words, await _tensors(source, at, sizes))


async def read_sizes(source: ByteSource) -> tuple[dict[str, int], int]:
    """The numbers that the file begins with -> the same by name, and where the vocabulary begins."""
    name, begin = source.name, 4 + 4 * len(SIZES)
    head = await source.read(0, min(source.size, begin + 8))
    if head[:4] != MAGIC:
        raise WeightsError(f"{name}: wanted a whisper.cpp model, which begins with 'lmgg'; it looks like {looks_like(head)}")
    if len(head) < begin + 8:
        raise WeightsError(f"{name}: the sizes take {begin + 8} bytes, the file has {source.size}; it is cut short")
    numbers = struct.unpack_from(f"<{len(SIZES) + 2}i", head, 4)
    sizes, (n_mels, n_bins) = dict(zip(SIZES, numbers)), numbers[-2:]
    wrong = [f"{key} {value}" for key, value in sizes.items()
             if not (0 if key == "ftype" else 1) <= value <= MOST.get(key, 1 << 20)]
    if not wrong and sizes["n_audio_state"] != sizes["n_text_state"]:
        wrong = [f"n_audio_state {sizes['n_audio_state']} and n_text_state {sizes['n_text_state']}"]
    if not wrong and (n_mels, n_bins) != (sizes["n_mels"], N_BINS):
        wrong = [f"mel filters of {n_mels} bands and {n_bins} bins where n_mels is {sizes['n_mels']}"]
    if wrong:
        raise WeightsError(f"{name}: no whisper.cpp model: its header would say {', '.join(wrong)}. It is damaged, or another "
                           "kind of ggml file; language models of this age must be converted to GGUF first")
    if sizes["ftype"] % 1000 > 1 and sizes["ftype"] // 1000 != QUANT_VERSION:
        raise WeightsError(f"{name}: its blocks are quantised in layout {sizes['ftype'] // 1000}, only {QUANT_VERSION} is "
                           "read; take a newer file of this model")
    at = begin + 8 + 4 * n_mels * n_bins
    if at + 4 > source.size:
        raise WeightsError(f"{name}: the mel filters end at byte {at}, the file at {source.size}; it is cut short")
    return sizes, at


async def _words(source: ByteSource, at: int, sizes: Mapping[str, int]) -> tuple[list[bytes], int]:
    """The vocabulary at byte `at` -> its pieces, and where the tensors begin."""
    name = source.name
    n = int.from_bytes(await source.read(at, at + 4), "little", signed=True)
    at += 4
    if not 0 < n <= sizes["n_vocab"] or 4 * n > source.size - at:
        raise WeightsError(f"{name}: the vocabulary at byte {at - 4} would have {n} words; the model has {sizes['n_vocab']}, "
                           f"and the file {source.size - at} more bytes; it is damaged")
    words: list[bytes] = []
    data, start, here = b"", at, 0  # `data` are the bytes from `start` on
    while len(words) < n:
        end = here + 4 + int.from_bytes(data[here : here + 4], "little") if here + 4 <= len(data) else here + 4
        if end <= len(data):
            words.append(data[here + 4 : end])
            here = end
            continue
        start, here, end = start + here, 0, end - here
        if start + end > source.size:
            raise WeightsError(f"{name}: word {len(words)} of the vocabulary, at byte {start}, ends at {start + end}, the file "
                               f"at {source.size}; it is damaged or cut short")
        data = await source.read(start, min(source.size, start + max(end, CHUNK)))
    return words, start + here


async def _tensors(source: ByteSource, at: int, sizes: Mapping[str, int]) -> dict[str, TensorInfo]:
    """All tensors from byte `at` to the end of the file."""
    tensors: dict[str, TensorInfo] = {}
    data, start = b"", at
    while at < source.size:
        if not start <= at <= start + len(data) - 12 - 4 * MAX_RANK - MAX_NAME:
            data, start = await source.read(at, min(source.size, at + WINDOW)), at
        info = _tensor(source, data, at - start, at)
        if info.name in tensors:
            raise WeightsError(f"{source.name}: tensor {info.name!r} at byte {at} stands twice")
        if len(tensors) == MAX_TENSORS:
            raise WeightsError(f"{source.name}: more than {MAX_TENSORS} tensors; it is damaged")
        tensors[info.name] = info
        at = info.end
    return tensors


def _tensor(source: ByteSource, data: bytes, here: int, at: int) -> TensorInfo:
    """The tensor whose header is data[here:], at byte `at` of the file."""
    file = source.name
    if here + 12 > len(data):
        raise WeightsError(f"{file}: {source.size - at} bytes at byte {at} are too few for a tensor; it is cut short")
    rank, length, kind = struct.unpack_from("<3i", data, here)
    if not (1 <= rank <= MAX_RANK and 1 <= length <= MAX_NAME):
        raise WeightsError(f"{file}: at byte {at} wanted a tensor of 1 to {MAX_RANK} dimensions and a name of 1 to {MAX_NAME} "
                           f"bytes, got {rank} and {length}; it is damaged")
    begin = here + 12 + 4 * rank + length
    if begin > len(data):
        raise WeightsError(f"{file}: the header of the tensor at byte {at} ends after the file; it is cut short")
    shape = struct.unpack_from(f"<{rank}i", data, here + 12)[::-1]
    text = data[begin - length : begin]
    name = text.decode("ascii", "backslashreplace")
    where = f"{file}: tensor {name[:80]!r} at byte {at}"
    if not text.isascii() or not name.isprintable():
        raise WeightsError(f"{where}: a name has printable ASCII letters only; it is damaged")
    if kind not in TYPES:
        raise WeightsError(f"{where} has type {kind}; read are {', '.join(f'{number} ({t})' for number, t in TYPES.items())}")
    dtype = DTYPES[TYPES[kind]]
    if min(shape) < 1 or shape[-1] % dtype.block:
        blocks = f", which packs {dtype.block} neighbours together" if dtype.block > 1 else ""
        raise WeightsError(f"{where}: a shape of {list(shape)} is not possible for {dtype.name}{blocks}; it is damaged")
    start = at + begin - here
    end = start + math.prod(shape) // dtype.block * dtype.bytes
    if end > source.size:
        raise WeightsError(f"{where}: {dtype.name} {list(shape)} ends at byte {end}, the file at {source.size}; it is cut "
                           "short")
    return TensorInfo(name, dtype.name, shape, file, start, end)


# ---- writing ----------------------------------------------------------------------------------------------------

PLAIN = ("encoder.positional_embedding", "decoder.positional_embedding")  # whisper.cpp keeps these in float32


def pieces(sizes: Mapping[str, int], mel: np.ndarray, words: list[bytes], tensors: Mapping[str, np.ndarray], dtype: str
           ) -> Iterator[bytes]:
    """The bytes of a file, piece by piece, as whisper.cpp's own tools write it.

    mel (n_mels, N_BINS) float32; tensors by whisper.cpp's names; dtype "f32", "f16" or a quantised type, which matrices of
    whole blocks get while kernels of convolutions stay f16, and vectors and positions f32. Raises WeightsError for numbers
    that the type cannot hold.
    """
    number = DTYPES[dtype].ggml
    ftype = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9}.get(dtype)
    if number is None or ftype is None:
        raise WeightsError(f"whisper.cpp files hold f32, f16 and q4_0 to q8_0, not {dtype}")
    version = QUANT_VERSION * 1000 if DTYPES[dtype].kind == "quant" else 0
    yield MAGIC + struct.pack(f"<{len(SIZES)}i", *(sizes[key] for key in SIZES[:-1]), ftype + version)
    yield struct.pack("<2i", *mel.shape) + np.ascontiguousarray(mel, "<f4").tobytes()
    yield struct.pack("<i", len(words)) + b"".join(len(word).to_bytes(4, "little") + word for word in words)
    for name, array in tensors.items():
        its = dtype if array.ndim > 1 and name not in PLAIN else "f32"
        if DTYPES[its].block > 1 and (array.ndim != 2 or array.shape[1] % DTYPES[its].block):
            its = "f16"
        if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
            array = array.reshape(-1, 1)
        text = name.encode()
        yield struct.pack("<3i", array.ndim, len(text), DTYPES[its].ggml or 0)
        yield struct.pack(f"<{array.ndim}i", *array.shape[::-1]) + text
        yield quantise(array, its)
