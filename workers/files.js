/**
 * The only place where files are fetched, each checked, resumed and kept. A file comes from the network, from the store of an
 * earlier visit, or from a person's own disk; all three are byte sources: `name`, `size`, `readInto(view, start)`,
 * `read(start, end)`.
 */

import { EngineError } from "./protocol.js";
import { Sha256 } from "./sha256.js";
import { Store, isQuota, mb, usage } from "./storage.js";

const TRIES = 4;
/** Bytes read at once when a file is hashed again. */
export const READ_BACK = 4 << 20;
/** @typedef {{path: string, bytes: number, sha256: string}} ManifestFile */
/** @typedef {(done: number, total: number, file: string) => void} OnBytes */

/** Bytes in memory, or those of a Blob: a person's own file, a stored file without a handle. */
export class BlobSource {
  /** @param {string} name @param {Blob} blob */
  constructor(name, blob) {
    this.name = name;
    this.blob = blob;
    this.size = blob.size;
  }

  /** @param {number} start @param {number} end @returns {Promise<Uint8Array>} */
  async read(start, end) {
    try {
      return new Uint8Array(await this.blob.slice(start, end).arrayBuffer());
    } catch (error) {
      throw new EngineError(
        "bad_input",
        `${this.name}: the file could not be read (${/** @type {Error} */ (error).message}); it may have been moved or changed, pick it again`,
      );
    }
  }

  /** Fill `view` with the bytes from `start`. @param {Uint8Array} view @param {number} start */
  async readInto(view, start) {
    const bytes = await this.read(start, start + view.length);
    view.set(bytes);
    return bytes.length;
  }

  close() {}
}

/** A complete file of the store, read straight into any memory, shared kernel memory included. */
export class StoredSource {
  /** @param {string} name @param {import("./storage.js").Handle} handle */
  constructor(name, handle) {
    this.name = name;
    this.handle = handle;
    this.size = handle.getSize();
  }

  /** @param {number} start @param {number} end @returns {Promise<Uint8Array>} */
  async read(start, end) {
    const bytes = new Uint8Array(end - start);
    return bytes.subarray(0, this.handle.read(bytes, { at: start }));
  }

  /** @param {Uint8Array} view @param {number} start */
  readInto(view, start) {
    return this.handle.read(view, { at: start });
  }

  close() {
    this.handle.close();
  }
}

/** @typedef {BlobSource | StoredSource} Source */

/**
 * Fill `view` with the bytes of a source from `start`, or fail if there are fewer.
 * @param {Source} source @param {Uint8Array} view @param {number} start
 * @returns {Promise<void> | void} a promise only where the source is slow
 */
export function fill(source, view, start) {
  const check = (/** @type {number} */ n) => {
    if (n !== view.length)
      throw new EngineError(
        "bad_weights",
        `${source.name}: wanted ${view.length} bytes at ${start}, got ${n}; the file got shorter`,
      );
  };
  const got = source.readInto(view, start);
  if (typeof got === "number") return check(got);
  // a source made in Python answers with a coroutine, which is to be let go of
  return Promise.resolve(got)
    .then(check)
    .finally(() => /** @type {any} */ (got).destroy?.());
}

/**
 * GET, with the answer's status and kind checked.
 * @param {string | URL} url
 * @param {{from?: number, signal?: AbortSignal, cache?: RequestCache}} [options] from: first byte wanted
 */
export async function get(url, { from = 0, signal, cache } = {}) {
  let response;
  try {
    response = await fetch(url, { signal, cache, headers: from ? { Range: `bytes=${from}-` } : {} });
  } catch (error) {
    if (signal?.aborted) throw new EngineError("cancelled", "stopped");
    throw new EngineError(
      "network",
      `${url}: could not be fetched (${/** @type {Error} */ (error).message}); check the connection and try again`,
      { url: String(url) },
    );
  }
  if (!response.ok) {
    await response.body?.cancel();
    throw new EngineError(
      "network",
      `${url}: the server answered ${response.status} ${response.statusText}`.trimEnd(),
      { url: String(url), status: response.status },
    );
  }
  return response;
}

