"""The device in CPython: the host side of the webgpu executor over PyPI `wgpu`. `workers/webgpu.js` is the same in a page."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

from .. import ExecutorUnavailable
from .budget import submits
from .weights import PIECE_BYTES, Filler

SMALLEST = 16
FEATURES = {"shader-f16": "shader-f16", "subgroups": "subgroup", "timestamp-query": "timestamp-query"}
"""WebGPU's names, and wgpu's."""
LIMITS = {
    name: "".join("-" + c.lower() if c.isupper() else c for c in name)
    for name in (
        "maxBufferSize", "maxStorageBufferBindingSize", "maxStorageBuffersPerShaderStage", "maxComputeWorkgroupStorageSize",
        "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupSizeX", "maxComputeWorkgroupSizeY",
        "maxComputeWorkgroupsPerDimension",
    )
}


class Host:
    """One device. Raises ExecutorUnavailable where there is no wgpu or no adapter.

    features: of those the adapter has, the ones to use (None: all that kernels know).
    """

    def __init__(self, features: Sequence[str] | None = None) -> None:
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
        self.features: set[str] = {
            name for name, theirs in FEATURES.items() if theirs in adapter.features and (features is None or name in features)
        }
        self._device = adapter.request_device_sync(
            required_features=[FEATURES[name] for name in sorted(self.features)],
            required_limits={theirs: adapter.limits[theirs] for theirs in LIMITS.values()},
        )
        self.limits: dict[str, int] = {name: adapter.limits[theirs] for name, theirs in LIMITS.items()}
        for end in ("min", "max"):  # wgpu's own names of these changed once
            found = [n for key, n in self.adapter.items() if key.endswith(f"group_{end}_size")]
            self.limits[f"subgroup{end.capitalize()}Size"] = int(found[0]) if found else 0
        self.sources: dict[str, Any] = {}
        self.gpu_ms: float | None = None
        self._buffers: list[Any] = []
        self._pipelines: dict[str, Any] = {}
        self._entries: dict[str, list[Any]] = {}
        self._cuts: dict[str, list[int]] = {}
        self.bytes = 0
        usage = wgpu.BufferUsage
        self._nothing = self._device.create_buffer(size=SMALLEST, usage=usage.STORAGE)
        self._clock: tuple[Any, Any] | None = None
        if "timestamp-query" in self.features:
            queries = self._device.create_query_set(type="timestamp", count=2)
            times = self._device.create_buffer(size=SMALLEST, usage=usage.QUERY_RESOLVE | usage.COPY_SRC)
            self._clock = queries, times

    def buffer(self, n_bytes: int) -> int:
        """A storage buffer of zeros; MemoryError where the device does not allow one so large."""
        size = -(-max(n_bytes, SMALLEST) // SMALLEST) * SMALLEST
        largest = min(self.limits["maxBufferSize"], self.limits["maxStorageBufferBindingSize"])
        if size > largest:
            raise MemoryError(f"webgpu: a buffer of {size} bytes is wanted, this device allows {largest}; take a smaller model")
        usage = self._wgpu.BufferUsage
        self._buffers.append(
            self._device.create_buffer(size=size, usage=usage.STORAGE | usage.COPY_DST | usage.COPY_SRC)
        )
        self.bytes += size
        return len(self._buffers) - 1

    async def settle(self) -> None:
        """Nothing to wait for: wgpu raises when a buffer is made."""

    def write(self, buffer: int, offset: int, data: bytes) -> None:
        if data:
            self._device.queue.write_buffer(self._buffers[buffer], offset, data)

    async def load_weights(self, recipe: str, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Copies byte ranges of files into buffers, a piece at a time."""
        tensors = json.loads(recipe)
        total, done = sum(end - start for _, parts in tensors for _, start, end in parts), 0
        for buffer, parts in tensors:
            filler = Filler(self.write, buffer)
            for file, begin, end in parts:
                for start in range(begin, end, PIECE_BYTES):
                    stop = min(start + PIECE_BYTES, end)
                    filler.add(await self.sources[file].read(start, stop) if file else bytes(stop - start))
                    done += stop - start
                    if on_progress:
                        on_progress(done, total)
            filler.end()

    async def prepare(self, plan: str, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Compile the pipelines of a Plan and make its bind groups."""
        o = json.loads(plan)
        # wgpu's compiler knows subgroups, and not the line that asks for them
        kernels = {name: text.replace("enable subgroups;", "") for name, text in o["kernels"].items()}
        modules = {name: self._device.create_shader_module(code=text, label=name) for name, text in kernels.items()}
        made = []
        for number, p in enumerate(o["pipelines"]):
            key = json.dumps([o["kernels"][p["kernel"]], p])
            if key not in self._pipelines:
                compute = {"module": modules[p["kernel"]], "entry_point": p["entry"], "constants": p["constants"]}
                try:
                    self._pipelines[key] = self._device.create_compute_pipeline(layout="auto", compute=compute)
                except self._wgpu.GPUError as error:
                    raise ExecutorUnavailable(
                        f"webgpu: kernel {p['kernel']} with {p['constants']} does not compile: {error}") from error
            made.append(self._pipelines[key])
            if on_progress:
                on_progress(number + 1, len(o["pipelines"]))
        self._cuts |= o["cuts"]
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
        """Dispatches [first, last), a submit for each part that the Plan cuts it into, then copies of what is to be read."""
        clock = self._clock if last > first else None
        self.gpu_ms = None
        for start, end in submits(first, last, self._cuts.get(entry, [])):
            encoder = self._device.create_command_encoder()
            if end > start:
                stamps: dict[str, Any] = {} if clock is None else {"query_set": clock[0]}
                if clock and start == first:
                    stamps["beginning_of_pass_write_index"] = 0
                if clock and end == last:
                    stamps["end_of_pass_write_index"] = 1
                compute = encoder.begin_compute_pass(timestamp_writes=stamps if len(stamps) > 1 else None)
                for pipeline, group, counts in self._entries[entry][start:end]:
                    compute.set_pipeline(pipeline)
                    compute.set_bind_group(0, group)
                    compute.dispatch_workgroups(*counts)
                compute.end()
            if end < last:
                self._device.queue.submit([encoder.finish()])
        total = sum(n for _, _, n in reads)
        usage = self._wgpu.BufferUsage
        back = self._device.create_buffer(size=max(total + 16, SMALLEST), usage=usage.MAP_READ | usage.COPY_DST)
        at = 0
        for buffer, offset, n in reads:
            encoder.copy_buffer_to_buffer(self._buffers[buffer], offset, back, at, n)
            at += n
        if clock:
            encoder.resolve_query_set(clock[0], 0, 2, clock[1], 0)
            encoder.copy_buffer_to_buffer(clock[1], 0, back, total, 16)
        self._device.queue.submit([encoder.finish()])
        back.map_sync(self._wgpu.MapMode.READ)
        data = bytes(back.read_mapped())
        back.unmap()
        back.destroy()
        if clock:
            begin, end = struct.unpack_from("<qq", data, total)
            self.gpu_ms = (end - begin) / 1e6 if end >= begin else None
        found, at = [], 0
        for _, _, n in reads:
            found.append(data[at : at + n])
            at += n
        return found

    def release(self, first: int = 0) -> None:
        """Give the buffers from number `first` on back; from 0, everything of all Plans."""
        for buffer in self._buffers[first:]:
            self.bytes -= buffer.size
            buffer.destroy()
        del self._buffers[first:]
        if not first:
            self._pipelines, self._entries, self._cuts = {}, {}, {}
