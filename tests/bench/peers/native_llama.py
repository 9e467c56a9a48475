"""llama.cpp itself, through its Python binding: native_llama.py MODEL PROMPT_FILE THREADS TOKENS RUNS -> one JSON object.

Runs in an environment of its own (requirements-native.txt). Greedy; each run begins with an empty KV cache; one run warms up.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import llama_cpp


def main(model: str, prompt_file: str, threads: int, tokens: int, runs: int) -> None:
    start = time.perf_counter()
    llama = llama_cpp.Llama(model, n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)
    load_ms = (time.perf_counter() - start) * 1000
    prompt = llama.tokenize(Path(prompt_file).read_bytes(), add_bos=True, special=False)
    prefill, decode, ids = [], [], []
    for run in range(runs + 1):
        llama.reset()
        start = time.perf_counter()
        llama.eval(prompt)
        ids = [llama.sample(temp=0, top_k=1, repeat_penalty=1.0)]
        first = time.perf_counter()
        while len(ids) < tokens:
            llama.eval([ids[-1]])
            ids.append(llama.sample(temp=0, top_k=1, repeat_penalty=1.0))
        last = time.perf_counter()
        if run:
            prefill.append(len(prompt) / (first - start))
            decode.append((tokens - 1) / (last - first))
    print(json.dumps({"version": llama_cpp.__version__, "load_ms": [load_ms], "prompt_tokens": len(prompt),
                      "prefill_tok_s": prefill, "decode_tok_s": decode, "token_ids": ids,
                      "text": llama.detokenize(ids).decode(errors="replace")}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(word) for word in sys.argv[3:]))
