/** A checkpoint's folder, or a person's own files, as byte sources by name. */

import { BlobSource, READ_BACK, fetchFile, fromStore, get, getJson } from "./files.js";
import { checkMirror, ofMirror } from "./mirror.js";
import { EngineError } from "./protocol.js";
import { Sha256 } from "./sha256.js";

/** What a checkpoint folder without a manifest may hold. */
const USUAL = [
  "config.json",
  "generation_config.json",
  "tokenizer.json",
  "vocab.json",
  "merges.txt",
  "preprocessor_config.json",
  "added_tokens.json",
  "special_tokens_map.json",
  "model.safetensors.index.json",
  "model.safetensors",
];

/** @typedef {import("./files.js").Source} Source */
/** @typedef {import("./files.js").ManifestFile} ManifestFile */
/** @typedef {import("./files.js").OnBytes} OnBytes */
/** @typedef {import("./storage.js").Store} Store */

/**
 * All files of a checkpoint, by name.
 * @param {string | null} url of the checkpoint's folder
 * @param {File[] | undefined} own a person's own files, instead of a URL
 * @param {{store: Store | null, mirror?: string | null, onBytes?: OnBytes, signal?: AbortSignal, warn?: (message: string) => void}} how
 *   mirror: where the files are fetched instead of beside their manifest
 * @returns {Promise<{name: string, sources: Map<string, Source>, keys: string[]}>} keys: entries of the store that are used
 */
export async function openCheckpoint(url, own, how) {
  if (own?.length) {
    const sources = new Map(own.map((file) => [file.name, new BlobSource(file.name, file)]));
    return { name: own[0].webkitRelativePath?.split("/")[0] || "own files", sources, keys: [] };
  }
  if (!url)
    throw new EngineError(
      "bad_input",
      "load: wanted the URL of a checkpoint folder or a person's own files, got neither",
    );
  const folder = new URL(url.endsWith("/") ? url : url + "/", self.location.href);
  const name = decodeURIComponent(folder.pathname.split("/").at(-2) ?? "");
  let manifest;
  try {
    manifest = await getJson(new URL("manifest.json", folder), how.signal);
  } catch (error) {
    if (!(error instanceof EngineError) || error.data?.status !== 404) throw error;
    return { name, sources: await openPlainFolder(folder, how), keys: [] };
  }
  const files = checkManifest(manifest, new URL("manifest.json", folder));
  const total = files.reduce((sum, file) => sum + file.bytes, 0);
  const done = new Map();
  const onBytes = (/** @type {number} */ n, /** @type {number} */ _, /** @type {string} */ file) => {
    done.set(file, n);
    let sum = 0;
    for (const value of done.values()) sum += value;
    how.onBytes?.(sum, total, file);
  };
  /** @type {Map<string, Source>} */
  const sources = new Map();
  const from = how.mirror ? new URL(`${encodeURIComponent(name)}/`, checkMirror(how.mirror)) : folder;
  const keys = files.map((file) => `${name}~${file.path}~${file.sha256.slice(0, 16)}`);
  // the first that fails ends the others, and all have ended before anybody is told
  const others = new AbortController();
  const signal = how.signal ? AbortSignal.any([how.signal, others.signal]) : others.signal;
  /** @type {any} */
  let failure = null;
  await Promise.all(
    files.map(async (file, i) => {
      try {
        const source = await fetchFile(new URL(file.path, from), file, { ...how, signal, onBytes, key: keys[i] });
        sources.set(file.path, source);
        onBytes(file.bytes, file.bytes, file.path);
        await how.store?.removeOthers(`${name}~${file.path}~`, keys[i]);
      } catch (error) {
        failure ??= how.mirror ? ofMirror(error, from) : error;
        others.abort();
      }
    }),
  );
  if (failure) {
    for (const source of sources.values()) source.close();
    throw failure;
  }
  return { name: manifest.name ?? name, sources, keys };
}

/** @param {any} manifest @param {URL} url @returns {ManifestFile[]} */
function checkManifest(manifest, url) {
  const good =
    Array.isArray(manifest?.files) &&
    manifest.files.length &&
    manifest.files.every(
      (/** @type {any} */ file) =>
        typeof file?.path === "string" &&
        /^[\w][\w.\-]*$/.test(file.path) &&
        Number.isSafeInteger(file.bytes) &&
        /^[0-9a-f]{64}$/.test(file.sha256),
    );
  if (!good)
    throw new EngineError(
      "bad_weights",
      `${url}: wanted "files" as a list of {path, bytes, sha256} with plain file names; run the set-up again`,
    );
  return manifest.files;
}

/**
 * A checkpoint folder without a manifest: the usual names, as far as they are there. Nothing vouches for such files, so they
 * are not kept for the next visit.
 * @param {URL} folder
 * @param {{onBytes?: OnBytes, signal?: AbortSignal}} how
 */
async function openPlainFolder(folder, { onBytes, signal }) {
  /** @type {Map<string, Source>} */
  const sources = new Map();
  const take = async (/** @type {string} */ path) => {
    try {
      const response = await get(new URL(path, folder), { signal });
      const blob = await response.blob();
      onBytes?.(blob.size, blob.size, path);
      sources.set(path, new BlobSource(path, blob));
    } catch (error) {
      if (!(error instanceof EngineError) || error.data?.status !== 404) throw error;
    }
  };
  await take("config.json");
  if (!sources.size)
    throw new EngineError(
      "network",
      `${folder}: there is no manifest.json and no config.json here; check the address of the checkpoint`,
      { url: String(folder) },
    );
  await Promise.all(USUAL.slice(1).map(take));
  const index = sources.get("model.safetensors.index.json");
  if (index && !sources.has("model.safetensors")) {
    const { weight_map } = JSON.parse(new TextDecoder().decode(await index.read(0, index.size)));
    const shards = new Set(Object.values(weight_map ?? {}).filter((shard) => /^[\w][\w.\-]*$/.test(String(shard))));
    for (const shard of shards) await take(String(shard));
  }
  return sources;
}

/**
 * Hash stored files again and remove those that are not what their manifest said, so that the next load fetches them.
 * @param {string} url
 * @param {Store | null} store
 * @returns {Promise<string[]>} paths of the bad ones
 */
export async function removeDamaged(url, store) {
  const folder = new URL(url.endsWith("/") ? url : url + "/", self.location.href);
  const name = decodeURIComponent(folder.pathname.split("/").at(-2) ?? "");
  const bad = /** @type {string[]} */ ([]);
  if (!store) return bad;
  for (const file of checkManifest(await getJson(new URL("manifest.json", folder)), folder)) {
    const key = `${name}~${file.path}~${file.sha256.slice(0, 16)}`;
    const source = await fromStore(store, key, file);
    if (!source) continue;
    const hash = new Sha256();
    for (let at = 0; at < source.size; at += READ_BACK)
      hash.update(await source.read(at, Math.min(at + READ_BACK, source.size)));
    source.close();
    if (hash.hex() === file.sha256) continue;
    bad.push(file.path);
    await store.remove(key);
  }
  return bad;
}
