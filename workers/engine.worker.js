/**
 * The engine worker: holds Python, the kernel memory and the files. It starts Python at once, takes requests from client.js
 * one at a time, hands them to candlewick/worker.py, and sends back what that says. It decides nothing about models.
 */

import { boot } from "./boot.js";
import { openCheckpoint, removeDamaged } from "./checkpoint.js";
import { features } from "./features.js";
import { EngineError } from "./protocol.js";
import { Store, usage } from "./storage.js";
import { KernelHost, prefetchKernels } from "./wasm.js";
import { GpuHost } from "./webgpu.js";

/** Id of the request that notifications belong to; 0 between requests. */
let current = 0;
/** Larger kernel memory than this is not kept for the next model, which may be a small one. */
const KEPT_BYTES = 1 << 30;
/** Id of the request that is to be cancelled. */
let cancelled = 0;
/** @type {AbortController | null} */
let abort = null;
/** Word 0 is set by the page while the running request is to be cancelled; null where memory cannot be shared. @type {Int32Array | null} */
let stopWord = null;
/** @type {KernelHost | GpuHost | null} */
let host = null;
/**
 * The kernels of the model before, for the next one: browsers are slow to let go of a memory that nothing uses any more.
 * @type {KernelHost | null}
 */
let kept = null;
/** The load that is in force, to be repeated when the GPU goes away. @type {import("./protocol.js").LoadParams | null} */
let loaded = null;
/** What the files of the loaded checkpoint hold open. @type {import("./files.js").Source[]} */
let open = [];
let snapshot = "unavailable";
/** Requests wait for each other. */
let queue = Promise.resolve();

const post = (/** @type {any} */ message, /** @type {Transferable[]} */ transfer = []) =>
  self.postMessage(message, transfer);
const notify = (/** @type {object} */ event) => post({ id: current, ...event });
/** Many numbers that Python sends along with its next notification or answer. @type {Record<string, Float32Array>} */
let attached = {};
/** @returns {[Record<string, Float32Array>, ArrayBufferLike[]]} what is attached, and what to transfer */
function takeAttached() {
  const taken = attached;
  attached = {};
  return [taken, Object.values(taken).map((numbers) => numbers.buffer)];
}
const warn = (/** @type {string} */ message) => notify({ event: "log", level: "warning", message });
const isCancelled = () =>
  (current !== 0 && cancelled === current) || (stopWord !== null && Atomics.load(stopWord, 0) === 1);
const progress = (
  /** @type {string} */ stage,
  /** @type {number} */ done,
  /** @type {number} */ total,
  /** @type {string} */ unit,
  /** @type {string} */ file = "",
) => notify({ event: "progress", stage, done, total, unit, ...(file ? { file } : {}) });

/** What Python calls. */
const page = {
  notify: (/** @type {string} */ json) => {
    const [numbers, transfer] = takeAttached();
    post({ id: current, ...JSON.parse(json), ...numbers }, /** @type {Transferable[]} */ (transfer));
  },
  // a copy: the view is on Python's heap, which may move and is let go of
  attach: (/** @type {string} */ name, /** @type {any} */ array) => {
    const view = array.getBuffer("f32");
    attached[name] = view.data.slice();
    view.release();
  },
  cancelled: isCancelled,
  python_bytes: () => python.py._module.HEAPU8.length,
  kernel_bytes: () => host?.size ?? 0,
};

/** @type {{py: any, worker: any, timings: Record<string, number>}} */
let python;
/** Signs of life while Python starts: what takes long then, a slow network, is no reason to give up. */
const pulse = setInterval(() => post({ event: "alive" }), 3000);
const storePromise = Store.open();
const ready = start();
// told to each request; the client makes a new worker for the one after
ready.catch(() => post({ event: "gone" })).finally(() => clearInterval(pulse));
prefetchKernels();

async function start() {
  const store = await storePromise;
  const { py, how, timings, keep } = await boot(store, (done, total, unit) => progress("runtime", done, total, unit));
  py._api.on_fatal = (/** @type {any} */ error) => post({ event: "fatal", message: String(error?.message ?? error) });
  python = { py, worker: null, timings };
  const module = py.pyimport("candlewick.worker");
  python.worker = module.Worker(page);
  module.destroy();
  snapshot = how === "snapshot" ? "used" : "unavailable";
  progress("runtime", 1, 1, "steps");
  keep?.().then(
    (size) => {
      snapshot = "stored";
      post({
        id: 0,
        event: "log",
        level: "info",
        message: `the started interpreter is kept for later visits (${size})`,
      });
    },
    async (error) => {
      if (error.name === "NoModificationAllowedError") return; // another tab is writing it
      post({
        id: 0,
        event: "log",
        level: "warning",
        message: `the started interpreter could not be kept: ${error.message}; ${(await usage()).words}. The next visit starts as slowly as this one.`,
      });
    },
  );
}

