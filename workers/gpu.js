/**
 * The way to a GPU: which adapter this browser gives, what it can do, and a device made of it, whose memory is counted and whose
 * end is noticed. Only who wants a GPU calls this: a browser that is asked may start a process, or crash one.
 */

import { EngineError } from "./protocol.js";

/** Longest wait for an adapter or a device. */
const ASK_MS = 20_000;
/** Longest wait for what a device was given to do. An emulator takes as long as it takes. */
const WAIT_MS = 60_000;
const EMULATOR_WAIT_MS = 1_800_000;
/** Limits that kernels are chosen by, asked for as far as the adapter has them; the defaults are small. */
const LIMITS = [
  "maxBufferSize",
  "maxStorageBufferBindingSize",
  "maxStorageBuffersPerShaderStage",
  "maxComputeWorkgroupStorageSize",
  "maxComputeInvocationsPerWorkgroup",
  "maxComputeWorkgroupSizeX",
  "maxComputeWorkgroupSizeY",
  "maxComputeWorkgroupsPerDimension",
];
/** Features that kernels use where they are there. */
const FEATURES = ["shader-f16", "subgroups", "timestamp-query"];

/** @typedef {import("./protocol.js").Adapter} Adapter */
/** @typedef {{adapter: any, about: Adapter | null, reason: string}} Found adapter and about are null where there is a reason */

/**
 * A promise that is not waited for longer than `ms`.
 * @template T @param {Promise<T>} promise @param {number} ms @param {() => Error} late @returns {Promise<T>}
 */
export async function within(promise, ms, late) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  try {
    return await Promise.race([
      promise,
      new Promise((_, reject) => {
        timer = setTimeout(() => reject(late()), ms);
      }),
    ]);
  } finally {
    clearTimeout(timer);
  }
}

/** The adapter of this browser, or why there is none. @param {number} [ms] longest wait @returns {Promise<Found>} */
export async function findAdapter(ms = ASK_MS) {
  const none = (/** @type {string} */ reason) => ({ adapter: null, about: null, reason });
  const gpu = /** @type {any} */ (navigator).gpu;
  if (!gpu)
    return none(
      globalThis.isSecureContext
        ? "this browser has no WebGPU"
        : "this address is neither https nor this machine's own, so the browser gives no GPU; open it by https or as localhost",
    );
  let adapter;
  try {
    const asked = Promise.resolve(gpu.requestAdapter({ powerPreference: "high-performance" }));
    adapter = await within(asked, ms, () => new Error(`it did not answer within ${ms / 1000} s`));
  } catch (error) {
    return none(`the browser refused the GPU: ${/** @type {Error} */ (error).message}`);
  }
  if (!adapter) return none("the browser found no GPU that it allows pages to use");
  return { adapter, about: describe(adapter), reason: "" };
}

/** @param {any} adapter @returns {Adapter} */
function describe(adapter) {
  const info = adapter.info ?? {};
  const { vendor = "", architecture = "", device = "", description = "" } = info;
  const name = description || [vendor, architecture, device].filter(Boolean).join(" ") || "a GPU without a name";
  return {
    name,
    vendor,
    architecture,
    device,
    description,
    software: Boolean(info.isFallbackAdapter ?? adapter.isFallbackAdapter) || /swiftshader|llvmpipe|basic render/i.test(name),
    features: FEATURES.filter((feature) => adapter.features.has(feature)),
    limits: {
      ...Object.fromEntries(LIMITS.filter((limit) => limit in adapter.limits).map((limit) => [limit, adapter.limits[limit]])),
      subgroupMinSize: info.subgroupMinSize ?? 0,
      subgroupMaxSize: info.subgroupMaxSize ?? 0,
    },
  };
}

/**
 * A device of a new adapter, with all that kernels can use of it: an adapter gives one device, and none after that was lost.
 * @param {{software?: boolean, ms?: number}} [how] software: false refuses emulators on the processor
 * @returns {Promise<{device: any, about: Adapter}>} EngineError no_gpu with the reason in words
 */
export async function openDevice({ software = true, ms = ASK_MS } = {}) {
  const { adapter, about, reason } = await findAdapter(ms);
  if (!adapter || !about) throw new EngineError("no_gpu", reason);
  if (about.software && !software)
    throw new EngineError("no_gpu", `${about.name} is an emulator on the processor, slower than WebAssembly`);
  const requiredLimits = Object.fromEntries(
    Object.entries(about.limits).filter(([name]) => LIMITS.includes(name)),
  );
  try {
    const asked = Promise.resolve(adapter.requestDevice({ requiredLimits, requiredFeatures: about.features }));
    const device = await within(asked, ms, () => {
      asked.then((late) => late.destroy(), () => {}); // nobody will
      return new Error(`it did not answer within ${ms / 1000} s`);
    });
    return { device, about };
  } catch (error) {
    throw new EngineError("no_gpu", `the GPU ${about.name} gave no device: ${/** @type {Error} */ (error).message}`);
  }
}

