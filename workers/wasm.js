/**
 * Kernel memory and the threads that work on it. Python lays the memory out and writes the instruction lists; this file
 * makes the memory, streams weights into it, and runs a list on all threads. It knows no op and no shape.
 *
 * Memory: [0, heap base) is the module's data and the stack of thread 0, then the stacks of the other threads, then each
 * thread's scratch, then from `freeBase` on what Python lays out.
 */

import { features } from "./features.js";
import { fill, get } from "./files.js";
import { EngineError } from "./protocol.js";
import { mb } from "./storage.js";
import { CODE, DONE, END, EXIT, RUN } from "./words.js";

const PAGE = 65536;
const STACK_BYTES = 65536;
/** Private scratch of each thread, as in abi.py. */
const THREAD_SCRATCH_BYTES = 1 << 19;
const INITIAL_PAGES = 512;
/** Largest memories to ask for, in pages: browsers reserve address space for the maximum, and some refuse. */
const MAXIMA = [65535, 32768, 16384, 8192];
const MAX_THREADS = 8;
const THREAD_START_MS = 15000;
/** Longest wait for the other threads to leave a run that thread 0 has left. */
const JOIN_MS = 10000;

/** Bytes packed between two looks at the event loop. */
const TURN_BYTES = 16 << 20;

/** Let waiting messages in. */
const turn = () =>
  new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve(undefined);
    };
    port2.postMessage(0);
  });

/** @type {Map<string, Promise<WebAssembly.Module>>} */
const modules = new Map();

/** A build of the kernels, compiled once. @param {string} build @returns {Promise<WebAssembly.Module>} */
function kernelModule(build) {
  let module = modules.get(build);
  if (!module) {
    const url = new URL(`kernels.${build}.wasm`, import.meta.url);
    module = get(url, { cache: "no-cache" }).then((response) => WebAssembly.compileStreaming(response));
    module.catch(() => modules.delete(build));
    modules.set(build, module);
  }
  return module;
}

/** Begin to fetch the build that this browser will run best; whoever needs it waits for it, and hears of a failure. */
export function prefetchKernels() {
  const { simd, relaxed, threads, cores } = features();
  if (simd)
    kernelModule(`${threads && cores > 1 ? "threads" : "single"}.${relaxed ? "relaxed" : "simd128"}`).catch(() => {});
}

/** @param {boolean} shared */
function makeMemory(shared) {
  let failure;
  for (const maximum of MAXIMA) {
    try {
      return { memory: new WebAssembly.Memory({ initial: INITIAL_PAGES, maximum, shared }), maximum };
    } catch (error) {
      failure = error;
    }
  }
  throw new EngineError(
    "out_of_memory",
    `kernel memory: this browser gives not even ${mb(8192 * PAGE)} (${failure}); close other tabs`,
    { wanted: MAXIMA[3] * PAGE, allowed: 0 },
  );
}

/** @param {number} n */
const align64 = (n) => Math.ceil(n / 64) * 64;

export class KernelHost {
  /** @type {Worker[]} */
  #workers = [];
  /** @type {Map<string, import("./files.js").Source>} */
  #sources = new Map();
  /** @type {Int32Array} */
  #words = new Int32Array(8);
  #bytes = /** @type {Uint8Array} */ (new Uint8Array(0));
  #ints = /** @type {Int32Array} */ (new Int32Array(0));
  #lost = false;
  /** what a failed run said */
  failure = "";
  /** runs so far, and the milliseconds that they took from the call to the last thread's end */
  ran = { runs: 0, ms: 0 };
  /** set by the engine: has the running request been cancelled? */
  cancelled = () => false;

  /**
   * @param {WebAssembly.Module} module
   * @param {{threads: number, asked: number, relaxed: boolean, shared: boolean, reason: string}} choice
   */
  constructor(module, choice) {
    const { memory, maximum } = makeMemory(choice.shared);
    this.memory = memory;
    this.maxBytes = maximum * PAGE;
    this.threads = choice.threads;
    this.threadsAsked = choice.asked;
    this.relaxed = choice.relaxed;
    this.shared = choice.shared;
    this.reason = choice.reason;
    this.module = module;
    this.kernels = /** @type {any} */ (new WebAssembly.Instance(module, { env: { memory } }).exports);
    this.heapBase = this.kernels.__heap_base.value;
    this.stopAddress = this.kernels.control();
    this.stack0 = this.kernels.__stack_pointer.value;
    this.stacks = align64(this.heapBase);
    this.scratch = align64(this.stacks + (this.threads - 1) * STACK_BYTES);
    this.freeBase = align64(this.scratch + this.threads * THREAD_SCRATCH_BYTES);
    this.#view();
    this.reserve(this.freeBase);
  }

