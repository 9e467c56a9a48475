"""`candlewick convert`: a llama checkpoint of one kind of file into another."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from candlewick.commands.common import find_text_model, writable
from candlewick.options import OptionError

OTHERS = (".pt", ".pth", ".ckpt", ".npz", ".onnx", ".ggml", ".json", ".txt", ".zip", ".pdf")
"""Endings that nobody gives a folder."""


def convert(source: str, target: Path, dtype: str | None, tokenizer: Path | None, quiet: bool) -> None:
    """source: as `generate --model` takes it; target: x.gguf, x.bin (llama2.c), or a folder in Hugging Face's layout."""
    kind = target_kind(target)
    checkpoint = find_text_model(source, tokenizer)
    if any(getattr(file, "path", None) is not None and file.path.resolve() == target.resolve()
           for file in checkpoint.files.values()):
        raise OptionError("{output} {path} is the file to convert; give another name", path=target)
    report = asyncio.run(run(checkpoint, target, kind, dtype, lambda *_: None if quiet else progress(*_)))
    if not quiet:
        print(report, file=sys.stderr)


def target_kind(target: Path) -> str:
    """-> "gguf", "llama2c" or "folder". Fails now, before the long work, if it could not be written."""
    suffix = target.suffix.lower()
    if target.name == "tokenizer.bin":
        raise OptionError("{output} {path}: that is where the tokenizer goes; give the model another name", path=target)
    if suffix in (".gguf", ".bin"):
        writable(target)
        return {".gguf": "gguf", ".bin": "llama2c"}[suffix]
    if suffix == ".safetensors":
        raise OptionError("{output} {path}: give a folder; config.json and tokenizer.json belong beside model.safetensors",
                          path=target)
    if suffix in OTHERS or (target.exists() and not target.is_dir()):
        raise OptionError("{output} {path} is no folder's name; give x.gguf, x.bin (llama2.c) or a new folder", path=target)
    if target.is_dir() and any(target.iterdir()):
        raise OptionError("{output} {path}: the folder is not empty; give a new one, so that files of two models do not mix",
                          path=target)
    if not target.parent.is_dir():
        raise OptionError("{output} {path}: the folder {folder} does not exist; make it first", path=target,
                          folder=target.parent)
    return "folder"


async def run(checkpoint: Any, target: Path, kind: str, dtype: str | None, on_progress: Any) -> str:
    """Convert -> a sentence on what was written. Raises WeightsError for what the target cannot hold."""
    from candlewick.models.llama.programs import load_model
    from candlewick.text import transfer
    from candlewick.weights.convert import write_llama
    from candlewick.weights.convert.llama import read_llama
    from candlewick.weights.source import WeightsError

    # what cannot run is not written in another form
    await load_model(checkpoint)
    files = await read_llama(checkpoint)
    given = files.tokenizer
    note = ""

    def metadata() -> dict[str, Any]:
        return transfer.to_gguf(given.kind, given.data, given.config, files.config["vocab_size"])

    if kind == "gguf":
        await write_llama.write_gguf(checkpoint, files, target, dtype, metadata(), on_progress)
    elif kind == "folder":
        ids = {key: files.config[key] for key in ("bos_token_id", "eos_token_id") if files.config.get(key) is not None}
        if given.kind == "json":
            spec, settings = given.data, {k: v for k, v in given.config.items() if k not in ("bos_token_id", "eos_token_id")}
        else:
            meta = metadata()
            spec, settings = transfer.to_json(meta)
            ends = [meta[key] for name in ("eos", "eot", "eom") if (key := f"tokenizer.ggml.{name}_token_id") in meta]
            if len(ends) > 1:
                ids["eos_token_id"] = ends
        if files.chat_template is not None:
            settings["chat_template"] = files.chat_template
        await write_llama.write_folder(checkpoint, files, target, dtype, {
            "tokenizer.json": spec, "tokenizer_config.json": settings, "generation_config.json": ids}, on_progress)
    else:
        data = given.data if given.kind == "llama2c" else None
        if data is None:
            try:
                data = transfer.to_llama2c(metadata())
            except WeightsError:
                raise
            except ValueError as error:
                note = f"; without a tokenizer.bin: {error}"
        beside = target.with_name("tokenizer.bin")
        if beside.exists() and (data is None or beside.read_bytes() != data):
            raise OptionError("{output} {path}: {beside} is another model's tokenizer, which readers would take for this "
                              "one's; write into a folder of its own", path=target, beside=beside)
        await write_llama.write_llama2c(checkpoint, files, target, dtype, data, on_progress)
    size = target.stat().st_size if target.is_file() else sum(p.stat().st_size for p in target.iterdir())
    return f"{target}: {len(files.tensors)} tensors, {size:,} bytes{note}"


_shown = [0.0]


def progress(done: int, total: int) -> None:
    """A line on a terminal that is written over, a few times a second."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    now = time.monotonic()
    if now - _shown[0] > 0.2 or done == total:
        _shown[0] = now
        print(f"\r{done / 1e6:,.0f} of {total / 1e6:,.0f} MB", end="\n" if done == total else "", file=sys.stderr, flush=True)
