"""Verification finds what is wrong on a device, and nothing where all is well. The wrong devices here are the real executors
with one kernel spoilt."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from candlewick.executors import ExecutorUnavailable, Stopped, create
from candlewick.executors.numpy import KERNELS, NumpyExecutor
from candlewick.ops import OPS
from candlewick.passes import optimise
from candlewick.verify import compared, summary, traced, verify_kernels, verify_model
from candlewick.verify.cases import cases
from candlewick.weights.load import Checkpoint

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture(params=["wasm", "webgpu"])
def executor(request):
    try:
        return create(request.param)
    except ExecutorUnavailable as e:
        pytest.skip(f"{request.param} executor: {e}")


def test_every_op_and_dtype_has_a_case_and_does_what_it_says():
    assert {case.op for case in cases()} == set(OPS)
    assert len({case.dtype for case in cases()}) > 10 and any("65537" in case.shape for case in cases())
    for case in cases():
        assert case.op in {i.op for i in optimise(traced(case)[0]).instructions}, case


async def test_kernels_are_right(executor):
    rows, seen = [], []
    # on the GPU all of them run in Chromium (tests/browser/test_page_webgpu.py)
    chosen = [case for case in cases() if case.quick] if executor.name == "webgpu" else None
    await verify_kernels(executor, rows, lambda done, total, what: seen.append((done, total)), chosen)
    assert [row for row in rows if not row["ok"]] == []
    assert summary(rows)["ok"] and summary(rows)["kernels"] > (18 if chosen else 70) and summary(rows)["checks"] == len(rows)
    assert seen[0] == (0, len(rows)) and seen[-1] == (len(rows), len(rows))
    assert executor.programs == {}


def gpu():
    try:
        return create("webgpu")
    except ExecutorUnavailable as e:
        pytest.skip(f"webgpu executor: {e}")


SPOILT = {
    "a wrong number": lambda text: text.replace("exp(", "1.001 * exp("),
    "no kernel": lambda text: text + "\nthis is no WGSL",
}


async def test_nothing_is_tried_on_a_device_that_is_gone():
    """The kernel that it went away with is named, and no other."""

    class Gone(NumpyExecutor):
        async def run(self, entry, inputs, fetch=None):
            error = RuntimeError("the GPU went away")
            error.js_error = SimpleNamespace(code="device_lost")
            raise error

    rows = []
    await verify_kernels(Gone(), rows)
    (row,) = rows
    assert not row["ok"] and row["lost"] and "went away" in row["error"] and summary(rows)["failed"] == 1


@pytest.mark.parametrize("how", SPOILT)
async def test_a_wrong_kernel_is_a_failed_row(how):
    """And only that: the others are checked all the same."""
    executor = gpu()
    prepare = executor.host.prepare

    async def spoilt(plan, on_progress=None):
        read = json.loads(plan)
        read["kernels"] = {name: SPOILT[how](text) if "attention" in name else text for name, text in read["kernels"].items()}
        await prepare(json.dumps(read), on_progress)

    executor.host.prepare = spoilt
    rows = []
    chosen = [case for case in cases() if case.op in ("attention", "matmul", "top_k")]
    await verify_kernels(executor, rows, chosen=chosen)
    failed = [row for row in rows if not row["ok"]]
    assert {row["op"] for row in failed} == {"attention"} and len(rows) == len(chosen)
    if how == "no kernel":
        assert all(row["max_abs_error"] is None and row["error"] for row in failed)
    else:
        assert all(row["max_rel_error"] > row["tolerance"] for row in failed)
    assert summary(rows) == {"ok": False, "checks": len(rows), "kernels": 3, "failed": 1}


@pytest.mark.parametrize(("got", "words"), [
    ([1.0, np.nan, 3.0], "1 of 3 numbers are not finite"), ([1.0, np.inf, 3.0], "not finite"), ([1.0, 2.0], "shape is 2"),
])
def test_numbers_that_are_none(got, words):
    row = compared(np.array(got, np.float32), np.array([1.0, 2.0, 3.0], np.float32), 1e-5)
    assert not row["ok"] and row["max_rel_error"] is None and words in row["error"]


def test_infinities_are_compared_and_zeros_have_an_error():
    infinite = np.array([-np.inf, 2.0], np.float32)
    assert compared(infinite, infinite, 0.0)["ok"]
    assert not compared(np.array([-1e30, 2.0], np.float32), infinite, 1.0)["ok"]
    assert compared(np.array([1e-3], np.float32), np.zeros(1, np.float32), 1e-4)["max_rel_error"] == pytest.approx(1e-3)


async def loaded(name, executor):
    from candlewick.commands.families import load_any

    model = await load_any(Checkpoint.open(MODELS / name))
    await executor.load(model.programs, model.weights)
    return model.weights


@pytest.mark.parametrize("name", ["test-whisper", "test-llama", "test-sam"])
async def test_a_step_of_a_model(executor, name):
    """Every entry, every op; twice, as states then hold what was there."""
    weights = await loaded(name, executor)
    for _ in range(2):
        rows = []
        await verify_model(executor, weights, rows)
        assert [row for row in rows if not row["ok"]] == []
        assert {row["entry"] for row in rows} == set(executor.programs)
        assert {row["op"] for row in rows} >= {"linear", "attention", "(whole run)"}
    await executor.close()


@pytest.mark.parametrize("op", ["linear", "rope", "update"])
async def test_the_wrong_op_of_a_model_is_named(monkeypatch, op):
    """The rest of the model, which computes with what it gave, is not blamed."""
    executor = create("numpy")
    weights = await loaded("test-llama", executor)
    right = KERNELS[op]
    rows = []

    def wrong(first, second, *more, **attrs):
        if op == "update":
            return right(first, second * np.float32(1.01), *more, **attrs)
        return right(first, second, *more, **attrs) * np.float32(1.01)

    monkeypatch.setitem(KERNELS, op, wrong)
    # the reference keeps the right kernel
    monkeypatch.setattr("candlewick.verify.KERNELS", {**KERNELS, op: right})
    await verify_model(executor, weights, rows)
    assert {row["op"] for row in rows if not row["ok"]} == {op}


async def test_a_run_in_one_submit_that_differs_is_found():
    executor = create("numpy")
    weights = await loaded("test-llama", executor)
    run = executor.run

    async def other(entry, inputs, fetch=None):
        found = await run(entry, inputs, fetch)
        return {name: array if array.dtype == np.int32 else array + 1 for name, array in found.items()}

    executor.run = other
    rows = []
    await verify_model(executor, weights, rows)
    assert {row["op"] for row in rows if not row["ok"]} == {"(whole run)"}


async def test_a_device_that_goes_away_fails_the_entry_and_the_next():
    executor = create("numpy")
    weights = await loaded("test-llama", executor)

    async def gone(entry, inputs):
        raise RuntimeError("the GPU was taken away")
        yield

    executor.steps = gone
    rows = []
    await verify_model(executor, weights, rows)
    assert len(rows) == len(executor.programs) and all(re.search("taken away", row["error"]) for row in rows)
    assert not summary(rows)["ok"]


async def test_stop_keeps_the_rows():
    rows = []

    def stop(done, total, what):
        if done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        await verify_kernels(create("numpy"), rows, stop)
    assert len(rows) == 3
