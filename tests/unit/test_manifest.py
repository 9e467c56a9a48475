"""manifest.json: what is written is read again; folders are checked against it; odd ones are refused by field."""

import json
from pathlib import Path

import pytest

from candlewick.weights import manifest
from candlewick.weights.source import WeightsError

GOOD = {
    "name": "m",
    "family": "whisper",
    "licence": "MIT",
    "files": [{"path": "a.bin", "bytes": 3, "sha256": "0" * 64}],
    "sources": [],
    "note": "",
}


def test_round_trip_and_verify(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"abc")
    made = manifest.Manifest("m", "whisper", "MIT", manifest.describe(tmp_path, ["a.bin"]), ({"package": "p"},), "note")
    manifest.write(made, tmp_path)
    read = manifest.parse((tmp_path / "manifest.json").read_bytes())
    assert read == made and read.bytes == 3
    assert manifest.verify(read, tmp_path) == []
    (tmp_path / "a.bin").write_bytes(b"abd")
    assert "sha256" in manifest.verify(read, tmp_path)[0]
    (tmp_path / "a.bin").write_bytes(b"ab")
    assert "2 bytes, expected 3" in manifest.verify(read, tmp_path)[0]
    (tmp_path / "a.bin").unlink()
    assert manifest.verify(read, tmp_path) == ["a.bin is missing"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "name"),
        ({"family": None}, "family"),
        ({"files": []}, "files"),
        ({"files": [1]}, "files"),
        ({"files": [GOOD["files"][0] | {"path": "../a"}]}, "plain file name"),
        ({"files": [GOOD["files"][0] | {"path": ".hidden"}]}, "plain file name"),
        ({"files": [GOOD["files"][0] | {"bytes": -1}]}, "bytes of a.bin"),
        ({"files": [GOOD["files"][0] | {"bytes": True}]}, "bytes of a.bin"),
        ({"files": [GOOD["files"][0] | {"sha256": "xyz"}]}, "sha256 of a.bin"),
        ({"files": GOOD["files"] * 2}, "twice"),
        ({"sources": {}}, "sources"),
        ({"note": 1}, "note"),
        ({"title": []}, "title"),
        ({"memory_bytes": "1 GB"}, "memory_bytes"),
    ],
)
def test_bad_fields_are_named(change, words):
    with pytest.raises(WeightsError, match=words):
        manifest.parse(json.dumps(GOOD | change).encode())


def test_tracked_manifests_are_well_formed():
    folders = sorted((Path(__file__).parents[2] / "models").glob("*/manifest.json"))
    assert folders
    for path in folders:
        assert manifest.parse(path.read_bytes(), str(path)).name == path.parent.name


def test_readme_names_every_fetched_checkpoint_with_its_hash():
    models = Path(__file__).parents[2] / "models"
    text = (models / "README.md").read_text()
    for path in models.glob("*/manifest.json"):
        made = manifest.parse(path.read_bytes())
        if made.sources:
            weights = max(made.files, key=lambda file: file.bytes)
            assert f"`{made.name}`" in text and weights.sha256 in text and made.licence in text


def test_tracked_miniatures_are_whole():
    for path in (Path(__file__).parents[2] / "models").glob("test-*/manifest.json"):
        assert manifest.verify(manifest.parse(path.read_bytes()), path.parent) == []
