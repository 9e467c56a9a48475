"""The trial of two devices: what it gives for devices of known speed, and what it runs on real ones."""

from __future__ import annotations

import pytest

from candlewick import executors
from candlewick.executors.cost import operations
from candlewick.passes import optimise
from candlewick.tasks.generate import Generation
from candlewick.tasks.segment import Segmentation
from candlewick.tasks.transcribe import Transcription
from candlewick.verify import speed


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


class Device:
    """Runs nothing; a run of a part takes the milliseconds that `takes` says, one after the other, then the last again."""

    def __init__(self, clock, **takes):
        self.clock, self.takes, self.runs, self.loaded = clock, {name: list(ms) for name, ms in takes.items()}, [], None

    async def load(self, programs, weights):
        assert self.loaded is None
        (self.loaded,) = programs

    async def run(self, entry, inputs):
        assert entry == self.loaded
        times = self.takes[entry]
        self.clock.seconds += (times.pop(0) if len(times) > 1 else times[0]) / 1000
        self.runs.append(entry)

    async def close(self):
        self.loaded = None


@pytest.mark.parametrize(("gpu", "wasm", "shares", "times"), [
    ({"wide": [2]}, {"wide": [6]}, {"wide": 1.0}, 3.0),
    ({"wide": [30]}, {"wide": [6]}, {"wide": 1.0}, 0.2),
    ({"wide": [10], "chain": [20]}, {"wide": [100], "chain": [10]}, {"wide": 0.5, "chain": 0.5}, 1 / 1.05),
    ({"wide": [10], "chain": [20]}, {"wide": [100], "chain": [10]}, {"wide": 0.8, "chain": 0.2}, 1 / 0.48),
    ({"wide": [90, 3, 4]}, {"wide": [50, 6]}, {"wide": 1.0}, 2.0),  # the first run pays for what the others find done
])
async def test_a_verdict(gpu, wasm, shares, times):
    clock = Clock()
    both = [Device(clock, **gpu), Device(clock, **wasm)]
    found = await speed.compare_speed(*both, shares, clock)
    assert found["times"] == pytest.approx(times) and set(found["parts"]) == set(shares)
    assert all(device.loaded is None for device in both)


async def test_nothing_more_is_run_of_a_device_that_has_lost():
    clock = Clock()
    both = [Device(clock, wide=[2], chain=[30]), Device(clock, wide=[6], chain=[10])]
    found = await speed.compare_speed(*both, {"wide": 0.2, "chain": 0.8}, clock)
    assert set(found["parts"]) == {"chain"} and found["times"] == pytest.approx(1 / 2.4)
    assert all(set(device.runs) == {"chain"} for device in both)


async def test_a_slow_device_is_soon_left():
    clock = Clock()
    device = Device(clock, wide=[60_000])
    assert await speed.least_ms(device, "wide", clock) == pytest.approx(60_000) and device.runs == ["wide"]
    device = Device(clock, wide=[80])
    await speed.least_ms(device, "wide", clock)
    assert len(device.runs) == 2
    device = Device(clock, wide=[1])
    await speed.least_ms(device, "wide", clock)
    assert len(device.runs) == speed.RUNS


@pytest.mark.parametrize("task", [Transcription, Segmentation, Generation])
def test_every_task_says_what_is_usual(task):
    assert sum(task.usual.values()) == pytest.approx(1) and set(task.usual) <= set(speed.PARTS)


async def test_parts_are_what_they_say(monkeypatch):
    """About 1 G operations and 64 MB of weights; with fewer blocks they run on executors that are here."""
    costs = {}
    for name in speed.PARTS:
        program, weights = speed.part(name)
        costs[name] = sum(operations(i) for i in optimise(program).instructions)
        assert all(info.end <= weights.checkpoint.files["zeros"].size for info in weights.bound.values())
        costs[f"{name} bytes"] = sum(info.end for info in weights.bound.values())
    assert 1e9 < costs["wide"] < 1.3e9 and 60e6 < costs["chain bytes"] < 70e6
    monkeypatch.setattr(speed, "PARTS", {"wide": (3, (1, 32, 64)), "chain": (1, (2, 32, 64))})
    both = [executors.create("wasm", threads=1), executors.create("numpy")]
    found = await speed.compare_speed(*both, {"wide": 0.5, "chain": 0.5})
    assert found["times"] > 0 and all(ms > 0 for pair in found["parts"].values() for ms in pair)
