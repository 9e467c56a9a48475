/**
 * The model cards: which model, its size and memory before anything is loaded, loading with its Stop, a person's own files,
 * the choice of executor and threads, what is in use and why, and where the time went.
 */
import { EngineError } from "../../workers/client.js";
import { modelCard, runCard } from "./cardview.js";
import { device } from "./device.js";
import { isCancelled } from "./link.js";
import { noteUse, Stored } from "./stored.js";
import { byId, el, formatBytes, sentence, setFacts, settings } from "./ui.js";
import { Verify } from "./verify.js";
import { errorNotice, errorWords, executorName, loadWords, Pace } from "./words.js";

/** Python with NumPy and the engine's code, measured; a manifest that knows the whole sum is believed instead. */
const RUNTIME_BYTES = 80e6;

/**
 * @typedef {object} Kind what a page's models are like
 * @property {Served[]} served those that come with the site, the first to begin with
 * @property {"whisper" | "sam" | "llama"} task the family of checkpoints that this page takes
 * @property {string} family in words: "A Whisper folder needs ..."
 * @property {{summary: string, about: Array<Node | string>, accept?: string}} own about a person's own; `accept`: endings of
 *   files that can be picked one by one, where it need not be a folder
 * @property {(names: string[]) => string[]} missing what a folder with these files lacks
 * @property {(files: File[]) => File[]} [useful] those to read of a folder's files
 *
 * @typedef {import("./link.js").Model} Model
 * @typedef {Model & {about: string}} Served
 */

/** The executor and threads that the person chose here before. @returns {import("./link.js").Choice} */
export function savedChoice() {
  const threads = Number(settings.get("threads"));
  const executor = settings.get("executor");
  return { executor: executor === "wasm" || executor === "webgpu" || executor === "numpy" ? executor : "auto", threads: threads > 0 ? threads : null };
}

export class ModelCard {
  /** @type {HTMLSelectElement} */
  #executor;
  /** @type {HTMLSelectElement} */
  #threads;
  /** @type {HTMLButtonElement} */
  #load;
  /** @type {HTMLButtonElement} */
  #stop;
  /** @type {HTMLDListElement} */
  #facts;
  #stored;
  #pace = new Pace();
  #verify;
  /** @type {Array<[string, string]>} */
  #before = [];
  #bytes = 0;
  /** What is told of a person's own models. @type {WeakMap<Model, {bytes: number, before: Array<[string, string]>, note: string}>} */
  #own = new WeakMap();
  /** The files that were opened last. @type {Model | null} */
  #opened = null;
  /** What was on its way when they were opened. @type {Model | null} */
  #former = null;
  #dropped = false;
  /** A person's own model that cannot be loaded here. @type {Model | null} */
  #refused = null;
  /** What load() told last. @type {any} */
  #used = null;
  /** The manifests of the served models by their addresses; null where there is none. @type {Map<string, any>} */
  #manifests = new Map();

  /** Another model is chosen, or how it runs: what runs with the old ones is over. @type {(what: "model" | "executor") => void} */
  onReplace = () => {};
  /** Files that were dropped on the page are not used. @type {(words: string) => void} */
  onRefused = () => {};
  /** @type {(button: HTMLButtonElement) => void} */
  onDiagnostics = () => {};

