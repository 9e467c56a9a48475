/**
 * From nothing to Python with NumPy and candlewick imported.
 *
 * Cold: Pyodide starts, micropip installs the wheels, everything is imported, and the interpreter's memory is kept for later
 * visits. Warm: that memory is put back, and nothing is installed or imported at all (a tenth of the time).
 *
 * NumPy's extension modules can be in such a snapshot because they are loaded before the interpreter starts, in a fixed order,
 * at both visits: then their data and their functions lie at the same addresses. Snapshots are bound to the exact files and
 * the browser's version, summed, and whatever is wrong with one, the cold way is taken and a new one made.
 */

import { get, getJson, prefetch } from "./files.js";
import { EngineError, PYODIDE } from "./protocol.js";
import { unzip } from "./unzip.js";

const BUILD = new URL("../build/", import.meta.url);
/** The version in the address lets the browser keep these files, and the machine code made of them, without asking again. */
const INDEX_URL = new URL(`pyodide/${PYODIDE}/`, BUILD).href;
const SITE = "/lib/python3.14/site-packages/";
/** Names of snapshots in the store begin so. */
const PREFIX = "python~";
/** Change it when the layout of a snapshot file or what is imported in it changes. */
const FORMAT = 4;
const MAGIC = 0x57434e44;
/** Extension modules that `import numpy` loads; others (random, fft) load when they are first used. */
const EARLY = /^numpy\/(_core\/_multiarray_umath|linalg\/\w+)\.cpython[^/]*\.so$/;
/** What of site-packages is of no use at run time, or is whole in memory (jinja2, which takes long to compile). */
const USELESS =
  /^(micropip|packaging|jinja2|markupsafe)|\/tests\/|^numpy\/(f2py|testing|typing|distutils|_core\/(include|lib))\/|\.(pyi|pxd|h|a)$|RECORD$/;
const IMPORTS =
  "import asyncio, json, struct, zlib, numpy, jinja2.debug, jinja2.ext, jinja2.sandbox, candlewick.worker";

/** @typedef {(done: number, total: number, unit: "bytes" | "steps") => void} OnProgress */
/** @typedef {{py: any, how: "snapshot" | "cold", timings: Record<string, number>, keep: (() => Promise<string>) | null, key: string}} Booted
 *   key: a short name for everything that a snapshot depends on */

/** How loaded extension modules lie: if this differs, addresses differ. @param {any} module */
const layoutOf = (module) => [
  module.wasmTable.length,
  module._emscripten_get_sbrk_ptr ? module.HEAPU32[module._emscripten_get_sbrk_ptr() >>> 2] : 0,
];

/** Pyodide's two modules, or an error in words. */
async function importPyodide() {
  try {
    const [{ loadPyodide, version }, { default: createModule }] = await Promise.all([
      import(`${INDEX_URL}pyodide.mjs`),
      import(`${INDEX_URL}pyodide.asm.mjs`),
    ]);
    return { loadPyodide, version, createModule };
  } catch (error) {
    throw new EngineError(
      "network",
      `${INDEX_URL}: Pyodide could not be loaded (${/** @type {Error} */ (error).message}); run the set-up, and check that the server is running`,
    );
  }
}

/** @typedef {Awaited<ReturnType<typeof importPyodide>>} Pyodide */
/** @typedef {Promise<WebAssembly.Module | null>} Early compiled ahead; null where that failed */

/**
 * As WebAssembly.instantiateStreaming, with what is compiled already in the place of what would be read and compiled again.
 * @param {Early} early
 * @param {Response | PromiseLike<Response>} source
 * @param {WebAssembly.Imports | undefined} imports
 * @param {typeof WebAssembly.instantiateStreaming} usual
 */
async function instantiate(early, source, imports, usual) {
  const module = await early;
  if (!module) return usual.call(WebAssembly, source, imports);
  void Promise.resolve(source).then((response) => response.body?.cancel()).catch(() => {});
  return { module, instance: await WebAssembly.instantiate(module, imports) };
}

/**
 * @param {Promise<import("./storage.js").Store | null>} storing
 * @param {OnProgress} onProgress
 * @returns {Promise<Booted>} `keep` writes the snapshot to the store, once, after a cold start
 */
