/**
 * The objects of one picture, as values: every change makes a new list and the old one stays for undo.
 *
 * @typedef {import("../lib/geometry.js").Box} Box
 * @typedef {{x: number, y: number, label: 0 | 1}} Point in pixels of the picture; label 1 is on the object
 * @typedef {{points: readonly Point[], box: Box | null, seed: Float32Array | null}} Prompt seed: logits to go on from
 * @typedef {object} Thing one object
 * @property {number} id
 * @property {string} name
 * @property {[number, number, number]} colour
 * @property {Prompt} prompt
 * @property {number | null} choice which candidate a person chose; null: the one the model thinks best
 * @property {number} threshold
 * @property {boolean} visible
 * @property {{logits: Float32Array, iou: number} | null} region found by "everything"; a prompt replaces it
 * @typedef {{masks: Float32Array, iou: number[]}} Answer four masks, see workers/protocol.js
 * @typedef {{things: readonly Thing[], active: number}} State
 */
import { sideOf } from "../lib/mask.js";

/** @type {Prompt} */
export const NOTHING = Object.freeze({ points: [], box: null, seed: null });
/** Steps that undo remembers. */
const DEPTH = 200;

export class Objects {
  /** @type {State} */
  #state = { things: [], active: 0 };
  /** @type {State[]} */
  #past = [];
  /** @type {State[]} */
  #future = [];
  #last = 0;
  /** What the model said to each prompt; goes with it. @type {WeakMap<Prompt, Answer>} */
  #answers = new WeakMap();

  /** Called after every change. @type {() => void} */
  onChange = () => {};

  constructor() {
    this.reset();
  }

  /** A new picture. */
  reset() {
    this.#past = [];
    this.#future = [];
    this.#last = 0;
    const first = this.#make();
    this.#state = { things: [first], active: first.id };
    this.onChange();
  }

  get things() {
    return this.#state.things;
  }

  /** The object that prompts are about. */
  get active() {
    return /** @type {Thing} */ (this.#state.things.find((thing) => thing.id === this.#state.active) ?? this.#state.things[0]);
  }

  get canUndo() {
    return this.#past.length > 0;
  }

  get canRedo() {
    return this.#future.length > 0;
  }

  /** @returns {Thing} */
  #make() {
    const id = ++this.#last;
    return { id, name: `Object ${id}`, colour: colourOf(id - 1), prompt: NOTHING, choice: null, threshold: 0, visible: true, region: null };
  }

  /** @param {State} state */
  #commit(state) {
    this.#past.push(this.#state);
    if (this.#past.length > DEPTH) this.#past.shift();
    this.#future = [];
    this.#state = state;
    this.onChange();
  }

  undo() {
    const state = this.#past.pop();
    if (!state) return;
    this.#future.push(this.#state);
    this.#state = state;
    this.onChange();
  }

  redo() {
    const state = this.#future.pop();
    if (!state) return;
    this.#past.push(this.#state);
    this.#state = state;
    this.onChange();
  }

  /** Change the active object. @param {Partial<Thing>} change @param {boolean} [step] whether undo comes back to before it */
  edit(change, step = true) {
    this.editOne(this.active.id, change, step);
  }

  /** @param {number} id @param {Partial<Thing>} change @param {boolean} [step] */
  editOne(id, change, step = true) {
    const things = this.things.map((thing) => (thing.id === id ? { ...thing, ...change } : thing));
    if (step) {
      this.#commit({ ...this.#state, things });
    } else {
      this.#state = { ...this.#state, things };
      this.onChange();
    }
  }

  /** A new prompt for the active object: its candidates are new as well. @param {Partial<Prompt>} change */
  prompt(change) {
    const prompt = { ...this.active.prompt, ...change };
    const empty = prompt.points.length === 0 && !prompt.box;
    this.edit({ prompt: empty ? NOTHING : prompt, choice: null, region: null });
  }

  /** A new object, unless the active one is still empty. */
  add() {
    if (isEmpty(this.active)) return;
    const empty = this.things.find(isEmpty);
    if (empty) return this.pick(empty.id);
    const thing = this.#make();
    this.#commit({ things: [...this.things, thing], active: thing.id });
  }

