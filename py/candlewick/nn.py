"""Layers: a tree of named parameters, and the few modules that every family shares.

The path of a parameter in the tree is its name in the weights file (`model.encoder.layers.0.fc1.weight`), so there is no
table of renamings between the two. A module holds shapes, never data: data stays with the executor.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import ops
from .dtypes import FROM_NUMPY
from .program import Value
from .tensor import Tensor
from .trace import scope


@dataclass(eq=False)
class Parameter:
    """A weight that comes from a file: its shape now, its name from the tree, its dtype from the file."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    name: str = ""

    @property
    def value(self) -> Value:
        if not self.name:
            raise ValueError(
                f"a parameter of shape {self.shape} has no name yet: call parameters() on the whole model first"
            )
        return Value(self.name, self.dtype, tuple(self.shape), "weight")


@dataclass(eq=False)
class Constant:
    """An array that the model makes by itself (mel filters, rotary tables): float32 or int32 data, not in any file."""

    array: np.ndarray = field(repr=False)
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def value(self) -> Value:
        if not self.name:
            raise ValueError(
                f"a constant of shape {self.shape} has no name yet: call parameters() on the whole model first"
            )
        return Value(self.name, FROM_NUMPY[self.array.dtype], self.array.shape, "constant")


@dataclass(frozen=True, eq=False)
class State:
    """A buffer that outlives a run. Programs that name the same state share it; it is zero after loading."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "f32"

    @property
    def value(self) -> Value:
        return Value(self.name, self.dtype, tuple(self.shape), "state")


class Module:
    """Attributes that are Parameters, Constants, Modules or lists of Modules form the tree."""

    path = ""

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        call = cls.__dict__.get("__call__")
        if call:

            @functools.wraps(call)
            def scoped(self: Module, *args: Any, **kwargs: Any) -> Any:
                with scope(self.path):
                    return call(self, *args, **kwargs)

            cls.__call__ = scoped

    def _walk(self, path: str):
        self.path = path
        for name, child in vars(self).items():
            here = f"{path}.{name}" if path else name
            if isinstance(child, Parameter | Constant):
                child.name = here
                yield child
            elif isinstance(child, Module):
                yield from child._walk(here)
            elif isinstance(child, list):
                for index, item in enumerate(child):
                    if isinstance(item, Module):
                        yield from item._walk(f"{here}.{index}")

    def parameters(self) -> dict[str, Parameter]:
        """name -> Parameter of the whole tree below; names every leaf on the way."""
        return {p.name: p for p in self._walk("") if isinstance(p, Parameter)}

    def constants(self) -> dict[str, np.ndarray]:
        """name -> array of every Constant below."""
        return {c.name: c.array for c in self._walk("") if isinstance(c, Constant)}

    def set_dtypes(self, dtypes: dict[str, str]) -> None:
        """Take each parameter's dtype from the file: name -> dtype."""
        for name, parameter in self.parameters().items():
            if name in dtypes:
                parameter.dtype = dtypes[name]


class Linear(Module):
    """y = x W^T + b"""

    def __init__(self, n_in: int, n_out: int, bias: bool = True) -> None:
        self.weight = Parameter((n_out, n_in))
        self.bias = Parameter((n_out,)) if bias else None

    def __call__(self, x: Tensor, count: Tensor | None = None) -> Tensor:
        """x (..., n_in) -> (..., n_out); count: a runtime scalar, rows from it on are zeros and cost nothing"""
        return ops.linear(x, self.weight, self.bias, count=count)


