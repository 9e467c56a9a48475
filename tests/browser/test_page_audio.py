"""Sound as the page reads it: what a file is by its bytes, plain WAV untouched, other files decoded at their own rate, and
the microphone at the rate that the device really has."""

from __future__ import annotations

import base64
import io
import struct
import wave

import numpy as np
import pytest

from candlewick.commands.browser import chromium_path
from tests.browser.pages import FILM, JFK, SAMPLE, visit, wav

READ = """async ([text, type]) => {
  const { readSound } = await import("/web/lib/audio.js");
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  try {
    const { sound, seconds, note } = await readSound(new Blob([bytes], { type }));
    const more = note ? { note } : {};
    return sound.kind === "wav" ? { kind: "wav", seconds, bytes: sound.bytes.size, ...more }
      : { kind: "pcm", seconds, ...more, rate: sound.rate, channels: sound.channels.length, length: sound.channels[0].length,
          peaks: sound.channels.map((c) => c.reduce((a, x) => Math.max(a, Math.abs(x)), 0)) };
  } catch (error) {
    return { error: error.code, message: error.message };
  }
}"""


@pytest.fixture(scope="module")
def page(browser, site):
    with visit(browser, site, "/web/") as page:
        yield page


def read(page, data: bytes, mime: str = ""):
    return page.evaluate(READ, [base64.b64encode(data).decode(), mime])


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"WAVE" + b"".join(name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def form(code: int, bits: int, channels: int = 1, rate: int = 8000, sub: int | None = None) -> tuple[bytes, bytes]:
    frame = channels * bits // 8
    data = struct.pack("<HHIIHH", code, channels, rate, rate * frame, frame, bits)
    if sub is not None:
        data += struct.pack("<HHI", 22, bits, 0) + struct.pack("<H", sub) + bytes.fromhex("000000001000800000aa00389b71")
    return b"fmt ", data


@pytest.mark.parametrize(
    "head",
    [form(1, 8), form(1, 16), form(1, 24), form(1, 32), form(3, 32), form(3, 64), form(0xFFFE, 24, sub=1),
     form(0xFFFE, 32, sub=3)],
    ids=["u8", "s16", "s24", "s32", "f32", "f64", "extensible 24", "extensible float"],
)
def test_plain_wav_goes_on_as_its_bytes(page, head):
    frame = struct.unpack_from("<H", head[1], 12)[0]
    data = riff((b"LIST", b"odd"), head, (b"data", bytes(8000 * frame)), (b"LIST", b"tail"))
    assert read(page, data) == {"kind": "wav", "seconds": 1, "bytes": len(data)}


def test_other_wav_is_decoded_by_the_browser(page):
    found = read(page, riff(form(7, 8), (b"data", bytes(8000))))  # mu-law
    assert found["kind"] == "pcm" and found["length"] >= 8000


def test_wav_cut_short_and_wav_without_end(page):
    whole = riff(form(1, 16), (b"data", bytes(16_000)))
    assert read(page, whole[:-8000])["seconds"] == pytest.approx(0.5)
    for unknown in (b"\xff\xff\xff\xff", bytes(4)):
        assert read(page, whole[:40] + unknown + whole[44:])["seconds"] == pytest.approx(1)


def test_what_is_missing_is_told(page):
    """A file that holds less than its head says is read as far as it goes, and that is said."""
    assert read(page, riff(form(1, 16), (b"data", bytes(160_000)))[:-80_000])["note"] == \
        "cut short or damaged: only 0:05 of 0:10 could be read"
    whole = riff(form(1, 16), (b"data", bytes(160_000)))
    for unknown in (b"\xff\xff\xff\xff", b"\x00\x00\xff\x7f"):  # written before the length was known
        assert "note" not in read(page, whole[:40] + unknown + whole[44:])
    if JFK.exists():
        assert "note" not in read(page, JFK.read_bytes())
        assert read(page, JFK.read_bytes()[:300_000])["note"].startswith("cut short or damaged: only 0:0")


def test_rf64_is_read_by_us(page):
    body = struct.pack("<QQQI", 0, 16_000, 0, 0)
    data = riff((b"ds64", body), form(1, 16), (b"data", bytes(16_000)))
    data = b"RF64\xff\xff\xff\xff" + data[8:].replace(b"data" + struct.pack("<I", 16_000), b"data\xff\xff\xff\xff")
    assert read(page, data) == {"kind": "wav", "seconds": 1, "bytes": len(data)}


def test_flac_at_its_own_rate_with_all_channels(page):
    if not JFK.exists():
        pytest.skip(f"{JFK} is not here")
    found = read(page, JFK.read_bytes())
    assert found["kind"] == "pcm"
    assert found["rate"] == 44_100, "the browser resampled; the head of a FLAC tells its rate"
    assert found["channels"] == 2 and found["length"] == pytest.approx(11 * 44_100, rel=0.01)


NOT_SOUND = {
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(64), "not_sound", "PNG picture"),
    "page": (b"<!doctype html><title>404</title>", "not_sound", "web page"),
    "text": (b"Dear diary, today I was renamed to .mp3\n", "not_sound", "text file"),
    "document": (b"%PDF-1.7\n%\xe2\xe3", "not_sound", "PDF"),
    "archive": (b"PK\x03\x04" + bytes(40), "not_sound", "ZIP"),
    "empty": (b"", "empty", "0 bytes"),
    "noise": (bytes(range(256)) * 8, "unknown_format", "no sound that it can decode"),
    "flac cut in its head": (b"fLaC" + bytes(16), "not_decoded", "FLAC file"),
    "text of two bytes a letter": ("I was an MP3, says the name.".encode("utf-16"), "not_sound", "text file"),
    "big-endian text": (b"\xfe\xff" + "Dear diary".encode("utf-16-be"), "not_sound", "text file"),
    "wav of a kind nobody reads": (riff(form(0x1234, 4), (b"data", bytes(999))), "not_decoded",
                                   "a WAV file with samples of format code 0x1234 and 4 bits"),
    "aiff cut in its head": (b"FORM\0\0\0\x2eAIFF" + bytes(40), "not_decoded", "an AIFF file"),
    "wav without samples": (riff(form(1, 16), (b"data", b"")), "no_samples", "0 seconds"),
}