/** Await a coroutine of Python and let go of it. @param {any} coroutine @returns {Promise<any>} */
async function ask(coroutine) {
  let text;
  try {
    text = await coroutine;
  } finally {
    coroutine.destroy?.();
  }
  const answer = JSON.parse(text);
  if (answer.error) {
    takeAttached();
    throw EngineError.fromValue(answer.error);
  }
  return answer.result;
}

/**
 * A request to the loaded task. `data` holds what JSON does not; a key that is absent is undefined, which Python can read.
 * @param {string} method @param {object} params @param {Record<string, any>} data
 */
async function askTask(method, params, data) {
  await ready;
  const attempt = () => ask(python.worker.task(method, JSON.stringify(params), data));
  for (const executor of /** @type {const} */ (["webgpu", "wasm"]))
    try {
      return await attempt();
    } catch (error) {
      if (!(error instanceof EngineError) || error.code !== "device_lost" || !loaded) throw error;
      warn(`${error.message}; the model is loaded again ${executor === "webgpu" ? "on a new device" : "on WebAssembly"}`);
      await load({ ...loaded, executor });
    }
  return attempt();
}

function closeFiles() {
  for (const source of open) source.close();
  open = [];
}

/** @param {boolean} keep its kernels and their memory for the load that follows */
function dropHost(keep) {
  if (keep && host instanceof KernelHost && host.size <= KEPT_BYTES) kept = host;
  else host?.dispose();
  host = null;
  post({ event: "kernel", buffer: null, stop: 0 });
}

/** @param {import("./protocol.js").LoadParams} params @param {AbortSignal} signal @returns {Promise<string>} why this executor */
async function makeHost(params, signal) {
  const executor = params.executor ?? "auto";
  if (executor === "numpy" || executor === "webgpu") {
    kept?.dispose();
    kept = null;
  }
  if (executor === "numpy") return "chosen by hand";
  let made;
  let instead = "";
  if (executor === "webgpu") {
    try {
      const gpu = await GpuHost.create();
      if (signal.aborted) {
        gpu.dispose();
        throw new EngineError("cancelled", "stopped");
      }
      host = gpu;
      host.cancelled = isCancelled;
      return `WebGPU on ${gpu.about.name}${gpu.about.software ? ", an emulator on the processor: slower than WebAssembly" : ""}`;
    } catch (error) {
      if (EngineError.from(error).code !== "no_gpu") throw error;
      instead = `, as WebGPU cannot be used: ${/** @type {Error} */ (error).message}`;
    }
  }
  try {
    made = kept?.serves(params.threads ?? null) ? kept : await KernelHost.create(params.threads ?? null);
    if (made !== kept) kept?.dispose();
    kept = null;
  } catch (error) {
    const failure = EngineError.from(error);
    if (executor === "wasm") throw failure;
    return `kernels are not available: ${failure.message}`;
  }
  if (signal.aborted) {
    made.dispose();
    throw new EngineError("cancelled", "stopped");
  }
  host = made;
  host.cancelled = isCancelled;
  if (host.shared) post({ event: "kernel", buffer: host.memory.buffer, stop: host.stopAddress });
  const threads = host.threads === 1 ? "1 thread" : `${host.threads} threads`;
  return `WebAssembly SIMD on ${threads}${host.reason ? `, ${host.threadsAsked} asked: ${host.reason}` : ""}${instead}`;
}

/** @param {import("./protocol.js").LoadParams} params */
async function load(params) {
  const begun = performance.now();
  const store = await storePromise;
  const signal = /** @type {AbortController} */ (abort).signal;
  // files, kernels and Python come at the same time
  await release(true);
  const opening = openCheckpoint(params.model, params.files, {
    store,
    signal,
    warn,
    onBytes: (done, total, file) => progress("download", done, total, "bytes", file),
  });
  const [checkpoint, reason] = await Promise.all(
    [opening, makeHost(params, signal), ready].map(stoppable(signal)),
  ).catch(async (error) => {
    (await opening.catch(() => null))?.sources.forEach((source) => source.close());
    throw error;
  });
  open = [...checkpoint.sources.values()];
  const downloaded = performance.now();
  const { model, files, ...rest } = params;
  const result = await ask(
    python.worker.load(JSON.stringify(rest), checkpoint.name, checkpoint.sources, host ?? undefined, reason),
  ); // null is not None in Python
  closeFiles();
  host?.clearSources();
  const { runtime_ms = 0, numpy_ms = 0, import_ms = 0 } = python.timings;
  result.timings = {
    ...python.timings,
    runtime_ms,
    numpy_ms,
    import_ms,
    ...result.timings,
    files_ms: downloaded - begun,
    load_ms: performance.now() - begun,
    since_start_ms: performance.now(),
  };
  result.cache = { snapshot };
  if (host instanceof GpuHost) result.gpu = host.about;
  loaded = params;
  return result;
}

