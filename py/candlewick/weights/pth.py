"""PyTorch's zip files (.pt, .pth, .bin since 1.6): where the tensors of a state dict lie, told without running a pickle.

Format: torch/serialization.py. The zip holds one folder with `data.pkl`, the pickle of a dict whose tensors are calls of
`torch._utils._rebuild_tensor_v2(storage, offset, size, stride, ...)`, and `data/<key>`, the bytes of each storage, not packed.
The pickle's instructions are walked here by a machine that knows the few that such a file needs and calls nothing: a name like
`os.system` becomes an inert mark, and any use of one that is not about tensors is refused.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from candlewick.dtypes import DTYPES
from candlewick.weights.safetensors import EMPTY_LIMIT, TensorInfo
from candlewick.weights.source import ByteSource, MadeSource, WeightsError
from candlewick.weights.zip import STORED, Member, read_directory

STORAGES = {  # class of a storage -> its type here
    "DoubleStorage": "f64", "FloatStorage": "f32", "HalfStorage": "f16", "BFloat16Storage": "bf16", "LongStorage": "i64",
    "IntStorage": "i32", "ShortStorage": "i16", "CharStorage": "i8", "ByteStorage": "u8", "BoolStorage": "bool",
}  # fmt: skip
MAX_RANK = 32
MAX_PICKLE = 64 << 20  # bytes; the largest published state dicts have one of some hundred kilobytes


@dataclass(frozen=True)
class Name:
    """What a pickle calls by module and name. It stands for itself and is never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Storage:
    """A run of `count` numbers of one type in the file `data/<key>`."""

    dtype: str
    key: str
    count: int


@dataclass(frozen=True)
class Strided:
    """A tensor: a view of a storage, counted in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class StateDict:
    """Where the tensors of a state dict lie: most in the file itself, strided ones in sources made for them."""

    tensors: dict[str, TensorInfo]
    sources: dict[str, ByteSource]  # by the names that `tensors` gives, the file's own among them


async def read_state_dict(source: ByteSource, file: str | None = None) -> StateDict:
    """The header of a .pt file; no data is read. Nested dicts ("model", "state_dict") are opened. file: its name in the infos.

    Raises WeightsError for damaged files and for pickles that want anything but tensors.
    """
    name, file = source.name, file or source.name
    members = await read_directory(source)
    folder, views = await _read_pickle(source, members)
    tensors: dict[str, TensorInfo] = {}
    sources: dict[str, ByteSource] = {file: source}
    for key, strided in views.items():
        where, path = f"{name}: tensor {key!r}", f"{folder}data/{strided.storage.key}"
        if path not in members:
            raise WeightsError(f"{name}: tensor {key!r} lies in {path}, which is not in the zip")
        _check_stored(members[path], name)
        _check_view(strided, members[path].size, where)
        dtype, shape = strided.storage.dtype, strided.shape
        item = DTYPES[dtype].bytes
        start = members[path].start + strided.offset * item
        n_bytes = math.prod(shape) * item
        place = file
        if n_bytes and not _is_contiguous(strided):
            place = f"{file}#{key}"
            sources[place] = MadeSource(place, n_bytes, partial(_gathered, source, strided, start))
            start = 0
        tensors[key] = TensorInfo(key, dtype, shape, place, start, start + n_bytes)
    return StateDict(tensors, sources)


async def read_names(source: ByteSource) -> list[str]:
    """Names of the tensors alone, which is much less to read."""
    _, views = await _read_pickle(source, await read_directory(source, _is_pickle))
    return list(views)


def _is_pickle(path: str) -> bool:
    return path.rpartition("/")[2] == "data.pkl"


async def _read_pickle(source: ByteSource, members: Mapping[str, Member]) -> tuple[str, dict[str, Strided]]:
    """-> the folder in the zip that everything lies in, and the tensors as views of storages"""
    name = source.name
    pickles = [path for path in members if _is_pickle(path)]
    if len(pickles) != 1:
        raise WeightsError(f"{name}: wanted one data.pkl in the zip, found {len(pickles)}; this is not a PyTorch file")
    pickled = members[pickles[0]]
    if pickled.size > MAX_PICKLE:
        raise WeightsError(f"{name}: its data.pkl has {pickled.size} bytes, at most {MAX_PICKLE} are read")
    _check_stored(pickled, name)
    data = await source.read(pickled.start, pickled.start + pickled.size)
    if zlib.crc32(data) != pickled.crc:
        raise WeightsError(f"{name}: {pickled.name} does not have the checksum it should; the file is damaged")
    return pickles[0].removesuffix("data.pkl"), _tensors(Machine(data, name).run(), name)


def _check_stored(member: Member, name: str) -> None:
    if member.method != STORED:
        raise WeightsError(f"{name}: {member.name} is packed; PyTorch stores its members as they are")


def _check_view(t: Strided, n_bytes: int, where: str) -> None:
    """Every element must lie in the storage, and the storage's bytes be as many as it says."""
    wanted = t.storage.count * DTYPES[t.storage.dtype].bytes
    if n_bytes != wanted:
        raise WeightsError(f"{where}: {t.storage.count} numbers of {t.storage.dtype} need {wanted} bytes, its storage has "
                           f"{n_bytes}")
    if 0 in t.shape:
        if t.offset > t.storage.count or math.prod(n or 1 for n in t.shape) >= EMPTY_LIMIT:
            raise WeightsError(f"{where}: no data, but a shape or a place that cannot be: {list(t.shape)} from {t.offset}")
        return
    last = t.offset + _reach(t)
    if last >= t.storage.count:
        raise WeightsError(f"{where}: {list(t.shape)} with strides {list(t.strides)} from {t.offset} ends at {last}, its "
                           f"storage has {t.storage.count} numbers")
    if math.prod(t.shape) > t.storage.count:
        raise WeightsError(f"{where}: {list(t.shape)} repeats the {t.storage.count} numbers of its storage; save it contiguous")


