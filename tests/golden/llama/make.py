"""Writes the golden numbers: PYTHONPATH=py:. python -m tests.golden.llama.make (transformers 4.57, torch 2.13, both on CPU)

Logits of the miniatures in float32, and rotary frequencies of each kind of scaling -> golden.npz; versions -> golden.json.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
MODELS = HERE.parents[2] / "models"
MINIATURES = ("test-llama", "test-llama-tied", "test-llama-qwen2", "test-llama-mistral")
N_TOKENS = 100
POSITIONS = (0, 1, 50, N_TOKENS - 1)
SCALINGS = {"default": None, "linear": {"rope_type": "linear", "factor": 4.0},
            "llama3": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                       "original_max_position_embeddings": 8192}}


def token_ids(name: str) -> list[int]:
    """The same ids for every file format."""
    return np.random.default_rng(len(name)).integers(0, 320, N_TOKENS).tolist()


def main() -> None:
    import torch
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    arrays = {}
    for name in MINIATURES:
        model = transformers.AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(torch.tensor([token_ids(name)])).logits[0]
        arrays[f"{name}.logits"] = logits[list(POSITIONS)].numpy()
        print(name, type(model).__name__, float(logits.abs().max()), logits.argmax(-1)[-8:].tolist())
    for name, scaling in SCALINGS.items():
        config = transformers.LlamaConfig(hidden_size=2048, num_attention_heads=32, rope_theta=500000.0, rope_scaling=scaling)
        make = ROPE_INIT_FUNCTIONS.get(name)
        if make:
            arrays[f"rope.{name}"] = make(config, "cpu")[0].numpy()
        else:
            arrays[f"rope.{name}"] = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq.numpy()
    np.savez_compressed(HERE / "golden.npz", **arrays)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__}
    (HERE / "golden.json").write_text(json.dumps({"versions": versions}, indent=1) + "\n")


if __name__ == "__main__":
    main()
