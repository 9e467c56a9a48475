"""Writes native.json: how far numbers are from themselves after packing by native ggml, per type and kind of numbers.

    python tests/golden/quant/make.py libggml-base.so > tests/golden/quant/native.json

The library of native.json is that of the npm package @node-llama-cpp/linux-x64 3.22.1 (bins/linux-x64/).
"""

from __future__ import annotations

import ctypes
import json
import sys

import numpy as np

TYPES = {"q4_k": (12, 256, 144), "q6_k": (14, 256, 210)}  # number of the type, numbers and bytes of a block


def samples() -> dict[str, np.ndarray]:
    """Kinds of numbers, each (64, 512) float32, the same every time."""
    rng = np.random.Generator(np.random.PCG64(4))
    normal = rng.standard_normal((64, 512))
    return {
        "normal": normal.astype(np.float32),
        "weights": (rng.laplace(size=(64, 512)) * 0.02).astype(np.float32),
        "positive": rng.random((64, 512)).astype(np.float32),
        "sparse": (normal * (rng.random((64, 512)) < 0.1)).astype(np.float32),
        "outliers": (normal * np.where(rng.random((64, 512)) < 0.01, 50, 1)).astype(np.float32),
    }


def main(path: str) -> None:
    library = ctypes.CDLL(path)
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    errors: dict[str, dict[str, float]] = {}
    for kind, x in samples().items():
        for name, (number, block, size) in TYPES.items():
            packed = np.zeros(x.size // block * size, np.uint8)
            library.ggml_quantize_chunk(number, x.ctypes.data_as(ctypes.c_void_p), packed.ctypes.data_as(ctypes.c_void_p),
                                        ctypes.c_int64(0), ctypes.c_int64(len(x)), ctypes.c_int64(x.shape[1]), None)
            back = np.zeros_like(x)
            getattr(library, "dequantize_row_" + name.replace("k", "K"))(
                packed.ctypes.data_as(ctypes.c_void_p), back.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(x.size))
            errors.setdefault(kind, {})[name] = float(np.sqrt(((back - x) ** 2).mean()))
    print(json.dumps(errors, indent=2))


if __name__ == "__main__":
    main(sys.argv[1])