def _reach(t: Strided) -> int:
    """How far behind its first element the last one lies."""
    return sum((n - 1) * s for n, s in zip(t.shape, t.strides))


def _is_contiguous(t: Strided) -> bool:
    """Whether the elements stand in the order of a C array, one behind the other."""
    step = 1
    for n, stride in zip(reversed(t.shape), reversed(t.strides)):
        if n != 1 and stride != step:
            return False
        step *= n
    return True


async def _gathered(source: ByteSource, t: Strided, start: int) -> np.ndarray:
    """The elements of a view in the order of a C array, as unsigned integers of their width."""
    item = DTYPES[t.storage.dtype].bytes
    data = await source.read(start, start + (_reach(t) + 1) * item)
    array = np.frombuffer(data, f"<u{item}")
    strides = [s * item for s in t.strides]
    return np.array(np.lib.stride_tricks.as_strided(array, t.shape, strides, writeable=False), order="C")


def _tensors(value: Any, name: str) -> dict[str, Strided]:
    """The tensors of a state dict; one that lies within another dict is taken out of it."""
    for _ in range(3):
        if not isinstance(value, Mapping):
            break
        tensors = {k: v for k, v in value.items() if isinstance(v, Strided)}
        if tensors:
            odd = [k for k in tensors if not isinstance(k, str)]
            if odd:
                raise WeightsError(f"{name}: the tensor {odd[0]!r} has a name that is no text")
            return tensors
        inner = [value[k] for k in ("state_dict", "model", "model_state_dict") if isinstance(value.get(k), Mapping)]
        value = inner[0] if inner else None
    raise WeightsError(f"{name}: wanted a state dict (names and tensors); save model.state_dict()")


MARK = object()


