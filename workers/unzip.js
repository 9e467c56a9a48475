/** Members of a zip file (a wheel), unpacked by the browser's own inflate. */

import { EngineError } from "./protocol.js";

const END_RECORD = 0x06054b50;
const ENTRY = 0x02014b50;

/**
 * @param {Uint8Array} zip
 * @param {(name: string) => boolean} want
 * @param {string} what for the error
 * @returns {Promise<Map<string, Uint8Array>>}
 */
export async function unzip(zip, want, what) {
  const view = new DataView(zip.buffer, zip.byteOffset, zip.length);
  let end = zip.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== END_RECORD) end--;
  if (end < 0)
    throw new EngineError(
      "network",
      `${what}: wanted a wheel (zip), got ${zip.length} other bytes; run the set-up again`,
    );
  const members = new Map();
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    if (view.getUint32(at, true) !== ENTRY)
      throw new EngineError("network", `${what}: damaged zip directory; run the set-up again`);
    const method = view.getUint16(at + 10, true);
    const packed = view.getUint32(at + 20, true);
    const nameBytes = view.getUint16(at + 28, true);
    const local = view.getUint32(at + 42, true);
    const name = new TextDecoder().decode(zip.subarray(at + 46, at + 46 + nameBytes));
    at += 46 + nameBytes + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
    if (!want(name)) continue;
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const raw = zip.subarray(start, start + packed);
    members.set(name, method === 0 ? raw : await inflate(raw));
  }
  return members;
}

/** @param {Uint8Array} raw */
async function inflate(raw) {
  const stream = new Blob([/** @type {BlobPart} */ (raw)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
