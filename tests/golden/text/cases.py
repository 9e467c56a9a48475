"""Two small tokenizers, templates that use what templates of models use, and conversations: what golden.json is about."""

from __future__ import annotations

from typing import Any

from candlewick.text.bpe import BYTE_TO_CHAR, SPACE, spell

WORDS = ("the user system assistant Hello hello you are helpful and thank s it 's 're is what a poem about sea with lines "
         "Write write answer question in think ing tion \n\n \t\t end start im INST SYS json").split(" ")
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>",
           "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<think>", "</think>", "[TOOL]")


def _merges(words: list[str], vocab: dict[str, int]) -> list[str]:
    merges: dict[str, None] = {}
    for word in words:
        for end in range(2, len(word) + 1):
            left, right = word[: end - 1], word[end - 1]
            merges[f"{left} {right}"] = None
            vocab.setdefault(word[:end], len(vocab))
    return list(merges)


def _added(vocab: dict[str, int], names: tuple[str, ...]) -> list[dict[str, Any]]:
    first = max(vocab.values()) + 1
    new = [name for name in names if name not in vocab]
    ids = {name: vocab.get(name, first + new.index(name) if name in new else 0) for name in names}
    return [{"id": ids[name], "content": name, "single_word": False, "lstrip": False, "rstrip": name == "<|end|>",
             "normalized": False, "special": name not in ("<think>", "</think>")} for name in names]


def by_bytes() -> dict[str, Any]:
    """A tokenizer.json of the byte-level kind, cut as Llama 3's."""
    vocab = {char: i for i, char in enumerate(BYTE_TO_CHAR.values())}
    merges = _merges([spell(form) for word in WORDS for form in (word, " " + word)], vocab)
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
               r"\s+(?!\S)|\s+")
    cuts = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]
    return {"version": "1.0", "added_tokens": _added(vocab, CONTROL), "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts}, "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": True}}


def by_sentence() -> dict[str, Any]:
    """A tokenizer.json of the SentencePiece kind with byte fallback, as Llama 2's."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), SPACE, *map(chr, range(0x21, 0x7F)), "é", "ü"]
    vocab = {name: i for i, name in enumerate(names)}
    words = [word for word in WORDS if word.strip()]
    merges = _merges([form for word in words for form in (word, SPACE + word)], vocab)
    steps = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
             {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return {"version": "1.0", "added_tokens": _added(vocab, ("<unk>", *CONTROL)),
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]},
            "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Sequence", "decoders": steps},
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocab,
                      "merges": merges}}


TOKENIZERS = {"bytes": by_bytes, "sentence": by_sentence}
SETTINGS = {"bos_token": "<s>", "eos_token": "</s>"}

TEMPLATES = {
    "turns": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{
 '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']
 + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "headers": """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set rest = messages %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if strftime_now is defined and strftime_now('%Y') | int < 2000 %}{{ 'old' }}{% endif %}
{{- system ~ '<|eot_id|>' }}
{%- for message in rest %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
""",
    "brackets": """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{%
 set system = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{%
 for message in rest %}{%
 if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('user and assistant must take turns') }}{%
 endif %}{% if loop.index0 == 0 and system %}{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message['content'] %}{%
 else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{
 bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{%
 endfor %}""",
    "signs": """{% for message in messages %}{{ '<|' + message['role'] + '|>' + '\n' + message['content']
 + '<|end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "thinking": """{%- macro say(role, text) %}<|im_start|>{{ role }}
{{ text }}<|im_end|>
{% endmacro %}
{%- set ns = namespace(last=-1, words=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
    {%- set ns.words = ns.words + message.content.split(' ') | length %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is not string %}{% continue %}{% endif %}
    {%- if message.role == 'assistant' and '</think>' in message.content and loop.index0 < ns.last %}
        {{- say('assistant', message.content.split('</think>')[-1].lstrip('\n')) }}
    {%- elif message.content.startswith('<think>') and message.content[-1] != '>' %}
        {{- say(message.role, message.content.replace('<think>', '(thinks) ') | upper) }}
    {%- elif message.content == '[json]' or message.role == 'tool' %}
        {{- say(message.role, {'content': message.content, 'first': message.content[:3]} | tojson) }}
    {%- else %}
        {{- say(message.role, [message.content, ns.words] | join(' / ')) }}
    {%- endif %}
    {%- if loop.index0 > 8 %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% generation %}<think>{% endgeneration %}
{%- endif %}""",
}

SAY = [
    ["Hello"],
    ["  What is it?\n", "It's the sea.  ", "Write 7 lines, 1234567 words\u2026"],
    ["don't\tstop \U0001f600\u200d\U0001f680", "日本語 é ü", "a  b\r\n\r\nc", "", "x"],
    ["the user\n\nis the system", " leading and trailing ", "end"],
]
CONVERSATIONS = [
    *([{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)] for texts in SAY),
    [{"role": "system", "content": " You are a poem. "}, {"role": "user", "content": "Write 'it'!"}],
    [{"role": "system", "content": "{{ bos_token }} {% x %}"}, {"role": "user", "content": "{# no #}{{ 7 * 7 }}"}],
    [{"role": "user", "content": "q"}, {"role": "user", "content": "again"}],
    [{"role": "user", "content": "\"[json]\" or \\ 'this'"}, {"role": "assistant", "content": "a / b"},
     {"role": "tool", "content": "{\"a\": [1, \"b\\n\"]}"}],
]
"""Ordinary text: nothing in it is a control token's name."""
THINKING = [[{"role": "user", "content": "why"}, {"role": "assistant", "content": "<think>so and so</think>\n\nbecause <b>"},
             {"role": "user", "content": "<think>me too"}, {"role": "assistant", "content": "x</think>y"}]]
"""Text that a template looks for names in: only what it makes of them is compared."""
