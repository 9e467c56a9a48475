/**
 * The picture on the screen and what hands do to it: click, right-click, Alt and click, drag, touch, keys. It tells places on
 * the picture and knows nothing of models.
 *
 * @typedef {import("../lib/geometry.js").Place} Place
 * @typedef {import("../lib/geometry.js").Box} Box
 */
import { boxBetween, clamp, fitted, isOn, toPicture } from "../lib/geometry.js";
import { context } from "../lib/picture.js";
import { byId, el } from "../lib/ui.js";

/** Pointer travel in CSS pixels from which on a press is a box. */
const DRAG = 6;

export class Stage {
  #root = byId("stage", HTMLDivElement);
  #picture = byId("picture", HTMLCanvasElement);
  #marks = byId("marks", HTMLDivElement);
  /** @type {import("../lib/picture.js").Picture | null} */
  #shown = null;
  /** @type {{x: number, y: number, place: Place, label: 0 | 1, id: number, box: boolean} | null} */
  #press = null;
  /** @type {HTMLElement | null} */
  #band = null;
  /** @type {Place | null} */
  #cross = null;
  /** @type {Place | null} */
  #corner = null;
  /** @type {{points: readonly import("./objects.js").Point[], box: Box | null}} */
  #marked = { points: [], box: null };

  overlay = byId("overlay", HTMLCanvasElement);
  /** What a plain click means. @type {"in" | "out" | "box"} */
  tool = "in";

  /** @type {(place: Place, label: 0 | 1) => void} */
  onPoint = () => {};
  /** @type {(box: Box) => void} */
  onBox = () => {};
  /** Shift and click: the object there is meant, not a point. @type {(place: Place) => void} */
  onPick = () => {};
  /** The pointer is over this place; null: it left. @type {(place: Place | null, label: 0 | 1) => void} */
  onHover = () => {};
  /** @type {(index: number) => void} index of a point, -1 for the box */
  onRemove = () => {};
  /** @type {() => void} */
  onResize = () => {};
  /** @type {(words: string) => void} */
  announce = () => {};

