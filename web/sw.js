/**
 * Keeps the site working without a network. While there is one, everything comes from it and this script only steps aside;
 * where it fails, or does not begin to answer in time, the copy that lib/offline.js keeps is given instead. Weights and the
 * interpreter's snapshot are not here: the engine keeps them in the private file system.
 */
const PATIENCE_MS = 4000;
const base = new URL("../", self.location.href);

self.addEventListener("install", (event) => {
  // Browsers that can, ask the network without waiting for this script to start.
  if (event.addRoutes) {
    event.waitUntil(Promise.resolve(event.addRoutes({ condition: { requestMethod: "GET" }, source: "race-network-and-fetch-handler" })).catch(() => {}));
  }
  self.skipWaiting();
});
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || !request.url.startsWith(base.href) || request.headers.has("range")) return;
  event.respondWith(answer(request));
});

/** @param {Request} request */
async function answer(request) {
  let timer;
  const late = new Promise((resolve) => { timer = setTimeout(resolve, PATIENCE_MS); });
  const network = fetch(request);
  try {
    const first = await Promise.race([network, late]);
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
