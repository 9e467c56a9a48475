/**
 * What a file is by its first bytes, whatever its name says: a container of sound (and its sampling rate where the head
 * tells it, so that the browser need not resample), or something that certainly is no sound.
 *
 * @typedef {object} Kind
 * @property {string | null} format
 * @property {number | null} rate
 * @property {string | null} not what it is instead of sound
 * @property {number | null} seconds how long the head says that it is, where that can be believed
 */

/** [offset, ASCII, in words] of things that are no sound. */
const NOT_SOUND = /** @type {Array<[number, string, string]>} */ ([
  [0, "\x89PNG", "a PNG picture"], [0, "\xff\xd8\xff", "a JPEG picture"], [0, "GIF8", "a GIF picture"],
  [8, "WEBP", "a WebP picture"], [4, "ftypavif", "an AVIF picture"], [4, "ftypheic", "a HEIC picture"],
  [0, "%PDF", "a PDF document"], [0, "PK\x03\x04", "a ZIP archive or an office document"], [0, "\x1f\x8b", "a gzip archive"],
  [0, "7z\xbc\xaf\x27\x1c", "a 7-Zip archive"], [0, "\x7fELF", "a program"], [0, "MZ", "a program"], [0, "GGUF", "a GGUF model"],
]);

/**
 * @param {Uint8Array} head the first bytes of the file
 * @returns {Kind}
 */
export function sniff(head) {
  const at = (/** @type {number} */ offset, /** @type {string} */ text) => {
    for (let i = 0; i < text.length; i++) if (head[offset + i] !== text.charCodeAt(i)) return false;
    return true;
  };
  /** @param {string} format @param {number | null} [rate] @returns {Kind} */
  const sound = (format, rate = null) =>
    ({ format, rate: rate && rate >= 8000 && rate <= 96_000 ? rate : null, not: null, seconds: null });
  /** @param {string} words @returns {Kind} */
  const not = (words) => ({ format: null, rate: null, not: words, seconds: null });

  for (const [offset, text, words] of NOT_SOUND) if (at(offset, text)) return not(words);
  if ((at(0, "RIFF") || at(0, "RF64")) && at(8, "WAVE")) return sound("WAV");
  if (at(0, "RIFF") && at(8, "AVI ")) return sound("AVI");
  if (at(0, "fLaC")) {
    const rate = (head[18] << 12) | (head[19] << 4) | (head[20] >> 4);
    const samples = (head[21] & 15) * 2 ** 32 + head[22] * 2 ** 24 + head[23] * 2 ** 16 + head[24] * 2 ** 8 + head[25];
    return { ...sound("FLAC", rate), seconds: rate && samples ? samples / rate : null };   // 0 samples: not known
  }
  if (at(0, "OggS")) return oggRate(head, sound);
  if (at(0, "ID3")) {
    const skip = 10 + ((head[6] << 21) | (head[7] << 14) | (head[8] << 7) | head[9]);
    return sound("MP3", mpegRate(head, skip));
  }
  if (at(0, "FORM") && (at(8, "AIFF") || at(8, "AIFC"))) return sound("AIFF");
  if (at(4, "ftyp")) return sound("MP4");
  if (at(0, "\x1a\x45\xdf\xa3")) return sound("WebM or Matroska");
  if (at(0, "#!AMR")) return sound("AMR");
  if (at(0, "caff")) return sound("CAF");
  if (at(0, "\x30\x26\xb2\x75")) return sound("Windows Media");
  if (looksLikeUtf16(head)) return not("a text file");   // its first bytes would pass for MPEG
  if (head[0] === 0xff && (head[1] & 0xf6) === 0xf0) {
    const rates = [96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000];
    return sound("AAC", rates[(head[2] >> 2) & 15] ?? null);
  }
  if (mpegRate(head, 0)) return sound("MP3", mpegRate(head, 0));
  if (looksLikeText(head)) {
    const page = /<(!doctype|html)/i.test(String.fromCharCode(...head.subarray(0, 256)));
    return not(page ? "a web page" : "a text file");
  }
  return { format: null, rate: null, not: null, seconds: null };
}

/** Sampling rate in an MPEG audio frame header at `offset`, or null. @param {Uint8Array} head @param {number} offset */
function mpegRate(head, offset) {
  const [a, b, c] = [head[offset], head[offset + 1], head[offset + 2]];
  if (a !== 0xff || (b & 0xe0) !== 0xe0 || (b & 0x06) === 0 || (c & 0xf0) === 0xf0) return null;
  const base = [44100, 48000, 32000][(c >> 2) & 3];
  const version = (b >> 3) & 3;                         // 3 = MPEG 1, 2 = MPEG 2, 0 = MPEG 2.5
  if (!base || version === 1) return null;
  return version === 3 ? base : version === 2 ? base / 2 : base / 4;
}

