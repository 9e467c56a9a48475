"""What several commands share: errors in words, finding a checkpoint, writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from candlewick.options import OptionError

if TYPE_CHECKING:  # --help imports no model
    from candlewick.weights.load import Checkpoint


WEIGHTS = (".safetensors", ".npz", ".bin", ".pt", ".pth", ".gguf")
"""Endings of files that hold tensors."""


NOT_HERE = "{model} {name}: its weights are not here yet; run `python3 serve.py --setup` to fetch them"


class Failure(Exception):
    """Something a person can put right: the message says what was wanted, what came and what to do."""


def checkout() -> Path | None:
    """Root of the source checkout this package runs from, or None for an installed wheel."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "serve.py").is_file() and (root / "workers").is_dir() else None


def model_roots() -> list[Path]:
    """Folders whose sub-folders are checkpoints, in the order they are searched."""
    roots = [Path(folder) for folder in os.environ.get("CANDLEWICK_MODELS", "").split(os.pathsep) if folder]
    roots.append(Path("models"))
    if (root := checkout()) is not None:
        roots.append(root / "models")
    seen: dict[Path, None] = {}
    for folder in roots:
        if folder.is_dir():
            seen.setdefault(folder.resolve())
    return list(seen)


def is_checkpoint(folder: Path) -> bool:
    """A folder that says its architecture and holds weights, in one file or in shards; or a file that holds both."""
    if (folder / "config.json").is_file():
        return any(any(folder.glob(f"*{ending}")) for ending in WEIGHTS)
    bins = list(folder.glob("*.bin"))
    if any(folder.glob("*.gguf")) or ((folder / "tokenizer.bin").is_file() and len(bins) > 1):
        return True
    return len(bins) == 1 and begins_with(bins[0], b"lmgg")  # whisper.cpp's


def begins_with(path: Path, magic: bytes) -> bool:
    """Whether the file can be read and has these first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def available_models() -> dict[str, Path]:
    """Checkpoints that can be named on the command line; the first root that has a name wins."""
    found: dict[str, Path] = {}
    for root in model_roots():
        for folder in sorted(root.iterdir()):
            if folder.is_dir() and is_checkpoint(folder):
                found.setdefault(folder.name, folder)
    return found


def find_model(name: str) -> Path:
    """The folder of a checkpoint given by path or by name. Raises OptionError with the names that would work."""
    path = Path(name)
    if path.is_dir():
        if is_checkpoint(path):
            return path
        if (path / "manifest.json").is_file():
            raise OptionError(NOT_HERE, name=name)
        raise OptionError("{model} {name}: this folder has no config.json with a .safetensors file beside it, and no .gguf or "
                          "whisper.cpp file; give a checkpoint folder in the layout of Hugging Face", name=name)
    if path.is_file():
        raise OptionError("{model} {name} is a file; give the folder that holds it with its config.json and tokenizer.json",
                          name=name)
    models = available_models()
    if name in models:
        return models[name]
    for root in model_roots():
        if (root / name / "manifest.json").is_file():
            raise OptionError(NOT_HERE, name=name)
    have = ", ".join(models) or "none; run `python3 serve.py --setup`, or set CANDLEWICK_MODELS"
    raise OptionError("{model} {name} not found; available models: {have}", name=name, have=have)


def find_checkpoint(name: str) -> Checkpoint:
    """The checkpoint of any model: a folder or a name as for find_model, or a file (see Checkpoint.open)."""
    from candlewick.weights.load import Checkpoint

    path = Path(name)
    return Checkpoint.open(path if path.is_file() else find_model(name))


def find_speech_model(name: str) -> Path:
    """The folder of a Whisper, as find_model, or its whisper.cpp file. Raises OptionError."""
    path = Path(name)
    if path.is_file() and path.suffix.lower() != ".bin":
        raise OptionError("{model} {name} is a file; give the folder that holds it with its config.json and "
                          "tokenizer.json, or a whisper.cpp .bin file", name=name)
    if path.is_file() and path.stat().st_size == 0:
        raise OptionError("{model} {name}: the file is empty (0 bytes)", name=name)
    return path if path.is_file() else find_model(name)


def find_text_model(name: str, tokenizer: Path | None = None) -> Checkpoint:
    """The checkpoint of a language model, as find_checkpoint.

    tokenizer: the tokenizer.bin of a llama2.c file, where it does not lie beside it. Raises OptionError.
    """
    from candlewick.weights.load import Checkpoint
    from candlewick.weights.source import FileSource

    if tokenizer is None:
        return find_checkpoint(name)
    path = Path(name)
    if not path.is_file() or path.suffix.lower() != ".bin":
        raise OptionError("{tokenizer} {given}: for llama2.c .bin files alone, and {model} {name} is none; other models bring "
                          "their own", given=tokenizer, name=name)
    if not tokenizer.is_file():
        raise OptionError("{tokenizer} {given}: no such file; check the path", given=tokenizer)
    return Checkpoint({path.name: FileSource(path), "tokenizer.bin": FileSource(tokenizer)}, path.stem)


def readable(path: Path, kind: str) -> Path:
    """Fails now, before the long work, if `path` is no file that could be read. kind: what is wanted, "an audio file"."""
    if path.is_dir():
        raise OptionError("{input} {path} is a folder; give {kind}", path=path, kind=kind)
    if not path.exists():
        raise OptionError("{input} {path}: no such file; check the path", path=path)
    if not os.access(path, os.R_OK):
        raise OptionError("{input} {path}: no permission to read it; change its rights, or give another one", path=path)
    return path


def only_with(option: str, given: bool, other: str, there: bool) -> None:
    """Refuses an option that would be ignored, because it says something about another one."""
    if given and not there:
        raise Failure(f"{option} does nothing without {other}; give both, or none")


def writable(path: Path, *read: Path) -> Path:
    """Fails now, before the long work, if `path` could not be written in the end, or is one of those that are `read`."""
    if any(path.is_file() and other.is_file() and path.samefile(other) for other in read):
        raise OptionError("{output} {path} is what is to be read; give another name", path=path)
    if path.is_dir():
        raise OptionError("{output} {path} is a folder; give the name of a file in it", path=path)
    if path.exists() and not path.is_file():  # a pipe or a device: written in place
        return path
    folder = path.parent
    if not folder.is_dir():
        raise OptionError("{output} {path}: the folder {folder} does not exist; make it first", path=path, folder=folder)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".candlewick-"):
            pass
    except OSError as error:
        raise OptionError("{output} {path}: cannot write in {folder} ({why}); choose another folder", path=path, folder=folder,
                          why=error.strerror) from error
    return path


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes beside the target and renames, so that an interrupted write leaves the old file or none."""
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        try:
            path.write_bytes(data)
        except OSError as error:  # which does not know the name any more
            raise OSError(error.errno, error.strerror, str(path)) from error
        return
    path = path.resolve()  # a link keeps pointing at what is written
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~current_umask()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".candlewick-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def stdout() -> TextIO:
    """Standard output; Failure where whoever started us has closed it (Python then has None)."""
    if sys.stdout is None:
        raise Failure("standard output is closed; give a file with -o")
    return sys.stdout


