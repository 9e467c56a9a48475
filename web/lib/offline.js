/**
 * After the first visit the site works without a network: a copy of every file it is made of, kept in step with the server
 * when the page has nothing better to do, and given out by sw.js only when the network fails.
 *
 * A copy is whole or it is not used: a new one is filled beside the old, which is removed when the new one is complete.
 */

import { MEDIABUNNY, PYODIDE } from "../../workers/protocol.js";

/** Where the site begins: the folder above web/. */
const BASE = new URL("../../", import.meta.url);
const PREFIX = "candlewick-site-";

/** Every file of the pages and the engine (tests/browser/test_page_offline.py compares it with what lies there). */
export const FILES = [
  "web/", "web/home.js", "web/style.css", "web/favicon.svg", "web/manifest.webmanifest", "web/samples/candle.wav",
  ..."cat coffee rocket".split(" ").map((name) => `web/samples/${name}.jpg`),
  ..."audio card cardview database device drop embeddings formats geometry link mask offline outline page picture recorder recorder.worklet sniff stored tape ui verify words zip".split(" ").map((name) => `web/lib/${name}.js`),
  "web/llama/", "web/llama/llama.css", ..."composer conversation history links log markdown model odds options page sheet store writer".split(" ").map((name) => `web/llama/${name}.js`),
  "web/segment/", "web/segment/segment.css", ..."camera input model objects overlay page painter panel save session stage take".split(" ").map((name) => `web/segment/${name}.js`),
  "web/examples/", "web/examples/examples.css", ..."transcribe.html transcribe.js python.html python.js".split(" ").map((name) => `web/examples/${name}`),
  "web/whisper/", ..."decoding input job listener live meter model options page player queue result resume save unfinished".split(" ").map((name) => `web/whisper/${name}.js`),
  ..."boot checkpoint client engine.worker features files gpu hosts mirror mp3 protocol python sha256 sound storage stored thread.worker unzip wasm webgpu words".split(" ").map((name) => `workers/${name}.js`),
  ..."single.relaxed single.simd128 threads.relaxed threads.simd128".split(" ").map((name) => `workers/kernels.${name}.wasm`),
  ..."pyodide.mjs pyodide.asm.mjs pyodide.asm.wasm python_stdlib.zip pyodide-lock.json".split(" ").map((name) => `build/pyodide/${PYODIDE}/${name}`),
  "build/wheels/index.json", `build/lib/mediabunny-${MEDIABUNNY}/mediabunny.min.mjs`,
  ..."whisper-tiny.en mobilesam smollm2-135m-instruct".split(" ").map((name) => `models/${name}/manifest.json`), "models/smollm2-135m-instruct/manifest.json",
];

/** How many files are asked for at a time. */
const AT_ONCE = 4;

/**
 * Register the service worker and bring the copy up to date, in an idle moment. Says in `note` what a person can rely on;
 * never throws: without storage or a secure address the site simply needs its network.
 * @param {HTMLElement} note
 */
export async function keepOffline(note) {
  if (!("serviceWorker" in navigator) || !("caches" in window)) return;
  try {
    await idle();
    await register();
    if (navigator.onLine) await navigator.locks.request("candlewick-offline", refresh);   // two tabs, one at a time
    if (await complete()) note.textContent = "Works offline from now on.";
  } catch (error) {
    console.info("not kept for offline use:", error);
    if (await complete().catch(() => false)) note.textContent = "Works offline.";
  }
}

/** The page is drawn and the browser has a free moment. */
function idle() {
  return new Promise((resolve) => {
    if (!("requestIdleCallback" in window)) setTimeout(resolve, 2000);
    else setTimeout(() => requestIdleCallback(resolve, { timeout: 5000 }), 1000);
  });
}

/** For the whole site where the server allows it, else for the pages alone. */
async function register() {
  const script = new URL("web/sw.js", BASE);
  try {
    await navigator.serviceWorker.register(script, { scope: BASE.pathname });
  } catch {
    await navigator.serviceWorker.register(script);
  }
}

/** Names of our copies, oldest first. */
async function copies() {
  return (await caches.keys()).filter((name) => name.startsWith(PREFIX));
}

async function complete() {
  const names = await copies();
  return names.length > 0 && !!await (await caches.open(names[0])).match(new URL("complete", BASE));
}

/** Every address the copy holds: the list above, and the wheels that the index names. */
async function addresses() {
  const wheels = await (await get(new URL("build/wheels/index.json", BASE))).json();
  const names = Object.values(wheels).filter((value) => typeof value === "string");
  return [...FILES, ...names.map((name) => `build/wheels/${name}`)].map((path) => new URL(path, BASE));
}

/** @param {URL} url @param {"GET" | "HEAD"} [method] */
async function get(url, method = "GET") {
  const response = await fetch(url, { cache: "no-cache", method });
  if (!response.ok) throw new Error(`${url.pathname}: the server answered ${response.status}`);
  return response;
}

/** What tells one version of a file from another. @param {Response} response */
const mark = (response) => response.headers.get("etag") ?? response.headers.get("last-modified") ?? "";

/** Bring the copy in step with the server; nothing is fetched or written when nothing changed. */
async function refresh() {
  const [old] = await copies();
  const before = old && await complete() ? await caches.open(old) : null;
  const urls = await addresses();
  /** @type {Map<URL, Response>} */
  const same = new Map();
  if (before) {
    await each(urls, async (url) => {
      const [now, then] = await Promise.all([get(url, "HEAD"), before.match(url)]);
      if (then && mark(now) && mark(now) === mark(then)) same.set(url, then);
    });
    if (same.size === urls.length) return;
  }
  const name = PREFIX + Date.now();
  const next = await caches.open(name);
  try {
    await each(urls, async (url) => next.put(url, same.get(url) ?? await get(url)));
    await next.put(new URL("complete", BASE), new Response(""));
  } catch (error) {
    await caches.delete(name);
    throw error;
  }
  for (const other of await copies()) if (other !== name) await caches.delete(other);
}

/**
 * @template T
 * @param {T[]} items
 * @param {(item: T) => Promise<void>} work
 */
async function each(items, work) {
  const queue = [...items];
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    for (let item = queue.shift(); item !== undefined; item = queue.shift()) await work(item);
  }));
}
