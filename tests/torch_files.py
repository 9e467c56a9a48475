"""PyTorch files without PyTorch: a .pt written instruction by instruction, a MobileSAM taken apart as its makers keep it."""

from __future__ import annotations

import io
import zipfile

import numpy as np

from candlewick.weights.convert import mobilesam
from candlewick.weights.load import Checkpoint


def zipped(pickled: bytes, files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("m/data.pkl", pickled)
        for key, data in files.items():
            archive.writestr(f"m/data/{key}", data)
    return out.getvalue()


def text(word: str) -> bytes:
    return b"X" + len(word.encode()).to_bytes(4, "little") + word.encode()


def whole(n: int) -> bytes:
    return b"J" + n.to_bytes(4, "little", signed=True)


def numbers(values) -> bytes:
    return b"(" + b"".join(map(whole, values)) + b"t"


def rebuilt(key: str, count: int, shape, strides, offset: int = 0) -> bytes:
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + whole(count) + b"tQ"
    rest = numbers(shape) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + whole(offset) + rest + b"tR"


def pt(tensors: dict[str, np.ndarray]) -> bytes:
    """A .pt file with these float32 tensors. Views of one array share its storage, in the strides that they have."""
    items, files = b"", {}
    for name, a in tensors.items():
        base = a
        while isinstance(base.base, np.ndarray):
            base = base.base
        key = str(id(base))
        files[key] = base.tobytes("A")
        offset = (a.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // 4
        items += text(name) + rebuilt(key, base.size, a.shape, [s // 4 for s in a.strides], offset)
    return zipped(b"\x80\x02ccollections\nOrderedDict\n)R(" + items + b"u.", files)


async def taken_apart(ours: Checkpoint, seed: int = 3) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A MobileSAM of ours -> its state dict as PyTorch keeps it (batch norms, tables of biases), and our tensors for that.

    Tables of biases are new random ones: ours are spread out. One matrix lies transposed, and two tensors share a storage.
    """
    tensors = {name: await ours.read(info) for name, info in (await ours.tensors()).items()}
    state: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(seed)
    for name, array in tensors.items():
        stem = name.removesuffix(".c.weight")
        if name.endswith(".attn.ab"):
            n = round(array.shape[1] ** 0.5)
            table = rng.standard_normal((len(array), n * n)).astype(np.float32)
            state[name.removesuffix("ab") + "attention_biases"] = table
            tensors[name] = table[:, mobilesam.offset_index(n)]
        elif stem != name:
            var, mean, gain = rng.random(len(array)) + 0.5, rng.standard_normal(len(array)), rng.random(len(array)) + 0.5
            scale = gain / np.sqrt(var + 1e-5)
            bias = tensors[f"{stem}.c.bias"] + mean * scale
            parts = {"c.weight": array / scale.reshape(-1, 1, 1, 1), "bn.weight": gain, "bn.bias": bias,
                     "bn.running_mean": mean, "bn.running_var": var}
            state |= {f"{stem}.{part}": np.asarray(value, np.float32) for part, value in parts.items()}
        elif not name.endswith(".c.bias"):
            state[name] = array
    matrix, vectors = "mask_decoder.transformer.layers.0.mlp.lin1.weight", [
        f"mask_decoder.transformer.layers.0.norm1.{part}" for part in ("weight", "bias")]
    state[matrix] = np.array(state[matrix].T, np.float32, order="C").T
    both = np.concatenate([state[name] for name in vectors])
    state |= {vectors[0]: both[: both.size // 2], vectors[1]: both[both.size // 2 :]}
    state["image_encoder.norm_head.weight"] = np.ones(32, np.float32)  # the classifier that comes with TinyViT
    return state, tensors
