"""Sound in: WAV files read exactly, channels mixed, any rate brought to 16 kHz.

Only NumPy is needed. Other file types are decoded by the browser in the page, and by `audio_file.py` in CPython.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from candlewick import nn, ops
from candlewick.executors import Executor
from candlewick.tensor import Tensor
from candlewick.trace import Spec, trace
from candlewick.weights import source
from candlewick.weights.load import Weights

TARGET_RATE = 16000


class AudioError(ValueError):
    """A recording that cannot be read; the message says what was wanted, what came and what to do."""


# ---- WAV ----------------------------------------------------------------------------------------------------------

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
# the sub-format of an extensible header is a GUID: a format code, then these 14 bytes
_GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")
STREAMED = 0x7FFF0000  # data chunks from this length on: whoever wrote it did not know how long it would be
MOST_CHUNKS = 10_000  # that are looked at for the two that are wanted: zeros look like chunks without end
_READABLE = "PCM of 8, 16, 24 or 32 bits and float of 32 or 64 bits"


@dataclass(frozen=True)
class WavFormat:
    """The `fmt ` chunk: code of the samples (PCM or FLOAT), channels, samples a second, bits a sample."""

    code: int
    channels: int
    rate: int
    bits: int

    @property
    def frame(self) -> int:
        """Bytes of one sample of every channel."""
        return self.channels * self.bits // 8


@dataclass(frozen=True)
class WavData:
    """Where the samples of a file stand: bytes start to end. lacking: bytes that its head tells of and the file has not."""

    start: int
    end: int
    lacking: int
    format: WavFormat


def read_wav(file: bytes) -> tuple[np.ndarray, int]:
    """Bytes of a RIFF/WAVE file (or RF64) -> samples float32 (n, channels), rate in Hz.

    Integer samples are divided by their full scale, so they lie in -1 .. 1; 8-bit ones are unsigned in the file. A data
    chunk longer than the file (a recording that was cut off, or streamed), or of 0 bytes and not followed by a chunk (it was
    never ended), is read to the file's end. Raises AudioError.
    """
    view = memoryview(file)
    search = find_samples(len(view))
    try:
        start, end = next(search)
        while True:
            start, end = search.send(bytes(view[start:end]))
    except StopIteration as found:
        data = found.value
    return read_frames(view[data.start : data.end], data.format), data.format.rate


def find_samples(size: int) -> Generator[tuple[int, int], bytes, WavData]:
    """Where the samples of a WAV file of `size` bytes stand: asks for ranges (start, end), is sent their bytes, and returns
    the place of the data chunk and what its samples are. So files are searched alike in memory, on disk and in a browser."""
    format: WavFormat | None = None
    data: tuple[int, int] | None = None
    lacking = 0
    size64: int | None = None
    head = yield 0, min(12, size)
    if head[:4] not in (b"RIFF", b"RF64") or head[8:12] != b"WAVE":
        raise AudioError(f"not a WAV file: it looks like {looks_like(head)}")
    at = 12
    for _ in range(MOST_CHUNKS):
        if at + 8 > size or (format and data):
            break
        head = yield at, at + 8
        name, length = head[:4], int.from_bytes(head[4:], "little")
        begin = at + 8
        if name == b"ds64" and length >= 16 and begin + 16 <= size:
            size64 = int.from_bytes((yield begin, begin + 16)[8:], "little")
        elif name == b"fmt " and format is None:
            format = _read_format((yield begin, min(begin + length, begin + 64, size)))
        elif name == b"data" and data is None:
            if length == 0xFFFFFFFF:  # the real size is in ds64, or was never written
                length = size64 if size64 is not None else size - begin
            # a recorder that crashed left 0; behind samples that are none, another chunk would stand
            if not length and not (begin + 8 <= size and _is_chunk((yield begin, begin + 8), size - begin - 8)):
                length = size - begin
            data = begin, min(begin + length, size)
            if length < STREAMED or length == size64 < 1 << 60:  # a reserved one may hold anything
                lacking = begin + length - data[1]
        at = begin + length + length % 2  # chunks stand on even offsets
    if format is None or data is None:
        missing = "format (fmt)" if format is None else "data"
        raise AudioError(f"WAV file without a {missing} chunk: it is damaged or cut off")
    return WavData(*data, lacking, format)


def _is_chunk(head: bytes, rest: int) -> bool:
    """Whether these 8 bytes, with `rest` bytes of the file behind them, can be the head of a chunk."""
    return all(0x20 <= byte < 0x7F for byte in head[:4]) and int.from_bytes(head[4:], "little") <= rest


def _read_format(body: bytes) -> WavFormat:
    if len(body) < 16:
        raise AudioError(f"WAV file with a format chunk of {len(body)} bytes, wanted at least 16: it is damaged")
    code, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", body)
    if code == EXTENSIBLE and len(body) >= 40 and body[26:40] == _GUID_TAIL:
        code = int.from_bytes(body[24:26], "little")
    if (code, bits) not in {(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)}:
        raise AudioError(f"WAV file with samples of format code {code:#x} and {bits} bits; readable are {_READABLE}. "
                         "Convert it, for example with ffmpeg -i IN -c:a pcm_s16le OUT.wav")
    if not channels or not rate or block != channels * bits // 8:
        raise AudioError(f"WAV file that says {channels} channels, {rate} Hz, {block} bytes a frame at {bits} bits: "
                         "these do not fit each other; it is damaged")
    return WavFormat(code, channels, rate, bits)


def read_frames(raw: bytes | memoryview, format: WavFormat) -> np.ndarray:
    """Bytes of frames -> float32 (n, channels). An incomplete frame at the end is left out."""
    raw = memoryview(raw)[: len(raw) // format.frame * format.frame]
    if format.code == FLOAT:
        x = np.frombuffer(raw, "<f4" if format.bits == 32 else "<f8").astype(np.float32)
    elif format.bits == 8:
        x = (np.frombuffer(raw, np.uint8).astype(np.float32) - np.float32(128)) / np.float32(128)
    elif format.bits == 24:
        # three bytes become the upper three of an int32
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        x = wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
    else:
        x = np.frombuffer(raw, f"<i{format.bits // 8}").astype(np.float32) / np.float32(2 ** (format.bits - 1))
    return x.reshape(-1, format.channels)


def looks_like(head: bytes) -> str:
    """What a file with these first bytes looks like, in words that fit after 'looks like'."""
    if head[4:8] == b"ftyp":
        return "an MP4 or M4A file"
    kinds = {b"fLaC": "a FLAC file", b"OggS": "an Ogg file", b"ID3": "an MP3 file", b"\xff\xfb": "an MP3 file",
             b"FORM": "an AIFF file", b"\x1aE\xdf\xa3": "a WebM or Matroska file",
             b"RIFX": "a big-endian WAV file (RIFX)", b"RIFF": "RIFF, but of another kind (AVI or WebP)"}
    return next((kind for mark, kind in kinds.items() if head.startswith(mark)), source.looks_like(head))


# ---- channels and rate --------------------------------------------------------------------------------------------

def to_mono(samples: np.ndarray) -> np.ndarray:
    """samples (n, channels) or (n,) -> float32 (n,), the mean of all channels."""
    samples = np.asarray(samples)
    if samples.ndim == 1:
        return samples.astype(np.float32, copy=False)
    if samples.ndim != 2 or not samples.shape[1]:
        raise AudioError(f"samples: wanted (n, channels), got shape {list(samples.shape)}")
    return samples[:, 0].astype(np.float32) if samples.shape[1] == 1 else samples.mean(axis=1, dtype=np.float32)


ZERO_CROSSINGS = 48  # of the filter, on each side: its length in samples of the lower of the two rates
KAISER = 8.0  # shape of the window: about 80 dB between what passes and what is left of the rest
BAND = 0.97  # middle of the filter's edge, as a part of the lower rate's half: 7.76 kHz at 16 kHz
OUTPUTS = 32  # at least as many outputs in a row of the product: that is what kernels are good at
BLOCK_SECONDS = 10  # sound in one run


class PolyphaseFilter(nn.Module):
    """Band-limited interpolation (Smith 1984) as one convolution.

    `up` samples of output belong to `down` samples of input. A row of the product makes `up` outputs from the inputs
    around one stride of `down`; each output has its own weights: the same windowed sinc, seen from its own time.
    """

    def __init__(self, up: int, down: int) -> None:
        self.up, self.down = up, down
        width = max(1.0, down / up)  # the filter is as long as the lower rate makes it, in input samples
        self.reach = int(np.ceil(ZERO_CROSSINGS * width))
        times = np.arange(up) * (down / up)  # of the outputs, in input samples
        distance = np.arange(-self.reach, down + self.reach)[None, :] - times[:, None]  # (up, kernel)
        sinc = BAND / width * np.sinc(BAND / width * distance)
        window = np.i0(KAISER * np.sqrt(np.clip(1 - (distance / self.reach) ** 2, 0, None))) / np.i0(KAISER)
        weights = sinc * window * (np.abs(distance) <= self.reach)
        weights /= weights.sum(axis=1, keepdims=True)  # a constant stays what it is
        self.filter = nn.Constant(weights.astype(np.float32)[:, None, :])  # (up, 1, kernel)

    def __call__(self, samples: Tensor) -> Tensor:
        """samples (1, n_blocks * down + 2 reach, 1) -> (1, n_blocks, up)"""
        return ops.conv1d(samples, self.filter, stride=self.down)


class Resampler:
    """Any rate -> 16 kHz on an executor: the same Program on each. The Program of a rate is made at its first use."""

    def __init__(self, executor: Executor, block_seconds: float = BLOCK_SECONDS) -> None:
        """block_seconds: sound in one run; whoever waits for each block wants short ones."""
        self._executor, self._block_seconds = executor, block_seconds
        self._filters: dict[int, PolyphaseFilter] = {}

    async def resample(self, samples: np.ndarray, rate: int) -> np.ndarray:
        """samples (n,) or (n, channels) at `rate` Hz -> mono float32 at 16 kHz, ceil(n * 16000 / rate) of them."""
        audio = to_mono(samples)
        check_rate(rate)
        if rate == TARGET_RATE or not len(audio):
            return audio
        out = np.empty(n_resampled(len(audio), rate), np.float32)
        made = await self.block_samples(rate)
        for block in range(-(-len(out) // made)):
            first, n = await self.wanted(rate, block)
            part = await self.block(rate, block, audio[max(first, 0) : max(first + n, 0)])
            out[block * made : (block + 1) * made] = part[: len(out) - block * made]
        return out

    async def block_samples(self, rate: int) -> int:
        """How many samples at 16 kHz a block has."""
        filter = await self._filter(rate)
        return self._blocks(filter) * filter.up

    async def wanted(self, rate: int, block: int) -> tuple[int, int]:
        """What a block is made from: the first sample at `rate` (before 0 there is silence) and how many."""
        filter = await self._filter(rate)
        first = round(block * self._blocks(filter) * filter.up * rate / TARGET_RATE) - filter.reach
        return first, self._blocks(filter) * filter.down + 2 * filter.reach

    async def block(self, rate: int, block: int, have: np.ndarray) -> np.ndarray:
        """have: of the samples `wanted`, those from 0 to the end of the sound -> the block, silence behind the end included."""
        first, n = await self.wanted(rate, block)
        part = np.zeros(n, np.float32)
        part[max(-first, 0) : max(-first, 0) + len(have)] = have
        return (await self._executor.run(self._entry(rate), {"samples": part.reshape(1, -1, 1)}))["out"].reshape(-1)

    async def _filter(self, rate: int) -> PolyphaseFilter:
        return self._filters.get(rate) or await self._prepare(rate)

    async def _prepare(self, rate: int) -> PolyphaseFilter:
        filter = PolyphaseFilter(*ratio(rate))
        filter.constants()  # names them
        filter.filter.name = f"resample_{rate}.filter"  # weights are shared by name on an executor
        spec = Spec((1, self._blocks(filter) * filter.down + 2 * filter.reach, 1))
        program = trace(filter, {"samples": spec}, name=self._entry(rate))
        await self._executor.load({program.name: program}, Weights(None, {}, {filter.filter.name: filter.filter.array}))
        self._filters[rate] = filter
        return filter

    def _entry(self, rate: int) -> str:
        short = "" if self._block_seconds == BLOCK_SECONDS else f"_{round(1000 * self._block_seconds)}ms"
        return f"resample_{rate}{short}"

    def _blocks(self, filter: PolyphaseFilter) -> int:
        """Rows of the product in a run."""
        return max(1, round(self._block_seconds * TARGET_RATE) // filter.up)


class StreamResampler:
    """A sound that is still coming -> 16 kHz: the same samples as if it were resampled at once, as soon as they are known."""

    def __init__(self, resampler: Resampler, rate: int) -> None:
        """resampler: of short blocks."""
        check_rate(rate)
        self._resampler, self.rate = resampler, rate
        self._have, self._base = np.empty(0, np.float32), 0  # sound that is still wanted, and where it begins
        self._block = 0  # the next one

    async def push(self, samples: np.ndarray, last: bool = False) -> np.ndarray:
        """samples float32 (n,) at `rate`, behind those before; last: none will follow -> (m,) at 16 kHz."""
        if self.rate == TARGET_RATE:
            return samples
        self._have = np.concatenate([self._have, samples])
        n_known = self._base + len(self._have)
        made = await self._resampler.block_samples(self.rate)
        parts = [np.empty(0, np.float32)]
        while True:
            first, n = await self._resampler.wanted(self.rate, self._block)
            start = self._block * made
            if start >= n_resampled(n_known, self.rate) if last else first + n > n_known:
                break
            have = self._have[max(first, 0) - self._base : first + n - self._base]
            part = await self._resampler.block(self.rate, self._block, have)
            parts.append(part[: n_resampled(n_known, self.rate) - start] if last else part)
            self._block += 1
        gone = max(first, 0) - self._base
        self._have, self._base = self._have[gone:].copy(), self._base + min(gone, len(self._have))
        return np.concatenate(parts)


async def resample(samples: np.ndarray, rate: int, executor: Executor) -> np.ndarray:
    """`Resampler(executor).resample(samples, rate)`, for one recording."""
    return await Resampler(executor).resample(samples, rate)


def ratio(rate: int) -> tuple[int, int]:
    """rate -> (up, down) with up / down = 16000 / rate, at least OUTPUTS up.

    Exact for every rate in use (multiples of 11025 and of 8 among them). Another one is met nearly, at worst to 1 in
    4000; as each run of some seconds starts at its true time, nothing adds up. So no filter takes more than some megabytes.
    """
    exact = Fraction(TARGET_RATE, rate)
    small = exact.limit_denominator(2000) if exact < 1 else 1 / (1 / exact).limit_denominator(2000)
    more = -(-OUTPUTS // small.numerator)
    return small.numerator * more, small.denominator * more


def check_rate(rate: int) -> None:
    """Raise AudioError for a rate that no sound has."""
    if not 1000 <= rate <= 768000:
        raise AudioError(f"sample rate {rate} Hz: wanted 1000 to 768000; the file's header is probably damaged")


def n_resampled(n: int, rate: int) -> int:
    """How many samples n at `rate` are at 16 kHz."""
    return -(-n * TARGET_RATE // rate)
