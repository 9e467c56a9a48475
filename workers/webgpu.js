/**
 * The GPU of the webgpu executor: finds a device, makes buffers and pipelines, and runs a Plan's dispatches in one submit with one
 * readback. It knows no op and no shape: what to run is the Plan, made in Python (executors/webgpu).
 */

import { EngineError } from "./protocol.js";
import { mb } from "./storage.js";

/** Longest wait for a run: a driver that hangs says nothing. */
const RUN_MS = 120_000;
/** Limits to ask for as far as the adapter has them; the defaults are small. */
const WANTED = ["maxBufferSize", "maxStorageBufferBindingSize"];
/** Features that kernels use where they are there. */
const OPTIONAL = /** @type {const} */ (["shader-f16", "subgroups", "timestamp-query"]);

/** @typedef {import("./protocol.js").Adapter} Adapter */
/** @typedef {{pipeline: any, group: any, counts: [number, number, number]}} Step */

/** The adapter of this browser, or why there is none. @returns {Promise<{adapter: any, about: Adapter | null, reason: string}>} */
export async function findAdapter() {
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
    adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  } catch (error) {
    return none(`the browser refused the GPU: ${/** @type {Error} */ (error).message}`);
  }
  if (!adapter) return none("the browser found no GPU that it allows pages to use");
  const info = adapter.info ?? {};
  const name = info.description || [info.vendor, info.architecture, info.device].filter(Boolean).join(" ") || "a GPU without a name";
  const software = Boolean(info.isFallbackAdapter ?? adapter.isFallbackAdapter) || /swiftshader|llvmpipe|basic render/i.test(name);
  const about = {
    name,
    software,
    features: OPTIONAL.filter((feature) => adapter.features.has(feature)),
    limits: Object.fromEntries(WANTED.map((limit) => [limit, adapter.limits[limit]])),
  };
  return { adapter, about, reason: "" };
}

export class GpuHost {
  kind = "webgpu";
  /** @type {any[]} */
  #buffers = [];
  /** @type {Map<string, any>} */
  #pipelines = new Map();
  /** @type {Map<string, Step[]>} */
  #entries = new Map();
  #device;
  #nothing;
  #staging = new Uint8Array(0);
  /** errors of the buffers that were made, or null for each @type {Promise<any>[]} */
  #made = [];
  /** why the device is gone, once it is */
  lost = "";
  /** rejects when the device is lost @type {Promise<never>} */
  #loss;
  #released = false;
  /** bytes of all buffers */
  bytes = 0;
  /** a run on a GPU cannot be cut short: Stop waits for it */
  shared = false;
  clearStop() {}
  clearSources() {}
  /** set by the engine: has the running request been cancelled? */
  cancelled = () => false;

