/**
 * The recording to listen to: play, seek on its waveform, and tell where it is.
 */
import { byId, colour, drawBars, fitCanvas, formatClock } from "../lib/ui.js";

export class Player {
  #root = byId("player", HTMLDivElement);
  #audio = byId("audio", HTMLAudioElement);
  #button = byId("play", HTMLButtonElement);
  #seek = byId("seek", HTMLInputElement);
  #canvas = byId("wave", HTMLCanvasElement);
  /** @type {Float32Array | null} */
  #peaks = null;
  #seconds = 0;
  #frame = 0;

  /**
   * Called with the place in seconds while it plays and after each seek.
   * @type {(seconds: number) => void}
   */
  onTime = () => {};

  constructor() {
    const audio = this.#audio;
    this.#button.addEventListener("click", () => this.toggle());
    this.#seek.addEventListener("input", () => this.seek(Number(this.#seek.value)));
    this.#seek.addEventListener("keydown", (event) => {
      const jump = { ArrowLeft: -5, ArrowDown: -5, ArrowRight: 5, ArrowUp: 5, PageUp: 30, PageDown: -30 }[event.key];
      if (!jump) return;
      event.preventDefault();
      this.seek(audio.currentTime + jump);
    });
    for (const name of ["play", "pause", "ended"]) audio.addEventListener(name, () => this.#playing());
    for (const name of ["seeked", "timeupdate"]) audio.addEventListener(name, () => this.#draw());
    audio.addEventListener("loadedmetadata", () => {
      if (Number.isFinite(audio.duration)) this.#seconds = audio.duration;
      this.#draw();
    });
    audio.addEventListener("error", () => { if (audio.getAttribute("src")) this.#root.hidden = true; });
    new ResizeObserver(() => this.#draw()).observe(this.#canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  /** @param {Blob} blob what to play @param {number | null} seconds its length where known */
  show(blob, seconds) {
    this.hide();
    this.#seconds = seconds ?? 0;
    this.#audio.src = URL.createObjectURL(blob);
    this.#root.hidden = false;
    this.#draw();
  }

  /** @param {Float32Array | null} peaks */
  setPeaks(peaks) {
    this.#peaks = peaks;
    this.#draw();
  }

  hide() {
    this.#audio.pause();
    if (this.#audio.src) URL.revokeObjectURL(this.#audio.src);
    this.#audio.removeAttribute("src");
    this.#audio.load();
    this.#peaks = null;
    this.#root.hidden = true;
  }

  /** Where it is, in seconds. */
  get at() {
    return this.#audio.currentTime;
  }

  get shown() {
    return !this.#root.hidden;
  }

  pause() {
    this.#audio.pause();
  }

  toggle() {
    if (this.#audio.paused) void this.#audio.play().catch(() => {});
    else this.#audio.pause();
  }

  /** @param {number} seconds @param {boolean} [play] start playing there */
  seek(seconds, play = false) {
    this.#audio.currentTime = Math.max(0, Math.min(seconds, this.#seconds || seconds));
    if (play && this.#audio.paused) this.toggle();
    this.#draw();
  }

  #playing() {
    const on = !this.#audio.paused;
    this.#button.setAttribute("aria-pressed", String(on));
    this.#button.setAttribute("aria-label", on ? "Pause" : "Play");
    cancelAnimationFrame(this.#frame);
    const step = () => {
      this.#draw();
      if (!this.#audio.paused) this.#frame = requestAnimationFrame(step);
    };
    step();
  }

  #draw() {
    if (this.#root.hidden) return;
    const at = this.#audio.currentTime, seconds = this.#seconds;
    const part = seconds ? Math.min(1, at / seconds) : 0;
    this.#seek.max = String(seconds || 1);
    this.#seek.value = String(at);
    this.#seek.setAttribute("aria-valuetext", `${formatClock(at)} of ${formatClock(seconds)}`);
    byId("at", HTMLSpanElement).textContent = formatClock(at);
    byId("length", HTMLSpanElement).textContent = formatClock(seconds);
    if (at > 0 || !this.#audio.paused) this.onTime(at);   // nothing is lit before it is first played

    const { pen, width, height } = fitCanvas(this.#canvas);
    const heard = colour("--accent"), ahead = colour("--wave");
    drawBars(pen, width, height, (bar, bars) => {
      const fill = (bar + 0.5) / bars <= part ? heard : ahead;
      if (!this.#peaks) return { size: 0.08, colour: fill };
      const n = this.#peaks.length;
      let peak = 0;
      const end = Math.max(Math.floor(((bar + 1) * n) / bars), Math.floor((bar * n) / bars) + 1);
      for (let i = Math.floor((bar * n) / bars); i < end; i++) peak = Math.max(peak, this.#peaks[i]);
      return { size: peak ** 0.7, colour: fill };
    });
  }
}
