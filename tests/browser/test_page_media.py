"""Compressed files and films, decoded piece by piece: the samples of the browser's own decoder, in any order, whatever the
name says; and what is damaged, cut short or silent of itself told in words. Files are made here (libsndfile, MediaRecorder)."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.browser.pages import FILM, ROOT, SAMPLE, give, visit, wait_done, wait_ready, words

soundfile = pytest.importorskip("soundfile", reason="no soundfile: pip install -r requirements.txt")
RATE = 16_000
FORMATS = {
    "flac": {"format": "FLAC", "subtype": "PCM_16"},
    "mp3": {"format": "MP3", "subtype": "MPEG_LAYER_III"},
    "mp3 of a changing rate": {"format": "MP3", "subtype": "MPEG_LAYER_III", "bitrate_mode": "VARIABLE",
                               "compression_level": 0.5},
    "ogg vorbis": {"format": "OGG", "subtype": "VORBIS"},
    "ogg opus": {"format": "OGG", "subtype": "OPUS"},
    "wav of 24 bits": {"format": "WAV", "subtype": "PCM_24"},
}


def speech(times: int = 1, pause: float = 0) -> np.ndarray:
    clip = np.frombuffer(SAMPLE.read_bytes()[44:], "<i2").astype(np.float32) / 32768
    return np.tile(np.concatenate([clip, np.zeros(int(RATE * pause), np.float32)]), times)


def encoded(samples: np.ndarray, **how) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, RATE, **how)
    return out.getvalue()


def padded(flac: bytes, size: int = 2_100_000) -> bytes:
    """The same FLAC file with a block of nothing behind its head: large enough to be read by pieces."""
    head = 4 + 4 + 34  # the mark, and STREAMINFO, which is then no longer the last block
    block = b"\x01" + size.to_bytes(3, "big") + bytes(size)
    return flac[:4] + bytes([flac[4] & 0x7F]) + flac[5:head] + block + flac[head:]


READ = """async ([text, told]) => {
  const { MediaSound } = await import("/workers/sound.js");
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const file = new Blob([bytes]);
  let sound;
  try {
    sound = await MediaSound.open(file, told);
    const pieces = [];
    let n = 0;
    for (let piece; (piece = await sound.read(n, 30_000)).length; n += piece.length) pieces.push(piece);
    const all = new Float32Array(n);
    n = 0;
    for (const piece of pieces) { all.set(piece, n); n += piece.length; }
    const jumps = [];
    for (const [first, length] of [[n - 100, 500], [5, 1000], [n >> 1, 3000], [n + 9, 10], [0, 10]]) {
      const piece = await sound.read(first, length);
      let apart = 0;
      piece.forEach((x, i) => { apart = Math.max(apart, Math.abs(x - all[first + i])); });
      jumps.push([piece.length, apart]);
    }
    const whole = await new OfflineAudioContext(1, 1, sound.rate).decodeAudioData(bytes.buffer);
    const mono = Array.from({ length: whole.length }, (_, i) => (whole.getChannelData(0)[i] + whole.getChannelData(1)[i]) / 2);
    let apart = Infinity, late = 0;                       // where an encoder's delay is not told, one decoder may keep it
    for (let lag = 0; lag < 1300; lag++) {
      let sum = 0;
      for (let i = 40_000; i < 44_000; i++) sum += Math.abs(all[i + lag] - mono[i]) / 4000;
      if (sum < apart) [apart, late] = [sum, lag];
    }
    return { rate: sound.rate, n, frames: sound.frames, whole: whole.length, apart, late, jumps, note: sound.note };
  } catch (error) {
    return { error: error.code, message: error.message, data: error.data };
  } finally {
    await sound?.close();
  }
}"""


@pytest.fixture(scope="module")
def plain_page(browser, site):
    with visit(browser, site, "/web/") as page:
        yield page


def read(page, data: bytes, told: float | None = None) -> dict:
    return page.evaluate(READ, [base64.b64encode(data).decode(), told])


@pytest.mark.parametrize("name", FORMATS)
def test_pieces_are_what_the_browser_decodes_whole(plain_page, name):
    mono = speech(2)
    title = b"ID3\x04\0\0\0\1\0\0" + bytes(1 << 14) if "mp3" in name else b""  # as a picture takes room in front
    found = read(plain_page, title + encoded(np.stack([mono, mono / 2], 1), **FORMATS[name]))
    assert "error" not in found, found
    seconds = len(mono) / RATE
    assert found["n"] == found["frames"] == pytest.approx(seconds * found["rate"], rel=0.02)
    assert found["n"] == pytest.approx(found["whole"], abs=0.15 * found["rate"])
    if "mp3" in name:  # what fills the last frame up is no sound
        assert found["n"] == found["whole"] == len(mono)
    assert found["apart"] < 0.002 and found["note"] == ""
    assert found["late"] == 0
    assert [length for length, _ in found["jumps"]] == [100, 1000, 3000, 0, 10]
    assert max(apart for _, apart in found["jumps"]) < 0.01


def test_joined_mp3_files_are_read_to_their_end(plain_page):
    """The first one's head tells of its own length alone."""
    mono = speech(1)
    one = encoded(np.stack([mono, mono], 1), **FORMATS["mp3"])
    found = read(plain_page, one + one)
    assert found["n"] == found["frames"] and 2 * len(mono) <= found["n"] < 2 * len(mono) + 8000
    assert found["jumps"][0] == [100, pytest.approx(0, abs=0.01)]


