"""A tokenizer from one kind of file into another: tokenizer.json, GGUF's metadata, llama2.c's tokenizer.bin.

GGUF's metadata stand in the middle: `to_gguf` makes them from any kind, `to_json` and `to_llama2c` go on from them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from candlewick.text.bpe import SPACE
from candlewick.text.split import GPT2, PRESETS, WHOLE_WORDS, steps_of
from candlewick.text.tokenizer_json import END_NAMES
from candlewick.text.tokenizers import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER, load_tokenizer

PREFIX = "tokenizer.ggml."
DIGIT = r"\p{N}"
BYTES_FROM = 3  # the first of 256 byte tokens in SentencePiece vocabularies
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def to_gguf(kind: str, data: Any, config: Mapping[str, Any] | None = None, n_vocab: int | None = None) -> dict[str, Any]:
    """A tokenizer's file (see load_tokenizer) -> GGUF's metadata of it, tokenizer.ggml.*.

    n_vocab: rows of the model's table; rows without a token are filled up with unused ones. Raises ValueError for what GGUF
    cannot say.
    """
    config = config or {}
    if kind == "gguf":
        return {key: value for key, value in data.items() if key.startswith("tokenizer.")}
    tokenizer = load_tokenizer(kind, data, config)
    meta = _json_to_gguf(data) if kind == "json" else _llama2c_to_gguf(data, config.get("vocab_size"))
    tokens, types = meta["tokens"], meta["token_type"]
    missing = max(0, (n_vocab or 0) - len(tokens))
    tokens += [f"[PAD{len(tokens) + i}]" for i in range(missing)]
    meta["token_type"] = np.concatenate([types, np.full(missing, UNUSED)]).astype("<i4")
    if "scores" in meta:
        meta["scores"] = np.concatenate([meta["scores"], np.full(missing, -1e9)]).astype("<f4")
    others = sorted(i for i in tokenizer.ends - {tokenizer.eos} if tokens[i] not in END_NAMES)  # those are known by name
    ends = [*([] if tokenizer.eos is None else [tokenizer.eos]), *others]
    ids = {"bos": tokenizer.bos, "eos": ends[0] if ends else None, "eot": ends[1] if len(ends) > 1 else None}
    meta |= {f"{name}_token_id": value for name, value in ids.items() if value is not None}
    meta["add_bos_token"] = tokenizer.add_bos
    return {PREFIX + key: value for key, value in meta.items()}


def _json_to_gguf(spec: Mapping[str, Any]) -> dict[str, Any]:
    model, added = spec["model"], spec.get("added_tokens") or []
    pieces = {i: piece for piece, i in model["vocab"].items()} | {token["id"]: token["content"] for token in added}
    n = max(pieces) + 1
    tokens = [pieces.get(i, f"[PAD{i}]") for i in range(n)]
    types = np.array([NORMAL if i in pieces else UNUSED for i in range(n)])
    for token in added:
        types[token["id"]] = CONTROL if token.get("special") else USER
    unknown = model.get("unk_token")
    merges = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
    by_bytes = any(step["type"] == "ByteLevel" for step in steps_of(spec.get("pre_tokenizer")))
    if by_bytes:
        meta = {"model": "gpt2", "pre": pre_name(spec), "tokens": tokens, "token_type": types,
                "merges": [" ".join(pair) for pair in merges]}
    else:
        rank: dict[str, int] = {}
        for i, (left, right) in enumerate(merges):
            rank.setdefault(left + right, i)
        scores = np.array([-float(rank.get(piece, len(merges))) for piece in tokens])
        types[[i for i, piece in enumerate(tokens) if _is_byte(piece)]] = BYTE
        if unknown in model["vocab"]:
            types[model["vocab"][unknown]] = UNKNOWN
        meta = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types,
                "add_space_prefix": _puts_space_first(spec)}
    if unknown is not None and unknown in model["vocab"]:
        meta["unknown_token_id"] = model["vocab"][unknown]
    return meta


def _is_byte(piece: str) -> bool:
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")


def pre_name(spec: Mapping[str, Any]) -> str:
    """GGUF's name for the way in which a tokenizer.json cuts words. Raises ValueError if it has none."""
    patterns: list[str | None] = []
    for step in steps_of(spec.get("pre_tokenizer")):
        pattern = step.get("pattern")
        if step["type"] == "ByteLevel" and not step.get("add_prefix_space", True):
            patterns += [GPT2] if step.get("use_regex", True) else []
        elif step["type"] == "Digits" and step.get("individual_digits"):
            patterns.append(DIGIT)
        elif step["type"] == "Split" and step.get("behavior") == "Isolated" and not step.get("invert"):
            patterns.append(pattern.get("Regex") if isinstance(pattern, Mapping) else None)
        else:
            patterns.append(None)
    whole = bool(spec["model"].get("ignore_merges"))
    names = [name for name, known in PRESETS.items() if list(known) == patterns and (name in WHOLE_WORDS) == whole]
    if not names:
        raise ValueError("tokenizer.json: GGUF has no name for its way of cutting words ("
                         + ", ".join(step["type"] for step in steps_of(spec.get("pre_tokenizer")))
                         + "); it cannot be put into a GGUF file")
    return names[0]


