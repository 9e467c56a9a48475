"""whisper.cpp's model files, made of checkpoints in the layout of Hugging Face: what its own conversion scripts would write."""

from __future__ import annotations

import asyncio
from pathlib import Path

from candlewick.models.whisper.mel import mel_filters
from candlewick.text.bpe import unspell
from candlewick.weights import ggml
from candlewick.weights.load import Checkpoint

INSIDE = {  # Hugging Face -> whisper.cpp, which has OpenAI's names
    "self_attn_layer_norm": "attn_ln", "self_attn.q_proj": "attn.query", "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value", "self_attn.out_proj": "attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln", "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key", "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out", "final_layer_norm": "mlp_ln", "fc1": "mlp.0", "fc2": "mlp.2",
}  # fmt: skip
OUTSIDE = {
    "encoder.layer_norm": "encoder.ln_post", "decoder.layer_norm": "decoder.ln",
    "decoder.embed_tokens": "decoder.token_embedding", "encoder.conv1": "encoder.conv1", "encoder.conv2": "encoder.conv2",
}  # fmt: skip


def their_name(name: str) -> str:
    """model.encoder.layers.0.fc1.weight -> encoder.blocks.0.mlp.0.weight"""
    path, _, kind = name.removeprefix("model.").rpartition(".")
    if path.endswith("embed_positions"):
        return path.replace("embed_positions", "positional_embedding")
    if path in OUTSIDE:
        return f"{OUTSIDE[path]}.{kind}"
    half, _, layer, part = path.split(".", 3)
    return f"{half}.blocks.{layer}.{INSIDE[part]}.{kind}"


def ggml_file(folder: Path, dtype: str = "f16") -> bytes:
    """A checkpoint folder -> the bytes of a whisper.cpp file."""
    async def read():
        checkpoint = Checkpoint.open(folder)
        infos = await checkpoint.tensors()
        config, tokenizer = await checkpoint.json("config.json"), await checkpoint.large_json("tokenizer.json")
        return config, tokenizer, {their_name(name): await checkpoint.read(info) for name, info in infos.items()}

    config, tokenizer, tensors = asyncio.run(read())
    end = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == "<|endoftext|>")
    words = sorted((i, unspell(piece)) for piece, i in tokenizer["model"]["vocab"].items() if i < end)
    sizes = {"n_vocab": config["vocab_size"], "n_audio_ctx": config["max_source_positions"], "n_audio_state": config["d_model"],
             "n_audio_head": config["encoder_attention_heads"], "n_audio_layer": config["encoder_layers"],
             "n_text_ctx": config["max_target_positions"], "n_text_state": config["d_model"],
             "n_text_head": config["decoder_attention_heads"], "n_text_layer": config["decoder_layers"],
             "n_mels": config["num_mel_bins"]}  # fmt: skip
    return b"".join(ggml.pieces(sizes, mel_filters(config["num_mel_bins"]), [word for _, word in words], tensors, dtype))
