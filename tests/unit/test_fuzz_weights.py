"""Damaged weights files of every kind: a reader gives tensors that can be read, or an error that names the file; it never
takes much more memory than the file has bytes, and never anything but a WeightsError comes out."""

import asyncio
import functools
import io
import json
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from candlewick.weights import ggml, gguf_writer, llama2c, safetensors
from candlewick.weights.convert.llama import read_llama
from candlewick.weights.convert.whisper import read_whisper
from candlewick.weights.gguf import read_header as read_gguf
from candlewick.weights.load import Checkpoint, decode
from candlewick.weights.npz import read_npz
from candlewick.weights.pth import read_state_dict
from candlewick.weights.source import MemorySource, WeightsError
from tests.unit.test_pth import pt

NUMBERS = [0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53 + 1, 2**62, 2**63, 2**64 - 1]
SLACK = 600_000  # bytes: what the readers' own objects, errors and zip directories take, however small a file is
RNG = np.random.default_rng(0)
ARRAYS = {"a.weight": RNG.standard_normal((4, 32)).astype(np.float32), "b": RNG.standard_normal(9).astype(np.float32),
          "c": RNG.standard_normal((2, 3, 5)).astype(np.float32)}  # fmt: skip


@st.composite
def damaged(draw, blob, hot):
    """blob with a few faults; most of them among its first (hot > 0) or last (hot < 0) bytes, where the structure is."""
    data = bytearray(blob)
    for _ in range(draw(st.integers(1, 4))):
        n = len(data)
        if n < 2:
            break
        region = st.integers(0, min(hot, n) - 1) if hot > 0 else st.integers(max(0, n + hot), n - 1)
        at = draw(st.one_of(region, region, region, st.integers(0, n - 1)))
        kind = draw(st.sampled_from(("byte", "bit", "number", "cut", "insert", "repeat", "swap")))
        if kind == "byte":
            data[at] = draw(st.integers(0, 255))
        elif kind == "bit":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "number":
            width = draw(st.sampled_from((1, 2, 4, 8)))
            data[at : at + width] = (draw(st.sampled_from(NUMBERS)) % 256**width).to_bytes(width, "little")
        elif kind == "cut":
            del data[at : draw(st.sampled_from((at + 1, at + 8, n)))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=12))
        elif kind == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 64))]
        else:
            there = draw(st.integers(0, n - 1))
            data[at : at + 8], data[there : there + 8] = data[there : there + 8], data[at : at + 8]
    return bytes(data)


@functools.cache
def loop():
    return asyncio.new_event_loop()


def survives(read, blob, name):
    """read(source) -> (tensors, sources): they load, or a WeightsError says in which file what is wrong."""
    async def go():
        source = MemorySource(blob, name)
        tensors, sources = await read(source)
        for info in tensors:
            array = decode(info, await sources.get(info.file, source).read(info.start, info.end))
            assert array.shape == tuple(info.shape)

    tracemalloc.start()
    try:
        loop().run_until_complete(go())
    except WeightsError as error:
        assert name in str(error), error
        assert len(str(error)) < 2000
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 12 * len(blob) + SLACK, f"{peak} bytes for a file of {len(blob)}"


def fuzz(blob, hot, examples=150):
    """A property of damaged copies of a blob."""
    def wrap(test):
        return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])(
            given(damaged(blob, hot))(test))

    return wrap


