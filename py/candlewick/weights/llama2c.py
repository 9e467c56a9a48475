"""llama2.c's checkpoints: a header of seven numbers, then all tensors in a fixed order without names.

Format: github.com/karpathy/llama2.c, `export.py` and the loaders of `run.c` and `runq.c`.
Version 0 has no magic: seven int32, float32 tensors, two rotary tables (skipped here); a negative vocabulary size says that
the output matrix is a tensor of its own. Version 1: a header of 256 bytes, float32 tensors in another order. Version 2: as 1,
but matrices are int8 with a float32 scale for each group. The file's size must be just what the header says.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from candlewick.weights.safetensors import TensorInfo
from candlewick.weights.source import ByteSource, WeightsError, check_range, looks_like

MAGIC = 0x616B3432
NAMES = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
HEADER = 256  # bytes, of versions 1 and 2
MOST = {"n_layers": 1 << 12, "n_heads": 1 << 14, "n_kv_heads": 1 << 14}  # of the others: 2^24
NORMS = ("attention_norm", "ffn_norm")
MATRICES = ("attention.wq", "attention.wk", "attention.wv", "attention.wo",
            "feed_forward.w1", "feed_forward.w2", "feed_forward.w3")  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """The header: llama2.c's own words."""

    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    max_seq_len: int
    shared: bool = True  # the output matrix is the table of embeddings
    version: int = 0
    group_size: int = 0  # numbers that share a scale; version 2

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads

    def shape(self, part: str) -> tuple[int, ...]:
        """Shape of a tensor by its last name."""
        kv_dim = self.n_kv_heads * self.head_dim
        return {
            "attention_norm": (self.dim,), "ffn_norm": (self.dim,), "norm": (self.dim,),
            "tok_embeddings": (self.vocab_size, self.dim), "output": (self.vocab_size, self.dim),
            "attention.wq": (self.dim, self.dim), "attention.wk": (kv_dim, self.dim), "attention.wv": (kv_dim, self.dim),
            "attention.wo": (self.dim, self.dim), "feed_forward.w1": (self.hidden_dim, self.dim),
            "feed_forward.w2": (self.dim, self.hidden_dim), "feed_forward.w3": (self.hidden_dim, self.dim),
        }[part]  # fmt: skip


@dataclass(frozen=True)
class Llama2c:
    """A header, and where each tensor lies under the name it has in llama2.c's own training code."""

    sizes: Sizes
    tensors: dict[str, TensorInfo]
    sources: dict[str, ByteSource] = field(default_factory=dict)  # what `tensors` names beside the file: int8 matrices


