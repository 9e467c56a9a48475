/**
 * The Whisper page: joins input, engine, queue, player and transcript. Jobs run one after another; what is shown is that of
 * one of them, and changes of the others show in the list only.
 */
import { AudioError } from "../lib/audio.js";
import { ModelCard, savedChoice, showPart } from "../lib/card.js";
import { Link } from "../lib/link.js";
import { keepOffline } from "../lib/offline.js";
import { announce, copyDiagnostics, listenForKeys, showChip } from "../lib/page.js";
import { byId, el, formatClock, formatFactor, formatMs, settings } from "../lib/ui.js";
import { loadWords } from "../lib/words.js";
import { Input } from "./input.js";
import { Live } from "./live.js";
import { isModel, runTimes, whisper } from "./model.js";
import { applyLanguages, languageWords, options } from "./options.js";
import { Player } from "./player.js";
import { Queue, QueueList } from "./queue.js";
import { errorNotice, Transcript } from "./result.js";
import { copyWords, listenToSave, showSave } from "./save.js";
import { Unfinished } from "./unfinished.js";

/** @typedef {import("./job.js").Change} Change */
/** @typedef {import("./job.js").Job} Job */

/** The engine starts first of all: the rest of the page is set up while it comes in. */
const link = new Link(whisper.served[0], savedChoice());
const LOADED = "loaded.whisper-tiny.en";
const isLocal = /^(localhost|127\.|\[::1\])/.test(location.hostname);
if (isLocal || settings.get(LOADED)) void link.ready().catch(() => {});

const input = new Input();
const player = new Player();
const transcript = new Transcript();
const card = new ModelCard(link, whisper);
const queue = new Queue(run);
const list = new QueueList(queue);
const live = new Live(link, options);
const unfinished = new Unfinished();

const inputOutcome = byId("input-outcome", HTMLDivElement);
const view = {
  job: byId("job", HTMLElement), name: byId("job-name", HTMLHeadingElement), facts: byId("job-facts", HTMLParagraphElement),
  stop: byId("stop", HTMLButtonElement), again: byId("again", HTMLButtonElement), goOn: byId("go-on", HTMLButtonElement),
  meter: byId("meter", HTMLDivElement), bar: byId("bar", HTMLProgressElement), doing: byId("doing", HTMLSpanElement),
  left: byId("left", HTMLSpanElement), copy: byId("copy", HTMLButtonElement), quiet: byId("quiet", HTMLElement),
};
/** An error of what was put in, not of a job. @type {unknown} */
let inputError = null;
/** The blob that the player has. @type {Blob | null} */
let played = null;

// ---- a job ------------------------------------------------------------------------------------------------------

/** What the places of runs with the loaded model belong to. */
function modelKey() {
  const { model, name, files } = link.model;
  return model ?? `${name}|${(files ?? []).reduce((sum, file) => sum + file.size, 0)}`;
}

/**
 * Run a job, and keep its place while it runs.
 * @param {Job} job
 * @param {(what: Change) => void} tell
 */
async function run(job, tell) {
  await live.over;                                        // the engine hears one thing at a time
  const model = modelKey();
  const keeper = await unfinished.begin(job, model);
  if (job.place) tell("segments");
  await job.run(link, options, model, (what) => {
    tell(what);
    if (what === "progress") keeper?.keep(job.place);
  });
  if (job.state === "done") await keeper?.end();
  else keeper?.keep(job.place, true);
  if (inputOutcome.textContent?.startsWith(busyWords(job))) inputOutcome.replaceChildren();   // it is so no more
  if (link.state === "failed") queue.pause();
}

/** @param {Job} job */
const busyWords = (job) => `${job.name} is being transcribed.`;

/** Something changed; most of it is seen only if the job is. */
queue.onChange = (job, what) => {
  if (what === "state" || what === "progress") list.show();
  if (job !== queue.shown) return;
  switch (what) {
    case "segment": return transcript.add(job.segments[job.segments.length - 1]);
    case "text": if (job.text) transcript.say(job.text.text, job.text.start); return;
    case "segments": return transcript.fill(job.segments, job.text);
    case "peaks": return player.setPeaks(job.peaks);
    case "blob": return showSound(job);
    case "progress": return showProgress(job);
    case "state": return showState(job);
  }
};
queue.onShow = (job) => {
  list.show();
  view.job.hidden = !job;
  view.quiet.hidden = !!job;
  if (!job) return showSound(null);
  view.name.textContent = job.name;
  showSound(job);
  transcript.fill(job.segments, job.text);
  showState(job);
};

