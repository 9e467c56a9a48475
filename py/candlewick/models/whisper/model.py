"""Whisper, the network: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", part 2.2.

Read it from the top: attention, blocks, encoder, decoder, model. Attribute paths are the tensor names of a Hugging Face
file, so `model.encoder.layers.0.self_attn.q_proj.weight` is one both there and here.

Letters in shape comments: batch, n_frames (10 ms each), n_audio_ctx = n_frames / 2, n tokens, n_state = width of the
network, d_head = n_state / n_head, n_mlp = inner width of a block's two-layer network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from candlewick import nn, ops
from candlewick.models.whisper.mel import LogMel, n_samples
from candlewick.models.whisper.readout import Readout
from candlewick.tensor import Tensor
from candlewick.weights.source import CONFIG_JSON, Origin

# Sizes beyond these are damage, and must not be built before the weights can say so (large-v3 has 32 layers, 51,866 tokens).
MAX_LAYERS, MAX_SIZE = 256, 1_000_000


@dataclass(frozen=True)
class Dims:
    """The sizes of one checkpoint."""

    n_mels: int  # mel bands: 80, or 128 from large-v3 on
    n_audio_ctx: int  # encoder positions in a window, 20 ms each: 1500
    n_text_ctx: int  # longest token sequence of the decoder: 448
    n_vocab: int
    n_state: int
    n_audio_layer: int
    n_audio_head: int
    n_audio_mlp: int
    n_text_layer: int
    n_text_head: int
    n_text_mlp: int

    @staticmethod
    def from_config(config: Mapping[str, Any], origin: Origin = CONFIG_JSON) -> Dims:
        """Hugging Face's names -> Dims. Raises ValueError that lists every key that is missing, as its file calls it."""
        keys = {
            "n_mels": "num_mel_bins", "n_audio_ctx": "max_source_positions", "n_text_ctx": "max_target_positions",
            "n_vocab": "vocab_size", "n_state": "d_model",
            "n_audio_layer": "encoder_layers", "n_text_layer": "decoder_layers",
            "n_audio_head": "encoder_attention_heads", "n_text_head": "decoder_attention_heads",
            "n_audio_mlp": "encoder_ffn_dim", "n_text_mlp": "decoder_ffn_dim",
        }
        missing = [key for key in keys.values() if type(config.get(key)) is not int]
        if missing:
            raise ValueError(f"{origin.file}: a Whisper model needs {', '.join(missing)} as whole numbers; this one has "
                             f"model_type {config.get('model_type')!r}. Choose a Whisper checkpoint")
        for key in keys.values():
            most = MAX_LAYERS if key.endswith("layers") else MAX_SIZE
            if not 1 <= config[key] <= most:
                raise ValueError(f"{origin.file}: {origin.key(key)} must be 1 to {most}, got {str(config[key])[:40]}; the file "
                                 "is damaged")
        if config.get("scale_embedding") or config.get("activation_function", "gelu") != "gelu":
            raise ValueError(f"{origin.file}: this Whisper has scale_embedding or another activation than gelu, which no "
                             "published checkpoint has and this model does not know")
        dims = Dims(**{field: config[key] for field, key in keys.items()})
        for field in ("n_audio_head", "n_text_head"):
            if dims.n_state % getattr(dims, field):
                raise ValueError(f"{origin.file}: {origin.key('d_model')} {dims.n_state} is not a multiple of "
                                 f"{origin.key(keys[field])} {getattr(dims, field)}")
        return dims

    @property
    def n_frames(self) -> int:
        """Mel frames in a window: the encoder's second convolution halves them."""
        return 2 * self.n_audio_ctx

    @property
    def n_samples(self) -> int:
        """Samples that the frames of a window look at."""
        return n_samples(self.n_frames)


