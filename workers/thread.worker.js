/**
 * One WebAssembly SIMD thread. It instantiates the kernels on the shared memory with a stack of its own and then sleeps until
 * `wasm.js` starts a run. It never returns to its event loop, so the only words it hears are those of the shared array.
 */

import { CODE, DONE, END, EXIT, RUN } from "./words.js";

/** Loads of the run word before the thread goes to sleep, some 20 microseconds: a decode step follows the last one closely. */
const SPINS = 2000;
/** Value of the kernels' stop word that says: a thread failed, leave. */
const FAILED = 2;

/** @type {(message: {words: Int32Array, module: WebAssembly.Module, memory: WebAssembly.Memory, thread: number, threads: number,
 *   stack: number, scratch: number, scratchBytes: number}) => void} */
function work({ words, module, memory, thread, threads, stack, scratch, scratchBytes }) {
  const kernels = /** @type {any} */ (new WebAssembly.Instance(module, { env: { memory } }).exports);
  const stop = kernels.control() / 4;
  let seen = 0;
  self.postMessage("ready");
  for (;;) {
    for (let i = 0; i < SPINS && Atomics.load(words, RUN) === seen; i++);
    Atomics.wait(words, RUN, seen);
    seen = Atomics.load(words, RUN);
    if (Atomics.load(words, EXIT)) return self.close();
    try {
      kernels.__stack_pointer.value = stack; // a trap leaves it anywhere
      kernels.run(thread, threads, words[CODE], words[END], scratch, scratchBytes);
    } catch {
      Atomics.store(new Int32Array(memory.buffer), stop, FAILED);
    }
    Atomics.add(words, DONE, 1);
    Atomics.notify(words, DONE);
  }
}

self.onmessage = ({ data }) => {
  try {
    work(data);
  } catch (error) {
    self.postMessage({ error: String(/** @type {Error} */ (error).message) });
  }
};
