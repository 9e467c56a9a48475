"""Languages of the multilingual miniature in transformers: which one it hears, and what it writes in each, and into English.

    python make_languages.py MODELS        writes languages.json beside this file

Made with the versions that make.py names. Tokens are the most probable ones, without timestamps, N_TOKENS of them; what steers
the decoder is suppressed as openai-whisper does it (generation_config.json of a miniature lists signs only).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import clips
import torch
from make import load_transformers
from transformers import GenerationConfig, WhisperFeatureExtractor

HERE = Path(__file__).resolve().parent
NAME, SECONDS, N_TOKENS = "test-whisper-multilingual", 2.9, 20


@torch.no_grad()
def main(models: Path) -> None:
    folder = models / NAME
    hf = load_transformers(folder)
    listed = json.loads((folder / "generation_config.json").read_text())
    added = {token["content"]: token["id"] for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]}
    tasks = {task: added[f"<|{task}|>"] for task in ("transcribe", "translate")}
    start, end = listed["decoder_start_token_id"], listed["no_timestamps_token_id"]
    steering = [start, *tasks.values(), *range(max(tasks.values()) + 1, hf.config.vocab_size)]  # timestamps, too
    never = sorted({*listed["suppress_tokens"], *steering})
    extract = WhisperFeatureExtractor(feature_size=hf.config.num_mel_bins, chunk_length=hf.config.max_source_positions // 50)
    mel = extract(clips.chirp(SECONDS), sampling_rate=16000, return_tensors="pt").input_features
    logits = hf(mel, decoder_input_ids=torch.tensor([[start]])).logits[0, -1]
    ids = list(listed["lang_to_id"].values())
    probabilities = dict(zip((name.strip("<|>") for name in listed["lang_to_id"]), logits[ids].double().softmax(0).tolist()))
    hf.generation_config = GenerationConfig(**listed)
    assert int(hf.detect_language(mel)[0]) == ids[int(logits[ids].argmax())]
    written = {}
    for language in probabilities:
        for task in tasks:
            prompt = [start, listed["lang_to_id"][f"<|{language}|>"], tasks[task], end]
            tokens: list[int] = []
            while len(tokens) < N_TOKENS and listed["eos_token_id"] not in tokens:
                x = hf(mel, decoder_input_ids=torch.tensor([prompt + tokens])).logits[0, -1]
                x[never if tokens else never + listed["begin_suppress_tokens"]] = -torch.inf
                tokens.append(int(x.argmax()))
            written[f"{language} {task}"] = tokens
    facts = {"seconds": SECONDS, "probabilities": probabilities, "written": written}
    (HERE / "languages.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
