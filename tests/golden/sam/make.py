"""Make golden.npz and golden.json: what ONNX Runtime answers with the original files of MobileSAM.

    python tests/golden/sam/make.py FOLDER_WITH_ENCODER_ONNX_AND_SAM_ONNX FOLDER_OF_IMAGES

Pictures are prepared as the reference does it, with Pillow and NumPy (longest side 1024, bilinear, normalised, zeros beyond).
The decoder's file gives one mask; the four that it chooses from are an inner value, which is made an output here.
Kept: places of the embedding and of the logits on a coarse grid, scores, and all masks as bits.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import PIL
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
from prompts import IMAGES, prompts

SIDE = 1024
MEAN, STD = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
SCORES = "/iou_prediction_head/layers.2/Gemm_output_0"
CHOSEN_FROM = "/MatMul_1_output_0"


def pixels(image: Image.Image) -> tuple[np.ndarray, float, float]:
    """The encoder's input (1, 3, 1024, 1024), and how much smaller the picture became along x and y."""
    scale = SIDE / max(image.size)
    width, height = (int(n * scale + 0.5) for n in image.size)
    x = np.array(image.resize((width, height), Image.Resampling.BILINEAR), np.float32)
    x = ((x - MEAN) / STD).astype(np.float32)
    x = np.pad(x, ((0, SIDE - height), (0, SIDE - width), (0, 0)))
    return x.transpose(2, 0, 1)[None], width / image.width, height / image.height


def main(folder: Path, images: Path) -> None:
    encoder = onnxruntime.InferenceSession(str(folder / "encoder.onnx"))
    model = onnx.load(str(folder / "sam.onnx"))
    four = next(n.output[0] for n in model.graph.node if n.op_type == "Reshape" and n.input[0] == CHOSEN_FROM)
    for name in (four, SCORES):
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    decoder = onnxruntime.InferenceSession(model.SerializeToString())
    arrays: dict[str, np.ndarray] = {}
    facts: dict = {"onnxruntime": onnxruntime.__version__, "pillow": PIL.__version__, "numpy": np.__version__,
                   "machine": platform.machine(), "images": {}}
    for file in IMAGES:
        image = Image.open(images / file).convert("RGB")
        x, sx, sy = pixels(image)
        (embedding,) = encoder.run(None, {"input": x})  # (1, 256, 64, 64)
        masks, scores, previous = [], [], None
        for prompt in prompts(*image.size):
            points, labels = list(prompt["points"]), list(prompt["labels"])
            if prompt["box"]:
                points += [prompt["box"][:2], prompt["box"][2:]]
                labels += [2, 3]
            points = [[px * sx, py * sy] for px, py in points]
            if not prompt["box"]:
                points.append([0.0, 0.0])
                labels.append(-1)
            refine = prompt["refine"]
            given = previous if refine else np.zeros((256, 256), np.float32)
            answer = decoder.run([four, SCORES], {
                "image_embeddings": embedding, "point_coords": np.array([points], np.float32),
                "point_labels": np.array([labels], np.float32), "mask_input": given[None, None],
                "has_mask_input": np.array([float(refine)], np.float32),
                "orig_im_size": np.array([image.height, image.width], np.float32)})
            masks.append(answer[0][0])
            scores.append(answer[1].ravel())
            previous = masks[-1][np.argmax(scores[-1])]
        stem = Path(file).stem
        m = np.stack(masks)  # (20, 4, 256, 256)
        arrays[f"{stem}.embedding"] = embedding[0].transpose(1, 2, 0)[3::8, 3::8]  # (8, 8, 256)
        arrays[f"{stem}.logits"] = m[:, :, 7::16, 7::16]  # (20, 4, 16, 16)
        arrays[f"{stem}.masks"] = np.packbits(m > 0, axis=-1)  # (20, 4, 256, 32)
        arrays[f"{stem}.iou"] = np.stack(scores)
        facts["images"][file] = {"sha256": hashlib.sha256((images / file).read_bytes()).hexdigest(),
                                 "size": list(image.size), "embedding_rms": float(np.sqrt((embedding**2).mean()))}
    here = Path(__file__).parent
    np.savez_compressed(here / "golden.npz", **arrays)
    (here / "golden.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
