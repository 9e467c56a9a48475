"""Llama, the network: Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models", part 2.2; with grouped
queries (Ainslie et al. 2023) as from Llama 2 on. SmolLM, TinyLlama, Mistral and Qwen2 are this network in other sizes.

Read it from the top: rotary tables, attention, feed-forward, block, model. Attribute paths are the tensor names of a Hugging
Face file, so `model.layers.0.self_attn.q_proj.weight` is one both there and here.

Letters in shape comments: batch, n tokens, dim = width of the network, n_head heads of queries and n_kv_head of keys and
values, d_head wide each, n_hidden = inner width of the feed-forward network, room = positions of the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from candlewick import nn, ops
from candlewick.tensor import Tensor
from candlewick.weights.source import CONFIG_JSON, Origin

# Sizes beyond these are damage, and must not be built before the weights can say so (Llama 3.1 405B: 126 layers, 53,248 wide).
MAX_LAYERS, MAX_SIZE = 512, 4_000_000
ROPE_TYPES = ("default", "linear", "llama3")
DEFAULTS = {"rms_norm_eps": 1e-6, "rope_theta": 1e4}
"""What configurations leave out, as in transformers' LlamaConfig."""


@dataclass(frozen=True)
class Dims:
    """The sizes of one checkpoint, and what else its configuration says about the network."""

    n_vocab: int
    n_ctx: int  # longest text that the network was trained for, in tokens
    dim: int
    n_layer: int
    n_head: int
    n_kv_head: int
    d_head: int
    n_hidden: int
    norm_eps: float = 1e-6
    rope_base: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    rope_factors: tuple[float, ...] | None = None  # d_head / 2 divisors of the frequencies, where a file brings its own
    rope_pairs: bool = False  # which coordinates turn together: neighbours, or (as in Hugging Face files) halves
    tied: bool = True  # the output matrix is the token embedding
    qkv_bias: bool = False
    out_bias: bool = False

    @staticmethod
    def from_config(config: Mapping[str, Any], origin: Origin = CONFIG_JSON) -> Dims:
        """LlamaConfig's names -> Dims. Raises ValueError that lists every key that is missing, or the one that is wrong, as
        its file calls it."""
        try:
            return Dims._from_config(config, origin.key)
        except ValueError as error:
            raise ValueError(f"{origin.file}: {error}") from error

    @staticmethod
    def _from_config(config: Mapping[str, Any], called: Callable[[str], str]) -> Dims:
        keys = {"n_vocab": "vocab_size", "n_ctx": "max_position_embeddings", "dim": "hidden_size",
                "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_hidden": "intermediate_size"}
        missing = [key for key in keys.values() if type(config.get(key)) is not int]
        if missing:
            raise ValueError(f"a Llama model needs {', '.join(missing)} as whole numbers; this one has "
                             f"model_type {config.get('model_type')!r}. Choose a checkpoint of the llama family")
        sizes = {field: config[key] for field, key in keys.items()}
        sizes["n_kv_head"] = config.get("num_key_value_heads") or sizes["n_head"]
        sizes["d_head"] = config.get("head_dim") or sizes["dim"] // max(1, sizes["n_head"])
        for field, size in sizes.items():
            most = MAX_LAYERS if field == "n_layer" else MAX_SIZE
            if type(size) is not int or not 1 <= size <= most:
                key = called(keys.get(field) or {"n_kv_head": "num_key_value_heads", "d_head": "head_dim"}[field])
                raise ValueError(f"{key} must be 1 to {most}, got {str(size)[:40]}; the file is damaged")
        if sizes["n_head"] % sizes["n_kv_head"]:
            raise ValueError(f"{sizes['n_head']} heads of queries cannot share {sizes['n_kv_head']} heads of keys evenly")
        if sizes["d_head"] % 2:
            raise ValueError(f"heads are {sizes['d_head']} wide; rotary positions need an even number")
        eps, base = (DEFAULTS[key] if config.get(key) is None else config[key] for key in DEFAULTS)
        for key, number in zip(DEFAULTS, (eps, base)):
            if type(number) not in (int, float):
                raise ValueError(f"{called(key)} must be a number, got {str(number)[:40]}; the file is damaged")
        if not isinstance(config.get("rope_scaling"), Mapping | None):
            raise ValueError(f"rope_scaling must be an object, got {str(config['rope_scaling'])[:40]}; the file is damaged")
        if not (0 <= eps < 1 and 1 < base < 1e12):
            raise ValueError(f"{called('rms_norm_eps')} {eps} or {called('rope_theta')} {base} is out of range; the file is "
                             "damaged")
        if config.get("hidden_act", "silu") not in ("silu", "swish"):
            raise ValueError(f"hidden_act {config['hidden_act']!r}: the llama family has silu, and this model knows no other")
        factors = config.get("rope_factors")
        dims = Dims(**sizes, norm_eps=float(eps), rope_base=float(base), rope_scaling=config.get("rope_scaling"),
                    rope_factors=None if factors is None else tuple(float(f) for f in factors),
                    rope_pairs=bool(config.get("rope_pairs")), tied=bool(config.get("tie_word_embeddings")),
                    qkv_bias=bool(config.get("qkv_bias")), out_bias=bool(config.get("out_bias")))
        rope_frequencies(dims)  # says now what it does not know
        return dims


