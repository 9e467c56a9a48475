"""tokenizer.json, as Hugging Face's tokenizers write it -> a Tokenizer."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from candlewick.text.bpe import BPE, SPACE, Model, unspell
from candlewick.text.normalize import from_json as normal_from_json
from candlewick.text.split import from_json as split_from_json
from candlewick.text.split import steps_of
from candlewick.text.tokenizer import Added, Tokenizer, looks_like_control
from candlewick.text.unigram import Unigram, WordPiece

END_NAMES = frozenset((
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<|end_of_turn|>",
    "<end_of_turn>", "<|EOT|>", "</s>", "<\uff5cend\u2581of\u2581sentence\uff5c>"))
"""Control tokens that end a turn or a text, by the names that models give them."""

# Openers that follow one another: a stack overflow in the parser would end the interpreter of a page.
_DEEP = re.compile(r"(?:[\[{]\s*){65}")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def sentence_bytes(piece: str) -> bytes:
    """What a piece of a SentencePiece vocabulary stands for."""
    if piece.startswith("<0x") and (m := _BYTE.fullmatch(piece)):
        return bytes([int(m[1], 16)])
    return piece.replace(SPACE, " ").encode("utf-8", "replace")


def parse(text: str) -> dict[str, Any]:
    """The content of a tokenizer.json. Raises ValueError if it is not one."""
    try:
        if _DEEP.search(text):
            raise RecursionError
        spec = json.loads(text)
    except RecursionError:
        raise ValueError("tokenizer.json: brackets nest too deep; this is no tokenizer") from None
    except ValueError as e:
        raise ValueError(f"tokenizer.json: not JSON ({e})") from None
    if not isinstance(spec, dict):
        raise ValueError("tokenizer.json: wanted an object with a `model`; this is another kind of file")
    return spec


def from_json(data: str | Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Tokenizer:
    """data: the text of the file, or what it parses to; config: see load_tokenizer. Raises ValueError for what is not read."""
    spec = parse(data) if isinstance(data, str) else data
    config = config or {}
    model = spec.get("model")
    if not isinstance(model, Mapping):
        raise ValueError("tokenizer.json: wanted an object with a `model`; this is another kind of file")
    kind = model.get("type", "BPE")
    if kind not in ("BPE", "Unigram", "WordPiece"):
        raise ValueError(f"tokenizer.json: wanted a model of BPE, Unigram or WordPiece, got {_short(kind)}")
    vocab, scores = _scored(model.get("vocab")) if kind == "Unigram" else (_vocabulary(model.get("vocab")), {})
    added = _added_tokens(spec.get("added_tokens"))
    names = {token.text: token.id for token in added}

    def named(token: Any) -> int | None:
        token = token.get("content") if isinstance(token, Mapping) else token
        return names.get(token, vocab.get(token)) if isinstance(token, str) else None

    opening = _opening(spec)
    bos = _token_id(config.get("bos_token_id"), "bos_token_id")
    bos = next((i for i in (bos, named(config.get("bos_token")), opening) if i is not None), None)
    listed = config.get("eos_token_id")
    ends = [_token_id(i, "eos_token_id") for i in (listed if isinstance(listed, list) else [listed])]
    eos = named(config.get("eos_token"))
    eos = ends[0] if eos is None and ends else eos
    ends += [eos, *(token.id for token in added if token.text in END_NAMES)]
    steering = {i for i in (bos, *ends) if i is not None} - set(names.values())
    if steering:  # the list of added tokens forgets them
        added += [Added(piece, i) for piece, i in vocab.items() if i in steering and looks_like_control(piece)]
    unknown = named(model.get("unk_token")) if kind != "Unigram" else _token_id(model.get("unk_id"), "model.unk_id")
    if unknown in ends:  # typed text must not become it: what is unknown is left out
        unknown = None

    never = {token.text for token in added if token.controls}
    if not never.isdisjoint(vocab):
        vocab = {piece: i for piece, i in vocab.items() if piece not in never}
    made: Model
    if kind == "BPE":
        made, piece_bytes = _bpe(spec, model, vocab, unknown, never)
    elif kind == "Unigram":
        kept = {piece: score for piece, score in scores.items() if piece in vocab and vocab[piece] != unknown}
        made, piece_bytes = Unigram(vocab, kept, unknown, bool(model.get("byte_fallback"))), sentence_bytes
    else:
        inner = str(model.get("continuing_subword_prefix", "##"))
        made = WordPiece(vocab, unknown, inner, _token_id(model.get("max_input_chars_per_word", 100), "model") or 100)
        piece_bytes = functools.partial(_word_bytes, inner)
    normal = steps_of(spec.get("normalizer"))
    prefix = ""
    if normal and normal[0]["type"] == "Prepend" and isinstance(normal[0].get("prepend"), str):
        prefix, normal = normal[0]["prepend"], normal[1:]
    return Tokenizer(
        pieces=lambda: {i: piece for piece, i in vocab.items()},
        n_vocab=1 + max(max(vocab.values(), default=-1), max(names.values(), default=-1)),
        model=made,
        piece_bytes=piece_bytes,
        normal=normal_from_json({"type": "Sequence", "normalizers": normal}),
        steps=split_from_json(spec.get("pre_tokenizer")),
        added=added,
        prefix=prefix,
        strip_space=_strips(spec.get("decoder")),
        bos=bos,
        eos=eos,
        add_bos=config.get("add_bos_token") is True if opening is None else opening == bos,
        ends={i for i in ends if i is not None},
    )


def _bpe(spec: Mapping[str, Any], model: Mapping[str, Any], vocab: Mapping[str, int], unknown: int | None,
         never: set[str]) -> tuple[Model, Callable[[str], bytes]]:
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise ValueError(f"tokenizer.json: a {key} ({model[key]!r}) is not read here")
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise ValueError(f"tokenizer.json: model.merges must be a list of pairs, got {_short(merges)}")
    cutting = steps_of(spec.get("pre_tokenizer"))
    by_bytes = any(step["type"] == "ByteLevel" for step in cutting)
    kinds = [step["type"] for step in cutting + steps_of(spec.get("decoder"))]
    if not by_bytes and not {"Metaspace", "ByteFallback"}.intersection(kinds):
        raise ValueError("tokenizer.json: wanted BPE of bytes (ByteLevel) or SentencePiece's (Metaspace, ByteFallback), got "
                         + (", ".join(kinds) or "None"))
    bpe = BPE(vocab, merges, by_bytes=by_bytes, unknown=unknown, fallback=bool(model.get("byte_fallback")),
              whole=bool(model.get("ignore_merges")), fuse=bool(model.get("fuse_unk")), never=never)
    return bpe, unspell if by_bytes else sentence_bytes


def _word_bytes(inner: str, piece: str) -> bytes:
    """Of WordPiece: a space stands before each word."""
    return (piece.removeprefix(inner) if piece.startswith(inner) else " " + piece).encode("utf-8", "replace")


def _strips(decoder: Any) -> bool:
    """Whether decoding takes one space from the beginning of a text."""
    for step in steps_of(decoder):
        if step["type"] == "Metaspace":
            return step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never") != "never"
        if step["type"] == "WordPiece":
            return True
        if step["type"] == "Strip" and step.get("content") == " " and step.get("start"):
            return True
    return False


def _opening(spec: Mapping[str, Any]) -> int | None:
    """The token that the post-processor puts before a text, if it puts one."""
    for step in steps_of(spec.get("post_processor")):
        single = step.get("single") if step["type"] == "TemplateProcessing" else None
        head = single[0].get("SpecialToken") if isinstance(single, list) and single and isinstance(single[0], Mapping) else None
        if isinstance(head, Mapping) and isinstance(step.get("special_tokens"), Mapping):
            ids = step["special_tokens"].get(head.get("id"), {}).get("ids") or [None]
            return _token_id(ids[0], "post_processor")
    return None


def _token_id(value: Any, key: str) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError(f"tokenizer.json: {key}: wanted a token's number, got {_short(value)}")
    return value


def _scored(vocab: Any) -> tuple[dict[str, int], dict[str, float]]:
    """model.vocab of a unigram model: [piece, score] in the order of their ids -> ids, scores."""
    good = isinstance(vocab, list) and all(
        isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], (int, float))
        and math.isfinite(entry[1]) for entry in vocab)
    if not good:
        raise ValueError(f"tokenizer.json: model.vocab must list pieces with their scores, got {_short(vocab)}")
    return {piece: i for i, (piece, _) in enumerate(vocab)}, {piece: float(score) for piece, score in vocab}


def _vocabulary(vocab: Any) -> dict[str, int]:
    """model.vocab, if it gives every piece a number."""
    if not isinstance(vocab, dict):
        raise ValueError(f"tokenizer.json: model.vocab must give each piece its id, got {_short(vocab)}")
    if not set(map(type, vocab.values())) <= {int} or min(vocab.values(), default=0) < 0:
        raise ValueError("tokenizer.json: model.vocab has ids that are not whole numbers from 0 on; the file is damaged")
    return vocab


def _added_tokens(added: Any) -> list[Added]:
    """added_tokens, if each has its text and its number."""
    added = [] if added is None else added
    for token in added if isinstance(added, list) else [added]:
        good = isinstance(token, dict) and isinstance(token.get("content"), str) and type(token.get("id")) is int
        if not good or token["id"] < 0:
            raise ValueError("tokenizer.json: added_tokens must list objects with an id from 0 on and a content, got "
                             + _short(token))
    flags = ("special", "normalized", "single_word", "lstrip", "rstrip")
    return [Added(token["content"], token["id"], **{flag: bool(token.get(flag)) for flag in flags}) for token in added]


def _short(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:60]
