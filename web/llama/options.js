/**
 * The settings panel: how the next word is chosen, and how much of a text the model can see. What a person sets is kept for
 * the next visit; what a link sets holds until the page is left.
 *
 * @typedef {object} Sampling the fields of GenerateOptions that a person chooses
 * @property {number} max_tokens @property {number} temperature @property {number} top_k @property {number} top_p
 * @property {number} min_p @property {number} repeat_penalty @property {boolean} greedy @property {string[]} stop
 */
import { byId, el, formatBytes, settings } from "../lib/ui.js";

/** @typedef {"max_tokens" | "temperature" | "top_k" | "top_p" | "min_p" | "repeat_penalty"} Key */

/** The longest text, in tokens, that room is made for. */
const MOST_TOKENS = 131_072;
/** Name, least, most, step, usual value, what it does. @type {Array<[Key, string, number, number, number, number, string]>} */
const NUMBERS = [
  ["max_tokens", "Longest answer", 1, MOST_TOKENS, 1, 512, "Tokens; a word is one or two."],
  ["temperature", "Temperature", 0, 2, 0.05, 0.5, "Low is steady, high is surprising."],
  ["top_k", "Top-k", 0, 200, 1, 40, "Only the k likeliest tokens; 0 is all."],
  ["top_p", "Top-p", 0, 1, 0.01, 0.95, "Only the likeliest that make up this share; 1 is all."],
  ["min_p", "Min-p", 0, 1, 0.01, 0.05, "Only those this likely beside the likeliest; 0 is all."],
  ["repeat_penalty", "Repeat penalty", 1, 2, 0.01, 1.1, "Makes recent words less likely; 1 is none."],
];
/** What greedy choice has no use for. */
const CHANCE = ["temperature", "top_k", "top_p", "min_p"];
const CAPACITIES = [512, 1024, 2048, 4096, 8192, 16_384, 32_768];
const MAX_SEED = 2 ** 32;

export class Options {
  /** @type {Map<Key, {number: HTMLInputElement, range: HTMLInputElement}>} */
  #inputs = new Map();
  #greedy = byId("greedy", HTMLInputElement);
  #seed = byId("seed", HTMLInputElement);
  #stop = byId("stop-strings", HTMLTextAreaElement);
  #system = byId("system", HTMLTextAreaElement);
  #capacity = byId("capacity", HTMLSelectElement);

  /** The person wants room for this many tokens. @type {(tokens: number | null) => void} */
  onCapacity = () => {};

  constructor() {
    byId("numbers", HTMLDivElement).append(...NUMBERS.map(([key, label, min, max, step, usual, hint]) => this.#field(key, label, min, max, step, usual, hint)));
    this.#greedy.checked = settings.get("llama.greedy") === "on";
    this.#stop.value = settings.get("llama.stop");
    this.#system.value = settings.get("llama.system");
    this.#greedy.addEventListener("change", () => { this.#keep("greedy", this.#greedy.checked ? "on" : ""); this.#show(); });
    this.#stop.addEventListener("input", () => this.#keep("stop", this.#stop.value));
    this.#system.addEventListener("input", () => this.#keep("system", this.#system.value));
    this.#seed.addEventListener("change", () => { this.seed = this.seed; });
    this.#capacity.addEventListener("change", () => {
      settings.set("llama.capacity", this.#capacity.value);
      this.onCapacity(this.capacity);
    });
    byId("reset", HTMLButtonElement).addEventListener("click", () => this.reset());
    this.#listCapacities(null);
    this.#capacity.value = settings.get("llama.capacity");
    this.#show();
  }

  /** @param {Key} key @param {string} label @param {number} min @param {number} max @param {number} step @param {number} usual @param {string} hint */
  #field(key, label, min, max, step, usual, hint) {
    const kept = Number(settings.get(`llama.${key}`, String(usual)));
    const value = kept >= min && kept <= max ? kept : usual;
    const number = el("input", { type: "number", id: key, min, max, step, value, inputmode: step < 1 ? "decimal" : "numeric", "aria-describedby": `${key}-hint` });
    const range = el("input", { type: "range", min, max: key === "max_tokens" ? 1024 : max, step, value, "aria-label": label, tabindex: -1 });
    const set = (/** @type {number} */ to) => {
      const whole = Math.round(Math.min(this.#most(key), Math.max(min, Number.isFinite(to) ? to : usual)) / step) * step;
      number.value = range.value = String(Number(whole.toFixed(2)));
      this.#keep(key, number.value);
    };
    number.addEventListener("change", () => set(number.value === "" ? NaN : Number(number.value)));
    number.addEventListener("input", () => { range.value = number.value; });
    range.addEventListener("input", () => set(Number(range.value)));
    this.#inputs.set(key, { number, range });
    return el("div", { class: "field dial" }, el("label", { for: key, text: label }), number, range, el("span", { class: "hint", id: `${key}-hint`, text: hint }));
  }

  /** The largest value: no answer is longer than what the loaded model can see. @param {Key} key */
  #most(key) {
    return Number(this.#inputs.get(key)?.number.max);
  }

  /** @param {string} key @param {string} value */
  #keep(key, value) {
    settings.set(`llama.${key}`, value);
  }

  #show() {
    for (const [key, { number, range }] of this.#inputs) number.disabled = range.disabled = this.#greedy.checked && CHANCE.includes(key);
    this.#seed.disabled = this.#greedy.checked;
  }

  /** Back to the usual values. */
  reset() {
    for (const [key, , , , , usual] of NUMBERS) this.#set(key, usual, true);
    this.#greedy.checked = false;
    this.#stop.value = this.#system.value = "";
    for (const key of ["greedy", "stop", "system"]) this.#keep(key, "");
    this.seed = null;
    this.#show();
    if (this.#capacity.value) {
      this.#capacity.value = "";
      this.#capacity.dispatchEvent(new Event("change"));
    }
  }

  /** @param {Key} key @param {number} value @param {boolean} keep */
  #set(key, value, keep) {
    const inputs = this.#inputs.get(key);
    if (!inputs) return;
    inputs.number.value = inputs.range.value = String(value);
    if (keep) this.#keep(key, String(value));
  }

