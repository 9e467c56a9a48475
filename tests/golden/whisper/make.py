"""Reference numbers for Whisper, made by other people's implementations on the same weights.

    python make.py MODELS          writes golden.npz and golden.json beside this file

MODELS holds whisper-tiny.en and the miniatures (random weights, two other sizes, the multilingual kind, 128 mel bands).

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
MINIATURES = ("test-whisper", "test-whisper-multilingual")
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


def read(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}


def load_transformers(folder: Path) -> WhisperForConditionalGeneration:
    """The weights, in float32, in transformers."""
    weights = read(folder)
    hf = WhisperForConditionalGeneration(WhisperConfig.from_pretrained(folder)).eval()
    missing = hf.load_state_dict(weights, strict=False)
    assert missing.missing_keys == ["proj_out.weight"] and not missing.unexpected_keys, missing
    hf.tie_weights()
    return hf


def load_openai(folder: Path, c: WhisperConfig) -> whisper.model.Whisper:
    """The same in openai-whisper, which has published sizes only: the inner layers are four times as wide."""
    dims = whisper.model.ModelDimensions(
        c.num_mel_bins, c.max_source_positions, c.d_model, c.encoder_attention_heads, c.encoder_layers, c.vocab_size,
        c.max_target_positions, c.d_model, c.decoder_attention_heads, c.decoder_layers)
    openai = whisper.model.Whisper(dims).eval()
    openai.load_state_dict({openai_name(name): tensor for name, tensor in read(folder).items()})
    return openai


def silence_stays_silence(array, length=whisper.audio.N_FRAMES, *, axis=-1):
    """Stands for whisper.transcribe.pad_or_trim: the floor of the recording's log-mel fills the missing frames."""
    assert axis == -1
    if array.shape[-1] >= length:
        return array[..., :length]
    return torch.nn.functional.pad(array, (0, length - array.shape[-1]), value=silence_stays_silence.floor)


@torch.no_grad()
def real(folder: Path, arrays: dict) -> dict:
    """The real weights on the clips."""
    hf = load_transformers(folder)
    openai = load_openai(folder, hf.config)
    extract = WhisperFeatureExtractor(feature_size=hf.config.num_mel_bins)
    facts = {}
    for name in ("jfk", "lighthouse", "long"):
        audio = clips.CLIPS[name]()
        facts[name] = entry = {"fingerprint": clips.fingerprint(audio), "seconds": len(audio) / 16000}
        if len(audio) > 30 * 16000:
            entry["segments"] = long_form(openai, audio)
            continue
        mel = extract(audio, sampling_rate=16000, return_tensors="pt").input_features
        arrays[f"{name}.mel"] = mel[0, ::3, ::29].numpy().T  # (n_frames / 29, n_mels / 3)
        decoded = whisper.decode(openai, mel[0], whisper.DecodingOptions(language="en", fp16=False))
        entry["tokens"] = decoded.tokens
        entry["avg_logprob"], entry["no_speech_prob"] = decoded.avg_logprob, decoded.no_speech_prob
        features, logits = forced(hf, mel, [hf.config.decoder_start_token_id, *decoded.tokens])
        arrays[f"{name}.features"], arrays[f"{name}.logits"] = features[::31, ::5], logits[:, ::211]
        entry["best"] = logits.argmax(-1).tolist()
        entry["log_sum"] = torch.from_numpy(logits).logsumexp(-1).tolist()
    return facts


def forced(hf, mel, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """-> features (n_audio_ctx, n_state), logits (n, n_vocab) of the tokens as they are given"""
    features = hf.model.encoder(mel).last_hidden_state
    logits = hf(encoder_outputs=(features,), decoder_input_ids=torch.tensor([tokens])).logits
    return features[0].numpy(), logits[0].numpy()


def long_form(openai, audio: np.ndarray) -> list[dict]:
    floor = whisper.log_mel_spectrogram(torch.from_numpy(audio), padding=whisper.audio.N_SAMPLES).min()
    silence_stays_silence.floor = float(floor)
    whisper.transcribe.__globals__["pad_or_trim"] = silence_stays_silence
    result = whisper.transcribe(openai, audio, language="en", fp16=False, temperature=(0.0,))
    return [{k: s[k] for k in ("start", "end", "text", "tokens", "avg_logprob", "no_speech_prob")}
            for s in result["segments"]]


@torch.no_grad()
def miniature(folder: Path, arrays: dict) -> dict:
    """A miniature on one of its short windows of a chirp."""
    hf = load_transformers(folder)
    c = hf.config
    extract = WhisperFeatureExtractor(feature_size=c.num_mel_bins, chunk_length=c.max_source_positions // 50)
    mel = extract(clips.chirp(c.max_source_positions / 50 - 0.1), sampling_rate=16000, return_tensors="pt").input_features
    tokens = [c.decoder_start_token_id, *range(3, c.vocab_size, c.vocab_size // 20)]
    features, logits = forced(hf, mel, tokens)
    arrays[f"{folder.name}.mel"] = mel[0].numpy().T[::3, ::7]
    arrays[f"{folder.name}.features"], arrays[f"{folder.name}.logits"] = features[::7], logits[:, ::11]
    return {"tokens": tokens}


def main(models: Path) -> None:
    arrays = {f"mel_filters.{n}": WhisperFeatureExtractor(feature_size=n).mel_filters.T.astype(np.float32)
              for n in (80, 128)}
    facts = {"clips": real(models / "whisper-tiny.en", arrays),
             "miniatures": {name: miniature(models / name, arrays) for name in MINIATURES}}
    np.savez_compressed(HERE / "golden.npz", **arrays)
    (HERE / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")
    print({name: array.shape for name, array in arrays.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
