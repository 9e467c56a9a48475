/**
 * What else the model might have written: over a token of an answer, its probability and the likeliest others. Shown where
 * the pointer rests, at a tap, and under arrow keys.
 *
 * @typedef {import("./conversation.js").Piece} Piece
 */
import { announce } from "../lib/page.js";
import { byId, el } from "../lib/ui.js";

/** A probability for people: 93%, 1.2%, < 0.1%. @param {number} logprob */
export function formatOdds(logprob) {
  const percent = Math.exp(logprob) * 100;
  if (percent >= 99.95) return "100%";
  if (percent < 0.1) return "< 0.1%";
  return `${percent < 9.95 ? percent.toFixed(1) : Math.round(percent)}%`;
}

/** A token's text with what cannot be seen made visible. @param {string} text */
export function visible(text) {
  return text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "(shown with a later token)";
}

/** A token's own text, where it is known: what it added may lack what is held back, or have what was. @param {Piece} piece */
export function nameOf({ text, token, top }) {
  return top.find(([id]) => id === token)?.[1] ?? text;
}

export class Odds {
  #box = byId("odds", HTMLDivElement);
  /** @type {HTMLElement | null} */
  #token = null;

  /**
   * @param {HTMLElement} log
   * @param {(token: HTMLElement) => Piece | null} pieceOf what a span stands for
   */
  constructor(log, pieceOf) {
    this.pieceOf = pieceOf;
    const tokenAt = (/** @type {Event} */ event) => (event.target instanceof Element ? /** @type {HTMLElement | null} */ (event.target.closest(".tok")) : null);
    log.addEventListener("pointerover", (event) => {
      if (event.pointerType === "touch") return;
      const token = tokenAt(event);
      if (token) this.show(token);
      else this.hide();
    });
    log.addEventListener("pointerleave", () => { if (document.activeElement !== this.#token) this.hide(); });
    log.addEventListener("click", (event) => {
      const token = tokenAt(event);
      if (token && !getSelection()?.toString()) this.show(token);
    });
    log.addEventListener("focusin", (event) => { if (tokenAt(event)) this.show(/** @type {HTMLElement} */ (tokenAt(event)), true); });
    log.addEventListener("focusout", (event) => { if (tokenAt(event)) this.hide(); });
    log.addEventListener("keydown", (event) => this.#walk(event));
    document.addEventListener("pointerdown", (event) => { if (!tokenAt(event)) this.hide(); });
    addEventListener("scroll", () => {                   // focus scrolls to what it reaches; any other scroll leaves the token
      if (this.#token && document.activeElement === this.#token) this.#place(this.#token);
      else this.hide();
    }, { capture: true, passive: true });
    addEventListener("keydown", (event) => { if (event.key === "Escape") this.hide(); });
  }

  /** Arrow keys from token to token, in an answer that shows them. @param {KeyboardEvent} event */
  #walk(event) {
    const here = document.activeElement?.closest(".tok");
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (!here || step === undefined) return;
    event.preventDefault();
    const tokens = [.../** @type {HTMLElement} */ (here.closest(".said")).querySelectorAll(".tok")];
    const to = Math.max(0, Math.min(tokens.length - 1, tokens.indexOf(here) + step));
    here.setAttribute("tabindex", "-1");
    tokens[to].setAttribute("tabindex", "0");
    /** @type {HTMLElement} */ (tokens[to]).focus();
  }

  /** @param {HTMLElement} token @param {boolean} [aloud] */
  show(token, aloud = false) {
    if (token === this.#token && !this.#box.hidden && !aloud) return;
    const piece = this.pieceOf(token);
    if (!piece || piece.logprob === null) return this.hide();
    this.#token?.classList.remove("on");
    this.#token = token;
    token.classList.add("on");
    const rows = piece.top.map(([id, text, logprob]) => ({ text, logprob, chosen: id === piece.token }));
    if (!rows.some(({ chosen }) => chosen)) rows.push({ text: piece.text, logprob: piece.logprob, chosen: true });
    const whose = el("div", { class: "muted", text: "The model's own probabilities, before penalty, temperature and cuts" });
    this.#box.replaceChildren(...rows.map(({ text, logprob, chosen }) => {
      const bar = el("i", { "aria-hidden": true });
      bar.style.width = `${Math.max(1, Math.exp(logprob) * 100)}%`;
      return el("p", { class: chosen ? "chosen" : "" }, el("span", { class: "what", text: visible(text) }), el("span", { class: "bar" }, bar),
        el("span", { class: "number", text: formatOdds(logprob) }));
    }), whose);
    this.#box.hidden = false;
    this.#place(token);
    if (aloud) {
      const others = rows.filter(({ chosen }) => !chosen).map(({ text, logprob }) => `${visible(text)} ${formatOdds(logprob)}`);
      announce(`${visible(nameOf(piece))}, ${formatOdds(piece.logprob)}. Others: ${others.join(", ")}`);
    }
  }

  /** Above the token, or below where there is no room; inside the window. @param {HTMLElement} token */
  #place(token) {
    const [at] = token.getClientRects(), { offsetWidth: width, offsetHeight: height } = this.#box;
    if (!at) return;
    const room = document.documentElement.clientWidth;
    const top = at.top - height - 6 >= 0 ? at.top - height - 6 : at.bottom + 6;
    this.#box.style.left = `${Math.max(8, Math.min(room - width - 8, at.left + at.width / 2 - width / 2))}px`;
    this.#box.style.top = `${top}px`;
  }

  /** The answer was drawn anew, perhaps without the token. */
  check() {
    if (this.#token && !this.#token.isConnected) this.hide();
  }

  hide() {
    this.#token?.classList.remove("on");
    this.#token = null;
    this.#box.hidden = true;
  }
}
