"""Miniature Whisper checkpoints with random weights: every part of the family at a size that can be committed.

    PYTHONPATH=py python models/test-whisper/make.py       writes models/test-whisper and models/test-whisper-multilingual

Needs the Python package tokenizers (0.23) for learning the merges. What they say is noise, but always the same noise.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from candlewick.models.whisper.model import Dims, Whisper
from candlewick.models.whisper.readout import Readout
from candlewick.weights.safetensors import save

HERE = Path(__file__).resolve().parent
N_MERGES = 120
TEXT = ("The old lighthouse stood at the edge of the bay, and every evening the keeper climbed its narrow stairs to light "
        "the lamp. On clear nights he could count the boats coming home, and in winter he listened to the wind.")
SMALL = {  # name -> sizes in the words of config.json, languages
    "test-whisper": (dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
                          decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=80,
                          max_source_positions=100, max_target_positions=64), ["en"]),
    "test-whisper-multilingual": (dict(d_model=40, encoder_layers=1, decoder_layers=3, encoder_attention_heads=5,
                                       decoder_attention_heads=2, encoder_ffn_dim=72, decoder_ffn_dim=96, num_mel_bins=128,
                                       max_source_positions=150, max_target_positions=96), ["en", "zh", "de", "es"]),
}


def tokenizer(languages: list[str]) -> dict:
    """The content of a tokenizer.json: 256 bytes, some merges, special tokens."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=256 + N_MERGES, initial_alphabet=alphabet, show_progress=False)
    t.train_from_iterator([TEXT], trainer)
    t.add_special_tokens(["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in languages), "<|translate|>",
                          "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"])
    return json.loads(t.to_str())


def unreadable(spec: dict) -> list[int]:
    """Tokens other than printable ASCII: noise should at least be readable."""
    return sorted(i for piece, i in spec["model"]["vocab"].items() if not piece.replace("Ġ", " ").isascii())


def weights(dims: Dims, seed: int) -> dict[str, np.ndarray]:
    """Random tensors, scaled so that activations stay about 1 and tokens are not all equally likely."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, parameter in Whisper(dims, Readout(dims.n_vocab, 1)).parameters().items():
        fan_in = int(np.prod(parameter.shape[1:])) if len(parameter.shape) > 1 else 1
        x = rng.standard_normal(parameter.shape) / np.sqrt(fan_in)
        if name.endswith(".bias"):
            x *= 0.1
        elif "layer_norm" in name:
            x = 1 + 0.1 * x
        elif "embed_positions" in name:
            x *= 3.0
        elif name.endswith("out_proj.weight") or name.endswith("fc2.weight"):
            x *= 2.0  # what a block adds should outweigh the token itself, or each token repeats for ever
        if name == "model.decoder.layer_norm.weight":
            x *= 3.0  # sharper logits
        tensors[name] = x.astype(np.float16)
    return tensors


def main() -> None:
    for seed, (name, (sizes, languages)) in enumerate(SMALL.items()):
        folder = HERE.parent / name
        folder.mkdir(exist_ok=True)
        spec = tokenizer(languages)
        ids = {t["content"]: t["id"] for t in spec["added_tokens"]}
        no_timestamps, eot = ids["<|notimestamps|>"], ids["<|endoftext|>"]
        config = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", **sizes,
                  "vocab_size": no_timestamps + 1 + sizes["max_source_positions"] + 1, "activation_function": "gelu",
                  "scale_embedding": False, "tie_word_embeddings": True, "bos_token_id": eot, "eos_token_id": eot,
                  "pad_token_id": eot, "decoder_start_token_id": ids["<|startoftranscript|>"]}
        generation = {"is_multilingual": len(languages) > 1, "no_timestamps_token_id": no_timestamps,
                      "decoder_start_token_id": ids["<|startoftranscript|>"], "eos_token_id": eot,
                      "suppress_tokens": unreadable(spec) + [ids["<|startoftranscript|>"], ids["<|startofprev|>"]],
                      "begin_suppress_tokens": [spec["model"]["vocab"]["Ġ"], eot]}
        if len(languages) > 1:
            generation["lang_to_id"] = {f"<|{code}|>": ids[f"<|{code}|>"] for code in languages}
        for file, content in (("config.json", config), ("generation_config.json", generation), ("tokenizer.json", spec)):
            (folder / file).write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
        save(folder / "model.safetensors", weights(Dims.from_config(config), seed))
        (folder / "manifest.json").write_text(json.dumps(manifest(folder, languages), indent=2) + "\n")
        print(name, config["vocab_size"], sum(f.stat().st_size for f in folder.iterdir()))


def manifest(folder: Path, languages: list[str]) -> dict:
    files = [{"path": p.name, "bytes": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
             for p in sorted(folder.iterdir()) if p.name not in ("manifest.json", "make.py") and p.is_file()]
    return {"name": folder.name, "title": f"Miniature Whisper ({'multilingual' if len(languages) > 1 else 'English'})",
            "about": "Random weights, for tests: what it writes is noise.", "family": "whisper", "licence": "CC0-1.0",
            "files": files, "memory_bytes": 0, "sources": [], "note": "made by models/test-whisper/make.py"}


if __name__ == "__main__":
    main()
