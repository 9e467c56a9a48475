"""Whisper checkpoints of every kind -> configuration and tensors in Hugging Face's names.

Folders in the layout of Hugging Face, with safetensors (one or in shards) or PyTorch files, and whisper.cpp's ggml `.bin`
(weights/ggml.py), which has its vocabulary with it but neither merges, names of its control tokens, nor the list of tokens
that are no speech: these follow from OpenAI's `whisper/tokenizer.py` by the sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from candlewick.weights import ggml
from candlewick.weights.convert.llama import TokenizerFiles, folder_tensors
from candlewick.weights.load import Checkpoint, some
from candlewick.weights.safetensors import TensorInfo
from candlewick.weights.source import CONFIG_JSON, Origin, WeightsError

LANGUAGES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml cy sk "
    "te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo "
    "ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
).split()
"""In the order of their tokens; large-v3 brought the last."""
END = b"<|endoftext|>"
STEERING = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
"""The control tokens behind the languages."""

OUTER = {  # whisper.cpp -> Hugging Face, behind "encoder." and "decoder."
    "conv1": "conv1", "conv2": "conv2", "ln_post": "layer_norm", "ln": "layer_norm",
    "token_embedding": "embed_tokens", "positional_embedding": "embed_positions",
}  # fmt: skip
INNER = {
    "attn_ln": "self_attn_layer_norm", "attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj", "attn.out": "self_attn.out_proj",
    "cross_attn_ln": "encoder_attn_layer_norm", "cross_attn.query": "encoder_attn.q_proj",
    "cross_attn.key": "encoder_attn.k_proj", "cross_attn.value": "encoder_attn.v_proj",
    "cross_attn.out": "encoder_attn.out_proj", "mlp_ln": "final_layer_norm", "mlp.0": "fc1", "mlp.2": "fc2",
}  # fmt: skip

GGML_NAMES = {  # config.json -> header
    "d_model": "n_audio_state", "vocab_size": "n_vocab", "num_mel_bins": "n_mels",
    "encoder_layers": "n_audio_layer", "decoder_layers": "n_text_layer",
    "encoder_attention_heads": "n_audio_head", "decoder_attention_heads": "n_text_head",
    "encoder_ffn_dim": "encoder.blocks.0.mlp.0.weight", "decoder_ffn_dim": "decoder.blocks.0.mlp.0.weight",
    "max_source_positions": "n_audio_ctx", "max_target_positions": "n_text_ctx",
}  # fmt: skip

# What is written and never said (openai/whisper, tokenizer.py, non_speech_tokens): hyphens and quotes at the beginning of a
# word, brackets and other marks by themselves, notes of music.
STARTS = (" -", " '")
MARKS = (*'"#()*+/:;<=>@[\\]^_`{|}~「」『』', *"<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪".split())
NOTES = tuple("♩♪♫♬♭♮♯")


@dataclass(frozen=True)
class WhisperFiles:
    """A checkpoint, whatever it came in."""

    config: Mapping[str, Any]  # in the names of config.json
    generation_config: Mapping[str, Any]
    tensors: dict[str, TensorInfo]
    tokenizer: TokenizerFiles
    origin: Origin = CONFIG_JSON


async def lone_ggml(checkpoint: Checkpoint) -> str | None:
    """The name of a whisper.cpp file, in a checkpoint that has no config.json and one such file."""
    if "config.json" in checkpoint.files:
        return None
    found = [name for name, source in checkpoint.files.items() if name.lower().endswith(".bin") and await ggml.is_ggml(source)]
    return found[0] if len(found) == 1 else None


async def read_whisper(checkpoint: Checkpoint) -> WhisperFiles:
    """Headers and small files of a checkpoint; no weights. Sources that had to be made are put into `checkpoint.files`.

    Raises WeightsError for what is no Whisper, not all of one, or of a kind that is not read.
    """
    if (name := await lone_ggml(checkpoint)) is not None:
        return await _from_ggml(checkpoint, name)
    config = await checkpoint.json("config.json")
    has_own = "generation_config.json" in checkpoint.files  # older folders have its entries in config.json
    generation = await checkpoint.json("generation_config.json") if has_own else config
    tokenizer = TokenizerFiles("json", await checkpoint.large_json("tokenizer.json"))
    tensors = await folder_tensors(checkpoint)
    if "encoder.conv1.weight" in tensors:  # saved without its head
        tensors = {f"model.{name}": replace(info, name=f"model.{name}") for name, info in tensors.items()}
    return WhisperFiles(config, generation, whole(tensors, checkpoint.name), tokenizer)


def whole(tensors: dict[str, TensorInfo], file: str) -> dict[str, TensorInfo]:
    """The tensors, if there are those of both halves. Raises WeightsError where one is missing altogether."""
    for half, other, what in (("decoder", "encoder", "hears, and cannot write"), ("encoder", "decoder", "cannot hear")):
        if tensors and not any(name.startswith(f"model.{half}.") for name in tensors):
            if any(name.startswith(f"model.{other}.") for name in tensors):
                raise WeightsError(f"{file}: only the {other} of a Whisper is here, which {what}; transcription needs the "
                                   "whole model, encoder and decoder")
    return tensors


# ---- whisper.cpp ------------------------------------------------------------------------------------------------


async def _from_ggml(checkpoint: Checkpoint, name: str) -> WhisperFiles:
    header = await ggml.read_header(checkpoint.files[name])
    tensors = {}
    for theirs, info in header.tensors.items():
        ours = from_ggml_name(theirs)
        shape = info.shape[:1] if ours.endswith("bias") and info.shape[1:] == (1,) else info.shape  # those of convolutions
        tensors[ours] = replace(info, name=ours, file=name, shape=shape)
    tensors = whole(tensors, name)
    words = header.words[: header.words.index(END)] if END in header.words else header.words
    control = control_tokens(len(words), header.sizes, name)
    config = ggml_config(header.sizes, tensors, name)
    ranks = {word: i for i, word in enumerate(words)}
    generation = {"suppress_tokens": sorted(not_speech(ranks)), "begin_suppress_tokens": [*first(ranks, b" "), len(words)],
                  "no_timestamps_token_id": control["<|notimestamps|>"]}
    settings = {"control_tokens": control, "eos_token_id": len(words)}
    return WhisperFiles(config, generation, tensors, TokenizerFiles("words", words, settings, name), Origin(name, GGML_NAMES))


def from_ggml_name(name: str) -> str:
    """decoder.blocks.0.attn.query.weight -> model.decoder.layers.0.self_attn.q_proj.weight; unknown names stay as they are."""
    half, _, rest = name.partition(".")
    if rest == "positional_embedding":
        rest += ".weight"
    head, _, kind = rest.rpartition(".")
    if half not in ("encoder", "decoder") or kind not in ("weight", "bias"):
        return name
    if head in OUTER:
        return f"model.{half}.{OUTER[head]}.{kind}"
    block, _, part = head.removeprefix("blocks.").partition(".")
    if head.startswith("blocks.") and part in INNER:
        return f"model.{half}.layers.{block}.{INNER[part]}.{kind}"
    return name


def control_tokens(n_words: int, sizes: Mapping[str, int], file: str) -> dict[str, int]:
    """Text -> id of what stands behind the words: end, start, languages, steering; a timestamp for each position follows."""
    n_languages = sizes["n_vocab"] - n_words - 2 - len(STEERING) - (sizes["n_audio_ctx"] + 1)
    if not 1 <= n_languages <= len(LANGUAGES):
        raise WeightsError(f"{file}: {sizes['n_vocab']} tokens, {n_words} of them words, leave {n_languages} for languages; a "
                           f"Whisper has 1 to {len(LANGUAGES)}. The file is damaged, or no Whisper")
    names = ("<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES[:n_languages]), *STEERING)
    return {name: n_words + i for i, name in enumerate(names)}


def ggml_config(sizes: Mapping[str, int], tensors: Mapping[str, TensorInfo], file: str) -> dict[str, Any]:
    """Sizes -> config.json. The width of the two-layer networks stands in the tensors' shapes alone."""
    inner = {}
    for half in ("encoder", "decoder"):
        fc1 = tensors.get(f"model.{half}.layers.0.fc1.weight")
        if fc1 is None:
            raise WeightsError(f"{file}: {half}.blocks.0.mlp.0.weight is missing; it has {some(list(tensors)) or 'no tensors'}")
        inner[half] = fc1.shape[0]
    return {
        "model_type": "whisper", "activation_function": "gelu", "scale_embedding": False,
        **{ours: sizes[theirs] for ours, theirs in GGML_NAMES.items() if theirs in sizes},
        "encoder_ffn_dim": inner["encoder"], "decoder_ffn_dim": inner["decoder"],
    }


def not_speech(ranks: Mapping[bytes, int]) -> set[int]:
    """Tokens of what is written and not said, of a vocabulary word -> id."""
    found = {i for text in STARTS for i in first(ranks, text.encode())}
    for mark in (*MARKS, *NOTES):
        for text in (mark.encode(), b" " + mark.encode()):
            if text in ranks:
                found.add(ranks[text])
            elif mark in NOTES:
                found |= set(first(ranks, text))
    return found


def first(ranks: Mapping[bytes, int], text: bytes) -> Sequence[int]:
    """The first token of a short text, in a list; an empty one where the vocabulary lacks a byte of it."""
    parts = [bytes([byte]) for byte in text]
    while len(parts) > 1:
        pairs = [(ranks[pair], i) for i in range(len(parts) - 1) if (pair := parts[i] + parts[i + 1]) in ranks]
        if not pairs:
            break
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [ranks[parts[0]]] if parts[0] in ranks else []
