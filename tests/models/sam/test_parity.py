"""MobileSAM on real pictures against ONNX Runtime on the original files (tests/golden/sam/make.py says how).

Twenty prompts for each picture: embedding, all four masks and their scores, on every executor.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from candlewick import executors
from candlewick.image_file import read_image
from candlewick.models.sam import Segmenter
from candlewick.weights.load import Checkpoint
from tests.golden.sam.prompts import IMAGES, prompts

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "models/mobilesam"
GOLDEN = ROOT / "tests/golden/sam"
ARRAYS = np.load(GOLDEN / "golden.npz")
FACTS = json.loads((GOLDEN / "golden.json").read_text())["images"]

pytestmark = pytest.mark.skipif(not (FOLDER / "model.safetensors").exists(),
                                reason="no weights in models/mobilesam; python3 serve.py --setup fetches them")


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of masks (..., h, w); 1 where both are empty."""
    both, either = (a & b).sum((-2, -1)), (a | b).sum((-2, -1))
    return np.where(either > 0, both / np.maximum(either, 1), 1.0)


@pytest.mark.parametrize("file", IMAGES)
@pytest.mark.parametrize("name", ["numpy", "wasm"])
async def test_masks_are_those_of_onnxruntime(shared, name, file):
    path = shared / "data/images" / file
    assert hashlib.sha256(path.read_bytes()).hexdigest() == FACTS[file]["sha256"]
    try:
        executor = executors.create(name, threads=2 if name == "wasm" else None)
    except (executors.ExecutorUnavailable, ImportError) as error:
        pytest.skip(f"executor {name}: {error}")
    stem = path.stem
    segmenter = await Segmenter.load(Checkpoint.open(FOLDER), executor)
    picture = read_image(path)
    await segmenter.set_image(picture)
    embedding = await segmenter.embedding()
    embedding_error = np.abs(embedding[3::8, 3::8] - ARRAYS[f"{stem}.embedding"]).max()
    logit_error = score_error = 0.0
    least, previous = 1.0, None
    for i, prompt in enumerate(prompts(picture.shape[1], picture.shape[0])):
        mask = previous if prompt["refine"] else None
        answer = await segmenter.predict(prompt["points"], prompt["labels"], prompt["box"], mask)
        previous = answer["masks"][np.argmax(answer["iou"])]
        logit_error = max(logit_error, np.abs(answer["masks"][:, 7::16, 7::16] - ARRAYS[f"{stem}.logits"][i]).max())
        score_error = max(score_error, np.abs(answer["iou"] - ARRAYS[f"{stem}.iou"][i]).max())
        theirs = np.unpackbits(ARRAYS[f"{stem}.masks"][i], axis=-1).astype(bool)
        least = min(least, overlap(answer["masks"] > 0, theirs).min())
    print(f"{name} {file}: errors of the embedding {embedding_error:.1e}, logits {logit_error:.1e}, scores {score_error:.1e}; "
          f"overlap at least {least:.5f}")
    assert embedding_error < 2e-5
    assert logit_error < 5e-3
    assert score_error < 1e-4
    assert least >= 0.99
    await executor.close()