/** Leave a wait when the request is cancelled; what is waited for goes on. @param {AbortSignal} signal */
const stoppable = (signal) => (/** @type {Promise<any>} */ promise) =>
  new Promise((resolve, reject) => {
    promise.then(resolve, reject);
    const stop = () => reject(new EngineError("cancelled", "stopped"));
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });

async function unload() {
  await release(false);
  return {};
}

/** @param {boolean} keep see dropHost */
async function release(keep) {
  loaded = null;
  if (python?.worker) await ask(python.worker.unload());
  closeFiles();
  if (host) dropHost(keep);
  if (!keep) {
    kept?.dispose();
    kept = null;
  }
}

/** @param {import("./protocol.js").TranscribeParams} params */
async function transcribe({ audio, options }) {
  const sound =
    audio?.kind === "wav"
      ? { bytes: new Uint8Array(audio.bytes) }
      : audio?.kind === "pcm"
        ? { channels: audio.channels, rate: audio.rate }
        : null;
  if (!sound)
    throw new EngineError(
      "bad_input",
      `transcribe: audio.kind is ${/** @type {any} */ (audio)?.kind}; there are wav and pcm`,
    );
  return askTask("transcribe", { options }, { bytes: undefined, ...sound });
}

/** @param {import("./protocol.js").SetImageParams} params */
function setImage({ id, image }) {
  const { rgba, embedding, width, height } = image;
  return askTask("set_image", { id, width, height }, { rgba, embedding });
}

/** @param {import("./protocol.js").PredictParams} params */
function predict({ mask_input, ...params }) {
  return askTask("predict", params, { mask_input: mask_input ?? undefined });
}

/** @param {{entry: string, rounds?: number, position?: number}} params */
async function profile(params) {
  await ready;
  return ask(python.worker.profile(JSON.stringify(params)));
}

async function describe() {
  await ready;
  const { used, allowed } = await usage();
  const mine = await ask(python.worker.describe());
  return {
    ...mine,
    versions: { ...mine.versions, pyodide: python.py.version },
    features: features(),
    userAgent: navigator.userAgent,
    cache: { snapshot, stored: (await storePromise) !== null, used, quota: allowed },
    timings: python.timings,
    kernels: host instanceof KernelHost ? { ...host.ran } : null,
    gpu: host instanceof GpuHost ? host.about : null,
  };
}

/**
 * Load; what cannot be loaded may have been damaged in the store. Then it is fetched anew, once.
 * @param {import("./protocol.js").LoadParams} params
 */
async function loadOrHeal(params) {
  try {
    return await load(params);
  } catch (error) {
    await unload().catch(() => {});
    if (!(error instanceof EngineError) || error.code !== "bad_weights" || !params.model) throw error;
    const bad = await removeDamaged(params.model, await storePromise).catch(() => []);
    if (!bad.length) throw error;
    warn(`${bad.join(", ")}: damaged in the browser's storage; fetched again`);
  }
  try {
    return await load(params);
  } catch (error) {
    await unload().catch(() => {});
    throw error;
  }
}

/** @type {Record<string, (params: any) => Promise<any>>} */
const methods = {
  load: loadOrHeal,
  transcribe,
  generate: (params) => askTask("generate", params, {}),
  set_image: setImage,
  predict,
  everything: (params) => askTask("everything", params, {}),
  embedding: (params) => askTask("embedding", params, {}),
  prepare: (params) => askTask("prepare", params, {}),
  describe,
  unload,
  profile,
};

/** @param {import("./protocol.js").Request} request */
async function answer({ id, method, params }) {
  current = id;
  abort = new AbortController();
  host?.clearStop();
  try {
    if (cancelled === id) throw new EngineError("cancelled", "stopped");
    if (!Object.hasOwn(methods, method))
      throw new EngineError("bad_input", `${method}: there are ${Object.keys(methods).join(", ")}`);
    const result = await methods[method](params);
    const [numbers, transfer] = takeAttached();
    post({ id, result: { ...result, ...numbers } }, /** @type {Transferable[]} */ (transfer));
  } catch (error) {
    post({ id, error: EngineError.from(error).toValue() });
  } finally {
    current = 0;
    abort = null;
  }
}

self.onmessage = ({ data }) => {
  if (data.method === "start") {
    const { stop, lock } = data.params;
    stopWord = stop && new Int32Array(stop);
    // held until this worker ends, so that the page notices
    navigator.locks?.request(lock, () => {
      post({ event: "locked", name: lock });
      return new Promise(() => {});
    });
  } else if (data.method === "cancel") {
    cancelled = data.params.id;
    if (current === cancelled) abort?.abort();
  } else queue = queue.then(() => answer(data));
};