/**
 * @param {Uint8Array} head
 * @param {(format: string, rate?: number | null) => Kind} sound
 */
function oggRate(head, sound) {
  const packet = 27 + head[26];                         // the first page's segment table, then its only packet
  const name = String.fromCharCode(...head.subarray(packet, packet + 8));
  const view = new DataView(head.buffer, head.byteOffset, head.byteLength);
  if (name.startsWith("OpusHead")) return sound("Ogg Opus", 48_000);   // Opus always decodes at 48 kHz
  if (name.startsWith("\x01vorbis") && head.length >= packet + 16) return sound("Ogg Vorbis", view.getUint32(packet + 12, true));
  return sound("Ogg");
}

/** @param {Uint8Array} head */
function looksLikeText(head) {
  const some = head.subarray(0, 512);
  return some.length > 0 && some.every((byte) => byte >= 0x20 || byte === 9 || byte === 10 || byte === 13);
}

/** UTF-16 with its mark, and mostly of letters below U+0100. @param {Uint8Array} head */
function looksLikeUtf16(head) {
  const little = head[0] === 0xff && head[1] === 0xfe;
  if (!little && !(head[0] === 0xfe && head[1] === 0xff)) return false;
  const high = head.subarray(2, 66).filter((_, i) => i % 2 === (little ? 1 : 0));
  return high.length > 0 && high.filter((byte) => byte === 0).length > high.length / 2;
}

/** A data chunk that says to be this long, or longer, was written before its length was known. */
const STREAMED = 0x7fff0000;

/** Whether the head of a chunk can stand there. @param {DataView} view @param {number} at @param {number} size of the file */
function isChunk(view, at, size) {
  if (at + 8 > view.byteLength) return false;
  for (let i = at; i < at + 4; i++) if (view.getUint8(i) < 0x20 || view.getUint8(i) > 0x7e) return false;
  return at + 8 + view.getUint32(at + 4, true) <= size;
}

/**
 * The head of a RIFF WAVE file: is it of the plain kinds that the engine reads from the bytes (whole numbers of 8, 16, 24 or
 * 32 bits, floats of 32 or 64, also in the extensible form), and how long is it? null if there is no fmt chunk in the head.
 * `kind` names the samples in words, `frame` is the bytes of
 * one sample of every channel, 0 where the samples were not found; `missing` is how many seconds the file says to have and has not.
 * @param {Uint8Array} head
 * @param {number} size bytes of the whole file
 */
export function wavHead(head, size) {
  const view = new DataView(head.buffer, head.byteOffset, head.byteLength);
  let plain = false, bytesPerSecond = 0, kind = "", bits = 0, float = false, frame = 0;
  for (let at = 12; at + 8 <= head.length;) {
    const id = String.fromCharCode(...head.subarray(at, at + 4));
    let length = view.getUint32(at + 4, true);
    if (id === "fmt " && at + 24 <= head.length) {
      let code = view.getUint16(at + 8, true);
      bits = view.getUint16(at + 22, true);
      frame = view.getUint16(at + 20, true);
      if (code === 0xfffe && length >= 40 && at + 34 <= head.length) code = view.getUint16(at + 32, true);
      float = code === 3;
      plain = (code === 1 && [8, 16, 24, 32].includes(bits)) || (code === 3 && [32, 64].includes(bits));
      kind = `samples of format code 0x${code.toString(16)} and ${bits} bits`;
      bytesPerSecond = view.getUint32(at + 16, true);
    } else if (id === "data") {
      if (length === 0 && !isChunk(view, at + 8, size)) length = size - at - 8;   // a recorder crashed before it told
      const dataBytes = Math.min(length, size - at - 8);   // a length of 0xffffffff or past the end: streamed or cut short
      const missing = length < STREAMED && bytesPerSecond ? (length - dataBytes) / bytesPerSecond : 0;
      return { plain, kind, bits, float, frame, dataStart: at + 8, dataBytes, missing, seconds: bytesPerSecond ? dataBytes / bytesPerSecond : null };
    }
    at += 8 + length + (length & 1);
  }
  return bytesPerSecond ? { plain, kind, bits, float, frame: 0, dataStart: 0, dataBytes: size, missing: 0, seconds: null } : null;
}
