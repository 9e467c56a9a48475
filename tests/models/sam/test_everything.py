"""Every object of the shared pictures against the reference's own generator (tests/golden/sam/make_everything.py says how)."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from candlewick import executors
from candlewick.image_file import read_image
from candlewick.models.sam import EverythingOptions, Segmenter
from candlewick.weights.load import Checkpoint
from tests.golden.sam.prompts import IMAGES
from tests.models.sam.test_parity import FOLDER, GOLDEN, overlap

ARRAYS = np.load(GOLDEN / "everything.npz")
FACTS = json.loads((GOLDEN / "everything.json").read_text())
SAME = 0.98  # overlap from which two masks are one

pytestmark = pytest.mark.skipif(not (FOLDER / "model.safetensors").exists(),
                                reason="no weights in models/mobilesam; python3 serve.py --setup fetches them")


@pytest.mark.parametrize("file", IMAGES)
async def test_objects_are_those_of_the_reference(shared, file):
    """The same masks with the same scores; a few may fall on the other side of a threshold, which rounding decides."""
    path = shared / "data/images" / file
    assert hashlib.sha256(path.read_bytes()).hexdigest() == FACTS["images"][file]["sha256"]
    try:
        executor = executors.create("wasm", threads=2)
    except (executors.ExecutorUnavailable, ImportError) as error:
        pytest.skip(f"executor wasm: {error}")
    segmenter = await Segmenter.load(Checkpoint.open(FOLDER), executor)
    picture = read_image(path)
    await segmenter.set_image(picture)
    options = EverythingOptions(points_per_side=FACTS["points_per_side"], min_mask_region_area=0)
    ours = [event async for event in segmenter.segment_everything(options) if event["event"] == "mask"]
    await executor.close()
    theirs = FACTS["images"][file]["masks"]
    width = picture.shape[1]
    masks = np.unpackbits(ARRAYS[f"{path.stem}.masks"], axis=-1).astype(bool)[..., : -(-width // 4)]
    made = np.stack([segmenter.upsample(each["logits"])[::4, ::4] > 0 for each in ours])
    found, errors = 0, []
    for mask, facts in zip(masks, theirs):
        alike = overlap(made, mask)
        best = int(np.argmax(alike))
        if alike[best] >= SAME:
            found += 1
            same = ours[best]
            errors.append((abs(same["iou"] - facts["predicted_iou"]), abs(same["stability"] - facts["stability_score"]),
                           abs(same["area"] / facts["area"] - 1), 1 - alike[best]))
    worst = np.max(errors, axis=0)
    print(f"{file}: {len(theirs)} masks of the reference, {len(ours)} of ours, {found} the same; at most off by "
          f"{worst[0]:.1e} (score), {worst[1]:.1e} (stability), {worst[2]:.1e} (area), {worst[3]:.1e} (overlap)")
    assert found >= 0.97 * len(theirs) and abs(len(ours) - len(theirs)) <= 0.03 * len(theirs)
    assert worst[0] < 1e-4 and worst[1] < 1e-4 and worst[2] < 1e-3
