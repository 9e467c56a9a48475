/**
 * The Segment page: joins input, stage, objects, engine and what can be taken away. One picture at a time; a newer one
 * replaces the older, whose answers are dropped from then on.
 */
import { ModelCard, savedChoice, showPart } from "../lib/card.js";
import { isCancelled, Link } from "../lib/link.js";
import { keepOffline } from "../lib/offline.js";
import { announce, copyDiagnostics, isTyping, listenForKeys, showChip } from "../lib/page.js";
import { PictureError, readPicture } from "../lib/picture.js";
import { byId, el, formatMs, settings } from "../lib/ui.js";
import { errorNotice, loadWords, Pace } from "../lib/words.js";
import { Input } from "./input.js";
import { isModelFile, runTimes, sam } from "./model.js";
import { isEmpty, Objects } from "./objects.js";
import { Painter } from "./painter.js";
import { percent, share, showCandidates, showThings } from "./panel.js";
import { Session } from "./session.js";
import { Stage } from "./stage.js";
import { Take } from "./take.js";

/** The engine starts first of all: the rest of the page is set up while it comes in. */
const link = new Link(sam.served[0], savedChoice());
const LOADED = "loaded.mobilesam";
const isLocal = /^(localhost|127\.|\[::1\])/.test(location.hostname);
if (isLocal || settings.get(LOADED)) void link.ready().catch(() => {});

const session = new Session(link);
const objects = new Objects();
const stage = new Stage();
const painter = new Painter(session, objects, stage);
const take = new Take(session, objects);
const input = new Input();
const card = new ModelCard(link, sam);

const button = (/** @type {string} */ id) => byId(id, HTMLButtonElement);
const view = {
  start: /** @type {HTMLElement} */ (document.querySelector(".start")), inputOutcome: byId("input-outcome", HTMLDivElement),
  job: byId("job", HTMLElement), name: byId("job-name", HTMLHeadingElement), facts: byId("job-facts", HTMLParagraphElement),
  stop: button("stop"), meter: byId("meter", HTMLDivElement), bar: byId("bar", HTMLProgressElement), doing: byId("doing", HTMLSpanElement),
  left: byId("left", HTMLSpanElement), outcome: byId("outcome", HTMLDivElement), hint: byId("hint", HTMLParagraphElement),
  things: byId("things-card", HTMLElement), look: byId("look", HTMLElement),
  undo: button("undo"), redo: button("redo"), clear: button("clear"), everything: button("everything"), refine: button("refine"),
  threshold: byId("threshold", HTMLInputElement), thresholdValue: byId("threshold-value", HTMLOutputElement),
  preview: byId("preview", HTMLInputElement),
};

/** @type {AbortController} */
let reading = new AbortController();
/** While everything is being found. @type {{stop: AbortController, found: Array<{logits: Float32Array, iou: number}>, done: number, total: number, pace: Pace} | null} */
let search = null;
/** The prompt of what a click where the pointer is would take. @type {import("./objects.js").Prompt | null} */
let hovered = null;
/** @type {unknown} */
let lastError = null;

// ---- a picture ----------------------------------------------------------------------------------------------------

/** @param {Blob} blob @param {string} name */
async function open(blob, name) {
  reading.abort();
  reading = new AbortController();
  const { signal } = reading;
  view.inputOutcome.replaceChildren();
  try {
    const picture = await readPicture(blob, name, signal);
    if (signal.aborted) return;
    stopSearch();
    lastError = null;
    painter.hover = null;
    view.outcome.replaceChildren();
    view.job.hidden = view.things.hidden = view.look.hidden = false;
    view.start.classList.add("small-start");
    const opened = session.open(picture);
    objects.reset();
    stage.show(picture);
    view.name.textContent = name;
    showAll();
    await opened;
    announce("The picture is ready. Click what you want.");
  } catch (error) {
    if (signal.aborted || isCancelled(error) || error === lastError) return;
    lastError = error;
    view.inputOutcome.replaceChildren(errorNotice(error, (from) => void tellDiagnostics(from), "This picture cannot be used"));
  }
}

