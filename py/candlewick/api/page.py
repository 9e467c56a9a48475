"""The calls in a Pyodide page: models and sounds by their addresses, kernels of the site that the package came from.

JavaScript's part is workers/python.js of that site. Where it cannot be had, models run on NumPy.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Any

import numpy as np

from candlewick import executors
from candlewick.audio import AudioError
from candlewick.executors.wasm.host_browser import Host
from candlewick.tasks import BrowserSource
from candlewick.weights.load import Checkpoint
from candlewick.weights.source import WeightsError

NAME = "candlewickForPython"  # what workers/python.js leaves on the global object
PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


def _js() -> Any:
    return import_module("js")


def site() -> str:
    """Address of the site that the package came from, with a slash at its end; without one, of the page."""
    try:
        wheel = metadata.distribution("candlewick").read_text("PYODIDE_URL") or ""
    except metadata.PackageNotFoundError:
        wheel = ""
    wheel = wheel.strip()
    return str(_js().URL.new("../../", wheel if wheel.startswith("http") else _js().location.href).href)


def address(of: str) -> str:
    """A URL, or a path from the page on -> the whole URL."""
    return str(_js().URL.new(of, _js().location.href).href)


async def our_javascript() -> Any:
    """What workers/python.js exports. Raises an exception of JavaScript where it cannot be had."""
    js = _js()
    if not hasattr(js, NAME):
        url = f"{site()}workers/python.js"
        try:
            await import_module("pyodide.code").run_js("(url) => import(url)")(url)
        except Exception:
            if not hasattr(js, "document"):
                raise
            await _by_element(url)  # pages that forbid code from text allow files of their own site
    return getattr(js, NAME)


async def _by_element(url: str) -> None:
    ffi, js = import_module("pyodide.ffi"), _js()
    element = js.document.createElement("script")
    element.type, element.src = "module", url

    def begin(resolve: Any, reject: Any) -> None:
        element.addEventListener("load", resolve)
        element.addEventListener("error", ffi.create_once_callable(
            lambda _: reject(js.Error.new(f"{url} could not be loaded"))))
        js.document.head.append(element)

    starter = ffi.create_proxy(begin)
    try:
        await js.Promise.new(starter)
    finally:
        starter.destroy()


def _said(error: Any) -> str:
    """The words of an exception of JavaScript."""
    return str(getattr(getattr(error, "js_error", None), "message", None) or error)


async def checkpoint(model: str) -> Checkpoint:
    """A checkpoint of the site by its name, or any by the URL of its folder. Files are checked against their manifest."""
    named = bool(model) and set(model) <= set(PLAIN) and not model.startswith(".")
    url = f"{site()}models/{model}/" if named else address(model)
    try:
        ours = await our_javascript()
        opened = await ours.openCheckpoint(url)
    except Exception as error:
        raise WeightsError(f"model {model}: {_said(error)}") from error
    sources = opened.sources
    return Checkpoint({str(key): BrowserSource(str(key), sources.get(key)) for key in sources.keys()}, str(opened.name))


async def executor(name: str, threads: int | None) -> executors.Executor:
    """"auto" and "wasm" take kernels of the site; "auto" goes without them where they cannot be had, and says why."""
    if name == "numpy":
        return executors.create("numpy")
    if name not in ("auto", "wasm"):
        raise ValueError(f"executor: in a Pyodide page there are auto, wasm and numpy, got {name!r}")
    try:
        ours = await our_javascript()
        return executors.create("wasm", Host(await ours.kernels(threads)))
    except Exception as error:
        if name == "wasm":
            raise ValueError(f"executor wasm: {_said(error)}") from error
        made = executors.create("numpy")
        made.reason = f"kernels are not available: {_said(error)}"
        return made


async def fetch(url: str) -> bytes:
    """A file by its address."""
    whole = address(url)
    try:
        answer = await _js().fetch(whole)
    except Exception as error:
        raise AudioError(f"{whole}: could not be fetched ({_said(error)}); check the address") from error
    if not answer.ok:
        raise AudioError(f"{whole}: the server answered {answer.status} {answer.statusText}".rstrip() + "; check the address")
    return (await answer.arrayBuffer()).to_bytes()


async def decode(data: bytes, name: str) -> tuple[np.ndarray, int]:
    """Sound files that are not WAV, by the browser: only pages can, workers cannot. -> samples (n, channels), rate"""
    js, rate = _js(), 48000
    if not hasattr(js, "OfflineAudioContext"):
        raise AudioError(f"{name}: wanted a WAV file; browsers read other kinds in the page alone, and this is a worker")
    try:
        context = js.OfflineAudioContext.new(1, 1, rate)
        buffer = await context.decodeAudioData(import_module("pyodide.ffi").to_js(data).buffer)
    except Exception as error:
        raise AudioError(f"{name}: this browser cannot read it ({_said(error)}); is it a sound file?") from error
    channels = [np.frombuffer(buffer.getChannelData(i).to_bytes(), np.float32) for i in range(buffer.numberOfChannels)]
    return np.stack(channels, axis=1), rate
