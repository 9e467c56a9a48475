/**
 * Sounds that are given while one is transcribed wait here: nothing is lost. They run one after another; each keeps its own
 * result, one of them is shown. The list appears with the second.
 *
 * @typedef {import("./job.js").Change} Change
 * @typedef {import("./input.js").Source} Source
 */
import { announce } from "../lib/page.js";
import { byId, el, formatClock } from "../lib/ui.js";
import { errorWords } from "../lib/words.js";
import { Job } from "./job.js";

export class Queue {
  /** @type {Job[]} */
  jobs = [];
  /** The one that runs. @type {Job | null} */
  running = null;
  /** The one that is shown. @type {Job | null} */
  shown = null;
  /** What runs next is shown, too: until a person picks another one. */
  #follow = true;
  /** The model could not be loaded: those that wait go on waiting until it can. */
  #paused = false;
  /** What to do with the one that runs when it has stopped. @type {{job: Job, goOn: boolean} | null} */
  #then = null;

  /** Something about a job changed. @type {(job: Job, what: Change) => void} */
  onChange = () => {};
  /** Another job is shown, or none. @type {(job: Job | null) => void} */
  onShow = () => {};

  /** @param {(job: Job, tell: (what: Change) => void) => Promise<void>} run */
  constructor(run) {
    this.run = run;
  }

  /** @param {Source} source @param {import("./job.js").Place | null} [place] where an earlier visit left it */
  add(source, place = null) {
    const job = new Job(source);
    if (place) {
      job.restore(place);
      job.again(true);
    }
    this.jobs.push(job);
    this.#paused = false;
    if (!this.running) {
      this.show(job, true);
    } else {
      announce(`${job.name} waits for ${this.running.name}`);
      this.onChange(job, "state");                        // in the list at once, not when the other one gets on
    }
    this.#next();
    return job;
  }

  /** A job that is there to be read only, until it is gone on with. @param {Job} job */
  place(job) {
    this.jobs.push(job);
    this.show(job);
  }

  /** @param {Job} job @param {boolean} [follow] */
  show(job, follow = job === this.running) {
    this.#follow = follow;
    this.shown = job;
    this.onShow(job);
  }

  /** Anew, or on from its place. @param {Job} job @param {boolean} goOn */
  again(job, goOn) {
    if (!job.ended) {                                     // a stop that is on its way comes first
      if (job.stop.signal.aborted) this.#then = { job, goOn };
      return;
    }
    job.again(goOn);
    this.#paused = false;
    if (!this.running) this.#follow = true;
    this.onChange(job, "segments");
    this.onChange(job, "state");
    this.#next();
  }

  /** The model is there (again). */
  resume() {
    this.#paused = false;
    this.#next();
  }

  /** @param {Job} job */
  stop(job) {
    if (job.ended) return;
    const waited = job.state === "waiting";
    job.stop.abort();
    if (!waited) return;
    job.state = "stopped";
    this.onChange(job, "state");
  }

  stopAll() {
    for (const job of this.jobs) this.stop(job);
  }

  /** @param {Job} job */
  remove(job) {
    this.stop(job);
    const at = this.jobs.indexOf(job);
    this.jobs.splice(at, 1);
    if (job !== this.shown) return this.onChange(job, "state");
    this.shown = this.jobs[at] ?? this.jobs[at - 1] ?? null;
    this.onShow(this.shown);
  }

  get waiting() {
    return this.jobs.filter((job) => job.state === "waiting");
  }

  #next() {
    const job = this.running || this.#paused ? null : this.waiting[0];
    if (!job) return;
    this.running = job;
    if (this.#follow || this.shown === null) this.show(job, true);
    void this.run(job, (what) => this.onChange(job, what)).then(() => {
      this.running = null;
      const then = this.#then;
      this.#then = null;
      if (then) this.again(then.job, then.goOn);
      this.#next();
    });
  }

  /** Those that wait shall not fail one after another for what is no fault of theirs. */
  pause() {
    this.#paused = true;
  }
}

/** The list of a queue: what each is doing, a way to see it and to take it away. */
export class QueueList {
  #card = byId("queue", HTMLElement);
  #list = byId("files", HTMLOListElement);
  #sum = byId("queue-sum", HTMLParagraphElement);
  /** @type {Map<Job, {row: HTMLLIElement, name: HTMLButtonElement, state: HTMLSpanElement}>} */
  #rows = new Map();

  /** @param {Queue} queue */
  constructor(queue) {
    this.queue = queue;
  }

  /** Draw what changed. */
  show() {
    const { jobs, shown } = this.queue;
    this.#card.hidden = jobs.length < 2;
    for (const [job, { row }] of this.#rows) {
      if (jobs.includes(job)) continue;
      row.remove();
      this.#rows.delete(job);
    }
    for (const job of jobs) {
      const { row, state } = this.#rows.get(job) ?? this.#row(job);
      row.dataset.state = job.ended || job.state === "waiting" ? job.state : "running";
      if (job === shown) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
      const words = stateWords(job);
      if (state.textContent !== words) state.textContent = words;
    }
    const done = jobs.filter((job) => job.state === "done").length;
    const failed = jobs.filter((job) => job.state === "failed").length;
    this.#sum.textContent = `${done} of ${jobs.length} done${failed ? `, ${failed} failed` : ""}`;
    const open = jobs.some((job) => !job.ended), saved = jobs.filter((job) => job.result?.segments.length).length;
    byId("stop-all", HTMLButtonElement).hidden = jobs.filter((job) => !job.ended).length < 2;
    byId("clear", HTMLButtonElement).hidden = open;
    byId("save-all", HTMLDivElement).hidden = saved < 2;
  }

  /** @param {Job} job */
  #row(job) {
    const name = el("button", { class: "pick", type: "button", onclick: () => this.queue.show(job) }, el("span", { class: "name", text: job.name }));
    const state = el("span", { class: "state" });
    const remove = el("button", { class: "remove", type: "button", "aria-label": `Remove ${job.name}`, text: "×",
      onclick: () => {
        const near = /** @type {HTMLElement | null} */ (row.nextElementSibling ?? row.previousElementSibling);
        this.queue.remove(job);
        near?.querySelector("button")?.focus();          // the keyboard stays in the list
      } });
    name.append(state);
    const row = el("li", {}, name, remove);
    this.#list.append(row);
    const made = { row, name, state };
    this.#rows.set(job, made);
    return made;
  }
}

/** A job's state in a few words. @param {Job} job */
function stateWords(job) {
  const at = job.progress ? formatClock(job.progress.done) : "";
  switch (job.state) {
    case "waiting": return job.place ? `waits, goes on from ${formatClock(job.place.at)}` : "waits";
    case "reading": return "reading the sound";
    case "loading": return "waits for the model";
    case "running": {
      const part = job.progress && job.progress.total > 0 ? job.progress.done / job.progress.total : 0;
      return [part > 0 ? `${Math.floor(part * 100)}%` : "listening", job.left].filter(Boolean).join(" · ");
    }
    case "done": return job.segments.length ? `done · ${formatClock(job.seconds ?? 0)}` : "no speech found";
    case "stopped": return at && job.segments.length ? `stopped at ${at}` : "stopped";
    case "failed": return `failed: ${errorWords(job.error, "this cannot be transcribed").message}`;
  }
}
