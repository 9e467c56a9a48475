"""The device in CPython: the host side of the webgpu executor over PyPI `wgpu`. `workers/webgpu.js` is the same in a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from .. import ExecutorUnavailable

NOTHING_BYTES = 16


class Host:
    """One device. Raises ExecutorUnavailable where there is no wgpu or no adapter."""

    def __init__(self) -> None:
        try:
            import wgpu
        except ImportError as error:
            raise ExecutorUnavailable("the webgpu executor in CPython needs the package wgpu: pip install wgpu") from error
        self._wgpu = wgpu
        try:
            adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        except Exception as error:
            raise ExecutorUnavailable(f"there is no GPU adapter here, not even a software one: {error}") from error
        self.adapter = dict(adapter.info)
        limits = {k: adapter.limits[k] for k in ("max-storage-buffer-binding-size", "max-buffer-size")}
        self._device = adapter.request_device_sync(required_limits=limits)
        self.limits = {"maxStorageBufferBindingSize": limits["max-storage-buffer-binding-size"],
                       "maxBufferSize": limits["max-buffer-size"]}
        self.features = set(self._device.features)
        self._buffers: list[Any] = []
        self._pipelines: dict[str, Any] = {}
        self._entries: dict[str, list[Any]] = {}
        self.bytes = 0
        self._nothing = self._device.create_buffer(size=NOTHING_BYTES, usage=wgpu.BufferUsage.STORAGE)

    def buffer(self, n_bytes: int) -> int:
        """A storage buffer of zeros; MemoryError where the device does not allow one so large."""
        size = -(-max(n_bytes, 16) // 16) * 16
        largest = min(self.limits.values())
        if size > largest:
            raise MemoryError(f"webgpu: a buffer of {size} bytes is wanted, this device allows {largest}; take a smaller model")
        usage = self._wgpu.BufferUsage
        self._buffers.append(
            self._device.create_buffer(size=size, usage=usage.STORAGE | usage.COPY_DST | usage.COPY_SRC)
        )
        self.bytes += size
        return len(self._buffers) - 1

    def write(self, buffer: int, offset: int, data: bytes) -> None:
        if data:
            self._device.queue.write_buffer(self._buffers[buffer], offset, data)

    async def prepare(self, plan: str, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Compile the pipelines of a Plan and make its bind groups."""
        o = json.loads(plan)
        modules = {name: self._device.create_shader_module(code=text, label=name) for name, text in o["kernels"].items()}
        made = []
        for number, p in enumerate(o["pipelines"]):
            key = json.dumps([o["kernels"][p["kernel"]], p])
            if key not in self._pipelines:
                compute = {"module": modules[p["kernel"]], "entry_point": p["entry"], "constants": p["constants"]}
                try:
                    self._pipelines[key] = self._device.create_compute_pipeline(layout="auto", compute=compute)
                except self._wgpu.GPUError as error:
                    raise ValueError(f"webgpu: kernel {p['kernel']} with {p['constants']} does not compile: {error}") from error
            made.append(self._pipelines[key])
            if on_progress:
                on_progress(number + 1, len(o["pipelines"]))
        for name, steps in o["entries"].items():
            entry = self._entries[name] = []
            for pipeline, numbers, groups in steps:
                entries = [
                    {"binding": place, "resource": {"buffer": self._buffers[n] if n >= 0 else self._nothing}}
                    for place, n in enumerate(numbers)
                    if n != -2
                ]
                layout = made[pipeline].get_bind_group_layout(0)
                entry.append((made[pipeline], self._device.create_bind_group(layout=layout, entries=entries), groups))

    async def run(self, entry: str, first: int, last: int, reads: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Dispatches [first, last), then copies of what is to be read, in one submit."""
        encoder = self._device.create_command_encoder()
        if last > first:
            compute = encoder.begin_compute_pass()
            for pipeline, group, counts in self._entries[entry][first:last]:
                compute.set_pipeline(pipeline)
                compute.set_bind_group(0, group)
                compute.dispatch_workgroups(*counts)
            compute.end()
        total = sum(n for _, _, n in reads)
        if not total:
            self._device.queue.submit([encoder.finish()])
            return [b"" for _ in reads]
        usage = self._wgpu.BufferUsage
        back = self._device.create_buffer(size=total, usage=usage.MAP_READ | usage.COPY_DST)
        at = 0
        for buffer, offset, n in reads:
            encoder.copy_buffer_to_buffer(self._buffers[buffer], offset, back, at, n)
            at += n
        self._device.queue.submit([encoder.finish()])
        back.map_sync(self._wgpu.MapMode.READ)
        data = bytes(back.read_mapped())
        back.unmap()
        back.destroy()
        found, at = [], 0
        for _, _, n in reads:
            found.append(data[at : at + n])
            at += n
        return found

    def release(self) -> None:
        """Give every buffer back."""
        for buffer in self._buffers:
            buffer.destroy()
        self._buffers, self._pipelines, self._entries, self.bytes = [], {}, {}, 0
