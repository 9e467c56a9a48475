"""WAV files, channels, and the resampler."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from candlewick import executors
from candlewick.audio import AudioError, Resampler, ratio, read_wav, to_mono
from candlewick.audio_file import open_audio_file, read_audio_file
from candlewick.weights.load import Weights

RNG = np.random.default_rng(7)


def chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def fmt(code: int, channels: int, rate: int, bits: int, extra: bytes = b"") -> bytes:
    block = channels * bits // 8
    return chunk(b"fmt ", struct.pack("<HHIIHH", code, channels, rate, rate * block, block, bits) + extra)


def extensible(code: int, channels: int, rate: int, bits: int) -> bytes:
    guid = struct.pack("<H", code) + bytes.fromhex("000000001000800000aa00389b71")
    return fmt(0xFFFE, channels, rate, bits, struct.pack("<HHI", 22, bits, 0) + guid)


def riff(*chunks: bytes) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def encoded(x: np.ndarray, code: int, bits: int) -> bytes:
    if code == 3:
        return x.astype(f"<f{bits // 8}").tobytes()
    whole = np.clip(np.round(x * 2.0 ** (bits - 1)), -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1).astype("<i8")
    if bits == 8:
        return (whole + 128).astype(np.uint8).tobytes()
    return whole[..., None].view(np.uint8)[..., : bits // 8].tobytes()


FORMATS = [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)]


@pytest.mark.parametrize("header", [fmt, extensible])
@pytest.mark.parametrize(("code", "bits"), FORMATS)
def test_every_sample_format_in_both_headers(header, code, bits):
    x = RNG.uniform(-1, 1, (500, 2))
    x[0] = -1, 0
    samples, rate = read_wav(riff(header(code, 2, 44100, bits), chunk(b"data", encoded(x, code, bits))))
    assert rate == 44100 and samples.shape == (500, 2) and samples.dtype == np.float32
    assert np.abs(samples - x).max() <= (1e-7 if code == 3 else max(2.0 ** (1 - bits), 1e-7))
    assert samples[0].tolist() == [-1, 0]


@pytest.mark.parametrize(("code", "bits"), FORMATS)
def test_reading_is_exact(code, bits):
    """Every code that float32 can hold comes back as it was written."""
    x = np.round(RNG.uniform(-1, 1, 1000) * 2.0 ** min(bits - 1, 20)) / 2.0 ** min(bits - 1, 20)
    samples, _ = read_wav(riff(fmt(code, 1, 16000, bits), chunk(b"data", encoded(x, code, bits))))
    wanted = np.minimum(x, 1 - 2.0 ** (1 - bits)) if code == 1 else x
    assert np.array_equal(samples[:, 0], wanted.astype(np.float32))


def test_chunks_are_walked():
    """BR-01: a longer format chunk, chunks of odd size before and after the data, data before format."""
    x = RNG.integers(-32768, 32767, 100).astype("<i2")
    data, format = chunk(b"data", x.tobytes()), fmt(1, 1, 16000, 16, b"\0\0")
    odd = chunk(b"LIST", b"INFOabc")
    for chunks in [(format, odd, data, odd), (odd, format, chunk(b"fact", b"1234"), data), (data, odd, format)]:
        samples, rate = read_wav(riff(*chunks))
        assert rate == 16000 and np.array_equal(samples[:, 0], x.astype(np.float32) / 32768)


def test_float_and_extensible_are_not_refused():
    """BR-02"""
    x = RNG.uniform(-1, 1, 16000)
    a, _ = read_wav(riff(fmt(3, 1, 16000, 32), chunk(b"data", encoded(x, 3, 32))))
    b, _ = read_wav(riff(extensible(1, 1, 16000, 24), chunk(b"data", encoded(x, 1, 24))))
    assert len(a) == len(b) == 16000 and np.abs(a - b).max() < 2e-7


@pytest.mark.parametrize(("code", "bits"), [(6, 8), (7, 8), (2, 4), (1, 12), (3, 16), (0x55, 0)])
def test_other_formats_are_named(code, bits):
    with pytest.raises(AudioError, match=rf"format code {code:#x} and {bits} bits.*readable are PCM"):
        read_wav(riff(fmt(code, 1, 8000, bits), chunk(b"data", b"1234")))


def test_eight_bit_is_unsigned():
    """BR-03"""
    samples, _ = read_wav(riff(fmt(1, 1, 8000, 8), chunk(b"data", bytes([128] * 50 + [0, 255]))))
    assert not samples[:50].any() and samples[50] == -1 and 0.99 < samples[51] < 1


def test_streamed_and_cut_files():
    x = RNG.integers(-100, 100, 64).astype("<i2")
    head = riff(fmt(1, 2, 16000, 16))
    for size in (0xFFFFFFFF, 10**6, 0):
        samples, _ = read_wav(head + b"data" + struct.pack("<I", size) + x.tobytes() + b"\1")
        assert np.array_equal(samples.reshape(-1), x.astype(np.float32) / 32768)  # the odd byte is no frame
    ds64 = chunk(b"ds64", struct.pack("<QQQI", 0, x.nbytes, 32, 0))
    rf64 = b"RF64\xff\xff\xff\xffWAVE" + ds64 + fmt(1, 1, 16000, 16) + b"data\xff\xff\xff\xff" + x.tobytes() + b"LIST"
    assert len(read_wav(rf64)[0]) == 64
    # 0 means what it says where a chunk follows, or nothing
    assert len(read_wav(riff(fmt(1, 1, 16000, 16), chunk(b"data", b""), chunk(b"LIST", b"abc")))[0]) == 0
    assert len(read_wav(riff(fmt(1, 1, 16000, 16), chunk(b"data", b"")))[0]) == 0


@pytest.mark.parametrize("data", [b"", b"RIFF", b"<!doctype html><html>", b"fLaC" + bytes(50), b"\0\0\0 ftypM4A ",
                                  riff(), riff(fmt(1, 1, 16000, 16)), riff(chunk(b"data", b"12")),
                                  riff(chunk(b"fmt ", b"12"), chunk(b"data", b"12")),
                                  riff(fmt(1, 0, 16000, 16), chunk(b"data", b"12"))])
def test_damage_is_told_in_words(data):
    with pytest.raises(AudioError, match=r"WAV file"):
        read_wav(data)


def test_random_bytes_never_crash():
    valid = riff(fmt(1, 2, 44100, 16, b"\0\0"), chunk(b"LIST", b"abc"), chunk(b"data", bytes(400)))
    for _ in range(3000):
        damaged = bytearray(valid[: RNG.integers(0, len(valid) + 1)])
        for at in RNG.integers(0, max(len(damaged), 1), 4)[: len(damaged)]:
            damaged[at] = RNG.integers(256)
        try:
            samples, rate = read_wav(bytes(damaged))
        except AudioError:
            continue
        assert samples.ndim == 2 and rate > 0


# ---- channels and rate --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("channels", [1, 2, 6])
def test_channels_are_averaged(channels):
    """BR-04: a tone on the last channel only survives at 1 / channels."""
    x = np.zeros((1000, channels), np.float32)
    x[:, -1] = RNG.uniform(-1, 1, 1000)
    assert np.allclose(to_mono(x), x[:, -1] / channels, atol=1e-7) and to_mono(x).dtype == np.float32


RATES = [8000, 11025, 22050, 24000, 32000, 44100, 48000, 88200, 96000, 192000]


def tone(hz: float, rate: int, n: int) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(n) / rate)


@pytest.fixture
async def resampler():
    executor = executors.create("numpy")
    yield Resampler(executor)
    await executor.close()


@pytest.mark.parametrize("rate", RATES)
async def test_what_passes_and_what_does_not(resampler, rate):
    """Tones up to 90 % of the lower half rate keep level and phase to 1e-4; what would fold is 80 dB down."""
    n, edge = rate, min(rate, 16000) / 2
    assert ratio(rate)[0] * rate == ratio(rate)[1] * 16000
    inside = slice(1000, 15000)  # away from the silence around the clip
    for hz in (50, 0.25 * edge, 0.6 * edge, 0.9 * edge):
        y = await resampler.resample(tone(hz, rate, n).astype(np.float32), rate)
        assert len(y) == 16000 and np.abs(y - tone(hz, 16000, 16000))[inside].max() < 1e-4
    for hz in (8200, 9000, 12000, 15000):
        if hz < rate / 2:
            y = await resampler.resample(tone(hz, rate, n).astype(np.float32), rate)
            assert np.abs(y[inside]).max() < 1e-4


async def test_right_only_tone_of_a_stereo_file(resampler):
    """BR-04, through file, mix and resampler."""
    x = np.stack([np.zeros(44100), tone(440, 44100, 44100)], axis=1)
    samples, rate = read_wav(riff(fmt(1, 2, 44100, 16), chunk(b"data", encoded(x, 1, 16))))
    y = await resampler.resample(samples, rate)
    assert np.abs(y - tone(440, 16000, 16000) / 2)[1000:15000].max() < 1e-3


async def test_runs_join_without_a_seam(resampler):
    """A tone longer than one run; and a rate that is met only nearly is at most 0.2 ms off, however long the clip."""
    for rate, tolerance in ((44100, 1e-4), (47999, 0.14)):
        y = await resampler.resample(tone(100, rate, 25 * rate).astype(np.float32), rate)
        error = np.abs(y - tone(100, 16000, 25 * 16000))
        assert len(y) == 25 * 16000 and error[1000:-1000].max() < tolerance


@pytest.mark.parametrize("rate", [1009, 1999, 7919, 47999, 767999])
def test_no_rate_makes_a_large_filter(rate):
    """A header may say any of them."""
    up, down = ratio(rate)
    assert up <= 2048 and down <= 2048 and up / down == pytest.approx(16000 / rate, rel=1 / 4000)


async def test_zeros_behind_a_header_end(tmp_path):
    """As a recorder that broke off may leave them: every 8 bytes would be an empty chunk."""
    path = tmp_path / "zeros.wav"
    path.write_bytes(riff() + bytes(1 << 20))
    with pytest.raises(AudioError, match="without a format"):
        await open_audio_file(path)


async def test_lengths_and_rates(resampler):
    for n in (0, 1, 2, 441, 44099):
        assert len(await resampler.resample(np.ones(n, np.float32), 44100)) == -(-n * 160 // 441)
    same = RNG.uniform(-1, 1, 100).astype(np.float32)
    assert np.array_equal(await resampler.resample(same, 16000), same)
    for rate in (0, 999, 10**7):
        with pytest.raises(AudioError, match="sample rate"):
            await resampler.resample(same, rate)


async def test_resampling_beside_a_loaded_model(resampler):
    """The executor that holds a model takes the resampler's Program too, and two rates share it."""
    a = await resampler.resample(np.ones(4410, np.float32), 44100)
    b = await resampler.resample(np.ones(4800, np.float32), 48000)
    c = await resampler.resample(np.ones(4410, np.float32), 44100)
    assert np.array_equal(a, c) and abs(b[800] - 1) < 1e-5 and set(resampler._executor.programs) == {
        "resample_44100", "resample_48000"}
    assert Weights(None, {}, {}).names() == []