  /** @param {any} device @param {Adapter} about */
  constructor(device, about) {
    this.#device = device;
    this.about = about;
    this.limits = Object.fromEntries(WANTED.map((limit) => [limit, device.limits[limit]]));
    this.#loss = device.lost.then((/** @type {any} */ info) => {
      if (this.#released) return new Promise(() => {});
      this.lost ||= info.message || info.reason || "no reason given";
      throw this.#lostError();
    });
    this.#loss.catch(() => {});
    this.#nothing = device.createBuffer({ size: 16, usage: 0x80 });
  }

  /** @returns {Promise<GpuHost>} EngineError where there is no device, with the reason in words */
  static async create() {
    const { adapter, about, reason } = await findAdapter();
    if (!adapter || !about) throw new EngineError("no_gpu", reason);
    const requiredLimits = Object.fromEntries(WANTED.map((limit) => [limit, adapter.limits[limit]]));
    try {
      const device = await adapter.requestDevice({ requiredLimits, requiredFeatures: about.features });
      return new GpuHost(device, about);
    } catch (error) {
      throw new EngineError("no_gpu", `the GPU ${about.name} gave no device: ${/** @type {Error} */ (error).message}`);
    }
  }

  get size() {
    return this.bytes;
  }

  #lostError() {
    return new EngineError(
      "device_lost",
      `the GPU was taken away while it was in use (${this.lost}); what it held is lost`,
    );
  }

  #check() {
    if (this.lost) throw this.#lostError();
  }

  /** A storage buffer of zeros. @param {number} bytes @returns {number} its number */
  buffer(bytes) {
    this.#check();
    const size = Math.ceil(Math.max(bytes, 16) / 16) * 16;
    const allowed = Math.min(...Object.values(this.limits));
    if (size > allowed)
      throw new EngineError(
        "out_of_memory",
        `GPU memory: one buffer of ${mb(size)} is wanted, this GPU allows ${mb(allowed)}; choose a smaller model or another executor`,
        { wanted: size, allowed },
      );
    // STORAGE | COPY_DST | COPY_SRC; whether there is room is known later
    this.#device.pushErrorScope("out-of-memory");
    this.#buffers.push(this.#device.createBuffer({ size, usage: 0x80 | 0x8 | 0x4 }));
    this.#made.push(this.#device.popErrorScope());
    this.bytes += size;
    return this.#buffers.length - 1;
  }

  /** Room for Python to copy bytes into, before `write` takes them. @param {number} bytes @returns {Uint8Array} */
  stage(bytes) {
    if (this.#staging.length < bytes) this.#staging = new Uint8Array(Math.max(bytes, 1 << 16));
    return this.#staging.subarray(0, bytes);
  }

  /** What was staged goes into a buffer. @param {number} buffer @param {number} offset @param {number} bytes */
  write(buffer, offset, bytes) {
    this.#check();
    this.#device.queue.writeBuffer(this.#buffers[buffer], offset, this.#staging, 0, bytes);
  }

  /**
   * Do some work and wait for the device; an error that it found in it is thrown.
   * @template T @param {() => T | Promise<T>} work @returns {Promise<T>}
   */
  async #scoped(work) {
    this.#device.pushErrorScope("validation");
    let result;
    let error = null;
    try {
      result = await work();
    } finally {
      error = await Promise.race([this.#device.popErrorScope(), this.#loss]);
    }
    if (error) throw new EngineError("internal", `webgpu: ${error.message}`);
    return /** @type {T} */ (result);
  }

  /** Whether the buffers that were made so far are really there: a GPU without room says so only now. */
  async settle() {
    const errors = await Promise.race([Promise.all(this.#made), this.#loss]);
    this.#made = [];
    const error = errors.find(Boolean);
    if (error)
      throw new EngineError(
        "out_of_memory",
        `GPU memory: ${mb(this.bytes)} are wanted and the GPU has no room (${error.message}); choose a smaller model or another executor`,
        { wanted: this.bytes, allowed: 0 },
      );
  }

  /**
   * Compile the pipelines of a Plan and make its bind groups; those of earlier Plans stay.
   * @param {string} plan JSON {kernels, pipelines, entries}
   * @param {((done: number, total: number) => void) | null} onProgress
   */
  async prepare(plan, onProgress) {
    this.#check();
    const { kernels, pipelines, entries } = JSON.parse(plan);
    await this.#scoped(async () => {
      /** @type {Map<string, any>} */
      const modules = new Map();
      let done = 0;
      const made = await Promise.all(
        pipelines.map(async (/** @type {any} */ wanted) => {
          const { kernel, entry, constants } = wanted;
          const key = JSON.stringify([kernels[kernel], entry, constants]);
          let pipeline = this.#pipelines.get(key);
          if (!pipeline) {
            if (!modules.has(kernel)) modules.set(kernel, this.#device.createShaderModule({ code: kernels[kernel], label: kernel }));
            const compute = { module: modules.get(kernel), entryPoint: entry, constants };
            try {
              pipeline = await this.#device.createComputePipelineAsync({ layout: "auto", compute, label: kernel });
            } catch (error) {
              this.#check();
              throw new EngineError(
                "internal",
                `webgpu: kernel ${kernel} (${entry}, ${JSON.stringify(constants)}) does not compile here: ${/** @type {Error} */ (error).message}`,
              );
            }
            this.#pipelines.set(key, pipeline);
          }
          onProgress?.(++done, pipelines.length);
          return pipeline;
        }),
      );
      for (const [name, steps] of Object.entries(entries))
        this.#entries.set(
          name,
          /** @type {any[]} */ (steps).map(([number, buffers, counts]) => ({
            pipeline: made[number],
            counts,
            group: this.#device.createBindGroup({
              layout: made[number].getBindGroupLayout(0),
              entries: buffers.flatMap((/** @type {number} */ n, /** @type {number} */ binding) =>
                n === -2 ? [] : [{ binding, resource: { buffer: n === -1 ? this.#nothing : this.#buffers[n] } }],
              ),
            }),
          })),
        );
    });
    if (this.cancelled()) throw new EngineError("cancelled", "stopped");
  }

  /**
   * Dispatches [first, last) of an entry, then what is to be read, in one submit.
   * @param {string} entry @param {number} first @param {number} last
   * @param {string} reads JSON [[buffer, offset, bytes], ...]
   * @returns {Promise<Uint8Array>} the bytes one behind another
   */
  async run(entry, first, last, reads) {
    this.#check();
    const places = /** @type {Array<[number, number, number]>} */ (JSON.parse(reads));
    const total = places.reduce((sum, [, , bytes]) => sum + bytes, 0);
    // COPY_DST | MAP_READ; a run that nothing is read from is waited for too
    const back = this.#device.createBuffer({ size: Math.max(total, 16), usage: 0x8 | 0x1 });
    try {
      await this.#scoped(async () => {
        const encoder = this.#device.createCommandEncoder();
        if (last > first) {
          const pass = encoder.beginComputePass();
          for (const { pipeline, group, counts } of /** @type {Step[]} */ (this.#entries.get(entry)).slice(first, last)) {
            pass.setPipeline(pipeline);
            pass.setBindGroup(0, group);
            pass.dispatchWorkgroups(...counts);
          }
          pass.end();
        }
        let at = 0;
        for (const [buffer, offset, bytes] of places) {
          encoder.copyBufferToBuffer(this.#buffers[buffer], offset, back, at, bytes);
          at += bytes;
        }
        this.#device.queue.submit([encoder.finish()]);
        await this.#inTime(back.mapAsync(1));
      });
      const data = new Uint8Array(back.getMappedRange()).slice(0, total);
      back.unmap();
      return data;
    } finally {
      back.destroy();
    }
  }

  /** @param {Promise<any>} work */
  async #inTime(work) {
    let timer = 0;
    const late = new Promise((_, reject) => {
      timer = /** @type {any} */ (
        setTimeout(() => {
          this.lost = `it did not answer within ${RUN_MS / 1000} s`;
          reject(this.#lostError());
        }, RUN_MS)
      );
    });
    try {
      await Promise.race([work, this.#loss, late]);
    } catch (error) {
      if (error instanceof EngineError) throw error;
      this.lost ||= String(/** @type {Error} */ (error).message ?? error);
      throw this.#lostError();
    } finally {
      clearTimeout(timer);
    }
  }

  /** Every buffer goes; the device stays for the next model. */
  release() {
    for (const buffer of this.#buffers) buffer.destroy();
    this.#buffers = [];
    this.#entries.clear();
    this.#pipelines.clear();
    this.#staging = new Uint8Array(0);
    this.bytes = 0;
  }

  /** The device goes, which is no loss. */
  dispose() {
    this.release();
    this.#released = true;
    this.#device.destroy();
  }
}