  /** Builds the cards in #model-cards, and the second in #run-card where a page has that elsewhere. @param {import("./link.js").Link} link @param {Kind} kind */
  constructor(link, kind) {
    this.link = link;
    this.kind = kind;
    const cards = byId("model-cards", HTMLDivElement);
    cards.replaceChildren(modelCard(kind, link.model));
    (document.getElementById("run-card") ?? cards).append(runCard());
    this.#executor = byId("executor", HTMLSelectElement);
    this.#threads = byId("threads", HTMLSelectElement);
    this.#load = byId("load", HTMLButtonElement);
    this.#stop = byId("load-stop", HTMLButtonElement);
    this.#facts = byId("model-facts", HTMLDListElement);
    link.family = kind.task;
    link.onFallBack = (refused, error) => this.#fallBack(refused, error);
    this.#stored = new Stored(kind.task);
    this.#stored.onOpen = (files, name) => this.own(files, name, "kept");
    this.#stored.onMirror = () => this.#again();
    this.#verify = new Verify(link, () => this.#change("wasm"));
    this.#verify.listen();
    const cores = device().cores;
    for (let n = 1; n <= Math.min(cores, 16); n++) this.#threads.append(el("option", { value: n, text: n }));
    this.#executor.value = link.choice.executor;
    this.#threads.value = String(link.choice.threads ?? "");
    this.#executor.addEventListener("change", () => this.#choose());
    this.#threads.addEventListener("change", () => this.#choose());
    this.#load.addEventListener("click", () => void link.ready().catch(() => {}));
    this.#stop.addEventListener("click", () => link.stopLoading());
    byId("own-back", HTMLButtonElement).addEventListener("click", () => this.#serve(kind.served[0]));
    for (const [button, input] of [["own-open", "own-files"], ["own-pick", "own-file"]]) {
      const files = /** @type {HTMLInputElement | null} */ (document.getElementById(input));
      if (!files) continue;
      byId(button, HTMLButtonElement).addEventListener("click", () => files.click());
      files.addEventListener("change", () => {
        const chosen = [...files.files ?? []].filter((file) => file.webkitRelativePath.split("/").length <= 2);   // not of folders in it
        if (chosen.length) this.own(chosen, chosen[0].webkitRelativePath.split("/")[0], "picked");
        files.value = "";                               // the same may be chosen again
      });
    }
    for (const served of kind.served) {
      document.getElementById(`model-${kind.served.indexOf(served)}`)?.addEventListener("change", () => this.#serve(served));
    }
  }

  /** Size and memory of the served models, from their manifests. Never waits for the engine. */
  async readManifest() {
    await Promise.all(this.kind.served.map(async ({ model }) => {
      try {
        const response = await fetch(new URL("manifest.json", String(model)));
        if (!response.ok) throw new Error(String(response.status));
        this.#manifests.set(String(model), await response.json());
      } catch {
        this.#manifests.set(String(model), null);       // the load itself will say what is wrong, with the address
      }
    }));
    this.#showServed();
  }

  /** What the manifests tell, in the list and of the chosen model. */
  #showServed() {
    this.kind.served.forEach(({ model, about }, i) => {
      const manifest = this.#manifests.get(String(model));
      const size = manifest ? bytesOf(manifest) : 0;
      const words = document.getElementById(`model-${i}-facts`);
      if (words) words.textContent = size ? `${formatBytes(size)}, ${formatMemory(manifest.memory_bytes || size * 1.1 + RUNTIME_BYTES)} of memory` : "";
      if (model !== this.link.model.model) return;
      this.#bytes = size;
      byId("model-note", HTMLParagraphElement).textContent = String(manifest?.about || about);
      this.#before = manifest ? facts(size, manifest.memory_bytes || undefined, manifest.licence) : [];
    });
    this.show();
  }

  /** Bytes of the model's files; 0 while not known. */
  get bytes() {
    return this.#bytes;
  }

  /**
   * A person's own model, if these files are one.
   * @param {File[]} files @param {string} folder its name, "" for loose files
   * @param {"picked" | "dropped" | "kept"} how kept: it comes from the list
   */
  own(files, folder, how) {
    this.#dropped = how === "dropped";
    const kept = how === "kept", wanted = this.kind.missing(files.map((file) => file.name));
    if (wanted.length) {
      this.#opened = null;
      const said = this.#say(`${this.kind.family} needs ${wanted.join(", ")}; ${folder ? "the chosen folder does" : "the chosen files do"} not have ${wanted.length > 1 ? "them" : "it"}.`);
      void this.link.examine(files).then(({ family }) => {
        if (family !== this.kind.task && said.isConnected) this.#say(elsewhere(family));
      }, () => {});                                       // nothing that is known: what was said stands
      return;
    }
    const useful = this.kind.useful?.(files) ?? files.filter((file) => /\.(json|safetensors|txt)$/.test(file.name));
    const model = this.#opened = { model: null, files: useful, name: folder || nameOf(useful) };
    const bytes = useful.reduce((sum, file) => sum + file.size, 0);
    this.#own.set(model, { bytes, before: facts(bytes, undefined, undefined), note: kept ? "Your own model, kept in this browser." : "Your own files, read on this device." });
    const outcome = byId("own-outcome", HTMLDivElement);
    const { state } = this.link;
    this.#former = state === "loading" ? this.link.model : null;
    if (state !== "ready" && state !== "busy") this.#use(model, kept);
    else outcome.replaceChildren(el("p", { class: "notice", text: `Looking at ${model.name}` }));   // what works goes on until this is known to be a model
    void this.#examine(model, kept);
  }

  /** @param {Model} model a person's own @param {boolean} kept */
  #use(model, kept) {
    this.#replace(model);
    byId("own-outcome", HTMLDivElement).replaceChildren();
    this.#stored.offer(kept ? null : { name: model.name, files: model.files ?? [] });
  }