/** @param {unknown} error */
function fail(error) {
  lastError = error;
  view.outcome.replaceChildren(errorNotice(error, (from) => void tellDiagnostics(from), "This cannot be segmented"));
}

/** Name of the weights by content, from the manifest; null for a person's own files. */
async function modelKey() {
  if (!link.model.model) return null;
  try {
    const { name, files } = await (await fetch(new URL("manifest.json", link.model.model))).json();
    return `${name} ${files.find((/** @type {any} */ file) => /safetensors$/.test(file.path)).sha256.slice(0, 16)}`;
  } catch {
    return null;
  }
}

// ---- prompts --------------------------------------------------------------------------------------------------------

/** Ask for what the active object wants and nobody answered yet. */
function askActive() {
  const thing = objects.active;
  if (!isEmpty(thing) && !thing.region && !objects.answerOf(thing)) session.ask(thing.id, thing.prompt);
}

/** @param {Partial<import("./objects.js").Prompt>} change */
function prompt(change) {
  if (!session.picture || search) return;
  painter.hover = null;
  view.outcome.replaceChildren();
  objects.prompt(change);
}

stage.onPoint = ({ x, y }, label) => {
  const { points } = objects.active.prompt, last = hovered?.points.at(-1);
  const known = last && last.x === x && last.y === y && last.label === label && hovered?.points.length === points.length + 1
    && points.every((point, i) => point === hovered?.points[i]) && hovered.box === objects.active.prompt.box && hovered.seed === objects.active.prompt.seed;
  if (known && hovered && session.picture && !search) {    // it was asked for while the pointer rested there
    painter.hover = null;
    view.outcome.replaceChildren();
    objects.edit({ prompt: hovered, choice: null, region: null });
  } else {
    prompt({ points: [...points, { x, y, label }] });
  }
};
stage.onPick = (place) => {
  const thing = session.picture && objects.at(place, session.picture);
  if (thing) objects.pick(thing.id);
};
stage.onBox = (box) => prompt({ box });
stage.onRemove = (index) => prompt(index < 0 ? { box: null } : { points: objects.active.prompt.points.filter((_, i) => i !== index) });
stage.onHover = (place, label) => {
  const thing = objects.active;
  const useful = place && view.preview.checked && !search && !session.asking && (isEmpty(thing) || !thing.region);
  if (useful) {
    session.follow({ ...thing.prompt, points: [...thing.prompt.points, { ...place, label }] });
  } else {
    session.follow(null);
    if (painter.hover && !place) {
      painter.hover = null;
      painter.soon();
    }
  }
};
stage.onResize = () => painter.soon();
stage.announce = announce;

session.onAnswer = (answer) => {
  painter.hover = null;
  objects.answer(answer.prompt, answer);
  const mask = objects.mask(objects.active);
  if (mask && session.picture) {
    const part = share(mask.logits, objects.active.threshold, session.picture);
    announce(part === 0 ? "Nothing was found there" : `Found: ${Math.max(1, Math.round(part * 100))} % of the picture, score ${percent(mask.iou)}`);
  }
};
session.onHover = (answer) => {
  if (search || session.asking) return;
  const { prompt: asked } = answer;
  const thing = { ...objects.active, prompt: asked, choice: null, region: null };
  objects.remember(asked, answer);
  hovered = asked;
  painter.hover = objects.mask(thing)?.logits ?? null;
  painter.soon();
};
session.onError = take.onError = fail;
take.onNote = note;

function refine() {
  const mask = objects.mask(objects.active);
  if (!mask || mask.index < 0) return;
  prompt({ seed: mask.logits.slice() });
}

// ---- everything -----------------------------------------------------------------------------------------------------

