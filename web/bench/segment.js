// Times the engine exactly as the segment page uses it. `candlewick bench segment --browser` drives this page through
// `window.bench`; a person who opens it picks a picture and reads the numbers.
// All times are milliseconds of performance.now(), which counts from the navigation.
import { Engine } from '../../workers/client.js';
import { readPicture } from '../lib/picture.js';

/**
 * @typedef {object} Settings what stands after # in the address, as JSON
 * @property {string} [model] address of a checkpoint folder
 * @property {"auto" | "wasm" | "numpy"} [executor]
 * @property {number} [threads]
 * @property {number} [runs] repetitions when a person uses the page
 * @property {number[][]} [points] [x, y] in pixels of the picture; the middle where there are none
 * @property {number[]} [labels]
 * @property {number[] | null} [box]
 */

/** @type {Settings} */
const settings = {
  model: '../../models/mobilesam/', executor: 'auto', runs: 5,
  ...(location.hash.length > 1 ? JSON.parse(decodeURIComponent(location.hash.slice(1))) : {}),
};
const engine = new Engine();
const now = () => performance.now();
const file = /** @type {HTMLInputElement} */ (document.getElementById('file'));
const status = /** @type {HTMLElement} */ (document.getElementById('status'));

/** @param {string} text */
function say(text) { status.textContent = text; }

/** Load as soon as the page is there; the picture may be picked meanwhile. */
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

/** @param {File} blob */
async function pixels(blob) {
  const { view, width: full } = await readPicture(blob, blob.name, new AbortController().signal);
  const { width, height } = view;
  const pen = /** @type {CanvasRenderingContext2D} */ (view.getContext('2d'));
  return { rgba: pen.getImageData(0, 0, width, height).data, width, height, scale: width / full };
}

let count = 0;

/**
 * Encode the picture and click `clicks` times.
 * @param {Awaited<ReturnType<typeof pixels>>} picture @param {number} [clicks]
 */
async function once({ rgba, width, height, scale }, clicks = 3) {
  const id = `picture ${++count}`;
  const from = now();
  const set = await engine.request('set_image', { id, image: { rgba: rgba.slice(), width, height } });
  const image_ms = now() - from;
  const points = (settings.points ?? []).map(([x, y]) => [x * scale, y * scale]);
  const box = settings.box ? settings.box.map((side) => side * scale) : null;
  if (!points.length && !box) points.push([width / 2, height / 2]);
  const labels = settings.labels ?? points.map(() => 1);
  const click_ms = [];
  let answer;
  let first_mask_at = 0;
  for (let i = 0; i < clicks; i++) {
    const start = now();
    answer = await engine.request('predict', { id, points, labels, box });
    click_ms.push(now() - start);
    first_mask_at ||= now();
  }
  return { image_ms, ...set.timings, click_ms, first_mask_at, answer };
}

const choice = picked();
const first = Promise.all([load(), choice.then(pixels)])
  .then(async ([loaded, picture]) => ({ loaded, run: plain(await once(picture, 1)) }));
first.catch((error) => say(`${error.name}: ${error.message}`));

/** Without the masks, which are large. @param {Awaited<ReturnType<typeof once>>} run */
function plain({ answer, ...rest }) { return { ...rest, iou: Array.from(answer.iou), decode_ms: answer.timings.decode_ms }; }

/** @type {any} */
let last = null;
const bench = {
  settings,
  /** What was loaded, and the first mask after it. */
  first: () => first,
  /** @param {number} runs further encodings of the same picture, three clicks each */
  async again(runs) {
    await first;
    const all = [];
    for (let i = 0; i < runs; i++) {
      last = await once(await pixels(await choice));
      all.push(plain(last));
    }
    return all;
  },
  /** Logits of all masks of the last answer, one after the other. */
  masks: () => Array.from(last.answer.masks),
  describe: () => engine.describe(),
};
/** @type {any} */ (window).bench = bench;

/** @param {number[]} values */
function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return Math.round(sorted[sorted.length >> 1]);
}

// A person at the page: show the medians. A driver says so in the settings and asks by itself.
if (!('driven' in settings)) {
  say('Choose a picture; the model loads meanwhile.');
  first.then(async ({ loaded, run }) => {
    say('measuring');
    const all = await bench.again(settings.runs ?? 5);
    const lines = {
      executor: loaded.executor, threads: loaded.threads, load_ms: Math.round(loaded.load_ms),
      first_mask_ms: Math.round(run.first_mask_at), preprocess_ms: median(all.map((one) => one.preprocess_ms)),
      encode_ms: median(all.map((one) => one.encode_ms)), click_ms: median(all.flatMap((one) => one.click_ms)),
      iou_predictions: all[all.length - 1].iou,
    };
    /** @type {HTMLElement} */ (document.getElementById('result')).textContent = JSON.stringify(lines, null, 2);
    say('done');
  });
}
