// Times instruction lists on the kernel module. Thread 0 gets {module, shared, threads, cases, seed...} from the page, starts
// the other threads (this same file), and measures; what the words of a case mean is matmul.py's business.

const PAGE = 65536;

/** Waits for a changed round number, runs the code, counts itself out; for ever. */
function serve({ memory, instance, thread, threads, signals, scratch, scratchBytes }) {
  const words = new Int32Array(memory.buffer);
  for (let seen = 0; ;) {
    while (Atomics.load(words, signals) === seen) Atomics.wait(words, signals, seen);
    seen = Atomics.load(words, signals);
    instance.exports.run(thread, threads, words[signals + 2], words[signals + 3], scratch + thread * scratchBytes, scratchBytes);
    Atomics.sub(words, signals + 1, 1);
  }
}

async function instantiate(module, memory) {
  return (await WebAssembly.instantiate(module, { env: { memory } }));
}

/** Random numbers into [from, from + count), the first 64 K of them again and again. */
function repeatRandom(array, from, count, random) {
  let done = Math.min(count, 65536);
  for (let i = 0; i < done; i++) array[from + i] = random();
  for (; done < count; done *= 2) array.copyWithin(from + done, from, from + Math.min(done, count - done));
}

async function measure(settings) {
  const { url, shared, threads, scratchBytes, cases, repeats } = settings;
  const module = await WebAssembly.compileStreaming(fetch(url));
  const memory = new WebAssembly.Memory(shared ? { initial: 64, maximum: 16384, shared: true } : { initial: 64 });
  const instance = await instantiate(module, memory);
  const stacks = Math.ceil(instance.exports.__heap_base.value / 64) * 64;
  const scratch = stacks + (threads - 1) * PAGE;
  const signals = (scratch + threads * scratchBytes) / 4; // round, still running, code, code end
  const base = settings.base ?? signals * 4 + 64; // `base`: for lists whose addresses are final
  const most = Math.max(...cases.map((c) => c.bytes));
  memory.grow(Math.max(0, Math.ceil((base + most + PAGE - memory.buffer.byteLength) / PAGE)));
  const words = new Int32Array(memory.buffer), floats = new Float32Array(memory.buffer);
  const others = [];
  for (let thread = 1; thread < threads; thread++) {
    const worker = new Worker("./bench.worker.js", { type: "module" });
    const ready = new Promise((resolve, reject) => { worker.onmessage = resolve; worker.onerror = reject; });
    worker.postMessage({ module, memory, thread, threads, signals, scratch, scratchBytes, stack: stacks + thread * PAGE });
    await ready;
    others.push(worker);
  }

  function runOnce(code, end) {
    instance.exports.begin();
    words[signals + 1] = threads - 1;
    words[signals + 2] = code;
    words[signals + 3] = end;
    Atomics.add(words, signals, 1);
    Atomics.notify(words, signals);
    const status = instance.exports.run(0, threads, code, end, scratch, scratchBytes);
    while (Atomics.load(words, signals + 1) > 0);
    if (status !== 0) throw new Error(`run ended with status ${status}`);
  }

  const seed = base / 4;
  function peak() {
    for (let i = 0; i < 64; i++) floats[seed + i] = 1e-3;
    const loops = 200000, start = performance.now();
    instance.exports.peak(base, loops);
    return (loops * 108 * 8) / (performance.now() - start) / 1e6;
  }
  const peaks = [];
  for (let i = 0; i < 8; i++) peaks.push(peak());
  const results = [];
  for (const one of cases) {
    repeatRandom(floats, base / 4, one.bytes / 4, () => Math.random() - 0.5);
    const halves = new Uint16Array(memory.buffer);
    for (const [offset, count] of one.halves)
      repeatRandom(halves, (base + offset) / 2, count, () => 0x2000 + Math.random() * 0x1400 | (Math.random() < 0.5 ? 0x8000 : 0));
    const code = base + one.codeAt;
    one.code.forEach((word, i) => { words[code / 4 + i] = word + (one.addresses.includes(i) ? base : 0); });
    const times = [];
    for (let i = 0; i < repeats; i++) {
      const start = performance.now();
      runOnce(code, code + one.code.length * 4);
      times.push((performance.now() - start) / one.inner);
    }
    results.push({ name: one.name, times });
    peaks.push(peak());
  }
  others.forEach((worker) => worker.terminate());
  return { peaks, results };
}

self.onmessage = async ({ data }) => {
  try {
    if (data.thread === 0) {
      self.postMessage(await measure(data));
    } else {
      const instance = await instantiate(data.module, data.memory);
      instance.exports.__stack_pointer.value = data.stack;
      self.postMessage("ready");
      serve({ ...data, instance });
    }
  } catch (error) {
    self.postMessage({ error: String(error) });
  }
};
