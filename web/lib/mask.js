/**
 * Masks: from the model's square of logits (256 x 256 of all published models) to any size, to yes and no, to smooth edges, to run lengths and outlines. Plain
 * numbers, no DOM. A logit above the threshold (0 unless a person moves it) is on the object.
 */
import { clamp } from "./geometry.js";

/** @typedef {import("./geometry.js").Size} Size */
/** @typedef {{x: number, y: number, width: number, height: number}} Area whole pixels */

/** Width and height of a square of logits. @param {Float32Array} logits */
export const sideOf = (logits) => Math.round(Math.sqrt(logits.length));
/** Pixels of the encoder's square for one logit, each way. The picture covers a part of that square; the rest is padding. */
const SCALE = 4;

/**
 * For each of `n` pixels along one side, three neighbouring logits and their weights. The reference goes two ways: bilinear to
 * the encoder's square, cut off the padding, bilinear to the picture's size. Both are linear, so one step with the product of
 * the weights gives the same numbers.
 * @param {number} n @param {number} of the picture's pixels along this side @param {Size} picture @param {number} low logits along a side
 */
function taps(n, of, picture, low) {
  const square = low * SCALE, last = low - 1;
  const inside = Math.max(1, Math.floor((of * square) / Math.max(picture.width, picture.height) + 0.5));
  const first = new Int32Array(n), weights = new Float64Array(3 * n);
  for (let i = 0; i < n; i++) {
    const at = Math.max(0, ((i + 0.5) * inside) / n - 0.5);
    const inner = Math.min(Math.floor(at), inside - 1), part = at - inner;
    const placeOf = (/** @type {number} */ k) => Math.max(0, ((k + 0.5) * low) / square - 0.5);
    first[i] = Math.min(Math.floor(placeOf(inner)), low - 3);
    for (const [k, weight] of [[inner, 1 - part], [Math.min(inner + 1, inside - 1), part]]) {
      const place = placeOf(k), j = Math.floor(place), rest = place - j;
      weights[3 * i + j - first[i]] += weight * (1 - rest);
      if (rest > 0) weights[3 * i + Math.min(j + 1, last) - first[i]] += weight * rest;
    }
  }
  return { first, weights };
}

/**
 * Logits of one picture at one size, row by row: a picture of any size needs room for one row.
 */
export class Upsampler {
  #low = 0;
  #column = { first: new Int32Array(0), weights: new Float64Array(0) };
  #row = this.#column;
  #line = new Float64Array(0);

  /** @param {Size} picture the picture the logits are of @param {Size} [out] the size wanted; its own unless given */
  constructor(picture, out = picture) {
    this.picture = picture;
    this.width = out.width;
    this.height = out.height;
  }

  /** For logits of this many a side. @param {Float32Array} logits @returns {number} */
  #fit(logits) {
    const low = sideOf(logits);
    if (low !== this.#low) {
      const { picture } = this;
      this.#low = low;
      this.#column = taps(this.width, picture.width, picture, low);
      this.#row = taps(this.height, picture.height, picture, low);
      this.#line = new Float64Array(low);
    }
    return low;
  }

  /**
   * Row y from column `from` on.
   * @param {Float32Array} logits a square @param {number} y
   * @param {Float32Array} into as many columns as it has room for @param {number} [from]
   */
  read(logits, y, into, from = 0) {
    const low = this.#fit(logits);
    const { first, weights } = this.#column, line = this.#line;
    const top = this.#row.first[y] * low;
    const [a, b, c] = this.#row.weights.subarray(3 * y, 3 * y + 3);
    for (let j = 0; j < low; j++) line[j] = a * logits[top + j] + b * logits[top + low + j] + c * logits[top + 2 * low + j];
    for (let i = 0, x = from; i < into.length; i++, x++) {
      const j = first[x], w = 3 * x;
      into[i] = weights[w] * line[j] + weights[w + 1] * line[j + 1] + weights[w + 2] * line[j + 2];
    }
  }

  /** The part of the output that may lie above the threshold, with a margin; null if there is none.
   * @param {Float32Array} logits @param {number} threshold @param {number} margin output pixels
   * @returns {Area | null} */
  reach(logits, threshold, margin) {
    const side = this.#fit(logits);
    let left = side, right = -1, top = side, bottom = -1;
    for (let j = 0, at = 0; j < side; j++) {
      for (let i = 0; i < side; i++, at++) {
        if (logits[at] <= threshold) continue;
        if (i < left) left = i;
        if (i > right) right = i;
        if (j < top) top = j;
        bottom = j;
      }
    }
    if (right < 0) return null;
    const span = (/** @type {Int32Array} */ first, /** @type {number} */ low, /** @type {number} */ high) => {
      let from = 0, to = first.length;
      while (from < first.length && first[from] + 2 < low) from++;
      while (to > from && first[to - 1] > high) to--;
      return [Math.max(0, from - margin), Math.min(first.length, to + margin)];
    };
    const [x0, x1] = span(this.#column.first, left, right), [y0, y1] = span(this.#row.first, top, bottom);
    return x1 > x0 && y1 > y0 ? { x: x0, y: y0, width: x1 - x0, height: y1 - y0 } : null;
  }
}

/**
 * Yes (1) or no (0) for every pixel of the picture, row by row.
 * @param {Float32Array} logits @param {Size} picture @param {number} [threshold]
 */
export function binary(logits, picture, threshold = 0) {
  const { width, height } = picture;
  const up = new Upsampler(picture), row = new Float32Array(width), mask = new Uint8Array(width * height);
  for (let y = 0, at = 0; y < height; y++) {
    up.read(logits, y, row);
    for (let x = 0; x < width; x++, at++) mask[at] = row[x] > threshold ? 1 : 0;
  }
  return mask;
}

