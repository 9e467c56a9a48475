/**
 * The Llama page: joins text field, conversation, engine, settings and what is kept. One conversation is open at a time, and
 * one answer is written at a time.
 */
import { ModelCard, savedChoice } from "../lib/card.js";
import { Link } from "../lib/link.js";
import { listenForFiles } from "../lib/drop.js";
import { keepOffline } from "../lib/offline.js";
import { announce, copied, copyDiagnostics, fileName, listenForKeys, showChip } from "../lib/page.js";
import { byId, el, saveFile, sentence, settings } from "../lib/ui.js";
import { errorNotice, loadWords } from "../lib/words.js";
import { Composer } from "./composer.js";
import { canForget, forget, joined, message, newChat, titleOf, toJson, toMarkdown, toTxt } from "./conversation.js";
import { History } from "./history.js";
import { Log, reasonWords } from "./log.js";
import { linkTo, read } from "./links.js";
import { formatRate, llama, modelNamed, rate, runTimes } from "./model.js";
import { Options } from "./options.js";
import { Sheet } from "./sheet.js";
import * as store from "./store.js";
import { Writer } from "./writer.js";

/** @typedef {import("./conversation.js").Chat} Chat */

/** What the address asks for. */
const asked = new URLSearchParams(location.hash.slice(1));
/** The engine starts first of all: the rest of the page is set up while it comes in. */
const link = new Link(modelNamed(asked.get("model")), { ...savedChoice(), capacity: Number(settings.get("llama.capacity")) || null });
const LOADED = "loaded.llama";
const isLocal = /^(localhost|127\.|\[::1\])/.test(location.hostname);
if (isLocal || settings.get(LOADED)) void link.ready().catch(() => {});

/** While an answer grows, it is kept this often, and drawn this often: drawing takes time from the threads that write it. */
const KEEP_MS = 2000, DRAW_MS = 80;
const IDEAS = {
  chat: ["Explain why the sky is blue, in two sentences", "Write a short poem about a candle", "Give me three names for a grey cat", "How do I make a good cup of tea?"],
  text: ["Once upon a time, there was a small candle", "The first thing you notice about the sea is", "Dear future self,"],
};

const button = (/** @type {string} */ id) => byId(id, HTMLButtonElement);
const view = {
  log: byId("log", HTMLOListElement), greeting: byId("greeting", HTMLDivElement), ideas: byId("ideas", HTMLDivElement), outcome: byId("outcome", HTMLDivElement),
  doing: byId("doing", HTMLParagraphElement), context: byId("context", HTMLParagraphElement), bar: byId("context-bar", HTMLProgressElement),
  words: byId("context-words", HTMLSpanElement), away: byId("take-away", HTMLDivElement),
  chat: byId("chat", HTMLElement), systemField: byId("system-field", HTMLDivElement),
};
const options = new Options();
const composer = new Composer();
const log = new Log();
const history = new History();
const sheet = new Sheet();
const writer = new Writer(link);
const card = new ModelCard(link, llama);

/** @type {Chat} */
let chat = newChat(settings.get("llama.mode") === "text" ? "text" : "chat");
/** @type {unknown} */
let lastError = null;

// ---- asking ---------------------------------------------------------------------------------------------------------

function send() {
  if (writer.now) return;
  if (composer.edits !== null) {
    chat.messages.length = composer.edits;
    chat.from = Math.min(chat.from, composer.edits);
  }
  const text = composer.take();
  if (chat.mode === "text" && !text) return void write(chat.messages.at(-1)?.role === "assistant");
  if (!text.trim()) return;
  chat.messages.push(message("user", chat.mode === "chat" ? text.trim() : joined(chat, text)));
  void write();
}

/** Write what comes next. @param {boolean} [goOn] in the last answer */
async function write(goOn = false) {
  const mine = chat, seed = options.nextSeed();
  let kept = performance.now();
  lastError = null;
  view.outcome.replaceChildren();
  const how = { sampling: options.sampling, system: mine.mode === "chat" ? options.system : "", seed };
  const ended = writer.write(mine, how, goOn);
  writer.onProgress = (answer) => {
    if (answer.chat === chat) drawSoon();
    if (performance.now() - kept > KEEP_MS) {
      kept = performance.now();
      void store.keep(mine);
    }
  };
  void keep();
  showAll();
  log.toEnd();
  announce("Writing");
  const answer = await ended;
  const near = log.nearEnd();
  if (answer.error) failed(answer);
  else if (mine === chat) announce(`${spoken(answer)} ${reasonWords(/** @type {any} */ (answer.message.outcome))}.`);
  await keep(mine);
  if (mine !== chat) return;
  showAll();
  if (near) log.toEnd();
}

