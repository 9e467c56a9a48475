/**
 * JavaScript's part of the Python calls in any Pyodide page (py/candlewick/api/page.py): a checkpoint's files, checked, and the
 * kernels. Python loads this file from the site that its package came from and finds what it offers on the global object.
 */

import { openCheckpoint } from "./checkpoint.js";
import { KernelHost } from "./wasm.js";

/** Only workers may wait for other threads. */
const inPage = "document" in globalThis;

Object.assign(globalThis, {
  candlewickForPython: {
    /** Files stay in memory; the browser's own cache spares the next visit the download. @param {string} url */
    openCheckpoint: (url) => openCheckpoint(url, undefined, { store: null }),
    /** @param {number | undefined} threads */
    kernels: (threads) => KernelHost.create(inPage ? 1 : threads ?? null),
  },
});
