"""The committed miniature (random weights) through the whole task, on every executor: pictures, prompts, rules, everything."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from candlewick import executors
from candlewick.executors.wasm import lower_ops  # noqa: F401  (it fills the table of what Lowering can do)
from candlewick.executors.wasm.layout import Layout
from candlewick.executors.wasm.lowering import Lowering
from candlewick.models.sam import EverythingOptions, Segmenter, best, load_model
from candlewick.passes import optimise
from candlewick.weights.load import Checkpoint
from tests.golden.sam import pin

RNG = np.random.default_rng(11)
WIDE = RNG.integers(0, 256, (61, 90, 3), dtype=np.uint8)
TALL = RNG.integers(0, 256, (90, 33, 3), dtype=np.uint8)


@pytest.fixture(params=["numpy", "wasm"])
async def segmenter(request):
    try:
        executor = executors.create(request.param)
    except (executors.ExecutorUnavailable, ImportError) as error:
        pytest.skip(f"executor {request.param}: {error}")
    yield await Segmenter.load(Checkpoint.open(pin.MINIATURE), executor)
    await executor.close()


async def test_executors_agree():
    answers = []
    for name in ("numpy", "wasm"):
        try:
            executor = executors.create(name)
        except (executors.ExecutorUnavailable, ImportError) as error:
            pytest.skip(f"executor {name}: {error}")
        task = await Segmenter.load(Checkpoint.open(pin.MINIATURE), executor)
        await task.set_image(WIDE)
        first = await task.predict([[10, 20], [3, 4]], [1, 0])
        second = await task.predict([[10, 20]], [1], [5, 6, 40, 50], mask_input=first["masks"][0])
        answers.append([await task.embedding(), first["masks"], first["iou"], second["masks"], second["iou"]])
        await executor.close()
    for ours, theirs in zip(*answers):
        assert np.abs(ours - theirs).max() < 1e-4


async def test_programs_are_pinned():
    for entry, text in (await pin.printed()).items():
        path = Path(pin.__file__).parent / "programs" / f"test-sam.{entry}.txt"
        assert text == path.read_text(), f"{entry}: python -m tests.golden.sam.pin writes them anew"


async def test_no_elementwise_pass_is_left_alone_in_the_encoder():
    """Sums, activations, scales and the writes to states are all in the epilogues of products and norms."""
    model = await load_model(Checkpoint.open(pin.MINIATURE))
    layout = Layout(0)
    layout.begin(model.weights.bound, model.weights.constants)
    for entry, allowed in (("encode", {"conv2d", "depthwise", "layer_norm", "linear", "window_attention"}),
                           ("remember", {"linear", "copy"})):
        lowering = Lowering(optimise(model.programs[entry]), layout)
        for v in lowering.program.inputs.values():
            lowering.views[v.name] = lowering.buffer(v.shape)
        lowering.run()
        assert {kernel for kernel, _ in lowering.calls} == allowed, entry


async def test_weights_bind_strictly():
    model = await load_model(Checkpoint.open(pin.MINIATURE))
    assert model.weights.bound.keys() == model.network.parameters().keys()


async def test_token_counts_are_those_of_sam(segmenter):
    """BR-34: points alone are joined by one that is not a point; a box has two corners and no such token."""
    await segmenter.set_image(WIDE)
    picture = segmenter.picture
    for points, box, labels in [
        ([[1, 1]], None, [1, -1]), ([[1, 1]] * 3, None, [1, 1, 1, -1]), ([], [1, 2, 30, 40], [2, 3]),
        ([[5, 5]], [1, 2, 30, 40], [1, 2, 3]),
    ]:
        places, kinds = segmenter.tokens(picture, points, [1] * len(points), box)
        assert kinds.tolist() == labels and len(places) == len(labels)
    places, _ = segmenter.tokens(picture, [[45, 30.5]], [1], None)
    assert np.allclose(places[0], [45 * 128 / 90, 30.5 * 87 / 61]) and places[-1].tolist() == [0, 0]


async def test_places_beyond_the_picture_and_odd_boxes(segmenter):
    await segmenter.set_image(WIDE)
    picture = segmenter.picture

    def places(points, box=None):
        return segmenter.tokens(picture, points, [1] * len(points), box)[0].tolist()

    assert places([[-50, 1e9]]) == places([[0, 60]])
    assert places([], [40, 50, 5, 6]) == places([], [5, 6, 40, 50])
    for box in ([7, 7, 7, 7], [89, 60, 89, 60], [-9, -9, -9, -9]):
        (x0, y0), (x1, y1) = places([], box)
        assert x1 >= x0 and y1 >= y0
        assert np.isfinite((await segmenter.predict(box=box))["masks"]).all()
    for point in ([0, 0], [89, 0], [0, 60], [89, 60], [45, 60], [500, -3]):
        assert np.isfinite((await segmenter.predict([point], [1]))["masks"]).all()
    twice = await segmenter.predict([[9, 9], [9, 9]], [1, 1])
    assert twice["masks"].shape == (4, 32, 32)
    assert np.isfinite((await segmenter.predict([[9, 9], [20, 20]], [0, 0]))["masks"]).all()  # nothing but "not here"


@pytest.mark.parametrize(("given", "words"), [
    ({}, "at least one point or a box"), ({"points": [[1, 2]], "labels": []}, "one for each of 1 points, got 0"),
    ({"points": [[1, 2]], "labels": [2]}, "labels: wanted 1"),
    ({"points": [[1, float("nan")]], "labels": [1]}, "points: wanted a list"),
    ({"box": [1, 2, 3]}, "box: wanted x0, y0, x1, y1"),
    ({"points": [[1, 2]], "labels": [1], "mask_input": np.zeros((3, 3))}, "mask_input"),
])  # fmt: skip
async def test_prompts_that_cannot_be_are_refused(segmenter, given, words):
    await segmenter.set_image(WIDE)
    with pytest.raises(ValueError, match=words):
        await segmenter.predict(**given)


async def test_nothing_is_kept_of_the_picture_before(segmenter):
    """BR-33: other sizes and aspects one after the other; each answer has its own picture's size."""
    with pytest.raises(ValueError, match="no picture"):
        await segmenter.predict([[1, 1]], [1])
    await segmenter.set_image(WIDE)
    before = await segmenter.predict([[20, 30]], [1])
    assert segmenter.upsample(before["masks"]).shape == (4, 61, 90)
    for size in ((90, 33, 3), (1, 1, 3), (1, 70, 3), (77, 4)):
        await segmenter.set_image(np.resize(TALL, size))
        answer = await segmenter.predict([[0, 0]], [1], multimask=True)
        assert segmenter.upsample(answer["masks"]).shape == (3, *size[:2])
    await segmenter.set_image(WIDE)
    again = await segmenter.predict([[20, 30]], [1])
    assert np.array_equal(before["masks"], again["masks"]) and np.array_equal(before["iou"], again["iou"])


