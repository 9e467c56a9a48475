/** What this browser and this address allow; asked by the engine before it chooses kernels, and by pages that tell people. */

/** @param {...number} body sections after the header */
const valid = (...body) => WebAssembly.validate(Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, ...body));

/** () -> v128, whose body is `v128.const 0` followed by `code`. @param {...number} code */
const simd = (...code) => {
  const body = [0, 253, 12, ...new Array(16).fill(0), ...code, 11];
  return valid(1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, body.length + 2, 1, body.length, ...body);
};

/**
 * @typedef {object} Features
 * @property {boolean} secure the address is https or this machine: microphone, storage and threads depend on it
 * @property {boolean} isolated the server's isolation headers are in force
 * @property {boolean} threads shared memory may be made
 * @property {boolean} simd
 * @property {boolean} relaxed relaxed SIMD: multiply-add in one instruction
 * @property {number} cores
 * @property {string} noThreads why threads are not possible, and what to do; "" when they are
 */

/** @returns {Features} */
export function features() {
  const secure = globalThis.isSecureContext === true;
  const isolated = globalThis.crossOriginIsolated === true;
  const cores = globalThis.navigator?.hardwareConcurrency || 1;
  // a shared memory and an atomic load from it
  const atomics = valid(1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 5, 4, 1, 3, 1, 1, 10, 11, 1, 9, 0, 65, 0, 254, 16, 2, 0, 26, 11);
  let noThreads = "";
  if (!secure)
    noThreads =
      "this address is neither https nor this machine's own, so the browser gives no shared memory; open it by https or as localhost";
  else if (!isolated)
    noThreads =
      "the server does not send the isolation headers (COOP and COEP), so the browser gives no shared memory; serve with serve.py";
  else if (!atomics || typeof SharedArrayBuffer === "undefined") noThreads = "this browser has no WebAssembly threads";
  return {
    secure,
    isolated,
    threads: noThreads === "",
    simd: simd(),
    // i32x4.relaxed_trunc_f32x4_s
    relaxed: simd(253, 129, 2),
    cores,
    noThreads,
  };
}