let drawing = 0;
function drawSoon() {
  drawing ||= window.setTimeout(() => requestAnimationFrame(() => {
    drawing = 0;
    if (writer.now?.chat !== chat) return;
    if (writer.now.phase === "writing") log.grow();
    showDoing();
  }), DRAW_MS);
}

/** What a screen reader is told of an answer. @param {import("./writer.js").Answer} answer */
function spoken({ message: { text }, before }) {
  const added = text.slice(before.length).trim();
  return added.length > 800 ? `${added.slice(0, 800)} … and more.` : added;
}

/** @param {import("./writer.js").Answer} answer that ended by an error */
function failed(answer) {
  const { error, message: written, chat: mine } = answer;
  lastError = error;
  const full = error?.data?.capacity !== undefined;
  if (!written.text || (full && !answer.continued)) mine.messages.pop();
  if (mine !== chat) return;
  const acts = el("div", { class: "row" });
  const act = (/** @type {string} */ words, /** @type {() => void} */ go) => {
    const pressed = el("button", { type: "button", class: "button compact", text: words });
    pressed.addEventListener("click", () => {
      view.outcome.replaceChildren();
      go();
    });
    acts.append(pressed);
  };
  if (full) {
    const { prompt_tokens: used, capacity } = error.data;
    showContext({ used, capacity });
    const last = mine.messages.at(-1);
    if (answer.continued && written.outcome) {
      Object.assign(written.outcome, { reason: "context", context: { used, capacity } });
    } else if (last?.role === "user") {                  // the words go back to where they can be made shorter
      mine.messages.pop();
      if (!composer.text) composer.text = last.text;
      const letters = mine.messages.reduce((sum, message) => sum + message.text.length, last.text.length);
      const alone = used * last.text.length / letters;     // about: without what came before it may still be too long
      if (alone < capacity && canForget({ ...mine, messages: [...mine.messages, last] })) {
        act("Leave out the oldest question and ask again", () => { forget(chat); send(); });
      }
    }
    if (mine.messages.length) act("New conversation", () => begin(newChat(chat.mode), true));
    note("Too long", sentence(error.message), acts);
  } else {
    act("Try again", () => {
      if (!answer.continued && chat.messages.at(-1)?.role === "assistant") chat.messages.pop();
      void write(answer.continued);
    });
    view.outcome.replaceChildren(errorNotice(error, (from) => void tellDiagnostics(from), "This cannot be answered"));
    view.outcome.querySelector(".row")?.prepend(...acts.childNodes);
  }
}

/** @param {string} title @param {string} words @param {...Node} more */
function note(title, words, ...more) {
  view.outcome.replaceChildren(el("div", { class: "notice", role: "alert" }, el("h3", { text: title }), el("p", { text: words }), ...more));
}

/** Write the last answer anew. */
function again() {
  if (writer.now) return;
  if (chat.messages.at(-1)?.role === "assistant") chat.messages.pop();
  if (chat.messages.length) void write();
}

/** Stop whatever runs. */
function stopAll() {
  writer.stop();
  link.stopLoading();
}

// ---- conversations -----------------------------------------------------------------------------------------------------

/** Open a conversation. @param {Chat} next @param {boolean} [carry] keep what stands in the text field */
function begin(next, carry = false) {
  if (next !== chat) writer.stop();
  const words = composer.take();
  if (carry && words) composer.text = words;
  chat = next;
  settings.set("llama.mode", chat.mode);
  store.isOpen(chat.id);
  lastError = null;
  view.outcome.replaceChildren();
  /** @type {HTMLInputElement} */ (document.querySelector(`input[name=mode][value=${chat.mode}]`)).checked = true;
  showAll();
  showContext(chat.messages.at(-1)?.outcome?.context ?? null);
  log.toEnd();
  void listHistory();
}

/** @param {Chat} [mine] */
async function keep(mine = chat) {
  mine.changed = Date.now();
  if (mine.messages.length) await store.keep(mine);
  else await store.remove(mine.id);
  await listHistory();
}

async function listHistory() {
  history.show(await store.all(), chat.id);
}

/** @param {Chat} gone */
async function remove(gone) {
  if (gone.id === chat.id) {
    writer.stop();
    begin(newChat(chat.mode));
  }
  await store.remove(gone.id);
  await listHistory();
  const undo = el("button", { type: "button", class: "button compact", text: "Undo" });
  undo.addEventListener("click", () => {
    view.outcome.replaceChildren();
    void store.keep(gone).then(() => (chat.messages.length ? listHistory() : begin(gone)));
  });
  note("Deleted", titleOf(gone), undo);
}

