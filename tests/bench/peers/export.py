"""Checkpoint folder -> the files that transformers.js loads: export.py CHECKPOINT OUT.

Runs in the environment of requirements.txt. The weights are the ones Candlewick loads, widened to float32, so that both
sides compute the same model.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import torch
from optimum.exporters.onnx import main_export
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizerFast


def export(checkpoint: Path, out: Path) -> None:
    """Writes config, tokenizer and onnx/{encoder_model,decoder_model_merged}.onnx below `out`."""
    with tempfile.TemporaryDirectory() as work:
        plain, graphs = Path(work, "plain"), Path(work, "graphs")
        model = WhisperForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
        model.save_pretrained(plain)
        WhisperFeatureExtractor(feature_size=model.config.num_mel_bins).save_pretrained(plain)
        WhisperTokenizerFast(tokenizer_file=str(checkpoint / "tokenizer.json")).save_pretrained(plain)
        main_export(str(plain), output=graphs, task="automatic-speech-recognition-with-past", opset=17)
        (out / "onnx").mkdir(parents=True, exist_ok=True)
        for file in graphs.iterdir():
            if file.suffix != ".onnx":
                shutil.copy(file, out)
            elif file.stem in ("encoder_model", "decoder_model_merged"):
                shutil.copy(file, out / "onnx")


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