  /** Regions as objects, all at once. @param {Array<{logits: Float32Array, iou: number}>} regions */
  addAll(regions) {
    const made = regions.map((region) => ({ ...this.#make(), region })).map((thing, i) => ({ ...thing, name: `Region ${i + 1}` }));
    const things = [...this.things.filter((thing) => !isEmpty(thing)), ...made];
    if (made.length) this.#commit({ things, active: made[0].id });
  }

  /** @param {number} id */
  pick(id) {
    if (id === this.#state.active) return;
    this.#state = { ...this.#state, active: id };
    this.onChange();
  }

  /** @param {number} id */
  remove(id) {
    let things = this.things.filter((thing) => thing.id !== id);
    if (things.length === 0) things = [this.#make()];
    const active = things.some((thing) => thing.id === this.#state.active) ? this.#state.active : things[things.length - 1].id;
    this.#commit({ things, active });
  }

  /** Back to one empty object. */
  clear() {
    const first = this.#make();
    this.#commit({ things: [first], active: first.id });
  }

  // ---- answers --------------------------------------------------------------------------------------------------

  /** @param {Prompt} prompt @param {Answer} answer */
  answer(prompt, answer) {
    this.#answers.set(prompt, answer);
    this.onChange();
  }

  /** An answer to a prompt that is not part of any object yet. @param {Prompt} prompt @param {Answer} answer */
  remember(prompt, answer) {
    this.#answers.set(prompt, answer);
  }

  /**
   * The smallest object shown at a place, or null.
   * @param {import("../lib/geometry.js").Place} place @param {import("../lib/geometry.js").Size} picture
   */
  at(place, picture) {
    let found = null, least = Infinity;
    for (const thing of this.things) {
      const mask = thing.visible ? this.mask(thing) : null;
      if (!mask) continue;
      const side = sideOf(mask.logits), scale = side / Math.max(picture.width, picture.height), last = side - 1;
      const index = Math.min(last, Math.floor(place.y * scale)) * side + Math.min(last, Math.floor(place.x * scale));
      if (mask.logits[index] <= thing.threshold) continue;
      const area = mask.logits.reduce((sum, logit) => sum + (logit > thing.threshold ? 1 : 0), 0);
      if (area < least) [found, least] = [thing, area];
    }
    return found;
  }

  /** @param {Thing} thing @returns {Answer | null} */
  answerOf(thing) {
    return this.#answers.get(thing.prompt) ?? null;
  }

  /**
   * What there is to choose from: three candidates for one click; for a clearer prompt the mask made for those, then the three.
   * @param {Thing} thing
   * @returns {Array<{index: number, iou: number, logits: Float32Array}>}
   */
  candidates(thing) {
    const answer = this.answerOf(thing);
    if (!answer) return [];
    const all = answer.iou.map((iou, index) => ({ index, iou, logits: maskOf(answer, index) }));
    return isClear(thing.prompt) ? all : all.slice(1);
  }

  /** The mask that counts: chosen, or thought best. @param {Thing} thing @returns {{index: number, iou: number, logits: Float32Array} | null} */
  mask(thing) {
    if (thing.region) return { index: -1, ...thing.region };
    const answer = this.answerOf(thing);
    if (!answer) return null;
    const index = thing.choice ?? best(answer, thing.prompt);
    return { index, iou: answer.iou[index], logits: maskOf(answer, index) };
  }
}

/** @param {Answer} answer @param {number} index */
export function maskOf({ masks, iou }, index) {
  const size = masks.length / iou.length;
  return masks.subarray(index * size, (index + 1) * size);
}

/** More than one point, or a box: the mask made for clear prompts is meant. @param {Prompt} prompt */
const isClear = (prompt) => prompt.box !== null || prompt.points.length > 1;

/** @param {Answer} answer @param {Prompt} prompt @returns {number} */
export function best({ iou }, prompt) {
  if (isClear(prompt)) return 0;
  let found = 1;
  for (let i = 2; i < iou.length; i++) if (iou[i] > iou[found]) found = i;
  return found;
}

/** @param {Thing} thing */
export const isEmpty = (thing) => !thing.region && thing.prompt.points.length === 0 && !thing.prompt.box;

/** Colours that neighbours tell apart: the golden angle around the wheel. @param {number} n @returns {[number, number, number]} */
export function colourOf(n) {
  const hue = (214 + n * 137.508) % 360, light = n % 3 === 1 ? 0.62 : 0.55, chroma = 0.8 * (1 - Math.abs(2 * light - 1));
  const part = (/** @type {number} */ k) => {
    const at = (k + hue / 30) % 12;
    return Math.round(255 * (light - (chroma / 2) * Math.max(-1, Math.min(at - 3, 9 - at, 1))));
  };
  return [part(0), part(8), part(4)];
}
