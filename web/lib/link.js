/**
 * The page's hold on the engine: which model with which settings, loading in the background, and one place that knows its
 * state. A request made while the model loads simply waits for it; a change of settings replaces the load under way.
 *
 * @typedef {"idle" | "loading" | "ready" | "busy" | "failed"} State
 * @typedef {{model: string | null, files?: File[], name: string}} Model
 * @typedef {{executor: "auto" | "wasm" | "webgpu" | "numpy", threads: number | null, capacity?: number | null}} Choice
 *   capacity: tokens that a language model shall have room for
 */
import { Engine, EngineError } from "../../workers/client.js";
import { fasterWords, forgetTrial, trialOf } from "./device.js";
import { settings } from "./ui.js";

/** True for the error that means "you asked for this to stop". @param {unknown} error */
export function isCancelled(error) {
  const { code, name } = /** @type {{code?: unknown, name?: string}} */ (error ?? {});
  return code === "cancelled" || name === "AbortError";
}

/**
 * The promise, or the stop, whichever is first.
 * @template T
 * @param {Promise<T>} promise
 * @param {AbortSignal} signal
 * @returns {Promise<T>}
 */
export function orStopped(promise, signal) {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    promise.then(resolve, reject);
  });
}

/**
 * Python starts while the model comes in. Of the two the download takes longer, and a bar that shows both in turn shows
 * neither: as long as something is to come down, that is what is told.
 * @param {any} event @param {any} shown
 */
function behind(event, shown) {
  return event.stage === "runtime" && shown?.stage === "download" && shown.done < shown.total;
}

export class Link {
  #engine = new Engine();
  /** @type {Promise<any> | null} */
  #load = null;
  #stop = new AbortController();
  #busy = 0;

  /** @type {State} */
  state = "idle";
  /** What load() told: model, executor, memory, timings. @type {any} */
  info = null;
  /** The last notification while loading. @type {any} */
  progress = null;
  /** Bytes of memory that the model will take, once its files tell; null before. @type {number | null} */
  needs = null;
  /** @type {any} */
  error = null;
  /** Whether what it does is to compare kernels with the reference. */
  verifying = false;
  /** The model that was loaded last: it takes the place of another that cannot be. @type {Model | null} */
  #worked = null;
  /** What requests wait for: a GPU that is tried before its first use, and left where it is wrong. @type {Promise<void> | null} */
  trial = null;

  /** Called after every change of state, progress, info or error. @type {() => void} */
  onChange = () => {};

  /** A person's own model could not be loaded; the one that worked before it is loaded again. @type {(refused: Model, error: unknown) => void} */
  onFallBack = () => {};

  /** The family that the page takes; others are refused. @type {"whisper" | "sam" | "llama" | null} */
  family = null;

  /** @param {Model} model @param {Choice} choice */
  constructor(model, choice) {
    this.model = model;
    this.choice = choice;
  }

  /** Start loading, or go on with the load under way. Resolves with the model's facts; rejects if that load fails. */
  ready() {
    this.#load ??= this.#begin();
    return this.#load;
  }

