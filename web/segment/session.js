/**
 * The picture in the engine and the questions about it. A picture is encoded once; what the encoder made is kept by content
 * and model for later visits. One question at a time: while it runs, newer ones of the same object replace those that wait,
 * and the one that only follows the pointer waits for all others.
 *
 * @typedef {import("../lib/picture.js").Picture} Picture
 * @typedef {import("./objects.js").Prompt} Prompt
 * @typedef {import("./objects.js").Answer & {timings: Record<string, number>, prompt: Prompt}} Answer
 */
import { keep, recall } from "../lib/embeddings.js";
import { isCancelled } from "../lib/link.js";
import { context } from "../lib/picture.js";

/** Tokens of the prompts that come next after a first click: two, three, four points, or a box and one or two. */
const USUAL = [3, 4, 5];
/** Nobody has asked anything for so long. */
const IDLE_MS = 300;

export class Session {
  /** @type {Picture | null} */
  picture = null;
  /** Where this picture stands. @type {"none" | "waiting" | "encoding" | "ready" | "failed"} */
  state = "none";
  /** @type {Record<string, number>} */
  timings = {};
  #stop = new AbortController();
  /** @type {Promise<void> | null} */
  #opening = null;
  /** Questions that wait, by object. @type {Map<number, Prompt>} */
  #waiting = new Map();
  /** @type {Prompt | null} */
  #hover = null;
  #busy = false;
  /** What is yet to be prepared, and for which load of the model. @type {{info: any, tokens: number[]}} */
  #ahead = { info: null, tokens: [] };
  #idle = 0;

  /** Called when state or timings changed. @type {() => void} */
  onChange = () => {};
  /** @type {(answer: Answer) => void} */
  onAnswer = () => {};
  /** @type {(answer: Answer) => void} */
  onHover = () => {};
  /** @type {(error: unknown) => void} */
  onError = () => {};
  /** Name of the loaded weights, or null where they have none that tells their content. @type {() => Promise<string | null>} */
  modelKey = async () => null;

  /** @param {import("../lib/link.js").Link} link */
  constructor(link) {
    this.link = link;
  }

  /** A picture takes the place of the one before; answers about that one are dropped from now on. @param {Picture} picture */
  open(picture) {
    this.close();
    this.picture = picture;
    this.timings = {};
    return this.#open();
  }

  /** Encode again, for example with another model. */
  reopen() {
    if (!this.picture) return;
    const { picture } = this;
    void this.open(picture).catch(() => {});
  }

  /** Forget the picture. */
  close() {
    this.stop();
    this.picture = null;
    this.#set("none");
  }

  /** Stop what runs and forget what waits. */
  stop() {
    this.#stop.abort();
    this.#stop = new AbortController();
    this.#waiting.clear();
    this.#hover = null;
    this.#opening = null;
    if (this.state === "waiting" || this.state === "encoding") this.#set("none");
  }

  /** The engine is replaced by another: the picture is to be brought into that. */
  forget() {
    this.stop();
    this.#set("none");
  }

