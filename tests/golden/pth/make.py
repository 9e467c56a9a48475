"""Make tensors.pt and nested.pt by PyTorch itself: python tests/golden/pth/make.py      (made with torch 2.13.0)

All dense types, views that share a storage, a transposed view, an empty and a 0-d tensor, a parameter; nested.pt is a training
checkpoint with the same state dict under "model" and numbers beside it, pickle protocol 4.
"""

from collections import OrderedDict
from pathlib import Path

import torch

HERE = Path(__file__).parent


def main() -> None:
    base = torch.arange(48, dtype=torch.float32).reshape(6, 8) / 8
    state = OrderedDict(
        base=base, transposed=base.T, slice=base[1:4, 2:5], half=base[0].half(), bfloat16=base[1].bfloat16(),
        double=base[2].double(), int64=torch.arange(-2, 3), int32=torch.arange(3, dtype=torch.int32),
        int16=torch.arange(3, dtype=torch.int16), int8=torch.arange(-1, 2, dtype=torch.int8),
        uint8=torch.arange(4, dtype=torch.uint8), bool=torch.tensor([True, False]), scalar=torch.tensor(3.5),
        empty=torch.zeros(0, 3), parameter=torch.nn.Parameter(torch.ones(2)),
    )  # fmt: skip
    torch.save(state, HERE / "tensors.pt")
    training = {"model": state, "epoch": 3, "optimizer": {"lr": 0.1, "steps": [1, 70000, None, True, -5, 2**40]}}
    torch.save(training, HERE / "nested.pt", pickle_protocol=4)


if __name__ == "__main__":
    main()
