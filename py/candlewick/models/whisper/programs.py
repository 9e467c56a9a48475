"""From a checkpoint folder to Programs and the weights they want: no executor is needed for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from candlewick.models.whisper.mel import n_samples
from candlewick.models.whisper.model import Dims, Whisper
from candlewick.models.whisper.readout import Readout
from candlewick.models.whisper.tokenizer import Tokenizer, check_kind
from candlewick.program import Program
from candlewick.text.tokenizers import load_tokenizer
from candlewick.trace import Spec, trace
from candlewick.weights.convert.whisper import read_whisper
from candlewick.weights.load import Checkpoint, Weights, bind

CHUNK = 16  # tokens of a prompt that are read in one run
ALIGN_CHUNK = 64  # tokens of a finished text that are looked up in one run
EMBEDDING = "model.decoder.embed_tokens.weight"
TIED = ("proj_out.weight",)  # some files keep the output matrix too; it is the token embedding


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint, read and checked; its data is still where it was."""

    dims: Dims
    tokenizer: Tokenizer
    generation_config: Mapping[str, Any]
    network: Whisper
    programs: dict[str, Program]
    weights: Weights


async def load_model(checkpoint: Checkpoint) -> LoadedModel:
    """Reads the small files and the weights' headers. Raises ValueError in words for files that are not one Whisper."""
    files = await read_whisper(checkpoint)
    dims, tensors = Dims.from_config(files.config, files.origin), files.tensors
    generation_config = check_generation(files.generation_config, dims.n_vocab)
    given = files.tokenizer
    text = load_tokenizer(given.kind, given.data, given.config, given.file)
    tokenizer = Tokenizer(text, generation_config.get("is_multilingual"), given.file)
    check_kind(tokenizer, dims, tensors[EMBEDDING].shape[0] if EMBEDDING in tensors else None, files.origin)

    suppressed = tokenizer.suppressed(generation_config)
    network = Whisper(dims, Readout(dims.n_vocab, tokenizer.eot, tokenizer.timestamp_begin, suppressed))
    bound = bind(network.parameters(), tensors, ignore=TIED, wanted_by=files.origin.file)
    network.set_dtypes({name: info.dtype for name, info in bound.items()})
    weights = Weights(checkpoint, bound, network.constants())
    return LoadedModel(dims, tokenizer, generation_config, network, programs(network), weights)


def check_generation(config: Mapping[str, Any], n_vocab: int) -> Mapping[str, Any]:
    """The entries that are used, as they are. Raises ValueError naming the one that is not what it should be."""
    for key in ("suppress_tokens", "begin_suppress_tokens"):
        tokens = config.get(key)
        if tokens is None:
            continue
        if not isinstance(tokens, list) or not all(type(t) is int and 0 <= t < n_vocab for t in tokens):
            raise ValueError(f"generation_config.json: {key} must list token ids from 0 to {n_vocab - 1} (or be null), got "
                             f"{str(tokens)[:80]}; take all files from one checkpoint")
    if not isinstance(config.get("is_multilingual"), bool | None):
        raise ValueError(f"generation_config.json: is_multilingual must be true or false, got {config['is_multilingual']!r}")
    return config


def programs(network: Whisper) -> dict[str, Program]:
    """The entries: mel, encode, remember, decode_1 (a step) and decode_16 (a piece of a prompt)."""
    dims, cache = network.dims, network.new_cache()

    def encode(log_mel, peak):
        features, _ = network.encode(log_mel, peak, cache)
        return {"features": features}

    def remember():
        network.remember(cache)

    def decode(tokens, pos, last, heard):
        outputs, _ = network.decode(tokens, cache, pos, last, heard)
        return outputs

    frames = Spec((1, dims.n_frames, dims.n_mels))
    scalars = ("pos", "last", "heard")
    entries = [
        trace(network.mel, {"samples": Spec((1, dims.n_samples, 1))}, name="mel"),
        trace(encode, {"log_mel": frames}, {"peak": "f32"}, name="encode"),
        trace(remember, {}, name="remember"),
        *(trace(decode, {"tokens": Spec((1, n), "i32")}, scalars, name=f"decode_{n}") for n in (1, CHUNK)),
    ]
    return {program.name: program for program in entries}


