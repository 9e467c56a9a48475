/**
 * The GPU of the webgpu executor: makes buffers and pipelines, streams weights into them, and runs a Plan's dispatches in one
 * submit (a long one in several, where the Plan cuts it) with one readback. It knows no op and no shape: what to run is the
 * Plan, made in Python (executors/webgpu).
 *
 * A device can go away at any time, and a driver may say nothing for ever: whatever waits for it waits for its loss too, and
 * not longer than a limit. A host whose device is gone stays gone; the engine makes another one.
 */

import { fill } from "./files.js";
import { Device, faultOf, openDevice } from "./gpu.js";
import { EngineError } from "./protocol.js";
import { mb } from "./storage.js";

/** Bytes of weights that are read at once. */
const PIECE_BYTES = 4 << 20;
/** Bytes of weights on their way to the device at once: browsers keep a copy of each until it is there. */
const FLIGHT_BYTES = 64 << 20;
/** A larger buffer for readbacks is not kept for the next run. */
const KEPT_BYTES = 16 << 20;

/** Compilers of some drivers take seconds for a kernel: all of a model may take so many times the wait for a run. */
const COMPILE_TIMES = 10;

// bits of GPUBufferUsage
const MAP_READ = 0x1;
const COPY_SRC = 0x4;
const COPY_DST = 0x8;
const STORAGE = 0x80;
const QUERY_RESOLVE = 0x200;

/** @typedef {{pipeline: any, group: any, counts: [number, number, number]}} Step */
/** @typedef {{steps: Step[], cuts: number[]}} Entry cuts: steps before which a new submit begins, or a driver may think that it hangs */
/** @typedef {{buffer: number, offset: number, bytes: number, parts: Array<{file: string, start: number, at: number, bytes: number}>}} Piece */

export class GpuHost {
  kind = "webgpu";
  /** @type {any[]} */
  #buffers = [];
  /** @type {Map<string, any>} */
  #pipelines = new Map();
  /** @type {Map<string, Entry>} */
  #entries = new Map();
  /** @type {Map<string, import("./files.js").Source>} */
  #sources = new Map();
  #device;
  #nothing;
  /** where a run's outputs are read from @type {any} */
  #back = null;
  /** queries and the buffer they come to; null where the device does not tell times @type {{set: any, buffer: any} | null} */
  #clock = null;
  #staging = new Uint8Array(0);
  /** errors of the buffers that were made, or null for each @type {Array<Promise<EngineError | null>>} */
  #made = [];
  /** milliseconds that the device took for the last run, null where it does not tell @type {number | null} */
  gpuMs = null;
  /** sums over the runs of each entry @type {Record<string, {runs: number, gpu_ms: number}>} */
  #times = {};
  /** a run on a GPU cannot be cut short: Stop waits for it */
  shared = false;
  clearStop() {}
  /** set by the engine: has the running request been cancelled? */
  cancelled = () => false;

