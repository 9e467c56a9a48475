"""A miniature MobileSAM with random weights: every part of the family at a size that can be committed.

    PYTHONPATH=py python models/test-sam/make.py       writes model.safetensors, config.json and manifest.json beside this file

What it says is noise, but always the same noise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from candlewick.models.sam.model import Dims, Sam
from candlewick.weights.manifest import Manifest, describe, write, write_json
from candlewick.weights.safetensors import save

HERE = Path(__file__).resolve().parent
CONFIG = {
    "model_type": "sam", "image_size": 128, "pixel_mean": [123.675, 116.28, 103.53], "pixel_std": [58.395, 57.12, 57.375],
    "vision_config": {"encoder": "tiny_vit", "embed_dims": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "num_heads": [2, 3, 4],
                      "window_sizes": [7, 5, 3], "mlp_ratio": 2.0, "expand_ratio": 2.0},
    "prompt_encoder_config": {"hidden_size": 32, "mask_input_channels": 8},
    "mask_decoder_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "mlp_dim": 48, "num_multimask_outputs": 3,
                            "iou_head_depth": 3, "iou_head_hidden_dim": 24},
}  # fmt: skip


def main() -> None:
    rng = np.random.default_rng(7)
    tensors = {}
    for name, parameter in Sam(Dims.from_config(CONFIG)).parameters().items():
        fan_in = max(1, int(np.prod(parameter.shape[1:])))
        values = rng.standard_normal(parameter.shape) / np.sqrt(fan_in)
        if name.endswith("weight") and values.ndim == 1:
            values = 1 + 0.1 * values  # the weight of a norm
        tensors[name] = values.astype(np.float32)
    save(HERE / "model.safetensors", tensors, {"format": "pt"})
    write_json(HERE / "config.json", CONFIG)
    write(Manifest("test-sam", "sam", "MIT", describe(HERE, ["config.json", "model.safetensors"]),
                   note="Random weights, made by make.py: a MobileSAM small enough for tests."), HERE)


if __name__ == "__main__":
    main()
