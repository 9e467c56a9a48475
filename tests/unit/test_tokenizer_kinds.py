"""Every kind of BPE tokenizer against the native `tokenizers` package: vocabularies are trained here, on the spot, with the
pre-tokenizers and normalizers of the models that people bring, and read from both of their files, tokenizer.json and GGUF."""

from __future__ import annotations

import functools
import json
import random
import struct
from pathlib import Path

import pytest
import tokenizers as native
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from candlewick.text import split
from candlewick.text.chat import ChatTemplate
from candlewick.text.tokenizers import Tokenizer, load_tokenizer
from candlewick.weights.gguf import read_header
from candlewick.weights.source import FileSource
from tests.golden.text import cases
from tests.unit.growth import lines_run

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
    same(load_tokenizer("json", theirs.to_str()), theirs, 800)


@pytest.mark.parametrize("kind", GGUF)
def test_a_gguf_file_of_it_gives_the_same(kind):
    theirs = trained(kind)
    spec = json.loads(theirs.to_str())
    spec["model"]["ignore_merges"] = kind in split.WHOLE_WORDS
    theirs = native.Tokenizer.from_str(json.dumps(spec))
    ours = load_tokenizer("gguf", as_gguf(theirs, kind))
    same(ours, theirs, 400, seed=3)
    names = {name: theirs.token_to_id(name) for name in CONTROL}
    assert ours.bos == names["<s>"] and ours.ends == {names["<|im_end|>"], names["<|endoftext|>"], names["</s>"]}


# ---- SentencePiece with scores: GGUF and llama2.c -----------------------------------------------------------------

def scored_pieces() -> tuple[list[str], list[float]]:
    """Tokens and scores of a small vocabulary, as SentencePiece has them: what merges earlier has the better score."""
    rng = random.Random(4)
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz.,'!012", "é", "日", "😀"]
    words = {"".join(rng.choice(letters) for _ in range(rng.randint(2, 5))) for _ in range(400)}
    words |= {word[:n] for word in words for n in range(2, len(word))} | {"<s", "</s", "<0x4", "▁▁", "▁▁▁▁"}
    pieces = sorted(words, key=lambda word: (len(word), rng.random())) + sorted(set([*letters, *"<>/sx04"]))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    return tokens, [0.0] * 259 + [-float(i) for i in range(len(pieces))]


def as_merges(tokens: list[str], scores: list[float]) -> native.Tokenizer:
    """The same rules in the native package: every pair that makes a piece is a merge, of the piece's rank."""
    ids = {token: i for i, token in enumerate(tokens)}
    places = sorted(range(259, len(tokens)), key=lambda i: -scores[i])
    merges = [(tokens[i][:n], tokens[i][n:]) for i in places for n in range(1, len(tokens[i]))
              if ids.get(tokens[i][:n], 0) > 258 and ids.get(tokens[i][n:], 0) > 258]
    made = native.Tokenizer(models.BPE(ids, merges, byte_fallback=True, unk_token="<unk>"))
    made.decoder = decoders.Sequence(SENTENCE_DECODERS)
    return made


def sentence_texts() -> list[str]:
    rng = random.Random(6)
    letters = " " * 8 + "abcdefghijklmnopqrstuvwxyz.,'!012é日😀</s>x04\n\tπ🚀"
    return [text for text in PICKED if not text.startswith(" ")] + [
        "".join(rng.choice(letters) for _ in range(rng.randint(1, 60))) for _ in range(1500)]


