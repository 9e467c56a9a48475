/**
 * The engine worker: holds Python, the kernel memory and the files. It starts Python at once, takes requests from client.js
 * one at a time, hands them to candlewick/worker.py, and sends back what that says. It decides nothing about models.
 */

import { boot } from "./boot.js";
import { openCheckpoint, removeDamaged } from "./checkpoint.js";
import { features } from "./features.js";
import { Hosts } from "./hosts.js";
import { BlobSource } from "./files.js";
import { EngineError } from "./protocol.js";
import { MediaSound, PcmSound } from "./sound.js";
import { Store, usage } from "./storage.js";
import { KernelHost, prefetchKernels } from "./wasm.js";

/** WebAssembly's memories end here. */
const MOST_BYTES = 2 ** 32 - 65536;
/** Id of the request that notifications belong to; 0 between requests. */
let current = 0;
/** Id of the request that is to be cancelled. */
let cancelled = 0;
/** @type {AbortController | null} */
let abort = null;
/** Word 0 is set by the page while the running request is to be cancelled; null where memory cannot be shared. @type {Int32Array | null} */
let stopWord = null;
/** The load that is in force, to be repeated when the GPU goes away. @type {import("./protocol.js").LoadParams | null} */
let loaded = null;
/** The picture that is set on a GPU, to be set again on another. @type {{params: object, data: Record<string, any>} | null} */
let picture = null;
/** The last state that the running request told; where a GPU goes away, it goes on from there. @type {object | null} */
let told = null;
/** What the files of the loaded checkpoint hold open. @type {import("./files.js").Source[]} */
let open = [];
let snapshot = "unavailable";
/** Changes with our code, Python's and the browser's. */
let version = "";
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

const hosts = new Hosts(isCancelled, (buffer, stop) => post({ event: "kernel", buffer, stop }));

