"""From a checkpoint to Programs and the weights they want: no executor is needed for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from candlewick import ops
from candlewick.models.llama.model import Dims, Llama
from candlewick.options import OptionError
from candlewick.program import Program
from candlewick.text.chat import ChatTemplate
from candlewick.text.tokenizers import Tokenizer, load_tokenizer
from candlewick.trace import Spec, trace
from candlewick.weights.convert.llama import read_llama
from candlewick.weights.load import Checkpoint, Weights, bind

CHUNK = 64  # tokens of a prompt that are read in one run
TOP = 128  # best tokens that come back from every step: enough for top-k 64 behind a repeat penalty on 64 others
CAPACITY = 2048  # positions of the cache unless another number is asked for
IGNORED = ("*.rotary_emb.inv_freq",)  # some files keep the rotary frequencies; they follow from the configuration
TIED = ("lm_head.weight",)  # or the output matrix, although it is the token embedding


@dataclass(frozen=True, repr=False)
class LoadedModel:
    """A checkpoint, read and checked; its data is still where it was."""

    name: str
    dims: Dims
    capacity: int  # tokens that can be read, prompt and answer together
    tokenizer: Tokenizer
    ends: frozenset[int]  # tokens that end an answer
    chat: ChatTemplate
    has_template: bool
    tokenizer_kind: str
    network: Llama
    programs: dict[str, Program]
    weights: Weights

    def bytes_by_type(self) -> dict[str, int]:
        """Bytes of the weights in the file, by dtype, most first."""
        found: dict[str, int] = {}
        for info in self.weights.bound.values():
            found[info.dtype] = found.get(info.dtype, 0) + info.end - info.start
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def kv_bytes(self) -> int:
        """Bytes of keys and values of one position."""
        d = self.dims
        return 2 * d.n_layer * d.n_kv_head * d.d_head * 4

    def memory_estimate(self) -> dict[str, int]:
        """Bytes of weights and state before anything is loaded; an executor adds its arena, a page its interpreter."""
        weights = sum(self.bytes_by_type().values()) + sum(c.nbytes for c in self.network.constants().values())
        state = self.kv_bytes() * self.network.room
        return {"weights": weights, "state": state, "total": weights + state}


async def load_model(checkpoint: Checkpoint, capacity: int | None = None) -> LoadedModel:
    """Reads the small files and the weights' headers. Raises ValueError in words for files that are not one Llama.

    capacity: positions of the cache; never more than the checkpoint was trained for (or its sliding window, within which
    attention to a window and attention to everything are the same).
    """
    files = await read_llama(checkpoint)
    config, tensors = files.config, files.tensors
    dims = Dims.from_config(completed(config, tensors), files.origin)
    given = files.tokenizer
    tokenizer = load_tokenizer(given.kind, given.data, given.config, given.file)
    if tokenizer.n_vocab > dims.n_vocab:
        raise ValueError(f"{files.name}: the tokenizer has {tokenizer.n_vocab} tokens, the model {dims.n_vocab}; take both "
                         "from one checkpoint")
    seen = config.get("sliding_window")
    if seen is not None and (type(seen) is not int or seen < 2):
        raise ValueError(f"{files.origin.file}: {files.origin.key('sliding_window')} must be a whole number of tokens, got "
                         f"{str(seen)[:40]}; the file is damaged")
    most = min(dims.n_ctx, seen or dims.n_ctx)
    if capacity is not None and (type(capacity) is not int or capacity < 2):
        raise OptionError("{capacity}: wanted a whole number of tokens from 2 on, got {got!r}", got=capacity)
    capacity = min(most, CAPACITY if capacity is None else capacity)

    network = Llama(dims, capacity + CHUNK)  # a padded chunk fits behind every position
    bound = bind(network.parameters(), tensors, ignore=IGNORED + (TIED if dims.tied else ()), wanted_by=files.origin.file)
    network.set_dtypes({name: info.dtype for name, info in bound.items()})
    weights = Weights(checkpoint, bound, network.constants())
    chat = ChatTemplate(files.chat_template, tokenizer)
    return LoadedModel(files.name, dims, capacity, tokenizer, tokenizer.ends, chat, files.chat_template is not None,
                       given.kind, network, programs(network), weights)


def completed(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with what it may leave open: whether there is a head, and which projections have a bias.

    What it does say, counts: a head that it asks for and that is not there is then missing.
    """
    tied = config.get("tie_word_embeddings")
    biased = {p: f"model.layers.0.self_attn.{p}_proj.bias" in tensors for p in "qo"}
    asked, kind = bool(config.get("attention_bias")), config.get("model_type")
    return {**config, "tie_word_embeddings": "lm_head.weight" not in tensors if tied is None else tied,
            "qkv_bias": asked or biased["q"] or kind == "qwen2", "out_bias": biased["o"] or (asked and kind == "llama")}


def programs(network: Llama) -> dict[str, Program]:
    """The entries: decode (one token) and prefill (CHUNK tokens of a prompt, those from `count` on padding)."""
    cache = network.new_cache()

    def decode(tokens, pos):
        logits, _ = network(tokens, cache, pos)
        return readout(logits)

    def prefill(tokens, pos, count, last):
        logits, _ = network(tokens, cache, pos, count, last)
        return readout(logits)

    return {"decode": trace(decode, {"tokens": Spec((1, 1), "i32")}, ("pos",), name="decode"),
            "prefill": trace(prefill, {"tokens": Spec((1, CHUNK), "i32")}, ("pos", "count", "last"), name="prefill")}


def readout(logits):
    """logits (1, n_vocab) -> also the TOP best, best first, and the log of the sum of exponentials of all."""
    top_ids = ops.top_k(logits, k=min(TOP, logits.shape[1]))  # (1, TOP)
    return {"logits": logits, "top_ids": top_ids, "top": ops.take(logits, top_ids),
            "log_sum": ops.log_sum_exp(logits, axis=-1)}  # (1,)
