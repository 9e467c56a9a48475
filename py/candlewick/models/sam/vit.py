"""The image encoder of the original SAM: a Vision Transformer with windows (Kirillov et al. 2023; Li et al. 2022, "Exploring
Plain Vision Transformer Backbones for Object Detection").

Most blocks look within windows, a few at the whole picture. How far apart two positions are counts, too: a query has a score
for each distance in height and one for each in width. Letters in shape comments: batch (or windows), s side of a window or of
the picture in positions, n = s * s, c channels, d = c / n_head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from candlewick import nn, ops
from candlewick.models.sam.tiny_vit import neck
from candlewick.tensor import Tensor


@dataclass(frozen=True)
class ViTDims:
    """The sizes of one encoder."""

    c: int
    n_layer: int
    n_head: int
    n_mlp: int
    patch: int  # side of a patch in pixels
    grid: int  # side of the picture in patches
    window: int
    whole: tuple[int, ...]  # blocks that look at the whole picture
    n_out: int  # channels of the embedding


class PatchEmbed(nn.Module):
    def __init__(self, c: int, patch: int) -> None:
        self.proj = nn.Conv2d(3, c, patch, stride=patch)

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, h, w, 3) -> (batch, h / patch, w / patch, c)"""
        return self.proj(x)


class Attention(nn.Module):
    """Attention within a square of s x s positions, with scores for the distance in height and in width."""

    def __init__(self, c: int, n_head: int, s: int) -> None:
        self.n_head, self.s = n_head, s
        self.qkv = nn.Linear(c, 3 * c)
        self.proj = nn.Linear(c, c)
        self.rel_pos_h = nn.Parameter((2 * s - 1, c // n_head))  # one vector for each distance, from -(s - 1) on
        self.rel_pos_w = nn.Parameter((2 * s - 1, c // n_head))
        place = np.arange(s, dtype=np.int32)
        self.distance = nn.Constant((place[:, None] - place + s - 1).ravel())  # (s * s,): row of the table for a pair
        rows, columns = np.repeat(np.eye(s, dtype=np.float32), s, axis=0), np.tile(np.eye(s, dtype=np.float32), (s, 1))
        self.place = nn.Constant(np.concatenate([rows, columns], axis=1)[None, None])  # (1, 1, n, 2 s): row and column marked

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, s, s, c) -> the same shape"""
        batch, s, _, c = x.shape
        n, d = s * s, c // self.n_head
        qkv = ops.reshape(self.qkv(x), (batch, n, 3 * c))
        q, k, v = (ops.slice(qkv, 2, i * c, (i + 1) * c) for i in range(3))
        q, k, v = (nn.split_heads(x, self.n_head) for x in (q, k, v))  # (batch, n_head, n, d)
        # A score for the distance is a product of two vectors, too: the query's scores for every row and column, and the
        # key's own row and column marked. So queries and keys become longer, and attention stays what it is.
        q = ops.concat([q * d**-0.5, self.scores(q, self.rel_pos_h, by_row=True), self.scores(q, self.rel_pos_w, by_row=False)],
                       axis=3)  # (batch, n_head, n, d + 2 s)
        marks = ops.slice(k, 3, 0, 1) * 0.0 + self.place  # for every head of every window
        k = ops.concat([k, marks], axis=3)
        v = ops.pad(v, axis=3, before=0, after=2 * s)
        y = ops.slice(ops.attention(q, k, v, scale=1.0), 3, 0, d)  # (batch, n_head, n, d)
        return self.proj(ops.reshape(nn.merge_heads(y), (batch, s, s, c)))

    def scores(self, q: Tensor, table: nn.Parameter, by_row: bool) -> Tensor:
        """q (batch, n_head, n, d) -> (batch, n_head, n, s): each query's score for the s rows, or columns, of its square"""
        batch, n_head, _, d = q.shape
        s = self.s
        first, back = ((1, 0, 2, 3), (1, 0, 2, 3)) if by_row else ((2, 0, 1, 3), (1, 2, 0, 3))
        vectors = ops.reshape(ops.embedding(self.distance, table), (s, s, d))  # query's row, key's row
        q = ops.transpose(ops.reshape(q, (batch * n_head, s, s, d)), first)  # the row of the query first
        y = ops.matmul(ops.reshape(q, (s, batch * n_head * s, d)), vectors, transpose_b=True)  # (s, batch n_head s, s)
        y = ops.transpose(ops.reshape(y, (s, batch * n_head, s, s)), back)  # (batch n_head, row, column, s)
        return ops.reshape(y, (batch, n_head, s * s, s))


class MLPBlock(nn.Module):
    def __init__(self, c: int, n_mlp: int) -> None:
        self.lin1 = nn.Linear(c, n_mlp)
        self.lin2 = nn.Linear(n_mlp, c)

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., c) -> the same shape, n_mlp wide inside"""
        return self.lin2(ops.gelu(self.lin1(x)))


class Block(nn.Module):
    def __init__(self, dims: ViTDims, whole: bool) -> None:
        self.window = 0 if whole else dims.window
        self.norm1 = nn.LayerNorm(dims.c, eps=1e-6)
        self.attn = Attention(dims.c, dims.n_head, dims.grid if whole else dims.window)
        self.norm2 = nn.LayerNorm(dims.c, eps=1e-6)
        self.mlp = MLPBlock(dims.c, dims.n_mlp)

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, h, w, c) -> the same shape"""
        y = self.norm1(x)
        y = self.in_windows(y) if self.window else self.attn(y)
        x = x + y
        return x + self.mlp(self.norm2(x))

    def in_windows(self, x: Tensor) -> Tensor:
        """x (batch, h, w, c) -> the same shape; windows over the edge are filled with zeros"""
        s = self.window
        batch, h, w, c = x.shape
        down, across = -(-h // s), -(-w // s)
        if down * s > h:
            x = ops.pad(x, axis=1, before=0, after=down * s - h)
        if across * s > w:
            x = ops.pad(x, axis=2, before=0, after=across * s - w)
        x = ops.transpose(ops.reshape(x, (batch, down, s, across, s, c)), (0, 1, 3, 2, 4, 5))
        x = self.attn(ops.reshape(x, (batch * down * across, s, s, c)))
        x = ops.transpose(ops.reshape(x, (batch, down, across, s, s, c)), (0, 1, 3, 2, 4, 5))
        x = ops.reshape(x, (batch, down * s, across * s, c))
        return ops.slice(ops.slice(x, 1, 0, h), 2, 0, w)


class ImageEncoderViT(nn.Module):
    def __init__(self, dims: ViTDims) -> None:
        self.patch_embed = PatchEmbed(dims.c, dims.patch)
        self.pos_embed = nn.Parameter((1, dims.grid, dims.grid, dims.c))
        self.blocks = [Block(dims, whole=i in dims.whole) for i in range(dims.n_layer)]
        self.neck = neck(dims.c, dims.n_out)

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, h, w, 3), normalised colours -> embedding (batch, h / patch, w / patch, n_out)"""
        x = self.patch_embed(x) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        for step in self.neck:
            x = step(x)
        return x
