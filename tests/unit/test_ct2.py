"""CTranslate2 Whisper files: a small one made here is converted and compared; broken ones are refused by name."""

import asyncio
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candlewick.weights.convert import ctranslate2 as ct2
from candlewick.weights.load import Checkpoint
from candlewick.weights.source import MemorySource, WeightsError

D, FFN, VOCAB, MELS = 4, 8, 51864, 2
TYPE_ID = {
    np.dtype(np.float32): 0,
    np.dtype(np.int8): 1,
    np.dtype(np.int16): 2,
    np.dtype(np.int32): 3,
    np.dtype(np.float16): 4,
}
TOKENIZER = {
    "added_tokens": [
        {"id": 50256, "content": "<|endoftext|>"},
        {"id": 50257, "content": "<|startoftranscript|>"},
        {"id": 50258, "content": "<|en|>"},
        {"id": 50357, "content": "<|translate|>"},
        {"id": 50358, "content": "<|transcribe|>"},
        {"id": 50360, "content": "<|startofprev|>"},
        {"id": 50362, "content": "<|notimestamps|>"},
    ]
}
CONFIG = {"alignment_heads": [[1, 0]], "suppress_ids": [1, 2], "suppress_ids_begin": [220], "lang_ids": [50258]}


def text(value):
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def variables(vocab=VOCAB):
    """A Whisper of one encoder and one decoder layer, as CTranslate2 keeps it, filled with random numbers."""
    rng = np.random.default_rng(1)

    def fill(*shape):
        return rng.standard_normal(shape).astype(np.float16)

    out = {
        f"encoder/conv{i}/{part}": fill(*shape)
        for i, c in ((1, MELS), (2, D))
        for part, shape in (("weight", (D, c, 3)), ("bias", (D,)))
    }
    out |= {"encoder/position_encodings/encodings": fill(6, D), "decoder/position_encodings/encodings": fill(5, D)}
    out["decoder/embeddings/weight"] = fill(vocab, D)

    def norm(name):
        out.update({f"{name}/layer_norm/gamma": fill(D), f"{name}/layer_norm/beta": fill(D)})

    def linear(name, n_out, n_in, key_rows=None):
        bias = fill(n_out)
        if key_rows:
            bias[key_rows] = 0
        out.update({f"{name}/weight": fill(n_out, n_in), f"{name}/bias": bias})

    for side in ("encoder", "decoder"):
        norm(side)
        layer = f"{side}/layer_0"
        norm(f"{layer}/self_attention"), norm(f"{layer}/ffn")
        linear(f"{layer}/self_attention/linear_0", 3 * D, D, slice(D, 2 * D))
        linear(f"{layer}/self_attention/linear_1", D, D)
        linear(f"{layer}/ffn/linear_0", FFN, D), linear(f"{layer}/ffn/linear_1", D, FFN)
        out[f"{side}/num_heads"] = np.array(2, np.int16)
    norm("decoder/layer_0/attention")
    linear("decoder/layer_0/attention/linear_0", D, D)
    linear("decoder/layer_0/attention/linear_1", 2 * D, D, slice(0, D))
    linear("decoder/layer_0/attention/linear_2", D, D)
    out |= {"decoder/activation": np.array(3, np.int8), "decoder/pre_norm": np.array(1, np.int8)}
    out["decoder/alignment_layer"] = np.array(-1, np.int16)
    return out


def pack(
    values,
    version=6,
    spec="WhisperSpec",
    revision=3,
    aliases=(("decoder/projection/weight", "decoder/embeddings/weight"),),
):
    blob = struct.pack("<I", version) + text(spec) + struct.pack("<II", revision, len(values))
    for name, array in values.items():
        blob += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        blob += struct.pack("<BI", TYPE_ID[array.dtype], array.nbytes) + array.tobytes()
    return blob + struct.pack("<I", len(aliases)) + b"".join(text(a) + text(b) for a, b in aliases)


def convert(blob, folder, config=CONFIG, tokenizer=TOKENIZER):
    return asyncio.run(ct2.convert_whisper(MemorySource(blob, "model.bin"), config, tokenizer, folder))


def read_all(folder):
    async def go():
        checkpoint = Checkpoint.open(folder)
        return {name: await checkpoint.read(info) for name, info in (await checkpoint.tensors()).items()}

    return asyncio.run(go())