async function findEverything() {
  if (session.state !== "ready" || search) return;
  const mine = search = { stop: new AbortController(), found: /** @type {Array<{logits: Float32Array, iou: number}>} */ ([]), done: 0, total: 0, pace: new Pace() };
  painter.hover = null;
  view.outcome.replaceChildren();
  showAll();
  announce("Looking for every object");
  /** @type {unknown} */
  let problem = null;
  try {
    await session.everything((event) => {
      if (search !== mine) return;
      if (event.event === "progress" && event.stage === "everything") {
        [mine.done, mine.total] = [event.done, event.total];
        showProgress();
      } else if (event.event === "restart") {              // all regions come once more
        mine.found.length = 0;
      } else if (event.event === "region") {
        mine.found.push({ logits: event.logits, iou: event.iou });
      }
    }, mine.stop.signal);
  } catch (error) {
    problem = error;
  }
  if (search !== mine) return;                             // another picture came
  search = null;
  const { found } = mine, stopped = isCancelled(problem);
  if (found.length) objects.addAll(found);
  if (problem && !stopped) fail(problem);
  else note(stopped ? "Stopped" : found.length ? `${found.length} ${found.length === 1 ? "object" : "objects"} found` : "No object found",
    stopped ? `${found.length} found up to here.` : found.length ? "Pick one in the list, or click it with Shift in the picture." : "The model was not sure of any. Click or drag a box instead.");
  showAll();
}

function stopSearch() {
  search?.stop.abort();
  search = null;
}

/** @param {string} title @param {string} words */
function note(title, words) {
  view.outcome.replaceChildren(el("div", { class: "notice" }, el("h3", { text: title }), el("p", { text: words })));
  announce(`${title}. ${words}`);
}

/** Stop whatever runs. */
function stopAll() {
  if (search) {
    search.stop.abort();
  } else {
    reading.abort();
    session.stop();
  }
  link.stopLoading();
}

// ---- what is seen -----------------------------------------------------------------------------------------------------

function showAll() {
  const { picture } = session;
  if (!picture) return showState();
  const active = objects.active, mask = objects.mask(active);
  painter.hold();
  stage.mark(active.region || !active.visible ? [] : active.prompt.points, active.region ? null : active.prompt.box);
  showThings(objects);
  showCandidates(objects, picture);
  view.threshold.value = String(active.threshold);
  view.thresholdValue.value = active.threshold === 0 ? "" : active.threshold.toFixed(1);
  view.undo.disabled = !objects.canUndo || !!search;
  view.redo.disabled = !objects.canRedo || !!search;
  view.clear.disabled = !!search || objects.things.every(isEmpty);
  view.everything.disabled = session.state !== "ready" || !!search;
  view.refine.disabled = !mask || mask.index < 0 || !!search;
  take.show();
  showProgress();
  showFacts();
  showState();
  painter.soon();
}

function showFacts() {
  const { picture, timings } = session;
  if (!picture) return;
  const facts = [`${picture.width} × ${picture.height}`];
  if (timings.restore_ms !== undefined) facts.push("known from before, not encoded again");
  else if (timings.encode_ms) facts.push(`encoded in ${formatMs(timings.encode_ms)}`);
  if (timings.decode_ms) facts.push(`mask in ${formatMs(timings.decode_ms)}`);
  if (picture.note) facts.push(picture.note);
  view.facts.textContent = facts.join(" · ");
  card.showRun(runTimes(link.info, timings));
}

function showProgress() {
  const { state } = session;
  const active = state === "waiting" || state === "encoding" || !!search;
  view.job.setAttribute("aria-busy", String(active));
  view.stop.hidden = view.meter.hidden = !active;
  stage.waiting = active;
  let words = "Looking at the picture", left = "";
  /** @type {number | null} */
  let part = null;
  if (search) {
    words = search.total ? `Looking everywhere: ${search.done} of ${search.total}` : "Looking everywhere";
    part = search.total ? search.done / search.total : null;
    left = search.total ? search.pace.left("everything", search.done, search.total) : "";
  } else if (state === "waiting") {
    ({ words, part } = loadWords(link.progress));
    words = `Waiting for the model. ${words}`;
  }
  if (!active) return;
  showPart(view.bar, part);
  view.doing.textContent = words;
  view.left.textContent = left;
}

function showState() {
  showChip(link, session.state === "encoding" || search ? "Looking" : null);
}

