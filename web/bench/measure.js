// What the pages that measure share: the settings, the engine as the demo pages use it, a first run and repetitions.
// `candlewick bench ... --browser` drives them through `window.bench`; a person who opens one picks a file and reads the
// medians. All times are milliseconds of performance.now(), which counts from the navigation.
import { Engine } from '../../workers/client.js';

/**
 * @typedef {object} Settings what stands after # in the address, as JSON, over the page's own
 * @property {string | null} [model] address of a checkpoint folder; null: the files picked in #model
 * @property {"auto" | "wasm" | "webgpu" | "numpy"} [executor]
 * @property {number} [threads]
 * @property {number} [capacity] of the KV cache
 * @property {number} [runs] repetitions when a person uses the page
 * @property {true} [driven] nobody looks: a driver asks by itself
 */

export const now = () => performance.now();
export const engine = new Engine();

const byId = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @param {string} text */
const say = (text) => { byId('status').textContent = text; };

/** What a person or a driver picks there. @param {string} id of a file input @returns {Promise<File[]>} */
async function picked(id) {
  const input = /** @type {HTMLInputElement} */ (byId(id));
  if (!input.files?.length) await new Promise((resolve) => { input.addEventListener('change', resolve, { once: true }); });
  return [.../** @type {FileList} */ (input.files)];
}

/** @param {Settings} settings */
async function load({ model, executor, threads, capacity }) {
  const files = model ? null : await picked('model');
  const from = now();
  const loaded = await engine.load({
    model: model ? new URL(model, location.href).href : null, executor,
    ...(files ? { files } : {}), ...(threads ? { threads } : {}), ...(capacity ? { capacity } : {}),
  }, { onEvent: (/** @type {any} */ event) => event.event === 'progress' && say(`loading: ${event.stage}`) });
  return { from, ready_ms: now(), load_ms: now() - from, ...loaded };
}

/** @param {number[]} values */
export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return Math.round(sorted[sorted.length >> 1]);
}

/** @template {Settings} S @param {S} own the page's own settings @returns {S} with those of the address */
export function settingsOf(own) {
  return { ...own, ...(location.hash.length > 1 ? JSON.parse(decodeURIComponent(location.hash.slice(1))) : {}) };
}

/**
 * Load the model as soon as the page is there, take the picked file when it comes, and offer `window.bench`.
 * @template Input, Run
 * @param {object} what
 * @param {Settings} what.settings
 * @param {string} what.ask for the file
 * @param {(file: File) => Promise<Input>} what.read
 * @param {(input: Input, first: boolean) => Promise<Run>} what.once one run; its value goes to the driver as it is
 * @param {(loaded: any, first: Run, all: Run[]) => Record<string, any>} what.lines what a person reads
 * @param {Record<string, (...given: any[]) => any>} [what.more] further things that a driver may ask for
 */
export function measure({ settings, ask, read, once, lines, more = {} }) {
  const choice = picked('file').then(([file]) => file);
  const first = Promise.all([load(settings), choice.then(read)])
    .then(async ([loaded, input]) => ({ loaded, run: await once(input, true) }));
  first.catch((error) => say(`${error.name}: ${error.message}`));
  const bench = {
    settings,
    /** What was loaded, and the first run after it. */
    first: () => first,
    /** Further runs on the same file. @param {number} runs @returns {Promise<Run[]>} */
    async again(runs) {
      await first;
      const all = [];
      for (let i = 0; i < runs; i++) all.push(await once(await read(await choice), false));
      return all;
    },
    describe: () => engine.describe(),
    /** Another model in place of the one that is loaded. @param {string} model address of its folder */
    load: (model) => load({ ...settings, model }),
    /** Least time of each instruction of an entry, and of whole runs. @param {object} params */
    profile: (params) => engine.request('profile', params),
    /** Bytes that the browser counts for page and workers; null where it does not tell (not isolated). */
    async memory() {
      const ask = /** @type {any} */ (performance).measureUserAgentSpecificMemory;
      return ask ? ask.call(performance) : null;
    },
    ...more,
  };
  /** @type {any} */ (window).bench = bench;
  if (settings.driven) return;
  say(`${ask} The model loads meanwhile.`);
  first.then(async ({ loaded, run }) => {
    say('measuring');
    const all = await bench.again(settings.runs ?? 5);
    byId('result').textContent = JSON.stringify({
      executor: loaded.executor, threads: loaded.threads, load_ms: Math.round(loaded.load_ms), ...lines(loaded, run, all),
    }, null, 2);
    say('done');
  });
}
