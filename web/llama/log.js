/**
 * The conversation on the screen. An answer is drawn block by block: while it grows only its last block is drawn anew. Over
 * the text lies a span for each token. What people and models say is only ever set as text.
 *
 * @typedef {import("./conversation.js").Chat} Chat
 * @typedef {import("./conversation.js").Message} Message
 * @typedef {import("./conversation.js").Outcome} Outcome
 */
import { copied } from "../lib/page.js";
import { byId, el, formatMs } from "../lib/ui.js";
import { nodeOf, parse } from "./markdown.js";
import { formatRate, rate } from "./model.js";
import { Odds } from "./odds.js";

/** How an answer ended, in words. @param {Outcome} outcome */
export function reasonWords({ reason, stop, options, context }) {
  switch (reason) {
    case "end": return "ended by itself";
    case "stop": return `stopped at ${JSON.stringify(stop)}`;
    case "length": return `reached ${options.max_tokens.toLocaleString("en")} tokens, the longest answer you allow`;
    case "context": return context ? `context full: ${context.used.toLocaleString("en")} of ${context.capacity.toLocaleString("en")} tokens` : "context full";
    case "stopped": return "stopped by you";
    case "left": return "cut off when the page was closed";
    case "failed": return "broken off by an error";
  }
}

/** One answer or question. */
class Turn {
  /** Source of each block that is drawn. @type {string[]} */
  #drawn = [];
  /** The pieces that are drawn: another list where the answer was written anew. @type {import("./conversation.js").Piece[]} */
  #pieces = [];
  /** Where each piece begins in the text. @type {number[]} */
  #starts = [];
  inside = false;

  /** @param {Message} message @param {number} index @param {"chat" | "text"} mode @param {Log} log */
  constructor(message, index, mode, log) {
    this.message = message;
    this.mode = mode;
    this.log = log;
    const model = message.role === "assistant";
    this.said = el("div", { class: "said", dir: "auto" });
    this.tail = el("div", { class: "tail" });
    this.root = el("li", { class: `turn ${model ? "model" : "you"}`, "data-index": index },
      ...(mode === "chat" ? [el("h3", { class: "visually-hidden", text: model ? "The model" : "You" })] : []), this.said, this.tail);
  }