def saved(write):
    """The bytes that write(path) leaves in a file."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "x")
        return (Path(folder) / "x").read_bytes()


# --- safetensors -------------------------------------------------------------------------------------------------

SAFETENSORS = saved(lambda path: safetensors.save(path, ARRAYS, {"format": "pt"}))


@fuzz(SAFETENSORS, 300)
def test_safetensors(blob):
    async def read(source):
        return (await safetensors.read_header(source))[0], {}

    survives(read, blob, "x.safetensors")


# --- GGUF --------------------------------------------------------------------------------------------------------

METADATA = {"general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 8, "llama.embedding_length": 32,
            "llama.feed_forward_length": 8, "llama.attention.head_count": 2, "llama.rope.freq_base": 1e4,
            "llama.attention.layer_norm_rms_epsilon": 1e-5, "flag": True, "words": ["a", "bc", "", "word"] * 4,
            "numbers": np.arange(6, dtype="<i4"), "lists": [[1, 2], [3]], "scores": np.arange(3, dtype="<f4")}  # fmt: skip
TENSORS = {"token_embd.weight": ARRAYS["a.weight"], "output_norm.weight": ARRAYS["b"]}
GGUF = {version: saved(lambda path: gguf_writer.save(path, METADATA, TENSORS, "q5_1", version)) for version in (1, 3)}


async def gguf_tensors(source):
    return (await read_gguf(source)).tensors, {}


@fuzz(GGUF[3], 700, 250)
def test_gguf(blob):
    survives(gguf_tensors, blob, "x.gguf")


@fuzz(GGUF[1], 600)
def test_gguf_version_1(blob):
    survives(gguf_tensors, blob, "x.gguf")


@fuzz(GGUF[3], 700)
def test_a_llama_in_gguf(blob):
    """What the header says is used for the configuration, too."""
    async def read(source):
        checkpoint = Checkpoint({"x.gguf": source})
        files = await read_llama(checkpoint)
        return files.tensors.values(), checkpoint.files

    survives(read, blob, "x.gguf")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([1, 2, 3]))
def test_any_bytes_behind_the_magic_of_gguf(tail, version):
    survives(gguf_tensors, b"GGUF" + struct.pack("<I", version) + tail, "x.gguf")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=12), st.sampled_from(["", "\0" * 8, "x" * 255, "y" * 256, "z" * 300])), max_size=60),
       st.integers(-9, 9))
def test_lists_of_texts(words, off):
    """Any texts come back as they were; a length that is wrong by a little is an error or other texts, never a crash."""
    blob = gguf_writer.header({"words": words, "after": 5}, [])
    header = loop().run_until_complete(read_gguf(MemorySource(blob, "x.gguf")))
    assert header.metadata == {"words": words, "after": 5}
    if words:
        at = blob.index(b"words") + 5 + 4 + 4 + 8
        length = (int.from_bytes(blob[at : at + 8], "little") + off) % 2**64
        survives(gguf_tensors, blob[:at] + length.to_bytes(8, "little") + blob[at + 8 :], "x.gguf")


# --- llama2.c ----------------------------------------------------------------------------------------------------


def llama2c_file(version):
    sizes = llama2c.Sizes(8, 8, 1, 2, 1, 5, 4, True, version, 4 if version == 2 else 0)
    blob = llama2c.header(sizes)
    for name, shape in llama2c.order(sizes):
        blob += llama2c.encode(sizes, llama2c.rotary(sizes) if name == "rotary" else RNG.standard_normal(shape))
    return blob


async def llama2c_tensors(source):
    found = await llama2c.read_header(source)
    return found.tensors.values(), found.sources


@fuzz(llama2c_file(0), 28)
def test_llama2c_version_0(blob):
    survives(llama2c_tensors, blob, "x.bin")


@fuzz(llama2c_file(2), 48)
def test_llama2c_version_2(blob):
    survives(llama2c_tensors, blob, "x.bin")


@settings(max_examples=200, deadline=None)
@given(st.tuples(*[st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-70, 70))] * 7), st.sampled_from([0, 1, 2]),
       st.integers(-70, 70))
def test_any_sizes_of_llama2c(numbers, version, group):
    """Whatever the header says, only a file of just that size is read, and nothing is made before that is known."""
    head = struct.pack("<7i", *numbers)
    if version:
        head = (struct.pack("<Ii", llama2c.MAGIC, version) + head + b"\1" + struct.pack("<i", group)).ljust(256, b"\0")
    survives(llama2c_tensors, head + bytes(200), "x.bin")


# --- whisper.cpp -------------------------------------------------------------------------------------------------


def ggml_file(dtype):
    """Sizes, filters, ten words and four tensors."""
    sizes = dict(zip(ggml.SIZES, (10 + 2 + 1 + 6 + 5, 4, 32, 2, 1, 8, 32, 2, 1, 4)))
    tensors = {f"{half}.blocks.0.{part}": RNG.standard_normal(shape).astype(np.float32)
               for half in ("encoder", "decoder") for part, shape in (("mlp.0.weight", (4, 32)), ("attn_ln.bias", (32,)))}
    words = [bytes([97 + i]) * (i + 1) for i in range(10)]
    return b"".join(ggml.pieces(sizes, np.zeros((4, ggml.N_BINS), np.float32), words, tensors, dtype))


async def ggml_tensors(source):
    return (await ggml.read_header(source)).tensors.values(), {}


async def a_whisper(source):
    checkpoint = Checkpoint({source.name: source}, source.name)
    files = await read_whisper(checkpoint)
    return files.tensors.values(), checkpoint.files


GGML = {dtype: ggml_file(dtype) for dtype in ("f16", "q5_1")}
BEHIND_FILTERS = len(GGML["q5_1"]) - 60 - 4 * 4 * ggml.N_BINS


@fuzz(GGML["f16"], 60)
def test_ggml_sizes(blob):
    survives(ggml_tensors, blob, "x.bin")


@fuzz(GGML["q5_1"], -BEHIND_FILTERS)
def test_ggml_words_and_tensors(blob):
    survives(ggml_tensors, blob, "x.bin")


@fuzz(GGML["f16"], -BEHIND_FILTERS)
def test_a_whisper_in_ggml(blob):
    """The words and sizes are used for the configuration, too."""
    survives(a_whisper, blob, "x.bin")


# --- npz and PyTorch ---------------------------------------------------------------------------------------------


def npz_file(save, arrays):
    out = io.BytesIO()
    save(out, **arrays)
    return out.getvalue()


async def npz_tensors(source):
    found = await read_npz(source)
    return found.tensors.values(), found.sources


@fuzz(npz_file(np.savez, {**ARRAYS, "f": np.asfortranarray(ARRAYS["a.weight"])}), -600)
def test_npz(blob):
    survives(npz_tensors, blob, "x.npz")


@fuzz(npz_file(np.savez_compressed, ARRAYS), -400)
def test_npz_packed(blob):
    survives(npz_tensors, blob, "x.npz")


@settings(max_examples=200, deadline=None)
@given(damaged(b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2), }".ljust(118), 60))
def test_headers_of_npy(header):
    """The zip is sound, the header of the array in it is not."""
    member = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(32)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.npy", member)
    survives(npz_tensors, out.getvalue(), "x.npz")


@fuzz(pt(ARRAYS), -600)
def test_pytorch(blob):
    async def read(source):
        found = await read_state_dict(source)
        return found.tensors.values(), found.sources

    survives(read, blob, "x.pt")


# --- the small files beside the weights --------------------------------------------------------------------------

CONFIG = json.dumps({"model_type": "llama", "hidden_size": 8, "rope_parameters": {"rope_theta": 7, "rope_type": "linear"},
                     "eos_token_id": [1, 2]}).encode()


@fuzz(CONFIG, len(CONFIG))
def test_config_of_a_folder(blob):
    async def read(source):
        files = {"config.json": source, "tokenizer.json": MemorySource(b"{}", "x"),
                 "model.safetensors": MemorySource(SAFETENSORS)}
        files["generation_config.json"] = MemorySource(b'{"eos_token_id": 3}')
        checkpoint = Checkpoint(files, "x")
        return (await read_llama(checkpoint)).tensors.values(), checkpoint.files

    survives(read, blob, "x")


@pytest.mark.parametrize("blob, name, read", [(GGUF[3], "x.gguf", gguf_tensors), (llama2c_file(0), "x.bin", llama2c_tensors),
                                              (GGML["q5_1"], "x.bin", ggml_tensors), (GGML["f16"], "x.bin", a_whisper)])
def test_the_harness_sees_sound_files(blob, name, read):
    """The files that are damaged above are sound as they are."""
    source = MemorySource(blob, name)
    assert list(loop().run_until_complete(read(source))[0])
