/**
 * What is read: lines with their times as they come in, the line being said now, and how it ended. Model output is only
 * ever set as text.
 */
import { byId, el, formatClock } from "../lib/ui.js";
import { errorNotice as notice } from "../lib/words.js";

/** @typedef {import("../../workers/protocol.js").Segment} Segment */

export class Transcript {
  #list = byId("lines", HTMLOListElement);
  #outcome = byId("outcome", HTMLDivElement);
  /** @type {Segment[]} */
  segments = [];
  /** @type {HTMLLIElement | null} */
  #pending = null;
  #current = -1;
  /** The word that is lit. @type {HTMLElement | null} */
  #word = null;

  /**
   * Called when a line is chosen.
   * @type {(seconds: number) => void}
   */
  onSeek = () => {};
  /** @type {(button: HTMLButtonElement) => void} */
  onDiagnostics = () => {};

  clear() {
    this.#list.replaceChildren();
    this.#outcome.replaceChildren();
    this.segments = [];
    this.#pending = null;
    this.#current = -1;
    this.#word = null;
  }

  /** A finished segment. @param {Segment} segment */
  add(segment) {
    this.#dropPending();
    this.segments.push(segment);
    const line = this.#line(segment.start, segment.text, segment.end);
    if (segment.words?.length) line.children[1].replaceChildren(...this.#words(segment.words));
    this.#list.append(line);
  }

  /** Each word by itself, to be lit and clicked. @param {import("../../workers/protocol.js").Word[]} words */
  #words(words) {
    return words.map(({ word, start, end }, i) => {
      const text = i ? word : word.trimStart();
      const said = el("span", { class: "word", text, title: `${formatClock(start, true)} to ${formatClock(end, true)}` });
      said.addEventListener("click", (event) => {
        if (getSelection()?.toString()) return;
        event.stopPropagation();
        this.onSeek(start);
      });
      return said;
    });
  }

  /** The words of the window being decoded, so far. @param {string} text @param {number} start */
  say(text, start) {
    if (!text.trim()) return;
    if (!this.#pending) {
      this.#pending = this.#line(start, text, null);
      this.#pending.className = "pending";
      this.#pending.setAttribute("aria-hidden", "true");           // spoken once, when it is sure
      this.#list.append(this.#pending);
    }
    const [time, said] = this.#pending.children;
    time.textContent = formatClock(start);
    said.textContent = text.trim();
  }

  #dropPending() {
    this.#pending?.remove();
    this.#pending = null;
  }

  /**
   * @param {number} start @param {string} text @param {number | null} end null while it is not final
   */
  #line(start, text, end) {
    const go = () => this.onSeek(start);
    const time = end === null ? el("span", { class: "time", text: formatClock(start) })
      : el("button", { class: "time", type: "button", text: formatClock(start), "aria-label": `Play from ${formatClock(start)}`, onclick: go });
    const line = el("li", {}, time, el("span", { class: "said", text: text.trim() }));
    if (end !== null) {
      line.title = `${formatClock(start, true)} to ${formatClock(end, true)}`;
      line.addEventListener("click", (event) => {
        if (event.target === time || getSelection()?.toString()) return;   // a click, not the end of selecting text
        go();
      });
    }
    return line;
  }

  /** Light the line being heard. @param {number} seconds */
  follow(seconds) {
    let low = 0, high = this.segments.length - 1, found = -1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (this.segments[middle].start <= seconds) [found, low] = [middle, middle + 1];
      else high = middle - 1;
    }
    if (found >= 0 && seconds >= this.segments[found].end) found = -1;
    this.#light(found, seconds);
    if (found === this.#current) return;
    this.#list.children[this.#current]?.removeAttribute("aria-current");
    this.#list.children[found]?.setAttribute("aria-current", "true");
    this.#current = found;
  }

  /**
   * The start of the next word (or line, where words have no times), or of the one before; null where there is none.
   * @param {number} seconds where it is now @param {1 | -1} way
   */
  step(seconds, way) {
    const starts = this.segments.flatMap(({ start, words }) => (words?.length ? words.map((word) => word.start) : [start]));
    const near = 0.05;                                    // a player does not stop to the sample
    return (way > 0 ? starts.find((start) => start > seconds + near) : starts.findLast((start) => start < seconds - near)) ?? null;
  }

  /** Light the word being heard. @param {number} line @param {number} seconds */
  #light(line, seconds) {
    const words = this.segments[line]?.words;
    const place = words ? words.findLastIndex((word) => word.start <= seconds) : -1;
    const word = /** @type {HTMLElement | null} */ (place < 0 ? null : this.#list.children[line].children[1].children[place]);
    if (word === this.#word) return;
    this.#word?.classList.remove("now");
    word?.classList.add("now");
    this.#word = word;
  }

  /** All of it anew. @param {Segment[]} segments @param {{text: string, start: number} | null} text what is being said */
  fill(segments, text) {
    this.clear();
    for (const segment of segments) this.add(segment);
    if (text) this.say(text.text, text.start);
  }

  /** Stopped in the middle of a window: its words stay, marked as unfinished. */
  cutOff() {
    const pending = this.#pending;
    if (!pending) return;
    pending.removeAttribute("aria-hidden");
    pending.classList.add("cut");
    pending.children[1].append(" …");
    this.#pending = null;
  }

  /** Nothing to say of how it ended. */
  quiet() {
    this.#outcome.replaceChildren();
  }

  /** @param {string} title @param {string} words */
  note(title, words) {
    this.#outcome.replaceChildren(el("div", { class: "notice" }, el("h3", { text: title }), el("p", { text: words })));
  }

  /** @param {unknown} error */
  fail(error) {
    this.#dropPending();
    this.#outcome.replaceChildren(errorNotice(error, (button) => this.onDiagnostics(button)));
  }
}

/**
 * @param {unknown} error
 * @param {(button: HTMLButtonElement) => void} onDiagnostics
 */
export function errorNotice(error, onDiagnostics) {
  return notice(error, onDiagnostics, "This cannot be transcribed");
}
