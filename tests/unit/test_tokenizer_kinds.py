"""Every kind of BPE tokenizer against the native `tokenizers` package: vocabularies are trained here, on the spot, with the
pre-tokenizers and normalizers of the models that people bring, and read from both of their files, tokenizer.json and GGUF."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

import pytest
import tokenizers as native
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from candlewick.text import split
from candlewick.text.tokenizers import Tokenizer, load_tokenizer

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "llama2c"
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"]

SCRIPTS = [  # first and last code of the letters
    (0x61, 0x7A), (0x41, 0x5A), (0xC0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA), (0x621, 0x64A), (0x904, 0x939),
    (0xE01, 0xE2E), (0xAC00, 0xAC7F), (0x3041, 0x3096), (0x4E00, 0x4EFF), (0x1F600, 0x1F63F), (0x30, 0x39), (0x966, 0x96F),
    (0x2160, 0x216F), (0x21, 0x2F), (0x5B, 0x60), (0x1D400, 0x1D44F), (0x300, 0x33F), (0x2000, 0x200A), (0x01, 0x1F),
    (0x1C4, 0x1CC), (0x2B0, 0x2C0), (0x1F1E6, 0x1F1FF)]
BETWEEN = [" ", " ", " ", "  ", "\n", "\t", "\n\n  ", " \r\n", "\u00a0", "\u3000", "\x85", "\x1c", "-", ", ", "'s ", "'LL ",
           "’s ", "'\u017f ", "\u200d", "\ufe0f", "\u2581", "_", "/\n", *CONTROL, " <s> "]
PICKED = [
    "", " ", "  ", "a", " a", "a ", "\n\n\n", " \n \n", "This is \U0001f600.", " leading", "trailing   ",
    "I'M don't 'Tis DON'T",
    "1234567 12 3.14 ½ Ⅷ ٣", "tabs\t\tand\r\nlines\n", "👨\u200d👩\u200d👧‍👦 family 🏳️\u200d🌈", "🇩🇪🇫🇷", "日本語のテキスト",
    "camelCaseWord HTTPServer", "ǅ ǆ ʰ", "e\u0301 é ﬁ", "<s>hello</s>", "<|im_start|>user\nhi<|im_end|>", "a  <s>  b", "<0x41>",
    "x" * 700, " " * 300 + "x", "ab " * 200, "\n" * 90 + "a", "7" * 100, "é" * 200, "\U0010ffff", "snake_case_1",
]


def noise(rng: random.Random) -> str:
    words = []
    for _ in range(rng.randrange(1, 10)):
        low, high = rng.choice(SCRIPTS)
        words.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randrange(1, 8))) + rng.choice(BETWEEN))
    return "".join(words)


def by_bytes(*cuts: object) -> native.Tokenizer:
    """A byte-level tokenizer as the models have it: their own cuts, then bytes."""
    made = native.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    return made


def cut(pattern: str, behaviour: str = "isolated", invert: bool = False):
    return pre_tokenizers.Split(Regex(pattern), behaviour, invert)


def gpt2(prefix: bool = False) -> native.Tokenizer:
    made = by_bytes()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    return made


def smollm() -> native.Tokenizer:
    made = by_bytes()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return made


def qwen2() -> native.Tokenizer:
    made = by_bytes(cut(split.QWEN2))
    made.normalizer = normalizers.NFC()
    return made


SENTENCE_DECODERS = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def sentences() -> native.Tokenizer:
    """As Llama 2 and TinyLlama have it."""
    made = native.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(SENTENCE_DECODERS)
    return made


def sentences_by_words(scheme: str, cuts: bool) -> native.Tokenizer:
    """As Mistral has it."""
    made = native.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=cuts)
    made.decoder = decoders.Sequence(SENTENCE_DECODERS)
    return made


KINDS = {
    "gpt2": gpt2, "gpt2 with a space": lambda: gpt2(True), "smollm": smollm, "qwen2": qwen2,
    "llama-bpe": lambda: by_bytes(cut(split.LLAMA3)),
    "gpt-4o": lambda: by_bytes(cut(split.GPT4O, "removed", True)), "tekken": lambda: by_bytes(cut(split.TEKKEN)),
    "default": lambda: by_bytes(*map(cut, split.PRESETS["default"])),
    "merged with next": lambda: by_bytes(cut(r"\s", "merged_with_next"), cut(r"\d", "contiguous")),
    "merged with previous": lambda: by_bytes(cut(r"[\s,]", "merged_with_previous"), pre_tokenizers.Punctuation()),
    "sentences": sentences, "sentences, first": lambda: sentences_by_words("first", False),
    "sentences, always": lambda: sentences_by_words("always", True),
}
GGUF = ("gpt2", "smollm", "llama-bpe", "gpt-4o", "tekken", "default")


@functools.cache
def trained(kind: str) -> native.Tokenizer:
    """600 pieces, learned from noise of all scripts, and control tokens."""
    made, rng = KINDS[kind](), random.Random(1)
    text = [noise(rng) + " the quick brown fox's 2024 'll" for _ in range(1500)]
    sentence = kind.startswith("sentences")
    bytes_ = [f"<0x{b:02X}>" for b in range(256)] if sentence else []
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, special_tokens=["<unk>", *bytes_] if sentence else [],
                                  initial_alphabet=[] if sentence else pre_tokenizers.ByteLevel.alphabet(), limit_alphabet=300)
    made.train_from_iterator(text, trainer)
    if sentence:  # the trainer makes the bytes added tokens: in the files of models they are not
        spec = json.loads(made.to_str())
        spec["added_tokens"] = spec["added_tokens"][:1]
        made = native.Tokenizer.from_str(json.dumps(spec))
    made.add_special_tokens([AddedToken(name, normalized=False) for name in CONTROL])
    made.add_tokens([AddedToken("    ", normalized=False), AddedToken("\u00bb\u00ab", normalized=False)])
    return made


def as_gguf(made: native.Tokenizer, pre: str) -> dict:
    """The same tokenizer as a GGUF file has it."""
    spec = json.loads(made.to_str())
    tokens = sorted(made.get_vocab(), key=made.get_vocab().get)
    added = {token["content"]: token["special"] for token in spec["added_tokens"]}
    types = [{True: 3, False: 4, None: 1}[added.get(token)] for token in tokens]
    merges = [" ".join(pair) for pair in spec["model"]["merges"]]
    return {f"tokenizer.ggml.{key}": value for key, value in {
        "model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges, "token_type": types,
        "eos_token_id": made.token_to_id("<|im_end|>"), "bos_token_id": made.token_to_id("<s>")}.items()}


def same(ours: Tokenizer, theirs: native.Tokenizer, n: int, seed: int = 2) -> None:
    rng = random.Random(seed)
    for text in PICKED + [noise(rng) for _ in range(n)]:
        wanted = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, special=True) == wanted, repr(text)
        assert ours.decode(wanted) == theirs.decode(wanted) or "\ufffd" in theirs.decode(wanted), repr(text)
        plain = ours.encode(text)
        assert not set(ours.special.values()).intersection(plain)
        if not any(name in text for name in CONTROL):
            assert plain == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_the_reference(kind):
    """BR-13: the same ids as the native package, for thousands of texts, and the same text back."""
    theirs = trained(kind)
    same(load_tokenizer("json", theirs.to_str()), theirs, 1200)


@pytest.mark.parametrize("kind", GGUF)
def test_a_gguf_file_of_it_gives_the_same(kind):
    theirs = trained(kind)
    spec = json.loads(theirs.to_str())
    spec["model"]["ignore_merges"] = kind in split.WHOLE_WORDS
    theirs = native.Tokenizer.from_str(json.dumps(spec))
    ours = load_tokenizer("gguf", as_gguf(theirs, kind))
    same(ours, theirs, 600, seed=3)
    names = {name: theirs.token_to_id(name) for name in CONTROL}
    assert ours.bos == names["<s>"] and ours.ends == {names["<|im_end|>"], names["<|endoftext|>"], names["</s>"]}
