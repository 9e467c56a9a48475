"""Make vit.npz: what the original code says with the weights of models/test-sam-vit (made with torch 2.13.0).

    python tests/golden/sam/make_vit.py FOLDER_OF_MOBILE_SAM    where the package mobilesam-mirror lies, unpacked
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[2] / "models/test-sam-vit"
POINTS, LABELS, BOX = [[10.0, 20.0], [60.0, 5.0]], [1, 0], [8.0, 9.0, 70.0, 60.0]  # in pixels of the model's picture


def main(package: Path) -> None:
    module = types.ModuleType("reference")  # the package itself imports more than is needed
    module.__path__ = [str(package / "modeling")]
    sys.modules["reference"] = module
    names = ("image_encoder", "prompt_encoder", "mask_decoder", "transformer")
    encoder, prompts, decoder, transformer = (importlib.import_module(f"reference.{name}") for name in names)
    config = json.loads((FOLDER / "config.json").read_text())
    v, d = config["vision_config"], config["prompt_encoder_config"]["hidden_size"]
    m = config["mask_decoder_config"]
    grid = config["image_size"] // v["patch_size"]
    sam = torch.nn.Module()
    sam.image_encoder = encoder.ImageEncoderViT(
        img_size=config["image_size"], patch_size=v["patch_size"], embed_dim=v["hidden_size"], depth=v["num_hidden_layers"],
        num_heads=v["num_attention_heads"], mlp_ratio=v["mlp_dim"] / v["hidden_size"], out_chans=d, use_rel_pos=True,
        norm_layer=partial(torch.nn.LayerNorm, eps=1e-6), window_size=v["window_size"],
        global_attn_indexes=v["global_attn_indexes"])
    sam.prompt_encoder = prompts.PromptEncoder(
        embed_dim=d, image_embedding_size=(grid, grid), input_image_size=(config["image_size"],) * 2,
        mask_in_chans=config["prompt_encoder_config"]["mask_input_channels"])
    sam.mask_decoder = decoder.MaskDecoder(
        num_multimask_outputs=3, transformer_dim=d, iou_head_depth=m["iou_head_depth"],
        iou_head_hidden_dim=m["iou_head_hidden_dim"], transformer=transformer.TwoWayTransformer(
            depth=m["num_hidden_layers"], embedding_dim=d, mlp_dim=m["mlp_dim"], num_heads=m["num_attention_heads"]))
    sam.load_state_dict(load_file(FOLDER / "model.safetensors"), strict=True)
    sam.eval()
    picture = np.random.default_rng(9).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    x = torch.tensor((picture - np.array(config["pixel_mean"])) / np.array(config["pixel_std"]), dtype=torch.float32)
    x = torch.nn.functional.pad(x.permute(2, 0, 1)[None], (0, 0, 0, 20))
    points = torch.tensor([POINTS]), torch.tensor([LABELS])
    with torch.no_grad():
        embedding = sam.image_encoder(x)

        def answer(points, boxes, mask):
            sparse, dense = sam.prompt_encoder(points=points, boxes=boxes, masks=mask)
            masks, iou = sam.mask_decoder.predict_masks(
                image_embeddings=embedding, image_pe=sam.prompt_encoder.get_dense_pe(), sparse_prompt_embeddings=sparse,
                dense_prompt_embeddings=dense)
            return masks, iou

        first = answer(points, None, None)
        second = answer(points, torch.tensor([BOX]), first[0][:, 1:2])
    np.savez_compressed(HERE / "vit.npz", picture=picture, embedding=embedding[0].permute(1, 2, 0).numpy(),
                        masks=first[0][0].numpy(), iou=first[1][0].numpy(), masks_2=second[0][0].numpy(),
                        iou_2=second[1][0].numpy())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