/** What Python calls. */
const page = {
  notify: (/** @type {string} */ json) => {
    const [numbers, transfer] = takeAttached();
    const event = JSON.parse(json);
    told = event.state ?? told;
    post({ id: current, ...event, ...numbers }, /** @type {Transferable[]} */ (transfer));
  },
  // a copy: the view is on Python's heap, which may move and is let go of
  attach: (/** @type {string} */ name, /** @type {any} */ array) => {
    const view = array.getBuffer("f32");
    attached[name] = view.data.slice();
    view.release();
  },
  cancelled: isCancelled,
  python_bytes: () => python.py._module.HEAPU8.length,
  kernel_bytes: () => hosts.current?.size ?? 0,
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
  const { py, how, timings, keep, key } = await boot(storePromise, (done, total, unit) => progress("runtime", done, total, unit));
  py._api.on_fatal = (/** @type {any} */ error) => post({ event: "fatal", message: String(error?.message ?? error) });
  version = key;
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
 * A request to the loaded task. `data` holds what JSON does not; a key that is absent is undefined, which Python can read. Where
 * the GPU fails, the model is loaded again elsewhere, and the request goes on from the last state it told, or begins anew.
 * @param {string} method @param {object} params @param {Record<string, any>} data
 */
async function askTask(method, params, data) {
  await ready;
  const task = (/** @type {string} */ name, /** @type {object} */ given, /** @type {Record<string, any>} */ more, again = false) =>
    ask(python.worker.task(name, JSON.stringify(given), more, again));
  told = null;
  for (let attempt = 1; ; attempt++)
    try {
      if (attempt > 1 && picture && method !== "set_image") await task("set_image", picture.params, picture.data, true);
      const answer = await task(method, params, data, attempt > 1);
      if (method === "set_image") picture = hosts.gpu && { params, data };
      return answer;
    } catch (error) {
      const executor = loaded && hosts.instead(error, attempt);
      if (!loaded || !executor) throw error;
      await begin(loaded, executor, /** @type {EngineError} */ (error).message);
    }
}

/** After a fault: who let us choose is given no emulator in the place of a GPU. @param {import("./protocol.js").LoadParams} params @param {"webgpu" | "wasm"} executor */
const instead = (params, executor) => (executor === "webgpu" ? params : { ...params, executor });

/**
 * The model on another device or executor, for the request that is running.
 * @param {import("./protocol.js").LoadParams} params @param {"webgpu" | "wasm"} executor @param {string} why
 */
async function begin(params, executor, why) {
  warn(`${why}; the model is loaded again ${executor === "webgpu" ? "on a new device" : "on WebAssembly"}`);
  try {
    const { executor: now, reason, threads, threads_asked, relaxed_simd, memory, gpu } = await load(instead(params, executor), why);
    notify({ event: "restart", executor: now, reason, threads, threads_asked, relaxed_simd, memory, gpu, state: told ?? undefined });
  } catch (error) {
    post({ event: "gone" }); // the page believes that the model is loaded: a new worker will
    throw error;
  }
}

function closeFiles() {
  for (const source of open) source.close();
  open = [];
}

/** @param {import("./protocol.js").LoadParams} params @param {string} [why] what stands against a GPU */
async function load(params, why) {
  const begun = performance.now();
  const store = await storePromise;
  const signal = /** @type {AbortController} */ (abort).signal;
  // files, kernels and Python come at the same time
  await release(true);
  const opening = openCheckpoint(params.model, params.files, {
    store,
    mirror: params.mirror ?? null,
    signal,
    warn,
    onBytes: (done, total, file) => progress("download", done, total, "bytes", file),
  });
  const failed = new AbortController();
  const making = hosts.make({ params, signal: AbortSignal.any([signal, failed.signal]), why });
  const [checkpoint, reason] = await Promise.all([opening, making, ready].map(stoppable(signal))).catch(async (error) => {
    failed.abort(); // a host that comes now is for nobody
    (await opening.catch(() => null))?.sources.forEach((source) => source.close());
    throw error;
  });
  open = [...checkpoint.sources.values()];
  const downloaded = performance.now();
  const result = await loadFrom(checkpoint, { params, signal }, reason);
  closeFiles();
  hosts.current?.clearSources();
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
  result.version = version;
  if (hosts.gpu) result.gpu = { ...hosts.gpu.about, ...hosts.gpu.facts() };
  loaded = params;
  return result;
}

/**
 * Python reads the model. What a GPU fails in is done on another device, then on WebAssembly, from the same files.
 * @param {{name: string, sources: Map<string, import("./files.js").Source>}} checkpoint
 * @param {import("./hosts.js").Wish} wish @param {string} reason
 */
async function loadFrom({ name, sources }, { params, signal }, reason) {
  const { model, files, ...rest } = params;
  for (let attempt = 1; ; attempt++)
    try {
      const host = hosts.current ?? undefined; // null is not None in Python
      return await ask(python.worker.load(JSON.stringify(rest), name, sources, host, reason));
    } catch (error) {
      const executor = hosts.instead(error, attempt);
      if (!executor) throw error;
      const why = /** @type {EngineError} */ (error).message;
      warn(`${why}; the model is loaded ${executor === "webgpu" ? "on a new device" : "on WebAssembly"}`);
      hosts.drop(false);
      reason = await hosts.make({ params: instead(params, executor), signal, why });
    }
}

/** Leave a wait when the request is cancelled; what is waited for goes on. @param {AbortSignal} signal */
const stoppable = (signal) => (/** @type {Promise<any>} */ promise) =>
  new Promise((resolve, reject) => {
    promise.then(resolve, reject);
    const stop = () => reject(new EngineError("cancelled", "stopped"));
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });

/**
 * What files are and will take; they are not loaded, and what is loaded stays.
 * @param {{files: File[]}} params
 */
async function examine({ files }) {
  const { name, sources } = await openCheckpoint(null, files, { store: null });
  await ready;
  return { ...(await ask(python.worker.examine(name, sources))), most: MOST_BYTES };
}

async function unload() {
  picture = null;
  await release(false);
  return {};
}

/** @param {boolean} keep see Hosts.drop */
async function release(keep) {
  loaded = null;
  if (python?.worker) await ask(python.worker.unload());
  closeFiles();
  hosts.drop(keep);
  if (!keep) hosts.forget();
}

/** @param {import("./protocol.js").TranscribeParams} params */
async function transcribe({ audio, options, state }) {
  if (audio?.kind === "wav") {
    const wav = new BlobSource("the recording", audio.bytes instanceof Blob ? audio.bytes : new Blob([audio.bytes]));
    return askTask("transcribe", { options, state }, { wav, sound: undefined });
  }
  const sound =
    audio?.kind === "media"
      ? await MediaSound.open(audio.file, audio.seconds)
      : audio?.kind === "pcm"
        ? new PcmSound(audio.channels, audio.rate)
        : null;
  if (!sound)
    throw new EngineError(
      "bad_input",
      `transcribe: audio.kind is ${/** @type {any} */ (audio)?.kind}; there are wav, media and pcm`,
    );
  try {
    return await askTask("transcribe", { options, state }, { wav: undefined, sound });
  } finally {
    await sound.close();
  }
}

/** @param {import("./protocol.js").SetImageParams} params */
function setImage({ id, image }) {
  const { rgba, embedding, width, height } = image;
  return askTask("set_image", { id, width, height }, { rgba, embedding });
}

/** @param {{entry: string, rounds?: number, position?: number}} params */
async function profile(params) {
  await ready;
  return ask(python.worker.profile(JSON.stringify(params)));
}

/**
 * Whether the executor in use computes what it should: every kernel on a device of its own, and a step of the loaded model; and
 * with `speed` whether a GPU is faster than WebAssembly.
 * @param {{model?: boolean, quick?: boolean, speed?: boolean}} params
 */
async function verify({ model = true, quick = false, speed = false }) {
  await ready;
  const signal = /** @type {AbortController} */ (abort).signal;
  const scratch = loaded && (await hosts.another(speed));
  if (!loaded || !scratch)
    throw new EngineError("bad_input", `verify: ${loaded ? "NumPy is what the others are compared with" : "no model is loaded; load one first"}`);
  const { gpu } = hosts;
  let sources = null;
  try {
    if (model) ({ sources } = await openCheckpoint(loaded.model, loaded.files, { store: await storePromise, signal, warn }));
    const result = await ask(python.worker.verify(scratch, sources ?? undefined, quick));
    const trial = speed && gpu && result.ok ? await race(scratch) : null;
    return { ...result, executor: gpu ? "webgpu" : "wasm", gpu: gpu && gpu.about, speed: trial };
  } finally {
    sources?.forEach((source) => source.close());
    scratch.dispose();
  }
}

/**
 * A short trial of a GPU against WebAssembly with the threads that it would have.
 * @param {import("./webgpu.js").GpuHost | KernelHost} gpu empty @returns {Promise<import("./protocol.js").Speed | null>} null: WebAssembly is not to be had
 */
async function race(gpu) {
  const rival = await KernelHost.create(loaded?.threads ?? null).catch(() => null);
  try {
    return rival && { ...(await ask(python.worker.trial(gpu, rival))), threads: rival.threads };
  } finally {
    rival?.dispose();
  }
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
    kernels: hosts.current instanceof KernelHost ? { ...hosts.current.ran } : null,
    gpu: hosts.gpu && { ...hosts.gpu.about, ...hosts.gpu.facts() },
  };
}

/**
 * Load; what cannot be loaded may have been damaged in the store. Then it is fetched anew, once.
 * @param {import("./protocol.js").LoadParams} params
 */
async function loadOrHeal(params) {
  picture = null;
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
  live_start: (params) => askTask("live_start", params, {}),
  live_push: ({ samples }) => askTask("live_push", {}, { samples }),
  live_end: () => askTask("live_end", {}, {}),
  generate: (params) => askTask("generate", params, {}),
  set_image: setImage,
  predict: ({ mask_input, ...params }) => askTask("predict", params, { mask_input: mask_input ?? undefined }),
  everything: (params) => askTask("everything", params, {}),
  embedding: (params) => askTask("embedding", params, {}),
  prepare: (params) => askTask("prepare", params, {}),
  describe,
  examine,
  unload,
  profile,
  verify,
};

/** @param {import("./protocol.js").Request} request */
async function answer({ id, method, params }) {
  current = id;
  abort = new AbortController();
  hosts.current?.clearStop();
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