export async function boot(storing, onProgress) {
  const begun = performance.now();
  const importing = importPyodide();
  const listing = getJson(new URL("wheels/index.json", BUILD));
  for (const early of [importing, listing]) early.catch(() => {}); // told where it is awaited
  const store = await storing;
  const isWarm = !!(await store?.names())?.some((name) => name.startsWith(PREFIX));
  const early = isWarm ? WebAssembly.compileStreaming(fetch(`${INDEX_URL}pyodide.asm.wasm`)).catch(() => null) : null;
  const wheels = await listing;
  const key = PREFIX + keyOf(wheels);
  const pyodide = await importing;
  if (store && isWarm) {
    try {
      const py = await warm(pyodide, store, key, begun, early);
      if (py) return py;
    } catch (error) {
      console.warn("the stored snapshot could not be used; starting cold", error);
      await store.remove(key);
    }
  }
  return cold(pyodide, store, key, wheels, onProgress, begun);
}

/** A short name for everything that a snapshot depends on. @param {any} wheels */
function keyOf(wheels) {
  const text = JSON.stringify([FORMAT, PYODIDE, IMPORTS, wheels, navigator.userAgent]);
  let a = 0x811c9dc5;
  let b = 0x1b873593;
  for (let i = 0; i < text.length; i++) {
    a = Math.imul(a ^ text.charCodeAt(i), 0x01000193);
    b = Math.imul(b ^ text.charCodeAt(i), 0x85ebca6b) ^ (b >>> 13);
  }
  return [a, b].map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
}

/**
 * @param {Pyodide} pyodide
 * @param {Map<string, Uint8Array>} libraries extension modules by path below site-packages
 * @param {object} options
 * @param {(module: any) => void} onRuntime called when modules are loaded and Python has not begun
 * @param {Early | null} [early] Pyodide's own module
 */
function start({ loadPyodide, createModule }, libraries, options, onRuntime, early) {
  const urls = new Map();
  for (const [path, bytes] of libraries)
    urls.set(SITE + path, URL.createObjectURL(new Blob([/** @type {BlobPart} */ (bytes)])));
  const create = async (/** @type {any} */ settings) => {
    const locate = settings.locateFile;
    settings.locateFile = (/** @type {string} */ path) => urls.get(path) ?? locate(path);
    settings.dynamicLibraries = [...urls.keys()];
    settings.onRuntimeInitialized = () => onRuntime(settings);
    const usual = WebAssembly.instantiateStreaming;
    if (early)
      WebAssembly.instantiateStreaming = (source, imports) => {
        WebAssembly.instantiateStreaming = usual; // it is the first module that is wanted
        return instantiate(early, source, imports, usual);
      };
    try {
      return await createModule(settings);
    } finally {
      WebAssembly.instantiateStreaming = usual;
      for (const url of urls.values()) URL.revokeObjectURL(url);
    }
  };
  return loadPyodide({ indexURL: INDEX_URL, createPyodideModule: create, ...options });
}

/**
 * @param {Pyodide} pyodide
 * @param {import("./storage.js").Store} store
 * @param {string} key
 * @param {number} begun
 * @param {Early | null} early
 * @returns {Promise<Booted | null>}
 */
async function warm(pyodide, store, key, begun, early) {
  const file = await store.read(key);
  if (!file) return null;
  const { head, section } = openSnapshot(file);
  const read = performance.now();
  const libraries = new Map(head.libraries.map((/** @type {string} */ path) => [path, section(path)]));
  // the loader takes one after the other; this way they come at the same time: whoever compiles the same bytes while a module
  // lives is given its machine code
  const ahead = [...libraries.values()].map((bytes) => WebAssembly.compile(/** @type {BufferSource} */ (bytes)).catch(() => null));
  const memory = section("memory");
  let runtime = 0;
  const py = await start(pyodide, libraries, { _loadSnapshot: memory }, (module) => {
    const layout = layoutOf(module);
    if (JSON.stringify(layout) !== JSON.stringify(head.layout))
      throw new EngineError(
        "storage",
        `extension modules lie otherwise (${layout}) than in the snapshot (${head.layout})`,
      );
    // the header of a snapshot is shorter than a page
    const pages = Math.floor(memory.length / 65536) * 65536;
    if (module.HEAPU8.length < pages) module.growMemory(pages);
    runtime = performance.now();
  }, early);
  await Promise.all(ahead); // and no longer
  py._api.config._loadSnapshot = undefined; // else it is kept for ever
  const { FS } = py;
  for (const folder of head.folders) FS.mkdirTree(SITE + folder);
  for (const path of head.files) FS.createDataFile(SITE + path, null, section(path).slice(), true, false, true);
  const end = performance.now();
  const timings = {
    runtime_ms: runtime - read,
    numpy_ms: 0,
    import_ms: 0,
    snapshot_read_ms: read - begun,
    snapshot_restore_ms: end - runtime,
    boot_ms: end - begun,
  };
  return { py, how: "snapshot", timings, keep: null, key };
}

