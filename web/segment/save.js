/**
 * What can be taken away: the cut-out, the mask, run lengths, outlines. All of it at the picture's full size.
 *
 * @typedef {{name: string, logits: Float32Array, threshold: number, iou: number, prompt: import("./objects.js").Prompt,
 *   colour: [number, number, number]}} Object what an object is when it leaves
 * @typedef {import("../lib/picture.js").Picture} Picture
 */
import { binary, compress, cover, distances, measure, runs, stability, Upsampler } from "../lib/mask.js";
import { outlines } from "../lib/outline.js";
import { context, decode, toBlob } from "../lib/picture.js";

/** Rows of a strip: a picture of any size needs memory for one strip beside its own. */
const STRIP = 256;

/**
 * The object alone, as large as its box, the rest transparent; its edge is soft within a pixel.
 * @param {Picture} picture @param {Object} object
 * @returns {Promise<Blob>} PNG
 */
export async function cutOut(picture, { logits, threshold }) {
  const { width, height } = picture;
  const up = new Upsampler(picture);
  const whole = up.reach(logits, threshold, 2) ?? { x: 0, y: 0, width: 1, height: 1 };
  const area = tight(up, logits, threshold, whole);
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: area.width, height: area.height });
  const pen = context(canvas);
  const bitmap = width === picture.view.width && height === picture.view.height ? null : await decode(picture.blob, isDrawing(picture));
  pen.drawImage(bitmap ?? picture.view, -area.x, -area.y, width, height);
  bitmap?.close();
  for (let top = 0; top < area.height; top += STRIP) {
    const rows = Math.min(STRIP, area.height - top);
    const image = pen.getImageData(0, top, area.width, rows);
    distances(up, logits, { x: area.x, y: area.y + top, width: area.width, height: rows }, threshold, (row, y) => {
      for (let x = 0, at = y * area.width * 4 + 3; x < row.length; x++, at += 4) image.data[at] = Math.round(image.data[at] * cover(row[x]));
    });
    pen.putImageData(image, 0, top);
  }
  return toBlob(canvas);
}

/**
 * The smallest box around what is above the threshold.
 * @param {Upsampler} up @param {Float32Array} logits @param {number} threshold @param {import("../lib/mask.js").Area} area
 */
function tight(up, logits, threshold, area) {
  const row = new Float32Array(area.width);
  let left = area.width, right = -1, top = -1, bottom = -1;
  for (let y = 0; y < area.height; y++) {
    up.read(logits, area.y + y, row, area.x);
    for (let x = 0; x < row.length; x++) {
      if (row[x] <= threshold) continue;
      if (x < left) left = x;
      if (x > right) right = x;
      if (top < 0) top = y;
      bottom = y;
    }
  }
  return right < 0 ? { x: area.x, y: area.y, width: 1, height: 1 }
    : { x: area.x + left, y: area.y + top, width: right - left + 1, height: bottom - top + 1 };
}

/** @param {Picture} picture */
const isDrawing = (picture) => picture.blob.type === "image/svg+xml";

/**
 * White where any of the objects is, black elsewhere.
 * @param {Picture} picture @param {Object[]} objects
 */
export async function maskImage(picture, objects) {
  const { width, height } = picture;
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const pen = context(canvas), up = new Upsampler(picture), row = new Float32Array(width);
  for (let top = 0; top < height; top += STRIP) {
    const image = new ImageData(width, Math.min(STRIP, height - top));
    const words = new Uint32Array(image.data.buffer).fill(0xff000000);
    for (const { logits, threshold } of objects) {
      for (let y = 0; y < image.height; y++) {
        up.read(logits, top + y, row);
        for (let x = 0, at = y * width; x < width; x++, at++) if (row[x] > threshold) words[at] = 0xffffffff;
      }
    }
    pen.putImageData(image, 0, top);
  }
  return toBlob(canvas);
}

/**
 * COCO's form: one annotation an object, masks as compressed run lengths of exactly height x width.
 * @param {Picture} picture @param {Object[]} objects
 */
export function coco(picture, objects) {
  const { width, height } = picture, round = (/** @type {number} */ value) => Math.round(value * 100) / 100;
  const annotations = objects.map(({ name, logits, threshold, iou, prompt }, i) => {
    const mask = binary(logits, picture, threshold), { area, box } = measure(mask, picture);
    return {
      id: i + 1, name, segmentation: { size: [height, width], counts: compress(runs(mask, picture)) }, area,
      bbox: box ? [box.x, box.y, box.width, box.height] : [0, 0, 0, 0], predicted_iou: iou, stability_score: stability(logits, picture, threshold), threshold,
      ...(prompt.points.length > 0 && { points: prompt.points.map(({ x, y, label }) => ({ x: round(x), y: round(y), label })) }),
      ...(prompt.box && { box: [prompt.box.x0, prompt.box.y0, prompt.box.x1, prompt.box.y1].map(round) }),
    };
  });
  return `${JSON.stringify({ image: { file_name: picture.name, width, height }, annotations }, null, 2)}\n`;
}

/**
 * One path an object, holes included, in the picture's pixels.
 * @param {Picture} picture @param {Object[]} objects
 */
export function svg(picture, objects) {
  const { width, height } = picture;
  const places = (/** @type {number} */ value) => String(Math.round(value * 100) / 100);
  const lines = objects.map(({ name, logits, threshold, colour }) => {
    const data = outlines(logits, picture, threshold).map((ring) => `M${ring.map(({ x, y }) => `${places(x)} ${places(y)}`).join("L")}Z`).join("");
    return `  <path d="${data}" fill="rgb(${colour.join(" ")})" fill-rule="evenodd"><title>${escaped(name)}</title></path>\n`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">\n${lines.join("")}</svg>\n`;
}

/** @param {string} text */
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "");
