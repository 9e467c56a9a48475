/**
 * What runs the kernels of the loaded model: a GPU, WebAssembly threads, or nothing, which leaves NumPy. Chosen by a person or by
 * what this browser has; where one cannot be, the next is taken, with the reason in words.
 */

import { EngineError } from "./protocol.js";
import { KernelHost } from "./wasm.js";
import { GpuHost } from "./webgpu.js";

/** Larger kernel memory than this is not kept for the next model, which may be a small one. */
const KEPT_BYTES = 1 << 30;
/** Longest wait for a GPU in its trial: its runs take milliseconds, on the slowest a second. */
const TRIAL_WAIT_MS = 20_000;
/** Errors of a GPU after which another executor can go on. */
const GPU_FAULTS = ["no_gpu", "device_lost", "gpu_error", "out_of_memory"];

/** @typedef {{params: import("./protocol.js").LoadParams, signal: AbortSignal, why?: string}} Wish why: what stands against a GPU */

export class Hosts {
  /** @type {KernelHost | GpuHost | null} */
  current = null;
  /**
   * The kernels of the model before, for the next one: browsers are slow to let go of a memory that nothing uses any more.
   * @type {KernelHost | null}
   */
  #kept = null;
  #cancelled;
  #onKernel;

  /** @param {() => boolean} cancelled @param {(buffer: ArrayBufferLike | null, stop: number) => void} onKernel shared kernel memory, or none */
  constructor(cancelled, onKernel) {
    this.#cancelled = cancelled;
    this.#onKernel = onKernel;
  }

  /** The GPU that is in use, if one is. */
  get gpu() {
    return this.current instanceof GpuHost ? this.current : null;
  }

  /** @param {Wish} wish @returns {Promise<string>} why this executor */
  async make({ params, signal, why = "" }) {
    const executor = params.executor ?? "auto";
    let instead = why && `, as WebGPU cannot be used: ${why}`;
    if (executor === "numpy") {
      this.forget();
      return "chosen by hand";
    }
    if (executor === "webgpu" || executor === "auto") {
      try {
        // an emulator is slower than WebAssembly: only by hand
        const gpu = await GpuHost.create({ software: executor === "webgpu" });
        const { name } = gpu.about;
        if (executor === "auto" && params.slow?.gpu === name) {
          gpu.dispose();
          const { times, failed } = params.slow;
          instead = failed
            ? `, as a short trial of the GPU ${name} failed (${failed}); choose WebGPU to try it again`
            : `, which is faster here: in a short trial the GPU ${name} took ${(1 / times).toFixed(1)} times as long`;
        } else {
          this.#taken(gpu, signal);
          this.forget();
          return `WebGPU on ${name}${gpu.about.software ? ", an emulator on the processor: slower than WebAssembly" : ""}`;
        }
      } catch (error) {
        if (EngineError.from(error).code !== "no_gpu") throw error;
        instead = `, as WebGPU cannot be used: ${/** @type {Error} */ (error).message}`;
      }
    }
    let made;
    try {
      made = this.#kept?.serves(params.threads ?? null) ? this.#kept : await KernelHost.create(params.threads ?? null);
      if (made !== this.#kept) this.#kept?.dispose();
      this.#kept = null;
    } catch (error) {
      const failure = EngineError.from(error);
      if (executor === "wasm" && !why) throw failure;
      return `kernels are not available: ${failure.message}${instead}`;
    }
    this.#taken(made, signal);
    if (made.shared) this.#onKernel(made.memory.buffer, made.stopAddress);
    const threads = made.threads === 1 ? "1 thread" : `${made.threads} threads`;
    return `WebAssembly SIMD on ${threads}${made.reason ? `, ${made.threadsAsked} asked: ${made.reason}` : ""}${instead}`;
  }

  /** @template {KernelHost | GpuHost} T @param {T} host @param {AbortSignal} signal @returns {T} */
  #taken(host, signal) {
    if (signal.aborted) {
      host.dispose();
      throw new EngineError("cancelled", "stopped");
    }
    host.cancelled = this.#cancelled;
    this.current = host;
    return host;
  }

  /**
   * An empty one of the kind that is in use, to try kernels on; null where NumPy runs them. Whoever asks disposes of it.
   * @param {boolean} [trial] requests wait for what is tried: of a GPU that says nothing, not as long as usual
   */
  async another(trial = false) {
    const { current } = this;
    if (!current) return null;
    const host = current instanceof GpuHost ? await GpuHost.create(trial && !current.about.software ? { waitMs: TRIAL_WAIT_MS } : {})
      : await KernelHost.create(current.threads);
    host.cancelled = this.#cancelled;
    return host;
  }

  /**
   * What to go on with after an error: a new device where the GPU went away for the first time, WebAssembly where it did so again
   * or cannot do what it is to do.
   * @param {unknown} error @param {number} attempt 1 is the first
   * @returns {"webgpu" | "wasm" | null} null: this error is for whoever asked
   */
  instead(error, attempt) {
    if (!this.gpu || !(error instanceof EngineError) || !GPU_FAULTS.includes(error.code)) return null;
    return error.code === "device_lost" && attempt === 1 ? "webgpu" : "wasm";
  }

  /** @param {boolean} keep its kernels and their memory for the load that follows */
  drop(keep) {
    const { current } = this;
    if (!current) return;
    if (keep && current instanceof KernelHost && current.size <= KEPT_BYTES) this.#kept = current;
    else current.dispose();
    this.current = null;
    this.#onKernel(null, 0);
  }

  /** What was kept goes. */
  forget() {
    this.#kept?.dispose();
    this.#kept = null;
  }
}