/**
 * @param {Pyodide} pyodide
 * @param {import("./storage.js").Store | null} store
 * @param {string} key
 * @param {any} wheels
 * @param {OnProgress} onProgress
 * @param {number} begun
 * @returns {Promise<Booted>}
 */
async function cold(pyodide, store, key, wheels, onProgress, begun) {
  const timings = /** @type {Record<string, number>} */ ({});
  let last = begun;
  let step = 0;
  const mark = (/** @type {string} */ name) => {
    const now = performance.now();
    timings[name] = now - last;
    last = now;
    onProgress(++step, 5, "steps");
  };
  const names = Object.keys(wheels).filter((name) => typeof wheels[name] === "string");
  // Pyodide fetches these itself, from the browser's cache then; a first visit may take minutes, and this way it tells
  await prefetch([`${INDEX_URL}pyodide.asm.wasm`, `${INDEX_URL}python_stdlib.zip`], (done, total) =>
    onProgress(done, total, "bytes"),
  );
  const bytes = new Map(
    await Promise.all(
      names.map(async (name) => {
        const response = await get(new URL(`wheels/${wheels[name]}`, BUILD), { cache: "no-cache" });
        return /** @type {[string, Uint8Array]} */ ([name, new Uint8Array(await response.arrayBuffer())]);
      }),
    ),
  );
  const numpy = bytes.get("numpy");
  if (!numpy || !bytes.has("candlewick") || !bytes.has("micropip"))
    throw new EngineError(
      "network",
      `${BUILD}wheels/index.json: wanted numpy, micropip and candlewick, got ${names.join(", ")}; run the set-up again`,
    );
  const libraries = await unzip(numpy, (name) => EARLY.test(name), wheels.numpy);
  mark("wheels_ms");

  let layout = /** @type {number[]} */ ([]);
  const py = await start(
    pyodide,
    libraries,
    { _makeSnapshot: store !== null },
    (module) => (layout = layoutOf(module)),
  );
  mark("runtime_ms");

  // NumPy is unpacked, not installed: Pyodide's installer would load all of its extension modules, used or not
  for (const name of names) py.FS.writeFile(`/tmp/${wheels[name]}`, bytes.get(name));
  const early = names.filter((name) => name !== "candlewick");
  py.runPython(
    `import zipfile\nfor wheel in ${JSON.stringify(early.map((name) => wheels[name]))}:\n    zipfile.ZipFile("/tmp/" + wheel).extractall("${SITE}")\ndel wheel, zipfile`,
  );
  await py.runPythonAsync(`import micropip\nawait micropip.install("emfs:/tmp/${wheels.candlewick}")`);
  for (const name of names) py.FS.unlink(`/tmp/${wheels[name]}`);
  mark("install_ms");

  py.runPython("import numpy");
  mark("numpy_ms");
  py.runPython(IMPORTS);
  mark("import_ms");
  timings.boot_ms = performance.now() - begun;

  /** @type {Booted["keep"]} */
  let keep = null;
  if (store) {
    try {
      const memory = takeMemory(py);
      timings.snapshot_make_ms = performance.now() - last;
      // what Python's memory points to must be there again at a warm start: functions that came later are not
      const table = py._module.wasmTable;
      for (let i = layout[0]; i < table.length; i++)
        if (table.get(i)) throw new Error(`function ${i} was added to the table`);
      keep = () => writeSnapshot(store, key, py, memory, libraries, layout);
    } catch (error) {
      console.warn("no snapshot can be made here; the next visit starts cold too", error);
    }
  }
  return { py, how: "cold", timings, keep, key };
}

/** The interpreter's memory without the installer. @param {any} py @returns {Uint8Array} */
function takeMemory(py) {
  py.runPython(`
def _forget():
    import gc, importlib, sys
    for name in [name for name in sys.modules if name.partition(".")[0] in ("micropip", "packaging")]:
        del sys.modules[name]
    globals().pop("micropip", None)
    importlib.invalidate_caches()
    gc.collect()
    gc.freeze()  # what is imported stays: later collections need not look at it
_forget()
del _forget
`);
  for (const name of Object.keys(py.loadedPackages)) delete py.loadedPackages[name];
  return py.makeMemorySnapshot();
}