// ---- what is seen --------------------------------------------------------------------------------------------------------

function showAll() {
  const busy = !!writer.now, empty = chat.messages.length === 0;
  view.log.hidden = empty;
  view.greeting.hidden = !empty;
  view.away.hidden = empty || busy;
  view.chat.setAttribute("aria-busy", String(busy));
  view.systemField.hidden = chat.mode === "text";
  if (empty) {
    view.ideas.replaceChildren(...IDEAS[chat.mode].map((text) => {
      const idea = el("button", { type: "button", text });
      idea.addEventListener("click", () => {
        composer.text = text;
        send();
      });
      return idea;
    }));
  }
  log.show(chat, writer.now?.message ?? null);
  composer.state({ busy, mode: chat.mode, begun: !empty && composer.edits === null });
  showDoing();
  showChip(link, "Writing");
  const last = chat.messages.findLast(({ outcome }) => outcome?.timings)?.outcome ?? null;
  card.showRun(runTimes(link.info, last));
  if (!busy && last?.context && !view.outcome.hasChildNodes()) showContext(last.context);
}

/** The line below the text field. */
function showDoing() {
  const answer = writer.now;
  let words = "";
  if (answer && answer.chat === chat) {
    const { phase, prompt, tokens, stage } = answer;
    if (phase === "waiting") {
      words = `Waiting for the model. ${loadWords(link.progress).words}`;
    } else if (stage) {
      ({ words } = loadWords(stage));
    } else if (phase === "reading") {
      words = prompt ? `Reading: ${prompt.done} of ${prompt.total} tokens` : "Reading";
    } else {
      const speed = rate(tokens - 1, performance.now() - answer.began);
      words = `Writing: ${tokens} ${tokens === 1 ? "token" : "tokens"}${speed && tokens > 4 ? `, ${formatRate(speed)}` : ""}`;
      if (prompt && link.info?.capacity) showContext({ used: prompt.total + tokens, capacity: link.info.capacity });
    }
  } else if (link.info && !link.info.chat && chat.mode === "chat") {
    words = "This model has no chat template: it may not answer like one.";
  } else if (!chat.messages.length && matchMedia("(hover: hover)").matches) {
    words = "Enter sends, Shift and Enter is a new line";
  }
  if (view.doing.textContent !== words) view.doing.textContent = words;
}

/** @param {{used: number, capacity: number} | null} context */
function showContext(context) {
  view.context.hidden = !context;
  if (!context) return;
  const { used, capacity } = context;
  view.bar.value = Math.min(1, used / capacity);
  view.words.textContent = `${used.toLocaleString("en")} of ${capacity.toLocaleString("en")} tokens`;
  view.context.classList.toggle("full", used >= capacity);
}

/** @type {any} */
let shown = null;
link.onChange = () => {
  card.show();
  showDoing();
  showChip(link, "Writing");
  if (link.state === "ready" && link.info !== shown) {
    shown = link.info;
    if (link.model.model) settings.set(LOADED, "yes");
    options.offer(link.info);
    if (!link.info.chat && chat.mode === "chat" && !chat.messages.length && !writer.now) begin(newChat("text"), true);   // it was never taught to talk
    card.showRun(runTimes(link.info, null));
    showDoing();
    void keepOffline(byId("offline-note", HTMLParagraphElement));
  }
};

// ---- links ---------------------------------------------------------------------------------------------------------------

/** Set everything as a link says; its last question stands in the text field. @param {URLSearchParams} from */
function follow(from) {
  options.take(from);
  const { mode, messages, question } = read(from);
  const next = newChat(mode);
  next.messages = messages;
  begin(next);
  if (question) composer.text = question;
  if (from.get("own")) note("Made with a model of its own", `This link was made with ${from.get("own")}, which is not part of it. Open that model first, under “Use another language model”.`);
}

// ---- wiring ----------------------------------------------------------------------------------------------------------------