def _puts_space_first(spec: Mapping[str, Any]) -> bool:
    """Whether text gets a space before it, as SentencePiece does."""
    if any(step["type"] == "Prepend" for step in steps_of(spec.get("normalizer"))):
        return True
    return any(step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never") != "never"
               for step in steps_of(spec.get("pre_tokenizer")) if step["type"] == "Metaspace")


def _llama2c_to_gguf(data: bytes, n_vocab: int | None) -> dict[str, Any]:
    """tokenizer.bin: float32 score, int32 length, bytes of each token, from byte 4 on (load_tokenizer has checked it)."""
    tokens, scores, at = [], [], 4
    while at < len(data) and (n_vocab is None or len(tokens) < n_vocab):
        score, size = struct.unpack_from("<fi", data, at)
        tokens.append(data[at + 8 : at + 8 + size])
        scores.append(score)
        at += 8 + size
    try:
        texts = ["<unk>", "<s>", "</s>", *(token.decode("utf-8").replace(" ", SPACE) for token in tokens[3:])]
    except UnicodeDecodeError as error:
        raise ValueError("tokenizer.bin: a token is not UTF-8 text, which GGUF cannot hold") from error
    types = np.full(len(texts), NORMAL)
    types[:3] = UNKNOWN, CONTROL, CONTROL
    types[BYTES_FROM : BYTES_FROM + 256] = BYTE
    return {"model": "llama", "tokens": texts, "scores": np.array(scores), "token_type": types, "unknown_token_id": 0,
            "add_space_prefix": True}


# ---- from GGUF --------------------------------------------------------------------------------------------------


def to_json(meta: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """GGUF's metadata -> the content of a tokenizer.json, and of a tokenizer_config.json beside it. Raises ValueError."""
    tokenizer = load_tokenizer("gguf", meta)
    get = {key.removeprefix(PREFIX): value for key, value in meta.items()}.get
    tokens, types = get("tokens"), get("token_type")
    types = np.full(len(tokens), NORMAL) if types is None else np.asarray(types)
    unknown = get("unknown_token_id")
    model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    vocab = {token: i for i, token in enumerate(tokens) if types[i] != UNUSED}
    listed = [i for i in range(len(tokens)) if types[i] in (CONTROL, USER) or (i == unknown and types[i] == UNKNOWN)]
    added = [{"id": i, "content": tokens[i], **FLAGS, "special": bool(types[i] != USER)} for i in listed]
    if get("model") == "gpt2":
        pre = str(get("pre", "default"))
        model |= {"ignore_merges": pre in WHOLE_WORDS, "vocab": vocab, "merges": [m.split(" ", 1) for m in get("merges")]}
        normalizer, cutting = None, _cutting(PRESETS[pre])
        decoder: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    else:
        known = {token: i for token, i in vocab.items() if types[i] == NORMAL}
        model |= {"unk_token": None if unknown is None else tokens[unknown], "fuse_unk": True, "byte_fallback": True,
                  "vocab": vocab, "merges": merges_of(known, np.asarray(get("scores")))}
        spaced = bool(get("add_space_prefix", True))
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        normalizer = {"type": "Sequence",
                      "normalizers": [*([{"type": "Prepend", "prepend": SPACE}] if spaced else []), replace]}
        cutting = None
        decoder = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if spaced else [])]}
    spec = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": cutting, "post_processor": _post_processor(tokens, tokenizer.bos) if tokenizer.add_bos else None,
            "decoder": decoder, "model": model}
    names = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos, "unk_token": unknown}
    config: dict[str, Any] = {key: tokens[i] for key, i in names.items() if i is not None}
    config |= {"add_bos_token": tokenizer.add_bos, "clean_up_tokenization_spaces": False,
               "tokenizer_class": "PreTrainedTokenizerFast"}
    return spec, config


