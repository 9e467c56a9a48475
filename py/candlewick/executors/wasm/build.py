"""Compiles `kernels/*.c` into the four WebAssembly modules of `workers/`, and writes `kernels/abi.h` from `abi.py`.

    python -m candlewick.executors.wasm.build            # needs ziglang (clang in a PyPI wheel): requirements-dev.txt
    python -m candlewick.executors.wasm.build --check    # exit status 1 if a committed file is not what it would write

The modules are committed, so that only people who change a kernel need a compiler; the same compiler version gives the
same bytes. `threads` modules import a shared memory and use atomics, `single` ones a plain memory; `relaxed` ones use
the fused multiply-add of relaxed SIMD, `simd128` ones run where that is missing.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from . import abi

ZIG_VERSION = "0.17.1"
HERE = Path(__file__).parent
KERNELS = HERE / "kernels"
WORKERS = HERE.parents[3] / "workers"

MAX_MEMORY = 0xFFFF0000
"""One 64 KiB page less than 4 GiB: the linker refuses the full 4 GiB."""

BASE_FEATURES = "simd128+bulk_memory+mutable_globals+nontrapping_fptoint+sign_ext"
VARIANTS = {
    "threads.relaxed": "relaxed_simd+atomics",
    "threads.simd128": "atomics",
    "single.relaxed": "relaxed_simd",
    "single.simd128": "",
}


class BuildError(RuntimeError):
    """The compiler is missing, has another version, or rejected the sources (its words are in the message)."""


def module_path(variant: str) -> Path:
    """The committed module of a variant, for example `workers/kernels.threads.relaxed.wasm`."""
    return WORKERS / f"kernels.{variant}.wasm"


def header() -> str:
    """The text of `kernels/abi.h`: ids, one struct of arguments a kernel, and the codes of `abi.py`."""
    lines = ["/* Written by build.py from abi.py: change that table, not this file. */", "#pragma once",
             "#include <stdint.h>", "", f"#define PANEL {abi.PANEL}", f"#define QPANEL {abi.QPANEL}"]
    lines.append(f"#define ATTENTION_PACK_MIN {abi.ATTENTION_PACK_MIN}")
    lines.append("#define KERNELS(X) " + " ".join(f"X({name})" for name in abi.KERNELS))
    lines.append("")
    for title, table in (("KERNEL", abi.IDS), ("DTYPE", abi.SOURCE_DTYPES), ("PACK", abi.PACK_KINDS),
                         ("ACTIVATION", abi.ACTIVATIONS), ("UNARY", abi.UNARY), ("BINARY", abi.BINARY),
                         ("REDUCE", abi.REDUCE)):
        lines.append(f"enum {{ {', '.join(f'{title}_{name} = {value}' for name, value in table.items())} }};")
    for name, arguments in abi.KERNELS.items():
        lines += ["", "typedef struct {"]
        lines += [f"    {'float' if argument in abi.FLOATS else 'int32_t'} {argument};" for argument in arguments]
        lines.append(f"}} {name}_args;")
    return "\n".join(lines) + "\n"


def check_compiler() -> None:
    """Raises BuildError unless the ziglang that the committed modules were made with is installed."""
    if importlib.util.find_spec("ziglang") is None:
        raise BuildError(f"building kernels needs ziglang=={ZIG_VERSION}, which is not installed; "
                         "pip install -r requirements-dev.txt")
    version = metadata.version("ziglang")
    if version != ZIG_VERSION:
        raise BuildError(f"building kernels needs ziglang=={ZIG_VERSION}, found {version}; "
                         "other versions give other bytes")


def compile_module(variant: str, target: Path) -> None:
    """Compiles one variant of VARIANTS into the file `target`."""
    extra = VARIANTS[variant]
    command = [sys.executable, "-m", "ziglang", "cc", "--target=wasm32-freestanding", "-std=c11", "-O3", "-g0",
               "-nostdlib", "-ffreestanding", "-fno-math-errno", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror",
               f"-mcpu=generic+{BASE_FEATURES}" + (f"+{extra}" if extra else ""),
               "-Wl,--no-entry", "-Wl,--import-memory", "-Wl,--strip-all", "-Wl,-z,stack-size=65536",
               "-Wl,--export=__stack_pointer", "-Wl,--export=__heap_base"]
    if "atomics" in extra:
        command += ["-Wl,--shared-memory", f"-Wl,--max-memory={MAX_MEMORY}"]
    # Relative names in sorted order: neither the checkout's place nor the file system's order reaches the bytes.
    command += sorted(path.name for path in KERNELS.glob("*.c")) + ["-o", str(target)]
    done = subprocess.run(command, cwd=KERNELS, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"compiling kernels.{variant} failed:\n{done.stderr}")


def build(folder: Path = WORKERS) -> list[Path]:
    """Writes abi.h and all modules into `folder`; returns the modules."""
    check_compiler()
    (KERNELS / "abi.h").write_text(header())
    folder.mkdir(parents=True, exist_ok=True)
    targets = []
    for variant in VARIANTS:
        targets.append(folder / module_path(variant).name)
        compile_module(variant, targets[-1])
    return targets


def stale() -> list[str]:
    """Names of committed files that are not what the sources give now; writes nothing into the tree."""
    check_compiler()
    path = KERNELS / "abi.h"
    if not path.is_file() or path.read_text() != header():
        return ["abi.h"]
    names = []
    with tempfile.TemporaryDirectory() as folder:
        for variant in VARIANTS:
            fresh = Path(folder) / "kernels.wasm"
            compile_module(variant, fresh)
            committed = module_path(variant)
            if not committed.is_file() or committed.read_bytes() != fresh.read_bytes():
                names.append(committed.name)
    return names


def main(arguments: list[str]) -> int:
    try:
        if arguments == ["--check"]:
            names = stale()
            print(f"stale: {', '.join(names)}; run {__package__}.build" if names else "up to date")
            return 1 if names else 0
        for path in build():
            print(f"{path.name}: {path.stat().st_size:,} bytes")
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