/** Stop whatever runs: the job that is shown, else the one that runs, and the loading that it waits for. */
function stop() {
  const job = queue.shown && !queue.shown.ended ? queue.shown : queue.running;
  if (job) queue.stop(job);
  if (!queue.jobs.some((other) => !other.ended && other !== job)) link.stopLoading();
}

function stopAll() {
  queue.stopAll();
  link.stopLoading();
}

// ---- what is seen -------------------------------------------------------------------------------------------------

/** @param {Job | null} job */
function showSound(job) {
  const blob = job?.source.blob?.size ? job.source.blob : null;   // an empty one cannot be played
  if (!blob) player.hide();
  else if (blob !== played) player.show(blob, job?.seconds ?? null);
  played = blob;
  player.setPeaks(job?.peaks ?? null);
}

/** @param {Job} job */
function showState(job) {
  view.stop.hidden = job.ended;
  view.again.hidden = !job.ended || !job.source.blob && !job.source.load;
  view.goOn.hidden = !job.ended || !job.place || job.place.at < 1 || view.again.hidden;
  if (job.place) view.goOn.textContent = `Go on from ${formatClock(job.place.at)}`;
  view.meter.hidden = job.ended;
  view.job.setAttribute("aria-busy", String(!job.ended));
  showSave(job);
  showFacts(job);
  if (!job.ended) {
    transcript.quiet();
    showProgress(job);
    if (job.state === "running") announce(`Transcribing ${job.name}`);
  } else {
    showEnd(job);
  }
  showChip(link, "Listening");
}

/** How it ended. @param {Job} job */
function showEnd(job) {
  if (job.state === "failed") {
    transcript.fail(job.error);
    if (job.error instanceof AudioError) player.hide();
    return;
  }
  if (job.state === "stopped") {
    transcript.cutOff();
    const words = job.segments.length > 0 ? "The words up to here are kept." : "Nothing was transcribed.";
    transcript.note("Stopped", words);
    return announce("Stopped");
  }
  if (!job.live) card.showRun(runTimes(link.info, job.result.timings, job.seconds ?? 0));
  if (job.segments.length > 0) {
    transcript.quiet();
    return announce(job.live ? "Live listening has ended" : `Done in ${formatMs(job.took)}`);
  }
  transcript.note("No speech found", "The model heard no words in this sound. If there are some, they may be very quiet.");
  announce("No speech found");
}

/** @param {Job} job */
function showFacts(job) {
  const { seconds } = job, total = job.state === "done" ? job.result.timings?.total_ms : 0;
  const facts = seconds ? [`${formatClock(seconds)} of sound`] : [];
  if (total && seconds) facts.push(`written in ${formatMs(total)}`, `${formatFactor((seconds - job.from) * 1000 / total)}× real time`);
  if (job.from > 0 && job.state !== "waiting") facts.push(`went on from ${formatClock(job.from)}`);
  if (job.state === "done" && languageWords(job.result)) facts.push(languageWords(job.result));
  if (job.note) facts.push(job.note);
  view.facts.textContent = facts.join(" · ");
}

/** @param {Job} job */
function showProgress(job) {
  let words = job.source.blob ? "Reading the sound" : "Fetching the sound", left = "";
  /** @type {number | null} */
  let part = null;
  if (job.state === "waiting" && live.on) {
    words = "Waits until live listening ends";
  } else if (job.state === "waiting") {
    words = queue.running ? `Waits for ${queue.running.name}` : "Waits";
  } else if (job.state === "loading") {
    ({ words, part } = loadWords(link.progress));
    words = `Waiting for the model. ${words}`;
  } else if (job.state === "running") {
    const { progress, stage } = job;
    words = "Listening";
    left = job.left;
    if (stage) {
      ({ words, part } = loadWords(stage));
    } else if (progress && progress.done > 0 && progress.total > 0) {
      words = [`${formatClock(progress.done)} of ${formatClock(progress.total)}`, job.speed && `${formatFactor(job.speed)}× real time`].filter(Boolean).join(" · ");
      part = progress.done / progress.total;
    }
  }
  showPart(view.bar, part);
  view.doing.textContent = words;
  view.left.textContent = left;
}