  /** @param {Session["state"]} state */
  #set(state) {
    this.state = state;
    this.onChange();
  }

  /** Bring the picture into the engine, or go on waiting for that. */
  #open() {
    this.#opening ??= this.#encode(/** @type {Picture} */ (this.picture), this.#stop.signal);
    return this.#opening;
  }

  /** @param {Picture} picture @param {AbortSignal} signal */
  async #encode(picture, signal) {
    const mine = () => { signal.throwIfAborted(); };
    this.#set("waiting");
    try {
      const [, model] = await Promise.all([this.link.ready(), this.modelKey()]);
      mine();
      this.#set("encoding");
      const { view, id } = picture;
      const { width, height } = view;
      const key = picture.known && model ? `${model} ${id} ${width}x${height}` : null;
      const embedding = key && await recall(key);
      mine();
      const pixels = embedding ? { embedding } : { rgba: context(view).getImageData(0, 0, width, height).data };
      const { timings } = await this.link.run("set_image", { id, image: { width, height, ...pixels } }, { signal });
      mine();
      this.timings = timings;
      this.#set("ready");
      void this.#pump();
      if (key && !embedding && this.link.info?.executor !== "webgpu") {   // a wrong GPU's would be believed at every later visit
        const kept = await this.link.run("embedding", { id }, { signal }).catch(() => null);
        if (kept) await keep(key, kept.embedding);
      }
    } catch (error) {
      if (!signal.aborted) {
        this.#opening = null;
        this.#set(isCancelled(error) ? "none" : "failed");
        if (!isCancelled(error)) this.onError(error);
      }
      throw error;
    }
  }

  // ---- questions ------------------------------------------------------------------------------------------------

  /** @param {number} object @param {Prompt} prompt */
  ask(object, prompt) {
    this.#hover = null;
    this.#waiting.delete(object);                        // the newest stands last
    this.#waiting.set(object, prompt);
    if (this.state === "ready") void this.#pump();
    else if (this.state !== "encoding" && this.state !== "waiting" && this.picture) void this.#open().catch(() => {});
  }

  /** What a click there would give. @param {Prompt | null} prompt null: the pointer is gone */
  follow(prompt) {
    this.#hover = prompt;
    if (this.state === "ready") void this.#pump();
  }

  get asking() {
    return this.#waiting.size > 0 || this.#busy;
  }

  async #pump() {
    if (this.#busy) return;
    this.#busy = true;
    const { signal } = this.#stop;
    try {
      while (!signal.aborted && this.state === "ready") {
        const [next] = this.#waiting;
        const prompt = next ? next[1] : this.#hover;
        if (!prompt) return;
        if (next) this.#waiting.delete(next[0]);
        else this.#hover = null;
        const began = performance.now();
        const answer = await this.#predict(prompt, signal);
        if (signal.aborted) return;
        if (next) {
          this.timings = { ...this.timings, decode_ms: answer.timings.decode_ms, click_ms: performance.now() - began };
          this.onAnswer({ ...answer, prompt });
          this.onChange();
          this.#prepareSoon();
        } else {
          this.onHover({ ...answer, prompt });
        }
      }
    } catch (error) {
      if (!signal.aborted && !isCancelled(error)) this.onError(error);
    } finally {
      this.#busy = false;
      if (signal.aborted && this.state === "ready") void this.#pump();   // a new picture was ready meanwhile
    }
  }

  /**
   * A prompt of another size wants a program of its own, and the first of its kind would wait a tenth of a second for that. The
   * usual ones are made after the first answer, while nobody asks for anything.
   */
  #prepareSoon() {
    const { info } = this.link;
    if (this.#ahead.info !== info) this.#ahead = { info, tokens: [...USUAL] };
    if (!this.#ahead.tokens.length) return;
    clearTimeout(this.#idle);
    this.#idle = setTimeout(async () => {
      if (this.state !== "ready" || this.asking || this.#hover || this.link.state !== "ready" || this.link.info !== info) return;
      const [tokens] = this.#ahead.tokens;
      try {
        await this.link.run("prepare", { tokens });
        if (this.#ahead.tokens[0] === tokens) this.#ahead.tokens.shift();
        this.#prepareSoon();
      } catch {
        this.#ahead.tokens = [];                         // whoever asks for such a prompt is told what is wrong
      }
    }, IDLE_MS);
  }

  /** @param {Prompt} prompt @param {AbortSignal} signal @returns {Promise<any>} */
  async #predict(prompt, signal) {
    const picture = /** @type {Picture} */ (this.picture);
    const request = asRequest(picture, prompt);
    const ask = async () => {
      const answer = await this.link.run("predict", request, { signal });
      if (answer.id !== picture.id) throw new DOMException("an answer about another picture", "AbortError");
      return answer;
    };
    try {
      return await ask();
    } catch (error) {
      if (signal.aborted || !isForgotten(error)) throw error;
      await this.#again(signal);
      return ask();
    }
  }

  /** The engine was replaced and does not know the picture any more. @param {AbortSignal} signal */
  async #again(signal) {
    this.#opening = null;
    await this.#encode(/** @type {Picture} */ (this.picture), signal);
  }

  /**
   * Every object of the picture.
   * @param {(event: any) => void} onEvent @param {AbortSignal} stop
   */
  async everything(onEvent, stop) {
    const picture = /** @type {Picture} */ (this.picture);
    this.#hover = null;
    const signal = AbortSignal.any([stop, this.#stop.signal]);
    const run = () => this.link.run("everything", { id: picture.id, options: { points_per_side: 16 } }, { signal, onEvent });
    const began = performance.now();
    try {
      try {
        await run();
      } catch (error) {
        if (signal.aborted || !isForgotten(error)) throw error;
        await this.#again(signal);
        await run();
      }
    } finally {
      if (picture === this.picture) {
        this.timings = { ...this.timings, everything_ms: performance.now() - began };
        this.onChange();
      }
    }
  }
}

/** @param {any} error */
const isForgotten = (error) => error?.code === "bad_input" && error.data != null && "image" in error.data;

/**
 * A prompt as the engine wants it: pixels of what it was given, counted from the middle of the first.
 * @param {Picture} picture @param {Prompt} prompt
 */
export function asRequest({ id, width, height, view }, { points, box, seed }) {
  const x = (/** @type {number} */ value) => (value * view.width) / width - 0.5, y = (/** @type {number} */ value) => (value * view.height) / height - 0.5;
  return {
    id, points: points.map((point) => [x(point.x), y(point.y)]), labels: points.map((point) => point.label),
    box: box && [x(box.x0), y(box.y0), x(box.x1), y(box.y1)], mask_input: seed,
  };
}
