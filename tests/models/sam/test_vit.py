"""The original SAM's encoder, and prompts and masks with it, on a miniature against the original code (make_vit.py)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.sam import Segmenter
from candlewick.models.sam.model import Dims, Sam
from candlewick.weights.convert import mobilesam
from candlewick.weights.load import Checkpoint

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "models/test-sam-vit"
GOLDEN = np.load(ROOT / "tests/golden/sam/vit.npz")
POINTS, LABELS, BOX = [[10.0, 20.0], [60.0, 5.0]], [1, 0], [8.0, 9.0, 70.0, 60.0]


@pytest.mark.parametrize("name", ["numpy", "wasm"])
async def test_against_the_original_code(name):
    try:
        executor = executors.create(name)
    except (executors.ExecutorUnavailable, ImportError) as error:
        pytest.skip(f"executor {name}: {error}")
    task = await Segmenter.load(Checkpoint.open(FOLDER), executor)
    await task.set_image(GOLDEN["picture"])  # 80 x 60: as wide as the model's picture, so places stay what they are
    assert np.abs(await task.embedding() - GOLDEN["embedding"]).max() < 2e-5
    task.picture = type(task.picture)(80, 80)  # the reference is asked about the whole square
    first = await task.predict(POINTS, LABELS)
    assert np.abs(first["masks"] - GOLDEN["masks"]).max() < 1e-4
    assert np.abs(first["iou"] - GOLDEN["iou"]).max() < 2e-5
    second = await task.predict(POINTS, LABELS, BOX, mask_input=GOLDEN["masks"][1])
    assert np.abs(second["masks"] - GOLDEN["masks_2"]).max() < 1e-4
    assert np.abs(second["iou"] - GOLDEN["iou_2"]).max() < 2e-5
    await executor.close()


async def test_config_follows_from_the_tensors():
    checkpoint = Checkpoint.open(FOLDER)
    tensors = {name: np.zeros(info.shape, np.float32) for name, info in (await checkpoint.tensors()).items()}
    config = json.loads((FOLDER / "config.json").read_text())
    found = mobilesam.config_of(tensors)
    assert found["vision_config"] == config["vision_config"] and found["image_size"] == config["image_size"]


def test_the_published_sizes_trace_to_the_published_shapes():
    """SAM ViT-B, as config_of reads it from the file of its authors: 93.7 million parameters."""
    vision = {"encoder": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "patch_size": 16,
              "window_size": 14, "global_attn_indexes": [2, 5, 8, 11], "mlp_dim": 3072}
    config = {"model_type": "sam", "image_size": 1024, "pixel_mean": [0, 0, 0], "pixel_std": [1, 1, 1], "vision_config": vision,
              "prompt_encoder_config": {"hidden_size": 256, "mask_input_channels": 16},
              "mask_decoder_config": {"num_hidden_layers": 2, "num_attention_heads": 8, "mlp_dim": 2048,
                                      "num_multimask_outputs": 3, "iou_head_depth": 3, "iou_head_hidden_dim": 256}}
    parameters = Sam(Dims.from_config(config)).parameters()
    assert sum(int(np.prod(p.shape)) for p in parameters.values()) == 93_735_728
    assert parameters["image_encoder.blocks.0.attn.rel_pos_h"].shape == (27, 64)
    assert parameters["image_encoder.blocks.2.attn.rel_pos_w"].shape == (127, 64)