def test_every_tensor_gets_its_name_and_rows(tmp_path):
    values = variables()
    assert convert(pack(values), tmp_path) == ["config.json", "generation_config.json", "model.safetensors"]
    got = read_all(tmp_path)
    fused = values["encoder/layer_0/self_attention/linear_0/weight"]
    for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
        assert np.array_equal(got[f"model.encoder.layers.0.self_attn.{name}.weight"], fused[part * D : (part + 1) * D])
    bias = values["decoder/layer_0/attention/linear_1/bias"]
    assert np.array_equal(got["model.decoder.layers.0.encoder_attn.v_proj.bias"], bias[D:])
    assert np.array_equal(got["model.decoder.layers.0.fc2.weight"], values["decoder/layer_0/ffn/linear_1/weight"])
    assert np.array_equal(got["model.encoder.conv1.weight"], values["encoder/conv1/weight"])
    assert np.array_equal(got["model.decoder.layer_norm.bias"], values["decoder/layer_norm/beta"])
    assert not any(name.endswith("k_proj.bias") for name in got) and "proj_out.weight" not in got
    assert all(array.dtype == np.float16 for array in got.values())
    total = sum(array.size for name, array in values.items() if array.dtype == np.float16)
    assert sum(array.size for array in got.values()) == total - 3 * D  # all but the key biases


def test_config_in_hugging_face_names(tmp_path):
    convert(pack(variables()), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["d_model"], config["encoder_layers"], config["decoder_attention_heads"]) == (D, 1, 2)
    assert (config["num_mel_bins"], config["max_source_positions"], config["max_target_positions"]) == (MELS, 6, 5)
    assert (config["vocab_size"], config["encoder_ffn_dim"], config["decoder_start_token_id"]) == (VOCAB, FFN, 50257)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["suppress_tokens"] == [1, 2] and generation["no_timestamps_token_id"] == 50362
    assert generation["is_multilingual"] is False and "lang_to_id" not in generation


def test_multilingual_lists_its_languages(tmp_path):
    convert(pack(variables(51865)), tmp_path)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["is_multilingual"] is True
    assert generation["lang_to_id"] == {"<|en|>": 50258} and generation["task_to_id"]["translate"] == 50357


def test_conversion_repeats_to_the_byte(tmp_path):
    for folder in ("a", "b"):
        convert(pack(variables()), tmp_path / folder)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 5}, "version 6, got 5"),
        ({"spec": "TransformerSpec"}, "TransformerSpec"),
        ({"revision": 9}, "revision 9"),
        ({"aliases": [("x", "nowhere")]}, "nowhere"),
    ],
)
def test_other_files_are_refused(tmp_path, change, words):
    with pytest.raises(WeightsError, match=words):
        convert(pack(variables(), **change), tmp_path)
    assert not list(tmp_path.iterdir())


def test_strict_about_variables(tmp_path):
    values = variables()
    for name, edit, words in (
        ("encoder/conv1/bias", None, "missing.*encoder/conv1/bias"),
        ("decoder/extra", np.zeros(2, np.float16), "unknown.*decoder/extra"),
        ("decoder/layer_0/ffn/linear_0/weight", np.zeros((FFN, D), np.int8), "quantised.*ffn/linear_0/weight"),
        ("encoder/layer_0/self_attention/linear_0/bias", np.ones(3 * D, np.float16), "key bias that is not zero"),
        ("decoder/pre_norm", np.array(0, np.int8), "pre_norm is 0"),
        ("decoder/layer_0/attention/linear_1/bias", np.zeros(2 * D + 1, np.float16), "does not split"),
    ):
        changed = {key: value for key, value in values.items() if key != name} | ({} if edit is None else {name: edit})
        with pytest.raises(WeightsError, match=words):
            convert(pack(changed), tmp_path)


def test_config_and_tokenizer_beside_the_model_are_checked(tmp_path):
    with pytest.raises(WeightsError, match="suppress_ids"):
        convert(pack(variables()), tmp_path, config={"alignment_heads": []})
    with pytest.raises(WeightsError, match="notimestamps"):
        convert(pack(variables()), tmp_path, tokenizer={"added_tokens": TOKENIZER["added_tokens"][:-1]})


SMALL = pack(
    {"decoder/num_heads": np.array(2, np.int16), "w": np.arange(6, dtype=np.float16).reshape(2, 3)},
    aliases=[("a", "w")],
)


def test_header_fields_and_ranges():
    model = asyncio.run(ct2.read_model(MemorySource(SMALL, "model.bin")))
    info = model.variables["w"]
    assert info.shape == (2, 3) and SMALL[info.start : info.end] == np.arange(6, dtype="<f2").tobytes()
    assert model.aliases == {"a": "w"}


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=5), st.integers(0, len(SMALL)))
def test_mutated_and_truncated_files(changes, length):
    blob = bytearray(SMALL)
    for position, value in changes:
        blob[position] = value
    blob = bytes(blob[:length])
    try:
        model = asyncio.run(ct2.read_model(MemorySource(blob, "model.bin")))
        assert all(0 <= info.start <= info.end <= len(blob) for info in model.variables.values())
    except WeightsError as error:
        assert "model.bin" in str(error)
