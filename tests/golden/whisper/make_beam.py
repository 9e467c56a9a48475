"""What the reference decodes under different options: tokens of three clips, written to beam.json beside this file.

    python make_beam.py MODELS

MODELS holds whisper-tiny.en. Made with the versions that make.py names: openai-whisper's `decode` on the log-mel of
transformers, one window each. Prompts are its own to cut to size and to put in front.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import clips
import torch
import whisper
from make import load_openai
from transformers import WhisperConfig, WhisperFeatureExtractor

HERE = Path(__file__).resolve().parent
OPTIONS = {
    "greedy": {},
    "beam": {"beam_size": 5},
    "beam 3": {"beam_size": 3},
    "patience": {"beam_size": 5, "patience": 2.0},
    "less patience": {"beam_size": 5, "patience": 0.4},
    "penalty": {"beam_size": 5, "length_penalty": 0.6},
    "no penalty": {"beam_size": 5, "length_penalty": 0.0},
    "without timestamps": {"beam_size": 5, "without_timestamps": True},
    "prompt": {"beam_size": 5, "prompt": " My fellow AMERICANS, the light-house."},
    "long prompt": {"beam_size": 5, "prompt": " And so" * 300},
}
EVERYWHERE = ("greedy", "beam")


@torch.no_grad()
def main(models: Path) -> None:
    folder = models / "whisper-tiny.en"
    openai = load_openai(folder, WhisperConfig.from_pretrained(folder))
    extract = WhisperFeatureExtractor(feature_size=openai.dims.n_mels)
    facts: dict[str, dict] = {"options": OPTIONS, "clips": {}}
    for name in ("jfk", "lighthouse", "market"):
        audio = clips.CLIPS[name]()
        mel = extract(audio, sampling_rate=16000, return_tensors="pt").input_features[0]
        found = {}
        for label in OPTIONS if name == "jfk" else EVERYWHERE:
            decoded = whisper.decode(openai, mel, whisper.DecodingOptions(language="en", fp16=False, **OPTIONS[label]))
            found[label] = {"tokens": decoded.tokens, "avg_logprob": decoded.avg_logprob}
            print(name, label, round(decoded.avg_logprob, 4), decoded.text)
        facts["clips"][name] = {"fingerprint": clips.fingerprint(audio), "decoded": found}
    (HERE / "beam.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
