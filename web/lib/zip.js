/**
 * Small files -> one ZIP archive, stored as they are (PKWARE's APPNOTE 6.3.10, sections 4.3 and 4.4): texts are small, and
 * packing them would need more code than it saves bytes. Names are UTF-8; the second of two alike gets a number.
 */

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

/** @param {Uint8Array} bytes */
function crc32(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = CRC_TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

/** @param {Array<{name: string, text: string}>} files @param {Date} [now] @returns {Blob} */
export function zip(files, now = new Date()) {
  const encoder = new TextEncoder();
  const time = (now.getHours() << 11) | (now.getMinutes() << 5) | (now.getSeconds() >> 1);
  const date = ((Math.max(now.getFullYear(), 1980) - 1980) << 9) | ((now.getMonth() + 1) << 5) | now.getDate();
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const parts = [];
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const directory = [];
  let at = 0;
  const names = unlike(files.map(({ name }) => name));
  files.forEach(({ text }, i) => {
    const name = encoder.encode(names[i]), data = encoder.encode(text);
    // what the local header and the directory say alike: version 2.0, names in UTF-8, stored, when, crc, sizes, name
    const facts = [20, 0x0800, 0, time, date];
    const sizes = [crc32(data), data.length, data.length];
    const local = record(0x04034b50, facts, sizes, [name.length, 0], []);
    directory.push(record(0x02014b50, [20, ...facts], sizes, [name.length, 0, 0, 0, 0], [0, at]), name);
    parts.push(local, name, data);
    at += local.length + name.length + data.length;
  });
  const size = directory.reduce((sum, each) => sum + each.length, 0);
  const end = record(0x06054b50, [0, 0, files.length, files.length], [size, at], [0], []);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}

/**
 * Numbers one after another, little-endian.
 * @param {number} signature @param {number[]} shorts @param {number[]} longs @param {number[]} moreShorts @param {number[]} moreLongs
 */
function record(signature, shorts, longs, moreShorts, moreLongs) {
  const out = new Uint8Array(4 + 2 * (shorts.length + moreShorts.length) + 4 * (longs.length + moreLongs.length));
  const view = new DataView(out.buffer);
  let at = 0;
  const put = (/** @type {number[]} */ numbers, /** @type {2 | 4} */ bytes) => {
    for (const number of numbers) {
      if (bytes === 2) view.setUint16(at, number, true);
      else view.setUint32(at, number, true);
      at += bytes;
    }
  };
  put([signature], 4);
  put(shorts, 2);
  put(longs, 4);
  put(moreShorts, 2);
  put(moreLongs, 4);
  return out;
}

/** The same names, none twice, whatever their case: notes.txt, notes (2).txt. @param {string[]} names */
export function unlike(names) {
  /** @type {Set<string>} */
  const taken = new Set();
  return names.map((name) => {
    const [, stem, ending] = /** @type {RegExpExecArray} */ (/^(.*?)(\.[^.]*)?$/s.exec(name));
    let tried = name;
    for (let n = 2; taken.has(tried.toLowerCase()); n++) tried = `${stem} (${n})${ending ?? ""}`;
    taken.add(tried.toLowerCase());
    return tried;
  });
}