  /** @param {Device} device */
  constructor(device) {
    this.#device = device;
    this.about = device.about;
    this.limits = device.about.limits;
    this.#nothing = device.make(16, STORAGE);
    if (this.about.features.includes("timestamp-query"))
      this.#clock = {
        set: device.gpu.createQuerySet({ type: "timestamp", count: 2 }),
        buffer: device.make(16, QUERY_RESOLVE | COPY_SRC),
      };
  }

  /**
   * @param {{software?: boolean, waitMs?: number}} [how] software: false refuses emulators
   * @returns {Promise<GpuHost>} EngineError no_gpu where there is no device, with the reason in words
   */
  static async create({ software = true, waitMs } = {}) {
    const { device, about } = await openDevice({ software });
    return new GpuHost(new Device(device, about, waitMs));
  }

  get bytes() {
    return this.#device.bytes;
  }

  get size() {
    return this.#device.bytes;
  }

  /** What it holds and how long its runs took. */
  facts() {
    const { bytes, live, peak, lost } = this.#device;
    return { bytes, buffers: live, peak, lost, times: this.#clock ? structuredClone(this.#times) : null };
  }

  /** A storage buffer of zeros. @param {number} bytes @returns {number} its number */
  buffer(bytes) {
    this.#device.check();
    const size = Math.ceil(Math.max(bytes, 16) / 16) * 16;
    const allowed = Math.min(this.limits.maxBufferSize, this.limits.maxStorageBufferBindingSize);
    if (size > allowed)
      throw new EngineError(
        "out_of_memory",
        `GPU memory: one buffer of ${mb(size)} is wanted, this GPU allows ${mb(allowed)}; choose a smaller model or another executor`,
        { wanted: size, allowed },
      );
    // whether there is room is known later
    const [buffer, fault] = this.#device.scoped(() => this.#device.make(size, STORAGE | COPY_DST | COPY_SRC), "out-of-memory");
    this.#made.push(fault);
    return this.#buffers.push(buffer) - 1;
  }

  /** Whether the buffers that were made so far are really there: a GPU without room says so only now. */
  async settle() {
    const made = this.#made;
    this.#made = [];
    const fault = (await this.#device.inTime(Promise.all(made))).find(Boolean);
    if (fault) throw new EngineError(fault.code, `${mb(this.bytes)} in all are wanted. ${fault.message}`, { wanted: this.bytes, allowed: 0 });
    this.#device.check();
  }

  /** Buffers from number `first` on go. Without it everything goes that Plans need; the device stays for the next model. */
  release(first = 0) {
    for (const buffer of this.#buffers.splice(first)) this.#device.destroy(buffer);
    if (first) return;
    this.#device.destroy(this.#back);
    this.#back = null;
    this.#entries.clear();
    this.#pipelines.clear();
    this.#staging = new Uint8Array(0);
    this.#times = {};
  }

  /** The device goes, which is no loss. */
  dispose() {
    this.release();
    this.clearSources();
    for (const buffer of [this.#nothing, this.#clock?.buffer]) this.#device.destroy(buffer);
    this.#nothing = null;
    this.#clock?.set.destroy();
    this.#clock = null;
    this.#device.dispose();
  }

  // ---- bytes in

  /** Room for Python to copy bytes into, before `write` takes them. @param {number} bytes @returns {Uint8Array} */
  stage(bytes) {
    if (this.#staging.length < bytes) this.#staging = new Uint8Array(Math.max(bytes, 1 << 16));
    return this.#staging.subarray(0, bytes);
  }

  /** What was staged goes into a buffer; offset and bytes are multiples of 4. @param {number} buffer @param {number} offset @param {number} bytes */
  write(buffer, offset, bytes) {
    this.#device.check();
    this.#device.gpu.queue.writeBuffer(this.#buffers[buffer], offset, this.#staging, 0, bytes);
  }

  /** Where `loadWeights` finds a file. @param {string} name @param {import("./files.js").Source} source */
  addSource(name, source) {
    this.#sources.set(name, source);
  }

  clearSources() {
    this.#sources.clear();
  }

  /**
   * Stream byte ranges of files into buffers, piece by piece. The next piece is on its way from a slow source while this one is
   * taken over.
   * @param {string} recipe JSON [[buffer, [[file, start, end], ...]], ...]: ranges one behind another; "" is a file of zeros
   * @param {((done: number, total: number) => void) | null} onProgress bytes
   */
  async loadWeights(recipe, onProgress) {
    const pieces = JSON.parse(recipe).flatMap(cut);
    const total = pieces.reduce((/** @type {number} */ sum, /** @type {Piece} */ piece) => sum + piece.bytes, 0);
    const halves = [new Uint8Array(PIECE_BYTES), new Uint8Array(PIECE_BYTES)];
    const read = (/** @type {number} */ i) => this.#read(pieces[i], halves[i % 2]);
    let next = pieces.length ? read(0) : null;
    let done = 0;
    let flying = 0;
    for (let i = 0; i < pieces.length; i++) {
      const { buffer, offset, bytes } = pieces[i];
      if (next instanceof Promise) await next;
      next = i + 1 < pieces.length ? read(i + 1) : null;
      if (next instanceof Promise) next.catch(() => {}); // awaited in the next round, unless this one throws first
      this.#device.check();
      const whole = Math.ceil(bytes / 4) * 4;
      halves[i % 2].fill(0, bytes, whole);
      this.#device.gpu.queue.writeBuffer(this.#buffers[buffer], offset, halves[i % 2], 0, whole);
      done += bytes;
      flying += bytes;
      if (flying >= FLIGHT_BYTES || i + 1 === pieces.length) {
        flying = 0;
        this.#device.gpu.queue.submit([]); // else what was written waits for a submit
        await this.#device.inTime(this.#device.gpu.queue.onSubmittedWorkDone());
      }
      if (this.cancelled()) throw new EngineError("cancelled", "stopped");
      onProgress?.(done, total);
    }
    this.#device.check();
  }

  /** @param {Piece} piece @param {Uint8Array} into @returns {Promise<void> | void} a promise only where a source is slow */
  #read({ parts }, into) {
    /** @type {Array<Promise<void> | void>} */
    const reads = parts.map(({ file, start, at, bytes }) => {
      const view = into.subarray(at, at + bytes);
      if (!file) return void view.fill(0);
      const source = this.#sources.get(file);
      if (!source) throw new EngineError("internal", `loadWeights: there is no file ${file}`);
      return fill(source, view, start);
    });
    if (reads.some((one) => one instanceof Promise)) return Promise.all(reads).then(() => {});
  }

  // ---- pipelines

  /**
   * Compile the pipelines of a Plan and make its bind groups; those of earlier Plans stay.
   * @param {string} plan JSON {kernels, pipelines, entries, cuts}
   * @param {((done: number, total: number) => void) | null} onProgress
   */
  async prepare(plan, onProgress) {
    this.#device.check();
    const { kernels, pipelines, entries, cuts } = JSON.parse(plan);
    /** @type {Map<string, any>} */
    const modules = new Map();
    let done = 0;
    onProgress?.(0, pipelines.length);
    const compiling = pipelines.map(async (/** @type {any} */ wanted) => {
      const pipeline = await this.#pipeline(wanted, kernels[wanted.kernel], modules);
      if (this.cancelled()) throw new EngineError("cancelled", "stopped");
      onProgress?.(++done, pipelines.length);
      return pipeline;
    });
    const made = await this.#device.inTime(Promise.all(compiling), COMPILE_TIMES);
    const [found, fault] = this.#device.scoped(() =>
      Object.entries(entries).map(([name, steps]) => /** @type {[string, Step[]]} */ ([name, steps.map(this.#step(made))])),
    );
    const error = await this.#device.inTime(fault);
    if (error) throw error;
    for (const [name, steps] of found) this.#entries.set(name, { steps, cuts: cuts[name] });
  }

  /** @param {any} wanted @param {string} code @param {Map<string, any>} modules */
  async #pipeline({ kernel, entry, constants }, code, modules) {
    const key = JSON.stringify([code, entry, constants]);
    let pipeline = this.#pipelines.get(key);
    if (pipeline) return pipeline;
    if (!modules.has(kernel)) {
      const [module] = this.#device.scoped(() => this.#device.gpu.createShaderModule({ code, label: kernel })); // the pipeline says what is wrong
      modules.set(kernel, module);
    }
    const compute = { module: modules.get(kernel), entryPoint: entry, constants };
    try {
      pipeline = await this.#device.gpu.createComputePipelineAsync({ layout: "auto", compute, label: kernel });
    } catch (error) {
      this.#device.check();
      throw faultOf(error, `kernel ${kernel} (${entry}, ${JSON.stringify(constants)}) does not compile here: `);
    }
    this.#pipelines.set(key, pipeline);
    return pipeline;
  }

  /** @param {any[]} made pipelines @returns {(step: [number, number[], [number, number, number]]) => Step} */
  #step(made) {
    return ([number, buffers, counts]) => ({
      pipeline: made[number],
      counts,
      group: this.#device.gpu.createBindGroup({
        layout: made[number].getBindGroupLayout(0),
        entries: buffers.flatMap((n, binding) =>
          n === -2 ? [] : [{ binding, resource: { buffer: n === -1 ? this.#nothing : this.#buffers[n] } }],
        ),
      }),
    });
  }

  // ---- runs

  /**
   * Dispatches [first, last) of an entry, then what is to be read: one submit, or one for each part that the entry is cut into. A
   * run that nothing is read from is waited for too.
   * @param {string} entry @param {number} first @param {number} last
   * @param {string} reads JSON [[buffer, offset, bytes], ...]
   * @returns {Promise<Uint8Array>} the bytes one behind another
   */
  async run(entry, first, last, reads) {
    this.#device.check();
    this.gpuMs = null;
    const places = /** @type {Array<[number, number, number]>} */ (JSON.parse(reads));
    const total = places.reduce((sum, [, , bytes]) => sum + bytes, 0);
    const { steps, cuts } = /** @type {Entry} */ (this.#entries.get(entry));
    const clock = last > first ? this.#clock : null;
    const size = Math.max(16, total + (clock ? 16 : 0));
    if ((this.#back?.size ?? 0) < size) {
      this.#device.destroy(this.#back);
      this.#back = this.#device.make(size, COPY_DST | MAP_READ);
    }
    const back = this.#back;
    let failed = true;
    try {
      const [mapped, fault] = this.#device.scoped(() => {
        let from = first;
        for (const to of [...cuts.filter((cut) => first < cut && cut < last), last]) {
          const ends = to === last && { places, back, total };
          this.#submit(steps.slice(from, to), clock, from === first, ends);
          from = to;
        }
        return back.mapAsync(1, 0, size);
      });
      mapped.catch(() => {});
      const error = await this.#device.inTime(fault);
      if (error) throw error;
      await this.#device.inTime(mapped);
      this.#device.check();
      const data = new Uint8Array(back.getMappedRange(0, size)).slice();
      back.unmap();
      failed = false;
      if (clock) this.#tell(entry, data.slice(total), first === 0 && last === steps.length);
      return data.subarray(0, total);
    } finally {
      // one that failed may be waiting to be mapped for ever
      if (failed || back.size > KEPT_BYTES) {
        this.#device.destroy(this.#back);
        this.#back = null;
      }
    }
  }

  /**
   * @param {Step[]} steps @param {{set: any, buffer: any} | null} clock @param {boolean} begins the first part of its run
   * @param {{places: Array<[number, number, number]>, back: any, total: number} | false} ends the last, with what is read then
   */
  #submit(steps, clock, begins, ends) {
    const encoder = this.#device.gpu.createCommandEncoder();
    if (steps.length) {
      /** @type {any} */
      const timestampWrites = { querySet: clock?.set };
      if (begins) timestampWrites.beginningOfPassWriteIndex = 0;
      if (ends) timestampWrites.endOfPassWriteIndex = 1;
      const pass = encoder.beginComputePass(clock && (begins || ends) ? { timestampWrites } : {});
      let set = null;
      for (const { pipeline, group, counts } of steps) {
        if (pipeline !== set) pass.setPipeline((set = pipeline));
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(...counts);
      }
      pass.end();
    }
    if (ends) {
      const { places, back, total } = ends;
      let at = 0;
      for (const [buffer, offset, bytes] of places) {
        encoder.copyBufferToBuffer(this.#buffers[buffer], offset, back, at, bytes);
        at += bytes;
      }
      if (clock) {
        encoder.resolveQuerySet(clock.set, 0, 2, clock.buffer, 0);
        encoder.copyBufferToBuffer(clock.buffer, 0, back, total, 16);
      }
    }
    this.#device.gpu.queue.submit([encoder.finish()]);
  }

  /** @param {string} entry @param {Uint8Array} stamps two times in nanoseconds @param {boolean} whole of the whole entry */
  #tell(entry, stamps, whole) {
    const [begin, end] = new BigInt64Array(stamps.buffer);
    if (end < begin) return; // the clock was set back
    this.gpuMs = Number(end - begin) / 1e6;
    if (!whole) return;
    const time = (this.#times[entry] ??= { runs: 0, gpu_ms: 0 });
    time.runs++;
    time.gpu_ms += this.gpuMs;
  }
}

/** Ranges of one buffer in pieces that begin at multiples of 4 bytes. @param {[number, Array<[string, number, number]>]} tensor @returns {Piece[]} */
function cut([buffer, ranges]) {
  /** @type {Piece[]} */
  const pieces = [];
  let piece = /** @type {Piece | null} */ (null);
  let offset = 0;
  for (const [file, from, end] of ranges)
    for (let start = from; start < end;) {
      if (!piece || piece.bytes === PIECE_BYTES) pieces.push((piece = { buffer, offset, bytes: 0, parts: [] }));
      const bytes = Math.min(end - start, PIECE_BYTES - piece.bytes);
      piece.parts.push({ file, start, at: piece.bytes, bytes });
      piece.bytes += bytes;
      offset += bytes;
      start += bytes;
    }
  return pieces;
}
