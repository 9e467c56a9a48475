/**
 * What this device and this browser offer to a page, with the reason where something is missing.
 */

/** f32x4 add: any SIMD at all. */
const SIMD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11];
/** i8x16.relaxed_swizzle: the relaxed SIMD instructions. */
const RELAXED = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15, 65, 2, 253, 15,
  253, 128, 2, 11];

/** @param {number[]} bytes */
const compiles = (bytes) => typeof WebAssembly === "object" && WebAssembly.validate(new Uint8Array(bytes));

/**
 * @typedef {object} Device
 * @property {boolean} wasm
 * @property {boolean} simd
 * @property {boolean} relaxedSimd
 * @property {boolean} secure https or localhost
 * @property {boolean} isolated shared memory for threads is allowed
 * @property {number} cores logical processors the browser tells of
 * @property {number | null} memoryGB as told by the browser, rounded and capped by it; null where it does not tell
 * @property {boolean} microphone
 * @property {boolean} storage files can be kept for the next visit
 */

/** @returns {Device} */
export function device() {
  const nav = /** @type {Navigator & {deviceMemory?: number}} */ (navigator);
  return {
    wasm: typeof WebAssembly === "object",
    simd: compiles(SIMD),
    relaxedSimd: compiles(RELAXED),
    secure: window.isSecureContext,
    isolated: window.crossOriginIsolated === true && typeof SharedArrayBuffer !== "undefined",
    cores: navigator.hardwareConcurrency || 1,
    memoryGB: nav.deviceMemory ?? null,
    microphone: window.isSecureContext && !!navigator.mediaDevices?.getUserMedia,
    storage: !!navigator.storage?.getDirectory,
  };
}

/** Why there are no threads, in words, or null if there are. @param {Device} facts */
export function noThreadsBecause(facts) {
  if (facts.isolated) return null;
  return facts.secure
    ? "the server does not send the isolation headers (Cross-Origin-Opener-Policy and Cross-Origin-Embedder-Policy)"
    : "the address is not secure: browsers allow shared memory only on https and on localhost";
}

/**
 * The graphics processor as the browser offers it to pages.
 * @returns {Promise<{available: boolean, software: boolean, words: string}>}
 */
export async function graphics() {
  const gpu = /** @type {any} */ (navigator).gpu;
  if (!gpu) {
    const words = window.isSecureContext ? "This browser does not offer WebGPU." : "WebGPU needs https or localhost.";
    return { available: false, software: false, words };
  }
  let adapter = null;
  try { adapter = await gpu.requestAdapter(); } catch { /* told below */ }
  if (!adapter) return { available: false, software: false, words: "The browser knows WebGPU but found no usable graphics processor." };
  const info = adapter.info ?? {};
  const name = info.description || [info.vendor, info.architecture].filter(Boolean).join(" ") || "an unnamed adapter";
  const software = !!(info.isFallbackAdapter ?? adapter.isFallbackAdapter) || /swiftshader|llvmpipe/i.test(name);
  return { available: true, software, words: software ? `Only a software renderer (${name}), slower than the processor itself.` : name };
}

/**
 * What a person can paste into a bug report: the device, and nothing they said or opened.
 * @param {Record<string, unknown>} more
 */
export function diagnostics(more) {
  return JSON.stringify({
    when: new Date().toISOString(), page: location.pathname, browser: navigator.userAgent,
    language: navigator.language, online: navigator.onLine, device: device(), ...more,
  }, null, 2);
}
