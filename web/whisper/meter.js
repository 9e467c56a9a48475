/**
 * The level of the microphone as bars that move.
 */
import { colour, drawBars, fitCanvas } from "../lib/ui.js";

/** What is quieter is no sound. */
const AUDIBLE = 0.003;

export class Meter {
  /** @type {number[]} */
  #levels = [];
  #told = 0;
  /** Something was heard since the start. */
  heard = false;

  /** @param {HTMLCanvasElement} canvas with role=meter, 0..100 */
  constructor(canvas) {
    this.canvas = canvas;
  }

  clear() {
    this.#levels = [];
    this.heard = false;
  }

  /** @param {number} peak of the last 40 ms, 0..1 */
  add(peak) {
    const loud = Math.max(0, Math.min(1, 1 + Math.log10(Math.max(peak, 1e-5)) / 2.5));   // -50 dB..0 dB -> 0..1
    this.#levels.push(loud);
    if (this.#levels.length > 512) this.#levels.shift();
    if (peak > AUDIBLE) this.heard = true;
    const now = performance.now();
    if (now - this.#told > 250) {
      this.#told = now;
      this.canvas.setAttribute("aria-valuenow", String(Math.round(loud * 100)));
    }
    if (document.hidden) return;
    const { pen, width, height } = fitCanvas(this.canvas);
    const bar = colour("--danger"), none = colour("--line");
    drawBars(pen, width, height, (place, bars) => {
      const level = this.#levels[this.#levels.length - bars + place];
      return level === undefined ? { size: 0, colour: none } : { size: level, colour: bar };
    });
  }
}
