/**
 * Live listening as it is seen: the button, the level, the words while they are said. Grey words may still change; those who
 * listen to the page are told only what will stay. What is left in the end is a job like any other.
 */
import { announce } from "../lib/page.js";
import { byId, el, formatClock } from "../lib/ui.js";
import { loadWords } from "../lib/words.js";
import { Job } from "./job.js";
import { Listener } from "./listener.js";
import { Meter } from "./meter.js";

/** @typedef {import("../lib/link.js").Link} Link */

/** Later than this is told as slow, in seconds. */
const SLOW = 4;
/** A microphone that gives nothing for so long may be muted. */
const SILENT = 3;
/** Announcements that are kept for readers. */
const SAID = 30;
const TITLE = document.title;

export class Live {
  #button = byId("live-button", HTMLButtonElement);
  #card = byId("live-card", HTMLElement);
  #stop = byId("live-stop", HTMLButtonElement);
  #facts = byId("live-facts", HTMLParagraphElement);
  #notes = byId("live-notes", HTMLDivElement);
  #hint = byId("live-hint", HTMLParagraphElement);
  #lines = byId("live-lines", HTMLOListElement);
  #said = byId("live-said", HTMLDivElement);
  #meter = new Meter(byId("live-level", HTMLCanvasElement));
  /** @type {Listener | null} */
  #listener = null;
  /** The line of what is being said. @type {HTMLLIElement | null} */
  #line = null;
  /** Of that line, what readers were told. */
  #told = "";
  #takes = 0;
  #drawn = 0;
  /** @type {WakeLockSentinel | null} */
  #awake = null;
  /** Resolves when nothing is listened to. @type {Promise<void>} */
  over = Promise.resolve();

  /** Whether live listening may begin: not while something else has the engine or the microphone. @type {() => string | null} */
  mayStart = () => null;
  /** It begins, or ends. @type {(on: boolean) => void} */
  onState = () => {};
  /** What is left of it. @type {(job: Job) => void} */
  onJob = () => {};
  /** @type {(words: string) => void} */
  onNotice = () => {};
  /** @type {(error: unknown) => void} */
  onError = () => {};

  /** @param {Link} link @param {() => Record<string, unknown>} options */
  constructor(link, options) {
    this.link = link;
    this.options = options;
    this.#button.addEventListener("click", () => this.toggle());
    this.#stop.addEventListener("click", () => this.stop());
    addEventListener("beforeunload", (event) => { if (this.on) event.preventDefault(); });
    document.addEventListener("visibilitychange", () => { if (this.on && !document.hidden) void this.#stayAwake(); });
  }

  get on() {
    return this.#listener !== null;
  }

  toggle() {
    if (this.on) return this.stop();
    const why = this.mayStart();
    if (why) return this.onNotice(why);
    this.over = this.#begin();
  }

  /** The microphone goes off; a second time, the last words are not waited for. */
  stop() {
    void this.#listener?.stop();
  }

  /** The model's loading went on. */
  showLoading() {
    if (this.#listener?.state === "loading") this.#showFacts();
  }

  async #begin() {
    const listener = this.#listener = new Listener();
    this.#lines.replaceChildren();
    this.#said.replaceChildren();
    this.#meter.clear();
    this.#line = null;
    this.#told = "";
    this.#card.hidden = false;
    listener.recorder.onLevel = (peak) => this.#showLevel(peak);
    listener.onChange = (what) => {
      if (what === "state") this.#showState();
      else if (what === "hypothesis") this.#showText();
      else if (what === "segment") this.#showSegment();
      else this.#showFacts();
    };
    this.onState(true);
    this.#showState();
    this.#card.scrollIntoView({ block: "nearest" });
    /** @type {unknown} */
    let failed = null;
    try {
      await listener.run(this.link, this.options);
    } catch (error) {
      failed = error;
    }
    this.#listener = null;
    this.#card.hidden = true;
    this.#showState();
    void this.#awake?.release();
    this.#awake = null;
    this.onState(false);
    if (failed) return this.onError(failed);
    if (listener.lost) this.onNotice("The microphone went away. What was heard until then is kept.");
    if (listener.seconds > 0) this.onJob(jobOf(listener, `Live ${++this.#takes}`));
  }

  async #stayAwake() {
    try {
      this.#awake = await navigator.wakeLock?.request("screen") ?? null;
    } catch {
      // refused, to save power: the screen may go dark
    }
  }

  // ---- what is seen -------------------------------------------------------------------------------------------------

  #showState() {
    const state = this.#listener?.state ?? "ended";
    const on = state !== "ended";
    document.title = state === "listening" ? `● Live · ${TITLE}` : TITLE;
    this.#button.setAttribute("aria-pressed", String(on));
    this.#button.disabled = state === "ending";
    const label = this.#button.querySelector("span");
    if (label) label.textContent = on ? "Stop live" : "Live";
    this.#stop.lastChild?.replaceWith(state === "ending" ? "Skip the last words" : "Stop");
    if (state === "loading") void this.#stayAwake();
    if (state === "listening") announce("Listening");
    if (state === "ending") announce("The microphone is off");
    this.#card.dataset.state = state;
    this.#showFacts();
  }

