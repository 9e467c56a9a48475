"""Writes what the real checkpoint should say: PYTHONPATH=py:. python -m tests.golden.llama.smollm2 (some minutes)

Reference: transformers 4.57 with the weights of the GGUF file, dequantised, in float32 (torch 2.13, CPU). Each text is read
once; of every position the 64 best logits and the log of the sum of all exponentials are kept, and of every fourth position a
sample over the whole vocabulary -> smollm2.npz. Token ids come from llama.cpp, which also reads the same tokens in its own
arithmetic: its distance from the reference -> smollm2.json (llama-cpp-python 0.3.36, 2 threads).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.golden.llama import measure
from tests.golden.llama.texts import TEXTS

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[2] / "models" / "smollm2-135m-instruct"
BEST = 64
SAMPLE = slice(None, None, 4), slice(None, None, 997)  # positions, tokens
GREEDY = 48  # tokens of the greedy answer that are kept


def main() -> None:
    import llama_cpp
    import torch
    import transformers

    native = llama_cpp.Llama(str(FOLDER / "model.gguf"), n_ctx=1024, n_threads=2, logits_all=True, verbose=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file="model.gguf", dtype=torch.float32).eval()
    arrays, facts = {}, {}
    for name, text in TEXTS.items():
        ids = native.tokenize(text.encode(), add_bos=False, special=True)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].numpy()
        best = np.argsort(-logits, -1, "stable")[:, :BEST]
        arrays[f"{name}.tokens"] = np.array(ids, np.int32)
        arrays[f"{name}.ids"] = best.astype(np.uint16)
        arrays[f"{name}.best"] = np.take_along_axis(logits, best, -1)
        arrays[f"{name}.log_sum"] = measure.log_sum_exp(logits).astype(np.float32)
        arrays[f"{name}.sample"] = logits[SAMPLE]

        native.reset()
        native.eval(ids)
        theirs = native.scores[: len(ids)].copy()
        kl = measure.divergence(best, arrays[f"{name}.best"], arrays[f"{name}.log_sum"], theirs)
        p, q = (x.astype(np.float64) - measure.log_sum_exp(x)[:, None] for x in (logits, theirs))
        facts[name] = {"tokens": len(ids), "native_kl": float(kl.mean()),
                       "native_top1": float(measure.agreement(best, theirs).mean()),
                       "native_kl_all_tokens": float((np.exp(p) * (p - q)).sum(-1).mean()),
                       "native_max_error": float(np.abs(theirs - logits).max())}
        print(name, facts[name], flush=True)
    chat = native.tokenize(TEXTS["chat"].encode(), add_bos=False, special=True)
    with torch.no_grad():
        answer = model.generate(torch.tensor([chat]), max_new_tokens=GREEDY, do_sample=False)[0, len(chat) :].tolist()
    np.savez_compressed(HERE / "smollm2.npz", **arrays)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "llama-cpp-python": llama_cpp.__version__}
    (HERE / "smollm2.json").write_text(json.dumps({"versions": versions, "texts": facts, "greedy": answer}, indent=1) + "\n")


if __name__ == "__main__":
    main()