# ---- files --------------------------------------------------------------------------------------------------------

def test_files_of_other_kinds(tmp_path):
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed: FLAC, MP3 and Ogg are not tested")
    x = 0.5 * tone(300, 22050, 22050)
    for suffix, error in ((".flac", 1e-4), (".ogg", 0.1), (".mp3", 0.1), (".wav", 1e-4)):
        path = tmp_path / f"tone{suffix}"
        soundfile.write(path, x, 22050)
        samples, rate = read_audio_file(path)
        assert rate == 22050 and samples.dtype == np.float32 and samples.shape[1] == 1
        assert np.abs(samples[2000:20000, 0] - x[2000:20000]).max() < error
    (tmp_path / "page.mp3").write_text("<!doctype html>")
    (tmp_path / "empty.wav").touch()
    for name in ("page.mp3", "empty.wav"):
        with pytest.raises(AudioError, match=name):
            read_audio_file(tmp_path / name)
    (tmp_path / "cut.flac").write_bytes((tmp_path / "tone.flac").read_bytes()[:2000])
    with pytest.raises(AudioError, match=r"cut.flac: .* a FLAC file, but cannot be read: it is cut short"):
        read_audio_file(tmp_path / "cut.flac")
    (tmp_path / "law.wav").write_bytes(riff(fmt(7, 1, 8000, 8), chunk(b"data", bytes(8))))
    with pytest.raises(AudioError, match=r"law.wav: .*format code 0x7 and 8 bits"):
        read_audio_file(tmp_path / "law.wav")
    with pytest.raises(FileNotFoundError):
        read_audio_file(tmp_path / "none.wav")