  constructor() {
    const root = this.#root;
    root.addEventListener("pointerdown", (event) => this.#down(event));
    root.addEventListener("pointermove", (event) => this.#move(event));
    root.addEventListener("pointerup", (event) => this.#up(event));
    root.addEventListener("pointercancel", () => this.#end());
    root.addEventListener("pointerleave", () => { if (!this.#press) this.onHover(null, 1); });
    root.addEventListener("contextmenu", (event) => event.preventDefault());
    root.addEventListener("keydown", (event) => this.#key(event));
    root.addEventListener("blur", () => this.#showCross(null));
    new ResizeObserver(() => this.#fit()).observe(/** @type {Element} */ (root.parentElement));
    addEventListener("resize", () => this.#fit());
  }

  /** @param {import("../lib/picture.js").Picture} picture */
  show(picture) {
    this.#end();
    this.#cross = this.#corner = null;
    this.#shown = picture;
    Object.assign(this.#picture, { width: picture.view.width, height: picture.view.height });
    context(this.#picture).drawImage(picture.view, 0, 0);
    this.mark([], null);
    this.#fit();
  }

  /** @param {"in" | "out" | "box"} tool */
  setTool(tool) {
    this.tool = tool;
    this.#root.classList.toggle("boxing", tool === "box");
  }

  /** @param {boolean} on */
  set waiting(on) {
    this.#root.classList.toggle("waiting", on);
  }

  /** As large as the column and the window allow, and never beyond recognition. */
  #fit() {
    if (!this.#shown) return;
    const room = this.#root.parentElement?.clientWidth ?? 0;
    const style = getComputedStyle(/** @type {Element} */ (this.#root.parentElement));
    const width = room - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (width <= 0) return;
    const fit = fitted(this.#shown, { width, height: Math.max(240, innerHeight * 0.72) });
    this.#root.style.width = `${Math.max(fit.width, 8)}px`;
    this.#picture.style.aspectRatio = this.#root.style.aspectRatio = `${this.#shown.width} / ${this.#shown.height}`;
    this.#picture.style.height = this.#root.style.height = `${Math.max(fit.height, 8)}px`;
    this.onResize();
  }

  /** Device pixels of the picture on the screen. @returns {import("../lib/geometry.js").Size} */
  get pixels() {
    const { width, height } = this.#box();
    const ratio = clamp(devicePixelRatio || 1, 1, 3);
    return { width: Math.max(1, Math.round(width * ratio)), height: Math.max(1, Math.round(height * ratio)) };
  }

  #box() {
    return this.#picture.getBoundingClientRect();
  }

  /** @param {{clientX: number, clientY: number}} event */
  #place(event) {
    return toPicture(this.#box(), /** @type {import("../lib/geometry.js").Size} */ (this.#shown), event.clientX, event.clientY);
  }

  /** @param {MouseEvent} event @returns {0 | 1} */
  #label(event) {
    const other = event.button === 2 || event.altKey;
    return (this.tool === "out") !== other ? 0 : 1;
  }

  // ---- pointer --------------------------------------------------------------------------------------------------

  /** @param {PointerEvent} event */
  #down(event) {
    if (!this.#shown || !event.isPrimary || (event.button !== 0 && event.button !== 2)) return;
    if (event.target instanceof HTMLButtonElement) return;
    const mayDrag = event.button === 0 && (event.pointerType === "mouse" || event.pointerType === "pen" || this.tool === "box");
    this.#press = { x: event.clientX, y: event.clientY, place: this.#place(event), label: this.#label(event), id: event.pointerId, box: mayDrag };
    if (mayDrag) this.#root.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  #move(event) {
    if (!this.#shown) return;
    const press = this.#press;
    if (!press) {
      const on = event.pointerType !== "touch" && !(event.target instanceof HTMLButtonElement) && isOn(this.#box(), event.clientX, event.clientY);
      this.onHover(on ? this.#place(event) : null, event.altKey !== (this.tool === "out") ? 0 : 1);
      return;
    }
    if (event.pointerId !== press.id || !press.box) return;
    if (this.#band || Math.hypot(event.clientX - press.x, event.clientY - press.y) >= DRAG) {
      this.#rubber(press.place, this.#place(event));
      this.onHover(null, 1);
    }
  }

  /** @param {PointerEvent} event */
  #up(event) {
    const press = this.#press, dragged = this.#band !== null;
    if (!press || event.pointerId !== press.id) return;
    this.#end();
    if (dragged) {
      const box = boxBetween(press.place, this.#place(event));
      if (box) return this.onBox(box);
    }
    if (!dragged && Math.hypot(event.clientX - press.x, event.clientY - press.y) > 2 * DRAG) return;   // a swipe
    if (event.shiftKey) this.onPick(press.place);
    else this.onPoint(press.place, press.label);
  }

  #end() {
    this.#press = null;
    this.#band?.remove();
    this.#band = null;
  }

  /** @param {Place} a @param {Place} b */
  #rubber(a, b) {
    if (!this.#band) {
      this.#band = el("div", { class: "mark box" });
      this.#marks.append(this.#band);
    }
    this.#put(this.#band, a, b);
  }

  /** @param {HTMLElement} node @param {Place} a @param {Place} [b] the other corner of a box */
  #put(node, a, b) {
    const { width, height } = /** @type {import("../lib/geometry.js").Size} */ (this.#shown);
    const part = (/** @type {number} */ value, /** @type {number} */ all) => `${(100 * value) / all}%`;
    node.style.left = part(b ? Math.min(a.x, b.x) : a.x, width);
    node.style.top = part(b ? Math.min(a.y, b.y) : a.y, height);
    if (!b) return;
    node.style.width = part(Math.abs(b.x - a.x), width);
    node.style.height = part(Math.abs(b.y - a.y), height);
  }

  // ---- marks ----------------------------------------------------------------------------------------------------

  /** Show the prompt: buttons that remove what they stand for. @param {readonly import("./objects.js").Point[]} points @param {Box | null} box */
  mark(points, box) {
    if (points === this.#marked.points && box === this.#marked.box) return;
    this.#marked = { points, box };
    const held = this.#marks.contains(document.activeElement);
    const nodes = [];
    if (box) {
      const frame = el("div", { class: "mark box" });
      this.#put(frame, { x: box.x0, y: box.y0 }, { x: box.x1, y: box.y1 });
      const shut = el("button", { class: "mark shut", type: "button", "aria-label": "Remove the box", title: "Remove the box" });
      this.#onPress(shut, () => this.onRemove(-1));
      this.#put(shut, { x: box.x1, y: box.y0 });
      nodes.push(frame, shut);
    }
    points.forEach((point, i) => {
      const kind = point.label ? "object" : "background";
      const node = el("button", { class: point.label ? "mark" : "mark out", type: "button", "aria-label": `Remove ${kind} point ${i + 1}`, title: "Remove this point" });
      this.#onPress(node, () => this.onRemove(i));
      node.addEventListener("contextmenu", () => this.onRemove(i));
      node.addEventListener("keydown", (event) => { if (event.key === "Delete" || event.key === "Backspace") this.onRemove(i); });
      this.#put(node, point);
      nodes.push(node);
    });
    this.#marks.replaceChildren(...nodes, ...(this.#band ? [this.#band] : []));
    if (this.#cross) this.#showCross(this.#cross);
    if (held) this.#root.focus({ preventScroll: true });
  }

  /**
   * A press that began on the button, or a key: the click that a tap sends after itself lands on the mark it has just made.
   * @param {HTMLButtonElement} node @param {() => void} act
   */
  #onPress(node, act) {
    let pressed = false;
    node.addEventListener("pointerdown", () => { pressed = true; });
    node.addEventListener("click", (event) => { if (pressed || event.detail === 0) act(); });
  }

  // ---- keys -----------------------------------------------------------------------------------------------------

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (!this.#shown || event.target !== this.#root || event.ctrlKey || event.metaKey) return;
    const { width, height } = this.#shown;
    const step = (Math.max(width, height) / 100) * (event.shiftKey ? 5 : 1);
    const way = /** @type {Record<string, [number, number]>} */ ({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] })[event.key];
    const at = this.#cross ?? { x: width / 2, y: height / 2 };
    if (way) {
      this.#showCross(this.#cross ? { x: clamp(at.x + way[0] * step, 0, width), y: clamp(at.y + way[1] * step, 0, height) } : at);
      this.onHover(this.#cross, 1);
    } else if (event.key === "Enter" || event.key === " ") {
      this.#showCross(at);
      this.onPoint(at, event.altKey || this.tool === "out" ? 0 : 1);
    } else if (event.key === "Backspace") {
      this.#showCross(at);
      this.onPoint(at, 0);
    } else if (event.key.toLowerCase() === "b") {
      this.#showCross(at);
      if (!this.#corner) {
        this.#corner = at;
        this.announce("The box begins here. Move the cross and press B again.");
      } else {
        const box = boxBetween(this.#corner, at);
        this.#corner = null;
        this.#end();
        if (box) this.onBox(box);
        else this.announce("The box has no area. Press B, move the cross, and press B again.");
      }
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    if (this.#corner && this.#cross) this.#rubber(this.#corner, this.#cross);
  }

  /** @param {Place | null} place */
  #showCross(place) {
    this.#marks.querySelector(".cross")?.remove();
    if (place === null) {
      this.#corner = null;
      this.#end();
      return;
    }
    this.#cross = place;
    const node = el("div", { class: "cross" });
    this.#put(node, place);
    this.#marks.append(node);
  }
}
