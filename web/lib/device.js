/**
 * What this device and this browser offer to a page, with the reason where something is missing.
 */
import { features } from "../../workers/client.js";
import { settings } from "./ui.js";

/**
 * @typedef {import("../../workers/features.js").Features & {memoryGB: number | null, microphone: boolean, storage: boolean}} Device
 *   memoryGB as the browser reports it, rounded and capped; null where it does not; storage: files can be kept for later visits
 */

/** @returns {Device} */
export function device() {
  const nav = /** @type {Navigator & {deviceMemory?: number}} */ (navigator);
  return {
    ...features(),
    memoryGB: nav.deviceMemory ?? null,
    microphone: window.isSecureContext && !!navigator.mediaDevices?.getUserMedia,
    storage: !!navigator.storage?.getDirectory,
  };
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
 * What a short trial of a GPU against WASM gave: `times` as fast, with this version of the engine and browser, for the models of a page.
 * @typedef {{gpu: string, key: string, version: string, times: number, failed?: string}} Raced gpu: its name; key: all that is
 *   known of it; failed: why it came to no end, times is 0 then
 */

/** @param {string | null} family */
const trialName = (family) => `gpu-trial ${family}`;

/** @param {string | null} family @returns {Raced | null} */
export function trialOf(family) {
  try {
    return JSON.parse(settings.get(trialName(family)) || "null");
  } catch {
    return null;
  }
}

/** @param {string | null} family @param {Raced} raced */
export const keepTrial = (family, raced) => settings.set(trialName(family), JSON.stringify(raced));

/** @param {string | null} family */
export const forgetTrial = (family) => settings.set(trialName(family), "");

/** To be said behind the reason for a GPU. @param {Raced} raced @param {any} info what load() told */
export function fasterWords({ gpu, times }, info) {
  return info.executor === "webgpu" && info.gpu?.name === gpu && times >= 1 ? `, ${times.toFixed(1)} times as fast as WASM here in a short trial` : "";
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
