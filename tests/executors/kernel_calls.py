"""Calls one kernel at a time with arrays: lays them out in kernel memory, writes the instruction, runs it, reads back."""

from __future__ import annotations

import numpy as np

from candlewick.executors.wasm import abi
from candlewick.executors.wasm.host_wasmtime import Host

EDGE = np.float32(-7.25e30)
"""Fills the room after each output: a kernel that writes past its end changes it."""


class Kernels:
    """A host plus an allocator that starts again with every call of `reset`."""

    def __init__(self, host: Host):
        self.host = host
        self.reset()

    def reset(self) -> None:
        self.top = self.host.free_base

    def room(self, n_bytes: int) -> int:
        """A 64-byte aligned address with n_bytes and 64 more behind it."""
        address = -(-self.top // 64) * 64
        self.top = address + n_bytes + 64
        self.host.reserve(self.top)
        return address

    def put(self, array: np.ndarray) -> int:
        address = self.room(array.nbytes)
        self.host.write(address, array)
        return address

    def output(self, count: int) -> int:
        """Room for count words, EDGE before and after."""
        return self.put(np.full(count + 32, EDGE, np.float32)) + 64

    def get(self, address: int, shape: tuple[int, ...], dtype=np.float32) -> np.ndarray:
        count = int(np.prod(shape))
        data = np.frombuffer(self.host.read(address - 64, (count + 32) * 4), np.float32)
        assert (data[:16] == EDGE).all() and (data[16 + count:] == EDGE).all(), "written outside the output"
        return data[16:16 + count].view(dtype).reshape(shape).copy()

    def run(self, *instructions: list) -> int:
        """Each instruction is [kernel name, {argument: value}]; missing arguments are 0."""
        words: list[int] = []
        for name, values in instructions:
            unknown = values.keys() - set(abi.KERNELS[name])
            assert not unknown, unknown
            words += [abi.IDS[name], 2 + len(abi.KERNELS[name])]
            for argument in abi.KERNELS[name]:
                value = values.get(argument, 0)
                words.append(int(np.float32(value).view(np.int32)) if argument in abi.FLOATS else int(value))
        code = self.put(np.array(words, np.int64).astype(np.uint32))
        return self.host.run(code, code + 4 * len(words))

    def weight(self, w: np.ndarray, w_dtype: str, taps: int = 1) -> int:
        """w (n, k) float32, float16 or (bfloat16 as) uint16, in file order -> address of its panels."""
        n, k = w.shape
        src = self.put(w)
        dst = self.room(abi.panel_bytes(n, k, w_dtype))
        code = abi.SOURCE_DTYPES[w_dtype]
        half = min(n, -(-n // 2 // abi.PANEL) * abi.PANEL)  # in two pieces, as a stream would
        for row0, rows in ((0, half), (half, n - half)):
            if rows:
                self.host.pack(abi.PACK_KINDS["panels"], src + row0 * k * w.itemsize, code, dst, row0, rows, n, k, taps, code)
        return dst


def to_bfloat(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(uint16 bits, the float32 values they stand for), by truncation."""
    bits = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)
