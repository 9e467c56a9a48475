"""Where models, sounds and pictures come from: files in CPython, files and addresses in a page."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import numpy as np

from candlewick import executors, image
from candlewick.audio import AudioError, read_wav
from candlewick.recording import Samples, Sound
from candlewick.weights.load import Checkpoint

IN_PAGE = sys.platform == "emscripten"


async def checkpoint(model: str | os.PathLike[str]) -> Checkpoint:
    """A checkpoint by its name, folder or file; in a page also by the URL of its folder."""
    if os.path.exists(model):
        return Checkpoint.open(os.fspath(model))
    if IN_PAGE:
        return await import_module("candlewick.api.page").checkpoint(os.fspath(model))
    from candlewick.commands.common import find_model

    return Checkpoint.open(find_model(os.fspath(model)))


async def executor(name: str, threads: int | None) -> executors.Executor:
    """An executor; in a page the kernels of the site that the package came from, where they can be had."""
    if IN_PAGE:
        return await import_module("candlewick.api.page").executor(name, threads)
    return executors.create(name, threads=threads)


async def sound(audio: Any, rate: int) -> Sound:
    """A file, its bytes, or samples at `rate` Hz. A file of CPython is read by the piece, however long it is."""
    if isinstance(audio, (bytes, bytearray, memoryview)):
        return Samples(*await decoded(bytes(audio), "the sound"))
    if isinstance(audio, (str, os.PathLike)):
        if os.path.exists(audio) and not IN_PAGE:
            from candlewick.audio_file import open_audio_file

            return await open_audio_file(os.fspath(audio))
        if os.path.exists(audio):
            with open(audio, "rb") as file:
                return Samples(*await decoded(file.read(), os.fspath(audio)))
        if IN_PAGE:
            page = import_module("candlewick.api.page")
            return Samples(*await decoded(await page.fetch(os.fspath(audio)), os.fspath(audio)))
        raise AudioError(f"recording {os.fspath(audio)}: no such file; check the path")
    samples = np.asarray(audio)
    if samples.ndim not in (1, 2) or samples.dtype.kind not in "fiu":
        raise AudioError(f"audio: wanted a file, bytes, or samples (n,) or (n, channels), got {samples.dtype} of shape "
                         f"{list(samples.shape)}")
    if samples.dtype.kind != "f":
        raise AudioError(f"audio: wanted samples as floats of -1 to 1, got {samples.dtype}; divide them by their full scale")
    if samples.ndim == 2 and samples.shape[1] > max(samples.shape[0], 32):
        raise AudioError(f"audio: wanted samples (n,) or (n, channels), got shape {list(samples.shape)}; turn it: audio.T")
    return Samples(samples.astype(np.float32, copy=False), int(rate))


async def decoded(data: bytes, name: str) -> tuple[np.ndarray, int]:
    """The bytes of a sound file. WAV is read everywhere, other kinds by a page's own decoder."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return read_wav(data)
    if IN_PAGE:
        return await import_module("candlewick.api.page").decode(data, name)
    raise AudioError(f"{name}: wanted the bytes of a WAV file; write other kinds to a file and give its path")


async def picture(picture: Any) -> np.ndarray:
    """A file, or pixels -> (height, width, 3) uint8"""
    if isinstance(picture, (str, os.PathLike)):
        if not os.path.exists(picture):
            raise ValueError(f"picture {os.fspath(picture)}: no such file; check the path")
        from candlewick.image_file import read_image

        return read_image(picture)
    return image.to_rgb(np.asarray(picture))
