/**
 * Where in an MP3 file its sound begins and ends. Encoders need silence in front and fill the last frame up, and decoders of this
 * kind add some; the browser's own decoder takes all of it away where the file tells of it (the "Xing" or "Info" frame, then
 * "LAME", "Lavf" or "Lavc"), but who takes the file apart frame by frame is left with it.
 */

/** Samples that a decoder of layer III adds. */
const DECODER = 529;
/** Bytes in which the first frame begins, behind the tags with title and picture. */
const HEAD = 8192;
/** Where the encoder's line has its delay, of 12 bits, and behind it what fills the last frame up, of 12 bits too. */
const DELAY = 21;

/**
 * @param {Blob} file
 * @returns {Promise<{delay: number, length: number}>} samples before the first that was meant, and how many were meant;
 *   0 and Infinity where that is not told
 */
export async function mp3Place(file) {
  const unknown = { delay: 0, length: Infinity };
  let at = 0;
  let bytes = await read(file, 0);
  while (text(bytes, 0, 3) === "ID3") {
    const size = bytes.subarray(6, 10).reduce((sum, byte) => sum * 128 + (byte & 127), 0);
    at += 10 + size + (bytes[5] & 16 ? 10 : 0);
    bytes = await read(file, at);
  }
  const frame = bytes.findIndex((byte, i) => byte === 0xff && (bytes[i + 1] & 0xe6) === 0xe2);   // the first of layer III
  if (frame < 0) return unknown;
  const first = (bytes[frame + 1] & 0x18) === 0x18;         // MPEG 1
  const mono = (bytes[frame + 3] & 0xc0) === 0xc0;
  const tag = frame + 4 + (first ? (mono ? 17 : 32) : mono ? 9 : 17);
  if (!["Xing", "Info"].includes(text(bytes, tag, 4))) return unknown;
  const flags = bytes[tag + 7];
  const encoder = tag + 8 + [4, 4, 100, 4].reduce((sum, size, bit) => sum + (flags & (1 << bit) ? size : 0), 0);
  if (!/^(LAME|Lavf|Lavc)/.test(text(bytes, encoder, 4)) || encoder + DELAY + 2 >= bytes.length) return unknown;
  const [high, middle, low] = bytes.subarray(encoder + DELAY);
  const delay = (high << 4) + (middle >> 4), padding = ((middle & 15) << 8) + low;
  const frames = flags & 1 ? new DataView(bytes.buffer).getUint32(tag + 8) : 0;
  const length = frames * (first ? 1152 : 576) - delay - padding;
  return { delay: delay + DECODER, length: length > 0 ? length : Infinity };
}

/** @param {Blob} file @param {number} at */
const read = async (file, at) => new Uint8Array(await file.slice(at, at + HEAD).arrayBuffer());

/** @param {Uint8Array} bytes @param {number} at @param {number} n */
const text = (bytes, at, n) => String.fromCharCode(...bytes.subarray(at, at + n));