  /** @param {number} peak */
  #showLevel(peak) {
    this.#meter.add(peak);
    const now = performance.now();
    if (now - this.#drawn < 250) return;
    this.#drawn = now;
    this.#showFacts();
  }

  #showFacts() {
    const listener = this.#listener;
    if (!listener) return;
    const { state, behind, seconds } = listener;
    const clock = formatClock(seconds);
    let words = clock;
    if (state === "starting") words = "Asking for the microphone. The browser may ask you to allow it.";
    else if (state === "loading") words = `${clock} · Waiting for the model. ${loadWords(this.link.progress).words}`;
    else if (state === "ending") words = `${clock} · Hearing the last words`;
    else if (behind !== null) words = `${clock} · words come about ${behind.toFixed(1)} s after they are said`;
    if (this.#facts.textContent !== words) this.#facts.textContent = words;
    this.#hint.hidden = listener.segments.length > 0 || listener.text !== null;
    this.#hint.textContent = state !== "starting" && seconds > SILENT && !this.#meter.heard
      ? `Nothing is coming in from ${listener.recorder.device || "the microphone"}. Is it muted?`
      : "Speak: your words appear here.";
    const notes = notesOf(listener, false);
    if (this.#notes.textContent !== notes.join("")) this.#notes.replaceChildren(...notes.map((text) => el("p", { class: "notice", text })));
  }

  #showText() {
    const text = this.#listener?.text;
    this.#showFacts();
    if (!text) {
      this.#line?.remove();
      this.#line = null;
      this.#told = "";
      return;
    }
    const end = this.#atEnd();
    this.#line ??= this.#newLine(text.start);
    const [time, said] = this.#line.children;
    time.textContent = formatClock(text.start);
    const [sure, maybe] = said.children;
    sure.textContent = text.stable.trimStart();
    maybe.textContent = text.stable.trim() ? text.unstable : text.unstable.trimStart();
    this.#tell(text.stable);
    if (end) this.#lines.scrollTop = this.#lines.scrollHeight;
  }

  #showSegment() {
    const listener = this.#listener, segment = listener?.segments[listener.segments.length - 1];
    if (!segment) return;
    const end = this.#atEnd();
    const line = this.#line ?? this.#newLine(segment.start);
    line.className = "";
    line.title = `${formatClock(segment.start, true)} to ${formatClock(segment.end, true)}`;
    line.children[0].textContent = formatClock(segment.start);
    line.children[1].textContent = segment.text.trim();
    this.#tell(segment.text);
    this.#line = null;
    this.#told = "";
    this.#showFacts();
    if (end) this.#lines.scrollTop = this.#lines.scrollHeight;
  }

  /** @param {number} start */
  #newLine(start) {
    const line = el("li", { class: "pending" }, el("span", { class: "time", text: formatClock(start) }),
      el("span", { class: "said" }, el("span", { class: "sure" }), el("span", { class: "maybe" })));
    this.#lines.append(line);
    return line;
  }

  /** The newest line is in sight: a reader who looked back is left alone. */
  #atEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.#lines;
    return scrollHeight - scrollTop - clientHeight < 60;
  }

  /** Say what has become sure to those who do not see it. @param {string} stable of the line so far */
  #tell(stable) {
    const more = stable.startsWith(this.#told) ? stable.slice(this.#told.length) : stable;
    this.#told = stable;
    if (!more.trim()) return;
    this.#said.append(el("span", { text: more }));
    while (this.#said.childElementCount > SAID) this.#said.firstElementChild?.remove();
  }
}

/** What a person should know of the sound. @param {Listener} listener @param {boolean} ended */
function notesOf(listener, ended) {
  const { missed, gap, held, behind, tape } = listener, notes = [];
  const seconds = (/** @type {number} */ n) => `${Math.max(1, Math.round(n))} s`;
  if (held && !ended) notes.push("The browser or the system holds the microphone back. It goes on when that ends.");
  if (gap > 0) notes.push(`For ${seconds(gap)} no sound came from the microphone, as happens to pages in the background and on busy devices. What was said then is missing.`);
  if (missed >= 1) notes.push(`${seconds(missed)} of sound are missing in the text: the model was not there or too slow. The recording has them.`);
  if (behind !== null && behind > SLOW && !ended) notes.push(`This device hears more slowly than you speak: words come ${seconds(behind)} late.`);
  if (tape?.full) notes.push(`The recording is kept up to ${formatClock(tape.seconds)}; the text goes on.`);
  return notes;
}

/** @param {Listener} listener @param {string} name */
function jobOf(listener, name) {
  const { segments, tape, error, about } = listener;
  const job = new Job({ name, blob: tape?.wav() ?? null, recorded: true });
  job.segments = segments;
  job.seconds = listener.seconds;
  job.peaks = Float32Array.from(tape?.levels ?? []);
  job.error = error;
  job.state = error ? "failed" : "done";
  job.note = notesOf(listener, true).join(" ") || null;
  job.live = true;
  job.result = { text: segments.map((segment) => segment.text).join("").trim(), segments, language: about?.language ?? null,
    duration: listener.seconds, no_speech: segments.length === 0, live: true, timings: { busy_ms: about?.busy_ms ?? 0, passes: about?.passes ?? 0 } };
  return job;
}
