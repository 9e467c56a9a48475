"""MobileSAM and Segment Anything checkpoints of other makers -> tensors under the names of the original code.

Two sources. (1) A pair of ONNX files, encoder and decoder, exported by PyTorch: parameters that survived the export keep
their names; the others are anonymous (`onnx::MatMul_2385`) and get theirs from the operation that reads them, whose name is
the path of its module (`/layers.1/blocks.0/attn/qkv/MatMul`). (2) The state dict of a `.pt` file: convolutions and batch
norms are folded into one, and tables of position biases are spread out over the pairs of positions.

What our files hold, as after PyTorch's `fuse()` and `eval()`: `...c.weight` and `...c.bias` of a folded convolution, and
`attn.ab` (n_head, n, n), the bias of every pair of positions in a window.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from candlewick.weights.load import Checkpoint, Shaped
from candlewick.weights.manifest import write_json
from candlewick.weights.onnx import Graph, Node, read_graph
from candlewick.weights.pth import StateDict
from candlewick.weights.safetensors import TensorInfo, save
from candlewick.weights.source import MadeSource, WeightsError

S = TypeVar("S", bound=Shaped)
ANONYMOUS = "onnx::"
BATCH_NORM_EPS = 1e-5  # of every batch norm in TinyViT
# Part of the model by the first step of a path in the decoder file.
PARTS = {"mask_downscaling": "prompt_encoder", "transformer": "mask_decoder", "output_upscaling": "mask_decoder"}


# ---- from ONNX ----------------------------------------------------------------------------------------------------


def from_onnx(encoder: Graph, decoder: Graph) -> dict[str, np.ndarray]:
    """The two graphs -> tensors by original name. Raises WeightsError where a constant has no known place."""
    tensors = {f"image_encoder.{name}": array for name, array in _named(encoder).items()}
    for name, array in _named(decoder).items():
        tensors[name.removeprefix("model.") if name.startswith("model.") else _with_part(name)] = array
    # The decoder's first tokens were joined when it was exported: the IoU token, then one for each mask.
    tokens = tensors.pop("output_tokens")[0]  # (1 + n_masks, d)
    tensors |= {"mask_decoder.iou_token.weight": tokens[:1], "mask_decoder.mask_tokens.weight": tokens[1:]}
    return {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()}


def _with_part(name: str) -> str:
    part = PARTS.get(name.split(".")[0])
    return f"{part}.{name}" if part else name


def _named(graph: Graph) -> dict[str, np.ndarray]:
    """Every parameter of one graph: those with names, and the anonymous ones by the place where they are read."""
    found: dict[str, np.ndarray] = {}
    read: set[str] = set()
    for node in graph.nodes:
        for position, value in enumerate(node.inputs):
            if value not in graph.tensors or value in read:
                continue
            name, array = _place(node, position, value, graph.tensors[value])
            if name is None:
                continue
            read.add(value)
            if name in found:
                raise WeightsError(f"ONNX: {name} stands twice in the graph, the second time as {value} in {node.name}")
            found[name] = array
    return found


def _place(node: Node, position: int, value: str, array: np.ndarray) -> tuple[str | None, np.ndarray]:
    """Which parameter this input of this operation is, and the array as PyTorch keeps it; None for plain numbers."""
    path = _path(node.name)
    if not value.startswith((ANONYMOUS, "/")):
        return value, array
    if value.startswith("/"):  # what a Constant holds: numbers and shapes, but also the position biases of a window
        return (f"{path}.ab", array) if path.endswith(".attn") and array.ndim == 3 else (None, array)
    if array.dtype.kind != "f":
        return None, array
    if node.op in ("Conv", "ConvTranspose") and position in (1, 2):
        return f"{path}.{('weight', 'bias')[position - 1]}", array
    if node.op == "MatMul" and position == 1:
        return f"{path}.weight", array.T  # PyTorch keeps (n_out, n_in)
    if node.op in ("Mul", "Add") and path and array.ndim == 3:  # a norm over channels, exported as arithmetic on (c, 1, 1)
        return f"{path}.{'weight' if node.op == 'Mul' else 'bias'}", array[:, 0, 0]
    if node.op == "Mul" and not path and array.ndim == 4:  # (1, d, 1, 1), spread where there is no mask
        return "prompt_encoder.no_mask_embed.weight", array[:, :, 0, 0]
    if node.op == "Expand" and not path and array.ndim == 3:
        return "output_tokens", array
    raise WeightsError(f"ONNX: {value} {list(array.shape)}, read by {node.op} {node.name!r}, has no known place; this is not a "
                       "MobileSAM as the original code exports it")


def _path(name: str) -> str:
    """`/patch_embed/seq/seq.0/c/Conv` -> `patch_embed.seq.0.c`: a container's name stands once more in its child's."""
    steps: list[str] = []
    for step in name.split("/")[1:-1]:
        if steps and step.startswith(steps[-1] + "."):
            steps.pop()
        steps.append(step)
    return ".".join(steps)


# ---- from a state dict --------------------------------------------------------------------------------------------


def from_state_dict(state: StateDict) -> StateDict:
    """A MobileSAM or SAM `.pt` under our names: batch norms folded in, position biases spread out, when they are read.

    All other tensors stay where they are in the file, in their own type.
    """
    given = {key.removeprefix("module."): info for key, info in state.tensors.items()}
    source = Checkpoint(state.sources, "state dict", given)
    tensors: dict[str, TensorInfo] = {}
    files = dict(state.sources)

    def made(key: str, shape: tuple[int, ...], make: Callable[[], Awaitable[np.ndarray]]) -> None:
        size = 4 * math.prod(shape)
        files[key] = MadeSource(key, size, make)
        tensors[key] = TensorInfo(key, "f32", shape, key, 0, size)

    for key, info in given.items():
        if key.endswith(".attention_biases"):
            n = math.isqrt(info.shape[-1])
            if len(info.shape) != 2 or n * n != info.shape[1]:
                raise WeightsError(f"{key} {list(info.shape)}: wanted one bias for each offset in a square window")
            made(key.removesuffix("attention_biases") + "ab", (info.shape[0], n * n, n * n), partial(_spread, source, info, n))
        elif key.endswith(".c.weight") and key.replace(".c.weight", ".bn.weight") in given:
            stem = key.removesuffix(".c.weight")
            parts = {part: _need(given, f"{stem}.bn.{part}") for part in ("weight", "bias", "running_mean", "running_var")}
            if any(part.shape != info.shape[:1] for part in parts.values()):
                raise WeightsError(f"{stem}: the convolution has {info.shape[:1]} outputs, its batch norm "
                                   f"{[part.shape for part in parts.values()]}")
            made(key, info.shape, partial(_folded, source, info, parts))
            made(f"{stem}.c.bias", info.shape[:1], partial(_folded_bias, source, parts))
        elif ".bn." not in key and not key.endswith((".attention_bias_idxs", ".ab")):
            tensors[key] = info
    return StateDict(tensors, files)


async def _spread(source: Checkpoint, info: TensorInfo, n: int) -> np.ndarray:
    """A table of biases by offset -> the bias of every pair of positions, (n_head, n * n, n * n)"""
    return np.ascontiguousarray((await source.read(info)).astype(np.float32)[:, offset_index(n)])


async def _folded(source: Checkpoint, conv: TensorInfo, bn: Mapping[str, TensorInfo]) -> np.ndarray:
    """A convolution without bias, then a batch norm in its resting state -> the weight of one convolution"""
    weight = (await source.read(conv)).astype(np.float64)
    return (weight * (await _scale(source, bn)).reshape(-1, *(1,) * (weight.ndim - 1))).astype(np.float32)


async def _folded_bias(source: Checkpoint, bn: Mapping[str, TensorInfo]) -> np.ndarray:
    """... and its bias"""
    bias, mean = [(await source.read(bn[part])).astype(np.float64) for part in ("bias", "running_mean")]
    return (bias - mean * await _scale(source, bn)).astype(np.float32)


async def _scale(source: Checkpoint, bn: Mapping[str, TensorInfo]) -> np.ndarray:
    gain, var = [(await source.read(bn[part])).astype(np.float64) for part in ("weight", "running_var")]
    return gain / np.sqrt(var + BATCH_NORM_EPS)  # (c_out,)


def offset_index(n: int) -> np.ndarray:
    """(n * n, n * n) i32: which bias of the table two positions of an n by n window use.

    Pairs at the same distance (|rows|, |columns|) share one; they are numbered in the order in which the pairs are met.
    """
    points = list(itertools.product(range(n), range(n)))
    known: dict[tuple[int, int], int] = {}
    rows = [[known.setdefault((abs(a[0] - b[0]), abs(a[1] - b[1])), len(known)) for b in points] for a in points]
    return np.array(rows, np.int32)


# ---- what the tensors say of the architecture ---------------------------------------------------------------------


def config_of(tensors: Mapping[str, Shaped], image_size: int = 1024) -> dict[str, Any]:
    """config.json for these tensors. image_size: of a TinyViT, which does not depend on it; a ViT's is in its positions."""
    if "image_encoder.patch_embed.seq.0.c.weight" in tensors:
        encoder = _tiny_vit_config(tensors)
    elif "image_encoder.pos_embed" in tensors:
        encoder = _vit_config(tensors)
        image_size = encoder["patch_size"] * tensors["image_encoder.pos_embed"].shape[1]
    else:
        raise WeightsError("neither image_encoder.patch_embed.seq.0.c.weight (MobileSAM) nor image_encoder.pos_embed (SAM) is "
                           f"among the {len(tensors)} tensors; wanted a checkpoint of one of the two")
    tokens = _need(tensors, "mask_decoder.mask_tokens.weight")
    decoder = "mask_decoder.transformer.layers"
    return {
        "model_type": "sam",
        "image_size": image_size,
        "pixel_mean": [123.675, 116.28, 103.53],
        "pixel_std": [58.395, 57.12, 57.375],
        "vision_config": encoder,
        "prompt_encoder_config": {
            "hidden_size": tokens.shape[1],
            "mask_input_channels": _need(tensors, "prompt_encoder.mask_downscaling.3.weight").shape[0],
        },
        "mask_decoder_config": {
            "num_hidden_layers": _count(tensors, decoder),
            "num_attention_heads": 8,  # of every published checkpoint; the tensors do not tell
            "mlp_dim": _need(tensors, f"{decoder}.0.mlp.lin1.weight").shape[0],
            "num_multimask_outputs": tokens.shape[0] - 1,
            "iou_head_depth": _count(tensors, "mask_decoder.iou_prediction_head.layers"),
            "iou_head_hidden_dim": _need(tensors, "mask_decoder.iou_prediction_head.layers.0.weight").shape[0],
        },
    }


