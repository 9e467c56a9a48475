"""Reference numbers for whisper-tiny.en, made by other people's implementations on the same weights.

    python make.py CHECKPOINT_FOLDER          writes golden.npz and golden.json beside this file

Made with Python 3.11, torch 2.13.0 (CPU), transformers 4.57.6, openai-whisper 20250625, soundfile 0.14.0, espeak-ng 1.51.

- encoder output and teacher-forced logits: transformers (its WhisperFeatureExtractor makes the log-mel);
- greedy tokens with timestamps of a window: openai-whisper, `DecodingTask`, on that same log-mel;
- segments of the long clip: openai-whisper, `transcribe`. It fills the part of a last window that lies behind the end of
  the recording with the value 0, in the middle of the scale; here, as in transformers' features of a short clip, silence
  is filled in with what silence looks like. That one function is replaced below.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import clips
import numpy as np
import torch
import whisper
from safetensors.torch import load_file
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

HERE = Path(__file__).resolve().parent
OPENAI_NAMES = [  # in this order
    ("model.", ""), ("embed_tokens", "token_embedding"), ("embed_positions.weight", "positional_embedding"),
    ("encoder_attn_layer_norm", "cross_attn_ln"), ("self_attn_layer_norm", "attn_ln"), ("final_layer_norm", "mlp_ln"),
    ("encoder_attn", "cross_attn"), ("self_attn", "attn"), ("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"),
    ("out_proj", "out"), ("fc1", "mlp.0"), ("fc2", "mlp.2"), ("layers", "blocks"),
    ("encoder.layer_norm", "encoder.ln_post"), ("decoder.layer_norm", "decoder.ln"),
]


def openai_name(name: str) -> str:
    for old, new in OPENAI_NAMES:
        name = name.replace(old, new)
    return name


def load(folder: Path):
    """-> the same weights, in float32, in both implementations."""
    weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    hf = WhisperForConditionalGeneration(WhisperConfig.from_pretrained(folder)).eval()
    missing = hf.load_state_dict(weights, strict=False)
    assert missing.missing_keys == ["proj_out.weight"] and not missing.unexpected_keys, missing
    hf.tie_weights()
    c = hf.config
    dims = whisper.model.ModelDimensions(
        c.num_mel_bins, c.max_source_positions, c.d_model, c.encoder_attention_heads, c.encoder_layers, c.vocab_size,
        c.max_target_positions, c.d_model, c.decoder_attention_heads, c.decoder_layers)
    openai = whisper.model.Whisper(dims).eval()
    openai.load_state_dict({openai_name(name): tensor for name, tensor in weights.items()})
    return hf, openai


def silence_stays_silence(array, length=whisper.audio.N_FRAMES, *, axis=-1):
    """Stands for whisper.transcribe.pad_or_trim: the floor of the recording's log-mel fills the missing frames."""
    assert axis == -1
    if array.shape[-1] >= length:
        return array[..., :length]
    return torch.nn.functional.pad(array, (0, length - array.shape[-1]), value=silence_stays_silence.floor)


@torch.no_grad()
def main(folder: Path) -> None:
    hf, openai = load(folder)
    extract = WhisperFeatureExtractor(feature_size=hf.config.num_mel_bins)
    arrays: dict[str, np.ndarray] = {}
    facts: dict = {"checkpoint": folder.name, "clips": {}}
    for name, make in clips.CLIPS.items():
        audio = make()
        facts["clips"][name] = entry = {"fingerprint": clips.fingerprint(audio), "seconds": len(audio) / 16000}
        if len(audio) <= 30 * 16000:
            mel = extract(audio, sampling_rate=16000, return_tensors="pt").input_features
            arrays[f"{name}.mel"] = mel[0, ::3, ::29].numpy().T  # (n_frames / 29, n_mels / 3)
            features = hf.model.encoder(mel).last_hidden_state
            arrays[f"{name}.features"] = features[0, ::31, ::5].numpy()
            options = whisper.DecodingOptions(language="en", fp16=False)
            decoded = whisper.decode(openai, mel[0], options)
            entry["tokens"] = decoded.tokens
            entry["avg_logprob"], entry["no_speech_prob"] = decoded.avg_logprob, decoded.no_speech_prob
            forced = [hf.config.decoder_start_token_id, *decoded.tokens]
            logits = hf(encoder_outputs=(features,), decoder_input_ids=torch.tensor([forced])).logits[0]
            arrays[f"{name}.logits"] = logits[:, ::211].numpy()
            entry["best"] = logits.argmax(-1).tolist()
            entry["log_sum"] = logits.logsumexp(-1).tolist()
        else:
            padded = whisper.log_mel_spectrogram(torch.from_numpy(audio), padding=whisper.audio.N_SAMPLES)
            silence_stays_silence.floor = float(padded.min())
            whisper.transcribe.__globals__["pad_or_trim"] = silence_stays_silence
            result = whisper.transcribe(openai, audio, language="en", fp16=False, temperature=(0.0,))
            entry["segments"] = [{k: s[k] for k in ("start", "end", "text", "tokens", "avg_logprob", "no_speech_prob")}
                                 for s in result["segments"]]
        print(name, entry["seconds"], entry.get("tokens") or [s["text"] for s in entry["segments"]])
    np.savez_compressed(HERE / "golden.npz", **arrays)
    (HERE / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
