/**
 * One stretch of live listening: microphone -> engine -> words. It knows neither the page nor what came before.
 *
 * The engine has one piece of sound at a time, and the next one, with all that came meanwhile, when it has answered: an engine that
 * is slower than speech is asked less often. What waits has an end, too; beyond it the oldest sound is left out, and counted.
 *
 * @typedef {import("../../workers/protocol.js").Segment} Segment
 * @typedef {import("../lib/link.js").Link} Link
 * @typedef {"starting" | "loading" | "listening" | "ending" | "ended"} State
 *   starting: asks for the microphone; loading: it runs, and waits for the model; ending: it is off, the last words are heard
 * @typedef {"state" | "hypothesis" | "segment" | "told"} Change told: something about the sound that a person should know
 */
import { Recorder } from "../lib/recorder.js";
import { isCancelled } from "../lib/link.js";
import { Tape } from "../lib/tape.js";

/** Seconds of sound that are worth a request; seconds that wait at most. */
const LEAST = 0.1, MOST = 30;
/** Requests that fail one after another before it gives up. */
const PATIENCE = 3;
/** Seconds of sound that were not delivered while the clock went on: less is jitter. */
const GAP = 1.5;
/** What clocks of sound devices may be off by, as a share: hours of it are no gap. */
const DRIFT = 0.001;

export class Listener {
  /** @type {State} */
  state = "starting";
  /** @type {Segment[]} */
  segments = [];
  /** What is being said. @type {{start: number, stable: string, unstable: string} | null} */
  text = null;
  /** Seconds between what was said and its words, of late. @type {number | null} */
  behind = null;
  /** Seconds of sound that came while the engine was too slow or away. */
  missed = 0;
  /** Seconds that the browser did not deliver. */
  gap = 0;
  /** The browser holds the sound back right now. */
  held = false;
  /** The microphone went away. */
  lost = false;
  /** What the engine last told of itself. @type {import("../../workers/protocol.js").LiveState | null} */
  about = null;
  /** What it ended with. @type {any} */
  error = null;
  /** @type {Tape | null} */
  tape = null;
  recorder = new Recorder({ keep: false });

  #abort = new AbortController();
  /** Sound that waits, and the place of its first sample. @type {Float32Array[]} */
  #waiting = [];
  #length = 0;
  #start = 0;
  #over = false;
  #wake = () => {};
  #began = 0;
  #looked = 0;

  /** @type {(what: Change) => void} */
  onChange = () => {};

  /** Seconds that were recorded. */
  get seconds() {
    return this.recorder.seconds;
  }

  get rate() {
    return this.recorder.rate;
  }

