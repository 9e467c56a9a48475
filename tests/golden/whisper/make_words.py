"""Word times of openai-whisper on the same weights and clips.

    python make_words.py MODELS          writes words.json beside this file

Made with what make.py was made with, and numba 0.66.0.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import clips
import make
import torch
import whisper
from transformers import WhisperConfig


def main(models: Path) -> None:
    folder = models / "whisper-tiny.en"
    openai = make.load_openai(folder, WhisperConfig.from_pretrained(folder))
    heads = torch.zeros(openai.dims.n_text_layer, openai.dims.n_text_head, dtype=torch.bool)
    for layer, head in json.loads((folder / "generation_config.json").read_text())["alignment_heads"]:
        heads[layer, head] = True
    openai.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    whisper.transcribe.__globals__["pad_or_trim"] = make.silence_stays_silence
    facts = {}
    for name, clip in clips.CLIPS.items():
        audio = clip()
        floor = whisper.log_mel_spectrogram(torch.from_numpy(audio), padding=whisper.audio.N_SAMPLES).min()
        make.silence_stays_silence.floor = float(floor)
        result = whisper.transcribe(openai, audio, language="en", fp16=False, temperature=(0.0,), word_timestamps=True)
        facts[name] = [[w["word"], w["start"], w["end"], round(w["probability"], 4)]
                       for s in result["segments"] for w in s["words"]]
    rows = (f' {json.dumps(name)}: [\n  ' + ",\n  ".join(map(json.dumps, words)) + "\n ]" for name, words in facts.items())
    (make.HERE / "words.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print({name: len(words) for name, words in facts.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
