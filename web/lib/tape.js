/**
 * A recording of hours: 16-bit samples in pieces that the browser may keep on its disk, with an end.
 */
import { wavHeader } from "./audio.js";

const PIECE_SECONDS = 10;
/** Levels a second, for the picture of it. */
const LEVELS = 10;
/** Three hours at 48 kHz. */
const MOST_BYTES = 3 * 3600 * 48000 * 2;

export class Tape {
  /** @type {Blob[]} */
  #pieces = [];
  #bytes = 0;
  #filled = 0;
  /** The level of the stretch under way, and its samples. */
  #peak = 0;
  #in = 0;
  /** Loudest sample of each tenth of a second. @type {number[]} */
  levels = [];

  /** @param {number} rate samples a second @param {number} [most] bytes that are kept */
  constructor(rate, most = MOST_BYTES) {
    this.rate = rate;
    this.most = most;
    this.piece = new Int16Array(PIECE_SECONDS * rate);
  }

  /** Seconds that are kept. */
  get seconds() {
    return (this.#bytes / 2 + this.#filled) / this.rate;
  }

  /** There is no room for more: what comes from now on is not kept. */
  get full() {
    return this.#bytes + 2 * this.#filled >= this.most;
  }

  /** @param {Float32Array} samples one channel, -1..1 */
  add(samples) {
    for (const x of samples) {
      if (this.full) return;
      const loud = Math.abs(x);
      if (loud > this.#peak) this.#peak = loud;
      if (++this.#in >= this.rate / LEVELS) {
        this.levels.push(this.#peak);
        this.#peak = this.#in = 0;
      }
      this.piece[this.#filled++] = Math.round(Math.max(-1, Math.min(1, x)) * 32767);
      if (this.#filled === this.piece.length) this.#store();
    }
  }

  #store() {
    const piece = new Blob([this.piece.subarray(0, this.#filled)]);
    this.#pieces.push(piece);
    this.#bytes += piece.size;
    this.#filled = 0;
  }

  /** All of it as a WAV file; null if there is nothing. */
  wav() {
    if (this.#filled) this.#store();
    if (!this.#bytes) return null;
    return new Blob([wavHeader(1, this.rate, this.#bytes), ...this.#pieces], { type: "audio/wav" });
  }
}
