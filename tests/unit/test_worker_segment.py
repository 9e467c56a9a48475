"""set_image, predict, everything, embedding, prepare through the Python half of the engine worker, on the miniature."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from candlewick import worker
from candlewick.weights.load import Checkpoint
from tests.torch_files import pt, taken_apart
from tests.unit.test_worker import Bytes, Page, Source

MINIATURE = Path(__file__).parents[2] / "models" / "test-sam"


class Desk(Page):
    """A page that also keeps what is attached, with the event or the answer it came with."""

    def __init__(self):
        super().__init__()
        self.attached = {}

    def attach(self, name, array):
        assert array.dtype == np.float32 and array.ndim == 1 and array.flags.c_contiguous
        self.attached[name] = array.copy()

    def notify(self, text):
        super().notify(text)
        self.events[-1].update(self.attached)
        self.attached.clear()


@pytest.fixture
def page():
    return Desk()


@pytest.fixture
async def engine(page):
    engine = worker.Worker(page)
    files = {path.name: Source(path.read_bytes()) for path in MINIATURE.iterdir() if path.suffix in (".json", ".safetensors")}
    loaded = json.loads(await engine.load("{}", "test-sam", files, None, "for a test"))
    assert loaded["result"]["family"] == "sam"
    page.events.clear()
    return engine


async def ask(engine, method, params, **data):
    given = {"rgba": None, "embedding": None, "mask_input": None, **data}
    return json.loads(await engine.task(method, json.dumps(params), SimpleNamespace(**given)))


async def picture(engine, name="a", width=37, height=21, seed=0):
    rgba = np.random.default_rng(seed).integers(0, 256, (height, width, 4), np.uint8)
    return await ask(engine, "set_image", {"id": name, "width": width, "height": height}, rgba=Bytes(rgba.tobytes()))


CLICK = {"id": "a", "points": [[12.0, 7.5]], "labels": [1], "box": None}


async def test_picture_click_refine_and_embedding(engine, page):
    set_image = (await picture(engine))["result"]
    assert set_image["id"] == "a" and set_image["timings"]["encode_ms"] > 0
    answer = (await ask(engine, "predict", CLICK))["result"]
    masks = page.attached.pop("masks")
    assert answer["id"] == "a" and len(answer["iou"]) == 4 and masks.size % 4 == 0
    one = masks[: masks.size // 4]
    assert "result" in await ask(engine, "predict", CLICK, mask_input=Bytes(one.tobytes()))
    assert not np.array_equal(page.attached.pop("masks"), masks)

    assert (await ask(engine, "embedding", {"id": "a"}))["result"] == {"id": "a"}
    embedding = page.attached.pop("embedding")
    await picture(engine, "b", seed=1)
    restored = await ask(engine, "set_image", {"id": "a", "width": 37, "height": 21}, embedding=Bytes(embedding.tobytes()))
    assert "restore_ms" in restored["result"]["timings"]
    await ask(engine, "predict", CLICK)
    assert np.abs(page.attached.pop("masks") - masks).max() < 1e-4


async def test_prompts_of_another_size_are_prepared_ahead(engine):
    before = json.loads(await engine.describe())["result"]["model"]["entries"]
    assert "decode_4" not in before and {"decode_2", "decode_2_mask"} <= set(before)
    for _ in range(2):
        assert (await ask(engine, "prepare", {"tokens": 4}))["result"]["ms"] >= 0
    assert "decode_4" in json.loads(await engine.describe())["result"]["model"]["entries"]
    for tokens in (None, 1, 65, "3"):
        assert "from 2 to 64" in (await ask(engine, "prepare", {"tokens": tokens}))["error"]["message"]


async def test_a_file_of_pytorch_alone(page):
    state, _ = await taken_apart(Checkpoint.open(MINIATURE))
    engine = worker.Worker(page)
    loaded = json.loads(await engine.load("{}", "own files", {"mobile_sam.pt": Source(pt(state))}, None, "for a test"))
    assert loaded["result"]["family"] == "sam" and loaded["result"]["dims"]["image_size"] == 1024
    broken = json.loads(await engine.load("{}", "own files", {"mobile_sam.pt": Source(pt(state)[:-9])}, None, ""))
    assert broken["error"]["code"] == "bad_weights" and "zip" in broken["error"]["message"]


async def test_another_picture_and_none(engine):
    """Answers belong to the picture that is set; the page is told which, to set its own again."""
    assert (await ask(engine, "predict", CLICK))["error"]["data"] == {"image": None}
    await picture(engine, "b")
    for method in ("predict", "everything", "embedding"):
        error = (await ask(engine, method, CLICK))["error"]
        assert error["code"] == "bad_input" and error["data"] == {"image": "b"}
    failed = await ask(engine, "set_image", {"id": "a", "width": 3, "height": 3}, rgba=Bytes(b"\0" * 8))
    assert "36 bytes" in failed["error"]["message"]
    assert (await ask(engine, "predict", CLICK))["error"]["data"] == {"image": None}


@pytest.mark.parametrize(("change", "words"), [
    ({"points": [], "labels": []}, "at least one point"),
    ({"labels": [1, 0]}, "labels: wanted one for each of 1 points, got 2"),
    ({"labels": [3]}, "labels: wanted 1"),
    ({"box": [1, 2, 3]}, "box: wanted x0, y0, x1, y1"),
])
async def test_prompts_that_make_no_sense(engine, change, words):
    await picture(engine)
    error = (await ask(engine, "predict", CLICK | change))["error"]
    assert error["code"] == "bad_input" and words in error["message"]


async def test_wrong_sizes_and_methods(engine):
    await picture(engine)
    short = await ask(engine, "predict", CLICK, mask_input=Bytes(b"\0" * 40))
    assert short["error"]["code"] == "bad_input" and "mask_input" in short["error"]["message"]
    assert "points_per_side" in (await ask(engine, "everything", {"id": "a", "options": {"points": 3}}))["error"]["message"]
    short = await ask(engine, "set_image", {"id": "a", "width": 3, "height": 3}, embedding=Bytes(b"\0" * 40))
    assert short["error"]["code"] == "bad_input" and "embedding" in short["error"]["message"]
    assert "cannot do that" in (await ask(engine, "transcribe", {}))["error"]["message"]


async def test_everything_and_its_stop(engine, page):
    await picture(engine)
    loose = {"points_per_side": 2, "pred_iou_thresh": 0, "stability_score_thresh": 0, "min_mask_region_area": 0}
    result = (await ask(engine, "everything", {"id": "a", "options": loose}))["result"]
    regions = [event for event in page.events if event["event"] == "region"]
    assert len(regions) == result["masks"] and all("logits" in each and len(each["point"]) == 2 for each in regions)
    progress = [event for event in page.events if event["event"] == "progress"]
    assert progress[-1]["done"] == progress[-1]["total"] == 4 and progress[0]["stage"] == "everything"
    page.events.clear()
    page.cancel_after = 2
    error = (await ask(engine, "everything", {"id": "a", "options": loose}))["error"]
    assert error["code"] == "cancelled" and error["data"]["result"]["stopped"] is True
    page.cancel_after = None
    assert "result" in await ask(engine, "predict", CLICK)
