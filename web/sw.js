/**
 * Keeps the site working without a network. While there is one, everything comes from it and this script steps aside; where
 * it fails, or does not begin to answer in time, the copy that lib/offline.js keeps is given instead. Weights and the
 * interpreter's snapshot are not here: the engine keeps them in the private file system.
 *
 * Starts must not pay for this. The page itself is asked of the network without waiting for this script to run, where the
 * browser can do that; and once the network has given a page, its files are left to the browser alone for a while.
 */
const PATIENCE_MS = 4000;
/** How long the network is trusted after it gave a page. */
const TRUST_MS = 15_000;
const worker = /** @type {ServiceWorkerGlobalScope} */ (/** @type {unknown} */ (self));
const base = new URL("../", worker.location.href);
let trustedUntil = 0;

worker.addEventListener("install", (event) => {
  const { addRoutes } = /** @type {any} */ (event);   // not in every browser
  const route = { condition: { requestMode: "navigate" }, source: "race-network-and-fetch-handler" };
  if (addRoutes) event.waitUntil(addRoutes.call(event, route).catch(() => {}));
  void worker.skipWaiting();
});
// Nothing waits for the claim: in Firefox it wants an answer of every worker of the page, and threads between two runs give
// none, so that a script that waited would never be active, and nothing of the site would load any more.
worker.addEventListener("activate", () => void worker.clients.claim());

worker.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || !request.url.startsWith(base.href) || request.headers.has("range")) return;
  if (request.mode === "navigate") event.respondWith(page(request));
  else if (performance.now() > trustedUntil) event.respondWith(answer(request));
});

/** @param {Request} request */
function page(request) {
  trustedUntil = 0;
  return answer(request, () => { trustedUntil = performance.now() + TRUST_MS; });
}

/**
 * From the network, or else what is kept.
 * @param {Request} request
 * @param {() => void} [onNetwork] called when the network answered in time
 */
async function answer(request, onNetwork) {
  let timer;
  const late = new Promise((resolve) => { timer = setTimeout(resolve, PATIENCE_MS); });
  const network = fetch(request);
  try {
    const first = await Promise.race([network, late]);
    if (first) onNetwork?.();
    return first ?? await kept(request) ?? await network;
  } catch (error) {
    const copy = await kept(request);
    if (copy) return copy;
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

/** @param {Request} request */
async function kept(request) {
  if (request.url === base.href) return Response.redirect(new URL("web/", base), 302);
  return caches.match(request, { ignoreSearch: true, ignoreVary: true });
}