  /**
   * Choose a build, make the memory, start the threads.
   * @param {number | null} asked threads wanted; null takes what the machine has
   * @returns {Promise<KernelHost>}
   */
  static async create(asked) {
    const can = features();
    if (!can.simd) throw new EngineError("internal", "this browser has no WebAssembly SIMD");
    const wanted = asked ?? Math.min(can.cores, MAX_THREADS);
    const cores = can.relaxed ? "relaxed" : "simd128";
    let threads = Math.max(1, Math.min(wanted, MAX_THREADS));
    let reason = threads < wanted ? `at most ${MAX_THREADS} threads are used` : "";
    if (threads > 1 && !can.threads) {
      threads = 1;
      reason = can.noThreads;
    }
    if (threads > 1) {
      try {
        const module = await kernelModule(`threads.${cores}`);
        const host = new KernelHost(module, { threads, asked: wanted, relaxed: can.relaxed, shared: true, reason });
        await host.#startThreads();
        return host;
      } catch (error) {
        reason = `threads could not be started: ${/** @type {Error} */ (error).message}`;
      }
    }
    const module = await kernelModule(`single.${cores}`);
    return new KernelHost(module, { threads: 1, asked: wanted, relaxed: can.relaxed, shared: false, reason });
  }

  /** Whether this is what `create` would make, and every thread is at its place. @param {number | null} asked */
  serves(asked) {
    const wanted = asked ?? Math.min(features().cores, MAX_THREADS);
    return !this.#lost && this.threadsAsked === wanted;
  }

  async #startThreads() {
    this.#words = new Int32Array(new SharedArrayBuffer(32));
    try {
      await Promise.all(Array.from({ length: this.threads - 1 }, (_, i) => this.#startThread(i + 1)));
    } catch (error) {
      this.dispose();
      throw error;
    }
  }

  /** @param {number} thread */
  #startThread(thread) {
    return new Promise((resolve, reject) => {
      const worker = new Worker(new URL("thread.worker.js", import.meta.url), {
        type: "module",
        name: `candlewick thread ${thread}`,
      });
      this.#workers.push(worker);
      const late = setTimeout(() => reject(new Error("a thread worker did not start in time")), THREAD_START_MS);
      worker.onerror = (event) => {
        event.preventDefault();
        clearTimeout(late);
        reject(new Error(event.message || "thread.worker.js could not be loaded"));
      };
      worker.onmessage = ({ data }) => {
        clearTimeout(late);
        if (data === "ready") resolve(undefined);
        else reject(new Error(data.error));
      };
      worker.postMessage({
        words: this.#words,
        module: this.module,
        memory: this.memory,
        thread,
        threads: this.threads,
        stack: this.stacks + thread * STACK_BYTES,
        scratch: this.scratch + thread * THREAD_SCRATCH_BYTES,
        scratchBytes: THREAD_SCRATCH_BYTES,
      });
    });
  }

