"""What a person points at -> tokens, and a mask -> something to add to the image: Kirillov et al. 2023, "Segment Anything",
appendix A, "Prompt encoder". Positions become random Fourier features (Tancik et al. 2020)."""

from __future__ import annotations

import math

import numpy as np

from candlewick import nn, ops
from candlewick.tensor import Tensor

NOT_A_POINT = -1  # label of the token that stands beside points where there is no box
BACKGROUND, FOREGROUND, UPPER_LEFT, LOWER_RIGHT = range(4)  # labels: two kinds of points, two corners of a box


class PositionEmbeddingRandom(nn.Module):
    """Places in a square of side 1 -> sines and cosines of many directions."""

    def __init__(self, d: int) -> None:
        self.positional_encoding_gaussian_matrix = nn.Parameter((2, d // 2))

    def __call__(self, places: Tensor | nn.Constant) -> Tensor:
        """places (n, 2), x and y from 0 to 1 -> (n, d)"""
        matrix = self.positional_encoding_gaussian_matrix
        along = ops.mul(places, 2.0) - 1.0  # (n, 2)
        # Two products instead of a matrix product: its sums would be of two numbers.
        x, y = ops.slice(along, 1, 0, 1), ops.slice(along, 1, 1, 2)  # (n, 1) each
        by_x, by_y = (ops.slice(matrix, 0, i, i + 1) for i in range(2))  # (1, d / 2) each
        angles = (x * by_x + y * by_y) * (2 * math.pi)  # (n, d / 2)
        return ops.concat([ops.sin(angles), ops.cos(angles)], axis=1)  # (n, d)


class PromptEncoder(nn.Module):
    def __init__(self, d: int, image_size: int, grid: int, mask_channels: int) -> None:
        self.image_size, self.grid = image_size, grid
        self.pe_layer = PositionEmbeddingRandom(d)
        self.point_embeddings = [nn.Embedding(1, d) for _ in range(4)]  # one for each label
        self.not_a_point_embed = nn.Embedding(1, d)
        c = mask_channels
        self.mask_downscaling = [
            nn.Conv2d(1, c // 4, 2, stride=2), nn.LayerNorm(c // 4, eps=1e-6), ops.gelu,
            nn.Conv2d(c // 4, c, 2, stride=2), nn.LayerNorm(c, eps=1e-6), ops.gelu,
            nn.Conv2d(c, d, 1),
        ]  # fmt: skip
        self.no_mask_embed = nn.Embedding(1, d)
        side = (np.arange(grid, dtype=np.float32) + 0.5) / grid
        x, y = np.meshgrid(side, side)
        self.centres = nn.Constant(np.stack([x.ravel(), y.ravel()], axis=1))  # (grid * grid, 2)

    def points(self, points: Tensor, labels: Tensor) -> Tensor:
        """points (n, 2) in pixels of the model's picture, labels (n,) as above -> tokens (1, n, d)"""
        n = labels.shape[0]
        tokens = self.pe_layer((points + 0.5) / float(self.image_size))  # the middle of a pixel; (n, d)
        labels = ops.reshape(labels, (n, 1))
        nowhere = equal(labels, NOT_A_POINT)  # (n, 1)
        tokens = tokens * (1.0 - nowhere) + nowhere * self.not_a_point_embed.weight
        for label, embedding in enumerate(self.point_embeddings):
            tokens = tokens + equal(labels, label) * embedding.weight
        return ops.reshape(tokens, (1, *tokens.shape))

    def mask(self, mask: Tensor, image: Tensor | nn.State) -> Tensor:
        """mask (1, 4 grid, 4 grid), logits, image (1, grid * grid, d) -> the image with the mask in place of "no mask" """
        x = ops.reshape(mask, (1, 4 * self.grid, 4 * self.grid, 1))
        *steps, last = self.mask_downscaling
        for step in steps:
            x = step(x)  # (1, grid, grid, mask_channels)
        d = image.shape[2]
        bias = last.bias - ops.reshape(self.no_mask_embed.weight, (d,))
        shape = (1, self.grid, self.grid, d)
        return ops.reshape(ops.conv2d(x, last.weight, bias, ops.reshape(image, shape)), image.shape)

    def image_pe(self) -> Tensor:
        """The place of every position of the embedding: (1, grid * grid, d)"""
        pe = self.pe_layer(self.centres)
        return ops.reshape(pe, (1, *pe.shape))


def equal(x: Tensor, number: int) -> Tensor:
    """1 where a whole number is `number`, else 0."""
    return ops.maximum(1.0 - ops.square(x - float(number)), 0.0)
