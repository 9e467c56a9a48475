/**
 * What can be taken away: cut-out, mask, RLE, outlines; saved or copied.
 */
import { announce, fileName, say } from "../lib/page.js";
import { byId, saveFile } from "../lib/ui.js";
import { coco, cutOut, maskImage, svg } from "./save.js";

/** @typedef {import("./objects.js").Thing} Thing */

export class Take {
  #copy = byId("copy", HTMLButtonElement);
  #cutout = byId("cutout", HTMLButtonElement);
  #row = byId("take-away", HTMLDivElement);

  /** @type {(error: unknown) => void} */
  onError = () => {};
  /** @type {(title: string, words: string) => void} */
  onNote = () => {};

  /** @param {import("./session.js").Session} session @param {import("./objects.js").Objects} objects */
  constructor(session, objects) {
    this.session = session;
    this.objects = objects;
    const on = (/** @type {string} */ id, /** @type {string} */ ending, /** @type {Parameters<Take["save"]>[1]} */ make) =>
      byId(id, HTMLButtonElement).addEventListener("click", () => void this.save(ending, make));
    on("cutout", "-cut-out.png", (picture) => cutOut(picture, this.#of(objects.active)[0]));
    on("save-mask", "-mask.png", (picture) => maskImage(picture, this.#shown()));
    on("save-json", ".json", (picture) => text(coco(picture, this.#shown()), "application/json"));
    on("save-svg", ".svg", (picture) => text(svg(picture, this.#shown()), "image/svg+xml"));
    this.#copy.addEventListener("click", () => void this.copy());
  }

  /** Offer what there is. */
  show() {
    this.#row.hidden = !this.objects.things.some((thing) => this.objects.mask(thing));
    this.#cutout.disabled = this.#copy.disabled = !this.objects.mask(this.objects.active);
  }

  /** @param {Thing} thing @returns {import("./save.js").Object[]} */
  #of(thing) {
    const mask = this.objects.mask(thing);
    return mask ? [{ name: thing.name, logits: mask.logits, threshold: thing.threshold, iou: mask.iou, prompt: thing.prompt, colour: thing.colour }] : [];
  }

  #shown() {
    return this.objects.things.filter((thing) => thing.visible).flatMap((thing) => this.#of(thing));
  }

  /** @param {string} ending @param {(picture: import("../lib/picture.js").Picture) => Blob | Promise<Blob>} make */
  async save(ending, make) {
    const { picture } = this.session;
    if (!picture) return;
    try {
      saveFile(`${fileName(picture.name, "picture")}${ending}`, await make(picture));
    } catch (error) {
      this.onError(error);
    }
  }

  /** The cut-out, to the clipboard. */
  async copy() {
    const { picture } = this.session, [object] = this.#of(this.objects.active);
    if (!picture || !object) return;
    try {
      if (!navigator.clipboard?.write || typeof ClipboardItem === "undefined") throw new Error("This browser does not let a page copy pictures. Save the cut-out instead.");
      await navigator.clipboard.write([new ClipboardItem({ "image/png": cutOut(picture, object) })]);
      say(this.#copy, "Copied");
      announce("Copied");
    } catch (error) {
      say(this.#copy, "Not copied");
      this.onNote("Not copied", error instanceof Error ? error.message : String(error));
    }
  }
}

const text = (/** @type {string} */ words, /** @type {string} */ type) => new Blob([words], { type });