  /** @returns {Sampling} */
  get sampling() {
    const number = (/** @type {Key} */ key) => Number(this.#inputs.get(key)?.number.value);
    return {
      max_tokens: number("max_tokens"), temperature: number("temperature"), top_k: number("top_k"), top_p: number("top_p"),
      min_p: number("min_p"), repeat_penalty: number("repeat_penalty"), greedy: this.#greedy.checked, stop: stopStrings(this.#stop.value),
    };
  }

  /** The seed that was asked for, or null for another one each time. @returns {number | null} */
  get seed() {
    const value = Number(this.#seed.value);
    return this.#seed.value.trim() && Number.isInteger(value) && value >= 0 ? value % MAX_SEED : null;
  }

  set seed(/** @type {number | null} */ value) {
    this.#seed.value = value === null ? "" : String(value);
  }

  /** The seed for the next answer. @returns {number} */
  nextSeed() {
    return this.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
  }

  get system() {
    return this.#system.value;
  }

  /** @returns {number | null} */
  get capacity() {
    return Number(this.#capacity.value) || null;
  }

  /** Offer what the loaded model can see, with the memory that takes. @param {any} info what load() told */
  offer(info) {
    this.#listCapacities(info);
    byId("max_tokens", HTMLInputElement).max = String(info.capacity);
  }

  /** @param {any} info */
  #listCapacities(info) {
    const before = this.#capacity.value, most = info?.context ?? Infinity;
    const sizes = CAPACITIES.filter((size) => size < most);
    if (info && most <= MOST_TOKENS) sizes.push(most);
    const memory = (/** @type {number} */ size) => (info?.kv_bytes_per_token ? `, ${formatBytes(size * info.kv_bytes_per_token)}` : "");
    const usual = Math.min(most, 2048);
    this.#capacity.replaceChildren(el("option", { value: "", text: `Automatic: ${usual.toLocaleString("en")} tokens${memory(usual)}` }),
      ...sizes.map((size) => el("option", { value: size, text: `${size.toLocaleString("en")} tokens${memory(size)}` })));
    this.#capacity.value = before;
    if (this.#capacity.selectedIndex < 0) this.#capacity.value = "";
  }

  // ---- links ------------------------------------------------------------------------------------------------------

  /** What a link says, as far as it is sound. @param {URLSearchParams} link */
  take(link) {
    for (const [key, , min, max] of NUMBERS) {
      const value = Number(link.get(key));
      if (link.has(key) && link.get(key) !== "" && value >= min && value <= max) this.#set(key, Math.min(value, this.#most(key)), false);
    }
    if (link.has("greedy")) this.#greedy.checked = link.get("greedy") === "1";
    if (link.has("stop")) this.#stop.value = link.getAll("stop").map((each) => JSON.stringify(each).slice(1, -1)).join("\n");
    if (link.has("system")) this.#system.value = link.get("system") ?? "";
    const seed = Number(link.get("seed"));
    if (link.get("seed") && Number.isInteger(seed) && seed >= 0 && seed < MAX_SEED) this.seed = seed;
    this.#show();
  }
}

/**
 * One string a line; \n, \t and \" are written as they are in code.
 * @param {string} text
 */
export function stopStrings(text) {
  return text.split("\n").filter(Boolean).map((line) => {
    try {
      return String(JSON.parse(`"${line.replace(/(?<!\\)((?:\\\\)*)"/g, '$1\\"')}"`));
    } catch {
      return line;                                      // a backslash that is only a backslash
    }
  });
}

/**
 * Everything an answer was made with.
 * @param {Sampling} sampling @param {number} seed @param {string} system
 * @returns {URLSearchParams}
 */
export function linkOf(sampling, seed, system) {
  const link = new URLSearchParams();
  for (const [key] of NUMBERS) link.set(key, String(sampling[key]));
  link.set("greedy", sampling.greedy ? "1" : "0");
  for (const each of sampling.stop) link.append("stop", each);
  if (!sampling.stop.length) link.set("stop", "");
  link.set("system", system);
  link.set("seed", String(seed));
  return link;
}