def _cutting(patterns: tuple[str, ...]) -> dict[str, Any]:
    """Patterns of a GGUF pre-tokenizer -> the pre_tokenizer of a tokenizer.json"""
    steps: list[dict[str, Any]] = []
    for pattern in patterns:
        if pattern == DIGIT:
            steps.append({"type": "Digits", "individual_digits": True})
        elif pattern == GPT2 and pattern == patterns[-1]:
            steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True})
        else:
            steps.append({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False})
    if steps[-1]["type"] != "ByteLevel":
        steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
    return {"type": "Sequence", "pretokenizers": steps}


def _post_processor(tokens: list[str], bos: int | None) -> dict[str, Any]:
    """Text begins with the token for it."""
    assert bos is not None
    text = tokens[bos]
    first, a, b = {"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, "B"
    return {"type": "TemplateProcessing", "single": [first, a],
            "pair": [first, a, {"SpecialToken": {"id": text, "type_id": 1}}, {"Sequence": {"id": b, "type_id": 1}}],
            "special_tokens": {text: {"id": text, "ids": [bos], "tokens": [text]}}}


def merges_of(vocab: Mapping[str, int], scores: np.ndarray) -> list[list[str]]:
    """SentencePiece's scores -> merges in the order in which they are made: every way to make a piece of two, best piece first.

    As transformers converts such vocabularies: of one piece's ways those of earlier parts first.
    """
    found = []
    for piece, i in vocab.items():
        cuts = [k for k in range(1, len(piece)) if piece[:k] in vocab and piece[k:] in vocab]
        ways = [(vocab[piece[:k]], vocab[piece[k:]], k) for k in cuts]
        found += [(-float(scores[i]), [piece[:k], piece[k:]]) for _, _, k in sorted(ways)]
    return [pair for _, pair in sorted(found, key=lambda row: row[0])]


def to_llama2c(meta: Mapping[str, Any]) -> bytes:
    """GGUF's metadata -> a tokenizer.bin. Raises ValueError for a vocabulary that llama2.c cannot use."""
    get = {key.removeprefix(PREFIX): value for key, value in meta.items()}.get
    if get("model") != "llama":
        raise ValueError(f"a tokenizer.bin holds a SentencePiece vocabulary (llama), this one is of the kind {get('model')!r}; "
                         "its words are cut in a way that llama2.c does not know")
    load_tokenizer("gguf", meta)
    tokens, types, scores = get("tokens"), np.asarray(get("token_type")), np.asarray(get("scores"))
    if types[:3].tolist() != [UNKNOWN, CONTROL, CONTROL] or (types[BYTES_FROM : BYTES_FROM + 256] != BYTE).any() \
            or (get("bos_token_id"), get("eos_token_id")) != (1, 2) or len(tokens) < BYTES_FROM + 256:
        raise ValueError("a tokenizer.bin has unknown, begin and end as its tokens 0, 1 and 2 and then 256 bytes; this "
                         "vocabulary is built in another way")
    texts = [token.replace(SPACE, " ").encode() for token in tokens]
    texts[1:3] = b"\n<s>\n", b"\n</s>\n"
    out = struct.pack("<i", max(map(len, texts)))
    return out + b"".join(struct.pack("<fi", score, len(text)) + text for score, text in zip(scores.tolist(), texts))
