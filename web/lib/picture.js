/**
 * From a file to a picture: upright once, opaque on white, with a name by content. Every kind of picture that the browser can
 * decode; of a moving one the first frame.
 *
 * The model and the screen see at most 2048 pixels of the longest side; masks and cut-outs have the full size.
 */
import { atMost } from "./geometry.js";
import { sniff } from "./sniff.js";

/**
 * @typedef {object} Picture
 * @property {string} id the same for the same bytes
 * @property {boolean} known whether the id tells the content (SHA-256), so that what was kept under it may be used
 * @property {string} name shown to the person, as text
 * @property {Blob} blob
 * @property {number} width full size, upright
 * @property {number} height
 * @property {HTMLCanvasElement} view what the model and the screen see
 * @property {string | null} note
 */

const LONGEST = 2048;
/** Pixels of the longest side of a drawing without a size of its own. */
const DRAWN = 1024;
/** Whether a drawing's first tag tells a size that is no part of something else. */
const SIZED = /<svg\b[^>]*?\s(width|height)\s*=\s*["']\s*[\d.]+\s*[a-z]*\s*["']/i;

/** A picture that cannot be used, in words for the person. */
export class PictureError extends Error {
  /** @param {string} message @param {string} [title] */
  constructor(message, title = "This picture cannot be used") {
    super(message);
    this.name = "PictureError";
    this.title = title;
  }
}

/**
 * @param {Blob} blob
 * @param {string} name
 * @param {AbortSignal} signal
 * @returns {Promise<Picture>} rejects with a PictureError
 */
export async function readPicture(blob, name, signal) {
  if (blob.size === 0) throw new PictureError("The file is empty.");
  const head = new Uint8Array(await blob.slice(0, 4096).arrayBuffer());
  const kind = sniff(head);
  const isDrawing = /<svg[\s>]/i.test(new TextDecoder().decode(head));
  if (kind.format) throw new PictureError(`This is ${kind.format}, sound or video. Choose a picture: JPEG, PNG, WebP, AVIF, GIF or SVG.`);
  if (kind.not && !isDrawing && !/picture$/.test(kind.not)) throw new PictureError(`This is ${kind.not}. Choose a picture: JPEG, PNG, WebP, AVIF, GIF or SVG.`);
  const [bitmap, id] = await Promise.all([decode(blob, isDrawing, kind.not), contentId(blob)]);
  try {
    signal.throwIfAborted();
    const { width, height } = bitmap;
    const view = document.createElement("canvas");
    Object.assign(view, atMost({ width, height }, LONGEST));
    const pen = context(view);
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, view.width, view.height);
    pen.imageSmoothingQuality = "high";
    pen.drawImage(bitmap, 0, 0, view.width, view.height);
    const cut = kind.not === "a JPEG picture" && !await endsWell(blob);
    return { id: id ?? `unnamed ${crypto.getRandomValues(new Uint32Array(4)).join("-")}`, known: id !== null, name, blob, width, height, view,
      note: cut ? "the file is cut off: its end is missing" : null };
  } finally {
    bitmap.close();
  }
}

/**
 * The whole picture, upright. createImageBitmap applies the orientation that a camera wrote into the file; nothing else does.
 * @param {Blob} blob @param {boolean} isDrawing @param {string | null} what
 * @returns {Promise<ImageBitmap>}
 */
export async function decode(blob, isDrawing = false, what = null) {
  try {
    return isDrawing ? await decodeDrawing(blob) : await createImageBitmap(blob, { imageOrientation: "from-image" });
  } catch {
    throw new PictureError(isDrawing ? "This drawing cannot be shown: it may be damaged."
      : what ? `This browser cannot decode it: ${what} that is damaged, cut off, too large or of an unusual kind.`
        : "The browser cannot decode this as a picture. Choose a JPEG, PNG, WebP, AVIF, GIF or SVG.");
  }
}

/** An SVG in an <img> runs no script and fetches nothing. @param {Blob} blob */
async function decodeDrawing(blob) {
  const url = URL.createObjectURL(new Blob([blob], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const width = image.naturalWidth || DRAWN, height = image.naturalHeight || DRAWN;
    const scale = SIZED.test(await blob.slice(0, 65_536).text()) ? 1 : DRAWN / Math.max(width, height);
    const canvas = document.createElement("canvas");      // createImageBitmap of one without a size is empty
    Object.assign(canvas, { width: Math.round(width * scale) || 1, height: Math.round(height * scale) || 1 });
    context(canvas).drawImage(image, 0, 0, canvas.width, canvas.height);
    return await createImageBitmap(canvas);
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** SHA-256 in hex, or null on addresses where browsers do not offer it. @param {Blob} blob */
async function contentId(blob) {
  if (!crypto.subtle) return null;
  const digest = await crypto.subtle.digest("SHA-256", await blob.arrayBuffer());
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Whether a JPEG has its end mark; cameras may add things behind it. @param {Blob} blob */
async function endsWell(blob) {
  const tail = new Uint8Array(await blob.slice(Math.max(0, blob.size - 65536)).arrayBuffer());
  for (let i = tail.length - 1; i > 0; i--) if (tail[i] === 0xd9 && tail[i - 1] === 0xff) return true;
  return false;
}

/** @param {HTMLCanvasElement} canvas */
export const context = (canvas) => /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));

/** @param {HTMLCanvasElement} canvas @param {string} [type] @returns {Promise<Blob>} */
export function toBlob(canvas, type = "image/png") {
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob)
    : reject(new PictureError(`A picture of ${canvas.width} × ${canvas.height} pixels is more than this browser can write.`, "Not saved"))), type));
}
