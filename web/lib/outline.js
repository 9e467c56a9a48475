/**
 * The outline of a mask as polygons: marching squares over its logits, then fewer points where the line is straight.
 */
import { Upsampler } from "./mask.js";
import { clamp, fitted } from "./geometry.js";

/** @typedef {import("./geometry.js").Place} Place */
/** @typedef {import("./geometry.js").Size} Size */

/** Longest side of the grid: logits know no more than the second, and small pictures deserve the first. */
const COARSEST = 768, FINEST = 1024;
/** What lies beside the picture: surely not on the object. */
const BESIDE = -65536;

/**
 * Closed outlines in pixels of the picture: those of solid parts run clockwise, those of holes the other way.
 * @param {Float32Array} logits @param {Size} picture @param {number} [threshold]
 * @param {{tolerance?: number, smallest?: number}} [how] tolerance: how far the line may be off, smallest: area worth a
 *   polygon; both in pixels of the grid, which has the picture's size where that is 768 to 1024
 * @returns {Place[][]}
 */
export function outlines(logits, picture, threshold = 0, { tolerance = 0.4, smallest = 4 } = {}) {
  const longest = clamp(Math.max(picture.width, picture.height), COARSEST, FINEST);
  const fit = fitted(picture, { width: longest, height: longest });
  const size = { width: Math.max(1, Math.round(fit.width)), height: Math.max(1, Math.round(fit.height)) };
  const rings = trace(grid(logits, picture, size, threshold), size.width + 2);
  const sx = picture.width / size.width, sy = picture.height / size.height;
  return rings
    .filter((ring) => Math.abs(ringArea(ring)) >= smallest)
    .map((ring) => simplify(ring, tolerance))
    .filter((ring) => ring.length > 2)
    .map((ring) => ring.map(({ x, y }) => ({ x: clamp((x - 0.5) * sx, 0, picture.width), y: clamp((y - 0.5) * sy, 0, picture.height) })));
}

/** Logits over the threshold at pixel centres, with a border that is outside. @param {Float32Array} logits @param {Size} picture @param {Size} size @param {number} threshold */
function grid(logits, picture, size, threshold) {
  const up = new Upsampler(picture, size), across = size.width + 2;
  const values = new Float32Array(across * (size.height + 2)).fill(BESIDE);
  for (let y = 0; y < size.height; y++) {
    const row = values.subarray((y + 1) * across + 1, (y + 2) * across - 1);
    up.read(logits, y, row);
    for (let x = 0; x < row.length; x++) row[x] -= threshold;
  }
  return values;
}

/**
 * Marching squares. A crossing lies between two neighbours of different sign; each square of four neighbours joins its
 * crossings so that the inside is to the right, and each crossing is entered once and left once.
 * @param {Float32Array} values @param {number} across
 * @returns {Place[][]}
 */
function trace(values, across) {
  const down = values.length / across;
  // crossing (x, y)-(x+1, y) is 2 * at, crossing (x, y)-(x, y+1) is 2 * at + 1; where the line goes on from it
  const next = new Map();
  for (let y = 0; y + 1 < down; y++) {
    for (let x = 0; x + 1 < across; x++) {
      const at = y * across + x;
      const a = values[at] > 0, b = values[at + 1] > 0, c = values[at + across + 1] > 0, d = values[at + across] > 0;
      if (a === b && b === c && c === d) continue;
      const top = 2 * at, left = top + 1, bottom = 2 * (at + across), right = 2 * (at + 1) + 1;
      // around the square: a line comes in where outside turns inside and goes out where inside turns outside
      const around = /** @type {Array<[boolean, boolean, number]>} */ ([[a, b, top], [b, c, right], [c, d, bottom], [d, a, left]]);
      const ins = around.filter(([from, to]) => from && !to).map(([, , edge]) => edge);
      const outs = around.filter(([from, to]) => !from && to).map(([, , edge]) => edge);
      if (ins.length === 1) {
        next.set(ins[0], outs[0]);
      } else {                                          // a saddle: the middle decides which corners belong together
        const middle = values[at] + values[at + 1] + values[at + across + 1] + values[at + across] > 0;
        const pairs = a ? (middle ? [[top, right], [bottom, left]] : [[top, left], [bottom, right]])
          : middle ? [[left, top], [right, bottom]] : [[right, top], [left, bottom]];
        for (const [from, to] of pairs) next.set(from, to);
      }
    }
  }
  /** @param {number} edge @returns {Place} */
  const place = (edge) => {
    const at = edge >> 1, x = at % across, y = (at - x) / across;
    const other = edge & 1 ? at + across : at + 1;
    const beside = Math.min(values[at], values[other]) === BESIDE;   // then the pixel's own edge, half a step away
    const part = beside ? 0.5 : values[at] / (values[at] - values[other]);
    return edge & 1 ? { x, y: y + part } : { x: x + part, y };
  };
  const rings = [];
  while (next.size) {
    const ring = [];
    const [start] = next.keys();
    for (let edge = start; next.has(edge);) {
      ring.push(place(edge));
      const to = next.get(edge);
      next.delete(edge);
      edge = to;
    }
    rings.push(ring);
  }
  return rings;
}

/** Twice the signed area, halved: positive if it runs clockwise on the screen. @param {Place[]} ring */
export function ringArea(ring) {
  let sum = 0;
  for (let i = 0, j = ring.length - 1; i < ring.length; j = i++) sum += ring[j].x * ring[i].y - ring[i].x * ring[j].y;
  return sum / 2;
}

/**
 * Fewer points, none of them further than the tolerance from the line (Douglas and Peucker, on both halves of the ring).
 * @param {Place[]} ring @param {number} tolerance
 */
export function simplify(ring, tolerance) {
  if (ring.length < 4) return ring;
  let far = 0, most = -1;
  ring.forEach((p, i) => {
    const d = (p.x - ring[0].x) ** 2 + (p.y - ring[0].y) ** 2;
    if (d > most) [far, most] = [i, d];
  });
  const points = [...ring, ring[0]];
  const keep = new Uint8Array(points.length);
  keep[0] = keep[far] = keep[points.length - 1] = 1;
  const work = [[0, far], [far, points.length - 1]];
  for (let span = work.pop(); span; span = work.pop()) {
    const [from, to] = span;
    const a = points[from], b = points[to], dx = b.x - a.x, dy = b.y - a.y, length = Math.hypot(dx, dy);
    let worst = tolerance, at = -1;
    for (let i = from + 1; i < to; i++) {
      const p = points[i];
      const off = length ? Math.abs(dx * (a.y - p.y) - dy * (a.x - p.x)) / length : Math.hypot(p.x - a.x, p.y - a.y);
      if (off > worst) [worst, at] = [off, i];
    }
    if (at < 0) continue;
    keep[at] = 1;
    work.push([from, at], [at, to]);
  }
  return points.filter((_, i) => keep[i] && i < points.length - 1);
}
