/**
 * Places on a picture: from the screen to its pixels and back, boxes, and sizes that fit. Plain numbers, no DOM.
 *
 * A place is a real number of pixels from the left and from the top edge: (0, 0) is the corner of the first pixel, (width,
 * height) the far corner of the last, whatever size the picture is shown at.
 *
 * @typedef {{x: number, y: number}} Place
 * @typedef {{width: number, height: number}} Size
 * @typedef {{x0: number, y0: number, x1: number, y1: number}} Box x0 < x1, y0 < y1
 * @typedef {{left: number, top: number, width: number, height: number}} Shown where the whole picture is on the screen now
 */

/** @param {number} value @param {number} low @param {number} high */
export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/**
 * A place on the screen as a place on the picture, on its border if it lies beside it. `shown` must be the live bounding box:
 * it knows of scrolling, zoom and CSS sizes.
 * @param {Shown} shown @param {Size} picture @param {number} clientX @param {number} clientY
 * @returns {Place}
 */
export function toPicture(shown, picture, clientX, clientY) {
  return {
    x: clamp(((clientX - shown.left) / shown.width) * picture.width, 0, picture.width),
    y: clamp(((clientY - shown.top) / shown.height) * picture.height, 0, picture.height),
  };
}

/** Whether a place on the screen lies on the picture. @param {Shown} shown @param {number} clientX @param {number} clientY */
export function isOn(shown, clientX, clientY) {
  return clientX >= shown.left && clientX <= shown.left + shown.width && clientY >= shown.top && clientY <= shown.top + shown.height;
}

/**
 * The box between two corners in any order; null if it has no area worth the name.
 * @param {Place} a @param {Place} b @param {number} [least] pixels that each side must have
 * @returns {Box | null}
 */
export function boxBetween(a, b, least = 1) {
  const box = { x0: Math.min(a.x, b.x), y0: Math.min(a.y, b.y), x1: Math.max(a.x, b.x), y1: Math.max(a.y, b.y) };
  return box.x1 - box.x0 >= least && box.y1 - box.y0 >= least ? box : null;
}

/**
 * The size with this longest side, at least one pixel each way; the size itself if it is no longer than that.
 * @param {Size} size @param {number} longest
 * @returns {Size}
 */
export function atMost(size, longest) {
  const scale = longest / Math.max(size.width, size.height);
  if (scale >= 1) return { width: size.width, height: size.height };
  return { width: Math.max(1, Math.round(size.width * scale)), height: Math.max(1, Math.round(size.height * scale)) };
}

/**
 * The largest size of the same shape inside a room.
 * @param {Size} size @param {Size} room
 * @returns {Size}
 */
export function fitted(size, room) {
  const scale = Math.min(room.width / size.width, room.height / size.height);
  return { width: size.width * scale, height: size.height * scale };
}
