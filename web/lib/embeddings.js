/**
 * What the encoder made of a picture, kept for the next visit: 4 MB each, the latest ones only. A browser that forbids
 * storage, or has no room, simply forgets; then the picture is encoded again.
 */

import { database, done } from "./database.js";

/** How many are kept. */
const ROOM = 16;
const open = database("candlewick-embeddings", (made) => {
  made.createObjectStore("embeddings", { keyPath: "key" }).createIndex("used", "used");
});

/**
 * @param {string} key model and content
 * @returns {Promise<Float32Array | null>}
 */
export async function recall(key) {
  try {
    const store = (await open())?.transaction("embeddings", "readwrite").objectStore("embeddings");
    const entry = store && await done(store.get(key));
    if (!store || !entry) return null;
    await done(store.put({ ...entry, used: Date.now() }));
    return entry.values;
  } catch {
    return null;
  }
}

/** @param {string} key @param {Float32Array} values */
export async function keep(key, values) {
  try {
    const store = (await open())?.transaction("embeddings", "readwrite").objectStore("embeddings");
    if (!store) return;
    await done(store.put({ key, values, used: Date.now() }));
    const keys = await done(store.index("used").getAllKeys());   // oldest first
    for (const old of keys.slice(0, -ROOM)) await done(store.delete(old));
  } catch {
    // no room, or a private window
  }
}