class Attention(nn.Module):
    """The four projections of multi-head attention. Keys have no bias: it would not change the softmax."""

    def __init__(self, n_state: int, n_head: int) -> None:
        self.n_head = n_head
        self.q_proj = nn.Linear(n_state, n_state)
        self.k_proj = nn.Linear(n_state, n_state, bias=False)
        self.v_proj = nn.Linear(n_state, n_state)
        self.out_proj = nn.Linear(n_state, n_state)

    def heads(self, *projected: Tensor) -> list[Tensor]:
        """each (batch, n, n_state) -> (batch, n_head, n, d_head)"""
        return [nn.split_heads(x, self.n_head) for x in projected]


class SelfAttention(Attention):
    """Every position sees every position (encoder)."""

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, n_audio_ctx, n_state) -> the same shape"""
        q, k, v = self.heads(self.q_proj(x), self.k_proj(x), self.v_proj(x))  # (batch, n_head, n_audio_ctx, d_head)
        return self.out_proj(nn.merge_heads(ops.attention(q, k, v)))


class CausalSelfAttention(Attention):
    """A token sees itself and the tokens before it (decoder)."""

    def __call__(
        self, x: Tensor, cache: nn.KVCache, pos: Tensor, hidden: Tensor | None = None
    ) -> tuple[Tensor, nn.KVCache]:
        """x (batch, n, n_state) at pos .. pos + n, cache with room for n_text_ctx -> (the same shape, cache)

        hidden (1, n, n_text_ctx): 0, or far below where a token does not see one that lies before it (`Whisper.grow`).
        """
        q, k, v = self.heads(self.q_proj(x), self.k_proj(x), self.v_proj(x))  # (batch, n_head, n, d_head)
        cache = cache.update(k, v, pos)  # (batch, n_head, n_text_ctx, d_head)
        y = ops.attention(q, cache.k, cache.v, start=pos, bias=hidden, causal=True)  # (batch, n_head, n, d_head)
        return self.out_proj(nn.merge_heads(y)), cache


class CrossAttention(Attention):
    """Tokens look at the audio. Keys and values of the audio are made once a window."""

    def remember(self, features: Tensor, cache: nn.KVCache) -> nn.KVCache:
        """features (batch, n, n_state), n at most n_audio_ctx -> cache, each (batch, n_head, n_audio_ctx, d_head)"""
        k, v = self.heads(self.k_proj(features), self.v_proj(features))
        return cache.update(k, v, 0)

    def __call__(self, x: Tensor, cache: nn.KVCache, heard: Tensor) -> Tensor:
        """x (batch, n, n_state), heard: the last position of the audio that counts -> the same shape

        All tokens see the same keys. That is causal attention of a single query of n times as many heads.
        """
        (q,) = self.heads(self.q_proj(x))  # (batch, n_head, n, d_head)
        batch, n_head, n, d_head = q.shape
        grouped = q.reshape(batch, n_head * n, 1, d_head)
        y = ops.attention(grouped, cache.k, cache.v, start=heard, causal=True)
        return self.out_proj(nn.merge_heads(y.reshape(batch, n_head, n, d_head)))

    def scores(self, x: Tensor, cache: nn.KVCache, heads: Sequence[int]) -> Tensor:
        """x (1, n, n_state) -> (len(heads), n, n_audio_ctx): how much some heads look at each moment, before the softmax"""
        (q,) = self.heads(self.q_proj(x))  # (1, n_head, n, d_head)
        each = [ops.matmul(*(ops.slice(a, 1, h, h + 1) for a in (q, cache.k)), transpose_b=True) for h in heads]
        _, _, n, n_audio_ctx = each[0].shape
        return (ops.concat(each, 1) * q.shape[3] ** -0.5).reshape(len(heads), n, n_audio_ctx)


class Block(nn.Module):
    """What encoder and decoder blocks share: a norm before self-attention, and a two-layer network at the end."""

    def __init__(self, n_state: int, n_mlp: int) -> None:
        self.self_attn_layer_norm = nn.LayerNorm(n_state)
        self.fc1 = nn.Linear(n_state, n_mlp)
        self.fc2 = nn.Linear(n_mlp, n_state)
        self.final_layer_norm = nn.LayerNorm(n_state)

    def mlp(self, x: Tensor) -> Tensor:
        """x (batch, n, n_state) -> the same shape, n_mlp wide inside"""
        return self.fc2(ops.gelu(self.fc1(self.final_layer_norm(x))))


class EncoderBlock(Block):
    def __init__(self, n_state: int, n_head: int, n_mlp: int) -> None:
        super().__init__(n_state, n_mlp)
        self.self_attn = SelfAttention(n_state, n_head)

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, n_audio_ctx, n_state) -> the same shape"""
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        return x + self.mlp(x)


