// Times a picture and clicks into it (`candlewick bench segment --browser`, measure.js).
import { readPicture } from '../lib/picture.js';
import { engine, measure, median, now, settingsOf } from './measure.js';

const CLICKS = 3;

const settings = settingsOf({
  model: '../../models/mobilesam/', executor: 'auto', runs: 5,
  /** [x, y] in pixels of the picture; the middle where there are none */
  points: /** @type {number[][]} */ ([]),
  labels: /** @type {number[] | null} */ (null),
  box: /** @type {number[] | null} */ (null),
});

/** @param {File} blob */
async function pixels(blob) {
  const { view, width: full } = await readPicture(blob, blob.name, new AbortController().signal);
  const { width, height } = view;
  const pen = /** @type {CanvasRenderingContext2D} */ (view.getContext('2d'));
  return { rgba: pen.getImageData(0, 0, width, height).data, width, height, scale: width / full };
}

let count = 0;
/** The last answer, with its masks. @type {any} */
let last = null;

/**
 * Encode the picture and click into it: once the first time, else CLICKS times.
 * @param {Awaited<ReturnType<typeof pixels>>} picture @param {boolean} first
 */
async function once({ rgba, width, height, scale }, first) {
  const id = `picture ${++count}`;
  const from = now();
  const set = await engine.request('set_image', { id, image: { rgba: rgba.slice(), width, height } });
  const image_ms = now() - from;
  const points = settings.points.map(([x, y]) => [x * scale, y * scale]);
  const box = settings.box ? settings.box.map((side) => side * scale) : null;
  if (!points.length && !box) points.push([width / 2, height / 2]);
  const labels = settings.labels?.length ? settings.labels : points.map(() => 1);
  const click_ms = [];
  let first_mask_at = 0;
  for (let i = 0; i < (first ? 1 : CLICKS); i++) {
    const start = now();
    last = await engine.request('predict', { id, points, labels, box });
    click_ms.push(now() - start);
    first_mask_at ||= now();
  }
  return { image_ms, ...set.timings, click_ms, first_mask_at, iou: Array.from(last.iou), decode_ms: last.timings.decode_ms };
}

measure({
  settings, ask: 'Choose a picture.', read: pixels, once,
  lines: (_loaded, run, all) => ({
    first_mask_ms: Math.round(run.first_mask_at), preprocess_ms: median(all.map((one) => one.preprocess_ms)),
    encode_ms: median(all.map((one) => one.encode_ms)), click_ms: median(all.flatMap((one) => one.click_ms)),
    iou_predictions: all[all.length - 1].iou,
  }),
  more: {
    /** Logits of all masks of the last answer, one after the other. */
    masks: () => Array.from(last.masks),
  },
});