async def test_files_by_the_piece(tmp_path):
    """The same samples as of the whole; what is damaged ends there and says so."""
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed: FLAC, MP3 and Ogg are not tested")
    x = np.stack([0.5 * tone(300, 22050, 44100), 0.2 * tone(500, 22050, 44100)], 1)
    for suffix in (".flac", ".ogg", ".wav"):
        path = tmp_path / f"tone{suffix}"
        soundfile.write(path, x, 22050)
        whole = to_mono(read_audio_file(path)[0])
        sound = await open_audio_file(path)
        assert (sound.rate, sound.frames) == (22050, 44100)
        for first, n in ((0, 5000), (5000, 7000), (30000, 5000), (2000, 100), (44000, 5000), (50000, 5)):
            part = await sound.read(first, n)
            assert len(part) == max(0, min(n, 44100 - first))
            if suffix != ".ogg" or first in (0, 5000):  # after a jump a lossy one begins anew
                assert np.array_equal(part, whole[first : first + n])
    flac = (tmp_path / "tone.flac").read_bytes()
    (tmp_path / "cut.flac").write_bytes(flac[: len(flac) // 2])
    sound = await open_audio_file(tmp_path / "cut.flac")
    heard = 0
    while len(part := await sound.read(heard, 4000)):
        heard += len(part)
    assert 10_000 < heard == sound.frames < 40_000 and "cut short or damaged: only" in sound.note
    for name, words in (("page.mp3", "a web page"), ("empty.ogg", "it is empty")):
        (tmp_path / name).write_text("<!doctype html>" if "page" in name else "")
        with pytest.raises(AudioError, match=words):
            await open_audio_file(tmp_path / name)
