/**
 * One sound on its way to text: what it is, how far it is, what was found. A job runs by itself and tells what changes; it
 * knows neither the page nor the other jobs.
 *
 * @typedef {import("./input.js").Source} Source
 * @typedef {import("../../workers/protocol.js").Segment} Segment
 * @typedef {import("../lib/link.js").Link} Link
 * @typedef {"waiting" | "reading" | "loading" | "running" | "done" | "stopped" | "failed"} State
 *   waiting for its turn; reading the sound; loading: waits for the model; running: transcribes
 * @typedef {"state" | "progress" | "segments" | "segment" | "text" | "blob" | "peaks"} Change
 *   segments: all of them changed; segment: one came; text: the words being said now
 * @typedef {{state: any, segments: Segment[], at: number, total: number, options: object, model: string, levels: number[]}} Place
 *   where a run can be gone on with: the engine's state, and what was found before it
 */
import { peaks, readSound, wavPeaks } from "../lib/audio.js";
import { isCancelled } from "../lib/link.js";
import { Pace } from "../lib/words.js";

const BARS = 480;
/** What ended the engine, and not the sound: another one may go on. */
const LOST = ["worker_died", "device_lost", "out_of_memory"];
/** Levels a second that the engine tells (models/whisper/transcribe.py). */
const LEVELS = 2;

export class Job {
  stop = new AbortController();
  /** @type {State} */
  state = "waiting";
  /** @type {Segment[]} */
  segments = [];
  /** The words being said now, and where; what a stop leaves of them. @type {{text: string, start: number} | null} */
  text = null;
  /** What can be saved: the final result, or what there is up to where it stopped. @type {any} */
  result = null;
  /** @type {any} */
  error = null;
  /** Seconds of the sound, once they are known. @type {number | null} */
  seconds = null;
  /** How the sound was read, in words that a person should know. @type {string | null} */
  note = null;
  /** What the player draws. @type {Float32Array | null} */
  peaks = null;
  /** The last notification of a stage other than transcribing. @type {any} */
  stage = null;
  /** Seconds transcribed, of seconds in all. @type {{done: number, total: number} | null} */
  progress = null;
  /** How long it will take, in words; "" while that is not known. */
  left = "";
  /** Times sound passed by: seconds of sound a second, once it is known. */
  speed = 0;
  /** Milliseconds that it ran. */
  took = 0;
  /** Where it can be gone on with. @type {Place | null} */
  place = null;
  /** A person asked to go on there, whatever the options are now. */
  asked = false;
  /** A person asked for a run from the beginning. */
  fresh = false;
  /** Where this run began, in seconds: it went on from an earlier one. */
  from = 0;
  /** It was heard while it was said; transcribed again, it is a recording like others. */
  live = false;

  #pace = new Pace();
  #began = 0;
  /** What an earlier run found. @type {Segment[]} */
  #before = [];
  /** @type {number[]} */
  #levels = [];
  /** The picture is of the samples, not of levels. */
  #fine = false;
  /** @type {(what: Change) => void} */
  #tell = () => {};

  /** @param {Source} source */
  constructor(source) {
    this.source = source;
  }

  get name() {
    return this.source.name;
  }

  get ended() {
    return this.state === "done" || this.state === "stopped" || this.state === "failed";
  }

  /** It runs, and is not just waiting for its turn. */
  get active() {
    return !this.ended && this.state !== "waiting";
  }

  /** Back into the line, to begin anew or at its place. @param {boolean} goOn */
  again(goOn) {
    this.stop = new AbortController();
    if (!goOn) this.place = null;
    this.asked = goOn;
    this.fresh = !goOn;
    this.live = false;
    this.segments = [...this.place?.segments ?? []];
    this.#levels = [...this.place?.levels ?? []];
    this.state = "waiting";
    this.text = this.result = this.error = this.stage = this.progress = null;
    this.left = "";
    this.speed = this.took = 0;
  }

  /**
   * Run to the end, however that is: it never throws.
   * @param {Link} link
   * @param {() => Record<string, unknown>} options asked for when the engine is ready
   * @param {string} model what the place belongs to
   * @param {(what: Change) => void} tell
   */
  async run(link, options, model, tell) {
    this.#tell = tell;
    const { signal } = this.stop;
    try {
      this.#set("reading");
      let read = await this.#read(false);
      this.#set("loading");
      await link.up(signal);
      const wished = options();
      const place = this.#usable(model, wished);
      if (!place) this.#forget();
      const asked = place?.options ?? wished;
      for (let from = place; ;) {
        try {
          await this.#transcribe(link, read.sound, asked, model, from);
          break;
        } catch (/** @type {any} */ error) {
          const further = LOST.includes(error?.code) && this.place && this.place.at > (from?.at ?? 0) ? this.place : null;
          if (signal.aborted || !further && (!error?.data?.whole || read.sound.kind !== "media")) throw error;
          this.#set("reading");
          if (further) this.#goBack(further);
          else read = await this.#read(true);
          from = further ?? from;
        }
      }
      this.#set("done");
    } catch (error) {
      const stopped = isCancelled(error) || signal.aborted;
      if (stopped) this.#takeTold(/** @type {any} */ (error)?.data?.result?.segments);
      else this.text = null;
      this.error = stopped ? null : error;
      this.result = this.#partial();
      this.#set(stopped ? "stopped" : "failed");
    }
  }