/** A JSON object from our own server. @param {string | URL} url @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function getJson(url, signal) {
  const text = await (await get(url, { signal, cache: "no-cache" })).text();
  try {
    return JSON.parse(text);
  } catch {
    throw new EngineError(
      "network",
      `${url}: wanted JSON, got ${looksLikePage(text) ? "a web page" : `"${text.slice(0, 40)}"`}; check the address`,
      { url: String(url) },
    );
  }
}

/**
 * Fetch files into the browser's own cache, telling how far it is, for somebody who fetches them without telling.
 * @param {string[]} urls
 * @param {(done: number, total: number) => void} onBytes
 */
export async function prefetch(urls, onBytes) {
  let done = 0;
  let total = 0;
  const responses = await Promise.all(urls.map((url) => get(url)));
  for (const response of responses) total += Number(response.headers.get("Content-Length"));
  await Promise.all(
    responses.map(async (response) => {
      const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
        done += piece.value.length;
        onBytes(done, Math.max(done, total));
      }
    }),
  );
}

/** @param {string} text */
const looksLikePage = (text) => /^\s*(<!doctype|<html|<head|<\?xml)/i.test(text);

/**
 * One file whose size and hash are known, from the store if it is there, else downloaded into it. An unfinished download is
 * resumed. Without a store, or when it is full, the bytes stay in memory.
 * @param {string | URL} url
 * @param {ManifestFile} want
 * @param {{store: Store | null, key: string, onBytes?: OnBytes, signal?: AbortSignal, warn?: (message: string) => void}} how
 * @returns {Promise<Source>}
 */
export async function fetchFile(url, want, how) {
  const { store, key } = how;
  const stored = store && (await fromStore(store, key, want));
  if (stored) return stored;
  for (let attempt = 1; ; attempt++) {
    const sink = await Sink.open(want, store, key, how.warn);
    try {
      await download(url, want, sink, how);
      const hash = sink.hash.hex();
      if (hash === want.sha256) return await sink.source();
      // what an earlier try left may have been of another version: once more from the start
      const resumed = sink.resumed;
      await sink.discard();
      if (!resumed || attempt > 1)
        throw new EngineError(
          "network",
          `${url}: sha256 is ${hash}, the manifest says ${want.sha256}; the file on the server is damaged or of another version`,
          { url: String(url) },
        );
    } catch (error) {
      await sink.close();
      throw error;
    }
  }
}

/** @param {Store} store @param {string} key @param {ManifestFile} want @returns {Promise<Source | null>} */
export async function fromStore(store, key, want) {
  const reader = await store.reader(key);
  if (!reader) return null;
  const source = reader instanceof Blob ? new BlobSource(want.path, reader) : new StoredSource(want.path, reader);
  if (source.size === want.bytes) return source;
  source.close();
  await store.remove(key);
  return null;
}

/** @param {string | URL} url @param {ManifestFile} want @param {Sink} sink @param {{onBytes?: OnBytes, signal?: AbortSignal}} how */
async function download(url, want, sink, { onBytes, signal }) {
  for (let attempt = 1; sink.size < want.bytes; attempt++) {
    try {
      const response = await get(url, { from: sink.size, signal, cache: "no-store" });
      if (sink.size && response.status !== 206) await sink.restart();
      await checkAnswer(response, url, want, sink.size);
      const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        if (
          sink.size === 0 &&
          !want.path.endsWith(".html") &&
          looksLikePage(new TextDecoder().decode(value.slice(0, 64)))
        )
          throw new EngineError(
            "network",
            `${url}: wanted ${want.path} (${mb(want.bytes)}), the server sent a web page; check the address`,
            { url: String(url) },
          );
        if (sink.size + value.length > want.bytes) {
          await reader.cancel();
          throw new EngineError(
            "network",
            `${url}: the server sends more than the ${want.bytes} bytes of the manifest`,
            { url: String(url) },
          );
        }
        await sink.append(value);
        onBytes?.(sink.size, want.bytes, want.path);
      }
      if (sink.size < want.bytes) throw new TypeError(`the connection ended after ${sink.size} of ${want.bytes} bytes`);
    } catch (error) {
      if (signal?.aborted) throw new EngineError("cancelled", "stopped");
      const failed = /** @type {any} */ (error);
      // only a broken connection is worth another try; what the server says clearly is final
      const final =
        failed instanceof EngineError
          ? failed.code !== "network" || failed.data?.status || sink.size === 0
          : failed?.name !== "TypeError";
      if (final) throw EngineError.from(failed, "network");
      if (attempt >= TRIES)
        throw new EngineError(
          "network",
          `${url}: ${failed.message}; what came is kept, try again to go on from there`,
          { url: String(url) },
        );
      await new Promise((resolve) => setTimeout(resolve, 250 * 2 ** attempt));
    }
  }
}