def _tiny_vit_config(tensors: Mapping[str, Shaped]) -> dict[str, Any]:
    layers = "image_encoder.layers"
    n_layers = _count(tensors, layers)
    depths = [_count(tensors, f"{layers}.{i}.blocks") for i in range(n_layers)]
    biases = [_need(tensors, f"{layers}.{i}.blocks.0.attn.ab").shape for i in range(1, n_layers)]
    first = _need(tensors, f"{layers}.0.blocks.0.conv1.c.weight")
    widths = [_need(tensors, f"{layers}.{i}.blocks.0.mlp.fc1.weight").shape for i in range(1, n_layers)]
    return {
        "encoder": "tiny_vit",
        "embed_dims": [first.shape[1], *(shape[1] for shape in widths)],
        "depths": depths,
        "num_heads": [shape[0] for shape in biases],  # of the stages with attention: all but the first
        "window_sizes": [math.isqrt(shape[1]) for shape in biases],
        "mlp_ratio": widths[0][0] / widths[0][1],
        "expand_ratio": first.shape[0] / first.shape[1],
    }


def _vit_config(tensors: Mapping[str, Shaped]) -> dict[str, Any]:
    dim, _, patch, _ = _need(tensors, "image_encoder.patch_embed.proj.weight").shape
    grid = tensors["image_encoder.pos_embed"].shape[1]
    blocks = "image_encoder.blocks"
    depth = _count(tensors, blocks)
    offsets = [_need(tensors, f"{blocks}.{i}.attn.rel_pos_h").shape for i in range(depth)]  # (2 size - 1, d_head)
    sizes = [(rows + 1) // 2 for rows, _ in offsets]
    return {
        "encoder": "vit",
        "hidden_size": dim,
        "num_hidden_layers": depth,
        "num_attention_heads": dim // offsets[0][1],
        "patch_size": patch,
        "window_size": min(sizes),
        "global_attn_indexes": [i for i, size in enumerate(sizes) if size == grid],
        "mlp_dim": _need(tensors, f"{blocks}.0.mlp.lin1.weight").shape[0],
    }


def _need(tensors: Mapping[str, S], name: str) -> S:
    if name not in tensors:
        raise WeightsError(f"{name} is missing among the {len(tensors)} tensors; wanted a whole MobileSAM or SAM checkpoint")
    return tensors[name]


def _count(tensors: Mapping[str, Shaped], stem: str) -> int:
    """How many `stem.0`, `stem.1`, ... there are."""
    numbers = {name[len(stem) + 1 :].split(".")[0] for name in tensors if name.startswith(stem + ".")}
    return len(numbers)


def main(source: str, target: str) -> None:
    """A folder with encoder.onnx and sam.onnx -> a checkpoint folder: model.safetensors, config.json."""
    graphs = [read_graph((Path(source) / name).read_bytes(), name) for name in ("encoder.onnx", "sam.onnx")]
    tensors = from_onnx(*graphs)
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "model.safetensors", tensors, {"format": "pt"})
    write_json(folder / "config.json", config_of(tensors))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python -m {__spec__.name} FOLDER_OF_SOURCES CHECKPOINT_FOLDER")
    main(*sys.argv[1:])