/** The device goes away at any time, and a driver may say nothing for ever: all waiting for it, and all its memory, is here. */
export class Device {
  /** an error that no scope caught @type {EngineError | null} */
  #fault = null;
  /**
   * Ends the waiting of all that wait now. They do not race with one promise for the loss: that would keep all of them.
   * @type {Set<(error: Error) => void>}
   */
  #waiting = new Set();
  #given = false;
  #waitMs;
  /** why it is gone, once it is */
  lost = "";
  /** bytes and number of all buffers, and the most bytes so far */
  bytes = 0;
  live = 0;
  peak = 0;

  /** @param {any} device @param {Adapter} about @param {number} [waitMs] longest wait for it */
  constructor(device, about, waitMs = about.software ? EMULATOR_WAIT_MS : WAIT_MS) {
    this.gpu = device;
    this.about = about;
    this.#waitMs = waitMs;
    device.lost.then((/** @type {any} */ info) => {
      if (this.#given) return;
      this.lost ||= info.message || info.reason || "no reason given";
      for (const end of this.#waiting) end(this.#lostError());
    });
    device.onuncapturederror = (/** @type {any} */ event) => {
      event.preventDefault?.();
      this.#fault ??= faultOf(event.error);
    };
  }

  #lostError() {
    return new EngineError("device_lost", `the GPU went away while it was in use (${this.lost}); what it held is lost`);
  }

  /** Throws what is known to be wrong. */
  check() {
    if (this.lost) throw this.#lostError();
    if (this.#fault) throw this.#fault;
  }

  /** Every buffer is made here. @param {number} size @param {number} usage */
  make(size, usage) {
    const buffer = this.gpu.createBuffer({ size, usage });
    this.bytes += size;
    this.live++;
    this.peak = Math.max(this.peak, this.bytes);
    return buffer;
  }

  /** And destroyed here. @param {any} buffer null is none */
  destroy(buffer) {
    if (!buffer) return;
    this.bytes -= buffer.size;
    this.live--;
    buffer.destroy();
  }

  /**
   * @template T @param {Promise<T>} work @param {number} [times] how many times the usual wait it may take
   * @returns {Promise<T>} EngineError device_lost when the device goes or says nothing
   */
  async inTime(work, times = 1) {
    const ms = this.#waitMs * times;
    work.catch(() => {}); // whoever loses the race is heard by nobody
    if (this.lost) throw this.#lostError();
    /** @type {(error: Error) => void} */
    let end = () => {};
    const loss = new Promise((_, reject) => this.#waiting.add((end = reject)));
    try {
      return await within(Promise.race([work, loss]), ms, () => {
        this.lost ||= `it did not answer within ${ms / 1000} s`;
        return this.#lostError();
      });
    } catch (error) {
      if (!(error instanceof DOMException)) throw error;
      this.lost ||= error.message || error.name; // a readback that is refused, before the loss itself is told
      throw this.#lostError();
    } finally {
      this.#waiting.delete(end);
    }
  }

  /**
   * Do some work at once; what the device has to say against it comes later.
   * @template T @param {() => T} work @param {"validation" | "out-of-memory"} [kind]
   * @returns {[T, Promise<EngineError | null>]}
   */
  scoped(work, kind = "validation") {
    this.gpu.pushErrorScope(kind);
    let scope;
    let result;
    try {
      result = work();
    } finally {
      scope = this.gpu.popErrorScope();
      scope.catch(() => {}); // of a device that is lost, which is told elsewhere
    }
    return [result, scope.then((/** @type {any} */ error) => error && faultOf(error, "", kind === "out-of-memory"))];
  }

  /** It goes, which is no loss. */
  dispose() {
    this.#given = true;
    this.gpu.destroy();
    this.lost ||= "it was given back";
  }
}

/**
 * What a device said, as an error with a code.
 * @param {any} error a GPUError, or what creating a pipeline threw @param {string} [where] @param {boolean} [memory] it is about room
 */
export function faultOf(error, where = "", memory = error?.constructor?.name === "GPUOutOfMemoryError") {
  if (!memory) return new EngineError("gpu_error", `webgpu: ${where}${error.message}`);
  return new EngineError(
    "out_of_memory",
    `GPU memory: there is no room for what is wanted (${error.message}); choose a smaller model or another executor`,
    { wanted: 0, allowed: 0 },
  );
}
