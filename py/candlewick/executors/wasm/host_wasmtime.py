"""The kernel modules in CPython: the host side of the wasm executor over PyPI `wasmtime`.

A host owns the kernel memory and the threads. `workers/wasm.js` is the same thing in the browser, method for method;
Python above them (`lower.py`, the executor) does not know which one it talks to. Memory from the bottom up:

    [0, heap_base)        data of the module and the stack of thread 0
    64 KiB a thread       stacks of threads 1, 2, ...
    THREAD_SCRATCH_BYTES  a thread, private scratch of kernels
    free_base             the executor's: weights, state, constants, arena, code
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import ExecutorUnavailable
from . import abi
from .build import module_path

PAGE = 65536
STACK_BYTES = 65536
MAX_PAGES = 65535
DONE, STOPPED, FAILED, BAD_CODE = 0, 1, 2, 3


class HostError(RuntimeError):
    """The kernel host was asked for something impossible or a kernel trapped; the message says what and how much."""


def _wasmtime() -> Any:
    try:
        import wasmtime
    except ImportError as error:
        raise ExecutorUnavailable("the wasm executor in CPython needs the package wasmtime; pip install wasmtime, "
                                  "or choose the numpy executor") from error
    return wasmtime


def _shared_memory(engine: Any, limits: Any) -> Any:
    """A shared memory that can be imported: wasmtime-py 50 itself passes a pointer too many, which ctypes refuses."""
    wasmtime = _wasmtime()
    from wasmtime import _ffi

    class Shared(wasmtime.SharedMemory):
        def _as_extern(self) -> Any:
            union = _ffi.wasmtime_extern_union(sharedmemory=self.ptr())
            return _ffi.wasmtime_extern_t(_ffi.WASMTIME_EXTERN_SHAREDMEMORY, union)

    return Shared(engine, wasmtime.MemoryType(limits, shared=True))


def _signed(address: int) -> int:
    """wasmtime takes i32 arguments as signed numbers; addresses above 2 GiB are not."""
    return address - (1 << 32) if address >= 1 << 31 else address


class Host:
    """Kernel memory, module instances and threads.

    threads > 1 takes the shared-memory module and starts Python threads (wasmtime runs outside the interpreter lock).
    `sources` maps file names of recipes to byte sources (`weights.source.ByteSource`: `await read(start, end)`).
    Raises ExecutorUnavailable without wasmtime or without the modules.
    """

    def __init__(self, threads: int = 1, relaxed: bool = True, sources: Mapping[str, Any] | None = None,
                 shared: bool | None = None):
        if threads < 1:
            raise HostError(f"a host needs at least 1 thread, got {threads}")
        wasmtime = _wasmtime()
        self.threads = self.threads_asked = threads
        self.relaxed = relaxed
        self.shared = threads > 1 if shared is None else shared
        self.sources = dict(sources or {})
        if threads > 1 and not self.shared:
            raise HostError(f"{threads} threads need shared memory; leave `shared` out or ask for 1 thread")
        variant = f"{'threads' if self.shared else 'single'}.{'relaxed' if relaxed else 'simd128'}"
        path = module_path(variant)
        if not path.is_file():
            raise ExecutorUnavailable(f"kernel module {path.name} is missing; "
                                      "run python -m candlewick.executors.wasm.build")
        config = wasmtime.Config()
        config.wasm_threads = True
        if self.shared:
            config.shared_memory = True
        self._engine = wasmtime.Engine(config)
        module = wasmtime.Module(self._engine, path.read_bytes())
        limits = wasmtime.Limits(module.imports[0].type.limits.min, MAX_PAGES)
        self._memory = _shared_memory(self._engine, limits) if self.shared else None
        self._stores, self._exports = [], []
        for _ in range(threads):
            store = wasmtime.Store(self._engine)
            if not self.shared:
                self._memory = wasmtime.Memory(store, wasmtime.MemoryType(limits))
            self._stores.append(store)
            self._exports.append(wasmtime.Instance(store, module, [self._memory]).exports(store))
        first = self._exports[0]
        self.heap_base: int = first["__heap_base"].value(self._stores[0])
        stacks = -(-self.heap_base // 64) * 64
        self._scratch = stacks + (threads - 1) * STACK_BYTES
        for thread in range(1, threads):
            self._exports[thread]["__stack_pointer"].set_value(self._stores[thread], stacks + thread * STACK_BYTES)
        self.free_base = self._scratch + threads * abi.THREAD_SCRATCH_BYTES
        self.reserve(self.free_base)
        self._control: int = first["control"](self._stores[0])

    def _length(self) -> int:
        return self._memory.data_len() if self.shared else self._memory.data_len(self._stores[0])

    def _view(self, address: int, n_bytes: int) -> np.ndarray:
        """Bytes of kernel memory; valid until the next reserve."""
        if address < 0 or n_bytes < 0 or address + n_bytes > self._length():
            raise HostError(f"bytes [{address}, {address + n_bytes}) are outside the {self._length()} bytes of kernel "
                            "memory; reserve them first")
        pointer = self._memory.data_ptr() if self.shared else self._memory.data_ptr(self._stores[0])
        base = ctypes.addressof(pointer.contents)
        return np.frombuffer((ctypes.c_ubyte * n_bytes).from_address(base + address), np.uint8)

    def reserve(self, bytes_total: int) -> int:
        """Grows memory by zeros until [0, bytes_total) exists -> its size before; MemoryError with numbers when it cannot."""
        before = self._length()
        pages = -(-(bytes_total - before) // PAGE)
        if pages <= 0:
            return before
        if bytes_total > MAX_PAGES * PAGE:
            raise MemoryError(f"kernels want {bytes_total:,} bytes; 32-bit addresses reach {MAX_PAGES * PAGE:,}: "
                              "use a smaller model")
        try:
            if self.shared:
                self._memory.grow(pages)
            else:
                self._memory.grow(self._stores[0], pages)
        except _wasmtime().WasmtimeError as error:
            raise MemoryError(f"kernels want {bytes_total:,} bytes, have {self._length():,} and get no more ({error}); "
                              "use a smaller model") from error
        return before

    def write(self, address: int, data: Any) -> None:
        """Copies an array or bytes to `address`."""
        array = np.ascontiguousarray(data) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        flat = array.reshape(-1).view(np.uint8)
        self._view(address, flat.nbytes)[:] = flat

    def read(self, address: int, n_bytes: int) -> bytes:
        """A copy of n_bytes from `address`."""
        return self._view(address, n_bytes).tobytes()

    def run(self, code: int, code_end: int) -> int:
        """Runs the instructions in [code, code_end) on all threads: 0 done, 1 stopped, 2 a thread failed, 3 bad code.

        Blocks. Raises HostError with the trap when a kernel trapped; the other threads are released first.
        """
        self._exports[0]["begin"](self._stores[0])
        status = [FAILED] * self.threads
        failure: list[BaseException] = []

        def work(thread: int) -> None:
            scratch = self._scratch + thread * abi.THREAD_SCRATCH_BYTES
            try:
                status[thread] = self._exports[thread]["run"](self._stores[thread], thread, self.threads, _signed(code),
                                                              _signed(code_end), scratch, abi.THREAD_SCRATCH_BYTES)
            except Exception as error:  # a trap, whatever wasmtime calls it: release the others
                failure.append(error)
                self._set_stop(FAILED)

        others = [threading.Thread(target=work, args=(thread,), daemon=True) for thread in range(1, self.threads)]
        for other in others:
            other.start()
        work(0)
        for other in others:
            other.join()
        worst = max(status)
        if worst != DONE:
            self._set_stop(0)
        if failure:
            raise HostError(f"a kernel trapped, the results of this run are lost: {failure[0]}") from failure[0]
        return worst

    def _set_stop(self, value: int) -> None:
        self._view(self._control, 4).view(np.int32)[0] = value

    def stop(self) -> None:
        """Ends the run now going on (or the next one) at its next instruction; callable from any thread."""
        self._set_stop(STOPPED)

    def pack(self, kind: int, src: int, src_dtype: int, dst: int, row0: int, rows: int, n: int, k: int, taps: int,
             dst_dtype: int) -> None:
        """The exported packing function (kernels/pack.c) on bytes that are in kernel memory already."""
        status = self._exports[0]["pack"](self._stores[0], kind, _signed(src), src_dtype, _signed(dst), row0, rows, n, k,
                                          taps, dst_dtype)
        if status:
            raise HostError(f"pack: arguments do not fit: {kind=} {src_dtype=} {row0=} {rows=} {n=} {k=} {taps=} "
                            f"{dst_dtype=}")

    async def load_weights(self, recipe: str, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Streams byte ranges of checkpoint files through a staging area into packed weights.

        recipe is JSON {"staging": address, "staging_bytes": n, "tensors": [lines of `layout.recipe_line`]}; see kernels/pack.c.
        on_progress(done bytes, total bytes) is called after each chunk.
        """
        plan = json.loads(recipe)
        staging, room, tensors = plan["staging"], plan["staging_bytes"], plan["tensors"]
        total, done = sum(tensor["n"] * tensor["row_bytes"] for tensor in tensors), 0
        for tensor in tensors:
            n, k, row_bytes, unit = (tensor[name] for name in ("n", "k", "row_bytes", "unit"))
            kind, dtype, dst_dtype = tensor["codes"]
            step = room // row_bytes // unit * unit
            if step == 0:
                raise HostError(f"staging of {room} bytes is too small for {unit} rows of {row_bytes} bytes")
            for row in range(0, n, step):
                rows, start = min(step, n - row), tensor["start"] + row * row_bytes
                data = await self.sources[tensor["file"]].read(start, start + rows * row_bytes)
                self.write(staging, data)
                self.pack(kind, staging, dtype, tensor["dst"], row, rows, n, k, tensor["taps"], dst_dtype)
                done += len(data)
                if on_progress:
                    on_progress(done, total)
                await asyncio.sleep(0)

    def close(self) -> None:
        """Lets go of memory and instances; the host cannot be used afterwards."""
        self._stores, self._exports, self._memory = [], [], None
