"""Miniatures of MobileSAM and of the original SAM with random weights: all of the family at a size that can be committed.

    PYTHONPATH=py python models/test-sam/make.py       writes models/test-sam and models/test-sam-vit

What it says is noise, but always the same noise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from candlewick.models.sam.model import Dims, Sam
from candlewick.weights.manifest import Manifest, describe, write, write_json
from candlewick.weights.safetensors import save

HERE = Path(__file__).resolve().parent
MOBILE = {
    "model_type": "sam", "image_size": 128, "pixel_mean": [123.675, 116.28, 103.53], "pixel_std": [58.395, 57.12, 57.375],
    "vision_config": {"encoder": "tiny_vit", "embed_dims": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "num_heads": [2, 3, 4],
                      "window_sizes": [7, 5, 3], "mlp_ratio": 2.0, "expand_ratio": 2.0},
    "prompt_encoder_config": {"hidden_size": 32, "mask_input_channels": 8},
    "mask_decoder_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "mlp_dim": 48, "num_multimask_outputs": 3,
                            "iou_head_depth": 3, "iou_head_hidden_dim": 24},
}  # fmt: skip
ORIGINAL = {
    **MOBILE, "image_size": 80,
    "vision_config": {"encoder": "vit", "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 16,
                      "window_size": 3, "global_attn_indexes": [1], "mlp_dim": 32},
}  # fmt: skip


def main(name: str, config: dict, note: str) -> None:
    folder = HERE.parent / name
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(7)
    tensors = {}
    for key, parameter in Sam(Dims.from_config(config)).parameters().items():
        fan_in = max(1, int(np.prod(parameter.shape[1:])))
        values = rng.standard_normal(parameter.shape) / np.sqrt(fan_in)
        if key.endswith("weight") and values.ndim == 1:
            values = 1 + 0.1 * values  # the weight of a norm
        tensors[key] = values.astype(np.float32)
    save(folder / "model.safetensors", tensors, {"format": "pt"})
    write_json(folder / "config.json", config)
    write(Manifest(name, "sam", "MIT", describe(folder, ["config.json", "model.safetensors"]), note=note), folder)


if __name__ == "__main__":
    main("test-sam", MOBILE, "Random weights, made by make.py: a MobileSAM small enough for tests.")
    main("test-sam-vit", ORIGINAL, "Random weights, made by test-sam/make.py: the original SAM, small enough for tests.")
