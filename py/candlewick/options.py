"""An option that cannot be used, called as the person who chose it knows it: `beam_size` in Python, `--beam` in a shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class OptionError(ValueError):
    """What somebody chose cannot be: which option, what was wanted, what came.

        raise OptionError("{beam_size}: wanted a whole number from 1 to {most}, got {given!r}", most=16, given=99)

    A name in braces that has no value here is the name of an option.
    """

    def __init__(self, text: str, **values: Any) -> None:
        self.text, self.values = text, values
        super().__init__(self.said(str))

    def said(self, called: Callable[[str], str]) -> str:
        """The message, with every option named as `called` says."""
        return self.text.format_map(_Words(self.values, called))


class _Words(dict[str, Any]):
    """Values by name; an option's name stands for itself."""

    def __init__(self, values: dict[str, Any], called: Callable[[str], str]) -> None:
        super().__init__(values)
        self.called = called

    def __missing__(self, name: str) -> str:
        return self.called(name)
