"""Passes: pure functions Program -> Program (and `memory`, which plans an arena). `optimise` is the list that executors run."""

from __future__ import annotations

from ..program import Program
from .fuse import fuse_epilogues
from .join import join_linears
from .simplify import simplify


def optimise(program: Program) -> Program:
    """The Program that executors run: same inputs, outputs, states; fewer instructions. Running it twice changes nothing."""
    return simplify(join_linears(fuse_epilogues(simplify(program))))


__all__ = ["fuse_epilogues", "join_linears", "optimise", "simplify"]
