/**
 * What the browser keeps of this site's models, seen from the page: how much, which, since when; and a person's own models, kept
 * on purpose. A kept model counts when its list, which is written last, names files that are all there.
 */

import { EngineError } from "./protocol.js";

const OWN = "own~";
const LIST = "~kept.json";
const PYTHON = "python~";

/** @param {number} bytes */
const mb = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

/** The folder of storage.js, whose handles for reading and writing are for workers alone. @returns {Promise<FileSystemDirectoryHandle | null>} */
async function openFolder() {
  try {
    return await (await navigator.storage.getDirectory()).getDirectoryHandle("candlewick", { create: true });
  } catch {
    return null;
  }
}

/**
 * @typedef {object} StoredModel
 * @property {string} id what `removeStored` and `keptFiles` want
 * @property {string} name for a person
 * @property {"served" | "own" | "python"} kind a model of the site, a person's own, or the started interpreter
 * @property {number} bytes
 * @property {number} kept when it came, in milliseconds since 1970
 * @property {string} family of a person's own, "" for others
 * @property {boolean} complete
 */

/** @param {string} text a name that can be a part of a file's name: its beginning, and its end, which tells shards and kinds apart */
function plain(text) {
  const all = text.replace(/[~/\\:*?"<>|\u0000-\u001f]/g, "_") || "model";
  return all.length > 100 ? all.slice(0, 50) + all.slice(-50) : all;
}

/** Everything that is kept, the largest first, and the browser's allowance (0: not told). */
export async function stored() {
  const folder = await openFolder();
  /** @type {Map<string, StoredModel & {files: Map<string, number>}>} */
  const models = new Map();
  /** @type {Array<[string, File]>} */
  const lists = [];
  for (const [name, file] of await files(folder)) {
    const own = name.startsWith(OWN);
    const [first, second] = name.split("~");
    const id = own ? `${OWN}${second}~` : `${first}~`;
    if (own && name.endsWith(LIST)) lists.push([id, file]);
    const model = models.get(id) ?? {
      id,
      name: own ? second : first,
      kind: own ? "own" : id === PYTHON ? "python" : "served",
      bytes: 0,
      kept: 0,
      family: "",
      complete: !own,
      files: new Map(),
    };
    model.bytes += file.size;
    model.kept = Math.max(model.kept, file.lastModified);
    if (name.endsWith(".part")) model.complete = false;
    else model.files.set(name, file.size);
    models.set(id, model);
  }
  for (const [id, file] of lists) {
    const model = /** @type {StoredModel & {files: Map<string, number>}} */ (models.get(id));
    const list = await listOf(file);
    if (!list) continue;
    model.name = list.name;
    model.family = list.family;
    model.complete = list.files.every((each) => model.files.get(id + each.path) === each.bytes);
  }
  const { usage = 0, quota = 0 } = (await navigator.storage?.estimate?.().catch(() => null)) ?? {};
  const all = [...models.values()].map(({ files: _, ...model }) => model).sort((a, b) => b.bytes - a.bytes);
  return { available: folder !== null, models: /** @type {StoredModel[]} */ (all), used: usage, allowed: quota };
}

/** All files of ours, unfinished ones too. @param {FileSystemDirectoryHandle | null} folder @returns {Promise<Array<[string, File]>>} */
async function files(folder) {
  const found = /** @type {Array<[string, File]>} */ ([]);
  try {
    for await (const [name, handle] of folder?.entries() ?? [])
      if (handle.kind === "file") {
        const file = await /** @type {FileSystemFileHandle} */ (handle).getFile().catch(() => null);
        if (file) found.push([name, file]);
      }
  } catch {
    // the folder changed under the iteration (another tab): what was seen is told
  }
  return found;
}

/** @typedef {{name: string, family: string, files: Array<{path: string, bytes: number}>}} KeptList */

/** @param {File} file @returns {Promise<KeptList | null>} */
async function listOf(file) {
  try {
    const list = JSON.parse(await file.text());
    const good = typeof list.name === "string" && typeof list.family === "string" && Array.isArray(list.files);
    return good ? list : null;
  } catch {
    return null;
  }
}

/**
 * Remove a model, or everything (id null). Throws EngineError "storage" if a part of it stayed: another tab, or a load under way,
 * holds it.
 * @param {string | null} id
 */
export async function removeStored(id) {
  const folder = await openFolder();
  const names = (await files(folder)).map(([name]) => name).filter((name) => id === null || name.startsWith(id));
  // the list of a kept model goes first: what is left after an interruption is no model
  names.sort((a, b) => Number(b.endsWith(LIST)) - Number(a.endsWith(LIST)));
  const held = [];
  for (const name of names)
    try {
      await folder?.removeEntry(name);
    } catch (error) {
      if (/** @type {any} */ (error)?.name !== "NotFoundError") held.push(name.split("~")[id === null ? 0 : 1]);
    }
  if (held.length)
    throw new EngineError(
      "storage",
      `${[...new Set(held)].join(", ")}: in use by a load or by another tab, and therefore still there; try again when that is over`,
    );
}

/**
 * Keep a person's own files for later visits. Beside another model of that name it is "name (2)".
 * @param {{name: string, family: string, files: File[]}} model
 * @param {{onBytes?: (done: number, total: number) => void, signal?: AbortSignal}} [how]
 * @returns {Promise<{id: string, name: string}>}
 */
export async function keepOwn({ name: wanted, family, files: own }, { onBytes, signal } = {}) {
  const folder = await openFolder();
  if (!folder) throw new EngineError("storage", "this browser keeps no files for this page (a private window, or an insecure address)");
  const whole = new Set((await stored()).models.filter(({ complete }) => complete).map(({ id }) => id));
  const idOf = (/** @type {string} */ each) => `${OWN}${plain(each)}~`;
  let name = wanted;
  for (let i = 2; whole.has(idOf(name)); i++) name = `${wanted} (${i})`;
  const id = idOf(name);
  await removeStored(id); // what an earlier try left
  const total = own.reduce((sum, file) => sum + file.size, 0);
  const { usage = 0, quota = 0 } = (await navigator.storage.estimate().catch(() => null)) ?? {};
  if (quota && total > quota - usage)
    throw new EngineError(
      "storage",
      `${name} takes ${mb(total)}; ${mb(usage)} of ${mb(quota)} are used, ${mb(Math.max(0, quota - usage))} are free. Delete a stored model, or free space on the disk`,
      { wanted: total, allowed: quota, used: usage },
    );
  await navigator.storage.persist?.().catch(() => false); // asked for; what browsers do without it is to remove what was not used for long
  let done = 0;
  try {
    for (const file of own) {
      await writeTo(folder, id + plain(file.name), file, (bytes) => onBytes?.((done += bytes), total), signal);
    }
    /** @type {KeptList} */
    const list = { name, family, files: own.map((file) => ({ path: plain(file.name), bytes: file.size })) };
    await writeTo(folder, id.slice(0, -1) + LIST, new Blob([JSON.stringify(list)]));
  } catch (error) {
    await removeStored(id).catch(() => {});
    if (signal?.aborted) throw new EngineError("cancelled", "stopped");
    if (/** @type {any} */ (error)?.name === "QuotaExceededError")
      throw new EngineError("storage", `${name}: the browser's storage is full after ${mb(done)} of ${mb(total)}; delete a stored model`);
    throw EngineError.from(error, "storage");
  }
  return { id, name };
}

/**
 * @param {FileSystemDirectoryHandle} folder @param {string} name @param {Blob} blob
 * @param {(bytes: number) => void} [onBytes] @param {AbortSignal} [signal]
 */
async function writeTo(folder, name, blob, onBytes, signal) {
  const handle = await folder.getFileHandle(name, { create: true });
  if (typeof handle.createWritable !== "function")
    throw new EngineError("storage", "this browser cannot write files from a page; models that the site serves are kept all the same");
  const counted = new TransformStream({
    transform(/** @type {Uint8Array} */ chunk, controller) {
      onBytes?.(chunk.length);
      controller.enqueue(chunk);
    },
  });
  await blob.stream().pipeThrough(counted).pipeTo(await handle.createWritable(), { signal });
}

/** The files of a kept model under their own names, or null if it is not (wholly) there. @param {string} id @returns {Promise<{name: string, family: string, files: File[]} | null>} */
export async function keptFiles(id) {
  const there = new Map((await files(await openFolder())).filter(([name]) => name.startsWith(id)));
  const file = there.get(id.slice(0, -1) + LIST);
  const list = file && (await listOf(file));
  if (!list) return null;
  const found = list.files.map(({ path, bytes }) => {
    const blob = there.get(id + path);
    return blob?.size === bytes ? new File([blob], path) : null;
  });
  return found.every((each) => each !== null) ? { ...list, files: /** @type {File[]} */ (found) } : null;
}