  /** @param {State} state */
  #set(state) {
    this.state = state;
    this.#tell("state");
  }

  /** The place, if this model may go on there. @param {string} model @param {Record<string, unknown>} wished options */
  #usable(model, wished) {
    if (this.place?.model !== model) return null;
    return this.asked || JSON.stringify(this.place.options) === JSON.stringify(wished) ? this.place : null;
  }

  /** A new engine goes on where the one before told last that it was. @param {Place} place */
  #goBack(place) {
    this.segments = [...place.segments];
    this.text = this.progress = null;
    this.#tell("segments");
  }

  /** There is nothing to go on from, or it does not fit. */
  #forget() {
    this.place = null;
    this.segments = [];
    this.#levels = [];
    this.#before = [];
    this.#tell("segments");
  }

  /** @param {boolean} whole */
  async #read(whole) {
    const { source, stop: { signal } } = this;
    if (!source.blob && source.load) {
      source.blob = await source.load(signal);
      this.#tell("blob");
    }
    if (!source.blob) throw new Error("a source has a blob, or a way to load it");
    const read = await readSound(source.blob, signal, whole);
    signal.throwIfAborted();
    this.seconds = read.seconds ?? this.seconds;
    this.note = read.note;
    const { sound } = read;
    if (sound.kind === "pcm") this.#draw(peaks(sound.channels, BARS));
    else if (sound.kind === "wav") void wavPeaks(sound.bytes, BARS).then((found) => this.#draw(found), () => {});
    return read;
  }

  /** @param {Float32Array | null} found */
  #draw(found) {
    this.#fine = found !== null;
    this.peaks = found;
    this.#tell("peaks");
  }

  /** @param {Link} link @param {any} sound @param {Record<string, any>} options @param {string} model @param {Place | null} place */
  async #transcribe(link, sound, options, model, place) {
    this.#began = performance.now();
    this.from = place?.at ?? 0;
    this.#set("running");
    const before = this.#before = place?.segments ?? [];
    this.#drawLevels(place?.total ?? 0);
    const result = await link.run("transcribe", { audio: sound, options, state: place?.state ?? null }, {
      signal: this.stop.signal,
      onEvent: (event) => { if (!this.stop.signal.aborted) this.#hear(event, options, model, before); },
    });
    this.stop.signal.throwIfAborted();
    this.took = performance.now() - this.#began;
    this.text = null;
    this.place = null;
    this.seconds = result.duration;
    this.note ??= result.note ?? null;
    const told = [...before, ...result.segments];
    if (!same(told, this.segments)) {
      this.segments = told;
      this.#tell("segments");
    }
    this.result = { ...result, task: options.task ?? "transcribe", segments: told, text: textOf(told), no_speech: told.length === 0 };
  }

  /** @param {any} event a notification of the engine @param {object} options @param {string} model @param {Segment[]} before */
  #hear(event, options, model, before) {
    switch (event.event) {
      case "segment":
        this.text = null;
        this.segments.push(event.segment);
        return this.#tell("segment");
      case "token":
        if (!event.text.trim()) return;
        this.text = { text: event.text, start: event.start };
        return this.#tell("text");
      case "restart":                                     // the engine goes on on something else, or began anew there
        this.segments = event.state ? this.segments.slice(0, event.state.segments) : [...before];
        this.text = this.progress = null;
        return this.#tell("segments");
      case "progress":
        this.#progress(event, options, model);
    }
  }

  /** @param {any} event @param {object} options @param {string} model */
  #progress({ stage, done, total, levels, seconds, state }, options, model) {
    this.stage = stage === "transcribe" ? null : { stage, done, total };
    this.left = this.#pace.left(stage, done, total);
    if (levels) this.#grow(levels, seconds);
    if (stage === "transcribe") {
      this.progress = { done, total };
      this.seconds = total;
      this.text = null;
      const spent = (performance.now() - this.#began) / 1000;
      if (done > this.from && spent > 0) this.speed = (done - this.from) / spent;
      if (state) {
        this.place = { state, segments: this.segments.slice(0, state.segments), at: done, total, options, model, levels: this.#levels };
      }
    }
    this.#tell("progress");
  }

  /** The levels of one more window: the picture of a sound that is never whole in memory. @param {number[]} levels @param {number} seconds in all */
  #grow(levels, seconds) {
    this.#levels.push(...levels);
    this.#drawLevels(seconds);
  }

  /** @param {number} seconds of the whole sound */
  #drawLevels(seconds) {
    if (this.#fine || this.#levels.length === 0) return;
    const all = new Float32Array(Math.ceil(seconds * LEVELS));
    all.set(this.#levels.slice(0, all.length));
    this.peaks = all;
    this.#tell("peaks");
  }

  /** Stopped: the engine may know more segments than it told. @param {Segment[] | undefined} told */
  #takeTold(told) {
    const all = [...this.#before, ...told ?? []];
    if (all.length <= this.segments.length) return;
    this.segments = all;
    this.#tell("segments");
  }

  /** The segments so far in the form of a result, or null. */
  #partial() {
    const { segments } = this;
    return segments.length ? { text: textOf(segments), segments, duration: this.seconds, stopped: true } : null;
  }

  /** As an earlier visit left it. @param {Place} place */
  restore(place) {
    this.place = place;
    this.segments = [...place.segments];
    this.#levels = [...place.levels];
    this.seconds = place.total;
    this.progress = { done: place.at, total: place.total };
    this.result = this.#partial();
    this.state = "stopped";
  }
}

/** @param {Segment[]} segments */
const textOf = (segments) => segments.map((segment) => segment.text).join("").trim();

/** @param {Segment[]} a @param {Segment[]} b */
function same(a, b) {
  return a.length === b.length && a.every((each, i) => each.text === b[i].text && each.start === b[i].start && each.end === b[i].end);
}
