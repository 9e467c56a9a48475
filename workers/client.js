/**
 * The page's side of the engine. Every request settles exactly once, whatever happens to the worker: a worker that cannot be
 * loaded, dies, or does not answer a cancel is replaced, and the model is loaded again at the next use.
 *
 *     const engine = new Engine();
 *     await engine.load({ model: "../../models/whisper-tiny.en/" }, { onEvent, signal });
 *     const { text } = await engine.transcribe({ audio: { kind: "wav", bytes } }, { onEvent, signal });
 *
 * Every call with its parameters and answers: docs/javascript.md.
 */

import { features } from "./features.js";
import { EngineError } from "./protocol.js";

export { EngineError, features };
export { checkMirror } from "./mirror.js";
export { keepOwn, keptFiles, removeStored, stored } from "./stored.js";

/** Requests that need no model. */
const WITHOUT_MODEL = ["load", "unload", "describe", "examine"];
/** A worker must say something at least this often until it has answered its first request; while Python starts, a busy device may be silent for long. */
const START_MS = 120000;
/** A cancel must be answered in this time. */
const CANCEL_MS = 2000;

/**
 * @typedef {object} RequestOptions
 * @property {(event: import("./protocol.js").Notification) => void} [onEvent]
 * @property {AbortSignal} [signal]
 */

/**
 * @typedef {object} Pending
 * @property {number} id
 * @property {string} method
 * @property {any} params
 * @property {RequestOptions} options
 * @property {(value: any) => void} resolve
 * @property {(error: EngineError) => void} reject
 * @property {boolean} settled
 * @property {() => void} onAbort
 */

export class Engine {
  /** @type {Worker | null} */
  #worker = null;
  /** @type {Pending[]} */
  #waiting = [];
  /** @type {Pending | null} the one that the worker has */
  #running = null;
  #lastId = 0;
  /** what to load again in a new worker @type {import("./protocol.js").LoadParams | null} */
  #model = null;
  /** whether this worker has it */
  #modelIsIn = false;
  /** word 0: cancel the running request */
  #stop = features().threads ? new Int32Array(new SharedArrayBuffer(4)) : null;
  /** the stop word of shared kernel memory @type {{words: Int32Array, index: number} | null} */
  #kernelStop = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #startTimer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #cancelTimer;
  /** whether this worker has answered a request or told that it is ready */
  #alive = false;
  /** whether this worker cannot serve any request and is to be replaced after the running one */
  #gone = false;
  #closed = false;

  /** @param {{workerUrl?: string | URL, startMs?: number, cancelMs?: number, onEvent?: RequestOptions["onEvent"]}} [options]
   *    onEvent: events that belong to no request (id 0), such as progress of the start */
  constructor({
    workerUrl = new URL("engine.worker.js", import.meta.url),
    startMs = START_MS,
    cancelMs = CANCEL_MS,
    onEvent,
  } = {}) {
    this.workerUrl = workerUrl;
    this.startMs = startMs;
    this.cancelMs = cancelMs;
    this.onEvent = onEvent;
    this.#start();
  }

  /** @param {import("./protocol.js").LoadParams} params @param {RequestOptions} [options] @returns {Promise<import("./protocol.js").LoadResult & Record<string, any>>} */
  load(params, options) {
    // an address is meant as the page's own, and the worker has another
    const model = params.model && new URL(params.model, globalThis.document?.baseURI ?? globalThis.location.href).href;
    return this.request("load", { ...params, model }, options);
  }

  /** @param {import("./protocol.js").TranscribeParams} params @param {RequestOptions} [options] @returns {Promise<import("./protocol.js").Transcript>} */
  transcribe(params, options) {
    return this.request("transcribe", params, options);
  }

  /** @param {import("./protocol.js").GenerateParams} params @param {RequestOptions} [options] @returns {Promise<import("./protocol.js").Generated>} */
  generate(params, options) {
    return this.request("generate", params, options);
  }

  /**
   * What a person's own files are and will take, from their headers, before they are loaded.
   * @param {{files: File[]}} params @param {RequestOptions} [options] @returns {Promise<import("./protocol.js").Examined>}
   */
  examine(params, options) {
    return this.request("examine", params, options);
  }

  /**
   * Look at a picture; what `predict` and `everything` are asked is about it.
   * @param {import("./protocol.js").SetImageParams} params @param {RequestOptions} [options]
   * @returns {Promise<{id: string, width: number, height: number, timings: Record<string, number>}>}
   */
  setImage(params, options) {
    return this.request("set_image", params, options);
  }

