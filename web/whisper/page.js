/**
 * The Whisper page: joins input, engine, player and transcript. One job at a time; a newer one replaces the older, whose
 * answers are dropped from then on.
 */
import { AudioError, blobPeaks, peaks, readSound } from "../lib/audio.js";
import { ModelCard, savedChoice, showPart } from "../lib/card.js";
import { formats } from "../lib/formats.js";
import { isCancelled, Link } from "../lib/link.js";
import { keepOffline } from "../lib/offline.js";
import { announce, copied, copyDiagnostics, fileName, listenForKeys, showChip } from "../lib/page.js";
import { byId, el, formatClock, formatFactor, formatMs, saveFile, settings } from "../lib/ui.js";
import { loadWords, Pace } from "../lib/words.js";
import { Input } from "./input.js";
import { runTimes, whisper } from "./model.js";
import { applyLanguages, options } from "./options.js";
import { Player } from "./player.js";
import { errorNotice, Transcript } from "./result.js";

/** @typedef {import("./input.js").Source} Source */

/** The engine starts first of all: the rest of the page is set up while it comes in. */
const link = new Link(whisper.served[0], savedChoice());
const LOADED = "loaded.whisper-tiny.en";
const isLocal = /^(localhost|127\.|\[::1\])/.test(location.hostname);
if (isLocal || settings.get(LOADED)) void link.ready().catch(() => {});

class Job {
  stop = new AbortController();
  /** @type {"reading" | "waiting" | "running" | "done" | "stopped" | "failed"} */
  state = "reading";
  /** @type {import("../lib/audio.js").ReadSound | null} */
  read = null;
  /** What can be saved: the final result, or the segments up to where it stopped. @type {any} */
  result = null;
  pace = new Pace();
  /** How long it will take, in words; "" while that is not known. */
  left = "";
  began = 0;
  /** The last notification of progress. @type {any} */
  stage = null;
  /** Seconds transcribed, of seconds in all. @type {{done: number, total: number} | null} */
  progress = null;

  /** @param {Source} source */
  constructor(source) {
    this.source = source;
  }

  get ended() {
    return this.state === "done" || this.state === "stopped" || this.state === "failed";
  }
}

/** @type {Job | null} */
let current = null;
/** @type {unknown} */
let lastError = null;

const input = new Input();
const player = new Player();
const transcript = new Transcript();
const card = new ModelCard(link, whisper);

const inputOutcome = byId("input-outcome", HTMLDivElement);
const view = {
  job: byId("job", HTMLElement), name: byId("job-name", HTMLHeadingElement), facts: byId("job-facts", HTMLParagraphElement),
  stop: byId("stop", HTMLButtonElement), again: byId("again", HTMLButtonElement), meter: byId("meter", HTMLDivElement),
  bar: byId("bar", HTMLProgressElement), doing: byId("doing", HTMLSpanElement), left: byId("left", HTMLSpanElement),
  away: byId("take-away", HTMLDivElement), copy: byId("copy", HTMLButtonElement), save: byId("save-recording", HTMLButtonElement),
  quiet: byId("quiet", HTMLElement),
};

// ---- a job ------------------------------------------------------------------------------------------------------

/** @param {Source} source */
function begin(source) {
  current?.stop.abort();
  const job = current = new Job(source);
  lastError = null;
  inputOutcome.replaceChildren();
  view.quiet.hidden = true;
  view.job.hidden = false;
  view.name.textContent = source.name;
  if (source.blob) player.show(source.blob, source.recording ? source.recording.samples.length / source.recording.rate : null);
  else player.hide();
  void run(job);
}

/**
 * Sound -> engine -> lines. After every wait the job asks whether it is still the current one.
 * @param {Job} job
 */
async function run(job) {
  const live = () => job === current && !job.stop.signal.aborted;
  job.state = job.read ? "waiting" : "reading";
  job.progress = job.result = job.stage = null;
  job.left = "";
  transcript.clear();
  showJob();
  try {
    job.read ??= await readJob(job);
    if (!live()) return;
    job.state = "waiting";
    showJob();
    await orStopped(link.ready(), job.stop.signal);
    if (!live()) return;

    job.state = "running";
    job.began = performance.now();
    showJob();
    announce("Transcribing");
    const result = await link.run("transcribe", { audio: job.read.sound, options: options() }, {
      signal: job.stop.signal,
      onEvent: (event) => { if (live()) hear(job, event); },
    });
    if (!live()) return;
    job.state = "done";
    job.result = result;
    transcript.settle(result.segments);
    if (result.segments.length === 0) {
      transcript.note("No speech found", "The model heard no words in this sound. If there are some, they may be very quiet.");
    }
    card.showRun(runTimes(link.info, result.timings, result.duration));
    const words = result.segments.length === 0 ? "No speech found" : `Done in ${formatMs(performance.now() - job.began)}`;
    announce(words);
  } catch (error) {
    if (job !== current) return;
    if (isCancelled(error) || job.stop.signal.aborted) {
      stopped(job, error);
    } else {
      job.state = "failed";
      lastError = error;
      transcript.fail(error);
      job.result = partial(job);
    }
  }
  if (job === current) showJob();
}

