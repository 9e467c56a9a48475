"""The request `verify` of the engine worker: a step of the loaded model, stopped, and what it leaves behind."""

from __future__ import annotations

import json

import pytest

from candlewick.executors.numpy import KERNELS
from tests.unit.test_worker import Page, load, sources, tone, transcribe, worker

PLAIN = {"temperatures": [0.0], "no_speech_threshold": None, "logprob_threshold": None}


@pytest.fixture
def page():
    return Page()


@pytest.fixture
def engine(page):
    return worker.Worker(page)


async def verify(engine, files):
    return json.loads(await engine.verify(None, files))


async def test_a_step_of_the_model(engine, page):
    await load(engine)
    before = (await transcribe(engine, tone(), **PLAIN))["result"]["segments"]
    page.events.clear()
    found = (await verify(engine, sources()))["result"]
    assert found["ok"] and found["failed"] == 0 and found["kernels"] > 10
    assert {row["entry"] for row in found["rows"]} >= {"mel", "encode", "decode_1"}
    stages = [(event["stage"], event["wrong"]) for event in page.events if event["event"] == "progress"]
    assert set(map(str, stages)) == {"('verify model', [])"} and page.events[-1]["done"] == page.events[-1]["total"]
    assert (await transcribe(engine, tone(), **PLAIN))["result"]["segments"] == before


async def test_what_is_wrong_is_told_on_the_way_and_at_a_stop(engine, page, monkeypatch):
    await load(engine)

    def other(*args, **how):
        return KERNELS["linear"](*args, **how) + 1

    monkeypatch.setattr("candlewick.verify.KERNELS", {**KERNELS, "linear": other})
    page.cancel_after = len(page.events) + 120
    error = (await verify(engine, sources()))["error"]
    assert error["code"] == "cancelled" and not error["data"]["result"]["ok"]
    assert {row["op"] for row in error["data"]["result"]["rows"] if not row["ok"]} == {"linear"}
    assert page.events[-1]["wrong"] == ["linear"]
    page.cancel_after = None
    assert "result" in await transcribe(engine, tone(), **PLAIN)


async def test_a_file_that_cannot_be_read_again_is_a_failed_row(engine):
    await load(engine)

    class Gone:
        size = 10**9

        async def read(self, start, end):
            raise OSError("the file is gone")

    files = sources()
    files["model.safetensors"] = Gone()
    found = (await verify(engine, files))["result"]
    assert not found["ok"] and any("the file is gone" in row.get("error", "") for row in found["rows"])
