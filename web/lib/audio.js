/**
 * A file or a blob of sound -> what the engine reads. Plain WAV is read by ranges of the file, so every sample is exact and
 * no length too long; other large files are decoded piece by piece by the engine; small ones by the browser, at the file's
 * own rate where we can see it. Channels stay apart: the engine averages and resamples. Nothing here knows about models.
 *
 * @typedef {{kind: "wav", bytes: Blob}} WavSound
 * @typedef {{kind: "media", file: Blob, seconds: number | null}} MediaSound
 * @typedef {{kind: "pcm", channels: Float32Array[], rate: number}} PcmSound
 * @typedef {{sound: WavSound | MediaSound | PcmSound, seconds: number | null, note: string | null}} ReadSound
 *   `note` says in words what a person should know about how it was read, for example a lower decoding rate.
 */
import { sniff, wavHead } from "./sniff.js";
import { formatBytes, formatClock } from "./ui.js";

/** Beyond this length the browser decodes straight to 16 kHz, or its memory (and ours) would not do. */
const LONG_SECONDS = 30 * 60;
/** A compressed file from this size on is decoded piece by piece: whole, its samples would take ten times as much or more. */
const PIECES_BYTES = 2e6;
/** A file below this is never so long that the length must be looked up before decoding. */
const SMALL_BYTES = 1e6;
const LOW_RATE = 16_000;

/** A problem with the sound itself, told in words for the person. */
export class AudioError extends Error {
  /** @param {string} message @param {string} code */
  constructor(message, code) {
    super(message);
    this.name = "AudioError";
    this.code = code;
  }
}

/**
 * @param {Blob} blob
 * @param {AbortSignal} [signal]
 * @param {boolean} [whole] decode it whole, however large it is: by pieces did not work
 * @returns {Promise<ReadSound>}
 * @throws {AudioError} empty file, no sound in it, not sound at all, or a format this browser does not decode
 */
export async function readSound(blob, signal, whole = false) {
  if (blob.size === 0) throw new AudioError("The file is empty (0 bytes). Choose another one.", "empty");
  let head;
  try {
    head = new Uint8Array(await blob.slice(0, 65_536).arrayBuffer());
  } catch {
    throw new AudioError("The file could not be read: it was moved, changed or is not allowed. Choose it again.", "unreadable");
  }
  const kind = sniff(head);
  if (kind.not) {
    throw new AudioError(`This is ${kind.not}, whatever its name says. Choose a sound or video file.`, "not_sound");
  }
  let format = kind.format;
  if (kind.format === "WAV") {
    const wav = wavHead(head, blob.size);
    if (wav?.plain) {
      if (wav.dataBytes === 0) throw new AudioError("The WAV file holds no samples: its sound is 0 seconds long.", "no_samples");
      const note = shortened(wav.seconds ?? 0, (wav.seconds ?? 0) + wav.missing);
      return { sound: { kind: "wav", bytes: blob }, seconds: wav.seconds, note };
    }
    if (wav?.kind) format = `WAV file with ${wav.kind}`;
  }

  if (blob.size > PIECES_BYTES && !whole && typeof AudioDecoder !== "undefined") {
    return { sound: { kind: "media", file: blob, seconds: kind.seconds }, seconds: kind.seconds, note: null };
  }
  let rate = kind.rate ?? 48_000;
  let note = null;
  if (blob.size > SMALL_BYTES) {
    const media = await probe(blob);
    if (media && media.seconds > LONG_SECONDS) {
      rate = LOW_RATE;
      note = "a long file: the browser itself brings it to 16 kHz, to save memory";
    }
  }
  signal?.throwIfAborted();
  const bytes = await wholeOf(blob);
  signal?.throwIfAborted();
  let buffer;
  try {
    buffer = await new OfflineAudioContext(1, 1, rate).decodeAudioData(bytes);
  } catch {
    throw await whyNot(blob, format);
  }
  if (buffer.length === 0) throw new AudioError("There is no sound in this file: it is 0 seconds long.", "no_samples");
  const channels = Array.from({ length: buffer.numberOfChannels }, (_, i) => buffer.getChannelData(i));
  note = shortened(buffer.duration, kind.seconds ?? 0) ?? note;
  return { sound: { kind: "pcm", channels, rate: buffer.sampleRate }, seconds: buffer.duration, note };
}

/**
 * What to say of a file that holds less than it says.
 * @param {number} seconds that there are @param {number} told by the file's head
 */
function shortened(seconds, told) {
  if (told - seconds < 0.5) return null;
  return `cut short or damaged: only ${formatClock(seconds)} of ${formatClock(told)} could be read`;
}

/** @param {Blob} blob */
async function wholeOf(blob) {
  try {
    return await blob.arrayBuffer();
  } catch {
    throw new AudioError(`The file could not be read whole: ${formatBytes(blob.size)} may be more than this browser can hold at once. `
      + "Cut it into shorter parts.", "too_big");
  }
}

/**
 * What a media element makes of it: its length and whether it shows pictures; null if it cannot play it.
 * @param {Blob} blob
 * @returns {Promise<{seconds: number, pictures: boolean} | null>}
 */
