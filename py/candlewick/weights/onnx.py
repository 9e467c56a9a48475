"""ONNX: the constant tensors of a graph and who reads them. Nothing of it is run.

Format: github.com/onnx/onnx `onnx/onnx.proto`. A message of Protocol Buffers is a run of fields: a number (field * 8 + wire
type), then a varint (0), 8 bytes (1), a length and that many bytes (2) or 4 bytes (5). Read here: ModelProto.graph 7;
GraphProto.node 1, .initializer 5; NodeProto.input 1, .output 2, .name 3, .op_type 4, .attribute 5; AttributeProto.name 1,
.t 5; TensorProto.dims 1, .data_type 2, .float_data 4, .int32_data 5, .int64_data 7, .name 8, .raw_data 9, .double_data 10,
.data_location 14. Everything else is stepped over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from candlewick.dtypes import DTYPES, widen_bf16
from candlewick.weights.source import WeightsError, looks_like

TYPES = {1: "f32", 2: "u8", 3: "i8", 5: "i16", 6: "i32", 7: "i64", 9: "bool", 10: "f16", 11: "f64", 16: "bf16"}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_RANK = 32


@dataclass(frozen=True)
class Node:
    """One operation: its name (the path of the module that said it, in files by PyTorch) and the values it handles."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """Operations in order, and the constant tensors by value name: initialisers, and what `Constant` nodes hold."""

    nodes: tuple[Node, ...]
    tensors: dict[str, np.ndarray]


def read_graph(data: bytes, name: str) -> Graph:
    """Bytes of an .onnx file -> Graph. Raises WeightsError for a file that is damaged or keeps its data elsewhere."""
    message = _Message(memoryview(data), name)
    graphs = [value for field, value in message.fields() if field == 7 and isinstance(value, memoryview)]
    if len(graphs) != 1:
        raise WeightsError(f"{name}: wanted an ONNX model with one graph, found {len(graphs)}; it looks like "
                           f"{looks_like(bytes(data[:64]))}")
    nodes: list[Node] = []
    tensors: dict[str, np.ndarray] = {}
    for field, value in _Message(graphs[0], name).fields():
        if field == 1:
            node, constant = _node(_Message(_bytes(value, name), name))
            nodes.append(node)
            if constant is not None:
                tensors[node.outputs[0]] = constant
        elif field == 5:
            key, array = _tensor(_Message(_bytes(value, name), name))
            if key in tensors:
                raise WeightsError(f"{name}: the initialiser {key!r} stands twice")
            tensors[key] = array
    return Graph(tuple(nodes), tensors)


class _Message:
    """The fields of one message, checked against its bytes."""

    def __init__(self, data: memoryview, file: str):
        self.data, self.file = data, file

    def fields(self) -> Iterator[tuple[int, int | memoryview]]:
        """(field number, a number or the bytes) one after another."""
        at = 0
        while at < len(self.data):
            key, at = self.varint(at)
            field, wire = key >> 3, key & 7
            if wire == VARINT:
                value, at = self.varint(at)
                yield field, value
                continue
            length = {FIXED64: 8, FIXED32: 4}.get(wire)
            if wire == BYTES:
                length, at = self.varint(at)
            if length is None or field == 0 or length > len(self.data) - at:
                raise WeightsError(f"{self.file}: not an ONNX file, or cut short: field {field}, wire type {wire} at byte {at} "
                                   f"of a message of {len(self.data)}; it looks like {looks_like(bytes(self.data[:64]))}")
            yield field, self.data[at : at + length]
            at += length

    def varint(self, at: int) -> tuple[int, int]:
        """The number at `at`, and where it ends."""
        value = 0
        for shift in range(0, 70, 7):
            if at >= len(self.data):
                break
            byte = self.data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & (2**64 - 1), at
        raise WeightsError(f"{self.file}: not an ONNX file, or cut short: a number at byte {at} does not end")

    def numbers(self, value: int | memoryview) -> list[int]:
        """A repeated whole number: one, or many packed into bytes."""
        if isinstance(value, int):
            return [_signed(value)]
        packed, at, found = _Message(value, self.file), 0, []
        while at < len(value):
            number, at = packed.varint(at)
            found.append(_signed(number))
        return found

    def text(self, value: int | memoryview) -> str:
        """A name."""
        try:
            return bytes(_bytes(value, self.file)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise WeightsError(f"{self.file}: a name is not UTF-8 text ({error.reason})") from error


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _bytes(value: int | memoryview, file: str) -> memoryview:
    if isinstance(value, int):
        raise WeightsError(f"{file}: a field holds a number where a message was wanted; the file is damaged")
    return value


def _node(message: _Message) -> tuple[Node, np.ndarray | None]:
    """A NodeProto, and the tensor if it is a Constant."""
    texts: dict[int, list[str]] = {1: [], 2: [], 3: [], 4: []}
    constant = None
    for field, value in message.fields():
        if field in texts:
            texts[field].append(message.text(value))
        elif field == 5:
            for inner, held in _Message(_bytes(value, message.file), message.file).fields():
                if inner == 5:
                    constant = _Message(_bytes(held, message.file), message.file)
    op = "".join(texts[4])
    node = Node("".join(texts[3]), op, tuple(texts[1]), tuple(texts[2]))
    if op != "Constant" or constant is None or len(node.outputs) != 1:
        return node, None
    return node, _tensor(constant)[1]


def _tensor(message: _Message) -> tuple[str, np.ndarray]:
    """A TensorProto -> its name and data; bf16 comes as float32."""
    dims: list[int] = []
    kind, key, raw = 0, "", None
    listed: list[memoryview | int] = []
    listed_field = 0
    for field, value in message.fields():
        if field == 1:
            dims += message.numbers(value)
        elif field == 2 and isinstance(value, int):
            kind = value
        elif field == 8:
            key = message.text(value)
        elif field == 9:
            raw = _bytes(value, message.file)
        elif field in (4, 5, 7, 10):
            listed_field = field
            listed.append(value)
        elif field == 14 and value:
            raise WeightsError(f"{message.file}: tensor {key!r} keeps its data in another file; only whole files can be read")
    where = f"{message.file}: tensor {key!r}"
    if kind not in TYPES:
        raise WeightsError(f"{where} has data type {kind}; known are {', '.join(f'{k} ({v})' for k, v in TYPES.items())}")
    if len(dims) > MAX_RANK or any(d < 0 for d in dims):
        raise WeightsError(f"{where}: shape {dims[:MAX_RANK]} is not one")
    dtype, count = DTYPES[TYPES[kind]], math.prod(dims)
    if raw is not None:
        if len(raw) != count * dtype.bytes:
            raise WeightsError(f"{where}: {dtype.name} {dims} needs {count * dtype.bytes} bytes, it has {len(raw)}")
        array = np.frombuffer(raw, dtype.numpy)
    else:
        array = _listed(message, listed_field, listed, dtype.numpy, where)
        if array.size != count:
            raise WeightsError(f"{where}: {dims} needs {count} numbers, it has {array.size}")
    return key, (widen_bf16(array) if dtype.name == "bf16" else array).reshape(dims)


def _listed(message: _Message, field: int, values: list[memoryview | int], dtype: np.dtype, where: str) -> np.ndarray:
    """Numbers that stand one by one instead of as raw bytes."""
    if field in (4, 10):
        kind = np.dtype("<f4" if field == 4 else "<f8")
        data = b"".join(bytes(_bytes(value, message.file)) for value in values)
        if len(data) % kind.itemsize:
            raise WeightsError(f"{where}: its numbers end in the middle of one")
        return np.frombuffer(data, kind).astype(dtype)
    numbers = np.array([number for value in values for number in message.numbers(value)], np.int64)
    if dtype.kind == "f" and field == 5:  # 16-bit floats stand here as their bits
        return numbers.astype(np.uint16).view("<f2").astype(dtype)
    return numbers.astype(np.uint16) if dtype == np.dtype("<u2") else numbers.astype(dtype)