  /**
   * Listen until stop(), or until something stands in the way. Rejects only if the microphone does not start.
   * @param {Link} link
   * @param {() => Record<string, unknown>} options asked for when the engine is ready
   */
  async run(link, options) {
    const { recorder } = this;
    recorder.onSamples = (samples) => this.#take(samples);
    recorder.onLost = () => {
      this.lost = true;
      void this.stop();
    };
    recorder.onHeld = (held) => this.#hold(held);
    try {
      await recorder.start();
    } catch (error) {
      if (!this.#over) throw error;
      return this.#set("ended");                          // stopped while the browser asked
    }
    this.tape ??= new Tape(this.rate);
    this.#began = performance.now();
    if (this.#over) {                                     // stopped while it started
      await recorder.stop();
      return this.#set("ended");
    }
    this.#set("loading");
    const release = link.hold();
    const look = () => { if (!document.hidden) this.#look(); };
    document.addEventListener("visibilitychange", look);
    try {
      await link.up(this.#abort.signal);
      if (!this.#over) this.#set("listening");
      await this.#listen(link, options);
    } catch (error) {
      if (!this.#abort.signal.aborted) this.error = error;
    } finally {
      document.removeEventListener("visibilitychange", look);
      release();
    }
    this.#over = true;
    await recorder.stop();
    this.#drop();                                         // what was sure of words that were not waited for
    this.#set("ended");
  }

  /** The microphone goes off at once; the last words are still heard. Once more, and they are not. */
  async stop() {
    if (this.#over) return this.#abort.abort(new DOMException("stopped", "AbortError"));
    this.#over = true;
    if (this.state === "starting") return this.recorder.cancel();
    this.#set("ending");
    await this.recorder.stop();
    this.#wake();
  }

  /** @param {State} state */
  #set(state) {
    this.state = state;
    this.onChange("state");
  }

  /** @param {Float32Array} samples */
  #take(samples) {
    this.tape ??= new Tape(this.rate);
    this.tape.add(samples);
    this.#waiting.push(samples);
    this.#length += samples.length;
    while (this.#length > MOST * this.rate) {
      const { length } = /** @type {Float32Array} */ (this.#waiting.shift());
      this.#length -= length;
      this.#start += length;
      this.#miss(length);
    }
    this.#wake();
    const now = performance.now();
    if (now - this.#looked > 1000) {
      this.#looked = now;
      this.#look();
    }
  }

  /** @param {number} samples */
  #miss(samples) {
    this.missed += samples / this.rate;
    this.onChange("told");
  }

  /** @param {boolean} held */
  #hold(held) {
    if (this.#over) return;
    if (held && !document.hidden) void this.recorder.resume();
    this.held = held;
    if (!held) this.#look();
    this.onChange("told");
  }

  /** Did sound come in as fast as time went by? A page in the background may be kept from it, and a busy device loses some. */
  #look() {
    if (this.#over) return;
    if (this.held) void this.recorder.resume();
    const gap = (performance.now() - this.#began) / 1000 - this.seconds - this.gap;
    if (gap < GAP + this.seconds * DRIFT) return;
    this.gap += gap;
    this.onChange("told");
  }

  /** @param {Link} link @param {() => Record<string, unknown>} options */
  async #listen(link, options) {
    const { signal } = this.#abort;
    const ask = (/** @type {"live_start" | "live_push" | "live_end"} */ method, /** @type {object} */ params) =>
      link.run(method, params, { signal, onEvent: (event) => this.#hear(event) });
    /** The sample with which the engine's session goes on; null: there is none. @type {number | null} */
    let next = null;
    let failures = 0, sent = 0;
    while (!this.#over || this.#length > 0) {
      if (this.#length < (this.#over ? 1 : LEAST * this.rate)) {
        await new Promise((resolve) => { this.#wake = () => resolve(undefined); });
        continue;
      }
      try {
        if (next !== this.#start) {                        // at first, and where sound was left out
          if (next !== null) await ask("live_end", {});
          next = this.#start;
          this.about = await ask("live_start", { rate: this.rate, options: options(), offset: next / this.rate });
          continue;
        }
        const samples = this.#all();
        next += sent = samples.length;
        this.about = await ask("live_push", { samples });
        failures = sent = 0;
      } catch (error) {
        if (signal.aborted || isCancelled(error) || ++failures === PATIENCE) throw error;
        // of what it had, the stable words stay
        if (next !== null) this.#miss(Math.max(sent, this.text ? next - Math.round(this.text.start * this.rate) : 0));
        sent = 0;
        next = null;                                       // a new engine, or the model on another device: it begins anew
        this.#drop();
      }
    }
    if (next !== null) this.about = await ask("live_end", {});
  }

  /** All that waits, as one piece. */
  #all() {
    const samples = new Float32Array(this.#length);
    let at = 0;
    for (const block of this.#waiting) {
      samples.set(block, at);
      at += block.length;
    }
    this.#waiting = [];
    this.#start += this.#length;
    this.#length = 0;
    return samples;
  }

  /** What was being said will not be gone on with: its words stay as they are. */
  #drop() {
    const { text } = this;
    this.text = null;
    if (text?.stable.trim()) this.#keep({ start: text.start, end: Math.max(text.start, this.#start / this.rate), text: `${text.stable} …` });
    this.onChange("hypothesis");
  }

  /** @param {{start: number, end: number, text: string}} segment */
  #keep(segment) {
    const before = this.segments.length ? this.segments[this.segments.length - 1].end : 0;
    const times = { start: Math.max(segment.start, before), end: Math.max(segment.end, before) };
    this.segments.push(/** @type {Segment} */ ({ ...segment, ...times, id: this.segments.length }));
    this.onChange("segment");
  }

  /** @param {any} event */
  #hear(event) {
    if (event.event !== "hypothesis" && event.event !== "segment") return;
    if (!this.#over) this.behind = Math.max(0, this.seconds - event.heard);
    if (event.event === "segment") {
      this.text = null;
      return this.#keep(event.segment);
    }
    const { start, stable, unstable } = event;
    this.text = stable.trim() || unstable.trim() ? { start, stable, unstable } : null;
    this.onChange("hypothesis");
  }
}
