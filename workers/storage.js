/**
 * Files of ours in the browser's private file system (OPFS). A file is visible under its name only when it is complete: it is
 * written as NAME.part and renamed. Everything here may fail (private windows, insecure addresses, quota), and callers go
 * on without it.
 */

import { EngineError } from "./protocol.js";

/** @typedef {FileSystemSyncAccessHandle} Handle */

const PART = ".part";

/** Whether an error says that the disk or the allowance is full. @param {any} error */
export const isQuota = (error) => error?.name === "QuotaExceededError";

/** "used 12 MB of 40 MB", or "" where the browser does not tell. */
export async function usage() {
  try {
    const { usage = 0, quota = 0 } = await navigator.storage.estimate();
    return { used: usage, allowed: quota, words: `${mb(usage)} of ${mb(quota)} are used` };
  } catch {
    return { used: 0, allowed: 0, words: "the browser does not tell how much is used" };
  }
}

/**
 * Opening a part and giving it its name wait for each other in all tabs: else one tab opens what the other is renaming.
 * @template T
 * @param {string} name
 * @param {() => Promise<T>} work
 * @returns {Promise<T>}
 */
const oneTab = (name, work) => navigator.locks.request(`candlewick file ${name}`, work);

/** @param {number} bytes */
export const mb = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

export class Store {
  /** @param {FileSystemDirectoryHandle} folder */
  constructor(folder) {
    this.folder = folder;
  }

  /** Our folder in the private file system, or null where there is none. @returns {Promise<Store | null>} */
  static async open() {
    try {
      const root = await navigator.storage.getDirectory();
      return new Store(await root.getDirectoryHandle("candlewick", { create: true }));
    } catch {
      return null;
    }
  }

  /** Names of complete files; those that come and go meanwhile (in another tab) may be missing. */
  async names() {
    const names = [];
    try {
      for await (const name of this.folder.keys()) if (!name.endsWith(PART)) names.push(name);
    } catch {
      // the folder changed under the iteration
    }
    return names;
  }

  /**
   * A complete file to read from, or null. Where another tab holds its only handle, or the browser has no shared handles,
   * the answer is a Blob, which reads more slowly.
   * @param {string} name
   * @returns {Promise<Handle | Blob | null>}
   */
  async reader(name) {
    let file;
    try {
      file = await this.folder.getFileHandle(name);
    } catch {
      return null;
    }
    try {
      return await /** @type {any} */ (file).createSyncAccessHandle({ mode: "read-only" });
    } catch {
      try {
        return await file.getFile();
      } catch {
        return null;
      }
    }
  }

  /** A whole file, or null. @param {string} name @returns {Promise<Uint8Array | null>} */
  async read(name) {
    const reader = await this.reader(name);
    if (!reader) return null;
    if (reader instanceof Blob) return new Uint8Array(await reader.arrayBuffer());
    try {
      const bytes = new Uint8Array(reader.getSize());
      return reader.read(bytes, { at: 0 }) === bytes.length ? bytes : null;
    } finally {
      reader.close();
    }
  }

  /**
   * Begin or go on with a file that is not complete.
   * @param {string} name
   * @returns {Promise<Part>} whose `size` is what an earlier try left
   */
  async part(name) {
    return oneTab(name, async () => {
      const file = await this.folder.getFileHandle(name + PART, { create: true });
      return new Part(this, name, file, await file.createSyncAccessHandle());
    });
  }

  /** Write a whole file. @param {string} name @param {Uint8Array[]} pieces */
  async write(name, pieces) {
    const part = await this.part(name);
    try {
      part.truncate();
      for (const piece of pieces) part.append(piece);
      await part.finish();
    } catch (error) {
      await part.discard();
      throw error;
    }
  }

  /** Remove a file and what is left of an unfinished one. @param {string} name */
  async remove(name) {
    for (const entry of [name, name + PART]) {
      try {
        await this.folder.removeEntry(entry);
      } catch {
        // absent, or held by another tab: then that tab's version stays
      }
    }
  }

  /** Remove complete files that begin with `prefix`, apart from `keep`: older versions of it. @param {string} prefix @param {string} keep */
  async removeOthers(prefix, keep) {
    for (const name of await this.names()) if (name.startsWith(prefix) && name !== keep) await this.remove(name);
  }
}

/** A file on its way. */
export class Part {
  /** @param {Store} store @param {string} name @param {FileSystemFileHandle} file @param {Handle} handle */
  constructor(store, name, file, handle) {
    this.store = store;
    this.name = name;
    this.file = file;
    this.handle = handle;
    this.size = handle.getSize();
  }

  truncate() {
    this.handle.truncate(0);
    this.size = 0;
  }

  /** Append bytes; throws QuotaExceededError when they do not fit. @param {Uint8Array} bytes */
  append(bytes) {
    const written = this.handle.write(bytes, { at: this.size });
    if (written !== bytes.length)
      throw new DOMException(`wrote ${written} of ${bytes.length} bytes`, "QuotaExceededError");
    this.size += written;
  }

  /** Read back what is there. @param {Uint8Array} into @param {number} at */
  read(into, at) {
    return this.handle.read(into, { at });
  }

  /** Leave it for a later try. */
  pause() {
    try {
      this.handle.flush();
    } finally {
      this.handle.close();
    }
  }

  /** Make it visible under its name. */
  async finish() {
    const { folder } = this.store;
    await oneTab(this.name, async () => {
      this.pause();
      const file = /** @type {any} */ (this.file);
      if (typeof file.move !== "function") throw new EngineError("storage", "this browser cannot rename stored files");
      const there = await folder.getFileHandle(this.name).then((handle) => handle.getFile(), () => null);
      // another tab was faster, and may be reading its file already
      if (there?.size === this.size) return folder.removeEntry(this.name + PART);
      if (there) await folder.removeEntry(this.name).catch(() => {});
      await file.move(this.name);
    });
  }

  async discard() {
    try {
      this.handle.close();
    } catch {
      // closed already
    }
    await this.store.folder.removeEntry(this.name + PART).catch(() => {});
  }
}