class Conv1d(Module):
    """1-D convolution over (batch, n_ctx, channels); the weight as in PyTorch: (c_out, c_in, kernel)."""

    def __init__(
        self, c_in: int, c_out: int, kernel: int, stride: int = 1, padding: int = 0, bias: bool = True
    ) -> None:
        self.weight = Parameter((c_out, c_in, kernel))
        self.bias = Parameter((c_out,)) if bias else None
        self.stride, self.padding = stride, padding

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, n_ctx, c_in) -> (batch, n_out, c_out)"""
        return ops.conv1d(x, self.weight, self.bias, stride=self.stride, padding=self.padding)


class Conv2d(Module):
    """2-D convolution over (batch, height, width, channels); the weight as in PyTorch: (c_out, c_in / groups, kh, kw)."""

    def __init__(
        self, c_in: int, c_out: int, kernel: int, stride: int = 1, padding: int = 0, groups: int = 1, bias: bool = True
    ) -> None:
        self.weight = Parameter((c_out, c_in // groups, kernel, kernel))
        self.bias = Parameter((c_out,)) if bias else None
        self.stride, self.padding, self.groups = stride, padding, groups

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, height, width, c_in) -> (batch, h_out, w_out, c_out)"""
        return ops.conv2d(
            x, self.weight, self.bias, stride=self.stride, padding=self.padding, groups=self.groups
        )


class ConvTranspose2d(Module):
    """Each position becomes a square of kernel x kernel; the weight as in PyTorch: (c_in, c_out, kernel, kernel)."""

    def __init__(self, c_in: int, c_out: int, kernel: int, bias: bool = True) -> None:
        self.weight = Parameter((c_in, c_out, kernel, kernel))
        self.bias = Parameter((c_out,)) if bias else None
        self.stride = kernel

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, height, width, c_in) -> (batch, kernel height, kernel width, c_out)"""
        return ops.conv_transpose2d(x, self.weight, self.bias, stride=self.stride)


class LayerNorm(Module):
    """Ba, Kiros, Hinton 2016, over the last axis."""

    def __init__(self, n: int, eps: float = 1e-5) -> None:
        self.weight, self.bias, self.eps = Parameter((n,)), Parameter((n,)), eps

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., n) -> (..., n)"""
        return ops.layer_norm(x, self.weight, self.bias, eps=self.eps)


class RMSNorm(Module):
    """Zhang, Sennrich 2019, over the last axis."""

    def __init__(self, n: int, eps: float = 1e-5) -> None:
        self.weight, self.eps = Parameter((n,)), eps

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., n) -> (..., n)"""
        return ops.rms_norm(x, self.weight, eps=self.eps)


class Embedding(Module):
    """A table of n vectors; `unembed` uses the same table as the output matrix (tied weights)."""

    def __init__(self, n: int, d: int) -> None:
        self.weight = Parameter((n, d))

    def __call__(self, ids: Tensor) -> Tensor:
        """ids i32 (...) -> (..., d)"""
        return ops.embedding(ids, self.weight)

    def unembed(self, x: Tensor) -> Tensor:
        """x (..., d) -> logits (..., n)"""
        return ops.linear(x, self.weight)


@dataclass(frozen=True)
class KVCache:
    """Keys and values of the positions seen so far, at a fixed capacity: each (batch, n_head, capacity, d_head)."""

    k: Tensor | State
    v: Tensor | State

    @staticmethod
    def new(name: str, batch: int, n_head: int, capacity: int, d_head: int) -> KVCache:
        """An empty cache; `name` is what makes Programs share it."""
        shape = (batch, n_head, capacity, d_head)
        return KVCache(State(f"{name}.k", shape), State(f"{name}.v", shape))

    def update(self, k: Tensor, v: Tensor, pos: Tensor | int) -> KVCache:
        """k, v (batch, n_head, n, d_head) written at positions pos .. pos + n -> the cache with them in it"""
        return KVCache(ops.update(self.k, k, pos, axis=2), ops.update(self.v, v, pos, axis=2))


def split_heads(x: Tensor, n_head: int) -> Tensor:
    """(batch, n_ctx, n_state) -> (batch, n_head, n_ctx, d_head)"""
    batch, n_ctx, n_state = x.shape
    return ops.transpose(ops.reshape(x, (batch, n_ctx, n_head, n_state // n_head)), (0, 2, 1, 3))


def merge_heads(x: Tensor) -> Tensor:
    """(batch, n_head, n_ctx, d_head) -> (batch, n_ctx, n_state)"""
    batch, n_head, n_ctx, d_head = x.shape
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, n_ctx, n_head * d_head))