@pytest.mark.parametrize("prefix", [True, False])
def test_scores_of_a_gguf_file_merge_as_the_reference(prefix):
    tokens, scores = scored_pieces()
    theirs = as_merges(tokens, scores)
    ours = load_tokenizer("gguf", {f"tokenizer.ggml.{key}": value for key, value in {
        "model": "llama", "tokens": tokens, "scores": scores, "token_type": [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)],
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_space_prefix": prefix}.items()})
    assert (ours.bos, ours.add_bos, ours.ends) == (1, True, {2})
    for text in sentence_texts():
        wanted = theirs.encode(((" " + text) if prefix and text else text).replace(" ", "▁")).ids
        assert ours.encode(text) == wanted, repr(text)
        if "▁" not in text:
            assert ours.decode(wanted) == text


def test_scores_of_a_llama2c_file_merge_as_the_reference():
    tokens, scores = scored_pieces()
    theirs = as_merges(tokens, scores)
    data = llama2c([token.replace("▁", " ").encode() for token in tokens], scores)
    ours = load_tokenizer("llama2c", data, {"vocab_size": len(tokens)})
    for text in sentence_texts():
        if "▁" not in text:
            wanted = theirs.encode((" " + text).replace(" ", "▁") if text else "").ids
            assert ours.encode(text) == wanted, repr(text)
            assert ours.decode(wanted) == text and ours.prompt(text) == [1, *wanted]


def llama2c(tokens: list[bytes], scores: list[float]) -> bytes:
    records = (struct.pack("<fi", score, len(token)) + token for token, score in zip(tokens, scores))
    return struct.pack("<i", max(map(len, tokens))) + b"".join(records)


@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data/llama2c is not here")
def test_llama2c_reference_text():
    """What the C program printed for its ids, and the ids that it had for a prompt."""
    golden = json.loads((DATA / "golden.json").read_text())["dreams260K.bin"]
    ours = load_tokenizer("llama2c", (DATA / golden["tokenizer"]).read_bytes(), {"vocab_size": 512})
    assert ours.decode(golden["ids"]) == golden["text"]
    stream = ours.stream()
    assert "".join(map(stream.push, golden["ids"])) + stream.flush() == golden["text"]
    prompt = golden["prompt"]["text"]
    assert ours.decode(ours.encode(prompt)) == prompt and golden["prompt"]["output"].startswith(prompt)


@pytest.mark.parametrize(("damage", "words"), [
    (lambda d: d[:-1], "cut short"), (lambda d: d[:3], "wanted 262 tokens"), (lambda d: b"", "wanted 262 tokens"),
    (lambda d: d + b"1234567", "cut short|has more than"), (lambda d: d[:8] + b"\xff" * 4 + d[12:], "would have -1 bytes"),
    (lambda d: d[:4] + struct.pack("<f", float("nan")) + d[8:], "not a number"),
    (lambda d: b"<!doctype html>" * 20, "cut short")])
def test_damaged_llama2c_file_is_told_in_words(damage, words):
    data = llama2c([f"<{i}>".encode() for i in range(262)], [0.0] * 262)
    load_tokenizer("llama2c", data, {"vocab_size": 262})
    with pytest.raises(ValueError, match=f"^tok262.bin: .*({words})"):
        load_tokenizer("llama2c", damage(data), {"vocab_size": 262}, "tok262.bin")


def test_a_tokenizer_of_another_model_is_told_by_its_size():
    data = llama2c([f"<{i}>".encode() for i in range(262)], [0.0] * 262)
    with pytest.raises(ValueError, match="wanted 300 tokens as the model has, got 262"):
        load_tokenizer("llama2c", data, {"vocab_size": 300})
    with pytest.raises(ValueError, match="more than the 200 tokens"):
        load_tokenizer("llama2c", data, {"vocab_size": 200})


# ---- GGUF metadata that is not what it should be ------------------------------------------------------------------

@pytest.mark.parametrize(("key", "value", "words"), [
    ("model", "bert", "model: wanted gpt2 .* or llama .*, got 'bert'"),
    ("model", None, "model: .*got None"),
    ("tokens", None, "tokens: wanted a list"),
    ("tokens", [], "tokens: wanted"),
    ("tokens", ["a", 5], "tokens: wanted a list of strings"),
    ("merges", 7, "merges: wanted a list"),
    ("merges", None, "merges: wanted a list"),
    ("token_type", [1], "token_type: wanted 2 numbers"),
    ("pre", "own", "pre: wanted one of .*'own'"),
    ("token_type", ["x", "y"], "token_type: wanted 2 numbers"),
    ("eos_token_id", "end", "eos_token_id: wanted a token"),
    ("bos_token_id", -1, "bos_token_id: wanted a token"),
])
def test_damaged_gguf_tokenizer_is_told_in_words(key, value, words):
    good = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b"], "merges": ["a b"], "eos_token_id": 1}
    load_tokenizer("gguf", {f"tokenizer.ggml.{k}": v for k, v in good.items()})
    with pytest.raises(ValueError, match=f"tokenizer.ggml.{words}"):
        load_tokenizer("gguf", {f"tokenizer.ggml.{k}": v for k, v in {**good, key: value}.items()})


def test_ends_that_are_no_control_tokens_in_the_file_are_so_here():
    """BR-14: the end of a turn, marked as an ordinary token, is not what somebody types."""
    tokens, merges = ["<", "e", ">", "<e", "<e>"], ["< e", "<e >"]
    meta = {"model": "gpt2", "pre": "default", "tokens": tokens, "merges": merges, "eot_token_id": 4}
    spec = {"model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False}]}}
    read = [load_tokenizer("json", spec, {"eos_token_id": [4]}),
            load_tokenizer("gguf", {f"tokenizer.ggml.{k}": v for k, v in meta.items()})]
    for ours in read:
        assert ours.encode("<e>", special=True) == [4] and ours.ends == {4} and ours.decode([0, 4, 1]) == "<e"
    assert read[0].encode("<e>") == [3, 2] and 4 not in read[1].encode("<e>")


def test_a_token_number_beyond_the_vocabulary_is_none():
    """What some files write where they have none: the largest number of 32 bits."""
    meta = {"model": "gpt2", "tokens": ["a"], "merges": [], "bos_token_id": 2**32 - 1, "add_bos_token": True}
    ours = load_tokenizer("gguf", {f"tokenizer.ggml.{k}": v for k, v in meta.items()})
    assert (ours.bos, ours.add_bos, ours.prompt("a")) == (None, False, [0])


# ---- texts that are hard on a tokenizer ---------------------------------------------------------------------------

LONG = ["a" * 100_000, " " * 100_000 + "x", "ab" * 20_000, "\n" * 50_000, "é" * 20_000, "1" * 50_000, "<" * 50_000,
        "'" * 50_000, "😀" * 10_000, "a\u0301" * 20_000, " \n" * 20_000 + "x", "<|im_end|>" * 5_000]


@pytest.mark.parametrize("kind", ["smollm", "llama-bpe", "qwen2", "gpt-4o", "sentences"])
def test_long_runs_take_no_square_time(kind):
    ours = load_tokenizer("json", trained(kind).to_str())
    for text in LONG:
        short, long = (lines_run(lambda n=n: ours.encode(text[:n], special=True)) for n in (1000, 4000))
        assert long < 6 * max(short, 100), f"{text[:2]!r}: four times the text, sixteen times the work?"
        ids = ours.encode(text, special=True)
        assert len(ids) > 10 and (kind == "qwen2" or ours.decode(ids, special=True) == text)


@pytest.mark.parametrize("kind", KINDS)
def test_every_character_has_ids(kind):
    """BR-15: byte fallback or the unknown token; no error, no id that is none."""
    ours = load_tokenizer("json", trained(kind).to_str())
    for code in range(0, 0x110000, 499):
        assert all(0 <= i < ours.n_vocab for i in ours.encode(f"a{chr(code)}b")), hex(code)


def test_without_bytes_what_is_unknown_is_the_unknown_token():
    spec = json.loads(trained("sentences").to_str())
    spec["model"]["byte_fallback"] = False
    ours, theirs = load_tokenizer("json", spec), native.Tokenizer.from_str(json.dumps(spec))
    for text in ["\U00020000", "a\U00020000\U00020001b", "ok \U00020000."]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False).ids and ids.count(ours.added["<unk>"]) == 1


@pytest.mark.parametrize("kind", cases.TOKENIZERS)
@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
def test_any_text_comes_back(kind, text):
    """BR-13: decode(encode(t)) == t, whatever t begins and ends with."""
    ours = load_tokenizer("json", cases.TOKENIZERS[kind]())
    for special in (False, True):
        assert ours.decode(ours.encode(text, special), special=True) == text
    assert ours.decode(ours.encode(text, first=False), start=False) == text


# ---- streaming (BR-16) --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", KINDS)
def test_joined_pieces_equal_the_whole(kind):
    ours, rng = load_tokenizer("json", trained(kind).to_str()), random.Random(8)
    for start in (True, False):
        for _ in range(300):
            ids = [rng.randrange(ours.n_vocab) for _ in range(rng.randrange(1, 20))]
            stream = ours.stream(start)
            pieces = [stream.push(i) for i in ids]
            assert "".join(pieces) + stream.flush() == ours.decode(ids, start=start)


def test_emoji_of_four_byte_tokens_come_whole_and_one_by_one():
    tokens, scores = scored_pieces()
    data = llama2c([token.replace("▁", " ").encode() for token in tokens], scores)
    ours = load_tokenizer("llama2c", data)
    ids = [3 + b for b in "🚀🎉".encode()]
    stream = ours.stream()
    assert [stream.push(i) for i in ids] == ["", "", "", "🚀", "", "", "", "🎉"] and stream.flush() == ""
    stream = ours.stream()
    assert [stream.push(i) for i in ids[:7]] == ["", "", "", "🚀", "", "", ""] and stream.flush() == "\ufffd"
    assert [ours.token_text(i) for i in (ids[0], 1, 0)] == ["<0xF0>", "<s>", "<unk>"]


def test_a_text_that_goes_on_keeps_its_space():
    """SentencePiece puts a space before a text: the first piece of an answer loses it, that of a continued text does not."""
    tokens, scores = scored_pieces()
    ours = load_tokenizer("llama2c", llama2c([token.replace("▁", " ").encode() for token in tokens], scores))
    ids = ours.encode("ab")
    assert (ours.decode(ids), ours.decode(ids, start=False)) == ("ab", " ab")
    assert ours.decode(ours.encode("ab", first=False), start=False) == "ab"


# ---- the real one -------------------------------------------------------------------------------------------------

MODEL = Path(__file__).resolve().parents[2] / "models" / "smollm2-135m-instruct" / "model.gguf"


@pytest.mark.skipif(not MODEL.is_file(), reason="smollm2-135m-instruct is missing; python3 serve.py --setup fetches it")
async def test_smollm2_from_its_file_equals_transformers():
    """The tokenizer and chat template inside the model's own file, against numbers in tests/golden/text."""
    meta = (await read_header(FileSource(MODEL))).metadata
    ours = load_tokenizer("gguf", meta)
    assert (ours.n_vocab, ours.bos, ours.add_bos, ours.ends) == (49152, 1, False, {0, 2})
    golden = json.loads((Path(cases.__file__).with_name("golden.json")).read_text())["smollm2"]
    for text, ids in golden["texts"]:
        assert ours.encode(text, special=True) == ids, repr(text)
        assert ours.decode(ids, special=True) == text or "\x03" in text
    chat = ChatTemplate(meta["tokenizer.chat_template"], ours)
    for one in golden["chats"]:
        assert [chat.render(one["messages"]), chat.encode(one["messages"])] == one["prompt"]
        if not isinstance(one["go_on"], str):
            assert [chat.render(one["messages"], go_on=True), chat.encode(one["messages"], go_on=True)] == one["go_on"]
