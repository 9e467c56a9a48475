"""`candlewick graph`: the Program of one entry, as text, JSON or a drawing."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

from candlewick.commands.common import Failure, emit, find_checkpoint, only_with, writable, write_whole
from candlewick.options import OptionError

SUFFIXES = {".txt": "text", ".dot": "dot", ".svg": "svg", ".json": "json"}


def graph(model: str, entry: str | None, output: Path | None, passes: bool) -> None:
    """Writes the Program of `entry`; without an entry prints the names there are."""
    form = "text"
    if output is not None and str(output) != "-":
        form = SUFFIXES.get(output.suffix.lower(), "")
        if not form:
            raise OptionError("{output} {path}: the ending says the form and must be one of {endings}", path=output,
                              endings=", ".join(SUFFIXES))
        output = writable(output)
    only_with("--output", output is not None, "an entry, which says what to write", entry is not None)
    programs = asyncio.run(traced(find_checkpoint(model)))
    if entry is None:
        for name, program in programs.items():
            print(f"{name:<12} {len(program.instructions)} instructions")
        return
    if entry not in programs:
        raise OptionError("{entry} {name}: {model} {of} has no such entry; it has {there}", name=entry, of=model,
                          there=", ".join(programs))
    program = programs[entry]
    if passes:
        from candlewick.passes import optimise

        program = optimise(program)
    if form == "svg":
        write_whole(output, draw(to_dot(program)))
        return
    emit({"text": str, "json": lambda p: p.to_json(), "dot": to_dot}[form](program), output)


async def traced(checkpoint: Any) -> dict[str, Any]:
    """The Programs of a checkpoint by entry name; no weights are read."""
    from candlewick.commands.families import load_any

    return (await load_any(checkpoint)).programs


def to_dot(program: Any) -> str:
    """The Program in Graphviz's language: a box an instruction, grey notes for weights, state and scalars."""
    from candlewick.ops import OPS

    lines = ["digraph program {", "  rankdir=TB; node [shape=box, fontname=monospace, fontsize=10];",
             f"  label={quote(program.name)};"]
    made: dict[str, str] = {}
    for value in (*program.inputs.values(), *program.scalars.values()):
        made[str(value)] = str(value)
        lines.append(f"  {quote(str(value))} [shape=ellipse, label={quote(f'{value} {value.type}')}];")
    for number, instruction in enumerate(program.instructions):
        box = f"i{number}"
        title = [instruction.op, f"{instruction.out} {instruction.out.type}"]
        usual = OPS[instruction.op].attrs
        title += [f"{key}={value}" for key, value in instruction.attrs.items() if value != usual.get(key)]
        if instruction.scope:
            title.append(instruction.scope)
        lines.append(f"  {box} [label={quote(''.join(line + chr(10) for line in title))}];")
        for place, argument in enumerate(instruction.args):
            if argument is None or argument.kind == "number":
                continue
            name = str(argument)
            if argument.kind in ("weight", "constant"):  # a note each: one shared corner says nothing
                note = f"{box}_{place}"
                lines.append(f"  {note} [shape=note, color=gray, label={quote(f'{name} {argument.type}')}];")
                lines.append(f"  {note} -> {box} [color=gray];")
                continue
            if name not in made:
                made[name] = name
                lines.append(f"  {quote(name)} [shape=cylinder, label={quote(f'{name} {argument.type}')}];")
            lines.append(f"  {quote(made[name])} -> {box};")
        made[str(instruction.out)] = box
    for name, value in program.outputs.items():
        lines.append(f"  {quote('output ' + name)} [shape=ellipse];")
        lines.append(f"  {quote(made.get(str(value), str(value)))} -> {quote('output ' + name)};")
    return "\n".join([*lines, "}"]) + "\n"


def quote(text: str) -> str:
    """A Graphviz string; line ends become left-aligned line breaks."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\l") + '"'


def draw(dot: str) -> bytes:
    """SVG by Graphviz's `dot` program. Raises Failure where that is not installed or fails."""
    if (program := shutil.which("dot")) is None:
        raise Failure("an .svg is drawn by Graphviz, whose `dot` program is not here; install graphviz, "
                      "or write a .dot or .txt")
    done = subprocess.run([program, "-Tsvg"], input=dot.encode(), capture_output=True, check=False)
    if done.returncode:
        raise Failure(f"dot could not draw it: {done.stderr.decode(errors='replace').strip()[:300]}")
    return done.stdout
