"""Tokenizer files of each kind -> a Tokenizer.

- "gguf": the metadata of a GGUF file (tokenizer.ggml.*): byte-level BPE ("gpt2") and SentencePiece ("llama");
- "json": a Hugging Face tokenizer.json (tokenizer_json.py);
- "llama2c": a tokenizer.bin of llama2.c: SentencePiece with scores and no flags;
- "words": the pieces of a byte-level BPE in the order of their ids, as whisper.cpp keeps them.

Nothing is done here per token that can wait until text is encoded: tables are made by `zip` alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from candlewick.text.bpe import BPE, BYTE_TO_CHAR, SPACE, Model, RankedBPE, ScoredBPE, unspell
from candlewick.text.split import WHOLE_WORDS, preset
from candlewick.text.tokenizer import Added, Stream, Tokenizer, looks_like_control
from candlewick.text.tokenizer_json import END_NAMES, from_json, sentence_bytes

__all__ = ["Stream", "Tokenizer", "load_tokenizer"]

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
_BOS, _EOS = 1, 2  # of llama2.c, always


def load_tokenizer(kind: str, data: Any, config: Mapping[str, Any] | None = None, file: str = "") -> Tokenizer:
    """
    kind "gguf": data is the metadata mapping. "json": data is the text of a tokenizer.json or what it parses to, config the
    settings beside it (tokenizer_config.json's, and bos_token_id, eos_token_id of generation_config.json or config.json).
    "llama2c": data is the bytes of a tokenizer.bin, config has the vocab_size. "words": data is a list of bytes, config has
    control_tokens, text -> id, and eos_token_id. file: what all this is from. Raises ValueError that names it.
    """
    try:
        return _load(kind, data, config or {})
    except ValueError as error:
        if kind == "json" or not file:  # which is always called tokenizer.json
            raise
        raise ValueError(f"{file}: {error}") from error


def _load(kind: str, data: Any, config: Mapping[str, Any]) -> Tokenizer:
    if kind == "gguf":
        return _from_gguf(data)
    if kind == "json":
        return from_json(data, config)
    if kind == "llama2c":
        return _from_llama2c(data, config.get("vocab_size"))
    if kind == "words":
        return _from_words(data, config["control_tokens"], config["eos_token_id"])
    raise ValueError(f"tokenizer: wanted a kind of gguf, json, llama2c or words, got {kind!r}")


# ---- GGUF ---------------------------------------------------------------------------------------------------------

def _from_gguf(meta: Mapping[str, Any]) -> Tokenizer:
    get = {key.removeprefix("tokenizer.ggml."): value for key, value in meta.items() if key.startswith("tokenizer.ggml.")}.get
    kind = get("model")
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"tokenizer.ggml.model: wanted gpt2 (byte-level BPE) or llama (SentencePiece), got {kind!r}; "
                         "tokenizers of this kind are not read here")
    tokens = _strings(get("tokens"), "tokens")
    n = len(tokens)
    types = _numbers(get("token_type"), "token_type", n, NORMAL).copy()
    names = ("bos", "eos", "eot", "eom", "unknown")
    bos, eos, eot, eom, unknown = (_token_id(get(f"{name}_token_id"), name, n) for name in names)
    for i in (bos, eos, eot, eom):  # some files forget to say so
        if i is not None and looks_like_control(tokens[i]):
            types[i] = CONTROL
    vocab = dict(zip(tokens, range(n)))
    listed = np.flatnonzero((types == CONTROL) | (types == USER)).tolist()
    added = [Added(tokens[i], i, special=bool(types[i] != USER)) for i in listed]
    control = np.flatnonzero((types == CONTROL) | (types == UNKNOWN)).tolist()
    never = {tokens[i] for i in control} | {token.text for token in added if token.controls}
    for name in never:  # no merging of typed text may end there
        vocab.pop(name, None)
    ends = {eot, eom, *(token.id for token in added if token.text in END_NAMES)}
    if unknown is not None and types[unknown] == CONTROL:  # typed text must not become it: what is unknown is left out
        unknown = None
    pre = str(get("pre", "default"))
    add_bos = bool(get("add_bos_token", kind == "llama" or pre in WHOLE_WORDS))
    shared: dict[str, Any] = {"pieces": lambda: tokens, "n_vocab": n, "added": added, "control": control, "bos": bos,
                              "eos": eos, "add_bos": add_bos, "ends": ends - {None}}
    if kind == "gpt2":
        model: Model = BPE(vocab, _strings(get("merges"), "merges"), by_bytes=True, unknown=unknown, whole=pre in WHOLE_WORDS,
                           never=never, place="tokenizer.ggml.merges")
        return Tokenizer(model=model, steps=preset(pre), piece_bytes=unspell, **shared)
    spaced = bool(get("add_space_prefix", True))
    model = _scored(tokens, _numbers(get("scores"), "scores", n), types, vocab, unknown, never)
    return Tokenizer(model=model, normal=[_space_signs], piece_bytes=sentence_bytes, prefix=" " if spaced else "",
                     strip_space=spaced, **shared)


def _scored(tokens: Sequence[str], scores: np.ndarray, types: np.ndarray, vocab: Mapping[str, int],
            unknown: int | None, never: Iterable[str]) -> Model:
    losses = dict(zip(tokens, (-scores).tolist()))
    for name in (*never, *(tokens[i] for i in np.flatnonzero(types == BYTE).tolist())):
        losses.pop(name, None)
    return ScoredBPE(vocab, losses, unknown)


def _space_signs(text: str) -> str:
    return text.replace(" ", SPACE)


def _strings(value: Any, name: str) -> list[str]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ValueError(f"tokenizer.ggml.{name}: wanted a list of strings, got {repr(value)[:60]}")
    found = value if isinstance(value, list) else list(value)
    if not set(map(type, found)) <= {str} or (name == "tokens" and not found):
        raise ValueError(f"tokenizer.ggml.{name}: wanted a list of strings, got {len(found)}, with {repr(found[:3])[:60]}")
    return found


def _numbers(value: Any, name: str, n: int, default: int | None = None) -> np.ndarray:
    if value is None and default is not None:
        return np.full(n, default)
    try:
        array = np.asarray(value, dtype=np.float64 if default is None else np.int64)
    except (TypeError, ValueError, OverflowError):
        array = np.empty((0,))
    if array.shape != (n,):
        raise ValueError(f"tokenizer.ggml.{name}: wanted {n} numbers, one for each token, got {repr(value)[:60]}")
    return array


def _token_id(value: Any, name: str, n: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < 1 << 32:
        raise ValueError(f"tokenizer.ggml.{name}_token_id: wanted a token from 0 to {n - 1}, got {value!r}")
    return int(value) if value < n else None  # -1 as u32 is what some files write for none


# ---- llama2.c -----------------------------------------------------------------------------------------------------

def _from_llama2c(data: bytes, n_vocab: int | None) -> Tokenizer:
    """A tokenizer.bin: i32 longest token, then for each token its f32 score, i32 length and bytes. How many there are stands
    in the model's header. `<0xHH>` tokens from 3 on are bytes; a space is a space."""
    tokens: list[bytes] = []
    scores: list[float] = []
    at = 4
    while at < len(data) and (n_vocab is None or len(tokens) < n_vocab):
        size = struct.unpack_from("<i", data, at + 4)[0] if at + 8 <= len(data) else -1
        if not 0 <= size <= len(data) - at - 8:
            raise ValueError(f"token {len(tokens)} at byte {at} would have {size} bytes, the file has "
                             f"{len(data)}; it is cut short, or another kind of file")
        scores.append(struct.unpack_from("<f", data, at)[0])
        tokens.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    if len(tokens) < 3 or (n_vocab is not None and len(tokens) < n_vocab):
        raise ValueError(f"wanted {n_vocab or 'some'} tokens as the model has, got {len(tokens)}; "
                         "it belongs to another model")
    if at != len(data):
        raise ValueError(f"it has more than the {n_vocab} tokens of the model ({len(data) - at} bytes are left); "
                         "it belongs to another model")
    pieces = [token.decode("utf-8", "surrogateescape") for token in tokens]
    types = np.full(len(pieces), NORMAL)
    types[:3] = UNKNOWN, CONTROL, CONTROL
    types[3:259] = BYTE
    if np.isnan(scores).any():
        raise ValueError("a score is not a number; the file is damaged")
    vocab = dict(zip(pieces, range(len(pieces))))
    vocab = {piece: i for piece, i in vocab.items() if i >= 3}
    pieces[:3] = "<unk>", "<s>", "</s>"
    model = _scored(pieces, np.asarray(scores), types, vocab, 0, pieces[:3])
    return Tokenizer(pieces=lambda: pieces, n_vocab=len(pieces), model=model,
                     piece_bytes=_llama2c_bytes, added=[Added("<s>", _BOS), Added("</s>", _EOS)], control=(0, _BOS, _EOS),
                     prefix=" ", strip_space=True, bos=_BOS, eos=_EOS, add_bos=True, ends=(_BOS,))


def _llama2c_bytes(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x"):
        return sentence_bytes(piece)
    return piece.encode("utf-8", "surrogateescape")


# ---- pieces alone -------------------------------------------------------------------------------------------------

def _from_words(words: Sequence[bytes], control: Mapping[str, int], eos: int) -> Tokenizer:
    """Words are cut as GPT-2 does."""
    pieces = [word.decode("latin-1").translate(BYTE_TO_CHAR) for word in words]
    vocab = dict(zip(pieces, range(len(pieces))))
    missing = [byte for byte, char in BYTE_TO_CHAR.items() if char not in vocab]
    if missing:
        raise ValueError(f"vocabulary: wanted a token for every byte, {len(missing)} lack one, the first of them "
                         f"0x{missing[0]:02x}; the file is damaged, or its vocabulary is of another kind")
    names = list(control)
    return Tokenizer(pieces=lambda: {**dict(enumerate(pieces)), **{control[name]: name for name in names}},
                     n_vocab=1 + max(len(pieces) - 1, *control.values()), model=RankedBPE(vocab), piece_bytes=unspell,
                     steps=preset("gpt2"), added=[Added(name, control[name]) for name in names], eos=eos)
