/**
 * The objects over the picture, as they are wished to look: once a frame, however often they change.
 */
import { byId, settings } from "../lib/ui.js";
import { isEmpty } from "./objects.js";
import { Overlay } from "./overlay.js";

/** @typedef {import("./objects.js").Thing} Thing */

export class Painter {
  #opacity = byId("opacity", HTMLInputElement);
  #outline = byId("outline", HTMLInputElement);
  #overlay;
  #frame = 0;
  /** The last mask of each object: it stays on the screen until the next answer. @type {Map<number, {logits: Float32Array}>} */
  #held = new Map();
  /** What a click where the pointer is would take. @type {Float32Array | null} */
  hover = null;

  /** @param {import("./session.js").Session} session @param {import("./objects.js").Objects} objects @param {import("./stage.js").Stage} stage */
  constructor(session, objects, stage) {
    this.session = session;
    this.objects = objects;
    this.stage = stage;
    this.#overlay = new Overlay(stage.overlay);
    this.#opacity.value = settings.get("segment.opacity", "0.45");
    this.#opacity.addEventListener("input", () => this.#keep("opacity", this.#opacity.value));
    this.#outline.checked = settings.get("segment.outline", "on") === "on";
    this.#outline.addEventListener("change", () => this.#keep("outline", this.#outline.checked ? "on" : "off"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.soon());
  }

  /** @param {string} name @param {string} value */
  #keep(name, value) {
    settings.set(`segment.${name}`, value);
    this.soon();
  }

  /** Something changed. */
  soon() {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#paint();
    });
  }

  /** Remember what is seen now. */
  hold() {
    for (const thing of this.objects.things) {
      const shown = this.objects.mask(thing);
      if (shown) this.#held.set(thing.id, shown);
    }
  }

  /** @param {Thing} thing */
  #maskOf(thing) {
    return this.objects.mask(thing) ?? (isEmpty(thing) ? null : this.#held.get(thing.id) ?? null);
  }

  #paint() {
    const { session: { picture }, objects: { things, active }, hover } = this;
    if (!picture) return;
    const opacity = Number(this.#opacity.value), ratio = Math.max(1, Math.min(devicePixelRatio || 1, 3));
    const outline = this.#outline.checked ? 2 * ratio : 0;
    /** @type {Array<{key: string | number, look: import("./overlay.js").Look}>} */
    const layers = [];
    for (const thing of [...things.filter((each) => each !== active), active]) {
      const mask = thing.visible ? this.#maskOf(thing) : null;
      if (!mask) continue;
      const on = thing === active;
      layers.push({ key: thing.id, look: { logits: mask.logits, threshold: thing.threshold, colour: thing.colour, opacity: on && hover ? opacity * 0.5 : opacity,
        outline: on ? outline : outline / 2, outlineOpacity: 1 } });
    }
    if (hover) layers.push({ key: "hover", look: { logits: hover, threshold: 0, colour: active.colour, opacity: opacity * 0.7, outline: outline / 2, outlineOpacity: 0.8 } });
    this.#overlay.draw(picture, this.stage.pixels, layers);
  }
}
