/**
 * A GPU that computes nothing, counts everything, and fails when it is told to. install(scope, faults) puts it in place of
 * navigator.gpu. Small buffers hold what is written into them; a pass takes 2.5 ms by its clock.
 *
 * What can go wrong is a field of `faults`, which a test changes at any time:
 *   adapter: "absent" | "null" | "throws" | "hangs"; software, refused (requestDevice fails): booleans
 *   features: names; limits: numbers that replace the usual ones
 *   dead: devices to come are lost already; lose: submits until the device is lost, with the readback pending for ever;
 *   again: what lose is after that
 *   room: bytes that all buffers of a device may take; broken: a kernel that does not compile; invalid: submits fail a check
 *   silent: nothing that is submitted ever ends; stray: an error that no scope catches, after the next submit
 */

export const counts = {
  adapters: 0, devices: 0, created: 0, live: 0, bytes: 0, submits: 0, maps: 0, writes: 0, written: 0, pipelines: 0, groups: 0,
  modules: 0, passes: 0, dispatches: 0, destroyed: 0, asked: 0, flying: 0, flight: 0,
};
/** Larger buffers hold nothing. */
const HELD = 1 << 16;
/** The device that was made last. @type {any} */
let latest = null;

const LIMITS = {
  maxBufferSize: 1 << 30, maxStorageBufferBindingSize: 1 << 30, maxStorageBuffersPerShaderStage: 10,
  maxComputeWorkgroupStorageSize: 32768, maxComputeInvocationsPerWorkgroup: 1024, maxComputeWorkgroupSizeX: 1024,
  maxComputeWorkgroupSizeY: 1024, maxComputeWorkgroupsPerDimension: 65535,
};

class FakeBuffer {
  constructor(device, { size, usage }) {
    if (device.room < size) device.complain("out-of-memory", "the fake has no room");
    device.room -= size;
    Object.assign(this, { device, size, usage, gone: false, data: new Uint8Array(size <= HELD ? size : 0) });
    counts.created++;
    counts.live++;
    counts.bytes += size;
    device.buffers.add(this);
  }
  mapAsync() {
    counts.maps++;
    if (this.device.isLost) return Promise.reject(new DOMException("the device is lost", "AbortError"));
    // what is pending when the device is lost stays so: the hardest case
    return this.device.faults.silent || this.device.dying ? new Promise(() => {}) : Promise.resolve();
  }
  getMappedRange(offset = 0, size = this.size - offset) {
    if (this.gone) throw new Error("mapped after its end");
    return this.size <= HELD ? this.data.buffer.slice(offset, offset + size) : new ArrayBuffer(size);
  }
  unmap() {}
  destroy() {
    if (this.gone) return;
    this.gone = true;
    this.device.room += this.size;
    this.device.buffers.delete(this);
    counts.live--;
    counts.bytes -= this.size;
  }
}

