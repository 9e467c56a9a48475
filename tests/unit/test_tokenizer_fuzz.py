"""Tokenizer files in which anything may have become anything: an error in words, or a tokenizer that works."""

from __future__ import annotations

import copy
import json
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from candlewick.text.chat import ChatTemplate
from candlewick.text.tokenizers import load_tokenizer
from tests.golden.text import cases
from tests.unit.test_unigram import trained

ODD = st.one_of(st.none(), st.booleans(), st.integers(-2, 2**64), st.floats(), st.text(max_size=6), st.just([]), st.just({}),
                st.lists(st.integers(), max_size=3),
                st.sampled_from(["Sequence", "Split", "BPE", "Unigram", "ByteLevel", "Removed", "<s>", "\\", "(a*)*b", "["]),
                st.dictionaries(st.sampled_from(["type", "content", "Regex", "String", "id"]), st.text(max_size=3), max_size=2))
SPECS = {"bytes": cases.by_bytes(), "sentence": cases.by_sentence(), "unigram": json.loads(trained("unigram").to_str()),
         "bert": json.loads(trained("bert").to_str())}
TEXT = "a <s> the user's 12  é\u0301 日本 \U0001f600 <|im_end|>\n"


def places(node, path=()):
    """Every place of a JSON value, lists and tables of many only at their first entries."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(items)[:12]:
        yield from places(value, (*path, key))


PLACES = {kind: [path for path in places(spec) if path] for kind, spec in SPECS.items()}


def changed(spec, path, value):
    """A copy of a specification with another value in one place (None: gone)."""
    spec = copy.copy(spec)
    node = spec
    for key in path[:-1]:
        node[key] = copy.copy(node[key])
        node = node[key]
    if value is None and isinstance(node, dict):
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return spec


def use(tokenizer) -> None:
    for special in (False, True):
        ids = tokenizer.encode(TEXT, special)
        assert all(type(i) is int and i >= 0 for i in ids)
        tokenizer.decode(ids)
    tokenizer.token_text(3), tokenizer.prompt("x"), tokenizer.stream().push(7)
    ChatTemplate(cases.TEMPLATES["turns"], tokenizer).encode([{"role": "user", "content": TEXT}])


@pytest.mark.parametrize("kind", SPECS)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_tokenizer_json(kind, data):
    spec = SPECS[kind]
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(PLACES[kind]))
        try:
            spec = changed(spec, path, data.draw(ODD))
        except (KeyError, IndexError, TypeError):
            pass  # the first change took the second's place away
    keys = st.sampled_from(["bos_token_id", "eos_token_id", "bos_token", "eos_token"])
    config = data.draw(st.dictionaries(keys, ODD, max_size=2))
    try:
        use(load_tokenizer("json", spec, config))
    except ValueError as e:
        assert "token" in str(e)


META = {"model": "gpt2", "pre": "llama-bpe", "tokens": ["a", "b", "ab", "<s>", "Ġ"], "merges": ["a b"],
        "token_type": [1, 1, 1, 3, 1], "scores": [0.0] * 5, "eos_token_id": 3, "bos_token_id": 3,
        "add_bos_token": True, "add_space_prefix": True}


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["gpt2", "llama"]), st.dictionaries(st.sampled_from(list(META)), ODD, max_size=2))
def test_gguf_metadata(model, odd):
    meta = {**META, "model": model, **odd}
    try:
        use(load_tokenizer("gguf", {f"tokenizer.ggml.{key}": value for key, value in meta.items()}))
    except ValueError as e:
        assert "token" in str(e)


GOOD = struct.pack("<i", 6) + b"".join(struct.pack("<fi", -i, len(t)) + t for i, t in enumerate(
    [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % b for b in range(256)), b"a", b"ab", b" a", "é".encode(), b"\xff"]))


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(GOOD)), st.binary(max_size=12), st.integers(0, len(GOOD)), st.sampled_from([None, 3, 264, 1 << 31]))
def test_tokenizer_bin(at, put, end, n_vocab):
    data = (GOOD[:at] + put + GOOD[at + len(put):])[:end]
    try:
        use(load_tokenizer("llama2c", data, {"vocab_size": n_vocab}))
    except ValueError as e:
        assert "token" in str(e)  # whoever read the file puts its name before it


def test_the_undamaged_ones_are_read():
    for spec in SPECS.values():
        use(load_tokenizer("json", spec))
    use(load_tokenizer("llama2c", GOOD, {"vocab_size": 264}))
