// Times the engine exactly as the pages use it. `candlewick bench transcribe --browser` drives this page through
// `window.bench`; a person who opens it picks a recording and reads the numbers.
// All times are milliseconds of performance.now(), which counts from the navigation.
import { Engine } from '../../workers/client.js';
import { readSound } from '../lib/audio.js';

/**
 * @typedef {object} Settings what stands after # in the address, as JSON
 * @property {string} [model] address of a checkpoint folder
 * @property {"auto" | "wasm" | "numpy"} [executor]
 * @property {number} [threads]
 * @property {number} [runs] repetitions when a person uses the page
 */
/**
 * @typedef {object} Run
 * @property {number} total_ms from the request to the result, as the page sees it
 * @property {number} first_partial_ms from the request to the first piece of text
 * @property {object} result what the engine answered
 */

/** @type {Settings} */
const settings = {
  model: '../../models/whisper-tiny.en/', executor: 'auto', runs: 5,
  ...(location.hash.length > 1 ? JSON.parse(decodeURIComponent(location.hash.slice(1))) : {}),
};
const engine = new Engine();
const now = () => performance.now();
const file = /** @type {HTMLInputElement} */ (document.getElementById('file'));
const status = /** @type {HTMLElement} */ (document.getElementById('status'));

/** @param {string} text */
function say(text) { status.textContent = text; }

/** Load as soon as the page is there; the recording may be picked meanwhile. */
async function load() {
  const { executor, threads } = settings;
  const model = new URL(settings.model ?? '', location.href).href;
  const from = now();
  const loaded = await engine.load({ model, executor, ...(threads ? { threads } : {}) }, {
    onEvent: (/** @type {any} */ event) => event.event === 'progress' && say(`loading: ${event.stage}`),
  });
  return { from, ready_ms: now(), load_ms: now() - from, ...loaded };
}

/** @returns {Promise<File>} */
async function picked() {
  if (!file.files?.length) await new Promise((resolve) => { file.addEventListener('change', resolve, { once: true }); });
  return /** @type {FileList} */ (file.files)[0];
}

/** @param {any} audio @returns {Promise<Run & {first_partial_at: number, first_segment_at: number, done_at: number}>} */
async function once(audio) {
  const from = now();
  let partial = 0;
  let segment = 0;
  const result = await engine.transcribe({ audio, options: {} }, {
    onEvent: (/** @type {any} */ event) => {
      if (event.event === 'segment') segment ||= now();
      if (event.event === 'segment' || (event.event === 'token' && event.text?.trim())) partial ||= now();
    },
  });
  const done = now();
  return {
    total_ms: done - from, first_partial_ms: (partial || done) - from, result,
    first_partial_at: partial || done, first_segment_at: segment || done, done_at: done,
  };
}

const choice = picked();
const first = Promise.all([load(), choice.then((blob) => readSound(blob))])
  .then(async ([loaded, { sound }]) => ({ loaded, run: await once(sound) }));
first.catch((error) => say(`${error.name}: ${error.message}`));

const bench = {
  settings,
  /** What was loaded, and the first transcription after it. */
  first: () => first,
  /** @param {number} runs further transcriptions of the same recording @returns {Promise<Run[]>} */
  async again(runs) {
    await first;
    const all = [];
    for (let i = 0; i < runs; i++) all.push(await once((await readSound(await choice)).sound));
    return all;
  },
  describe: () => engine.describe(),
  /** Bytes that the browser counts for page and workers; null where it does not tell (not isolated). */
  async memory() {
    const measure = /** @type {any} */ (performance).measureUserAgentSpecificMemory;
    return measure ? measure.call(performance) : null;
  },
};
/** @type {any} */ (window).bench = bench;

/** @param {number[]} values */
function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return Math.round(sorted[sorted.length >> 1]);
}

// A person at the page: show the medians. A driver says so in the settings and asks by itself.
if (!('driven' in settings)) {
  say('Choose a recording; the model loads meanwhile.');
  first.then(async ({ loaded, run }) => {
    say('measuring');
    const all = await bench.again(settings.runs ?? 5);
    const part = (/** @type {string} */ name) => median(all.map((one) => /** @type {any} */ (one.result).timings[name]));
    const lines = {
      executor: loaded.executor, threads: loaded.threads, load_ms: Math.round(loaded.load_ms),
      first_text_ms: Math.round(run.first_segment_at), mel_ms: part('mel_ms'), encode_ms: part('encode_ms'),
      decode_ms: part('decode_ms'), total_ms: median(all.map((one) => one.total_ms)),
      text: /** @type {any} */ (run.result).text,
    };
    /** @type {HTMLElement} */ (document.getElementById('result')).textContent = JSON.stringify(lines, null, 2);
    say('done');
  });
}