  /** Bring the text in step with the message. */
  draw() {
    const { text, pieces, role } = this.message;
    if (this.#pieces !== pieces) {
      this.#pieces = pieces;
      this.#starts = [];
      this.#clear();
    }
    for (let i = this.#starts.length; i < pieces.length; i++) this.#starts.push(i ? this.#starts[i - 1] + pieces[i - 1].text.length : 0);
    this.root.classList.toggle("growing", this.message === this.log.growing);
    this.said.classList.toggle("markdown", role === "assistant" && this.mode === "chat" && !this.inside);
    const leaf = this.#leaf.bind(this);
    if (role === "user") {
      this.said.textContent = text;
    } else if (this.mode === "text" || this.inside) {
      this.#plain();
    } else {
      const blocks = parse(text), sources = blocks.map(({ kind, start, end }) => `${kind} ${start} ${text.slice(start, end)}`);
      let same = 0;
      while (same < sources.length && sources[same] === this.#drawn[same]) same++;
      while (this.said.childNodes.length > same) /** @type {ChildNode} */ (this.said.lastChild).remove();
      this.said.append(...blocks.slice(same).map((block) => nodeOf(block, leaf, (button, code) => void copied(button, code))));
      this.#drawn = sources;
    }
    this.log.odds.check();
  }

  #tokens = 0;
  /** All tokens as they come, with nothing hidden. */
  #plain() {
    const { pieces } = this.message;
    for (; this.#tokens < pieces.length; this.#tokens++) {
      const { text, logprob } = pieces[this.#tokens];
      const span = el("span", { class: "tok", "data-piece": this.#tokens, text: text || (this.inside ? "·" : "") });
      if (this.inside && logprob !== null) {
        span.style.setProperty("--sure", String(Math.exp(logprob).toFixed(3)));
        span.setAttribute("tabindex", this.#tokens ? "-1" : "0");
      }
      this.said.append(span);
    }
  }

  /** Spans of the tokens for a part of the text. @param {number} start @param {number} end @returns {Node[]} */
  #leaf(start, end) {
    const { text, pieces } = this.message;
    /** @type {Node[]} */
    const nodes = [];
    let low = 0, high = this.#starts.length - 1;
    while (low < high) {                                 // the last piece that begins at or before `start`
      const middle = (low + high + 1) >> 1;
      if (this.#starts[middle] <= start) low = middle;
      else high = middle - 1;
    }
    let at = start;
    for (let i = low; i < pieces.length && at < end; i++) {
      const to = Math.min(end, this.#starts[i] + pieces[i].text.length);
      if (to <= at) continue;
      nodes.push(el("span", { class: "tok", "data-piece": i, text: text.slice(at, to) }));
      at = to;
    }
    if (at < end) nodes.push(document.createTextNode(text.slice(at, end)));
    return nodes;
  }

  #clear() {
    this.#drawn = [];
    this.#tokens = 0;
    this.said.replaceChildren();
  }

  /** Text as read, or token by token with their probabilities. @param {boolean} inside */
  look(inside) {
    this.inside = inside;
    this.#clear();
    this.root.classList.toggle("inside", inside);
    if (inside) {
      this.said.setAttribute("role", "group");
      this.said.setAttribute("aria-label", "Tokens: arrow keys tell the probabilities of each");
    } else {
      this.said.removeAttribute("role");
      this.said.removeAttribute("aria-label");
    }
    this.draw();
  }

  /**
   * How it ended, and what can be done with it.
   * @param {boolean} last
   */
  end(last) {
    const busy = this.log.growing !== null;
    const { role, text, pieces, outcome } = this.message, { log } = this;
    const act = (/** @type {string} */ words, /** @type {(button: HTMLButtonElement) => void} */ go, /** @type {string} */ label = "") => {
      const button = el("button", { type: "button", class: "plain", text: words, "aria-label": label || undefined });
      button.addEventListener("click", () => go(button));
      return button;
    };
    const acts = [];
    const index = Number(this.root.dataset.index);
    if (role === "user" && this.mode === "chat") {
      acts.push(act("Copy", (on) => void copied(on, text), "Copy what you wrote"));
      if (!busy) acts.push(act("Edit", () => log.onEdit(index), "Edit, and ask again from here"));
    } else if (role === "assistant" && this.message !== log.growing && (last || this.mode === "chat")) {
      acts.push(act("Copy", (on) => void copied(on, this.mode === "text" ? log.wholeText() : text), this.mode === "text" ? "Copy the whole text" : "Copy the answer"));
      if (pieces.some(({ logprob }) => logprob !== null)) {
        const inside = act("Probabilities", () => {
          this.look(!this.inside);
          inside.setAttribute("aria-pressed", String(this.inside));
          if (this.inside) /** @type {HTMLElement | null} */ (this.said.querySelector(".tok"))?.focus();
        });
        inside.setAttribute("aria-pressed", String(this.inside));
        acts.push(inside);
      }
      if (outcome && !outcome.continued && outcome.reason !== "failed") acts.push(act("Link", (on) => log.onLink(index, on), "Copy a link that makes this answer again"));
      if (last && !busy) {
        if (this.mode === "chat" && outcome && outcome.reason !== "end" && outcome.reason !== "context" && text) acts.push(act("Go on", () => log.onGoOn()));
        acts.push(act("Again", () => log.onAgain(), "Write this answer again"));
      }
    }
    const facts = outcome && (last || this.mode === "chat") ? [this.#facts(outcome)] : [];
    this.tail.replaceChildren(...facts, ...(acts.length ? [el("div", { class: "acts" }, ...acts)] : []));
  }

  /** @param {Outcome} outcome */
  #facts(outcome) {
    const { timings, reason } = outcome, words = [reasonWords(outcome)];
    const wrote = timings && rate(timings.tokens - 1, timings.decode_ms);
    if (timings) words.push(`${timings.tokens} ${timings.tokens === 1 ? "token" : "tokens"}${wrote ? ` at ${formatRate(wrote)}` : ""}`);
    if (timings?.first_token_ms) words.push(`first after ${formatMs(timings.first_token_ms)}`);
    const line = el("p", { class: `facts-line${reason === "end" ? "" : " cut"}`, text: words.join(" · ") });
    if (timings && !outcome.options.greedy) {
      const seed = el("button", { type: "button", class: "plain number", text: `seed ${outcome.seed}`, "aria-label": `Seed ${outcome.seed}: use it again` });
      seed.addEventListener("click", () => this.log.onSeed(outcome.seed));
      line.append(" · ", seed);
    } else if (timings) {
      line.append(" · greedy");
    }
    return line;
  }
}

export class Log {
  #list = byId("log", HTMLOListElement);
  /** @type {Turn[]} */
  #turns = [];
  /** @type {Chat | null} */
  #chat = null;
  /** The answer that is being written. @type {Message | null} */
  growing = null;

  /** @type {(index: number) => void} */
  onEdit = () => {};
  onAgain = () => {};
  onGoOn = () => {};
  /** @type {(index: number, button: HTMLButtonElement) => void} */
  onLink = () => {};
  /** @type {(seed: number) => void} */
  onSeed = () => {};

  constructor() {
    this.odds = new Odds(this.#list, (token) => {
      const turn = this.#turns[Number(/** @type {HTMLElement | null} */ (token.closest(".turn"))?.dataset.index)];
      return turn?.message.pieces[Number(token.dataset.piece)] ?? null;
    });
  }

  /** Draw all of it. @param {Chat} chat @param {Message | null} growing the answer that is being written */
  show(chat, growing) {
    this.odds.hide();
    this.growing = growing;
    this.#chat = chat;
    this.#list.classList.toggle("text", chat.mode === "text");
    this.#list.setAttribute("aria-label", chat.mode === "text" ? "Text" : "Conversation");
    const before = this.#turns;
    this.#turns = chat.messages.map((message, i) => {
      const same = before[i];
      return same?.message === message && same.mode === chat.mode ? same : new Turn(message, i, chat.mode, this);
    });
    const nodes = this.#turns.map(({ root }) => /** @type {Node} */ (root));
    if (chat.from > 0) nodes.splice(chat.from, 0, el("li", { class: "left-out small muted", text: "The model no longer sees what is above." }));
    this.#list.replaceChildren(...nodes);
    this.#turns.forEach((turn, i) => {
      turn.draw();
      turn.root.classList.toggle("forgotten", i < chat.from);
      turn.end(i === this.#turns.length - 1);
    });
  }

  /** The last answer has grown. */
  grow() {
    const near = this.nearEnd();
    this.#turns.at(-1)?.draw();
    if (near) this.toEnd();
  }

  wholeText() {
    return this.#chat?.messages.map(({ text }) => text).join("") ?? "";
  }

  /** What scrolls: the list itself in a wide window, the page in a narrow one. */
  get #scroller() {
    return getComputedStyle(this.#list).overflowY === "auto" ? this.#list : /** @type {HTMLElement} */ (document.scrollingElement);
  }

  /** Whether the end can be seen, so that it should stay in sight. */
  nearEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight < 80;
  }

  toEnd() {
    const scroller = this.#scroller;
    scroller.scrollTop = scroller.scrollHeight;
  }
}
