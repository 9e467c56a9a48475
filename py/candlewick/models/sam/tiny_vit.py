"""TinyViT, the image encoder of MobileSAM: Wu et al. 2022, "TinyViT: Fast Pretraining Distillation for Small Vision
Transformers"; Zhang et al. 2023, "Faster Segment Anything", for its place here.

Read it from the top: convolutions, the first stage (made of them), attention in windows, the other stages, encoder.
Batch norms are folded into the convolutions before them, so a convolution `c` has a bias. Activations are
(batch, height, width, channels); letters in shape comments: batch, h and w of the picture at this stage, c channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from candlewick import nn, ops
from candlewick.tensor import Tensor

STRIDE = 16  # pixels of the picture for one position of the result


@dataclass(frozen=True)
class TinyViTDims:
    """The sizes of one encoder, an entry a stage. The first stage has convolutions only: no heads, no windows."""

    embed_dims: tuple[int, ...]
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]  # of the stages from the second on
    window_sizes: tuple[int, ...]  # of the stages from the second on
    mlp_ratio: float
    expand_ratio: float
    n_out: int  # channels of the embedding


class ConvNorm(nn.Module):
    """A convolution and its batch norm, folded into one."""

    def __init__(self, c_in: int, c_out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        self.c = nn.Conv2d(c_in, c_out, kernel, stride, padding=kernel // 2, groups=groups)

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, h, w, c_in) -> (batch, h / stride, w / stride, c_out)"""
        return self.c(x)


class PatchEmbed(nn.Module):
    """Two convolutions that halve the picture twice."""

    def __init__(self, c_out: int) -> None:
        self.seq = [ConvNorm(3, c_out // 2, 3, stride=2), ops.gelu, ConvNorm(c_out // 2, c_out, 3, stride=2)]

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, h, w, 3) -> (batch, h / 4, w / 4, c_out)"""
        for step in self.seq:
            x = step(x)
        return x


class MBConv(nn.Module):
    """Inverted bottleneck: wider, a convolution of each channel by itself, narrow again (Sandler et al. 2018)."""

    def __init__(self, c: int, expand_ratio: float) -> None:
        wide = int(c * expand_ratio)
        self.conv1 = ConvNorm(c, wide)
        self.conv2 = ConvNorm(wide, wide, 3, groups=wide)
        self.conv3 = ConvNorm(wide, c)

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, h, w, c) -> the same shape"""
        y = ops.gelu(self.conv1(x))  # (batch, h, w, expand_ratio c)
        y = ops.gelu(self.conv2(y))
        return ops.gelu(self.conv3(y) + x)


class PatchMerging(nn.Module):
    """From one stage to the next: other channels, and half the height and width where stride is 2."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        self.conv1 = ConvNorm(c_in, c_out)
        self.conv2 = ConvNorm(c_out, c_out, 3, stride=stride, groups=c_out)
        self.conv3 = ConvNorm(c_out, c_out)

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, h, w, c_in) -> (batch, h / stride, w / stride, c_out)"""
        return self.conv3(ops.gelu(self.conv2(ops.gelu(self.conv1(x)))))


class WindowAttention(nn.Module):
    """A position sees the positions of its window. A table says how much each pair of places in a window is favoured."""

    def __init__(self, c: int, n_head: int, window: int) -> None:
        self.n_head, self.window = n_head, window
        self.norm = nn.LayerNorm(c)
        self.qkv = nn.Linear(c, 3 * c)  # of each head: query, key, value
        self.proj = nn.Linear(c, c)
        self.ab = nn.Parameter((n_head, window**2, window**2))

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, h, w, c) -> the same shape"""
        qkv = self.qkv(self.norm(x))  # (batch, h, w, 3 c)
        # Windows over the edge are filled with zeros before the norm, which makes them its bias; they are keys, too.
        c = x.shape[-1]
        outside = self.qkv(ops.reshape(self.norm.bias, (1, c)))  # (1, 3 c)
        y = ops.window_attention(qkv, self.ab, outside, n_head=self.n_head, window=self.window)  # (batch, h, w, c)
        return self.proj(y)


class Mlp(nn.Module):
    def __init__(self, c: int, n_mlp: int) -> None:
        self.norm = nn.LayerNorm(c)
        self.fc1 = nn.Linear(c, n_mlp)
        self.fc2 = nn.Linear(n_mlp, c)

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, h, w, c) -> the same shape, n_mlp wide inside"""
        return self.fc2(ops.gelu(self.fc1(self.norm(x))))


class TinyViTBlock(nn.Module):
    def __init__(self, c: int, n_head: int, window: int, mlp_ratio: float) -> None:
        self.attn = WindowAttention(c, n_head, window)
        self.local_conv = ConvNorm(c, c, 3, groups=c)
        self.mlp = Mlp(c, int(c * mlp_ratio))

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, h, w, c) -> the same shape"""
        x = self.attn(x) + x
        x = self.local_conv(x)
        return self.mlp(x) + x


class Stage(nn.Module):
    """Blocks of one kind, then the step to the next stage (none after the last)."""

    def __init__(self, blocks: Sequence[nn.Module], downsample: PatchMerging | None) -> None:
        self.blocks = list(blocks)
        self.downsample = downsample

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, h, w, c) -> (batch, h / stride, w / stride, c of the next stage)"""
        for block in self.blocks:
            x = block(x)
        return self.downsample(x) if self.downsample else x


class TinyViT(nn.Module):
    def __init__(self, dims: TinyViTDims) -> None:
        d = dims.embed_dims
        self.patch_embed = PatchEmbed(d[0])
        self.layers = []
        for i, (c, depth) in enumerate(zip(d, dims.depths)):
            if i == 0:
                blocks: list[nn.Module] = [MBConv(c, dims.expand_ratio) for _ in range(depth)]
            else:
                n_head, window = dims.num_heads[i - 1], dims.window_sizes[i - 1]
                blocks = [TinyViTBlock(c, n_head, window, dims.mlp_ratio) for _ in range(depth)]
            last = i == len(d) - 1
            # The last step keeps its size, so that one position is STRIDE pixels as in the encoders of SAM.
            self.layers.append(Stage(blocks, None if last else PatchMerging(c, d[i + 1], stride=1 if i == 2 else 2)))
        self.neck = neck(d[-1], dims.n_out)

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, h, w, 3), normalised colours -> embedding (batch, h / 16, w / 16, n_out)"""
        x = self.patch_embed(x)  # (batch, h / 4, w / 4, embed_dims[0])
        for stage in self.layers:
            x = stage(x)  # the last: (batch, h / 16, w / 16, embed_dims[-1])
        for step in self.neck:
            x = step(x)
        return x


def neck(c_in: int, c_out: int) -> list[nn.Module]:
    """From the encoder's channels to those of the embedding; every encoder of SAM ends with it."""
    return [
        nn.Conv2d(c_in, c_out, 1, bias=False), nn.LayerNorm(c_out, eps=1e-6),
        nn.Conv2d(c_out, c_out, 3, padding=1, bias=False), nn.LayerNorm(c_out, eps=1e-6),
    ]
