"""Segment Anything, the network: Kirillov et al. 2023; with the encoder of Zhang et al. 2023, "Faster Segment Anything".

Three parts under the names of the original code: image_encoder (TinyViT or ViT), prompt_encoder, mask_decoder. A picture is
encoded once; what the decoder wants of it is kept in states, and every prompt is answered from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from candlewick import nn, ops
from candlewick.models.sam.mask_decoder import DecoderDims, MaskDecoder, Places, View
from candlewick.models.sam.prompt_encoder import PromptEncoder
from candlewick.models.sam.tiny_vit import STRIDE, TinyViT, TinyViTDims
from candlewick.models.sam.vit import ImageEncoderViT, ViTDims
from candlewick.tensor import Tensor


@dataclass(frozen=True)
class Dims:
    """The sizes of one checkpoint, and how its pictures are normalised."""

    image_size: int  # side of the square that a picture is fitted into, in pixels
    grid: int  # side of the embedding, in positions
    encoder: TinyViTDims | ViTDims
    decoder: DecoderDims
    mask_channels: int
    pixel_mean: tuple[float, ...]  # of red, green, blue, from 0 to 255
    pixel_std: tuple[float, ...]

    @staticmethod
    def from_config(config: Mapping[str, Any], file: str = "config.json") -> Dims:
        """config.json -> Dims; file: what it was read from. Raises ValueError that names what is missing or does not fit."""
        try:
            vision, prompt, decoder = (config[k] for k in ("vision_config", "prompt_encoder_config", "mask_decoder_config"))
            d, image_size = prompt["hidden_size"], config["image_size"]
            dims = Dims(
                image_size=image_size, grid=image_size // STRIDE, encoder=_encoder_dims(vision, d, image_size, file),
                decoder=DecoderDims(
                    d=d, n_layer=decoder["num_hidden_layers"], n_head=decoder["num_attention_heads"],
                    n_mlp=decoder["mlp_dim"], n_masks=decoder["num_multimask_outputs"] + 1,
                    iou_depth=decoder["iou_head_depth"], iou_width=decoder["iou_head_hidden_dim"],
                ),
                mask_channels=prompt["mask_input_channels"],
                pixel_mean=tuple(config["pixel_mean"]), pixel_std=tuple(config["pixel_std"]),
            )  # fmt: skip
        except (KeyError, TypeError) as error:
            raise ValueError(f"{file}: a SAM needs {error}; this one has model_type {config.get('model_type')!r}. "
                             "Choose a MobileSAM or SAM checkpoint") from None
        if image_size % STRIDE or d % (2 * dims.decoder.n_head) or d % 8:
            raise ValueError(f"{file}: image_size {image_size} must be a multiple of {STRIDE}, hidden_size {d} of 8 and "
                             f"of twice the {dims.decoder.n_head} heads")
        return dims


def _encoder_dims(vision: Mapping[str, Any], d: int, image_size: int, file: str) -> TinyViTDims | ViTDims:
    kind = vision["encoder"]
    if kind == "vit" and vision["patch_size"] == STRIDE:
        return ViTDims(
            c=vision["hidden_size"], n_layer=vision["num_hidden_layers"], n_head=vision["num_attention_heads"],
            n_mlp=vision["mlp_dim"], patch=STRIDE, grid=image_size // STRIDE, window=vision["window_size"],
            whole=tuple(vision["global_attn_indexes"]), n_out=d,
        )  # fmt: skip
    if kind != "tiny_vit":
        raise ValueError(f"{file}: encoder {kind!r}; there are tiny_vit, and vit with patches of {STRIDE} pixels")
    return TinyViTDims(
        embed_dims=tuple(vision["embed_dims"]), depths=tuple(vision["depths"]), num_heads=tuple(vision["num_heads"]),
        window_sizes=tuple(vision["window_sizes"]), mlp_ratio=vision["mlp_ratio"], expand_ratio=vision["expand_ratio"],
        n_out=d,
    )  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """What is kept between runs; n_image = grid * grid."""

    embedding: nn.State  # (1, n_image, d), of the picture
    view: View  # of the picture, by the decoder's first block
    image_pe: nn.State  # (1, n_image, d), the place of each position: of every picture, as is the next
    places: Places
    tokens: nn.State  # (1, 1 + n_masks, d), of the last prompt that was only looked at, as is the next
    image: nn.State  # (1, n_image, d)

    @staticmethod
    def new(dims: Dims) -> Memory:
        n_image, d = dims.grid**2, dims.decoder.d
        half = (1, n_image, d // 2)
        return Memory(
            embedding=nn.State("embedding", (1, n_image, d)),
            view=View(*(nn.State(f"view.{name}", half) for name in "kvq")),
            image_pe=nn.State("image_pe", (1, n_image, d)),
            places=Places(nn.State("places.k", half), nn.State("places.v", (d // 2,)), nn.State("places.q", half),
                          nn.State("places.told", (d,))),
            tokens=nn.State("tokens", (1, 1 + dims.decoder.n_masks, d)),
            image=nn.State("image", (1, n_image, d)),
        )


class Sam(nn.Module):
    """From pixels to masks, in the pieces that are run separately: prepare, encode, decode."""

    def __init__(self, dims: Dims) -> None:
        self.dims = dims
        d = dims.decoder.d
        self.image_encoder = TinyViT(dims.encoder) if isinstance(dims.encoder, TinyViTDims) else ImageEncoderViT(dims.encoder)
        self.prompt_encoder = PromptEncoder(d, dims.image_size, dims.grid, dims.mask_channels)
        self.mask_decoder = MaskDecoder(dims.decoder)

    def prepare(self, memory: Memory) -> None:
        """Once, after loading: what depends on no picture."""
        image_pe = self.prompt_encoder.image_pe()
        places = self.mask_decoder.first.places(image_pe, self.prompt_encoder.no_mask_embed.weight)
        ops.update(memory.image_pe, image_pe, 0, axis=1)
        ops.update(memory.places.k, places.k, 0, axis=1)
        ops.update(memory.places.v, places.v, 0, axis=0)
        ops.update(memory.places.q, places.q, 0, axis=1)
        ops.update(memory.places.told, places.told, 0, axis=0)

    def encode(self, pixels: Tensor, memory: Memory) -> None:
        """pixels (1, image_size, image_size, 3), normalised colours, 0 where there is no picture"""
        self.remember(self.image_encoder(pixels), memory)  # (1, grid, grid, d)

    def remember(self, embedding: Tensor, memory: Memory) -> None:
        """embedding (1, grid, grid, d): from now on it is that of the picture"""
        ops.update(memory.embedding, ops.reshape(embedding, (1, self.dims.grid**2, self.dims.decoder.d)), 0, axis=1)
        view = self.mask_decoder.first.view(memory.embedding, memory.places)  # read where it is kept: it is made there
        for state, value in ((memory.view.k, view.k), (memory.view.v, view.v), (memory.view.q, view.q)):
            ops.update(state, value, 0, axis=1)

    def recall(self, memory: Memory) -> dict[str, Tensor]:
        """-> embedding (1, grid, grid, d) of the picture"""
        grid = self.dims.grid
        return {"embedding": ops.reshape(memory.embedding, (1, grid, grid, self.dims.decoder.d))}

    def decode(self, points: Tensor, labels: Tensor, memory: Memory, mask: Tensor | None = None) -> Mapping[str, Tensor]:
        """points (n, 2) in pixels of the model's picture, labels (n,), mask (1, 4 grid, 4 grid) logits of an earlier answer

        -> masks (n_masks, 4 grid, 4 grid) logits, iou (n_masks,)
        """
        prompt = self.prompt_encoder.points(points, labels)  # (1, n, d)
        image, view = memory.embedding, memory.view
        if mask is not None:
            image = self.prompt_encoder.mask(mask, memory.embedding)
            view = self.mask_decoder.first.view(image, memory.places)
        return self.mask_decoder(image, memory.image_pe, prompt, (view, memory.places))

    def look(self, points: Tensor, labels: Tensor, memory: Memory) -> Mapping[str, Tensor]:
        """points (n, 2), labels (n,) -> iou (n_masks,), and the memory is ready for `masks`: half of `decode`, which is enough
        to know that no mask will be good enough"""
        prompt = self.prompt_encoder.points(points, labels)  # (1, n, d)
        tokens, image = self.mask_decoder.look(memory.embedding, memory.image_pe, prompt, (memory.view, memory.places))
        ops.update(memory.tokens, tokens, 0, axis=1)
        ops.update(memory.image, image, 0, axis=1)
        return {"iou": self.mask_decoder.iou(memory.tokens)}

    def masks(self, memory: Memory) -> Mapping[str, Tensor]:
        """-> masks (n_masks, 4 grid, 4 grid) of the prompt that was looked at: the other half"""
        return {"masks": self.mask_decoder.masks(memory.tokens, memory.image)}
