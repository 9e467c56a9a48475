"""Messages of a chat -> token ids, by the template (Jinja) that a model's file has, in jinja2's sandbox.

What people write never becomes a control token, whatever the template does with it. Before a template sees a message, each
sign that occurs in the name of a control token is replaced by a character that occurs nowhere. Only the template's own text
then has such names; the text is cut there, and between the cuts the signs are put back. Ordinary text on both sides of a
literal of the template is tokenised together, so the ids are those that transformers gives.

To a template, a message looks as it was written: `Hidden` compares, searches and splits with the same replacement.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from candlewick.text.tokenizer import Tokenizer, well_formed

ROLES = ("system", "user", "assistant", "tool")
"""Who can speak. Templates write roles into names of control tokens, so no other word may be one."""

PLAIN = """{% for message in messages %}{{ message.role | capitalize }}: {{ message.content | trim }}
{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""
"""For files without a template: who speaks, a colon and the words, a line for each message."""
PLAIN_STOPS = ("\nUser:",)
"""Where to stop a model that was asked by PLAIN: it has no token for the end of a turn, and would go on for both sides."""


class ChatTemplate:
    """
    source: the template's text; or a list of {"name", "template"}, of which the one called default is taken; or None: PLAIN.
    """

    def __init__(self, source: Any, tokenizer: Tokenizer) -> None:
        if isinstance(source, list):
            named = {one.get("name"): one.get("template") for one in source if isinstance(one, Mapping)}
            source = named.get("default", next(iter(named.values()), None))
        if source is not None and not isinstance(source, str):
            raise ValueError(f"chat template: wanted text, got {repr(source)[:60]}")
        self.is_plain = source is None
        self.stops = PLAIN_STOPS if self.is_plain else ()
        self.source = PLAIN if source is None else source
        self._tokenizer = tokenizer
        self._signs = _signs(tokenizer.special)

    def encode(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True,
               go_on: bool = False) -> list[int]:
        """Messages {role, content} -> ids. add_generation_prompt: what makes the model answer comes last. go_on: the last
        message is unfinished, and the ids end behind its content. Raises ValueError for messages that are none, and what
        the template says of them."""
        text, restore = self._rendered(messages, add_generation_prompt and not go_on, go_on)
        ids = self._tokenizer.encode_marked(text, restore)
        if self._tokenizer.add_bos and self._tokenizer.bos is not None and ids[:1] != [self._tokenizer.bos]:
            ids.insert(0, self._tokenizer.bos)
        return ids

    def prepare(self) -> None:
        """Do now what would else be done at the first `encode`: tables are made, the template is compiled (a tenth of a second
        in a page, which can pass while weights come in). What is wrong with a template is told at `encode`."""
        with contextlib.suppress(ValueError):
            self._tokenizer.encode("a")
            _ = self._template

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True, go_on: bool = False) -> str:
        """The text of a chat, to look at."""
        text, restore = self._rendered(messages, add_generation_prompt and not go_on, go_on)
        return restore(text)

    def _rendered(self, messages: Sequence[Mapping[str, str]], prompt: bool, go_on: bool) -> tuple[str, Callable[[str], str]]:
        checked = [_checked(i, message) for i, message in enumerate(messages)]
        if not checked:
            raise ValueError("chat: wanted at least one message, got none")
        taken = set().union(self.source, *self._tokenizer.special, *(content for _, content in checked))
        free = (chr(code) for code in _unused_codes() if chr(code) not in taken)
        mark, *substitutes = itertools.islice(free, 1 + len(self._signs))
        hide = str.maketrans(dict(zip(self._signs, substitutes)))
        show = str.maketrans(dict(zip(substitutes, self._signs)))
        if go_on:
            checked[-1] = (checked[-1][0], checked[-1][1] + mark + " ")
        try:
            text = self._template.render(
                messages=[{"role": role, "content": Hidden(content, hide)} for role, content in checked],
                add_generation_prompt=prompt, tools=None, documents=None, **self._names)
        except Exception as e:  # a template is a program from a file: it may fail in any way
            raise ValueError(f"chat template: {str(e).translate(show) or type(e).__name__}") from None
        if go_on:
            at = text.rfind(mark)
            if at < 0:
                raise ValueError("chat template: it leaves out the last message, so that it cannot be gone on with")
            kept = text.startswith(mark + " ", at)  # else the template trims, and would have trimmed before the mark too
            text = text[:at] if kept else text[:at].rstrip()
        return text, lambda part: part.translate(show)

    @cached_property
    def _names(self) -> dict[str, str]:
        """bos_token and eos_token, where the file has them."""
        ids = {"bos_token": self._tokenizer.bos, "eos_token": self._tokenizer.eos}
        return {name: self._tokenizer.piece(i) for name, i in ids.items() if i is not None}

    @cached_property
    def _template(self) -> Any:
        """The template, compiled as transformers does."""
        import jinja2  # late: a page that does not chat need not load it
        from jinja2.ext import Extension, LoopControlExtension
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(Extension):
            """{% generation %} marks what a model is trained on: here it means nothing."""

            tags = {"generation"}

            def parse(self, parser: Any) -> Any:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                return jinja2.nodes.Scope(body, lineno=line)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                    extensions=[Generation, LoopControlExtension])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            return environment.from_string(self.source)
        except (jinja2.TemplateError, RecursionError) as e:
            raise ValueError(f"chat template: it is no Jinja template that can be read here ({e})") from None