class Machine:
    """Walks a pickle's instructions (protocols 2 to 5, those that state dicts use) and builds plain values."""

    def __init__(self, data: bytes, file: str) -> None:
        self.data, self.file, self.at = data, file, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """The value of the pickle. Raises WeightsError for what it does not know."""
        try:
            while True:
                code = self.take(1)
                if code == b".":
                    return self.stack.pop()
                step = STEPS.get(code)
                if step is None:
                    raise WeightsError(f"{self.file}: its pickle holds the instruction {code!r}, which no state dict needs; "
                                       "nothing was run")
                step(self)
        except WeightsError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, struct.error, RecursionError) as error:
            raise WeightsError(f"{self.file}: its pickle is damaged at byte {self.at} ({type(error).__name__})") from error

    def take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        if len(piece) != count:
            raise WeightsError(f"{self.file}: its pickle ends at byte {len(self.data)}, in the middle of an instruction")
        self.at += count
        return piece

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self.data.find(b"\n", self.at)
        text = self.take((end if end >= 0 else len(self.data)) - self.at).decode("utf-8")
        self.take(1)
        return text

    def since_mark(self) -> list[Any]:
        """What lies above the last mark, which goes, too."""
        for i in range(len(self.stack) - 1, -1, -1):
            if self.stack[i] is MARK:
                above = self.stack[i + 1 :]
                del self.stack[i:]
                return above
        raise IndexError("no mark")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    # ---- instructions that mean something -----------------------------------------------------------------------

    def persistent(self) -> None:
        """A storage: ("storage", its class, key, device, count)"""
        word, kind, key, _device, count = self.stack.pop()
        dtype = STORAGES.get(kind.name) if isinstance(kind, Name) and kind.module in ("torch", "torch.storage") else None
        if word != "storage" or dtype is None or not isinstance(key, str) or type(count) is not int or count < 0:
            raise WeightsError(f"{self.file}: a storage of {kind} cannot be read; known are {', '.join(STORAGES)}")
        self.push(Storage(dtype, key, count))

    def reduce(self) -> None:
        """Call a name: of a few that are known, by what they mean; nothing is ever called."""
        arguments, name = self.stack.pop(), self.stack.pop()
        called = str(name)
        if called in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"):
            self.push(self.tensor(*arguments[:4]))
        elif called == "torch._utils._rebuild_parameter" and isinstance(arguments[0], Strided):
            self.push(arguments[0])
        elif called == "collections.OrderedDict" and arguments == ():
            self.push(OrderedDict())
        else:
            raise WeightsError(f"{self.file}: its pickle wants to call {called[:80]}, which loading tensors does not need; "
                               "nothing was run. Save model.state_dict() alone")

    def tensor(self, storage: Any, offset: Any, shape: Any, strides: Any) -> Strided:
        numbers = [offset, *shape, *strides]
        if not isinstance(storage, Storage) or any(type(n) is not int or n < 0 for n in numbers) or len(shape) != len(strides) \
                or len(shape) > MAX_RANK:
            raise WeightsError(f"{self.file}: a tensor of shape {str(shape)[:80]}, strides {str(strides)[:80]} is not one")
        return Strided(storage, offset, tuple(shape), tuple(strides))

    def build(self) -> None:
        """State of an object: of an OrderedDict its attributes (`_metadata`), which do not matter."""
        self.stack.pop()
        if not isinstance(self.stack[-1], dict):
            raise WeightsError(f"{self.file}: its pickle sets the inside of something that is not a dict; nothing was run")

    def items(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(pairs) % 2:
            raise TypeError("not a dict")
        target.update(zip(pairs[::2], pairs[1::2]))

    def appends(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError("not a list")
        self.stack[-1].extend(values)

    def tuple_of(self, count: int) -> None:
        values = self.stack[len(self.stack) - count :]
        if len(values) != count:
            raise IndexError("too few values")
        del self.stack[len(self.stack) - count :]
        self.push(tuple(values))

    def stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.push(Name(str(module), str(name)))


def _global(m: Machine) -> None:
    module = m.line()
    m.push(Name(module, m.line()))


def _set_item(m: Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    m.items([key, value])


def _append(m: Machine) -> None:
    value = m.stack.pop()
    m.appends([value])


def _put(m: Machine, index: int) -> None:
    m.memo[index] = m.stack[-1]


STEPS = {
    b"\x80": lambda m: m.take(1), b"\x95": lambda m: m.take(8),  # protocol, frame
    b"(": lambda m: m.push(MARK), b"0": lambda m: m.stack.pop(), b"1": lambda m: m.since_mark(),
    b"N": lambda m: m.push(None), b"\x88": lambda m: m.push(True), b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number("B")), b"M": lambda m: m.push(m.number("H")), b"J": lambda m: m.push(m.number("i")),
    b"\x8a": lambda m: m.push(int.from_bytes(m.take(m.number("B")), "little", signed=True)),
    b"G": lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    b"X": lambda m: m.push(m.take(m.number("I")).decode("utf-8")),
    b"\x8c": lambda m: m.push(m.take(m.number("B")).decode("utf-8")),
    b"U": lambda m: m.push(m.take(m.number("B")).decode("latin-1")),
    b"}": lambda m: m.push({}), b"]": lambda m: m.push([]), b")": lambda m: m.push(()),
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"\x85": lambda m: m.tuple_of(1), b"\x86": lambda m: m.tuple_of(2), b"\x87": lambda m: m.tuple_of(3),
    b"u": lambda m: m.items(m.since_mark()), b"s": _set_item, b"e": lambda m: m.appends(m.since_mark()), b"a": _append,
    b"q": lambda m: _put(m, m.number("B")), b"r": lambda m: _put(m, m.number("I")), b"\x94": lambda m: _put(m, len(m.memo)),
    b"h": lambda m: m.push(m.memo[m.number("B")]), b"j": lambda m: m.push(m.memo[m.number("I")]),
    b"c": _global, b"\x93": Machine.stack_global, b"Q": Machine.persistent, b"R": Machine.reduce, b"b": Machine.build,
}  # fmt: skip
