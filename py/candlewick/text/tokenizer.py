"""Text in, token ids out, and back: what every kind of tokenizer file is read into (tokenizers.py reads them).

Encoding: text is cut at added tokens, normalised, cut into words (split.py), and each word becomes ids (bpe.py).
Decoding: each token is a few bytes, and bytes are UTF-8.

What steers a model (ends of turns, roles, tools) are control tokens. Text that somebody typed never becomes one: only a
caller who asks for `special` gets them, and chat templates (chat.py) ask for the template's own text only.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from candlewick.text.bpe import Model
from candlewick.text.normalize import Normal
from candlewick.text.patterns import members, stand_ins
from candlewick.text.split import AFTER, INSIDE, START, Step, run

_SPACES = re.compile(r"[^\S\x1c-\x1f]*")
_BRACKETS = re.compile(r"[<\[]\S*[>\]]")


def looks_like_control(text: str) -> bool:
    """Whether a token's name says that it steers something, whatever the file says: <|end|>, </s>, [INST]."""
    return bool(_BRACKETS.fullmatch(text))


class Added(NamedTuple):
    """A token that is found in text before anything else. lstrip, rstrip: white space beside it belongs to it."""

    text: str
    id: int
    special: bool = True
    normalized: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False

    @property
    def controls(self) -> bool:
        """Whether only a caller who asks for it may get it."""
        return self.special or looks_like_control(self.text)


