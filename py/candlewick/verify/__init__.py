"""Does this device compute what it should? Each kernel, and one step of a loaded model, against the numpy kernels.

Drivers are often wrong in silence, so the answer is never an exception: whatever goes wrong in a check is a row that failed.

A row is {op, dtype, shape, max_abs_error, max_rel_error, tolerance, ok}; `max_rel_error` is the largest absolute error as a
share of the largest magnitude that was wanted, and `tolerance` is what it may be. Errors are null where a number is missing or
not finite; then `error` says what happened, and `lost` whether the device went away. Rows of a model have `entry` and the
instruction that was worst.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import nn
from ..dtypes import QUANTISED
from ..executors import Executor, Stopped, checked_inputs
from ..executors.example import advance, example_inputs
from ..executors.numpy import KERNELS, NumpyExecutor
from ..program import Instruction, Program, Value
from ..trace import Spec, trace
from ..weights.load import Checkpoint, Weights
from ..weights.safetensors import TensorInfo
from ..weights.source import MemorySource
from .cases import Case, cases, size_words

Progress = Callable[[int, int, str], Any]
"""on_progress(done, total, words); it may raise executors.Stopped, and what there is by then is kept in the list of rows."""

EXACT = {"reshape", "transpose", "slice", "concat", "pad", "rows", "update", "take", "top_k", "argmax", "cast", "max",
         "maximum", "minimum", "neg", "relu"}
"""Ops that choose or move numbers: any difference is a fault."""
PRODUCTS = {"linear", "conv1d", "conv2d", "conv_transpose2d", "matmul", "attention", "window_attention", "layer_norm",
            "rms_norm", "log_sum_exp", "softmax", "log_softmax", "sum", "mean"}
"""Ops that sum: any order of the terms is right."""


def tolerance(op: str, dtype: str, executor: str) -> float:
    """Largest error allowed, as a share of the largest magnitude that was wanted, in float32 (machine epsilon 1.2e-7).

    Sums of some thousand terms in another order, with activations that cancel, differ by some hundred epsilons. WGSL allows
    sin and cos an absolute error of 2^-11, and other functions a few units in the last place for each unit of the argument.
    The wasm kernels round the activations that meet a quantised weight to 8 bits where there are several rows.
    """
    if op in EXACT:
        return 0.0
    if op == "linear" and dtype in QUANTISED and executor == "wasm":
        return 0.03
    if op == "embedding":
        return 1e-6
    if op in ("sin", "cos"):
        return 2.0**-11
    return 1e-4 if op in PRODUCTS else 2e-5


def compared(got: Any, want: Any, allowed: float) -> dict[str, Any]:
    """{max_abs_error, max_rel_error, tolerance, ok} and perhaps `error`, of two arrays."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return failed(allowed, f"the shape is {size_words(got.shape)}, wanted {size_words(want.shape)}")
    if not want.size:
        return {"max_abs_error": 0.0, "max_rel_error": 0.0, "tolerance": allowed, "ok": True}
    finite = np.isfinite(want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if not np.isfinite(got[finite]).all():
        return failed(allowed, f"{int((~np.isfinite(got[finite])).sum())} of {want.size} numbers are not finite")
    if not same[~finite].all():
        return failed(allowed, f"{int((~same[~finite]).sum())} of {want.size} numbers should be infinite and are not")
    wanted = want[finite].astype(np.float64)
    worst = float(np.abs(got[finite] - wanted).max()) if wanted.size else 0.0
    scale = float(np.abs(wanted).max()) if wanted.size else 0.0
    relative = worst / scale if scale else worst
    return {"max_abs_error": worst, "max_rel_error": relative, "tolerance": allowed, "ok": relative <= allowed}


def failed(allowed: float, why: str) -> dict[str, Any]:
    return {"max_abs_error": None, "max_rel_error": None, "tolerance": allowed, "ok": False, "error": why}


def broken(allowed: float, error: Exception) -> dict[str, Any]:
    """A row of what ended with an error. Of a device that went away, or said nothing in time, `lost` says so: that tells
    nothing of its kernels."""
    js_error = getattr(error, "js_error", None)  # its text as Python has it begins with its class
    words = str(getattr(js_error, "message", "") or error) or type(error).__name__
    return {**failed(allowed, words), **({"lost": True} if is_lost(error) else {})}


def is_lost(error: Exception) -> bool:
    return getattr(getattr(error, "js_error", None), "code", "") == "device_lost"


# ---- every kernel -----------------------------------------------------------------------------------------------


def traced(case: Case, number: str = "") -> tuple[Program, Weights]:
    """The case's Program, and its weights in one file in memory. number: ends their names, to have several."""

    class Holder(nn.Module):
        pass

    holder, data, bound = Holder(), b"", {}
    for name, part in case.data().items():
        dtype, shape = case.weights[name]
        setattr(holder, name, nn.Parameter(shape, dtype, name + number))
        bound[name + number] = TensorInfo(name + number, dtype, shape, "weights", len(data), len(data) + len(part))
        data += part
    specs = {n: Spec(a.shape, "i32" if a.dtype == np.int32 else "f32") for n, a in case.arrays().items()}
    program = trace(lambda **symbols: case.fn(holder, **symbols), specs, tuple(case.scalars))
    return program, Weights(Checkpoint({"weights": MemorySource(data, "weights")}), bound)


async def verify_kernels(executor: Executor, rows: list[dict[str, Any]], on_progress: Progress | None = None,
                         chosen: list[Case] | None = None) -> None:
    """Append a row for each case, by default for all that the device can do in seconds. The executor must be empty, and is
    empty afterwards."""
    if chosen is None:
        emulated = getattr(getattr(executor, "host", None), "adapter", {}).get("software", False)
        chosen = [case for case in cases() if not (case.large and emulated)]
    for done, case in enumerate(chosen):
        if on_progress:
            on_progress(done, len(chosen), case.op)
        found, lost = await checked(executor, case)
        rows.append({"op": case.op, "dtype": case.dtype, "shape": case.shape, **found})
        if lost:  # the others cannot be tried on it, and are not to blame
            break
        await asyncio.sleep(0)
    if on_progress:
        on_progress(len(chosen), len(chosen), "")


async def checked(executor: Executor, case: Case) -> tuple[dict[str, Any], bool]:
    """-> what was found, and whether the device is gone"""
    allowed = tolerance(case.op, case.dtype, executor.name)
    try:
        program, weights = traced(case)
        inputs = {**case.arrays(), **case.scalars}
        reference = NumpyExecutor()
        await reference.load({"case": program}, weights)
        want = (await reference.run("case", inputs))["out"]
        try:
            await executor.load({"case": program}, weights)
            got = (await executor.run("case", inputs))["out"]
        finally:
            await executor.close()
        return compared(got, want, allowed), False
    except Stopped:
        raise
    except Exception as error:  # a wrong kernel may do anything
        return broken(allowed, error), is_lost(error)


# ---- one step of a model ----------------------------------------------------------------------------------------


async def verify_model(executor: Executor, weights: Any, rows: list[dict[str, Any]], on_progress: Progress | None = None,
                       known: Mapping[str, Any] | None = None) -> None:
    """Append rows for each entry that is loaded: one for each op and dtype of weights.

    Every instruction is compared alone: the numpy kernel gets the values that the device made before. What the whole entry
    gives in one submit is then compared with what it gave step by step. Outputs are inputs of the next entry, as in use.
    weights: where the loaded model's tensors are read from; one after the other, so that few are in memory.
    """
    walk = Walk(executor, weights, rows)
    found = dict(known or {})
    total = sum(len(p.instructions) for p in executor.programs.values())
    done = position = 0
    for entry, program in executor.programs.items():
        inputs = example_inputs(program, position, found)
        position += advance(program)

        def report(steps: int, entry: str = entry, done: int = done) -> None:
            if on_progress:
                on_progress(done + steps, total, entry)

        found |= await walk.entry(entry, inputs, report)
        done += len(program.instructions)
    if on_progress:
        on_progress(total, total, "")


class Walk:
    """What the states hold, from entry to entry."""

    def __init__(self, executor: Executor, weights: Any, rows: list[dict[str, Any]]) -> None:
        self.executor, self.weights, self.rows = executor, weights, rows
        self.numpy = NumpyExecutor()
        self.states: dict[str, np.ndarray] = {}

    async def entry(self, entry: str, inputs: Mapping[str, Any], report: Callable[[int], None]) -> dict[str, np.ndarray]:
        """-> the outputs of the whole run."""
        program = self.executor.programs[entry]
        worst: dict[tuple[str, str], dict[str, Any]] = {}
        values = checked_inputs(program, inputs)
        kept = {v.name for v in program.outputs.values()}
        last = {a.name: n for n, i in enumerate(program.instructions) for a in i.args if a is not None and a.kind == "temp"}
        done = 0
        try:
            async for instruction, got in self.executor.steps(entry, inputs):
                report(done)
                await self.step(entry, instruction, got, values, worst)
                for a in instruction.args:
                    if a is not None and a.kind == "temp" and last[a.name] == done and a.name not in kept:
                        values.pop(a.name, None)
                done += 1
                await asyncio.sleep(0)
            outputs = await self.executor.run(entry, inputs)
            for name, value in program.outputs.items():
                wanted = (self.states if value.kind == "state" else values).get(value.name)
                if wanted is not None and value.dtype != "i32":  # equal values may change places
                    row = {"op": "(whole run)", "dtype": "f32", "shape": f"{name}: {size_words(value.shape)}", "entry": entry}
                    keep(worst, ("(whole run)", "f32"), {**row, **compared(outputs[name], wanted, 1e-3)})
            return outputs
        except Stopped:
            raise
        except Exception as error:  # a wrong kernel may do anything
            if done < len(program.instructions):
                at = program.instructions[done]
                row = {"op": at.op, "dtype": weight_dtype(at), "shape": size_words(at.out.shape), "entry": entry}
            else:
                row = {"op": "(whole run)", "dtype": "f32", "shape": "", "entry": entry}
            keep(worst, (row["op"], row["dtype"]), {**row, **broken(0.0, error)})
            return {}
        finally:
            self.rows += worst.values()

    async def step(self, entry: str, i: Instruction, got: np.ndarray, values: dict[str, Any], worst: dict) -> None:
        if i.op == "update" and i.out.name not in self.states:
            self.states[i.out.name] = got.copy()  # of what was in it before, only what is written now can be checked
        if all(a is None or a.kind != "state" or a.name in self.states for a in i.args):
            dtype = weight_dtype(i)
            with np.errstate(all="ignore"):
                want = KERNELS[i.op](*[await self.value(a, values) for a in i.args], **i.attrs)
            row = {"op": i.op, "dtype": dtype, "shape": operand_words(i), "entry": entry}
            keep(worst, (i.op, dtype), {**row, **compared(got, want, tolerance(i.op, dtype, self.executor.name))})
        if i.out.kind == "temp":
            values[i.out.name] = got
        elif i.out.kind == "state":
            self.states[i.out.name] = got

    async def value(self, v: Value | None, values: Mapping[str, Any]) -> Any:
        if v is None:
            return None
        if v.kind == "number":
            return np.float32(v.number)
        if v.kind in ("weight", "constant"):
            return await self.numpy._array(v, self.weights)
        return self.states[v.name] if v.kind == "state" else values[v.name]


def weight_dtype(i: Instruction) -> str:
    return next((a.dtype for a in i.args if a is not None and a.kind == "weight"), i.out.dtype)


def operand_words(i: Instruction) -> str:
    return ", ".join(size_words(a.shape) for a in i.args if a is not None and a.shape)


def keep(worst: dict, key: tuple[str, str], row: dict[str, Any]) -> None:
    """The worst row of its kind, with how many it stands for."""
    before = worst.get(key)
    if before is None or badness(row) > badness(before):
        worst[key] = {**row, "checks": 0}
    worst[key]["checks"] = (before["checks"] if before else 0) + 1


def badness(row: Mapping[str, Any]) -> float:
    error = row["max_rel_error"]
    return math.inf if error is None else error / (row["tolerance"] or 1e-30)


# ---- the verdict ------------------------------------------------------------------------------------------------


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """{ok, checks, kernels, failed}: kernels are the different op and dtype pairs, failed those with a row that failed."""
    kinds = {(row["op"], row["dtype"]) for row in rows if row["op"] != "(whole run)"}
    wrong = {(row["op"], row["dtype"]) for row in rows if not row["ok"]}
    return {"ok": bool(rows) and not wrong, "checks": sum(row.get("checks", 1) for row in rows), "kernels": len(kinds),
            "failed": len(wrong)}