class DecoderBlock(Block):
    def __init__(self, n_state: int, n_head: int, n_mlp: int) -> None:
        super().__init__(n_state, n_mlp)
        self.self_attn = CausalSelfAttention(n_state, n_head)
        self.encoder_attn = CrossAttention(n_state, n_head)
        self.encoder_attn_layer_norm = nn.LayerNorm(n_state)

    def __call__(
        self, x: Tensor, cache: nn.KVCache, audio: nn.KVCache, pos: Tensor, heard: Tensor, hidden: Tensor | None = None
    ) -> tuple[Tensor, nn.KVCache]:
        """x (batch, n, n_state), cache of the tokens, audio: what the window left -> (the same shape, cache)"""
        x, cache = self.read(x, cache, pos, hidden)
        return self.hear(x, audio, heard), cache

    def read(
        self, x: Tensor, cache: nn.KVCache, pos: Tensor, hidden: Tensor | None = None
    ) -> tuple[Tensor, nn.KVCache]:
        """First half: what the tokens before say."""
        y, cache = self.self_attn(self.self_attn_layer_norm(x), cache, pos, hidden)
        return x + y, cache

    def hear(self, x: Tensor, audio: nn.KVCache, heard: Tensor) -> Tensor:
        """Second half: what the audio says."""
        x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), audio, heard)
        return x + self.mlp(x)


