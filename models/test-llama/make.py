"""Miniature checkpoints of the llama family with random weights, in every file format, at a size that can be committed.

    PYTHONPATH=py:. python models/test-llama/make.py       writes models/test-llama and models/test-llama-*

Needs the Python packages tokenizers (0.22 or 0.23), safetensors and gguf (0.19). What they say is noise, but always the same.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from candlewick.models.llama.model import Dims, Llama
from tests.golden.llama import formats

HERE = Path(__file__).resolve().parent
TEXT = ("The old lighthouse stood at the edge of the bay, and every evening the keeper climbed its narrow stairs to light "
        "the lamp. On clear nights he could count the boats coming home, and in winter he listened to the wind.")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
N_VOCAB = 320
SMALL = dict(vocab_size=N_VOCAB, hidden_size=32, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
FAMILY = {  # name -> what of it differs
    "test-llama": dict(model_type="llama", tie_word_embeddings=False),
    "test-llama-tied": dict(model_type="llama", tie_word_embeddings=True, num_key_value_heads=1, head_dim=16,
                            rope_scaling=LLAMA3, rope_theta=500000.0),
    "test-llama-qwen2": dict(model_type="qwen2", tie_word_embeddings=True, rope_theta=1e6, rms_norm_eps=1e-6,
                             use_sliding_window=False),
    "test-llama-mistral": dict(model_type="mistral", tie_word_embeddings=False, head_dim=8, sliding_window=None,
                               rope_theta=1e6),
}
QUANTISED = dict(model_type="llama", tie_word_embeddings=True, hidden_size=64, intermediate_size=192)
TEMPLATE = ("{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nBe brief."
            "<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def tokenizer() -> dict:
    """The content of a tokenizer.json: special tokens, 256 bytes, some merges."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=N_VOCAB, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False)
    t.train_from_iterator([TEXT], trainer)
    return json.loads(t.to_str())


def weights(config: dict, seed: int) -> dict[str, np.ndarray]:
    """Random tensors, scaled so that activations stay about 1 and tokens are not all equally likely."""
    rng = np.random.default_rng(seed)
    biased = config["model_type"] == "qwen2"
    dims = Dims.from_config({**config, "qkv_bias": biased})
    tensors = {}
    for name, parameter in Llama(dims, 1).parameters().items():
        x = rng.standard_normal(parameter.shape)
        if name.endswith("norm.weight"):
            x = 1 + 0.1 * x
        elif name.endswith(".bias"):
            x *= 0.5
        elif "embed_tokens" not in name:
            x *= 1.5 / np.sqrt(parameter.shape[1])
        if name == "model.norm.weight" and not dims.tied:
            x *= 2.0  # sharper logits
        tensors[name] = x.astype(np.float16)
    return tensors


def write_folder(folder: Path, changes: dict, seed: int) -> None:
    folder.mkdir(exist_ok=True)
    ids = {text: i for i, text in enumerate(SPECIAL)}
    config = {"architectures": ["LlamaForCausalLM"], **SMALL, **changes, "bos_token_id": ids["<|im_start|>"],
              "eos_token_id": ids["<|im_end|>"], "torch_dtype": "float16"}
    config["architectures"] = [{"llama": "Llama", "qwen2": "Qwen2", "mistral": "Mistral"}[config["model_type"]] + "ForCausalLM"]
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer.json", tokenizer())
    write_json(folder / "tokenizer_config.json", {
        "chat_template": TEMPLATE, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>",
        "model_max_length": config["max_position_embeddings"], "tokenizer_class": "GPT2Tokenizer", "add_bos_token": False})
    save_file(weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_manifest(folder: Path, about: str) -> None:
    files = [{"path": p.name, "bytes": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
             for p in sorted(folder.iterdir()) if p.name not in ("manifest.json", "make.py") and p.is_file()]
    (folder / "manifest.json").write_text(json.dumps(
        {"name": folder.name, "title": f"Miniature Llama ({about})",
         "about": "Random weights, for tests: what it writes is noise.",
         "family": "llama", "licence": "CC0-1.0", "files": files, "memory_bytes": 0, "sources": [],
         "note": "made by models/test-llama/make.py"}, indent=2) + "\n")


def main() -> None:
    models_folder = HERE.parent
    for seed, (name, changes) in enumerate(FAMILY.items()):
        write_folder(models_folder / name, changes, seed)
        write_manifest(models_folder / name, changes["model_type"])

    gguf = models_folder / "test-llama-gguf"
    source = models_folder / "test-llama-source"  # only for as long as the quantised file is made
    write_folder(source, QUANTISED, 11)
    gguf.mkdir(exist_ok=True)
    formats.write_gguf(source, gguf / "model.gguf", {"token_embd.weight": "Q8_0", "*": "Q4_1"})
    for path in source.iterdir():
        path.unlink()
    source.rmdir()
    write_manifest(gguf, "GGUF, Q4_1")

    llama2c = models_folder / "test-llama-bin"
    llama2c.mkdir(exist_ok=True)
    formats.write_llama2c(models_folder / "test-llama", llama2c / "model.bin")
    words = sorted({w for word in TEXT.split() for w in (word[:2], word[:3], word, " " + word)}, key=lambda w: (len(w), w))
    letters = sorted(set(TEXT))
    pieces = [*letters, *(w for w in words if len(w) > 1)][: N_VOCAB - 259]
    bytes_ = [(f"<0x{i:02X}>", 0.0) for i in range(256)]
    formats.write_tokenizer_bin([("<unk>", 0.0), ("\n<s>\n", 0.0), ("\n</s>\n", 0.0), *bytes_,
                                 *((p, float(-i)) for i, p in enumerate(pieces))], llama2c / "tokenizer.bin")
    write_manifest(llama2c, "llama2.c")
    for folder in sorted(models_folder.glob("test-llama*")):
        print(folder.name, sum(f.stat().st_size for f in folder.iterdir()))


if __name__ == "__main__":
    main()
