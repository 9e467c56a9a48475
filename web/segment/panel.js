/**
 * Beside the picture: the list of objects and the candidates to choose from. It shows values and tells what was pressed.
 */
import { paint, Upsampler } from "../lib/mask.js";
import { context } from "../lib/picture.js";
import { fitted } from "../lib/geometry.js";
import { byId, el } from "../lib/ui.js";

/** @typedef {import("./objects.js").Objects} Objects */

const SVG = "http://www.w3.org/2000/svg";

/** @param {string} path */
function icon(path) {
  const node = document.createElementNS(SVG, "svg");
  for (const [key, value] of [["viewBox", "0 0 20 20"], ["fill", "none"], ["stroke", "currentColor"], ["stroke-width", "1.7"], ["stroke-linecap", "round"], ["aria-hidden", "true"]]) node.setAttribute(key, value);
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  node.append(line);
  return node;
}

const EYE = "M2 10s3-5.500 8-5.500 8 5.500 8 5.500-3 5.500-8 5.500-8-5.500-8-5.500zM10 12.500a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5z";
const CLOSED = "M2 10s3 5.500 8 5.500 8-5.500 8-5.500M4 13l-1 2M10 15.500v2.200M16 13l1 2";
const BIN = "M5.500 5.500l9 9M14.500 5.500l-9 9";

/** @param {Objects} objects */
export function showThings(objects) {
  const list = byId("things", HTMLUListElement);
  const held = document.activeElement instanceof HTMLInputElement && list.contains(document.activeElement);
  if (held) return;                                        // a name is being typed; it is shown when that is over
  list.replaceChildren(...objects.things.map((thing) => {
    const pick = el("button", { class: "pick", type: "button", "aria-label": `Work on ${thing.name}`, title: "Work on this one" });
    pick.style.background = `rgb(${thing.colour.join(" ")})`;
    pick.addEventListener("click", () => objects.pick(thing.id));
    const name = el("input", { type: "text", maxlength: "80", "aria-label": "Name of the object", spellcheck: "false" });
    name.value = thing.name;
    name.addEventListener("focus", () => objects.pick(thing.id));
    name.addEventListener("blur", () => {
      const text = name.value.trim();
      if (text && text !== thing.name) objects.editOne(thing.id, { name: text });
      else showThings(objects);
    });
    name.addEventListener("keydown", (event) => { if (event.key === "Enter") name.blur(); });
    const eye = el("button", { class: "do", type: "button", "aria-pressed": String(!thing.visible), "aria-label": thing.visible ? `Hide ${thing.name}` : `Show ${thing.name}` }, icon(thing.visible ? EYE : CLOSED));
    eye.addEventListener("click", () => objects.editOne(thing.id, { visible: !thing.visible }));
    const bin = el("button", { class: "do", type: "button", "aria-label": `Remove ${thing.name}` }, icon(BIN));
    bin.addEventListener("click", () => objects.remove(thing.id));
    return el("li", { class: thing.visible ? undefined : "hidden-thing", "aria-current": thing === objects.active ? "true" : undefined }, pick, name, eye, bin);
  }));
}

/**
 * @param {Objects} objects
 * @param {import("../lib/picture.js").Picture} picture
 */
export function showCandidates(objects, picture) {
  const row = byId("candidates", HTMLDivElement);
  const thing = objects.active, all = thing.region ? [] : objects.candidates(thing);
  const chosen = objects.mask(thing)?.index;
  row.hidden = all.length === 0;
  const had = row.contains(document.activeElement);
  row.replaceChildren(...all.map(({ index, iou, logits }, n) => {
    const on = index === chosen;
    const score = percent(iou);
    const button = el("button", { class: "candidate", type: "button", role: "radio", "aria-checked": String(on), tabindex: on ? "0" : "-1",
      "aria-label": `Candidate ${n + 1}, score ${score}` }, thumbnail(picture, logits, thing), el("span", { text: `${n + 1} · ${score}` }));
    button.addEventListener("click", () => objects.edit({ choice: index }));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      objects.edit({ choice: all[(n + step + all.length) % all.length].index });
    });
    if (on && had) queueMicrotask(() => button.focus());
    return button;
  }));
}

/** @param {import("../lib/picture.js").Picture} picture @param {Float32Array} logits @param {import("./objects.js").Thing} thing */
function thumbnail(picture, logits, { threshold, colour }) {
  const fit = fitted(picture, { width: 176, height: 128 });
  const size = { width: Math.max(1, Math.round(fit.width)), height: Math.max(1, Math.round(fit.height)) };
  const canvas = el("canvas", { width: size.width, height: size.height, "aria-hidden": "true" });
  const pen = context(canvas), up = new Upsampler(picture, size);
  pen.drawImage(picture.view, 0, 0, size.width, size.height);
  const tile = document.createElement("canvas");
  Object.assign(tile, size);
  const rgba = paint(up, logits, { x: 0, y: 0, ...size }, threshold, { colour, opacity: 0.7, outline: 2 });
  context(tile).putImageData(new ImageData(rgba, size.width, size.height), 0, 0);
  pen.drawImage(tile, 0, 0);
  return canvas;
}

/** A score for people: the model's own guess may lie a little above one. @param {number} iou */
export const percent = (iou) => `${Math.round(Math.min(1, Math.max(0, iou)) * 100)} %`;

/** Part of the model's square that the mask fills, for those who cannot see it. @param {Float32Array} logits @param {number} threshold @param {import("../lib/geometry.js").Size} picture */
export function share(logits, threshold, { width, height }) {
  let area = 0;
  for (const logit of logits) if (logit > threshold) area++;
  const all = (logits.length * Math.min(width, height)) / Math.max(width, height);
  return Math.min(1, area / all);
}
