"""Sound from files of any kind, in CPython: WAV by our own reader, the rest (FLAC, MP3, Ogg, AIFF) by libsndfile. Read as a
whole, or by the piece, which is how a recording of hours is heard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from candlewick.audio import AudioError, looks_like, read_wav, to_mono
from candlewick.recording import Sound, WavSound, cut_short
from candlewick.weights.source import FileSource

READABLE = (b"fLaC", b"OggS", b"FORM", b"ID3")  # what libsndfile knows, by its first bytes (MP3 may have none)
BLOCK_FRAMES = 4096


class FileSound:
    """A file that libsndfile reads, by the piece. What is damaged ends the sound there: `note` says so."""

    def __init__(self, file: Any) -> None:
        self._file, self.rate, self.frames = file, int(file.samplerate), int(file.frames)
        self.note: str | None = None

    async def read(self, first: int, n: int) -> np.ndarray:
        wanted = max(min(n, self.frames - first), 0)
        parts = [np.zeros(0, np.float32)]
        if wanted and self._file.tell() != first:
            self._file.seek(first)
        while (left := wanted - sum(map(len, parts))) and len(part := self._block(min(left, BLOCK_FRAMES))):
            parts.append(part)
        if left:
            self.note = cut_short((first + wanted - left) / self.rate, self.frames / self.rate)
            self.frames = first + wanted - left
        return np.concatenate(parts)

    def _block(self, n: int) -> np.ndarray:
        """The next n samples; none where the file is damaged: small blocks, because libsndfile gives nothing of such a one."""
        import soundfile

        try:
            return to_mono(self._file.read(n, dtype="float32", always_2d=True))
        except soundfile.LibsndfileError:
            return np.zeros(0, np.float32)


async def open_audio_file(path: str | Path) -> Sound:
    """-> the sound of a file, to be read by the piece. Raises as read_audio_file does."""
    path = Path(path)
    if _is_wav(path):
        try:
            return await WavSound.open(FileSource(path))
        except AudioError as e:
            raise AudioError(f"{path.name}: {e}") from e
    return FileSound(_opened(path))


def read_audio_file(path: str | Path) -> tuple[np.ndarray, int]:
    """-> samples float32 (n, channels), rate in Hz. Raises AudioError in words, FileNotFoundError as it is."""
    path = Path(path)
    if _is_wav(path):
        try:
            return read_wav(path.read_bytes())
        except AudioError as e:
            raise AudioError(f"{path.name}: {e}") from e
    import soundfile

    with _opened(path) as file:
        try:
            return file.read(dtype="float32", always_2d=True), file.samplerate
        except soundfile.LibsndfileError as e:
            raise _unreadable(path) from e


def _head(path: Path) -> bytes:
    if path.is_fifo() or (path.is_char_device() and path.name != "null"):
        raise AudioError(f"{path}: a pipe or a device, where nothing can be read twice; save the sound to a file first")
    with path.open("rb") as file:
        return file.read(12)


def _is_wav(path: Path) -> bool:
    head = _head(path)
    return head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE"


def _opened(path: Path) -> Any:
    try:
        import soundfile
    except ImportError as e:
        raise AudioError(f"{path.name}: only WAV files are read without the Python package soundfile; pip install "
                         "soundfile, or convert the file to WAV") from e
    try:
        return soundfile.SoundFile(path)
    except soundfile.LibsndfileError as e:
        raise _unreadable(path) from e


def _unreadable(path: Path) -> AudioError:
    head = _head(path)
    kind = looks_like(head)
    if head.startswith(READABLE):
        return AudioError(f"{path.name}: it looks like {kind}, but cannot be read: it is cut short or damaged. Fetch or "
                          "record it again, or save what is left with ffmpeg -i IN OUT.wav")
    kind = "it is empty" if not head else f"it looks like {kind}"
    return AudioError(f"{path.name}: no sound file that can be read here ({kind}); readable are WAV, FLAC, MP3, Ogg "
                      "and AIFF. Convert others first, for example with ffmpeg -i IN OUT.wav")
