/** Words of the shared array by which wasm.js starts runs on its threads. The kernels have others, in kernel memory. */

/** counts runs; a thread sleeps on it */
export const RUN = 0;
/** address of the first instruction, and of the end of the last */
export const CODE = 1;
export const END = 2;
/** threads that have left the run */
export const DONE = 3;
/** not 0: leave for good */
export const EXIT = 4;