function probe(blob) {
  const url = URL.createObjectURL(blob);
  const media = document.createElement("video");
  media.preload = "metadata";
  media.muted = true;
  return new Promise((resolve) => {
    const end = (/** @type {{seconds: number, pictures: boolean} | null} */ answer) => {
      clearTimeout(timer);
      media.removeAttribute("src");
      media.load();
      URL.revokeObjectURL(url);
      resolve(answer);
    };
    const timer = setTimeout(end, 5000, null);
    media.onloadedmetadata = () => end({ seconds: media.duration, pictures: media.videoWidth > 0 });
    media.onerror = () => end(null);
    media.src = url;
  });
}

/**
 * The browser refused to decode: say why as well as can be known.
 * @param {Blob} blob
 * @param {string | null} format
 */
async function whyNot(blob, format) {
  const media = await probe(blob);
  if (media?.pictures) {
    return new AudioError("This video has no sound track, or one that this browser does not decode. Choose another file.", "no_track");
  }
  if (format) {
    return new AudioError(
      `This is ${/^(A|O|MP)/.test(format) ? "an" : "a"} ${format.includes("file") ? format : `${format} file`}, but the browser could not decode it: it is damaged or cut short, or the browser does not know `
      + "this kind. Try WAV, FLAC, MP3, M4A, OGG or WebM.", "not_decoded");
  }
  return new AudioError(
    "The browser found no sound that it can decode in this file. Try WAV, FLAC, MP3, M4A, OGG, MP4 or WebM.", "unknown_format");
}

/**
 * Peak of the sound in `bars` equal stretches, 0..1: what the player draws.
 * @param {Float32Array[]} channels
 * @param {number} bars
 * @returns {Float32Array}
 */
export function peaks(channels, bars) {
  const length = channels[0]?.length ?? 0;
  const out = new Float32Array(bars);
  const stride = Math.max(1, Math.floor(length / bars / 400));   // at most about 400 looks a bar: enough to the eye
  for (const samples of channels) {
    for (let bar = 0; bar < bars; bar++) {
      const end = Math.floor(((bar + 1) * length) / bars);
      for (let i = Math.floor((bar * length) / bars); i < end; i += stride) {
        const size = Math.abs(samples[i]);
        if (size > out[bar]) out[bar] = Math.min(size, 1);
      }
    }
  }
  return out;
}

/** Bytes that are looked at for one bar of a WAV file. */
const LOOK_BYTES = 8192;

/**
 * Peaks of a plain WAV file, from a look into each of `bars` stretches; null where it is not one.
 * @param {Blob} blob
 * @param {number} bars
 */
export async function wavPeaks(blob, bars) {
  const head = new Uint8Array(await blob.slice(0, 65_536).arrayBuffer());
  const wav = wavHead(head, blob.size);
  if (!wav?.plain || !wav.frame) return null;
  const { bits, float, frame, dataStart, dataBytes } = wav;
  const frames = Math.floor(dataBytes / frame), size = bits / 8;
  return await Promise.all(Array.from({ length: bars }, async (_, bar) => {
    const first = Math.floor((bar * frames) / bars), n = Math.min(Math.floor(((bar + 1) * frames) / bars) - first, Math.ceil(LOOK_BYTES / frame));
    const view = new DataView(await blob.slice(dataStart + first * frame, dataStart + (first + n) * frame).arrayBuffer());
    let peak = 0;
    for (let at = 0; at + size <= view.byteLength; at += size) peak = Math.max(peak, Math.abs(sampleAt(view, at, bits, float)));
    return Math.min(peak, 1);
  })).then((peaks) => Float32Array.from(peaks), () => null);
}

/** @param {DataView} view @param {number} at @param {number} bits @param {boolean} float */
function sampleAt(view, at, bits, float) {
  if (float) return bits === 32 ? view.getFloat32(at, true) : view.getFloat64(at, true);
  if (bits === 8) return (view.getUint8(at) - 128) / 128;
  if (bits === 16) return view.getInt16(at, true) / 32768;
  return bits === 24 ? view.getInt16(at + 1, true) / 32768 : view.getInt32(at, true) / 2 ** 31;
}

/**
 * The first 44 bytes of a 16-bit WAV file.
 * @param {number} channels @param {number} rate @param {number} dataBytes what follows
 */
export function wavHeader(channels, rate, dataBytes) {
  const view = new DataView(new ArrayBuffer(44));
  const word = (/** @type {number} */ at, /** @type {string} */ text) => {
    for (let i = 0; i < 4; i++) view.setUint8(at + i, text.charCodeAt(i));
  };
  word(0, "RIFF"); view.setUint32(4, 36 + dataBytes, true); word(8, "WAVE");
  word(12, "fmt "); view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, channels, true);
  view.setUint32(24, rate, true); view.setUint32(28, rate * channels * 2, true); view.setUint16(32, channels * 2, true); view.setUint16(34, 16, true);
  word(36, "data"); view.setUint32(40, dataBytes, true);
  return view;
}

/**
 * Samples -> a 16-bit WAV file, for the player and for saving a recording.
 * @param {Float32Array[]} channels all of one length, -1..1
 * @param {number} rate
 */
export function wavBlob(channels, rate) {
  const n = channels.length, length = channels[0].length;
  const data = new DataView(new ArrayBuffer(length * n * 2));
  for (let i = 0, at = 0; i < length; i++) {
    for (let c = 0; c < n; c++, at += 2) {
      data.setInt16(at, Math.round(Math.max(-1, Math.min(1, channels[c][i])) * 32767), true);
    }
  }
  return new Blob([wavHeader(n, rate, data.byteLength), data], { type: "audio/wav" });
}