/**
 * @param {Job} job
 * @returns {Promise<import("../lib/audio.js").ReadSound>}
 */
async function readJob(job) {
  const { recording } = job.source;
  const bars = 480;
  if (recording) {
    if (job === current) player.setPeaks(peaks([recording.samples], bars));
    return { sound: { kind: "pcm", channels: [recording.samples], rate: recording.rate },
      seconds: recording.samples.length / recording.rate, note: null };
  }
  try {
    let { blob } = job.source;
    if (!blob && job.source.load) {
      blob = job.source.blob = await job.source.load(job.stop.signal);
      if (job === current) player.show(blob, null);
    }
    if (!blob) throw new Error("a source has a blob, or a way to load it");
    const read = await readSound(blob, job.stop.signal);
    if (job === current) {
      if (read.sound.kind === "pcm") player.setPeaks(peaks(read.sound.channels, bars));
      else void blobPeaks(blob, bars).then((found) => { if (job === current) player.setPeaks(found); });
    }
    return read;
  } catch (error) {
    if (job === current && error instanceof AudioError) player.hide();
    throw error;
  }
}

/**
 * The promise, or the stop, whichever is first.
 * @template T
 * @param {Promise<T>} promise
 * @param {AbortSignal} signal
 * @returns {Promise<T>}
 */
function orStopped(promise, signal) {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    promise.then(resolve, reject);
  });
}

/** @param {Job} job @param {any} event a notification of the engine */
function hear(job, event) {
  if (event.event === "segment") {
    transcript.add(event.segment);
  } else if (event.event === "token") {
    transcript.say(event.text, event.start);
  } else if (event.event === "progress") {
    // the first pass over a long file makes its spectrogram; a worker that was replaced loads the model again
    if (event.stage === "transcribe") job.progress = { done: event.done, total: event.total };
    job.left = job.pace.left(event.stage, event.done, event.total);   // also of the first, which is the start to count from
    job.stage = event;
    showProgress(job);
  }
}

/** @param {Job} job @param {any} error */
function stopped(job, error) {
  job.state = "stopped";
  const told = error?.data?.result;
  if (told?.segments?.length > transcript.segments.length) transcript.settle(told.segments);
  transcript.cutOff();
  job.result = partial(job);
  const some = transcript.segments.length > 0;
  transcript.note("Stopped", some ? "The words up to here are kept." : "Nothing was transcribed.");
  announce("Stopped");
}

/** The segments so far in the form of a result, or null. @param {Job} job */
function partial(job) {
  const { segments } = transcript;
  if (segments.length === 0) return null;
  return { text: segments.map((segment) => segment.text).join("").trim(), segments, duration: job.read?.seconds ?? null, stopped: true };
}

/** Stop whatever runs: the job, and the loading it waits for. */
function stopAll() {
  if (current && !current.ended) current.stop.abort();
  link.stopLoading();
}

// ---- what is seen -------------------------------------------------------------------------------------------------

function showJob() {
  const job = current;
  if (!job) return;
  const active = !job.ended;
  view.stop.hidden = !active;
  view.again.hidden = active;
  view.meter.hidden = !active;
  view.job.setAttribute("aria-busy", String(active));
  view.away.hidden = active || (!job.result?.segments.length && !job.source.recording);
  for (const button of view.away.querySelectorAll("button")) button.hidden = button !== view.save && !job.result?.segments.length;
  view.save.hidden = !job.source.recording;

  const seconds = job.result?.duration ?? job.read?.seconds ?? null;
  const facts = seconds ? [`${formatClock(seconds)} of sound`] : [];
  if (job.state === "done" && job.result?.timings?.total_ms && seconds) {
    const { total_ms: total } = job.result.timings;
    facts.push(`written in ${formatMs(total)}`, `${formatFactor(seconds * 1000 / total)}× real time`);
  }
  if (job.read?.note) facts.push(job.read.note);
  view.facts.textContent = facts.join(" · ");
  if (active) showProgress(job);
  showChip(link, "Listening");
}

