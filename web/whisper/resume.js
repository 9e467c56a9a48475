/**
 * What a long run found is kept in this browser while it runs, with its place, so that a reload, a crash or a stop costs
 * nothing: the same file goes on from there. The text stays on this device and is forgotten when the run is complete, when
 * a person says so, or after a month.
 *
 * @typedef {import("./job.js").Place} Place
 * @typedef {object} Kept
 * @property {string} key identity of the file
 * @property {string} name
 * @property {number} when
 * @property {Place} place
 * @property {FileSystemFileHandle | null} handle opens the file again, where the browser gave one
 * @property {Blob | null} recording what the microphone took: it lies nowhere else
 */
import { database, done } from "../lib/database.js";

const STORE = "places";
const DAYS = 30;
/** So many files are remembered. */
const MOST = 8;
/** A place is written at most so often. */
const PAUSE_MS = 4000;
/** A shorter sound is transcribed again sooner than a person has answered. */
const SHORTEST_SECONDS = 45;
/** Bytes of head and tail that tell one file from another. */
const ENDS = 65_536;

const open = database("candlewick-whisper", (db) => db.createObjectStore(STORE, { keyPath: "key" }));

/** @param {"readonly" | "readwrite"} mode */
async function store(mode) {
  return (await open())?.transaction(STORE, mode).objectStore(STORE) ?? null;
}

/**
 * Name, size and date of a file, and a hash of how it begins and ends.
 * @param {Blob} blob @param {string} name
 */
export async function identity(blob, name) {
  const date = blob instanceof File ? blob.lastModified : 0;
  let hash = "";
  if (crypto.subtle) {                                   // not on insecure addresses
    const ends = await new Blob([blob.slice(0, ENDS), blob.slice(Math.max(0, blob.size - ENDS))]).arrayBuffer();
    hash = [...new Uint8Array(await crypto.subtle.digest("SHA-256", ends))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }
  return [name, blob.size, date, hash].join("|");
}

/** All that can be gone on with, the newest first; what is too old goes. @returns {Promise<Kept[]>} */
export async function keptPlaces() {
  try {
    const places = await store("readonly");
    if (!places) return [];
    const all = (/** @type {Kept[]} */ (await done(places.getAll()))).sort((a, b) => b.when - a.when);
    const good = all.filter((kept, i) => i < MOST && Date.now() - kept.when < DAYS * 864e5);
    for (const kept of all) if (!good.includes(kept)) await forget(kept.key);
    return good;
  } catch {
    return [];
  }
}

/** @param {string} key @returns {Promise<Kept | null>} */
export async function placeOf(key) {
  try {
    const places = await store("readonly");
    return (places && await done(places.get(key))) ?? null;
  } catch {
    return null;
  }
}

/** @param {string} key */
export async function forget(key) {
  try {
    const places = await store("readwrite");
    if (places) await done(places.delete(key));
  } catch { /* nothing was kept */ }
}

/** Writes the places of one job as it goes. */
export class Keeper {
  #wrote = 0;
  /** @type {Promise<void>} */
  #writing = Promise.resolve();
  /** @type {Place | null} */
  #waits = null;

  /** @param {string} key @param {import("./input.js").Source} source */
  constructor(key, source) {
    this.key = key;
    this.source = source;
  }

  /** @param {Place | null} place @param {boolean} [now] do not wait for the next time */
  keep(place, now = false) {
    if (place && place.total >= SHORTEST_SECONDS && place.at > 0) this.#waits = place;
    if (!this.#waits || (!now && performance.now() - this.#wrote < PAUSE_MS)) return;
    const written = this.#waits;
    this.#waits = null;
    this.#wrote = performance.now();
    this.#writing = this.#writing.then(() => this.#write(written));
  }

  /** @param {Place} place */
  async #write(place) {
    const { name, blob, recorded } = this.source;
    const handle = await this.source.handle ?? null;
    /** @type {Kept} */
    const kept = { key: this.key, name, when: Date.now(), place, handle, recording: recorded ? blob : null };
    try {
      const places = await store("readwrite");
      if (places) await done(places.put(kept));
    } catch { /* full, or forbidden: then it is not kept */ }
  }

  /** It is complete. */
  async end() {
    this.#waits = null;
    await this.#writing;
    await forget(this.key);
  }
}