def test_what_is_damaged_or_cut_short_is_noticed(plain_page):
    """A head that tells more than there is: a small file is tried whole (its decoder gets over gaps)."""
    flac = encoded(np.stack([speech(2)] * 2, 1), **FORMATS["flac"])
    seconds = len(speech(2)) / RATE
    for damaged in (flac[: len(flac) // 2], flac[:100_000] + bytes(3000) + flac[103_000:]):
        found = read(plain_page, damaged, seconds)
        assert found["error"] == "bad_input" and found["data"] == {"whole": True}, found
    assert "error" not in read(plain_page, flac, seconds)
    for nothing in (bytes(range(256)) * 20, b"\x89PNG\r\n\x1a\n" + bytes(99), b""):
        assert read(plain_page, nothing)["data"] == {"whole": True}


def test_film_with_and_without_sound(plain_page):
    """Made by the browser itself: a tone of half a second beside moving pictures, and pictures alone."""
    found = plain_page.evaluate("""async () => {
      const { MediaSound } = await import("/workers/sound.js");
      const film = FILM;
      const sound = await MediaSound.open(await film(true));
      let n = 0, peak = 0;
      for (let piece; (piece = await sound.read(n, 10_000)).length; n += piece.length) {
        peak = piece.reduce((a, x) => Math.max(a, Math.abs(x)), peak);
      }
      await sound.close();
      const told = (error) => [error.code, error.message, error.data];
      const silent = await MediaSound.open(await film(false)).catch(told);
      return { seconds: n / sound.rate, peak, silent };
    }""".replace("FILM", FILM))
    assert found["seconds"] > 0.3 and found["peak"] > 0.1
    assert found["silent"] == ["bad_input", "This file has no sound track. Choose another one.", {"whole": False}]


# ---- on the page ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(browser, site):
    if not (ROOT / "models" / "whisper-tiny.en" / "model.safetensors").is_file():
        pytest.skip("whisper-tiny.en is not here; run python3 serve.py --setup")
    with visit(browser, site) as page:
        wait_ready(page)
        yield page


def test_large_compressed_file_by_pieces(page):
    """Under a name that lies; its waveform comes from the first pass of the engine."""
    give(page, "talk.mp3", padded(encoded(speech(3, 9), **FORMATS["flac"])), "audio/mpeg")
    wait_done(page, "talk.mp3")
    assert words(page).count("once upon a time") == 3
    expect(page.locator("#job-facts")).to_have_text(re.compile(r"^0:49 of sound · written in .+ real time$"))
    bars = page.evaluate("""() => {
      const canvas = document.querySelector("#wave"), { width, height } = canvas;
      const top = canvas.getContext("2d").getImageData(0, height / 4, width, 1).data;
      const pixel = (part) => Math.floor(part * width) * 4;
      return [0.05, 0.28].map((part) => top.slice(pixel(part), pixel(part + 0.04)).some((x) => x));
    }""")
    assert bars == [True, False], "loud where there is speech, low in the pause"


def test_large_damaged_file_is_read_as_far_as_it_goes(page):
    """A hole in the middle stops who takes it apart; the browser's own decoder gets over it."""
    flac = padded(encoded(speech(3, 9), **FORMATS["flac"]))
    middle = 2_100_000 + (len(flac) - 2_100_000) // 3
    give(page, "hole.flac", flac[:middle] + bytes(2000) + flac[middle + 2000 :])
    wait_done(page, "hole.flac")
    assert words(page).count("once upon a time") >= 2
    give(page, "cut.flac", flac[: len(flac) * 9 // 10])
    wait_done(page, "cut.flac")
    expect(page.locator("#job-facts")).to_contain_text("cut short or damaged: only 0:")


def test_film_without_sound_is_told(page):
    """Large enough to be taken apart."""
    page.evaluate("""async () => {
      const film = FILM;
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File([await film(false), new Uint8Array(2_100_000)], "film.webm"));
      document.querySelector("main").dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
    }""".replace("FILM", FILM))
    wait_done(page, "film.webm")
    expect(page.get_by_role("alert")).to_contain_text("no sound track")