class Encoder(nn.Module):
    """Log-mel frames -> features, one for each 20 ms."""

    def __init__(self, dims: Dims) -> None:
        d = dims.n_state
        self.conv1 = nn.Conv1d(dims.n_mels, d, kernel=3, padding=1)
        self.conv2 = nn.Conv1d(d, d, kernel=3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(dims.n_audio_ctx, d)  # sinusoids, but the file has them
        self.layers = [EncoderBlock(d, dims.n_audio_head, dims.n_audio_mlp) for _ in range(dims.n_audio_layer)]
        self.layer_norm = nn.LayerNorm(d)

    def __call__(self, mel: Tensor) -> Tensor:
        """mel (batch, n_frames, n_mels) -> (batch, n_audio_ctx, n_state); of fewer frames, as many as half of them"""
        x = ops.gelu(self.conv1(mel))  # (batch, n_frames, n_state)
        x = ops.gelu(self.conv2(x))  # (batch, n_audio_ctx, n_state)
        positions, n = self.embed_positions.weight, x.shape[1]
        x = x + (positions if n == positions.shape[0] else ops.rows(positions, 0, count=n))
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class Decoder(nn.Module):
    """Tokens and audio -> one vector a token, from which the next token is read."""

    def __init__(self, dims: Dims) -> None:
        d = dims.n_state
        self.embed_tokens = nn.Embedding(dims.n_vocab, d)
        self.embed_positions = nn.Embedding(dims.n_text_ctx, d)
        self.layers = [DecoderBlock(d, dims.n_text_head, dims.n_text_mlp) for _ in range(dims.n_text_layer)]
        self.layer_norm = nn.LayerNorm(d)

    def __call__(self, tokens: Tensor, cache: Cache, pos: Tensor, heard: Tensor) -> tuple[Tensor, Cache]:
        """tokens i32 (batch, n) at positions pos .. pos + n -> ((batch, n, n_state), cache)"""
        return self.through(self.embed(tokens, pos, tokens.shape[1]), cache, pos, heard)

    def embed(self, tokens: Tensor, pos: Tensor, count: int) -> Tensor:
        """tokens i32 (batch, n) at positions pos .. pos + n, or with count = 1 all at pos -> (batch, n, n_state)"""
        return self.embed_tokens(tokens) + ops.rows(self.embed_positions.weight, pos, count=count)

    def through(
        self, x: Tensor, cache: Cache, place: Tensor, heard: Tensor, hidden: Tensor | None = None
    ) -> tuple[Tensor, Cache]:
        """x (batch, n, n_state), kept at place .. place + n of the cache -> (the same shape, cache)"""
        caches = []
        for layer, token_cache, audio in zip(self.layers, cache.tokens, cache.audio):
            x, token_cache = layer(x, token_cache, audio, place, heard, hidden)
            caches.append(token_cache)
        return self.layer_norm(x), replace(cache, tokens=caches)

    def align(
        self, tokens: Tensor, cache: Cache, pos: Tensor, heard: Tensor, heads: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor]:
        """The same run, seen from inside -> ((1, n, n_state), scores (len(heads), n, n_audio_ctx)) of (layer, head) pairs"""
        x, scores = self.embed(tokens, pos, tokens.shape[1]), []
        for number, (layer, token_cache, audio) in enumerate(zip(self.layers, cache.tokens, cache.audio)):
            x, _ = layer.read(x, token_cache, pos)
            wanted = [head for at, head in heads if at == number]
            if wanted:
                scores.append(layer.encoder_attn.scores(layer.encoder_attn_layer_norm(x), audio, wanted))
            x = layer.hear(x, audio, heard)
        return self.layer_norm(x), ops.concat(scores, 0)


@dataclass(frozen=True)
class Cache:
    """What is kept between runs: what the encoder heard, and one pair of keys and values a layer."""

    features: nn.State | Tensor  # (batch, n_audio_ctx, n_state)
    tokens: Sequence[nn.KVCache]  # each (batch, n_head, n_text_ctx, d_head)
    audio: Sequence[nn.KVCache]  # each (batch, n_head, n_audio_ctx, d_head)


class EncoderDecoder(nn.Module):
    def __init__(self, dims: Dims) -> None:
        self.encoder = Encoder(dims)
        self.decoder = Decoder(dims)


class Whisper(nn.Module):
    """The whole line from samples to logits, in the pieces that are run separately: mel, encode, remember, decode."""

    def __init__(self, dims: Dims, readout: Readout) -> None:
        self.dims = dims
        self.log_mel = LogMel(dims.n_mels)
        self.model = EncoderDecoder(dims)
        self.readout = readout

    def new_cache(self, batch: int = 1) -> Cache:
        """Empty caches for one window, or for `batch` of them at a time."""
        features = nn.State("features", (batch, self.dims.n_audio_ctx, self.dims.n_state))
        return Cache(features, self.new_caches("tokens", batch, self.dims.n_text_ctx),
                     self.new_caches("audio", batch, self.dims.n_audio_ctx))

    def new_tree(self, width: int) -> Cache:
        """The caches of one window, but with room for the tokens of `width` transcripts that share a prompt."""
        n, half = self.dims.n_text_ctx, self.dims.n_text_ctx // 2
        return replace(self.new_cache(), tokens=self.new_caches(f"tree{width}", 1, n - half + width * half))

    def new_caches(self, name: str, batch: int, capacity: int) -> list[nn.KVCache]:
        """One for each layer of the decoder."""
        dims = self.dims
        return [nn.KVCache.new(f"{name}.{i}", batch, dims.n_text_head, capacity, dims.n_state // dims.n_text_head)
                for i in range(dims.n_text_layer)]

    def mel(self, samples: Tensor) -> dict[str, Tensor]:
        """samples (batch, n_samples, 1), or fewer -> log_mel (batch, n_frames, n_mels), peak () its largest value"""
        log_mel = self.log_mel(samples)
        return {"log_mel": log_mel, "peak": ops.max(log_mel, axis=None)}

    def encode(self, log_mel: Tensor, peak: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """log_mel (batch, n_frames, n_mels), peak () of the whole recording -> features, cache that holds them

        Fewer frames than the window has give as many features as half of them, in the first places of the cache.
        """
        features = self.model.encoder(self.log_mel.normalise(log_mel, peak))  # (batch, n_audio_ctx, n_state)
        return features, replace(cache, features=ops.update(cache.features, features, 0, axis=1))

    def remember(self, cache: Cache, n_ctx: int | None = None) -> Cache:
        """cache with the features of a window (n_ctx of them, or all) -> cache in which every decoder layer has its keys and
        values of them"""
        features, pairs = cache.features, zip(self.model.decoder.layers, cache.audio)
        if n_ctx not in (None, self.dims.n_audio_ctx):
            features = ops.slice(features, axis=1, start=0, stop=n_ctx)
        return replace(cache, audio=[layer.encoder_attn.remember(features, kv) for layer, kv in pairs])

    def decode(
        self, tokens: Tensor, cache: Cache, pos: Tensor, last: Tensor, heard: Tensor
    ) -> tuple[dict[str, Tensor], Cache]:
        """tokens i32 (batch, n) at pos .. pos + n -> what follows token number `last` of them (`Readout`), cache

        Tokens after `last` may be padding: a token sees only those before it, and the next run overwrites what they
        left. heard: the last position of the audio that counts.
        """
        x, cache = self.model.decoder(tokens, cache, pos, heard)  # (batch, n, n_state)
        x = row(x, last)  # (batch, n_state)
        return self.readout(self.model.decoder.embed_tokens.unembed(x)), cache  # logits (batch, n_vocab)

    def plant(self, cache: Cache, tree: Cache) -> Cache:
        """A prompt that was read into the cache -> tree that begins with it"""
        pairs = zip(cache.tokens, tree.tokens)
        return replace(tree, tokens=[to.update(one.k, one.v, 0) for one, to in pairs])

    def grow(
        self, tokens: Tensor, tree: Cache, pos: Tensor, place: Tensor, hidden: Tensor, first: Tensor, heard: Tensor, k: int
    ) -> tuple[dict[str, Tensor], Cache]:
        """One token of each of n transcripts -> what may follow each (`Readout.candidates`), tree

        tokens i32 (1, n), all at position pos of their text, are kept at place .. place + n of the tree. Each sees the prompt
        and what hidden (1, n, capacity) does not hide of the rest: the path to itself. So a transcript that goes on from
        another needs no copy of it, and all tokens are rows of one product, in attention too. first (n, 1): the first
        timestamp that may come.
        """
        decoder = self.model.decoder
        x, tree = decoder.through(decoder.embed(tokens, pos, 1), tree, place, heard, hidden)  # (1, n, n_state)
        logits = decoder.embed_tokens.unembed(x.reshape(tokens.shape[1], self.dims.n_state))  # (n, n_vocab)
        return self.readout.candidates(logits, first, k), tree

    def align(
        self, tokens: Tensor, following: Tensor, cache: Cache, pos: Tensor, heard: Tensor, heads: Sequence[Sequence[int]],
        n_text: int,
    ) -> dict[str, Tensor]:
        """tokens i32 (1, n) at pos .. pos + n, following i32 (n, 1): the text token after each of them, all below n_text
        -> looks (len(heads), n, n_audio_ctx), logprob (n,) of the following tokens among the texts
        """
        x, looks = self.model.decoder.align(tokens, cache, pos, heard, heads)
        logits = ops.slice(self.model.decoder.embed_tokens.unembed(x), -1, 0, n_text).reshape(tokens.shape[1], n_text)
        logprob = ops.take(logits, following).reshape(tokens.shape[1]) - ops.log_sum_exp(logits)
        return {"looks": looks, "logprob": logprob}


def row(x: Tensor, index: Tensor) -> Tensor:
    """x (batch, n, d), index () -> (batch, d)"""
    batch, n, d = x.shape
    by_position = ops.transpose(x, (1, 0, 2)).reshape(n, batch * d)
    return ops.rows(by_position, index, count=1).reshape(batch, d)