  /** @param {import("./protocol.js").PredictParams} params @param {RequestOptions} [options] @returns {Promise<import("./protocol.js").Prediction>} */
  predict(params, options) {
    return this.request("predict", params, options);
  }

  /** Every object of the picture, each as a "region" event. @param {import("./protocol.js").EverythingParams} params @param {RequestOptions} [options] @returns {Promise<Record<string, any>>} */
  everything(params, options) {
    return this.request("everything", params, options);
  }

  /** Versions, features, memory, cache. @param {RequestOptions} [options] @returns {Promise<Record<string, any>>} */
  describe(options) {
    return this.request("describe", {}, options);
  }

  /** @param {RequestOptions} [options] */
  unload(options) {
    return this.request("unload", {}, options);
  }

  /**
   * @param {import("./protocol.js").Method} method
   * @param {any} params
   * @param {RequestOptions} [options]
   * @returns {Promise<any>} rejects with an EngineError
   */
  request(method, params, options = {}) {
    return new Promise((resolve, reject) => {
      if (this.#closed) return reject(new EngineError("worker_died", "this engine was closed; make a new one"));
      if (options.signal?.aborted) return reject(new EngineError("cancelled", "stopped"));
      const id = ++this.#lastId;
      /** @type {Pending} */
      const pending = {
        id,
        method,
        params,
        options,
        resolve,
        reject,
        settled: false,
        onAbort: () => this.#cancel(pending),
      };
      options.signal?.addEventListener("abort", pending.onAbort, { once: true });
      this.#waiting.push(pending);
      this.#next();
    });
  }

  /** Stop everything and let go of the worker. */
  close() {
    this.#closed = true;
    this.#drop(new EngineError("cancelled", "the engine was closed"));
  }

  #start() {
    this.#alive = false;
    this.#gone = false;
    this.#modelIsIn = false;
    this.#kernelStop = null;
    let worker;
    try {
      worker = new Worker(this.workerUrl, { type: "module", name: "candlewick engine" });
    } catch (error) {
      return this.#drop(
        new EngineError(
          "worker_died",
          `${this.workerUrl}: a worker could not be made (${/** @type {Error} */ (error).message})`,
        ),
      );
    }
    this.#worker = worker;
    worker.onmessage = ({ data }) => this.#worker === worker && this.#receive(data);
    worker.onmessageerror = () =>
      this.#worker === worker &&
      this.#drop(new EngineError("worker_died", "a message of the engine could not be read"));
    worker.onerror = (event) => {
      event.preventDefault?.();
      if (this.#worker !== worker) return;
      const what = event.message
        ? `failed: ${event.message} (${event.filename}:${event.lineno})`
        : "could not be loaded; is it there, and is the server running?";
      this.#drop(new EngineError("worker_died", `${this.workerUrl} ${what}`));
    };
    const lock = `candlewick engine ${Date.now()} ${Math.random()}`;
    worker.postMessage({ method: "start", params: { stop: this.#stop?.buffer ?? null, lock } });
    this.#watchStart();
  }

  /** The worker holds this lock for as long as it lives; no event tells when a browser ends a worker. @param {string} name */
  #watchLife(name) {
    const worker = this.#worker;
    navigator.locks.request(name, () => {
      if (this.#worker === worker && !this.#closed)
        this.#drop(
          new EngineError(
            "worker_died",
            "the engine ended unexpectedly, perhaps for want of memory; the next use starts a new one",
          ),
        );
    });
  }

  /** Until the worker is alive, silence means that it never will be. */
  #watchStart() {
    clearTimeout(this.#startTimer);
    if (this.#alive) return;
    this.#startTimer = setTimeout(() => {
      if (this.#running)
        this.#drop(
          new EngineError(
            "worker_died",
            `the engine gave no sign of life for ${this.startMs / 1000} s while it started; try again`,
          ),
        );
    }, this.startMs);
  }

  /** Give the worker its next request. @returns {void} */
  #next() {
    if (this.#running || !this.#waiting.length || this.#closed) return;
    if (this.#gone) this.#drop(new EngineError("worker_died", "the engine did not start"), false);
    if (this.#running) return;
    if (!this.#worker) this.#start();
    if (!this.#worker) return;
    const needsModel = !WITHOUT_MODEL.includes(this.#waiting[0].method) && this.#model && !this.#modelIsIn;
    const pending = needsModel ? this.#reload(this.#waiting[0]) : /** @type {Pending} */ (this.#waiting.shift());
    this.#running = pending;
    if (this.#stop) Atomics.store(this.#stop, 0, 0);
    try {
      this.#worker.postMessage({ id: pending.id, method: pending.method, params: pending.params });
    } catch (error) {
      this.#running = null;
      this.#settle(
        pending,
        new EngineError(
          "bad_input",
          `${pending.method}: the parameters cannot be sent to a worker (${/** @type {Error} */ (error).message})`,
        ),
      );
      return this.#next();
    }
    if (pending.options.signal?.aborted) this.#cancel(pending);
    this.#watchStart();
  }

  /** A load of the model of before, on behalf of a request that needs it. @param {Pending} behalf @returns {Pending} */
  #reload(behalf) {
    const id = ++this.#lastId;
    return {
      id,
      method: "load",
      params: this.#model,
      options: behalf.options,
      resolve: () => {},
      // what stands in its way, stands in the way of the request
      reject: (error) => {
        this.#waiting = this.#waiting.filter((pending) => pending !== behalf);
        this.#settle(behalf, error);
      },
      settled: false,
      onAbort: () => {},
    };
  }

  /** @param {any} message */
  #receive(message) {
    if (message.event === "fatal") {
      return this.#drop(
        new EngineError(
          "worker_died",
          `the Python interpreter failed for good (${message.message}); the next use starts a new one`,
        ),
      );
    }
    if (message.event === "gone") this.#gone = true;
    if (message.event === "locked") return this.#watchLife(message.name);
    if (message.event === "kernel") {
      this.#kernelStop = message.buffer ? { words: new Int32Array(message.buffer), index: message.stop / 4 } : null;
      return;
    }
    if (message.event) {
      this.#watchStart();
      const listener =
        message.id === 0 ? this.onEvent : message.id === this.#running?.id ? this.#running?.options.onEvent : undefined;
      return this.#call(listener, message);
    }
    const pending = this.#running;
    if (!pending || message.id !== pending.id) return;
    this.#alive = true;
    this.#running = null;
    clearTimeout(this.#startTimer);
    clearTimeout(this.#cancelTimer);
    if (pending.method === "load") {
      this.#modelIsIn = !message.error;
      if (!message.error) this.#model = pending.params;
      else if (message.error.code !== "cancelled") this.#model = null;
    }
    if (pending.method === "unload") this.#model = null;
    this.#settle(pending, message.error ? EngineError.fromValue(message.error) : null, message.result);
    this.#next();
  }

  /** A listener of the page must not break ours. @param {RequestOptions["onEvent"]} listener @param {any} event */
  #call(listener, event) {
    try {
      listener?.(event);
    } catch (error) {
      console.error(error);
    }
  }

  /** @param {Pending} pending @param {EngineError | null} error @param {any} [result] */
  #settle(pending, error, result) {
    if (pending.settled) return;
    pending.settled = true;
    pending.options.signal?.removeEventListener("abort", pending.onAbort);
    if (error) pending.reject(error);
    else pending.resolve(result);
  }

  /** @param {Pending} pending */
  #cancel(pending) {
    if (pending.settled) return;
    const running = this.#running;
    // a reload on behalf of this request is cancelled with it
    const mine = running === pending || (running?.method === "load" && running.options === pending.options);
    if (!running || !mine) {
      this.#waiting = this.#waiting.filter((other) => other !== pending);
      return this.#settle(pending, new EngineError("cancelled", "stopped"));
    }
    if (this.#stop) Atomics.store(this.#stop, 0, 1);
    if (this.#kernelStop) Atomics.store(this.#kernelStop.words, this.#kernelStop.index, 1);
    this.#worker?.postMessage({ method: "cancel", params: { id: running.id } });
    clearTimeout(this.#cancelTimer);
    this.#cancelTimer = setTimeout(() => {
      if (this.#running === running)
        this.#drop(new EngineError("cancelled", "stopped; the engine did not answer and was replaced"), false);
    }, this.cancelMs);
  }

  /**
   * The worker is of no use any more. Its request fails; with `all`, those that wait fail too, else a new worker serves them.
   * @param {EngineError} error
   * @param {boolean} [all]
   */
  #drop(error, all = true) {
    clearTimeout(this.#startTimer);
    clearTimeout(this.#cancelTimer);
    this.#worker?.terminate();
    this.#worker = null;
    this.#gone = false;
    this.#modelIsIn = false;
    this.#kernelStop = null;
    const failed = this.#running ? [this.#running] : [];
    this.#running = null;
    if (all) failed.push(...this.#waiting.splice(0));
    for (const pending of failed) this.#settle(pending, error);
    if (!all) this.#next();
  }
}