/** @param {Response} response @param {string | URL} url @param {ManifestFile} want @param {number} from */
async function checkAnswer(response, url, want, from) {
  const length = response.headers.get("Content-Encoding") ? null : response.headers.get("Content-Length");
  const range = response.headers.get("Content-Range");
  const total = range ? Number(range.split("/")[1]) : length === null ? want.bytes : Number(length) + from;
  if (total !== want.bytes || (range && !range.startsWith(`bytes ${from}-`))) {
    await response.body?.cancel();
    const page = (response.headers.get("Content-Type") ?? "").startsWith("text/html") ? ", a web page" : "";
    throw new EngineError(
      "network",
      `${url}: wanted ${want.bytes} bytes, the server offers ${range ?? `${total}${page}`}; check the address`,
      { url: String(url), status: response.status },
    );
  }
}

/** Where a download goes: a part file of the store while that works, else memory. Hashes what passes. */
class Sink {
  hash = new Sha256();
  size = 0;
  /** whether it goes on from an earlier visit's bytes */
  resumed = false;
  /** @type {Uint8Array | null} */
  memory = null;

  /** @param {ManifestFile} want @param {import("./storage.js").Part | null} part @param {((message: string) => void) | undefined} warn */
  constructor(want, part, warn) {
    this.want = want;
    this.part = part;
    this.warn = warn;
  }

  /** @param {ManifestFile} want @param {Store | null} store @param {string} key @param {((message: string) => void)} [warn] */
  static async open(want, store, key, warn) {
    let part = null;
    try {
      part = store && (await store.part(key));
    } catch {
      // another tab is downloading the same file: this one keeps its own copy in memory
    }
    const sink = new Sink(want, part, warn);
    if (part && part.size > want.bytes) part.truncate();
    if (part?.size) {
      const piece = new Uint8Array(READ_BACK);
      while (sink.size < part.size) {
        const n = part.read(piece, sink.size);
        if (n <= 0) break;
        sink.hash.update(piece.subarray(0, n));
        sink.size += n;
      }
      sink.resumed = true;
    }
    return sink;
  }

  /** @param {Uint8Array} bytes */
  async append(bytes) {
    if (this.part) {
      try {
        this.part.append(bytes);
      } catch (error) {
        await this.#toMemory(error);
      }
    }
    if (!this.part) (this.memory ??= new Uint8Array(this.want.bytes)).set(bytes, this.size);
    this.hash.update(bytes);
    this.size += bytes.length;
  }

  /** The store cannot take more: keep what came, in memory. @param {any} error */
  async #toMemory(error) {
    const part = /** @type {import("./storage.js").Part} */ (this.part);
    this.memory = new Uint8Array(this.want.bytes);
    part.read(this.memory.subarray(0, this.size), 0);
    this.part = null;
    await part.discard();
    const why = isQuota(error) ? "the browser's storage is full" : `the browser's storage failed (${error?.message})`;
    this.warn?.(
      `${this.want.path}: ${why}; ${(await usage()).words}. It stays in memory for this visit and is downloaded again at the next.`,
    );
  }

  async restart() {
    this.part?.truncate();
    this.hash = new Sha256();
    this.size = 0;
    this.resumed = false;
  }

  /** The complete file as a source. @returns {Promise<Source>} */
  async source() {
    if (this.part) {
      const { store, name } = this.part;
      try {
        await this.part.finish();
        const source = await fromStore(store, name, this.want);
        if (source) return source;
      } catch (error) {
        this.warn?.(
          `${this.want.path}: could not be kept for the next visit (${/** @type {Error} */ (error).message})`,
        );
        const left = await this.part.file.getFile();
        return new BlobSource(this.want.path, new Blob([await left.arrayBuffer()]));
      }
    }
    return new BlobSource(this.want.path, new Blob([/** @type {BlobPart} */ (this.memory ?? new Uint8Array(0))]));
  }

  /** Keep an unfinished part for the next try. */
  async close() {
    try {
      this.part?.pause();
    } catch {
      // discarded or finished already
    }
  }

  async discard() {
    await this.part?.discard();
    this.memory = null;
  }
}
