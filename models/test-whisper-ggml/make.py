"""The English miniature Whisper as a quantised whisper.cpp file (its matrices in q8_0).

    PYTHONPATH=py:. python models/test-whisper-ggml/make.py
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.ggml_files import ggml_file

HERE = Path(__file__).resolve().parent


def main() -> None:
    data = ggml_file(HERE.parent / "test-whisper", "q8_0")
    (HERE / "ggml-model.bin").write_bytes(data)
    files = [{"path": "ggml-model.bin", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}]
    about = {"name": HERE.name, "title": "Miniature Whisper (whisper.cpp)",
             "about": "Random weights, for tests: what it writes is noise.",
             "family": "whisper", "licence": "CC0-1.0", "files": files, "memory_bytes": 0, "sources": [],
             "note": "made by models/test-whisper-ggml/make.py of test-whisper"}
    (HERE / "manifest.json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