  #view() {
    this.#bytes = new Uint8Array(this.memory.buffer);
    this.#ints = new Int32Array(this.memory.buffer);
  }

  /** Make sure that bytes [0, end) exist; new ones are zeros. @param {number} end @returns {number} how many there were */
  reserve(end) {
    const have = this.#bytes.length;
    if (end <= have) return have;
    try {
      if (end > this.maxBytes) throw new RangeError("more than the maximum");
      this.memory.grow(Math.ceil((end - have) / PAGE));
    } catch {
      throw new EngineError(
        "out_of_memory",
        `kernel memory: ${mb(end)} are wanted, this browser allows ${mb(this.maxBytes)} and refused to go beyond ${mb(have)}; choose a smaller model or close other tabs`,
        { wanted: end, allowed: this.maxBytes, had: have },
      );
    }
    this.#view();
    return have;
  }

  /** A short-lived view for Python to copy in or out; it is stale after `reserve`. @param {number} address @param {number} bytes */
  view(address, bytes) {
    if (address < 0 || address + bytes > this.#bytes.length)
      throw new RangeError(
        `kernel memory: bytes ${address} to ${address + bytes} were asked for, there are ${this.#bytes.length}`,
      );
    return this.#bytes.subarray(address, address + bytes);
  }

  /** Bytes of kernel memory that exist. */
  get size() {
    return this.#bytes.length;
  }

  /**
   * Run the instructions at [code, end) on all threads; blocks.
   * @param {number} code
   * @param {number} end
   * @returns {number} 0 done, 1 stopped, else failed and `failure` says how
   */
  run(code, end) {
    const words = this.#words;
    if (this.#lost) return 2;
    const begun = performance.now();
    this.failure = "";
    this.kernels.__stack_pointer.value = this.stack0; // a trap leaves it anywhere
    this.kernels.begin();
    words[CODE] = code;
    words[END] = end;
    Atomics.store(words, DONE, 0);
    Atomics.add(words, RUN, 1);
    if (this.threads > 1) Atomics.notify(words, RUN);
    let status;
    try {
      status = this.kernels.run(0, this.threads, code, end, this.scratch, THREAD_SCRATCH_BYTES);
    } catch (error) {
      Atomics.store(this.#ints, this.stopAddress / 4, 2);
      status = 2;
      this.failure = String(/** @type {Error} */ (error).message ?? error);
    }
    if (!this.#join()) {
      // it may still come back, into a run that is not its own
      this.#lost = true;
      status = 2;
      this.failure = "a thread is gone; load the model again";
    }
    if (status > 1) {
      this.failure ||= status === 3 ? "an instruction the kernels do not know" : "a thread failed";
      this.clearStop();
    }
    this.ran.runs++;
    this.ran.ms += performance.now() - begun;
    return status;
  }

  /** Wait until every other thread has left the run. */
  #join() {
    const words = this.#words;
    const others = this.threads - 1;
    for (let i = 0; i < 5000 && Atomics.load(words, DONE) < others; i++);
    const until = performance.now() + JOIN_MS;
    for (let done; (done = Atomics.load(words, DONE)) < others;) {
      if (performance.now() > until) return false;
      Atomics.wait(words, DONE, done, 100);
    }
    return true;
  }

  clearStop() {
    Atomics.store(this.#ints, this.stopAddress / 4, 0);
  }

  /** Where `loadWeights` finds a file. @param {string} name @param {import("./files.js").Source} source */
  addSource(name, source) {
    this.#sources.set(name, source);
  }

  clearSources() {
    this.#sources.clear();
  }

  /** The kernels' `pack` on memory that is filled already. @param {...number} args */
  pack(...args) {
    if (this.kernels.pack(...args)) throw new EngineError("internal", `pack: arguments do not fit: ${args.join(" ")}`);
  }

  /**
   * Stream byte ranges of files into the staging area, chunk by chunk, and pack each to where Python wants it. The next chunk
   * is on its way from a slow source while this one is packed.
   * @param {string} recipe JSON {staging, staging_bytes, tensors: [{file, start, row_bytes, unit, codes, dst, n, k, taps}]}, see layout.py
   * @param {((done: number, total: number) => void) | null} onProgress
   */
  async loadWeights(recipe, onProgress) {
    const { staging, staging_bytes: room, tensors } = JSON.parse(recipe);
    const chunks = tensors.flatMap((/** @type {any} */ tensor) => cut(tensor, room >> 1));
    const total = chunks.reduce((/** @type {number} */ sum, /** @type {Chunk} */ chunk) => sum + chunk.bytes, 0);
    const halves = [staging, staging + Math.floor(room / 128) * 64];
    const fill = (/** @type {number} */ i) => this.#fill(chunks[i], halves[i % 2]);
    let next = chunks.length ? fill(0) : null;
    let done = 0;
    let sinceTurn = 0;
    for (let i = 0; i < chunks.length; i++) {
      const chunk = chunks[i];
      if (next instanceof Promise) await next;
      next = i + 1 < chunks.length ? fill(i + 1) : null;
      if (next instanceof Promise) next.catch(() => {}); // awaited in the next round, unless this one throws first
      const { codes, dst, n, k, taps } = chunk.tensor;
      const [kind, dtype, dstDtype] = codes;
      this.pack(kind, halves[i % 2], dtype, dst, chunk.row, chunk.rows, n, k, taps, dstDtype);
      done += chunk.bytes;
      sinceTurn += chunk.bytes;
      if (sinceTurn >= TURN_BYTES || i + 1 === chunks.length) {
        sinceTurn = 0;
        onProgress?.(done, total);
        await turn();
      }
      if (this.cancelled()) throw new EngineError("cancelled", "stopped");
    }
  }

  /** @param {Chunk} chunk @param {number} address @returns {Promise<void> | void} a promise only where the source is slow */
  #fill(chunk, address) {
    const source = this.#sources.get(chunk.tensor.file);
    if (!source) throw new EngineError("internal", `load_weights: there is no file ${chunk.tensor.file}`);
    return fill(source, this.view(address, chunk.bytes), chunk.start);
  }

  /** Stop the threads and let go of the memory. */
  dispose() {
    Atomics.store(this.#words, EXIT, 1);
    Atomics.add(this.#words, RUN, 1);
    if (this.threads > 1) Atomics.notify(this.#words, RUN);
    for (const worker of this.#workers) worker.terminate();
    this.#workers = [];
    this.#sources.clear();
    this.#bytes = new Uint8Array(0);
    this.#ints = new Int32Array(0);
    this.kernels = null;
    // the memory itself goes with the last reference to it
    this.memory = /** @type {any} */ (null);
  }
}

/** @typedef {{tensor: any, row: number, rows: number, start: number, bytes: number}} Chunk */

/** Whole rows of one tensor that fit into `room` bytes, in multiples of its unit. @param {any} tensor @param {number} room @returns {Chunk[]} */
function cut(tensor, room) {
  const { start, n, row_bytes: rowBytes, unit } = tensor;
  const rows = Math.floor(room / rowBytes / unit) * unit;
  if (!rows)
    throw new EngineError(
      "internal",
      `load_weights: staging of ${room} bytes is too small for ${unit} rows of ${rowBytes}`,
    );
  const chunks = [];
  for (let row = 0; row < n; row += rows) {
    const count = Math.min(rows, n - row);
    chunks.push({ tensor, row, rows: count, start: start + row * rowBytes, bytes: count * rowBytes });
  }
  return chunks;
}