class FakeDevice {
  constructor(faults, features, limits) {
    counts.devices++;
    Object.assign(this, { faults, limits, features: new Set(features), buffers: new Set(), scopes: [], room: faults.room ?? Infinity });
    this.lost = new Promise((resolve) => { this.end = resolve; });
    this.queue = {
      submit: (list) => this.submit(list),
      onSubmittedWorkDone: () => {
        counts.flying = 0;
        return faults.silent || this.dying ? new Promise(() => {}) : Promise.resolve();
      },
      writeBuffer: (buffer, offset, data, from, bytes) => {
        if (buffer.gone || offset % 4 || bytes % 4 || offset + bytes > buffer.size) this.complain("validation", "a bad write");
        counts.writes++;
        counts.written += bytes;
        counts.flight = Math.max(counts.flight, (counts.flying += bytes));
        if (buffer.size <= HELD) buffer.data.set(data.subarray(from, from + bytes), offset);
      },
    };
    latest = this;
    if (faults.dead) this.lose("it was gone already");
  }
  lose(message, reason = "unknown") {
    this.isLost = true;
    this.end({ message, reason });
  }
  complain(kind, message) {
    const scope = this.scopes.findLast((one) => one.kind === kind);
    const error = new (kind === "out-of-memory" ? GPUOutOfMemoryError : GPUValidationError)(message);
    if (scope) scope.error ??= error;
    else queueMicrotask(() => this.onuncapturederror?.({ error, preventDefault() {} }));
  }
  pushErrorScope(kind) {
    this.scopes.push({ kind, error: null });
  }
  popErrorScope() {
    const { error } = this.scopes.pop();
    return this.isLost ? Promise.reject(new DOMException("the device is lost", "OperationError")) : Promise.resolve(error);
  }
  createBuffer(how) {
    return new FakeBuffer(this, how);
  }
  createQuerySet() {
    return { destroy() {} };
  }
  createShaderModule({ label }) {
    counts.modules++;
    return { label };
  }
  async createComputePipelineAsync({ compute, label }) {
    counts.pipelines++;
    await null;
    if (this.isLost) throw new DOMException("the device is lost", "OperationError");
    if (this.faults.broken === label) throw new Error(`the fake does not like ${compute.entryPoint}`);
    return { getBindGroupLayout: () => ({}) };
  }
  createBindGroup({ entries }) {
    counts.groups++;
    const bad = entries.some(({ resource }) => !resource.buffer || resource.buffer.gone || resource.buffer.device !== this);
    if (bad) this.complain("validation", "a binding of a buffer that is not there");
    return {};
  }
  createCommandEncoder() {
    const pass = { setPipeline() {}, setBindGroup() {}, dispatchWorkgroups: () => counts.dispatches++, end() {} };
    return {
      beginComputePass: () => (counts.passes++, pass),
      copyBufferToBuffer: (source, from, target, to, bytes) => {
        if (source.gone || target.gone) this.complain("validation", "a copy of a buffer that is not there");
        if (source.size <= HELD && target.size <= HELD) target.data.set(source.data.subarray(from, from + bytes), to);
      },
      resolveQuerySet: (_set, _first, _count, buffer) => new BigInt64Array(buffer.data.buffer).set([1_000_000n, 3_500_000n]),
      finish: () => ({}),
    };
  }
  submit(list) {
    if (list.length) counts.submits++;
    const { faults } = this;
    if (faults.invalid) this.complain("validation", "the fake refuses this submit");
    if (faults.stray) {
      faults.stray = false;
      this.scopes.length = 0;
      this.complain("validation", "an error from nowhere");
      this.scopes.push({ kind: "validation", error: null });
    }
    if (faults.lose > 0 && list.length && --faults.lose === 0) {
      this.dying = true;
      faults.lose = faults.again ?? 0;
      faults.again = 0;
      setTimeout(() => this.lose("the test pulled the plug"), 20);
    }
  }
  destroy() {
    counts.destroyed++;
    for (const buffer of [...this.buffers]) buffer.destroy();
    this.lose("destroyed by the page", "destroyed");
  }
}

class GPUOutOfMemoryError {
  constructor(message) {
    this.message = message;
  }
}
class GPUValidationError extends GPUOutOfMemoryError {}

/** @param {any} scope window or self @param {Record<string, any>} faults */
export function install(scope, faults) {
  const gpu = {
    async requestAdapter() {
      counts.adapters++;
      if (faults.adapter === "throws") throw new DOMException("WebGPU is switched off here", "NotSupportedError");
      if (faults.adapter === "null") return null;
      if (faults.adapter === "hangs") return new Promise(() => {});
      const limits = { ...LIMITS, ...faults.limits };
      let used = false;
      return {
        features: new Set(faults.features ?? ["shader-f16", "timestamp-query"]),
        limits,
        info: { vendor: "test", architecture: "paper", device: "", description: "", isFallbackAdapter: Boolean(faults.software) },
        async requestDevice({ requiredFeatures = [], requiredLimits = {} } = {}) {
          if (faults.refused) throw new DOMException("no device for you", "OperationError");
          for (const [name, value] of Object.entries(requiredLimits))
            if (!(name in limits) || value > limits[name]) throw new DOMException(`limit ${name}`, "OperationError");
          const device = new FakeDevice(faults, requiredFeatures, requiredLimits);
          if (used) device.lose("its adapter was used up");
          used = true;
          return device;
        },
      };
    },
  };
  Object.defineProperty(scope.navigator, "gpu", {
    configurable: true,
    get() {
      counts.asked++;
      return faults.adapter === "absent" ? undefined : gpu;
    },
  });
}

/** In a worker: a test changes faults and reads counts through a channel of this name. @param {any} scope */
export function remote(scope, name = "fake gpu") {
  const faults = {};
  install(scope, faults);
  const channel = new BroadcastChannel(name);
  channel.onmessage = ({ data }) => {
    if (!data.ask) return;
    for (const key of Object.keys(faults)) if (data.reset) delete faults[key];
    Object.assign(faults, data.faults);
    if (data.lose) latest.lose("the test pulled the plug");
    channel.postMessage({ answer: data.ask, counts: { ...counts }, faults: { ...faults } });
  };
}
