"""Whisper's vocabulary: text, then special tokens, then one timestamp token for every 20 ms of a window.

Whether a checkpoint is English-only or multilingual is read from its tokenizer: the English one has 50,256 text tokens,
the multilingual one 50,257, and every id after them is shifted by that one. A vocabulary of another size (a miniature)
says it in generation_config.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from candlewick.models.whisper.model import Dims
from candlewick.text.tokenizer import Stream
from candlewick.text.tokenizer import Tokenizer as TextTokenizer
from candlewick.weights.source import CONFIG_JSON, Origin

SECONDS_PER_TIMESTAMP = 0.02
ENGLISH_EOT = 50256


class Tokenizer:
    """Text and the ids that steer the decoder."""

    def __init__(self, bpe: TextTokenizer, multilingual: bool | None = None, file: str = "tokenizer.json") -> None:
        """multilingual: what generation_config.json says, if anything; file: what it was read from. Raises ValueError for
        another model's tokenizer."""
        self.bpe, self.file = bpe, file
        self.eot = self._id("<|endoftext|>")
        self.sot = self._id("<|startoftranscript|>")
        self.translate = self._id("<|translate|>")
        self.transcribe = self._id("<|transcribe|>")
        self.start_of_lm = self._id("<|startoflm|>")
        self.start_of_prev = self._id("<|startofprev|>")
        self.no_speech = self._id("<|nospeech|>", "<|nocaptions|>")
        self.no_timestamps = self._id("<|notimestamps|>")
        self.timestamp_begin = self.no_timestamps + 1
        names = {i: m[1] for name, i in bpe.added.items() if (m := re.fullmatch(r"<\|([a-z]{2,4})\|>", name))}
        # language tokens stand right after the start of transcript, one behind the other
        self.languages: dict[str, int] = {}
        for token in range(self.sot + 1, self.timestamp_begin):
            if token not in names:
                break
            self.languages[names[token]] = token
        kind = {ENGLISH_EOT: False, ENGLISH_EOT + 1: True}.get(self.eot, multilingual)
        self.multilingual = len(self.languages) > 1 if kind is None else kind
        if multilingual not in (None, self.multilingual):
            raise ValueError(f"{file} ends its text at {self.eot}, which makes it "
                             f"{'multilingual' if self.multilingual else 'English-only'}, but generation_config.json says "
                             f"is_multilingual {multilingual}; take all files from one checkpoint")

    def _id(self, *names: str) -> int:
        for name in names:
            if (token := self.bpe.added.get(name, self.bpe.vocab.get(name))) is not None:
                return token
        raise ValueError(f"{self.file}: a Whisper tokenizer has the token {' or '.join(names)}, this one does not; "
                         "the file belongs to another model")

    # ---- text ---------------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Text -> ids; markers in it are text."""
        return self.bpe.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Ids -> text, without timestamps and other special tokens."""
        return self.bpe.decode(t for t in tokens if t < self.eot)

    def stream(self) -> Stream:
        """A decoder for ids that come one by one."""
        return self.bpe.stream()

    # ---- steering -----------------------------------------------------------------------------------------------

    def prompt(self, language: str, task: str, timestamps: bool) -> list[int]:
        """What a transcript begins with. An English-only model has no language and no task to be told."""
        tokens = [self.sot]
        if self.multilingual:
            tokens += [self.languages[language], self.translate if task == "translate" else self.transcribe]
        return tokens if timestamps else [*tokens, self.no_timestamps]

    def suppressed(self, generation_config: Mapping[str, Any]) -> list[int]:
        """Tokens that never belong in a transcript: those that the checkpoint lists (signs that are not speech), and
        the steering tokens, whether listed or not."""
        steering = [self.sot, self.translate, self.transcribe, self.start_of_lm, self.start_of_prev, self.no_speech,
                    self.no_timestamps]
        return sorted({*(generation_config.get("suppress_tokens") or ()), *steering})

    def blank(self, generation_config: Mapping[str, Any]) -> list[int]:
        """Tokens that may not come first: the end, and a lone space."""
        listed = generation_config.get("begin_suppress_tokens")
        return sorted(listed or {self.eot, *self.encode(" ")})


def check_kind(tokenizer: Tokenizer, dims: Dims, vocabulary_rows: int | None, origin: Origin = CONFIG_JSON) -> None:
    """Raises ValueError, with both sizes and file names, if config, weights and tokenizer are not of one kind.

    vocabulary_rows: rows of the token embedding in the weights, None if they have none.
    """
    # a timestamp for each encoder position, and one for the end
    wanted = tokenizer.timestamp_begin + dims.n_audio_ctx + 1
    kind = "multilingual" if tokenizer.multilingual else "English-only"
    sizes = {f"{origin.file} ({origin.key('vocab_size')})": dims.n_vocab,
             "the weights (model.decoder.embed_tokens.weight)": vocabulary_rows}
    wrong = {where: size for where, size in sizes.items() if size not in (wanted, None)}
    if wrong:
        raise ValueError(f"vocabulary: {tokenizer.file} is {kind} and has {wanted} tokens with its timestamps, but "
                         + " and ".join(f"{where} has {size}" for where, size in wrong.items())
                         + ". English-only and multilingual files are mixed; take all files from one checkpoint")