class Tokenizer:
    """
    pieces: makes id -> what the file calls the token (a list, or a dict where ids have gaps); model: words -> ids;
    normal, steps: how text is prepared and cut; added: tokens that are found in text as they are; piece_bytes: what a piece
    stands for; control: ids that say nothing in a text; prefix: what is put before text (SentencePiece's space), which
    decoding takes away again if `strip_space`; ends: every token after which a model has nothing more to say.
    """

    def __init__(self, *, pieces: Callable[[], Sequence[str] | Mapping[int, str]], n_vocab: int, model: Model,
                 piece_bytes: Callable[[str], bytes], normal: Sequence[Normal] = (), steps: Sequence[Step] = (),
                 added: Sequence[Added] = (), control: Iterable[int] = (), prefix: str = "", strip_space: bool = False,
                 bos: int | None = None, eos: int | None = None, add_bos: bool = False, ends: Iterable[int] = ()) -> None:
        self.n_vocab, self.model, self.vocab = n_vocab, model, model.vocab
        self.bos, self.eos, self.add_bos = bos, eos, add_bos and bos is not None
        self.ends = frozenset(ends) | ({eos} if eos is not None else set())
        self.added = {token.text: token.id for token in added}
        self.special = {token.text: token.id for token in added if token.controls}
        self.control = frozenset(control) | {token.id for token in added if token.special}
        self._normal, self._steps, self._prefix, self._strip_space = tuple(normal), tuple(steps), prefix, strip_space
        self._make_pieces, self._piece_bytes = pieces, piece_bytes
        self._controls = Finder([token for token in added if token.controls])
        others = [token for token in added if not token.controls]
        late = [t._replace(text=self._normalise(prefix + t.text)) for t in others if t.normalized and (normal or prefix)]
        self._raw = Finder([token for token in others if not (token.normalized and (normal or prefix))])
        self._normalised = Finder(late)
        self._bytes: dict[int, bytes] = {}

    # ---- encoding -----------------------------------------------------------------------------------------------

    def encode(self, text: str, special: bool = False, first: bool = True) -> list[int]:
        """Text -> ids, without the token that begins a text (`prompt` adds it).

        special: markers such as <|im_end|> in it become control tokens; else they are plain text. first: the text begins
        here, so that SentencePiece's space is put before it. Characters that UTF-8 cannot hold become U+FFFD.
        """
        return self.encode_marked(text, str, first) if special else self._encode(well_formed(text), START if first else INSIDE)

    def encode_marked(self, text: str, restore: Callable[[str], str], first: bool = True) -> list[int]:
        """Text -> ids, with control tokens for its markers. restore: undoes, between the markers, what hides from this
        search the markers that somebody typed (chat.py)."""
        ids: list[int] = []
        place = START if first else INSIDE
        for part in self._controls.cut(well_formed(text)):
            ids += [part] if isinstance(part, int) else self._encode(restore(part), place)
            place = AFTER
        return ids

    def prompt(self, text: str) -> list[int]:
        """Text -> ids that a model can begin with."""
        return ([self.bos] if self.add_bos and self.bos is not None else []) + self.encode(text)

    def _encode(self, text: str, place: int) -> list[int]:
        ids: list[int] = []
        for raw in self._raw.cut(text):
            if isinstance(raw, int):
                ids.append(raw)
            elif raw:
                for part in self._normalised.cut(self._normalise(raw if place == INSIDE else self._prefix + raw)):
                    if isinstance(part, int):
                        ids.append(part)
                    else:
                        for word in run(self._steps, part, place):
                            ids += self.model.encode(word)
                    place = AFTER
            place = AFTER
        return ids

    def _normalise(self, text: str) -> str:
        for normal in self._normal:
            text = normal(text)
        return text

    # ---- decoding -----------------------------------------------------------------------------------------------

    @cached_property
    def _pieces(self) -> Sequence[str] | Mapping[int, str]:
        return self._make_pieces()

    @cached_property
    def _added_names(self) -> dict[int, str]:
        return {i: name for name, i in self.added.items()}

    def piece(self, token: int) -> str:
        """What the file calls a token; nothing for an id that the vocabulary does not have."""
        if token in self._added_names:
            return self._added_names[token]
        if isinstance(self._pieces, Mapping):
            return self._pieces.get(token, "")
        return self._pieces[token] if 0 <= token < len(self._pieces) else ""

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for. Control tokens stand for their names."""
        found = self._bytes.get(token)
        if found is None:
            piece = self.piece(token)
            plain = token in self._added_names or token in self.control
            found = self._bytes[token] = piece.encode("utf-8", "replace") if plain else self._piece_bytes(piece)
        return found

    def token_text(self, token: int) -> str:
        """A token to look at: bytes that are no character by themselves as <0xE6>."""
        return self.token_bytes(token).decode("utf-8", "candlewick.bytes")

    def decode(self, ids: Iterable[int], special: bool = False, start: bool = True) -> str:
        """Ids -> text; control tokens are left out unless `special`. start: a text begins here, so that the space that
        SentencePiece puts before it is taken away. Bytes that are no UTF-8 become U+FFFD."""
        shown = b"".join(self.token_bytes(i) for i in ids if special or i not in self.control)
        if start and self._strip_space and shown.startswith(b" "):
            shown = shown[1:]
        return shown.decode("utf-8", "replace")

    def stream(self, start: bool = True) -> Stream:
        """A decoder for ids that come one by one; what it gives, joined, is what `decode` gives."""
        return Stream(self, start and self._strip_space)


class Stream:
    """Decodes ids one by one into whole characters: bytes of an unfinished character wait for the rest."""

    def __init__(self, tokenizer: Tokenizer, strip: bool) -> None:
        self._tokenizer, self._strip = tokenizer, strip
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """-> the characters that this token completes; control tokens say nothing."""
        if token in self._tokenizer.control:
            return ""
        data = self._tokenizer.token_bytes(token)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """-> U+FFFD if a character was left unfinished, else nothing. Call once at the end."""
        return self._utf8.decode(b"", True)


class Finder:
    """Finds added tokens in text: the leftmost, of those the longest."""

    def __init__(self, tokens: Sequence[Added]) -> None:
        self._tokens = {token.text: token for token in tokens if token.text}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self._tokens, key=len, reverse=True))))

    def cut(self, text: str) -> list[str | int]:
        """Text between the tokens, and the tokens' ids."""
        if not self._tokens:
            return [text]
        parts: list[str | int] = []
        at = 0
        for match in self._pattern.finditer(text):
            token, (start, end) = self._tokens[match[0]], match.span()
            if start < at or (token.single_word and (_is_word(text[start - 1 : start]) or _is_word(text[end : end + 1]))):
                continue
            before = text[at:start]
            parts.append(before.rstrip() if token.lstrip else before)
            parts.append(token.id)
            at = _SPACES.match(text, end).end() if token.rstrip else end  # type: ignore[union-attr]
        parts.append(text[at:])
        return [part for part in parts if part != ""]


def _is_word(char: str) -> bool:
    return stand_ins(char) in members("w")


def well_formed(text: str) -> str:
    """Text that UTF-8 can hold: halves of surrogate pairs are joined, lone ones become U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _show_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(f"<0x{b:02X}>" for b in error.object[error.start : error.end]), error.end


codecs.register_error("candlewick.bytes", _show_bytes)