/**
 * How far inside the mask each pixel of an area is, in pixels: 0 on the edge, positive inside, cut off at `limit` both ways.
 * The logit over the steepness of its slope, which is right near the edge, where it counts.
 * @param {Upsampler} up @param {Float32Array} logits @param {Area} area
 * @param {number} threshold
 * @param {(row: Float32Array, y: number) => void} emit rows of `area.width` distances, y from 0; the row is used again
 */
export function distances(up, logits, area, threshold, emit) {
  const { x: left, y: top, width, height } = area;
  const one = () => new Float32Array(width);
  let before = one(), here = one(), after = one();
  const out = one();
  const read = (/** @type {number} */ y, /** @type {Float32Array} */ into) => up.read(logits, clamp(y, 0, up.height - 1), into, left);
  read(top - 1, before);
  read(top, here);
  for (let y = 0; y < height; y++) {
    read(top + y + 1, after);
    for (let x = 0; x < width; x++) {
      const dx = (here[x + 1 < width ? x + 1 : x] - here[x ? x - 1 : 0]) / 2, dy = (after[x] - before[x]) / 2;
      out[x] = (here[x] - threshold) / (Math.sqrt(dx * dx + dy * dy) + 1e-4);
    }
    emit(out, y);
    [before, here, after] = [here, after, before];
  }
}

/** Part of a pixel that is covered, for an edge at this distance. @param {number} distance */
export const cover = (distance) => (distance >= 0.5 ? 1 : distance <= -0.5 ? 0 : distance + 0.5);

/**
 * A mask as paint: RGBA with a soft edge and an outline that straddles it.
 * @param {Upsampler} up @param {Float32Array} logits @param {Area} area @param {number} threshold
 * @param {{colour: [number, number, number], opacity: number, outline: number, outlineOpacity?: number}} look
 *   opacity 0..1 of the inside; outline: width in pixels, 0 for none
 * @returns {Uint8ClampedArray<ArrayBuffer>} area.width * area.height * 4
 */
export function paint(up, logits, area, threshold, { colour, opacity, outline, outlineOpacity = 1 }) {
  const [red, green, blue] = colour;
  const rgba = new Uint8ClampedArray(area.width * area.height * 4);
  distances(up, logits, area, threshold, (row, y) => {
    for (let x = 0, at = y * area.width * 4; x < row.length; x++, at += 4) {
      const inside = cover(row[x]) * opacity;
      const edge = outline > 0 ? cover(outline / 2 - Math.abs(row[x])) * outlineOpacity : 0;
      const alpha = inside + edge * (1 - inside);
      if (alpha === 0) continue;
      rgba[at] = red;
      rgba[at + 1] = green;
      rgba[at + 2] = blue;
      rgba[at + 3] = alpha * 255;
    }
  });
  return rgba;
}

/**
 * What is known of a mask without looking at every pixel twice.
 * @param {Uint8Array} mask @param {Size} picture
 * @returns {{area: number, box: Area | null}} box: [x, y, width, height] as COCO has it, in whole pixels
 */
export function measure(mask, { width, height }) {
  let area = 0, left = width, right = -1, top = -1, bottom = -1;
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < width; x++, at++) {
      if (!mask[at]) continue;
      area++;
      if (x < left) left = x;
      if (x > right) right = x;
      if (top < 0) top = y;
      bottom = y;
    }
  }
  return { area, box: area ? { x: left, y: top, width: right - left + 1, height: bottom - top + 1 } : null };
}

/**
 * How little the mask would change with another threshold: area one above over area one below, in pixels of the picture, as the
 * reference has it.
 * @param {Float32Array} logits @param {Size} picture @param {number} [threshold] @param {number} [offset]
 */
export function stability(logits, picture, threshold = 0, offset = 1) {
  const up = new Upsampler(picture), row = new Float32Array(picture.width);
  let high = 0, low = 0;
  for (let y = 0; y < picture.height; y++) {
    up.read(logits, y, row);
    for (let x = 0; x < row.length; x++) {
      if (row[x] > threshold + offset) high++;
      if (row[x] > threshold - offset) low++;
    }
  }
  return low ? high / low : 0;
}

/**
 * COCO run lengths: down the columns, zeros first.
 * @param {Uint8Array} mask row by row @param {Size} picture
 * @returns {number[]}
 */
export function runs(mask, { width, height }) {
  const counts = [];
  let value = 0, length = 0;
  for (let x = 0; x < width; x++) {
    for (let y = 0, at = x; y < height; y++, at += width) {
      if (mask[at] === value) {
        length++;
      } else {
        counts.push(length);
        value = mask[at];
        length = 1;
      }
    }
  }
  counts.push(length);
  return counts;
}

/** Run lengths -> mask, row by row. @param {number[]} counts @param {Size} picture */
export function fromRuns(counts, { width, height }) {
  const mask = new Uint8Array(width * height);
  let x = 0, y = 0, value = 0;
  for (const count of counts) {
    for (let k = 0; k < count; k++) {
      if (value) mask[y * width + x] = 1;
      if (++y === height) [x, y] = [x + 1, 0];
    }
    value = 1 - value;
  }
  return mask;
}

/**
 * COCO's compressed run lengths: from the third on the difference to the run two before, in groups of five bits, low first;
 * bit 6 of a character says that more follow.
 * @param {number[]} counts
 */
export function compress(counts) {
  let text = "";
  counts.forEach((count, i) => {
    let x = i > 2 ? count - counts[i - 2] : count;
    for (let more = true; more;) {
      let c = x & 31;
      x >>= 5;
      more = c & 16 ? x !== -1 : x !== 0;
      if (more) c |= 32;
      text += String.fromCharCode(c + 48);
    }
  });
  return text;
}
