"""The ONNX reader on files made here byte by byte, on damaged ones, and what MobileSAM's converter makes of graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from candlewick.dtypes import FROM_NUMPY
from candlewick.models.sam.model import Sam
from candlewick.models.sam.programs import UNUSED
from candlewick.weights.convert import mobilesam
from candlewick.weights.load import Checkpoint
from candlewick.weights.onnx import Graph, Node, read_graph
from candlewick.weights.pth import StateDict
from candlewick.weights.safetensors import TensorInfo
from candlewick.weights.source import MemorySource, WeightsError


def varint(n: int) -> bytes:
    out = b""
    n &= 2**64 - 1
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(name: str, array: np.ndarray, kind: int = 1) -> bytes:
    dims = b"".join(field(1, d) for d in array.shape)
    return dims + field(2, kind) + field(8, name.encode()) + field(9, array.tobytes())


def node(op: str, name: str, inputs: list[str], outputs: list[str], constant: bytes | None = None) -> bytes:
    data = b"".join(field(1, i.encode()) for i in inputs) + b"".join(field(2, o.encode()) for o in outputs)
    data += field(3, name.encode()) + field(4, op.encode())
    return data + (field(5, field(1, b"value") + field(20, 4) + field(5, constant)) if constant is not None else b"")


def model(*parts: bytes) -> bytes:
    return field(1, 8) + field(2, b"pytorch") + field(7, b"".join(parts)) + field(8, field(2, 17))


A = np.arange(6, dtype=np.float32).reshape(2, 3)
WHOLE = model(
    field(1, node("Constant", "/c", [], ["k"], tensor("", np.array([3], np.int64), 7))),
    field(1, node("MatMul", "/fc/MatMul", ["x", "w"], ["y"])),
    field(5, tensor("w", A)),
)  # fmt: skip


def test_nodes_and_tensors():
    graph = read_graph(WHOLE, "m.onnx")
    assert graph.nodes[1] == Node("/fc/MatMul", "MatMul", ("x", "w"), ("y",))
    assert np.array_equal(graph.tensors["w"], A) and graph.tensors["k"].tolist() == [3]


def test_numbers_that_are_listed_instead_of_raw():
    floats = field(1, 2) + field(2, 1) + field(8, b"f") + field(4, np.array([1.5, -2], "<f4").tobytes())
    packed = field(1, varint(1) + varint(2)) + field(2, 7) + field(8, b"i") + field(7, varint(-5) + varint(7))
    halves = field(1, 2) + field(2, 10) + field(8, b"h") + field(5, 0x3C00) + field(5, 0xC000)
    brain = field(1, 1) + field(2, 16) + field(8, b"b") + field(9, b"\x80\x3f")
    graph = read_graph(model(*(field(5, t) for t in (floats, packed, halves, brain))), "m")
    assert graph.tensors["f"].tolist() == [1.5, -2]
    assert graph.tensors["i"].tolist() == [[-5, 7]]
    assert graph.tensors["h"].tolist() == [1, -2]
    assert graph.tensors["b"].tolist() == [1]


@pytest.mark.parametrize(("data", "words"), [
    (b"", "one graph"), (b"GGUF" + bytes(60), "GGUF"), (WHOLE[:-30], "cut short"), (b"\xff" * 40, "not an ONNX"),
    (model(field(5, tensor("w", A, 99))), "data type 99"), (model(field(5, tensor("w", A)[:-1] + b"")), "cut short|needs"),
    (model(field(5, field(1, 7) + tensor("w", A))), "needs 168 bytes"),
    (model(field(5, tensor("w", A) + field(14, 1))), "another file"), (model(field(5, 3)), "damaged"),
    (model(field(5, tensor("w", A)), field(5, tensor("w", A))), "stands twice"),
    (model(field(5, field(1, 2**40) + field(1, 2**40) + field(2, 1) + field(9, b""))), "needs"),
    (model(field(5, field(1, -3) + field(2, 1))), "shape"),
])  # fmt: skip
def test_damaged_files_are_refused_in_words(data, words):
    with pytest.raises(WeightsError, match=words):
        read_graph(data, "m.onnx")


@given(st.binary(max_size=60), st.integers(0, len(WHOLE)))
def test_no_bytes_do_more_than_raise(noise, at):
    for data in (noise, WHOLE[:at] + noise, WHOLE[:at] + noise + WHOLE[at:]):
        try:
            read_graph(data, "m")
        except WeightsError:
            pass


# ---- names --------------------------------------------------------------------------------------------------------


def test_anonymous_parameters_get_the_names_of_their_places():
    rng = np.random.default_rng(0)
    w = {f"onnx::{i}": rng.standard_normal(shape).astype(np.float32) for i, shape in
         enumerate([(4, 3, 3, 3), (4,), (2, 6), (5, 1, 1), (5, 1, 1), (1, 8, 1, 1), (1, 5, 8)])}
    bias = rng.standard_normal((2, 9, 9)).astype(np.float32)
    encoder = Graph((
        Node("/patch_embed/seq/seq.0/c/Conv", "Conv", ("x", "onnx::0", "onnx::1"), ("a",)),
        Node("/layers.1/blocks.0/attn/qkv/MatMul", "MatMul", ("a", "onnx::2"), ("b",)),
        Node("/layers.1/blocks.0/attn/Add", "Add", ("b", "/layers.1/blocks.0/attn/Constant_5_output_0"), ("c",)),
        Node("/neck/neck.1/Mul", "Mul", ("onnx::3", "c"), ("d",)), Node("/neck/neck.1/Add_1", "Add", ("d", "onnx::4"), ("e",)),
    ), {k: w[k] for k in ("onnx::0", "onnx::1", "onnx::2", "onnx::3", "onnx::4")}
        | {"/layers.1/blocks.0/attn/Constant_5_output_0": bias})  # fmt: skip
    decoder = Graph((Node("/Mul_9", "Mul", ("x", "onnx::5"), ("y",)), Node("/Expand_1", "Expand", ("onnx::6", "s"), ("z",))),
                    {k: w[k] for k in ("onnx::5", "onnx::6")})
    tensors = mobilesam.from_onnx(encoder, decoder)
    expected = {
        "image_encoder.patch_embed.seq.0.c.weight": w["onnx::0"], "image_encoder.patch_embed.seq.0.c.bias": w["onnx::1"],
        "image_encoder.layers.1.blocks.0.attn.qkv.weight": w["onnx::2"].T, "image_encoder.layers.1.blocks.0.attn.ab": bias,
        "image_encoder.neck.1.weight": w["onnx::3"].ravel(), "image_encoder.neck.1.bias": w["onnx::4"].ravel(),
        "prompt_encoder.no_mask_embed.weight": w["onnx::5"].reshape(1, 8),
        "mask_decoder.iou_token.weight": w["onnx::6"][0, :1], "mask_decoder.mask_tokens.weight": w["onnx::6"][0, 1:],
    }  # fmt: skip
    assert tensors.keys() == expected.keys()
    assert all(np.array_equal(tensors[name], expected[name]) for name in expected)


def test_a_parameter_in_an_unknown_place_is_refused():
    graph = Graph((Node("/odd/Sub", "Sub", ("x", "onnx::1"), ("y",)),), {"onnx::1": np.ones((2, 2), np.float32)})
    with pytest.raises(WeightsError, match="no known place"):
        mobilesam.from_onnx(graph, graph)


async def ours(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A state dict with these arrays, under our names."""
    sources = {name: MemorySource(np.ascontiguousarray(array).tobytes(), name) for name, array in state.items()}
    infos = {name: TensorInfo(name, FROM_NUMPY[array.dtype], array.shape, name, 0, array.nbytes)
             for name, array in state.items()}
    found = mobilesam.from_state_dict(StateDict(infos, sources))
    checkpoint = Checkpoint(found.sources, "ours", found.tensors)
    return {name: await checkpoint.read(info) for name, info in found.tensors.items()}


