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
import { Job } from "./job.js";
import { Live } from "./live.js";
import { isModel, runTimes, whisper } from "./model.js";
import { applyLanguages, languageWords, options } from "./options.js";
import { Player } from "./player.js";
import { Queue, QueueList } from "./queue.js";
import { errorNotice, Transcript } from "./result.js";
import { forget, identity, Keeper, keptPlaces, placeOf } from "./resume.js";
import { copyWords, listenToSave, showSave } from "./save.js";

/** @typedef {import("./job.js").Change} Change */
/** @typedef {import("./resume.js").Kept} Kept */

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

const inputOutcome = byId("input-outcome", HTMLDivElement);
const keptList = byId("kept", HTMLDivElement);
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
  const model = modelKey(), { source } = job;
  const key = source.blob ? await identity(source.blob, source.name).catch(() => null) : null;
  const keeper = key ? new Keeper(key, source) : null;
  const kept = key && !job.fresh ? await placeOf(key) : null;
  if (kept && !job.place && kept.place.model === model) {
    job.restore(kept.place);
    job.again(true);
    job.asked = wanted?.key === key;
    tell("segments");
  }
  if (wanted && wanted.name === source.name && wanted.key !== key) {
    input.onNotice(`This ${source.name} is another file than before (its size, date or content differ): it is transcribed from its beginning.`);
  }
  if (wanted?.name === source.name) wanted = null;
  if (kept) keptList.querySelector(`[data-key="${CSS.escape(kept.key)}"]`)?.remove();
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

// ---- what an earlier visit left ---------------------------------------------------------------------------------------

/** The file that a person was asked to choose again. @type {Kept | null} */
let wanted = null;

/** Offer to go on. @param {Kept} kept */
function offer(kept) {
  const { name, place } = kept;
  const button = (/** @type {string} */ text, /** @type {() => void} */ act) => el("button", { class: "button compact", type: "button", text, onclick: act });
  const card = el("section", { class: "notice", "data-key": kept.key, "aria-label": `Unfinished: ${name}` },
    el("h3", { text: `Go on with ${name} from ${formatClock(place.at)}?` }),
    el("p", { text: `${formatClock(place.at)} of ${formatClock(place.total)} were transcribed on ${new Date(kept.when).toLocaleDateString("en", { day: "numeric", month: "long" })}, and kept in this browser.` }),
    el("div", { class: "row" },
      button("Go on", () => void goOn(kept, card)),
      button("Show what there is", () => {
        const job = new Job({ name, blob: kept.recording, recorded: !!kept.recording });
        job.restore(place);
        queue.place(job);
      }),
      button("Forget it", () => {
        card.remove();
        void forget(kept.key);
      })));
  keptList.append(card);
}

/** @param {Kept} kept @param {HTMLElement} card */
async function goOn(kept, card) {
  const blob = kept.recording ?? await opened(kept);
  if (blob && await identity(blob, kept.name) === kept.key) {
    card.remove();
    queue.add({ name: kept.name, blob, recorded: !!kept.recording, handle: Promise.resolve(kept.handle) }, kept.place);
    return;
  }
  wanted = kept;
  input.onNotice(`Choose ${kept.name} once more: a page may not open files by itself.`);
  input.openFile();
}

/** The file behind a kept handle, if the person allows it. @param {Kept} kept */
async function opened({ handle }) {
  try {
    const { requestPermission } = /** @type {any} */ (handle);
    if (await requestPermission?.call(handle, { mode: "read" }) !== "granted") return null;
    return await /** @type {FileSystemFileHandle} */ (handle).getFile();
  } catch {
    return null;
  }
}

void keptPlaces().then((places) => places.forEach(offer));

// ---- wiring ---------------------------------------------------------------------------------------------------------

input.onSource = (source) => {
  inputError = null;
  inputOutcome.replaceChildren();
  queue.add(source);
};
input.onModel = (files) => card.own(files, "");
input.onFolder = (files, name) => {
  if (isModel(files.map((file) => file.name))) card.own(files, name);
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
card.onReplace = () => {
  if (queue.running) queue.stop(queue.running);
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

void card.readManifest();
link.onChange();