@pytest.mark.parametrize("name", NOT_SOUND)
def test_what_is_no_sound_is_told_in_words(page, name):
    data, code, words = NOT_SOUND[name]
    found = read(page, data, "audio/mpeg")
    assert found["error"] == code and words in found["message"], found


def test_video_without_sound(page):
    """A film of nothing, made by the browser itself."""
    found = page.evaluate("""async () => {
      const film = FILM;
      const { readSound } = await import("/web/lib/audio.js");
      try { await readSound(await film(false)); return null; } catch (error) { return [error.code, error.message]; }
    }""".replace("FILM", FILM))
    assert found[0] == "no_track" and "no sound track" in found[1]


def test_own_wav_writer(page):
    """What a recording is kept and played as: 16 bits, the given rate, channels interleaved, clipped."""
    data = bytes(page.evaluate("""async () => {
      const { wavBlob } = await import("/web/lib/audio.js");
      const blob = wavBlob([new Float32Array([0, 1, -1, 2]), new Float32Array([0.5, 0, 0, -2])], 44100);
      return [...new Uint8Array(await blob.arrayBuffer())];
    }"""))
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth(), file.getnframes()) == (2, 44_100, 2, 4)
        assert np.frombuffer(file.readframes(4), "<i2").tolist() == [0, 16384, 32767, 0, -32767, 0, 32767, -32767]


RECORD = """async () => {
  const { Recorder } = await import("/web/lib/recorder.js");
  const tape = new Recorder();
  let top = 0;
  tape.onLevel = (peak) => { top = Math.max(top, peak); };
  const began = performance.now();
  await tape.start();
  for (let i = 0; tape.seconds < 2 && i < 1200; i++) await new Promise((r) => setTimeout(r, 50));
  const { samples, rate } = await tape.stop();
  const wall = (performance.now() - began) / 1000;
  const peak = samples.reduce((a, x) => Math.max(a, Math.abs(x)), 0);
  return { rate, seconds: samples.length / rate, wall, top, peak, made: window.made };
}"""

# As in Firefox: a context at another rate than its own default refuses the microphone.
PICKY = """
  window.made = [];
  const Real = window.AudioContext;
  window.AudioContext = class extends Real {
    constructor(options) { super(options); window.made.push(options?.sampleRate ?? null); this.asked = options?.sampleRate; }
    createMediaStreamSource(stream) {
      if (this.asked) throw new DOMException("different sample-rate is currently not supported", "NotSupportedError");
      return super.createMediaStreamSource(stream);
    }
  };
"""


@pytest.fixture(scope="module")
def microphone(browser, tmp_path_factory):
    """A second browser whose microphone plays the sample clip again and again."""
    args = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
            f"--use-file-for-fake-audio-capture={SAMPLE}"]
    other = browser.browser_type.launch(executable_path=chromium_path(), args=args)
    yield other
    other.close()


@pytest.mark.parametrize("picky", [False, True], ids=["device rate", "device rate refused"])
def test_microphone_rate_is_read_back(microphone, site, picky):
    context = microphone.new_context(permissions=["microphone"])
    page = context.new_page()
    if picky:
        page.add_init_script(PICKY)
    page.goto(site + "/web/")
    got = page.evaluate(RECORD)
    context.close()
    assert got["rate"] in (44_100, 48_000), got
    # a busy machine may lose sound, but none comes faster than time goes by
    assert 2 <= got["seconds"] < got["wall"] + 0.5, "samples and seconds disagree: the rate is not the one they were taken at"
    assert got["peak"] > 0.05 and got["top"] > 0.05
    if picky:
        assert got["made"][0] is not None and got["made"][-1] is None, "the second try is the context's own rate"


def test_microphone_is_not_treated_as_a_call(microphone, site):
    """Noise suppression took the s of "Americans" away."""
    context = microphone.new_context(permissions=["microphone"])
    page = context.new_page()
    page.goto(site + "/web/")
    found = page.evaluate("""async () => {
      const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
      let stream;
      navigator.mediaDevices.getUserMedia = async (wish) => (stream = await ask(wish));
      const { Recorder } = await import("/web/lib/recorder.js");
      const recorder = new Recorder();
      await recorder.start();
      const { noiseSuppression, echoCancellation } = stream.getAudioTracks()[0].getSettings();
      await recorder.stop();
      return { noiseSuppression, echoCancellation };
    }""")
    context.close()
    assert found == {"noiseSuppression": False, "echoCancellation": False}


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [("NotAllowedError", "mic_denied", "Allow it"), ("NotFoundError", "mic_missing", "No microphone was found"),
     ("NotReadableError", "mic_busy", "another program")],
)
def test_microphone_refusals_in_words(browser, site, name, code, words):
    with visit(browser, site, "/web/") as page:
        found = page.evaluate(
            """async (name) => {
              navigator.mediaDevices.getUserMedia = async () => { throw new DOMException("no", name); };
              const { Recorder } = await import("/web/lib/recorder.js");
              try { await new Recorder().start(); return null; } catch (error) { return [error.code, error.message]; }
            }""",
            name,
        )
        assert found[0] == code and words in found[1]


def test_silence_has_no_peaks(page):
    assert read(page, wav(np.zeros(1600)))["seconds"] == pytest.approx(0.1)