  /** What a person's own files are and will take, from their headers: told, or refused, before they are loaded. @param {Model} model @param {boolean} kept */
  async #examine(model, kept) {
    try {
      const found = await this.link.examine(model.files ?? []);
      if (this.#opened !== model) return;
      const before = facts(found.bytes, found.memory, undefined);
      if (found.parameters) before.push(["Weights", `${Object.keys(found.dtypes)[0].toUpperCase()}, ${formatCount(found.parameters)} parameters`]);
      this.#own.set(model, { .../** @type {any} */ (this.#own.get(model)), before });
      const words = found.family !== this.kind.task ? elsewhere(found.family)
        : found.memory > found.most ? `It needs about ${formatBytes(found.memory)} of memory; a page may have ${formatBytes(found.most)} at most. Choose a smaller model, or one with weights of fewer bits.` : null;
      if (words) this.#refuse(model, words);
      else if (this.link.model === model) this.#showChoice();
      else this.#use(model, kept);
    } catch (error) {
      if (this.#opened === model && !isCancelled(error)) this.#refuse(model, String(/** @type {any} */ (error)?.message ?? error), error);
    }
  }

  /** @param {Model} model @param {string} words why it cannot be loaded @param {unknown} [error] that says so */
  #refuse(model, words, error) {
    if (this.link.model === model && this.#former) {
      this.#replace(this.#former);
      this.#stored.offer(null);
      void this.link.ready().catch(() => {});
    }
    if (this.link.model === model) {
      this.#refused = model;
      this.link.refuse(error instanceof EngineError ? error : new EngineError("bad_input", words));
      this.#stored.offer(null);
      this.#showChoice();
      this.#say(words);
    } else {
      this.#say(`${closed(words)} ${this.link.model.name} is used as before.`);
    }
  }

  /** @param {Model} refused @param {unknown} error */
  #fallBack(refused, error) {
    this.#stored.offer(null);
    this.#showChoice();
    this.#say(`${refused.name} could not be loaded. ${closed(errorWords(error).message)} ${this.link.model.name} is used again.`);
  }

  /** That files are not used. @param {string} words */
  #say(words) {
    const said = el("p", { class: "notice bad", role: "alert", text: words }), outcome = byId("own-outcome", HTMLDivElement);
    byId("own", HTMLDetailsElement).open = true;
    outcome.replaceChildren(said);
    outcome.scrollIntoView({ block: "nearest" });
    if (this.#dropped) this.onRefused(words);
    return said;
  }

  /** @param {Served} served */
  #serve(served) {
    this.#opened = null;
    this.#replace(served);
    this.#stored.offer(null);
    byId("own-outcome", HTMLDivElement).replaceChildren();
  }

  /** @param {Model} model */
  #replace(model) {
    this.onReplace("model");
    this.link.model = model;
    this.link.reset(true);
    this.#showChoice();
  }

  /** Which model is chosen, and what is known of it. */
  #showChoice() {
    const { model } = this.link, own = this.#own.get(model);
    this.kind.served.forEach((served, i) => {
      const choice = /** @type {HTMLInputElement | null} */ (document.getElementById(`model-${i}`));
      if (choice) choice.checked = served.model === model.model;
    });
    byId("own-back", HTMLButtonElement).hidden = model.model !== null;
    byId("model-name", HTMLHeadingElement).textContent = model.name;
    if (!own) return this.#showServed();
    [this.#bytes, this.#before] = [own.bytes, own.before];
    byId("model-note", HTMLParagraphElement).textContent = own.note;
    this.show();
  }

  /** @param {string} executor what a person might choose in its place */
  #change(executor) {
    this.#executor.value = executor;
    this.#choose();
    this.#executor.focus();
  }

  #choose() {
    settings.set("executor", this.#executor.value);
    settings.set("threads", this.#threads.value);
    this.link.choice = { ...this.link.choice, ...savedChoice() };
    this.#again();
  }

  /** The same model anew, if it was loaded or on its way. */
  #again() {
    const wasUp = this.link.state !== "idle" && this.link.state !== "failed";
    this.onReplace("executor");
    this.link.reset(true);
    if (wasUp) void this.link.ready().catch(() => {});
  }

  /** Bring the card in step with the link. */
  show() {
    const { state, info, progress, error, model } = this.link;
    const loading = state === "loading";
    if (info && info !== this.#used) {
      this.#used = info;
      noteUse(model.model ? info.model : model.name);
      void this.#stored.show();
    }
    const { words, part } = loadWords(progress);
    byId("load-meter", HTMLDivElement).hidden = !loading;
    if (loading) {
      showPart(byId("load-bar", HTMLProgressElement), part);
      byId("load-doing", HTMLSpanElement).textContent = words;
      byId("load-left", HTMLSpanElement).textContent = progress?.total ? this.#pace.left(progress.stage, progress.done, progress.total) : "";
    }
    this.#load.hidden = !(state === "idle" || state === "failed") || this.#refused === model;
    this.#load.textContent = state === "failed" ? "Load again" : this.#bytes ? `Load the model (${formatBytes(this.#bytes)})` : "Load the model";
    this.#stop.hidden = !loading;
    this.#threads.disabled = ["numpy", "webgpu"].includes(this.#executor.value);
    const outcome = byId("load-outcome", HTMLDivElement);
    if (error && !outcome.hasChildNodes()) outcome.replaceChildren(errorNotice(error, (button) => this.onDiagnostics(button)));
    if (!error) outcome.replaceChildren();
    const { needs } = this.link, listed = this.kind.served.length > 1 && model.model;   // then the list tells the sizes
    setFacts(this.#facts, this.#before.filter(([name]) => !listed || name === "Licence").map(([name, value]) =>
      [name, needs && name === "Memory it needs" ? formatMemory(needs + RUNTIME_BYTES) : value]));   // the files know better than a manifest's sum
    byId("run-why", HTMLParagraphElement).textContent = this.#why();
    this.#verify.show();
  }

  /** What was chosen, and why, in a sentence. */
  #why() {
    const { info } = this.link;
    if (info) return sentence(String(info.reason || `${executorName(info.executor)} was chosen`));
    const because = device().noThreads;
    return because ? `Not loaded yet. It will run on one thread: ${because}.` : "Not loaded yet.";
  }

  /** Executor and memory in use, and the times that the page gives. @param {Array<[string, string | null]>} times */
  showRun(times) {
    const { info } = this.link;
    const threads = info?.executor === "wasm" ? `${info.threads} of ${info.threads_asked} asked for` : null;
    setFacts(byId("run-facts", HTMLDListElement), [
      ["Executor", info ? executorName(info.executor) : null],
      ["Threads", threads],
      ["SIMD", info?.executor === "wasm" ? (info.relaxed_simd ? "relaxed" : "128 bit") : null],
      ...times,
      ["Weights in memory", info?.memory?.weights ? formatBytes(info.memory.weights) : null],
      ["Memory in use", info?.memory?.total ? formatBytes(info.memory.total) : null],
    ]);
    this.#verify.showGpu();
  }
}