class Hidden(str):
    """What somebody wrote, with the signs of control tokens replaced, that answers questions as if they were not."""

    _table: dict[int, str]

    def __new__(cls, text: str, table: dict[int, str]) -> Hidden:
        """text: as written; table: sign -> its replacement."""
        return cls._made(well_formed(text).translate(table), table)

    @classmethod
    def _made(cls, hidden: str, table: dict[int, str]) -> Hidden:
        made = str.__new__(cls, hidden)
        made._table = table
        return made

    def _like(self, value: Any) -> Any:
        """A question's text with the same replacement."""
        if isinstance(value, str) and not isinstance(value, Hidden):
            return value.translate(self._table)
        return tuple(map(self._like, value)) if isinstance(value, tuple) else value

    def __str__(self) -> str:
        return self

    def __contains__(self, part: Any) -> bool:
        return super().__contains__(self._like(part))

    def __eq__(self, other: object) -> bool:
        return super().__eq__(self._like(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __getitem__(self, index: Any) -> Hidden:
        return self._made(super().__getitem__(index), self._table)

    def replace(self, old: str, new: str, count: Any = -1) -> Hidden:
        """What the template puts in is its own."""
        return self._made(super().replace(self._like(old), new, count), self._table)


def _answering(name: str) -> Callable[..., Any]:
    """A method of str whose arguments are hidden first, and whose results are Hidden again."""
    plain = getattr(str, name)

    def again(self: Hidden, value: Any) -> Any:
        if isinstance(value, str):
            return self._made(value, self._table)
        return type(value)(again(self, one) for one in value) if isinstance(value, (list, tuple)) else value

    def method(self: Hidden, *args: Any, **options: Any) -> Any:
        options = {key: self._like(value) for key, value in options.items()}
        return again(self, plain(self, *map(self._like, args), **options))

    return method


for _name in ("split", "rsplit", "partition", "rpartition", "splitlines", "strip", "lstrip", "rstrip", "removeprefix",
              "removesuffix", "startswith", "endswith", "find", "rfind", "index", "rindex", "count", "lower", "upper"):
    setattr(Hidden, _name, _answering(_name))


def _checked(i: int, message: Any) -> tuple[str, str]:
    role = message.get("role") if isinstance(message, Mapping) else None
    content = message.get("content") if isinstance(message, Mapping) else None
    if role not in ROLES:
        raise ValueError(f"chat: message {i}: wanted a role of {', '.join(ROLES)}, got {repr(role)[:60]}")
    if not isinstance(content, str):
        raise ValueError(f"chat: message {i}: wanted text as its content, got {repr(content)[:60]}")
    return role, content


def _signs(names: Mapping[str, int]) -> list[str]:
    """What must be hidden so that no name can be written: all its signs, or the first letter of a name that has none."""
    signs: set[str] = set()
    for name in filter(None, names):
        found = {char for char in name if not char.isalnum() and not char.isspace()}
        signs |= found or {name[0], name[0].lower(), name[0].upper()}
    return sorted(sign for sign in signs if len(sign) == 1)


def _unused_codes() -> itertools.chain[int]:
    """Code points that no text should have: noncharacters, then private ones."""
    return itertools.chain(range(0xFDD0, 0xFDF0), (p << 16 | 0xFFFE for p in range(17)), range(0xF0000, 0xFFFFE))


def _raise(message: str) -> None:
    raise ValueError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
             sort_keys: bool = False) -> str:
    """As transformers has it: without Jinja's escapes for HTML. What somebody wrote is escaped as it was written."""
    tables: list[dict[int, str]] = []

    def shown(part: Any) -> Any:
        if isinstance(part, Hidden):
            tables.append(part._table)
            return part.translate({ord(hidden): sign for sign, hidden in part._table.items()})
        if isinstance(part, Mapping):
            return {shown(key): shown(one) for key, one in part.items()}
        return [shown(one) for one in part] if isinstance(part, (list, tuple)) else part

    text = json.dumps(shown(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return Hidden(text, tables[0]) if tables else text