# ---- positions ------------------------------------------------------------------------------------------------------


def rope_frequencies(dims: Dims) -> np.ndarray:
    """Radians a position, float64 (d_head / 2,): base ** (-2 i / d_head), scaled for texts longer than those of training.

    linear: all slower by one factor (Chen et al. 2023). llama3: what turns fast stays, what turns slowly is slower by the
    factor, and what lies between goes over smoothly (Llama 3.1). Raises ValueError for any other kind.
    """
    frequencies = dims.rope_base ** -(np.arange(0, dims.d_head, 2) / dims.d_head)
    if dims.rope_factors is not None:
        if len(dims.rope_factors) != len(frequencies) or not all(math.isfinite(f) and f > 0 for f in dims.rope_factors):
            raise ValueError(f"rope factors: wanted {len(frequencies)} numbers above 0, got {len(dims.rope_factors)}")
        return frequencies / np.array(dims.rope_factors)
    scaling = dims.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ValueError(f"rope_scaling {kind!r}: there are {', '.join(ROPE_TYPES)}")
    if kind == "default":
        return frequencies
    wanted = ("factor",) if kind == "linear" else ("factor", "low_freq_factor", "high_freq_factor",
                                                   "original_max_position_embeddings")
    if any(type(scaling.get(key)) not in (int, float) or not scaling[key] > 0 for key in wanted):
        raise ValueError(f"rope_scaling {kind}: wanted {', '.join(wanted)} above 0, got {dict(scaling)}")
    factor = scaling["factor"]
    if kind == "linear":
        return frequencies / factor
    low, high, n_trained = (scaling[key] for key in wanted[1:])
    if high <= low:
        raise ValueError(f"rope_scaling llama3: high_freq_factor {high} must lie above low_freq_factor {low}")
    turns = n_trained * frequencies / (2 * np.pi)  # within a text of training
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (keep + (1 - keep) / factor)


class Rotary(nn.Module):
    """Su et al. 2021: cosines and sines of each position, made once."""

    def __init__(self, dims: Dims, room: int) -> None:
        angles = np.arange(room)[:, None] * rope_frequencies(dims)  # (room, d_head / 2)
        self.cos = nn.Constant(np.cos(angles).astype(np.float32))
        self.sin = nn.Constant(np.sin(angles).astype(np.float32))
        self.pairs = dims.rope_pairs

    def __call__(self, x: Tensor, pos: Tensor) -> Tensor:
        """x (batch, heads, n, d_head) at pos .. pos + n -> the same shape"""
        return ops.rope(x, self.cos, self.sin, pos, pairs=self.pairs)