/** @param {HTMLButtonElement} from where it was asked for */
async function tellDiagnostics(from) {
  const { picture, state, timings } = session;
  await copyDiagnostics(from, link, lastError ?? link.error, {
    picture: picture && { state, width: picture.width, height: picture.height, bytes: picture.blob.size, type: picture.blob.type, timings, objects: objects.things.length },
  });
}

// ---- wiring -------------------------------------------------------------------------------------------------------------

objects.onChange = () => {
  askActive();
  showAll();
};
session.onChange = showAll;
session.modelKey = modelKey;
input.onPicture = (blob, name) => void open(blob, name);
input.onModel = (files, folder) => {
  if (!folder || files.some(({ name }) => name === "config.json" || isModelFile(name))) card.own(files, folder, "dropped");
  else input.onError(new PictureError("That is a folder. Drop one picture, or the folder of a Segment Anything model."));
};
input.onError = (error) => {
  lastError = error;
  view.inputOutcome.replaceChildren(errorNotice(error, (from) => void tellDiagnostics(from), "This picture cannot be used"));
};
card.onReplace = () => {
  stopSearch();
  session.forget();
};
card.onDiagnostics = (from) => void tellDiagnostics(from);

/** @type {any} */
let shown = null;
link.onChange = () => {
  card.show();
  if (session.state === "waiting") showProgress();
  showState();
  if (link.state === "ready" && link.info !== shown) {
    shown = link.info;
    if (link.model.model) settings.set(LOADED, "yes");
    card.showRun(runTimes(link.info, session.timings));
    if (session.picture && session.state === "none") session.reopen();   // the same picture for another model or executor
    void keepOffline(byId("offline-note", HTMLParagraphElement));
  }
};

view.stop.addEventListener("click", stopAll);
view.undo.addEventListener("click", () => objects.undo());
view.redo.addEventListener("click", () => objects.redo());
view.clear.addEventListener("click", () => objects.clear());
view.everything.addEventListener("click", () => void findEverything());
view.refine.addEventListener("click", refine);
button("new-thing").addEventListener("click", () => objects.add());
for (const radio of document.querySelectorAll("input[name=tool]")) {
  radio.addEventListener("change", () => stage.setTool(/** @type {"in" | "out" | "box"} */ (/** @type {HTMLInputElement} */ (radio).value)));
}
let sliding = false;
view.threshold.addEventListener("input", () => {
  objects.edit({ threshold: Number(view.threshold.value) }, !sliding);   // one step of undo for one pull
  sliding = true;
});
view.threshold.addEventListener("change", () => { sliding = false; });
view.preview.checked = settings.get("segment.preview", "on") === "on";
view.preview.addEventListener("change", () => settings.set("segment.preview", view.preview.checked ? "on" : "off"));
if (matchMedia("(pointer: coarse)").matches) {
  view.hint.textContent = "Tap what you want. Choose Background and tap what should not belong to it, or Box and draw one. Tap a point to remove it.";
}
const diagnosticsButton = button("diagnostics");
diagnosticsButton.addEventListener("click", () => void tellDiagnostics(diagnosticsButton));

// ---- keyboard -----------------------------------------------------------------------------------------------------------

const candidate = (/** @type {number} */ n) => {
  const found = objects.active.region ? undefined : objects.candidates(objects.active)[n];
  if (found) objects.edit({ choice: found.index });
};
listenForKeys({
  o: () => input.openFile(), n: () => objects.add(), r: refine, e: () => void findEverything(), c: () => void take.copy(),
  1: () => candidate(0), 2: () => candidate(1), 3: () => candidate(2), 4: () => candidate(3),
}, stopAll);
addEventListener("keydown", (event) => {
  const key = event.key.toLowerCase();
  if (event.defaultPrevented || event.altKey || !(event.ctrlKey || event.metaKey) || !(key === "z" || key === "y")) return;
  if (search || isTyping(event.target)) return;
  event.preventDefault();
  if (key === "y" || event.shiftKey) objects.redo();
  else objects.undo();
});

void card.readManifest();
link.onChange();
