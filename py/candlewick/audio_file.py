"""Sound from files of any kind, in CPython: WAV by our own reader, the rest (FLAC, MP3, Ogg, AIFF) by libsndfile."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from candlewick.audio import AudioError, looks_like, read_wav

READABLE = (b"fLaC", b"OggS", b"FORM", b"ID3")  # what libsndfile knows, by its first bytes (MP3 may have none)


def read_audio_file(path: str | Path) -> tuple[np.ndarray, int]:
    """-> samples float32 (n, channels), rate in Hz. Raises AudioError in words, FileNotFoundError as it is."""
    path = Path(path)
    with path.open("rb") as file:
        head = file.read(12)
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        try:
            return read_wav(path.read_bytes())
        except AudioError as e:
            raise AudioError(f"{path.name}: {e}") from e
    try:
        import soundfile
    except ImportError as e:
        raise AudioError(f"{path.name}: only WAV files are read without the Python package soundfile; pip install "
                         "soundfile, or convert the file to WAV") from e
    try:
        return soundfile.read(path, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as e:
        kind = looks_like(head)
        if head.startswith(READABLE):
            raise AudioError(f"{path.name}: it begins with {kind}, but cannot be read: it is cut short or damaged. Fetch or "
                             "record it again, or save what is left with ffmpeg -i IN OUT.wav") from e
        kind = "it is empty" if not head else f"it begins with {kind}"
        raise AudioError(f"{path.name}: no sound file that can be read here ({kind}); readable are WAV, FLAC, MP3, Ogg "
                         "and AIFF. Convert others first, for example with ffmpeg -i IN OUT.wav") from e
