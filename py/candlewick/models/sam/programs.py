"""From a checkpoint folder to Programs and the weights they want: no executor is needed for that."""

from __future__ import annotations

import json
from dataclasses import dataclass

from candlewick.models.sam.model import Dims, Memory, Sam
from candlewick.program import Program
from candlewick.trace import Spec, trace
from candlewick.weights.convert.mobilesam import config_of, from_state_dict
from candlewick.weights.load import Checkpoint, Weights, bind
from candlewick.weights.pth import read_names, read_state_dict
from candlewick.weights.source import MemorySource

UNUSED = ("image_encoder.norm_head.*", "image_encoder.head.*")  # TinyViT's classifier, which a `.pt` still has


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint, read and checked; its data is still where it was."""

    dims: Dims
    network: Sam
    memory: Memory
    programs: dict[str, Program]
    weights: Weights


async def load_model(checkpoint: Checkpoint) -> LoadedModel:
    """Reads config.json and the weights' header. Raises ValueError in words for files that are not one SAM."""
    file = pytorch_file(checkpoint) or "config.json"
    checkpoint = await converted(checkpoint)
    dims = Dims.from_config(await checkpoint.json("config.json"), file)
    network, memory = Sam(dims), Memory.new(dims)
    bound = bind(network.parameters(), await checkpoint.tensors(), ignore=UNUSED, wanted_by=file)
    network.set_dtypes({name: info.dtype for name, info in bound.items()})
    weights = Weights(checkpoint, bound, network.constants())
    return LoadedModel(dims, network, memory, programs(network, memory), weights)


def pytorch_file(checkpoint: Checkpoint) -> str | None:
    """The name of PyTorch's file (`mobile_sam.pt`) where there is no config.json beside it."""
    found = [name for name in checkpoint.files if name.endswith((".pt", ".pth"))]
    return found[0] if len(found) == 1 and "config.json" not in checkpoint.files else None


async def is_sam(checkpoint: Checkpoint) -> bool:
    """Whether these are a SAM's files: its config.json says so, or the names in PyTorch's file do. Reads no weights."""
    if "config.json" in checkpoint.files:
        return (await checkpoint.json("config.json")).get("model_type") == "sam"
    file = pytorch_file(checkpoint)
    if file is None:
        return False
    names = await read_names(checkpoint.files[file])
    return any(name.removeprefix("module.").startswith("image_encoder.") for name in names)


async def converted(checkpoint: Checkpoint) -> Checkpoint:
    """A lone file of PyTorch's: the same under our names. Others stay as they are."""
    file = pytorch_file(checkpoint)
    if file is None:
        return checkpoint
    state = from_state_dict(await read_state_dict(checkpoint.files[file], file))
    config = json.dumps(config_of(state.tensors)).encode()
    files = {**state.sources, "config.json": MemorySource(config, "config.json")}
    return Checkpoint(files, checkpoint.name, state.tensors)


def programs(network: Sam, memory: Memory) -> dict[str, Program]:
    """The entries that every picture needs, and the decoder for one click."""
    dims = network.dims
    pixels = Spec((1, dims.image_size, dims.image_size, 3))
    embedding = Spec((1, dims.grid, dims.grid, dims.decoder.d))
    return {
        "prepare": trace(lambda: network.prepare(memory), {}, name="prepare"),
        "encode": trace(lambda pixels: network.encode(pixels, memory), {"pixels": pixels}, name="encode"),
        "remember": trace(lambda embedding: network.remember(embedding, memory), {"embedding": embedding}, name="remember"),
        "recall": trace(lambda: network.recall(memory), {}, name="recall"),
        **decoder(network, memory, 2, False),
    }


def decoder(network: Sam, memory: Memory, n: int, with_mask: bool) -> dict[str, Program]:
    """The decoder for prompts of n tokens, by its entry's name."""
    name = entry(n, with_mask)
    side = 4 * network.dims.grid
    inputs = {"points": Spec((n, 2)), "labels": Spec((n,))}
    if with_mask:
        inputs["mask"] = Spec((1, side, side))
    return {name: trace(lambda **given: network.decode(memory=memory, **given), inputs, name=name)}


def halves(network: Sam, memory: Memory) -> dict[str, Program]:
    """The decoder for one point in two entries: how good its masks are, and the masks."""
    inputs = {"points": Spec((2, 2)), "labels": Spec((2,))}
    return {
        "look": trace(lambda points, labels: network.look(points, labels, memory), inputs, name="look"),
        "masks": trace(lambda: network.masks(memory), {}, name="masks"),
    }


def entry(n: int, with_mask: bool) -> str:
    """Name of the entry for prompts of n tokens."""
    return f"decode_{n}{'_mask' if with_mask else ''}"
