"""`candlewick segment` and `candlewick bench segment` on the miniature."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer", reason="needs typer")
PIL = pytest.importorskip("PIL.Image", reason="needs Pillow")

from typer.testing import CliRunner  # noqa: E402

from candlewick.cli import app  # noqa: E402
from candlewick.models.sam import outputs  # noqa: E402

MODEL = str(Path(__file__).resolve().parents[2] / "models/test-sam")


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "photo.png"
    PIL.fromarray(np.random.default_rng(2).integers(0, 256, (37, 53, 3), dtype=np.uint8)).save(path)
    return path


def run(*words, code=0):
    result = CliRunner().invoke(app, [str(w) for w in words])
    assert result.exit_code == code, result.output + str(result.exception)
    return result


def segment(picture, *words, code=0):
    return run("segment", picture, "--model", MODEL, "--executor", "numpy", *words, code=code)


def test_json_on_standard_output(picture):
    found = json.loads(segment(picture, "--point", "20,10", "--point", "3,4,0").stdout)
    assert found["image"] == {"width": 53, "height": 37}
    (one,) = found["annotations"]
    assert one["segmentation"]["size"] == [37, 53] and one["point_labels"] == [1, 0]
    mask = outputs.from_run_lengths(outputs.from_coco_string(one["segmentation"]["counts"]), 37, 53)
    assert mask.sum() == one["area"]


def test_files_of_every_kind(picture, tmp_path):
    segment(picture, "--box", "5,6,40,30", "-o", tmp_path / "mask.png")
    mask = np.asarray(PIL.open(tmp_path / "mask.png"))
    assert mask.shape == (37, 53) and set(np.unique(mask)) <= {0, 255}
    segment(picture, "--box", "5,6,40,30", "-o", tmp_path / "cutout.png")
    cut = np.asarray(PIL.open(tmp_path / "cutout.png"))
    assert cut.shape == (37, 53, 4) and np.array_equal(cut[:, :, :3], np.asarray(PIL.open(picture)))
    assert ((cut[:, :, 3] > 127) == (mask > 0)).all()
    segment(picture, "--point", "9,9", "--multimask", "-o", tmp_path / "x.json")
    scores = [a["predicted_iou"] for a in json.loads((tmp_path / "x.json").read_text())["annotations"]]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    segment(picture, "--everything", "--points-per-side", "2", "-o", tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().startswith("<svg")
    segment(picture, "--point", "9,9", "--multimask", "-o", tmp_path / "m.png")
    assert {p.name for p in tmp_path.glob("m*.png")} >= {"m.png", "m-2.png", "m-3.png"}


@pytest.mark.parametrize(("words", "said"), [
    ((), "say what to segment"), (("--point", "1"), "wanted X,Y"), (("--point", "1,2,3"), "label"),
    (("--box", "1,2,3"), "wanted X0,Y0,X1,Y1"), (("--everything", "--point", "1,2"), "leave --point"),
    (("--point", "1,nan"), "wanted X,Y"), (("--point", "1,2", "-o", "x.txt"), "must end in"),
    (("--point", "1,2", "--cutout"), "--cutout writes"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(picture, words, said):
    result = segment(picture, *words, code=1)
    assert said in result.output and result.output.count("\n") == 1


def test_pictures_that_are_none(tmp_path):
    assert "no such file" in segment(tmp_path / "no.png", "--point", "1,2", code=1).output
    (tmp_path / "no.jpg").write_bytes(b"hello")
    assert "not a picture" in segment(tmp_path / "no.jpg", "--point", "1,2", code=1).output


def test_bench_in_cpython(picture):
    done = run("bench", "segment", "--input", picture, "--model", MODEL, "--executor", "numpy", "--runs", "2", "--point", "9,9")
    report = json.loads(done.stdout)
    for key, count in (("load_ms", 1), ("preprocess_ms", 2), ("encode_ms", 2), ("click_ms", 6), ("first_mask_ms", 1)):
        assert len(report[key]) == count and min(report[key]) > 0, key
    assert len(report["iou_predictions"]) == 4 and report["rle"]["size"] == [37, 53] and report["memory_bytes"] > 0