def order(sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes in the order of the file; `rotary` is what version 0 keeps and nobody needs."""

    def layers(part: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        for i in range(sizes.n_layers):
            yield f"layers.{i}.{part}.weight", sizes.shape(part)

    def single(part: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{part}.weight", sizes.shape(part)

    if sizes.version == 0:
        yield from single("tok_embeddings")
        for part in ("attention_norm", *MATRICES[:4], "ffn_norm", *MATRICES[4:]):
            yield from layers(part)
        yield from single("norm")
        yield "rotary", (2, sizes.max_seq_len, sizes.head_dim // 2)
    else:
        for part in NORMS:
            yield from layers(part)
        yield from single("norm")
        yield from single("tok_embeddings")
        for part in MATRICES:
            yield from layers(part)
    if not sizes.shared:
        yield from single("output")


def n_bytes(sizes: Sizes, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in the file."""
    count = math.prod(shape)
    if sizes.version == 2 and len(shape) == 2:
        return count + count // sizes.group_size * 4
    return count * 4


def total_bytes(sizes: Sizes) -> int:
    """Bytes of the whole file, from the header alone."""
    start = HEADER if sizes.version else 4 * len(NAMES)
    return start + sum(n_bytes(sizes, shape) for _, shape in order(sizes))


async def read_sizes(source: ByteSource) -> Sizes:
    """The header. Raises WeightsError for one that cannot be."""
    name = source.name
    head = await source.read(0, min(source.size, 64))
    if len(head) < 4 * len(NAMES):
        raise WeightsError(f"{name}: a llama2.c file has at least {4 * len(NAMES)} bytes, this one has {source.size}; it looks "
                           f"like {looks_like(head)}")
    version, at, shared, group = 0, 0, None, 0
    if struct.unpack_from("<I", head)[0] == MAGIC:
        version, at = struct.unpack_from("<i", head, 4)[0], 8
        if version not in (1, 2):
            raise WeightsError(f"{name}: llama2.c version {version} is not known; known are 0, 1 and 2")
        if source.size < HEADER:
            raise WeightsError(f"{name}: the header has {HEADER} bytes, the file {source.size}; it is cut short")
        shared = head[at + 28]
        if version == 2:
            (group,) = struct.unpack_from("<i", head, at + 29)
    values = dict(zip(NAMES, struct.unpack_from("<7i", head, at)))
    if shared is None:
        shared, values["vocab_size"] = values["vocab_size"] > 0, abs(values["vocab_size"])
    wrong = [f"{key} {value}" for key, value in values.items() if not 0 < value <= MOST.get(key, 1 << 24)]
    if not wrong and (values["dim"] % values["n_heads"] or values["n_heads"] % values["n_kv_heads"]
                      or values["dim"] // values["n_heads"] % 2):
        wrong = [f"dim {values['dim']} in {values['n_heads']} heads of {values['n_kv_heads']} keys and values"]
    if shared not in (0, 1):
        wrong.append(f"shared_classifier {shared}")
    if not wrong and version == 2 and (group <= 0 or values["dim"] % group):
        wrong.append(f"group_size {group}")
    if wrong:
        looks = looks_like(head)
        raise WeightsError(f"{name}: not a llama2.c file: its header would say {', '.join(wrong)}"
                           + ("" if version or looks.startswith("nothing known") else f"; it looks like {looks}"))
    return Sizes(**values, shared=bool(shared), version=version, group_size=group)


async def read_header(source: ByteSource) -> Llama2c:
    """Header and places of a llama2.c file. Raises WeightsError unless the file's size is just what the header says."""
    sizes = await read_sizes(source)
    wanted = total_bytes(sizes)
    if wanted != source.size:
        what = "cut short" if source.size < wanted else "too long"
        says = ", ".join(f"{key} {getattr(sizes, key)}" for key in NAMES)
        raise WeightsError(f"{source.name}: a llama2.c file of version {sizes.version} with {says} takes {wanted} bytes, this "
                           f"one has {source.size}; it is {what}, or no llama2.c file")
    tensors: dict[str, TensorInfo] = {}
    sources: dict[str, ByteSource] = {}
    at = HEADER if sizes.version else 4 * len(NAMES)
    for name, shape in order(sizes):
        size = n_bytes(sizes, shape)
        if sizes.version == 2 and len(shape) == 2:
            grouped = Grouped(source, f"{source.name}#{name}", at, math.prod(shape), sizes.group_size)
            sources[grouped.name] = grouped
            tensors[name] = TensorInfo(name, "f32", shape, grouped.name, 0, grouped.size)
        elif name != "rotary":
            tensors[name] = TensorInfo(name, "f32", shape, source.name, at, at + size)
        at += size
    return Llama2c(sizes, tensors, sources)


class Grouped:
    """int8 numbers with a float32 scale for each group, as the float32 numbers that they stand for."""

    def __init__(self, source: ByteSource, name: str, at: int, count: int, group: int):
        self.name, self.size = name, 4 * count
        self._source, self._at, self._count, self._group = source, at, count, group

    async def read(self, start: int, end: int) -> bytes:
        check_range(self.name, self.size, start, end)
        first, last = start // 4 // self._group, -(-end // (4 * self._group))  # whole groups
        a, b = self._at + first * self._group, self._at + last * self._group
        scales = self._at + self._count
        q = np.frombuffer(await self._source.read(a, b), np.int8).reshape(-1, self._group)
        s = np.frombuffer(await self._source.read(scales + 4 * first, scales + 4 * last), "<f4")
        with np.errstate(invalid="ignore", over="ignore"):
            values = (q * s[:, None]).tobytes()
        skip = start - 4 * first * self._group
        return values[skip : skip + end - start]


# ---- writing ----------------------------------------------------------------------------------------------------


def header(sizes: Sizes) -> bytes:
    """The bytes before the first tensor."""
    numbers = [getattr(sizes, name) for name in NAMES]
    if sizes.version == 0:
        numbers[NAMES.index("vocab_size")] *= 1 if sizes.shared else -1
        return struct.pack("<7i", *numbers)
    head = struct.pack("<Ii7iB", MAGIC, sizes.version, *numbers, sizes.shared)
    if sizes.version == 2:
        head += struct.pack("<i", sizes.group_size)
    return head.ljust(HEADER, b"\0")


def encode(sizes: Sizes, values: np.ndarray) -> bytes:
    """Bytes of one tensor of the file: float32, or in version 2 int8 and then the scales of a matrix."""
    values = np.ascontiguousarray(values, "<f4")
    if sizes.version != 2 or values.ndim != 2:
        return values.tobytes()
    groups = values.reshape(-1, sizes.group_size)
    scale = np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)
    if not np.isfinite(scale).all():
        raise WeightsError("int8: cannot pack numbers that are infinite or no numbers (NaN); the weights are damaged")
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(scale > 0, np.rint(groups / scale), 0)
    return np.clip(q, -127, 127).astype(np.int8).tobytes() + scale.astype("<f4").tobytes()


def rotary(sizes: Sizes) -> np.ndarray:
    """What version 0 keeps under `rotary`: cosines, then sines, of base 10000."""
    frequency = 1.0 / 10000 ** (np.arange(0, sizes.head_dim, 2, dtype=np.float32) / sizes.head_dim)
    angles = np.outer(np.arange(sizes.max_seq_len), frequency)
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