async def test_batch_norms_fold_into_convolutions():
    rng = np.random.default_rng(1)
    w = rng.standard_normal((4, 3, 1, 1))
    bn = {"weight": rng.random(4) + 0.5, "bias": rng.standard_normal(4), "running_mean": rng.standard_normal(4),
          "running_var": rng.random(4) + 0.1}
    state = {"a.c.weight": w, **{f"a.bn.{k}": v for k, v in bn.items()}, "a.bn.num_batches_tracked": np.array(3)}
    folded = await ours(state)
    assert folded.keys() == {"a.c.weight", "a.c.bias"}
    x = rng.standard_normal(3)
    plain = (w[:, :, 0, 0] @ x - bn["running_mean"]) / np.sqrt(bn["running_var"] + 1e-5) * bn["weight"] + bn["bias"]
    assert np.allclose(folded["a.c.weight"][:, :, 0, 0] @ x + folded["a.c.bias"], plain, atol=1e-5)
    del state["a.bn.bias"]
    with pytest.raises(WeightsError, match="a.bn.bias is missing"):
        await ours(state)


async def test_position_biases_are_spread_over_pairs():
    index = mobilesam.offset_index(3)
    assert index.shape == (9, 9) and index.max() == 8
    assert index[0, 0] == index[4, 4] == 0 and index[0, 1] == index[1, 0] == index[7, 8] and index[0, 1] != index[0, 3]
    spread = (await ours({"attn.attention_biases": np.arange(18.0).reshape(2, 9)}))["attn.ab"]
    assert np.array_equal(spread[1], 9 + index)


def test_config_follows_from_the_tensors():
    from candlewick.models.sam.model import Dims

    tensors = {n: np.zeros(s, np.float32) for n, s in mobilesam_shapes().items()}
    config = mobilesam.config_of(tensors, image_size=128)
    assert {n: p.shape for n, p in Sam(Dims.from_config(config)).parameters().items()} == mobilesam_shapes()
    with pytest.raises(WeightsError, match="neither"):
        mobilesam.config_of({})
    assert UNUSED[0].startswith("image_encoder")


def mobilesam_shapes() -> dict[str, tuple[int, ...]]:
    """Of a small one with eight heads, as the published ones have."""
    from candlewick.models.sam.model import Dims

    config = {
        "model_type": "sam", "image_size": 128, "pixel_mean": [1, 2, 3], "pixel_std": [1, 1, 1],
        "vision_config": {"encoder": "tiny_vit", "embed_dims": [8, 16, 24, 32], "depths": [1, 2, 1, 1], "num_heads": [2, 3, 4],
                          "window_sizes": [7, 5, 3], "mlp_ratio": 2.0, "expand_ratio": 3.0},
        "prompt_encoder_config": {"hidden_size": 32, "mask_input_channels": 8},
        "mask_decoder_config": {"num_hidden_layers": 2, "num_attention_heads": 8, "mlp_dim": 48, "num_multimask_outputs": 3,
                                "iou_head_depth": 3, "iou_head_hidden_dim": 24},
    }  # fmt: skip
    return {name: p.shape for name, p in Sam(Dims.from_config(config)).parameters().items()}
