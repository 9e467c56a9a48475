"""What transformers makes of the conversations in cases.py: golden.json.

    PYTHONPATH=py python tests/golden/text/make.py MODEL.gguf

MODEL.gguf is SmolLM2-135M-Instruct. Made with Python 3.11, transformers 4.57.6, tokenizers 0.22.2, gguf 0.19.0.

For each tokenizer and template: text and ids of `apply_chat_template` with and without the generation prompt, and with the
last message to be gone on with; or what it says when the template refuses. For SmolLM2: ids of texts by the native package,
set up as its authors' tokenizer.json is (digits one by one, then GPT-2's words), and of chats by the template in the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cases
import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "This is \U0001f600.", " leading", "trailing  ", "1234567 and 3.14", "don't we'll I'VE", "naïve café ﬁ", "\n\n\ttab",
    "日本語のテキスト、中文。", "العربية १२३", "def f(x):\n    return x ** 2  # ok\n",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "Привет, мир!",
    "a" * 70, " " * 37 + "x", "\u00a0\u3000\u2003|", "\ufeffbom", "<|im_end|>", "http://example.org/?q=1&r=2", "",
]


def asked(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> dict[str, object]:
    found: dict[str, object] = {}
    kinds = {"prompt": {"add_generation_prompt": True}, "closed": {}, "go_on": {"continue_final_message": True}}
    for name, options in kinds.items():
        try:
            found[name] = [tokenizer.apply_chat_template(messages, tokenize=False, **options),
                           tokenizer.apply_chat_template(messages, tokenize=True, **options)]
        except Exception as e:
            found[name] = f"{type(e).__name__}: {e}"
    return found


def smollm2(path: str) -> dict[str, object]:
    fields = {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(line.split(" ")) for line in fields["tokenizer.ggml.merges"]]
    native = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    native.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    native.decoder = decoders.ByteLevel()
    native.add_special_tokens([AddedToken(token, normalized=False) for token, kind in zip(tokens, types) if kind == 3])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=native, chat_template=fields["tokenizer.chat_template"])
    chats = [{"messages": chat, **asked(tokenizer, chat)} for chat in cases.CONVERSATIONS]
    return {"texts": [[text, native.encode(text, add_special_tokens=False).ids] for text in TEXTS], "chats": chats}


def main() -> None:
    golden: dict[str, object] = {"smollm2": smollm2(sys.argv[1])}
    for name, spec in cases.TOKENIZERS.items():
        native = Tokenizer.from_str(json.dumps(spec()))
        golden[name] = {}
        for template, source in cases.TEMPLATES.items():
            tokenizer = PreTrainedTokenizerFast(tokenizer_object=native, chat_template=source, **cases.SETTINGS)
            golden[name][template] = [asked(tokenizer, chat) for chat in cases.CONVERSATIONS + cases.THINKING]
    path = Path(__file__).with_name("golden.json")
    path.write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