/** @param {Job} job */
function showProgress(job) {
  let words = job.source.blob ? "Reading the sound" : "Fetching the sound", left = "";
  /** @type {number | null} */
  let part = null;
  if (job.state === "waiting") {
    ({ words, part } = loadWords(link.progress));
    words = `Waiting for the model. ${words}`;
  } else if (job.state === "running") {
    const { progress, stage } = job;
    words = "Listening";
    left = job.left;
    if (stage && stage.stage !== "transcribe") {
      ({ words, part } = loadWords(stage));
    } else if (progress && progress.done > 0 && progress.total > 0) {
      const speed = progress.done / ((performance.now() - job.began) / 1000);
      words = `${formatClock(progress.done)} of ${formatClock(progress.total)} · ${formatFactor(speed)}× real time`;
      part = progress.done / progress.total;
    }
  }
  showPart(view.bar, part);
  view.doing.textContent = words;
  view.left.textContent = left;
}

link.onChange = () => {
  card.show();
  if (current?.state === "waiting") showProgress(current);
  showChip(link, "Listening");
  if (link.state === "ready" && link.info !== shown) {
    shown = link.info;
    if (link.model.model) settings.set(LOADED, "yes");
    applyLanguages(link.info);
    card.showRun(runTimes(link.info, null, 0));
    void keepOffline(byId("offline-note", HTMLParagraphElement));
  }
};
/** @type {any} */
let shown = null;

// ---- wiring ---------------------------------------------------------------------------------------------------------

input.onSource = begin;
input.onFolder = (files, name) => {
  if (files.some((file) => file.name === "config.json")) card.own(files, name);
  else input.onError(new AudioError("That is a folder. Drop one sound or video file, or the folder of a Whisper model.", "folder"));
};
input.onNotice = (/** @type {string} */ words) => {
  inputOutcome.replaceChildren(el("p", { class: "notice", text: words }));
  announce(words);
};
input.onRecord = () => {
  player.pause();
  inputOutcome.replaceChildren();
};
input.onError = (/** @type {unknown} */ error) => {
  lastError = error;                                    // beside the recorder: what was transcribed before stays
  inputOutcome.replaceChildren(errorNotice(error, (button) => void tellDiagnostics(button)));
};
player.onTime = (/** @type {number} */ seconds) => transcript.follow(seconds);
transcript.onSeek = (/** @type {number} */ seconds) => player.seek(seconds, true);
transcript.onDiagnostics = card.onDiagnostics = (/** @type {HTMLButtonElement} */ button) => void tellDiagnostics(button);
card.onReplace = stopAll;
view.stop.addEventListener("click", stopAll);
view.again.addEventListener("click", () => {
  if (!current) return;
  const { source, read } = current;
  const job = current = new Job(source);
  job.read = read;
  void run(job);
});
view.copy.addEventListener("click", copyWords);
view.save.addEventListener("click", () => {
  if (current?.source.blob) saveFile(`${fileName(current.source.name, "transcript")}.wav`, current.source.blob);
});
for (const button of view.away.querySelectorAll("button[data-format]")) {
  button.addEventListener("click", () => {
    const name = /** @type {HTMLElement} */ (button).dataset.format ?? "txt";
    if (!current?.result) return;
    const { write, type } = formats[name];
    saveFile(`${fileName(current.source.name, "transcript")}.${name}`, new Blob([write(current.result)], { type: `${type};charset=utf-8` }));
  });
}
const diagnosticsButton = byId("diagnostics", HTMLButtonElement);
diagnosticsButton.addEventListener("click", () => void tellDiagnostics(diagnosticsButton));

function copyWords() {
  if (current?.result) void copied(view.copy, formats.txt.write(current.result).trimEnd());
}

/** @param {HTMLButtonElement} button where it was asked for */
async function tellDiagnostics(button) {
  const job = current && {
    state: current.state, sound: current.read?.sound.kind ?? null, seconds: current.read?.seconds ?? null,
    bytes: current.source.blob?.size, type: current.source.blob?.type, microphone: !!current.source.recording,
    timings: current.result?.timings ?? null,
  };
  await copyDiagnostics(button, link, lastError ?? link.error, { job });
}

listenForKeys({
  r: () => void input.toggle(), o: () => input.openFile(), s: () => input.takeSample(),
  p: () => { if (player.shown) player.toggle(); }, c: copyWords,
}, () => {
  if (input.recording) void input.toggle();
  else stopAll();
});

void card.readManifest();
link.onChange();