link.onChange = () => {
  card.show();
  live.showLoading();
  const job = queue.running;
  if (job?.state === "loading" && job === queue.shown) showProgress(job);
  showChip(link, "Listening");
  if (link.state === "ready" && link.info !== shown) {
    shown = link.info;
    if (link.model.model) settings.set(LOADED, "yes");
    applyLanguages(link.info);
    card.showRun(runTimes(link.info, null, 0));
    queue.resume();
    void keepOffline(byId("offline-note", HTMLParagraphElement));
  }
};
/** @type {any} */
let shown = null;

// ---- wiring ---------------------------------------------------------------------------------------------------------

input.onSource = (source) => {
  inputError = null;
  inputOutcome.replaceChildren();
  queue.add(source);
};
input.onModel = (files) => card.own(files, "", "dropped");
input.onFolder = (files, name) => {
  if (isModel(files.map((file) => file.name))) card.own(files, name, "dropped");
  else if (!input.takeSounds(files)) input.onError(new AudioError("There is no sound in that folder. Drop sound or video files, or the folder of a Whisper model.", "folder"));
};
input.onNotice = (words) => {
  inputOutcome.replaceChildren(el("p", { class: "notice", text: words }));
  announce(words);
};
input.onRecord = () => {
  player.pause();
  inputOutcome.replaceChildren();
};
unfinished.onGoOn = (source, place) => queue.add(source, place);
unfinished.onShow = (job) => queue.place(job);
unfinished.onNotice = input.onNotice;
unfinished.onAsk = () => input.openFile();
live.mayStart = () => {
  if (queue.running) return `${busyWords(queue.running)} Live listening can begin when that is done, or when you stop it.`;
  return input.recording ? "A recording is running. Stop it first." : null;
};
live.onState = (on) => {
  input.locked = on;
  view.quiet.hidden = on || queue.shown !== null;
  if (!on) return;
  input.onRecord();
};
live.onJob = (job) => queue.place(job);
live.onNotice = input.onNotice;
input.onError = (error) => {
  inputError = error;                                   // beside the recorder: what was transcribed before stays
  inputOutcome.replaceChildren(errorNotice(error, (button) => void tellDiagnostics(button)));
};
player.onTime = (seconds) => transcript.follow(seconds);
transcript.onSeek = (seconds) => player.seek(seconds, true);
transcript.onDiagnostics = card.onDiagnostics = (button) => void tellDiagnostics(button);
card.onReplace = (what) => {
  const job = queue.running;
  if (job?.state !== "running") return;                   // it has not begun: it waits for what comes
  queue.stop(job);
  if (what === "executor") queue.again(job, true);
};
view.stop.addEventListener("click", stop);
view.again.addEventListener("click", () => { if (queue.shown) queue.again(queue.shown, false); });
view.goOn.addEventListener("click", () => { if (queue.shown) queue.again(queue.shown, true); });
view.copy.addEventListener("click", () => copyWords(queue.shown, view.copy));
live.onError = input.onError;
byId("stop-all", HTMLButtonElement).addEventListener("click", stopAll);
byId("clear", HTMLButtonElement).addEventListener("click", () => { for (const job of [...queue.jobs]) if (job !== queue.shown) queue.remove(job); });
listenToSave(() => queue.shown, () => queue.jobs);
const diagnosticsButton = byId("diagnostics", HTMLButtonElement);
diagnosticsButton.addEventListener("click", () => void tellDiagnostics(diagnosticsButton));

/** @param {HTMLButtonElement} button where it was asked for */
async function tellDiagnostics(button) {
  const shown = queue.shown;
  const job = shown && {
    state: shown.state, seconds: shown.seconds, bytes: shown.source.blob?.size, type: shown.source.blob?.type,
    microphone: !!shown.source.recorded, from: shown.from, timings: shown.result?.timings ?? null,
    queue: queue.jobs.map((each) => each.state),
  };
  await copyDiagnostics(button, link, inputError ?? shown?.error ?? link.error, { job });
}

/** To the word before or behind, as far as they have times, and lines else. @param {1 | -1} way */
function step(way) {
  const to = player.shown ? transcript.step(player.at, way) : null;
  if (to !== null) player.seek(to);
}

listenForKeys({
  r: () => void input.toggle(), l: () => live.toggle(), o: () => input.openFile(), s: () => input.takeSample(),
  p: () => { if (player.shown) player.toggle(); }, c: () => copyWords(queue.shown, view.copy),
  ",": () => step(-1), ".": () => step(1),
}, () => {
  if (input.recording) void input.toggle();
  else if (live.on) live.stop();
  else stopAll();
});

void unfinished.show();
void card.readManifest();
link.onChange();