  /** @returns {Promise<any>} */
  async #begin() {
    const stop = this.#stop = new AbortController();
    const { model, files } = this.model;
    const { executor, threads, capacity } = this.choice;
    const current = () => stop === this.#stop;
    const distrusted = executor === "auto" && settings.get("wrong-gpu") === navigator.userAgent;
    const raced = trialOf(this.family), slow = raced && raced.times < 1 ? raced : null;
    this.#set("loading", { info: null, progress: null, needs: null, error: null });
    try {
      const info = await this.#engine.load(
        { model, executor: distrusted ? "wasm" : executor, ...(files && { files }), ...(threads && { threads }), ...(capacity && { capacity }),
          ...(this.family && { family: this.family }), ...(slow && { slow: { gpu: slow.gpu, times: slow.times, failed: slow.failed } }),
          ...(settings.get("mirror") && model && { mirror: settings.get("mirror") }) },
        { signal: stop.signal, onEvent: (/** @type {any} */ event) => {
          if (!current() || event.event !== "progress") return;
          if (event.stage === "memory") this.#set("loading", { needs: event.total });
          else if (!behind(event, this.progress)) this.#set("loading", { progress: event });
        } });
      stop.signal.throwIfAborted();                       // it came to its end all the same
      if (raced && raced.version !== info.version) forgetTrial(this.family);   // it tells nothing of what runs now
      else if (raced && executor === "auto") info.reason += fasterWords(raced, info);
      if (distrusted) info.reason = `${info.reason}, as a verification found this GPU wrong`;
      if (current()) {
        this.#worked = this.model;
        this.#set("ready", { info, progress: null });
      }
      return info;
    } catch (caught) {
      const why = stop.signal.reason;                     // a load that was refused ends with the reason, not as stopped
      const error = why instanceof EngineError ? why : caught;
      const refused = this.model, worked = this.#worked;
      if (current() && !isCancelled(error) && !refused.model && worked && worked !== refused) {
        this.model = worked;
        this.onFallBack(refused, error);
        return await this.#begin();                       // who waits is served by the model that worked
      }
      if (current()) {
        this.#load = null;
        this.#set(isCancelled(error) ? "idle" : "failed", { error: isCancelled(error) ? null : error, progress: null });
      }
      throw error;
    }
  }

  /**
   * Loaded: who waits for a load that another one replaces, waits for that. Rejects if it fails or is stopped.
   * @param {AbortSignal} signal
   */
  async up(signal) {
    for (;;) {
      try {
        return await orStopped(this.ready(), signal);
      } catch (/** @type {any} */ error) {
        if (signal.aborted || !error?.data?.replaced) throw error;
      }
    }
  }

  /**
   * Forget the load under way or done, so that the next ready() starts afresh with the model and choice of then.
   * @param {boolean} [replaced] another load takes its place: see up()
   */
  reset(replaced = false) {
    const loading = this.state === "loading";
    const { signal } = this.#stop;
    this.#load = null;
    if (loading) {
      this.#stop.abort(replaced ? new EngineError("cancelled", "another load takes its place", { replaced }) : undefined);
    } else if (!signal.aborted) {
      this.#stop = new AbortController();
    }
    this.#set("idle", { info: null, progress: null, needs: null, error: null });
  }

  /**
   * Stop loading; what was stored stays for the next try. The worker may take its time to answer: who asks for the model in
   * between starts a new load, and is not given the end of this one.
   */
  stopLoading() {
    if (this.state === "loading") this.reset();
  }

  /** End a load that cannot come to anything; who waits for it hears why. @param {EngineError} error */
  refuse(error) {
    if (this.state === "loading") this.#stop.abort(error);
  }

  /**
   * A request to the loaded model.
   * @param {"transcribe" | "live_start" | "live_push" | "live_end" | "set_image" | "predict" | "everything" | "embedding" | "prepare" | "generate" | "verify"} method
   * @param {any} params as in workers/protocol.js
   * @param {{signal?: AbortSignal, onEvent?: (event: any) => void}} [how]
   * @returns {Promise<any>}
   */
  async run(method, params, how = {}) {
    if (this.trial && method !== "verify") {
      const { signal } = how, { trial } = this;
      signal?.throwIfAborted();
      const tried = trial.then(() => this.ready());
      await (signal ? orStopped(tried, signal) : tried);
      if (this.trial === trial) this.trial = null;
    }
    this.verifying ||= method === "verify";
    const release = this.hold();
    try {
      return await this.#engine.request(method, params, { ...how, onEvent: (event) => {
        if (event.event === "restart") this.#restarted(event);
        how.onEvent?.(event);
      } });
    } finally {
      if (method === "verify") this.verifying = false;
      release();
    }
  }

  /** Work of several requests: the model counts as busy until the function that is given back is called. */
  hold() {
    this.#busy++;
    if (this.state === "ready") this.#set("busy", {});
    return () => {
      this.#busy--;
      if (this.#busy === 0 && this.state === "busy") this.#set("ready", {});
    };
  }

  /** The GPU failed, and the request began anew elsewhere: what is told of how it runs. @param {any} event */
  #restarted({ event: _event, id: _id, ...facts }) {
    if (this.info) this.#set(this.state, { info: { ...this.info, ...facts } });
  }

  /** What files are and will take, from their headers; what is loaded stays. @param {File[]} files */
  async examine(files) {
    if (this.state !== "busy") return this.#engine.examine({ files });
    const beside = new Engine();                          // the one in use may have no time for an hour
    try {
      return await beside.examine({ files });
    } finally {
      beside.close();
    }
  }

  /** Versions and device facts as the worker sees them, or null while there is no worker to ask. */
  async describe() {
    return this.state === "ready" ? this.#engine.describe() : null;
  }

  /** @param {State} state @param {{info?: any, progress?: any, needs?: number | null, error?: any}} more */
  #set(state, more) {
    this.state = state;
    Object.assign(this, more);
    this.onChange();
  }
}
