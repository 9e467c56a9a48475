"""One model of the llama family, in every file format: written without any of the code under test.

GGUF by the package `gguf`, with the row order and the names of llama.cpp's own converter; llama2.c's version 0 with `struct`,
in the order of its export script. The source is always a folder in Hugging Face's layout.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
MODEL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A folder's config.json and tensors (float32)."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    return json.loads((folder / "config.json").read_text()), {name: x.astype(np.float32) for name, x in tensors.items()}


def head_width(config: dict[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def neighbours(x: np.ndarray, n_head: int) -> np.ndarray:
    """Rows of a q or k projection (or bias): the halves of each head interleaved, for rotary pairs of neighbours."""
    return x.reshape(n_head, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def write_gguf(folder: Path, path: Path, types: dict[str, str] | None = None) -> None:
    """types: GGUF tensor name -> "Q4_1" and the like, "*" for all other matrices; float32 without it."""
    import gguf

    config, tensors = read(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    arch = "qwen2" if config["model_type"] == "qwen2" else "llama"
    n_head, n_kv, d = config["num_attention_heads"], config["num_key_value_heads"], head_width(config)
    w = gguf.GGUFWriter(path, arch)
    w.add_name(folder.name)
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(n_head)
    w.add_head_count_kv(n_kv)
    w.add_key_length(d)
    w.add_value_length(d)
    w.add_rope_dimension_count(d)
    w.add_rope_freq_base(config["rope_theta"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_vocab_size(config["vocab_size"])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(scaling["factor"])
    elif scaling.get("rope_type") == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_factors(config["rope_theta"], d, scaling))

    added = {t["id"]: t for t in tokenizer["added_tokens"]}
    pieces = {i: piece for piece, i in tokenizer["model"]["vocab"].items()} | {i: t["content"] for i, t in added.items()}
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list([pieces[i] for i in range(len(pieces))])
    w.add_token_types([gguf.TokenType.CONTROL if i in added else gguf.TokenType.NORMAL for i in range(len(pieces))])
    w.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in tokenizer["model"]["merges"]])
    w.add_bos_token_id(config["bos_token_id"])
    w.add_eos_token_id(config["eos_token_id"])
    w.add_add_bos_token(False)
    w.add_chat_template(json.loads((folder / "tokenizer_config.json").read_text())["chat_template"])

    for name, x in tensors.items():
        stem, _, kind = name.rpartition(".")
        if stem in MODEL:
            new = f"{MODEL[stem]}.{kind}"
        else:
            _, _, layer, part = stem.split(".", 3)
            new = f"blk.{layer}.{LAYER[part]}.{kind}"
        if arch == "llama" and ("attn_q." in new or "attn_k." in new):
            x = neighbours(x, n_head if "attn_q." in new else n_kv)
        wanted = (types or {}).get(new, (types or {}).get("*")) if x.ndim == 2 else None
        if wanted is None:
            w.add_tensor(new, np.ascontiguousarray(x))
        else:
            dtype = gguf.GGMLQuantizationType[wanted]
            w.add_tensor(new, gguf.quants.quantize(np.ascontiguousarray(x), dtype), raw_dtype=dtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama3_factors(base: float, d: int, scaling: dict[str, Any]) -> np.ndarray:
    """What llama.cpp's converter writes into rope_freqs: the divisor of each frequency."""
    low, high, n_ctx = (scaling[k] for k in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    factors = []
    for i in range(0, d, 2):
        wavelength = 2 * np.pi * base ** (i / d)
        if wavelength < n_ctx / high:
            factors.append(1.0)
        elif wavelength > n_ctx / low:
            factors.append(scaling["factor"])
        else:
            smooth = (n_ctx / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def write_llama2c(folder: Path, path: Path) -> None:
    """Version 0: seven numbers, then float32 tensors kind by kind. A head of its own shows as a negative vocabulary."""
    config, tensors = read(folder)
    n_head, n_kv, d = config["num_attention_heads"], config["num_key_value_heads"], head_width(config)
    layers = range(config["num_hidden_layers"])
    own_head = "lm_head.weight" in tensors
    n_vocab, n_ctx = config["vocab_size"], config["max_position_embeddings"]
    header = struct.pack("<7i", config["hidden_size"], config["intermediate_size"], len(layers), n_head, n_kv,
                         -n_vocab if own_head else n_vocab, n_ctx)

    def all_layers(part: str, turned: int = 0) -> list[np.ndarray]:
        found = [tensors[f"model.layers.{i}.{part}.weight"] for i in layers]
        return [neighbours(x, turned) for x in found] if turned else found

    angles = np.arange(n_ctx)[:, None] * config["rope_theta"] ** -(np.arange(0, d, 2) / d)
    blocks = [tensors["model.embed_tokens.weight"], *all_layers("input_layernorm"), *all_layers("self_attn.q_proj", n_head),
              *all_layers("self_attn.k_proj", n_kv), *all_layers("self_attn.v_proj"), *all_layers("self_attn.o_proj"),
              *all_layers("post_attention_layernorm"), *all_layers("mlp.gate_proj"), *all_layers("mlp.down_proj"),
              *all_layers("mlp.up_proj"), tensors["model.norm.weight"], np.cos(angles), np.sin(angles)]
    if own_head:
        blocks.append(tensors["lm_head.weight"])
    path.write_bytes(header + b"".join(np.ascontiguousarray(x, "<f4").tobytes() for x in blocks))


def write_tokenizer_bin(pieces: list[tuple[str, float]], path: Path) -> None:
    """llama2.c's tokenizer.bin: longest piece, then score, length and text of each."""
    data = struct.pack("<i", max(len(piece.encode()) for piece, _ in pieces))
    for piece, score in pieces:
        data += struct.pack("<fi", score, len(piece.encode())) + piece.encode()
    path.write_bytes(data)
