"""The symbolic Tensor: dtype and shape, no data. Model code handles Tensors; `trace` turns what is done to them into a
Program. Arithmetic operators and methods are attached by `ops.py`, so that the op table stays the only list of ops."""

from __future__ import annotations

from dataclasses import dataclass

from .program import Value


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value inside a trace."""

    value: Value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> str:
        return self.value.dtype

    @property
    def ndim(self) -> int:
        return len(self.value.shape)

    def __repr__(self) -> str:
        return f"Tensor({self.value}: {self.value.type})"

    def __bool__(self) -> bool:
        raise TypeError(
            "a Tensor has no data while the model is traced: choose with maximum and minimum, not with `if`"
        )