def tree(model: LoadedModel, width: int) -> dict[str, Program]:
    """The entries plant_N and grow_N for N = width transcripts that are decoded together: loaded when they are first wanted.
    They share the audio with the others, and begin with the prompt that was read there."""
    network, cache, branches = model.network, model.network.new_cache(), model.network.new_tree(width)

    def plant():
        network.plant(cache, branches)

    def grow(tokens, hidden, first, pos, place, heard):
        outputs, _ = network.grow(tokens, branches, pos, place, hidden, first, heard, width + 1)
        return outputs

    capacity = branches.tokens[0].k.shape[2]
    inputs = {"tokens": Spec((1, width), "i32"), "hidden": Spec((1, width, capacity)), "first": Spec((width, 1))}
    entries = [trace(plant, {}, name=f"plant_{width}"),
               trace(grow, inputs, ("pos", "place", "heard"), name=f"grow_{width}")]
    return {program.name: program for program in entries}


def contexts(dims: Dims) -> tuple[int, ...]:
    """Lengths of the encoder, in positions of 20 ms, that there are programs for: 5, 10, 20 and 30 s of a published Whisper."""
    n = dims.n_audio_ctx
    return (n // 6, n // 3, n * 2 // 3, n)


def shortened(model: LoadedModel, n_ctx: int) -> dict[str, Program]:
    """The entries mel_N, encode_N and remember_N for N = n_ctx positions: loaded when they are first wanted. A decoder that is
    told how much was heard reads no more of the cache than they fill."""
    network, cache, dims = model.network, model.network.new_cache(), model.dims

    def encode(log_mel, peak):
        network.encode(log_mel, peak, cache)

    def remember():
        network.remember(cache, n_ctx)

    samples, frames = Spec((1, n_samples(2 * n_ctx), 1)), Spec((1, 2 * n_ctx, dims.n_mels))
    entries = [
        trace(network.mel, {"samples": samples}, name=f"mel_{n_ctx}"),
        trace(encode, {"log_mel": frames}, {"peak": "f32"}, name=f"encode_{n_ctx}"),
        trace(remember, {}, name=f"remember_{n_ctx}"),
    ]
    return {program.name: program for program in entries}


def alignment(model: LoadedModel) -> dict[str, Program]:
    """The entry align, for word times: loaded when it is first wanted, on the caches and weights of the others."""
    network, cache, eot = model.network, model.network.new_cache(), model.tokenizer.eot
    heads = alignment_heads(model.generation_config, model.dims)

    def align(tokens, following, pos, heard):
        return network.align(tokens, following, cache, pos, heard, heads, eot)

    inputs = {"tokens": Spec((1, ALIGN_CHUNK), "i32"), "following": Spec((ALIGN_CHUNK, 1), "i32")}
    return {"align": trace(align, inputs, ("pos", "heard"), name="align")}


def alignment_heads(config: Mapping[str, Any], dims: Dims) -> list[tuple[int, int]]:
    """(layer, head) pairs in the order of layers; those of generation_config.json, else all heads of the upper half."""
    listed = config.get("alignment_heads")
    if listed is None:
        layers = range(dims.n_text_layer // 2, dims.n_text_layer)
        return [(layer, head) for layer in layers for head in range(dims.n_text_head)]
    good = isinstance(listed, list) and listed and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
        and 0 <= pair[0] < dims.n_text_layer and 0 <= pair[1] < dims.n_text_head for pair in listed)
    if not good:
        raise ValueError(f"generation_config.json: alignment_heads must list [layer, head] pairs within {dims.n_text_layer} "
                         f"layers of {dims.n_text_head} heads, got {str(listed)[:80]}; take all files from one checkpoint")
    return sorted((layer, head) for layer, head in listed)