composer.onSend = send;
composer.onStop = stopAll;
composer.onEditing = showAll;
composer.onRecall = () => {
  if (chat.mode === "text") return edit(0);
  const last = chat.messages.findLastIndex(({ role }) => role === "user");
  if (last >= 0) edit(last);
};
/** @param {number} index */
function edit(index) {
  if (writer.now || !chat.messages.length) return;
  composer.edit(index, chat.mode === "text" ? log.wholeText() : chat.messages[index].text);
}
log.onEdit = edit;
log.onAgain = again;
log.onGoOn = () => { if (!writer.now) void write(true); };
log.onLink = (index, on) => void copied(on, linkTo(chat, index, link.model));
log.onSeed = (seed) => {
  options.seed = seed;
  announce(`Seed ${seed} is set for the next answers`);
  byId("seed", HTMLInputElement).scrollIntoView({ block: "nearest" });
};
history.onOpen = (next) => {
  sheet.close();
  void store.read(next.id).then((found) => begin(found ?? next));
};
history.onDelete = (gone) => void remove(gone);
history.onDeleteAll = () => void store.remove(null).then(() => begin(newChat(chat.mode)));
button("delete").addEventListener("click", () => void remove(chat));
button("new").addEventListener("click", () => { begin(newChat(chat.mode)); composer.focus(); });
for (const radio of document.querySelectorAll("input[name=mode]")) {
  radio.addEventListener("change", () => {
    const mode = /** @type {HTMLInputElement} */ (radio).value === "text" ? "text" : "chat";
    if (mode !== chat.mode) begin(newChat(mode), true);
  });
}
for (const format of view.away.querySelectorAll("button[data-format]")) {
  format.addEventListener("click", () => {
    const kind = /** @type {HTMLElement} */ (format).dataset.format ?? "txt", { name } = link.model;
    const [text, type] = kind === "md" ? [toMarkdown(chat, name), "text/markdown"] : kind === "json" ? [toJson(chat, name, options.system), "application/json"] : [toTxt(chat, name), "text/plain"];
    saveFile(`${fileName(titleOf(chat).replace(/[.…]+$/, ""), "conversation")}.${kind}`, new Blob([text], { type: `${type};charset=utf-8` }));
  });
}
options.onCapacity = (capacity) => {
  const wasUp = link.state !== "idle" && link.state !== "failed";
  card.onReplace("executor");
  link.choice = { ...link.choice, capacity };
  link.reset(true);
  if (wasUp) void link.ready().catch(() => {});
};
card.onReplace = () => {
  if (writer.now?.phase !== "waiting") writer.stop();      // what has not begun waits for what comes
};
card.onRefused = (words) => note("Not opened", words);
card.onDiagnostics = (from) => void tellDiagnostics(from);
button("diagnostics").addEventListener("click", () => void tellDiagnostics(button("diagnostics")));

/** @param {HTMLButtonElement} from where it was asked for */
async function tellDiagnostics(from) {
  await copyDiagnostics(from, link, lastError ?? link.error, {
    chat: { mode: chat.mode, messages: chat.messages.length, left_out: chat.from, last: chat.messages.findLast(({ outcome }) => outcome)?.outcome?.timings ?? null },
    sampling: options.sampling,
  });
}

listenForFiles({
  onFiles: (files) => {
    const [first] = files;
    if (files.length === 1 && /\.(txt|md|markdown)$/i.test(first.name)) {
      void first.text().then((text) => {
        composer.text = composer.text ? `${composer.text}\n\n${text}` : text;
        composer.focus();
      });
    } else {
      takeModel(files, "");
    }
  },
  onFolder: takeModel,
});

/** @param {File[]} files @param {string} folder */
function takeModel(files, folder) {
  view.outcome.replaceChildren();
  card.own(files, folder, "dropped");
}

listenForKeys({
  "/": () => composer.focus(), n: () => button("new").click(),
  c: () => {
    const last = chat.messages.findLast(({ role }) => role === "assistant");
    const on = /** @type {HTMLButtonElement | null} */ (document.querySelector(".turn.model:last-child .acts button"));
    if (last && on) void copied(on, chat.mode === "text" ? log.wholeText() : last.text);
  },
}, () => {
  if (sheet.open) sheet.close();
  else stopAll();
});

addEventListener("hashchange", () => {
  const from = new URLSearchParams(location.hash.slice(1));
  if (from.has("seed") || from.has("messages") || from.has("model")) location.reload();
});

/** What was there before, or what the link asks for. */
async function start() {
  const before = asked.size && (asked.has("messages") || asked.has("mode")) ? null : await store.last();
  if (asked.size) {
    if (before) begin(before);
    if (!before) follow(asked);
    else options.take(asked);
    window.history.replaceState(null, "", location.href.split("#")[0] + (asked.get("model") ? `#model=${asked.get("model")}` : ""));
  } else {
    begin(before ?? chat);
  }
  if (matchMedia("(hover: hover)").matches) composer.focus();
}

void card.readManifest();
link.onChange();
void start();
