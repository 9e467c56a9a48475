/**
 * What is painted over the picture: each mask as a tile of its own, at the resolution of the screen, painted again only when
 * something about it changed.
 *
 * @typedef {{logits: Float32Array, threshold: number, colour: [number, number, number], opacity: number, outline: number,
 *   outlineOpacity: number}} Look
 * @typedef {{look: Look, size: string, canvas: HTMLCanvasElement | null, x: number, y: number}} Tile canvas null: nothing to see
 */
import { paint, Upsampler } from "../lib/mask.js";
import { context } from "../lib/picture.js";

export class Overlay {
  /** @type {Map<string | number, Tile>} */
  #tiles = new Map();
  /** @type {{key: string, up: Upsampler} | null} */
  #up = null;

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
  }

  /**
   * @param {import("../lib/geometry.js").Size} picture
   * @param {import("../lib/geometry.js").Size} size device pixels
   * @param {Array<{key: string | number, look: Look}>} layers from the back to the front
   */
  draw(picture, size, layers) {
    const { canvas } = this;
    if (canvas.width !== size.width || canvas.height !== size.height) Object.assign(canvas, size);
    const pen = context(canvas);
    pen.clearRect(0, 0, size.width, size.height);
    const key = `${picture.width}x${picture.height} ${size.width}x${size.height}`;
    if (this.#up?.key !== key) this.#up = { key, up: new Upsampler(picture, size) };
    const used = new Map();
    for (const layer of layers) {
      const old = this.#tiles.get(layer.key);
      const tile = old && old.size === key && same(old.look, layer.look) ? old : this.#paint(layer.look, key);
      used.set(layer.key, tile);
      if (tile.canvas) pen.drawImage(tile.canvas, tile.x, tile.y);
    }
    this.#tiles = used;
  }

  /** @param {Look} look @param {string} size @returns {Tile} */
  #paint(look, size) {
    const { up } = /** @type {{up: Upsampler}} */ (this.#up);
    const area = up.reach(look.logits, look.threshold, Math.ceil(look.outline) + 2);
    if (!area) return { look, size, canvas: null, x: 0, y: 0 };
    const canvas = document.createElement("canvas");
    canvas.width = area.width;
    canvas.height = area.height;
    context(canvas).putImageData(new ImageData(paint(up, look.logits, area, look.threshold, look), area.width, area.height), 0, 0);
    return { look, size, canvas, x: area.x, y: area.y };
  }
}

/** @param {Look} a @param {Look} b */
function same(a, b) {
  return a.logits === b.logits || a.logits.buffer === b.logits.buffer && a.logits.byteOffset === b.logits.byteOffset
    ? a.threshold === b.threshold && a.opacity === b.opacity && a.outline === b.outline && a.outlineOpacity === b.outlineOpacity
      && a.colour.every((part, i) => part === b.colour[i])
    : false;
}