def emit(text: str, output: Path | None) -> None:
    """To the file, or to stdout for None and `-`."""
    if output is None or str(output) == "-":
        stdout().write(text if text.endswith("\n") or not text else text + "\n")
        stdout().flush()
    else:
        write_whole(output, text if text.endswith("\n") or not text else text + "\n")


TYPED = {"beam_size": "--beam", "initial_prompt": "--prompt", "carry_initial_prompt": "--carry-prompt",
         "context": "--fast", "temperatures": "--temperature", "word_timestamps": "--words", "points": "--point"}
"""Options that have other names on the command line than in Python; the others differ by the dashes alone."""


@contextlib.contextmanager
def failures(**typed: str) -> Iterator[None]:
    """Turns what a person can put right into one line on stderr and exit status 1; Ctrl-C into 130.

    typed: what this command calls an option, where that is neither its name with dashes nor in TYPED. CANDLEWICK_DEBUG=1 lets
    the traceback through.
    """
    import typer

    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left: no second complaint at exit
        raise typer.Exit(1) from None
    except Exception as error:
        if os.environ.get("CANDLEWICK_DEBUG") or not isinstance(error, expected()):
            raise
        said = error.said(lambda name: (TYPED | typed).get(name) or "--" + name.replace("_", "-")) \
            if isinstance(error, OptionError) else describe(error)
        typer.echo(f"error: {said}", err=True)
        raise typer.Exit(1) from None


def expected() -> tuple[type[Exception], ...]:
    """Errors that are about what was asked or what is here; all others are our own mistakes and keep their traceback."""
    kinds = (Failure, OSError, ValueError, MemoryError, ModuleNotFoundError)
    executors = sys.modules.get("candlewick.executors")  # not imported for the sake of an error
    return kinds if executors is None else (*kinds, executors.ExecutorUnavailable)


OS_ADVICE = {
    errno.ENOSPC: "no space left on the disk; free some, or write to another one",
    errno.EDQUOT: "your share of the disk is used up; free some, or write to another one",
    errno.EACCES: "no permission to read or write it; change its rights, or choose another place",
    errno.EPERM: "no permission to read or write it; change its rights, or choose another place",
    errno.ELOOP: "a link that leads back to itself; give the file it should lead to",
    errno.ENAMETOOLONG: "the name is too long for a file; check the path",
}


def describe(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{error.filename}: no such file; check the path" if error.filename else str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        return where + OS_ADVICE.get(error.errno or 0, error.strerror[0].lower() + error.strerror[1:])
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory; close other programs or choose a smaller model"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"this needs the Python package {error.name}: pip install {error.name}"
    return str(error) or type(error).__name__