const KINDS = /** @type {Record<string, string>} */ ({ whisper: "a speech model", sam: "a model for pictures", llama: "a language model" });
const PAGES = /** @type {Record<string, string>} */ ({ whisper: "Whisper", sam: "Segment", llama: "Llama" });
/** What loose files are called: as the largest of them, unless that is a name that all models have. @param {File[]} files */
const nameOf = (files) => files.reduce((a, b) => (b.size > a.size ? b : a)).name.replace(/\.[a-z0-9]+$/i, "").replace(/^(pytorch_)?model\b.*/i, "") || "Your model";
/** With a full stop; a file's name that it begins with stays as it is. @param {string} words */
const closed = (words) => (/[.!?]$/.test(words) ? words : `${words}.`);
/** @param {string} family */
const elsewhere = (family) => `This is ${KINDS[family]}. It can be used on the ${PAGES[family]} page.`;
/** 135 M, 1.1 B @param {number} n */
const formatCount = (n) => (n >= 1e9 ? `${(n / 1e9).toFixed(1)} B` : n >= 1e6 ? `${Math.round(n / 1e6)} M` : n.toLocaleString("en"));
/** What is told before a model is loaded. @param {number} bytes @param {number | undefined} memory @param {string | undefined} licence @returns {Array<[string, string]>} */
const facts = (bytes, memory, licence) => [["Size", formatBytes(bytes)], ["Memory it needs", formatMemory(memory ?? bytes * 1.1 + RUNTIME_BYTES)], ["Licence", licence ?? ""]];
/** @param {{files: Array<{bytes: number}>}} manifest */
const bytesOf = (manifest) => manifest.files.reduce((sum, file) => sum + file.bytes, 0);
/** @param {number} bytes */
const formatMemory = (bytes) => `about ${formatBytes(Math.ceil(bytes / 10e6) * 10e6)}`;

/** A progress bar at `part`, or moving while it is not known. @param {HTMLProgressElement} bar @param {number | null} part */
export function showPart(bar, part) {
  if (part === null) bar.removeAttribute("value");
  else bar.value = part;
}
