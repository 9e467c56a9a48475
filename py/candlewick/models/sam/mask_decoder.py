"""Tokens and the image -> masks and how good they are: Kirillov et al. 2023, "Segment Anything", appendix A, "Lightweight
mask decoder".

Letters in shape comments: batch = 1, t tokens (one for the scores, one for each mask, then those of the prompt), n_image =
positions of the image embedding, d channels, d_in = d / 2, the inner width where tokens and image look at each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from candlewick import nn, ops
from candlewick.tensor import Tensor


@dataclass(frozen=True)
class DecoderDims:
    """The sizes of the decoder."""

    d: int
    n_layer: int
    n_head: int
    n_mlp: int
    n_masks: int  # tokens that become masks: one for a clear prompt, three for a vague one
    iou_depth: int
    iou_width: int


class Attention(nn.Module):
    """Multi-head attention whose inner width may be smaller than d."""

    def __init__(self, d: int, n_head: int, d_in: int) -> None:
        self.n_head = n_head
        self.q_proj = nn.Linear(d, d_in)
        self.k_proj = nn.Linear(d, d_in)
        self.v_proj = nn.Linear(d, d_in)
        self.out_proj = nn.Linear(d_in, d)

    def heads(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Projected q (batch, n, d_in), k and v (batch, m, d_in) -> (batch, n, d_in), what out_proj wants"""
        heads = [nn.split_heads(x, self.n_head) for x in (q, k, v)]  # (batch, n_head, n or m, d_in / n_head)
        return nn.merge_heads(ops.attention(*heads))

    def of_few(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (1, t, d), k and v (1, m, d) -> (1, t, d): the same as calling it, made for few q and many k.

        The projections move from the many to the few: q . (W_k k) = (W_k^T q) . k, and sum p (W_v v) = W_v (sum p v). The bias
        of k adds the same to the scores of all keys, which softmax does not see; the weights p sum to one, so that of v stays.
        """
        n_head, (_, t, d), m = self.n_head, q.shape, k.shape[1]
        d_head = self.q_proj.weight.shape[0] // n_head
        by_head = (n_head, d_head, d)
        q = ops.reshape(nn.split_heads(self.q_proj(q), n_head), (n_head, t, d_head)) * d_head**-0.5
        q = ops.matmul(q, ops.reshape(self.k_proj.weight, by_head))  # (n_head, t, d)
        p = ops.softmax(ops.matmul(ops.reshape(q, (n_head * t, d)), ops.reshape(k, (m, d)), transpose_b=True))  # (n_head t, m)
        y = ops.reshape(ops.matmul(p, ops.reshape(v, (m, d))), (n_head, t, d))
        y = ops.matmul(y, ops.reshape(self.v_proj.weight, by_head), transpose_b=True)  # (n_head, t, d_head)
        return self.out_proj(nn.merge_heads(ops.reshape(y, (1, n_head, t, d_head))) + self.v_proj.bias)

    def of_many(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (1, n, d), k and v (1, t, d) -> (1, n, d): the same as calling it, made for many q and few k.

        Here, too, the projections of the many move to the few: those of q and of the result.
        """
        n_head, n, (_, t, d) = self.n_head, q.shape[1], k.shape
        d_head = self.q_proj.weight.shape[0] // n_head
        k, v = (ops.reshape(nn.split_heads(x, n_head), (n_head, t, d_head)) for x in (self.k_proj(k), self.v_proj(v)))
        k = k * d_head**-0.5
        asked = ops.reshape(ops.matmul(k, ops.reshape(self.q_proj.weight, (n_head, d_head, d))), (n_head * t, d))
        bias = ops.reshape(ops.matmul(k, ops.reshape(self.q_proj.bias, (n_head, d_head, 1))), (n_head * t,))
        s = ops.matmul(ops.reshape(q, (n, d)), asked, transpose_b=True) + bias  # (n, n_head t)
        p = ops.softmax(ops.reshape(s, (n, n_head, t)))
        out = ops.transpose(ops.reshape(self.out_proj.weight, (d, n_head, d_head)), (1, 2, 0))  # (n_head, d_head, d)
        # The weights of each head sum to one, so a share of the bias in each row of a head adds up to the bias.
        told = ops.matmul(v, out) + ops.mul(self.out_proj.bias, 1 / n_head)  # (n_head, t, d)
        y = ops.matmul(ops.reshape(p, (n, n_head * t)), ops.reshape(told, (n_head * t, d)))
        return ops.reshape(y, (1, n, d))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (batch, n, d), k and v (batch, m, d) -> (batch, n, d)"""
        return self.out_proj(self.heads(self.q_proj(q), self.k_proj(k), self.v_proj(v)))


class MLPBlock(nn.Module):
    def __init__(self, d: int, n_mlp: int) -> None:
        self.lin1 = nn.Linear(d, n_mlp)
        self.lin2 = nn.Linear(n_mlp, d)

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, t, d) -> the same shape, n_mlp wide inside"""
        return self.lin2(ops.relu(self.lin1(x)))


@dataclass(frozen=True)
class View:
    """What the first block wants of the image, projected; each (batch, n_image, d_in). It does not depend on the tokens."""

    k: Tensor | nn.State  # where tokens look
    v: Tensor | nn.State  # what they find
    q: Tensor | nn.State  # how the image looks at the tokens


@dataclass(frozen=True)
class Places:
    """What the first block wants of the places in the image and of what stands for "no mask": the same for every picture.

    A projection of a sum is a sum of projections. So whoever projects the image adds these in the same step, and neither sum
    is ever made over the whole image by itself.
    """

    k: Tensor | nn.State  # (1, n_image, d_in)
    v: Tensor | nn.State  # (d_in,)
    q: Tensor | nn.State  # (1, n_image, d_in)
    told: Tensor | nn.State  # (d,): added to what the image was told


class TwoWayAttentionBlock(nn.Module):
    """Tokens look at each other, then at the image, think, and the image looks at them. Norms come after the sums."""

    def __init__(self, dims: DecoderDims, first: bool) -> None:
        d, n_head = dims.d, dims.n_head
        self.first = first  # the first block's tokens do not know their places yet: they are nothing but places
        self.self_attn = Attention(d, n_head, d)
        self.norm1 = nn.LayerNorm(d)
        self.cross_attn_token_to_image = Attention(d, n_head, d // 2)
        self.norm2 = nn.LayerNorm(d)
        self.mlp = MLPBlock(d, dims.n_mlp)
        self.norm3 = nn.LayerNorm(d)
        self.norm4 = nn.LayerNorm(d)
        self.cross_attn_image_to_token = Attention(d, n_head, d // 2)

    def places(self, image_pe: Tensor, no_mask: Tensor | nn.Parameter) -> Places:
        """image_pe (1, n_image, d), no_mask (1, d)"""
        placed = image_pe + no_mask
        look, back = self.cross_attn_token_to_image, self.cross_attn_image_to_token
        return Places(look.k_proj(placed), row_of(look.v_proj(no_mask)), back.q_proj(placed),
                      row_of(ops.add(no_mask, back.out_proj.bias)))

    def view(self, image: Tensor, places: Places) -> View:
        """image (batch, n_image, d) without what stands for "no mask" -> what this block wants of it"""
        look, back = self.cross_attn_token_to_image, self.cross_attn_image_to_token
        return View(ops.linear(image, look.k_proj.weight, None, places.k), ops.linear(image, look.v_proj.weight, places.v),
                    ops.linear(image, back.q_proj.weight, None, places.q))

    def __call__(
        self, tokens: Tensor, image: Tensor, token_pe: Tensor, image_pe: Tensor, known: tuple[View, Places] | None
    ) -> tuple[Tensor, Tensor]:
        """tokens, token_pe (1, t, d), image, image_pe (1, n_image, d), what is known of the image -> (tokens, image)"""
        if self.first:
            tokens = self.self_attn(tokens, tokens, tokens)
        else:
            placed = tokens + token_pe
            tokens = tokens + self.self_attn(placed, placed, tokens)
        tokens = self.norm1(tokens)

        look, back = self.cross_attn_token_to_image, self.cross_attn_image_to_token
        if known:
            view, places = known
            seen = look.out_proj(look.heads(look.q_proj(tokens + token_pe), view.k, view.v))
        else:
            placed = ops.add(image, image_pe)
            seen = look.of_few(tokens + token_pe, placed, image)
        tokens = self.norm2(seen + tokens)
        tokens = self.norm3(self.mlp(tokens) + tokens)
        if known:
            told = back.heads(view.q, back.k_proj(tokens + token_pe), back.v_proj(tokens))
            told = ops.linear(told, back.out_proj.weight, places.told)
        else:
            told = back.of_many(placed, tokens + token_pe, tokens)
        return tokens, self.norm4(told + image)


class TwoWayTransformer(nn.Module):
    def __init__(self, dims: DecoderDims) -> None:
        self.layers = [TwoWayAttentionBlock(dims, first=i == 0) for i in range(dims.n_layer)]
        self.final_attn_token_to_image = Attention(dims.d, dims.n_head, dims.d // 2)
        self.norm_final_attn = nn.LayerNorm(dims.d)

    def __call__(
        self, image: Tensor, image_pe: Tensor, tokens: Tensor, known: tuple[View, Places]
    ) -> tuple[Tensor, Tensor]:
        """image, image_pe (batch, n_image, d), tokens (batch, t, d), what the first block knows -> (tokens, image)"""
        token_pe = tokens
        for layer in self.layers:
            tokens, image = layer(tokens, image, token_pe, image_pe, known if layer.first else None)
        y = self.final_attn_token_to_image.of_few(tokens + token_pe, ops.add(image, image_pe), image)
        return self.norm_final_attn(y + tokens), image


class MLP(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, n_in: int, n_hidden: int, n_out: int, depth: int) -> None:
        sizes = [n_in, *[n_hidden] * (depth - 1), n_out]
        self.layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., n_in) -> (..., n_out)"""
        for layer in self.layers[:-1]:
            x = ops.relu(layer(x))
        return self.layers[-1](x)


class MaskDecoder(nn.Module):
    def __init__(self, dims: DecoderDims) -> None:
        d = dims.d
        self.dims = dims
        self.transformer = TwoWayTransformer(dims)
        self.iou_token = nn.Embedding(1, d)
        self.mask_tokens = nn.Embedding(dims.n_masks, d)
        self.output_upscaling = [
            nn.ConvTranspose2d(d, d // 4, 2), nn.LayerNorm(d // 4, eps=1e-6), ops.gelu,
            nn.ConvTranspose2d(d // 4, d // 8, 2), ops.gelu,
        ]  # fmt: skip
        self.output_hypernetworks_mlps = [MLP(d, d, d // 8, 3) for _ in range(dims.n_masks)]
        self.iou_prediction_head = MLP(d, dims.iou_width, dims.n_masks, dims.iou_depth)

    @property
    def first(self) -> TwoWayAttentionBlock:
        """The block whose work on the image can be done before there is a prompt."""
        return self.transformer.layers[0]

    def __call__(
        self, image: Tensor, image_pe: Tensor, prompt: Tensor, known: tuple[View, Places]
    ) -> Mapping[str, Tensor]:
        """image, image_pe (1, n_image, d), prompt (1, t_prompt, d) -> masks (n_masks, 4 grid, 4 grid), iou (n_masks,)

        image is without what stands for "no mask", which is in `known`.
        """
        tokens, image = self.look(image, image_pe, prompt, known)
        return {"masks": self.masks(tokens, image), "iou": self.iou(tokens)}

    def look(
        self, image: Tensor, image_pe: Tensor, prompt: Tensor, known: tuple[View, Places]
    ) -> tuple[Tensor, Tensor]:
        """As above -> tokens (1, 1 + n_masks, d), one for the scores and one for each mask, image (1, n_image, d)"""
        d, n_own = self.dims.d, 1 + self.dims.n_masks
        own = ops.concat([self.iou_token.weight, self.mask_tokens.weight], axis=0)  # (1 + n_masks, d)
        tokens = ops.concat([ops.reshape(own, (1, n_own, d)), prompt], axis=1)  # (1, t, d)
        tokens, image = self.transformer(image, image_pe, tokens, known)
        return ops.slice(tokens, 1, 0, n_own), image

    def iou(self, tokens: Tensor | nn.State) -> Tensor:
        """tokens of `look` -> how good the masks are going to be, (n_masks,)"""
        return ops.reshape(self.iou_prediction_head(row(tokens, 0)), (self.dims.n_masks,))

    def masks(self, tokens: Tensor | nn.State, image: Tensor | nn.State) -> Tensor:
        """What `look` gives -> logits (n_masks, 4 grid, 4 grid)"""
        d, n_masks = self.dims.d, self.dims.n_masks
        grid = int(image.shape[1] ** 0.5)
        x = ops.reshape(image, (1, grid, grid, d))
        for step in self.output_upscaling:
            x = step(x)  # the last: (1, 4 grid, 4 grid, d / 8)
        pixels = ops.reshape(x, ((4 * grid) ** 2, d // 8))
        # Each mask token becomes the weights of one linear map over the pixels.
        rows = [mlp(row(tokens, 1 + i)) for i, mlp in enumerate(self.output_hypernetworks_mlps)]  # (1, d / 8) each
        masks = ops.matmul(ops.concat(rows, axis=0), pixels, transpose_b=True)  # (n_masks, (4 grid)^2)
        return ops.reshape(masks, (n_masks, 4 * grid, 4 * grid))


def row_of(x: Tensor) -> Tensor:
    """(1, n) -> (n,)"""
    return ops.reshape(x, (x.shape[1],))


def row(tokens: Tensor | nn.State, i: int) -> Tensor:
    """Token i of (1, t, d) -> (1, d)"""
    return ops.reshape(ops.slice(tokens, 1, i, i + 1), (1, tokens.shape[2]))