async def test_an_embedding_comes_back(segmenter):
    await segmenter.set_image(WIDE)
    before, embedding = await segmenter.predict([[20, 30]], [1], multimask=False), await segmenter.embedding()
    assert before["masks"].shape == (1, 32, 32)
    await segmenter.set_image(TALL)
    await segmenter.set_embedding(embedding, 90, 61)
    again = await segmenter.predict([[20, 30]], [1], multimask=False)
    assert np.array_equal(before["masks"], again["masks"])
    with pytest.raises(ValueError, match="embedding"):
        await segmenter.set_embedding(embedding[1:], 90, 61)


async def test_everything_with_progress_and_stop(segmenter):
    await segmenter.set_image(WIDE)
    options = EverythingOptions(points_per_side=3, pred_iou_thresh=0, stability_score_thresh=0, min_mask_region_area=0)
    events = [event async for event in segmenter.segment_everything(options)]
    assert [e["done"] for e in events if e["event"] == "progress"] == list(range(10))
    masks = [e for e in events if e["event"] == "mask"]
    result = events[-1]["result"]
    assert masks and result["masks"] == len(masks) and not result["stopped"]
    assert all(m["logits"].shape == (32, 32) and m["logits"].dtype == np.float32 for m in masks)
    calls = iter([False, True])
    stopped = [e async for e in segmenter.segment_everything(options, lambda: next(calls))]
    assert stopped[-1]["result"]["stopped"] is True


async def test_memory_stays_flat_over_pictures(segmenter):
    await segmenter.set_image(WIDE)
    await segmenter.predict([[1, 1]], [1])
    before = segmenter.describe()["memory"]
    for i in range(12):
        await segmenter.set_image(WIDE if i % 2 else TALL)
        await segmenter.predict([[1, 1]], [1])
    assert segmenter.describe()["memory"] == before


async def test_prompts_of_another_size_take_little_memory(segmenter):
    """Their programs come when they are first asked for, and work in the memory that the encoder worked in."""
    await segmenter.set_image(WIDE)
    before = segmenter.describe()["memory"]
    for n in (2, 5, 9):
        await segmenter.predict([[3, 4 + i] for i in range(n)], [1] * n)
    assert {"decode_3", "decode_6", "decode_10"} <= segmenter.executor.programs.keys()
    after = segmenter.describe()["memory"]
    assert after["arena"] == before["arena"] and after["weights"] == before["weights"]
    assert after["total"] - before["total"] < 200_000


def test_the_mask_to_show_first():
    answer = {"iou": np.array([0.9, 0.1, 0.7, 0.3])}
    assert best(answer, 1, False) == 2  # one point is vague: the best of three
    assert best(answer, 3, False) == 0 and best(answer, 0, True) == 0
    assert best({"iou": np.array([0.1, 0.7, 0.3])}, 1, False) == 1


async def test_stopped_encode_leaves_no_picture(monkeypatch):
    executor = executors.create("numpy")
    task = await Segmenter.load(Checkpoint.open(pin.MINIATURE), executor)
    await task.set_image(WIDE)

    async def stopped(*_args):
        await asyncio.sleep(0)
        raise executors.Stopped

    monkeypatch.setattr(executor, "run", stopped)
    with pytest.raises(executors.Stopped):
        await task.set_image(TALL)
    assert task.picture is None