# ---- the network ----------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """A token sees itself and the tokens before it. Several heads of queries share one head of keys and values."""

    def __init__(self, dims: Dims) -> None:
        self.n_head, self.n_kv_head = dims.n_head, dims.n_kv_head
        wide, narrow = dims.n_head * dims.d_head, dims.n_kv_head * dims.d_head
        self.q_proj = nn.Linear(dims.dim, wide, dims.qkv_bias)
        self.k_proj = nn.Linear(dims.dim, narrow, dims.qkv_bias)
        self.v_proj = nn.Linear(dims.dim, narrow, dims.qkv_bias)
        self.o_proj = nn.Linear(wide, dims.dim, dims.out_bias)

    def __call__(
        self, x: Tensor, cache: nn.KVCache, rotary: Rotary, pos: Tensor, count: Tensor | None
    ) -> tuple[Tensor, nn.KVCache]:
        """x (batch, n, dim) at pos .. pos + n -> (the same shape, cache)"""
        q = nn.split_heads(self.q_proj(x, count), self.n_head)  # (batch, n_head, n, d_head)
        k = nn.split_heads(self.k_proj(x, count), self.n_kv_head)  # (batch, n_kv_head, n, d_head)
        v = nn.split_heads(self.v_proj(x, count), self.n_kv_head)  # (batch, n_kv_head, n, d_head)
        cache = cache.update(rotary(k, pos), v, pos)  # (batch, n_kv_head, room, d_head)
        y = ops.attention(rotary(q, pos), cache.k, cache.v, start=pos, causal=True)  # (batch, n_head, n, d_head)
        return self.o_proj(nn.merge_heads(y), count), cache


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020): one half decides how much of the other passes."""

    def __init__(self, dims: Dims) -> None:
        self.gate_proj = nn.Linear(dims.dim, dims.n_hidden, bias=False)
        self.up_proj = nn.Linear(dims.dim, dims.n_hidden, bias=False)
        self.down_proj = nn.Linear(dims.n_hidden, dims.dim, bias=False)

    def __call__(self, x: Tensor, count: Tensor | None) -> Tensor:
        """x (batch, n, dim) -> the same shape, n_hidden wide inside"""
        return self.down_proj(ops.swiglu(self.gate_proj(x, count), self.up_proj(x, count)), count)


class Block(nn.Module):
    """Attention, then the feed-forward network; each reads a normalised x and adds to x."""

    def __init__(self, dims: Dims) -> None:
        self.input_layernorm = nn.RMSNorm(dims.dim, dims.norm_eps)
        self.self_attn = Attention(dims)
        self.post_attention_layernorm = nn.RMSNorm(dims.dim, dims.norm_eps)
        self.mlp = FeedForward(dims)

    def __call__(
        self, x: Tensor, cache: nn.KVCache, rotary: Rotary, pos: Tensor, count: Tensor | None
    ) -> tuple[Tensor, nn.KVCache]:
        """x (batch, n, dim) at pos .. pos + n -> (the same shape, cache)"""
        y, cache = self.self_attn(self.input_layernorm(x), cache, rotary, pos, count)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x), count), cache


class Stack(nn.Module):
    """Embedding, blocks, and the norm before the output matrix."""

    def __init__(self, dims: Dims) -> None:
        self.embed_tokens = nn.Embedding(dims.n_vocab, dims.dim)
        self.layers = [Block(dims) for _ in range(dims.n_layer)]
        self.norm = nn.RMSNorm(dims.dim, dims.norm_eps)


class Llama(nn.Module):
    """Tokens -> logits of the token that follows."""

    def __init__(self, dims: Dims, room: int) -> None:
        self.dims, self.room = dims, room
        self.rotary = Rotary(dims, room)
        self.model = Stack(dims)
        self.lm_head = None if dims.tied else nn.Linear(dims.dim, dims.n_vocab, bias=False)

    def new_cache(self, batch: int = 1) -> list[nn.KVCache]:
        """An empty cache for each layer."""
        d = self.dims
        return [nn.KVCache.new(f"cache.{i}", batch, d.n_kv_head, self.room, d.d_head) for i in range(d.n_layer)]

    def __call__(
        self, tokens: Tensor, cache: Sequence[nn.KVCache], pos: Tensor, count: Tensor | None = None, last: Tensor | None = None
    ) -> tuple[Tensor, list[nn.KVCache]]:
        """tokens i32 (1, n) at pos .. pos + n -> logits (1, n_vocab) of what follows token number `last`, cache

        Without `last`, n is 1. Tokens from `count` on are padding: no token sees those behind it, and the next run
        overwrites what they left.
        """
        x = self.model.embed_tokens(tokens)  # (1, n, dim)
        caches = []
        for layer, layer_cache in zip(self.model.layers, cache):
            x, layer_cache = layer(x, layer_cache, self.rotary, pos, count)
            caches.append(layer_cache)
        x = x.reshape(tokens.shape[1], self.dims.dim)  # (n, dim)
        if last is not None:
            x = ops.rows(x, last, count=1)  # (1, dim)
        x = self.model.norm(x)
        return self.lm_head(x) if self.lm_head else self.model.embed_tokens.unembed(x), caches