/** Files of site-packages below `folder`, without what is of no use. @param {any} FS @param {string} folder @param {string[]} folders @param {Map<string, Uint8Array>} files */
function collect(FS, folder, folders, files) {
  for (const name of FS.readdir(SITE + folder)) {
    const path = folder + name;
    if (name === "." || name === ".." || name === "__pycache__" || USELESS.test(path + "/")) continue;
    if (FS.isDir(FS.stat(SITE + path).mode)) {
      folders.push(path);
      collect(FS, `${path}/`, folders, files);
    } else if (!USELESS.test(path)) files.set(path, FS.readFile(SITE + path));
  }
}

/**
 * @param {import("./storage.js").Store} store
 * @param {string} key
 * @param {any} py
 * @param {Uint8Array} memory
 * @param {Map<string, Uint8Array>} libraries
 * @param {number[]} layout
 */
async function writeSnapshot(store, key, py, memory, libraries, layout) {
  /** @type {string[]} */
  const folders = [];
  /** @type {Map<string, Uint8Array>} */
  const files = new Map();
  collect(py.FS, "", folders, files);
  for (const path of libraries.keys()) files.delete(path);
  const sections = new Map([["memory", memory], ...libraries, ...files]);
  const table = [];
  const pieces = [];
  let at = 0;
  for (const [name, bytes] of sections) {
    table.push([name, at, bytes.length]);
    const piece = bytes.length % 16 ? new Uint8Array(Math.ceil(bytes.length / 16) * 16) : bytes;
    if (piece !== bytes) piece.set(bytes);
    pieces.push(piece);
    at += piece.length;
  }
  const head = { libraries: [...libraries.keys()], folders, files: [...files.keys()], layout, table };
  const text = new TextEncoder().encode(JSON.stringify(head));
  const room = Math.ceil((text.length + 16) / 16) * 16;
  const first = new Uint8Array(room);
  first.set(text, 16);
  const words = new Uint32Array(first.buffer);
  words.set([MAGIC, room, text.length]);
  words[3] = sum([first, ...pieces]);
  await store.write(key, [first, ...pieces]);
  await store.removeOthers(PREFIX, key);
  return `${(at / 1e6).toFixed(0)} MB`;
}

/**
 * A sum over 32-bit words in four lanes, which the machine adds side by side; a place counts, so that swapped or lost blocks
 * show. The first 16 bytes, where the sum itself stands, are left out.
 * @param {Uint8Array[]} pieces of whole quadruples of words
 * @returns {number}
 */
function sum(pieces) {
  let a0 = 0, a1 = 0, a2 = 0, a3 = 0;
  let b0 = 0, b1 = 0, b2 = 0, b3 = 0;
  let skip = 4;
  for (const piece of pieces) {
    const words = new Int32Array(piece.buffer, piece.byteOffset, piece.length >>> 2);
    for (let i = skip; i < words.length; i += 4) {
      b0 = (b0 + (a0 = (a0 + words[i]) | 0)) | 0;
      b1 = (b1 + (a1 = (a1 + words[i + 1]) | 0)) | 0;
      b2 = (b2 + (a2 = (a2 + words[i + 2]) | 0)) | 0;
      b3 = (b3 + (a3 = (a3 + words[i + 3]) | 0)) | 0;
    }
    skip = 0;
  }
  return [a0, a1, a2, a3, b0, b1, b2, b3].reduce((all, one) => Math.imul(all, 31) ^ one, 0) >>> 0;
}

/** @param {Uint8Array} file */
function openSnapshot(file) {
  const words = new Uint32Array(file.buffer, 0, 4);
  const [magic, room, textBytes, want] = words;
  if (magic !== MAGIC || room > file.length) throw new EngineError("storage", "not a snapshot of ours");
  const got = sum([file]);
  if (got !== want) throw new EngineError("storage", "the snapshot is damaged");
  const head = JSON.parse(new TextDecoder().decode(file.subarray(16, 16 + textBytes)));
  const places = new Map(
    head.table.map((/** @type {[string, number, number]} */ [name, at, size]) => [name, [room + at, size]]),
  );
  const section = (/** @type {string} */ name) => {
    const [at, size] = /** @type {number[]} */ (places.get(name));
    return file.subarray(at, at + size);
  };
  return { head, section };
}
