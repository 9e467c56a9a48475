/** SHA-256 piece by piece. WebCrypto wants a whole file at once and is absent on insecure addresses; this is neither. */

const K = new Int32Array(64);
const START = new Int32Array(8);

/** The first 32 bits of the fractional part of x, as FIPS 180-4 makes its constants. */
const fraction = (/** @type {number} */ x) => ((x - Math.floor(x)) * 2 ** 32) | 0;
for (let n = 2, count = 0; count < 64; n++) {
  let prime = true;
  for (let d = 2; d * d <= n; d++) if (n % d === 0) prime = false;
  if (!prime) continue;
  K[count] = fraction(Math.cbrt(n));
  if (count < 8) START[count] = fraction(Math.sqrt(n));
  count++;
}

export class Sha256 {
  #state = START.slice();
  #words = new Int32Array(64);
  #block = new Uint8Array(64);
  #used = 0;
  #length = 0;

  /** @param {Uint8Array} bytes */
  update(bytes) {
    this.#length += bytes.length;
    let at = 0;
    if (this.#used) {
      at = Math.min(64 - this.#used, bytes.length);
      this.#block.set(bytes.subarray(0, at), this.#used);
      this.#used += at;
      if (this.#used < 64) return;
      this.#compress(this.#block, 0, 64);
      this.#used = 0;
    }
    const whole = bytes.length - ((bytes.length - at) % 64);
    this.#compress(bytes, at, whole);
    this.#block.set(bytes.subarray(whole), 0);
    this.#used = bytes.length - whole;
  }

  /** The digest in hex. The object cannot be used afterwards. */
  hex() {
    const bits = this.#length * 8;
    const tail = new Uint8Array(this.#used < 56 ? 64 : 128);
    tail.set(this.#block.subarray(0, this.#used));
    tail[this.#used] = 0x80;
    const view = new DataView(tail.buffer);
    view.setUint32(tail.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(tail.length - 4, bits >>> 0);
    this.#compress(tail, 0, tail.length);
    return Array.from(this.#state, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }

  /**
   * @param {Uint8Array} p
   * @param {number} at
   * @param {number} end at + a multiple of 64
   */
  #compress(p, at, end) {
    const w = this.#words;
    const s = this.#state;
    const k = K; // a local: half the time of the module's binding
    for (; at < end; at += 64) {
      for (let i = 0, o = at; i < 16; i++, o += 4) w[i] = (p[o] << 24) | (p[o + 1] << 16) | (p[o + 2] << 8) | p[o + 3];
      for (let i = 16; i < 64; i++) {
        const x = w[i - 15];
        const y = w[i - 2];
        const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
        const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
        w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
      }
      let a = s[0],
        b = s[1],
        c = s[2],
        d = s[3],
        e = s[4],
        f = s[5],
        g = s[6],
        h = s[7];
      for (let i = 0; i < 64; i++) {
        const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
        const t1 = (h + s1 + ((e & f) ^ (~e & g)) + k[i] + w[i]) | 0;
        const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
        const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
        h = g;
        g = f;
        f = e;
        e = (d + t1) | 0;
        d = c;
        c = b;
        b = a;
        a = (t1 + t2) | 0;
      }
      s[0] += a;
      s[1] += b;
      s[2] += c;
      s[3] += d;
      s[4] += e;
      s[5] += f;
      s[6] += g;
      s[7] += h;
    }
  }
}
