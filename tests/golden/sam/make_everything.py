"""Make everything.npz and everything.json: what the reference's SamAutomaticMaskGenerator finds in the shared pictures.

    python tests/golden/sam/make_everything.py models/mobilesam FOLDER_OF_IMAGES

Needs PyPI mobilesam-mirror (the original MobileSAM code), timm, torchvision, PyTorch. The model is built from our weights: its
batch norms are set to do nothing but add the folded bias. 16 points a side, otherwise the reference's own settings.
Kept: of each mask its box, area, scores and point, and the mask as bits of every fourth pixel each way.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parent))
from prompts import IMAGES

POINTS = 16


def nms(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """Non-maximum suppression as torchvision defines it; its own is not there beside a PyTorch without CUDA."""
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    order, kept = scores.argsort(descending=True, stable=True), []
    while len(order):
        first, order = order[0], order[1:]
        kept.append(first)
        low, high = torch.maximum(boxes[first, :2], boxes[order, :2]), torch.minimum(boxes[first, 2:], boxes[order, 2:])
        both = (high - low).clamp(min=0).prod(dim=1)
        order = order[both / (area[first] + area[order] - both) <= threshold]
    return torch.stack(kept) if kept else torch.zeros(0, dtype=torch.int64)


if not hasattr(torch.ops.torchvision, "nms"):
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl(name, nms, "CPU")
    from torchvision import extension

    extension._has_ops = lambda: True
from mobile_sam import SamAutomaticMaskGenerator, sam_model_registry  # noqa: E402


def reference(folder: Path) -> torch.nn.Module:
    """The original code's MobileSAM with our weights."""
    ours = load_file(folder / "model.safetensors")
    model = sam_model_registry["vit_t"](checkpoint=None)
    state = model.state_dict()
    for name in list(state):
        if name.startswith("pixel_"):
            continue
        stem, _, part = name.rpartition(".")
        if ".bn" in name:
            conv = stem.removesuffix(".bn") + ".c"
            fill = {"weight": 1.0, "running_mean": 0.0, "running_var": 1.0 - 1e-5, "num_batches_tracked": 0}
            state[name] = torch.full_like(state[name], fill[part]) if part in fill else torch.tensor(ours[f"{conv}.bias"])
        elif part == "attention_biases":
            index = model.get_submodule(stem).attention_bias_idxs.numpy()
            table = np.zeros(state[name].shape, np.float32)
            table[:, index.ravel()] = ours[f"{stem}.ab"].reshape(len(table), -1)
            state[name] = torch.tensor(table)
        elif part != "attention_bias_idxs" and not name.startswith(("image_encoder.norm_head", "image_encoder.head")):
            state[name] = torch.tensor(ours[name])
    model.load_state_dict(state)
    return model.eval()


def main(folder: Path, images: Path) -> None:
    generator = SamAutomaticMaskGenerator(reference(folder), points_per_side=POINTS, points_per_batch=16)
    arrays: dict[str, np.ndarray] = {}
    facts: dict = {**{name: version(name) for name in ("mobilesam-mirror", "torch", "torchvision", "numpy")},
                   "points_per_side": POINTS, "images": {}}
    for file in IMAGES:
        picture = np.array(Image.open(images / file).convert("RGB"))
        with torch.no_grad():
            found = generator.generate(picture)
        stem = Path(file).stem
        arrays[f"{stem}.masks"] = np.packbits(np.stack([m["segmentation"][::4, ::4] for m in found]), axis=-1)
        facts["images"][file] = {
            "sha256": hashlib.sha256((images / file).read_bytes()).hexdigest(), "size": [picture.shape[1], picture.shape[0]],
            "masks": [{"bbox": m["bbox"], "area": int(m["area"]), "predicted_iou": round(m["predicted_iou"], 6),
                       "stability_score": round(m["stability_score"], 6), "point": m["point_coords"][0]} for m in found]}
        print(file, len(found))
    here = Path(__file__).parent
    np.savez_compressed(here / "everything.npz", **arrays)
    (here / "everything.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
