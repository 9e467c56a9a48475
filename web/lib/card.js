/**
 * The model card and how it runs: size and memory before anything is loaded, loading with its Stop, the choice of executor
 * and threads, what is in use and why, and where the time went.
 */
import { device } from "./device.js";
import { byId, el, formatBytes, sentence, setFacts, settings } from "./ui.js";
import { errorNotice, executorName, loadWords, Pace } from "./words.js";

/** Python with NumPy and the engine's code, measured; a manifest that knows the whole sum is believed instead. */
const RUNTIME_BYTES = 110e6;

/**
 * @typedef {object} Kind what a page's model is like
 * @property {import("./link.js").Model} served the one that comes with the site
 * @property {string} about a sentence about it, until its manifest is read
 * @property {string} family in words: "A Whisper folder needs ..."
 * @property {(names: string[]) => string[]} missing what a folder with these files lacks
 */

/** The executor and threads that the person chose here before. @returns {import("./link.js").Choice} */
export function savedChoice() {
  const threads = Number(settings.get("threads"));
  const executor = settings.get("executor");
  return { executor: executor === "wasm" || executor === "numpy" ? executor : "auto", threads: threads > 0 ? threads : null };
}

export class ModelCard {
  #executor = byId("executor", HTMLSelectElement);
  #threads = byId("threads", HTMLSelectElement);
  #load = byId("load", HTMLButtonElement);
  #stop = byId("load-stop", HTMLButtonElement);
  #facts = byId("model-facts", HTMLDListElement);
  #files = byId("own-files", HTMLInputElement);
  #pace = new Pace();
  /** @type {Array<[string, string]>} */
  #before = [];
  #bytes = 0;

  /** Model or settings changed: what runs with the old ones is over. @type {() => void} */
  onReplace = () => {};
  /** @type {(button: HTMLButtonElement) => void} */
  onDiagnostics = () => {};

  /** @param {import("./link.js").Link} link @param {Kind} kind */
  constructor(link, kind) {
    this.link = link;
    this.kind = kind;
    const cores = device().cores;
    for (let n = 1; n <= Math.min(cores, 16); n++) this.#threads.append(el("option", { value: n, text: n }));
    this.#executor.value = link.choice.executor;
    this.#threads.value = String(link.choice.threads ?? "");
    this.#executor.addEventListener("change", () => this.#choose());
    this.#threads.addEventListener("change", () => this.#choose());
    this.#load.addEventListener("click", () => void link.ready().catch(() => {}));
    this.#stop.addEventListener("click", () => link.stopLoading());
    byId("own-open", HTMLButtonElement).addEventListener("click", () => this.#files.click());
    byId("own-back", HTMLButtonElement).addEventListener("click", () => {
      this.#replace(kind.served);
      void this.readManifest();
    });
    this.#files.addEventListener("change", () => {
      if (this.#files.files?.length) this.#own([...this.#files.files]);
      this.#files.value = "";
    });
  }

  /** Size and memory of the served model, from its manifest. Never waits for the engine. */
  async readManifest() {
    try {
      const response = await fetch(new URL("manifest.json", String(this.kind.served.model)));
      if (!response.ok) throw new Error(String(response.status));
      const manifest = await response.json();
      /** @type {Array<{path: string, bytes: number}>} */
      const files = manifest.files;
      this.#bytes = files.reduce((sum, file) => sum + file.bytes, 0);
      this.#describe(this.#bytes, manifest.memory_bytes || undefined, manifest.licence);
      if (manifest.about && this.link.model.model) byId("model-note", HTMLParagraphElement).textContent = String(manifest.about);
    } catch {
      this.#before = [];                                // the load itself will say what is wrong, with the address
    }
    this.show();
  }

  /** @param {number} bytes @param {number | undefined} memory @param {string | undefined} licence */
  #describe(bytes, memory, licence) {
    const needed = memory ?? bytes * 1.1 + RUNTIME_BYTES;
    this.#before = [["Size", formatBytes(bytes)], ["Memory it needs", `about ${formatBytes(Math.ceil(needed / 10e6) * 10e6)}`], ["Licence", licence ?? ""]];
  }

  /** Bytes of the model's files; 0 while not known. */
  get bytes() {
    return this.#bytes;
  }

  /** @param {File[]} files */
  #own(files) {
    const outcome = byId("own-outcome", HTMLDivElement);
    const names = files.map((file) => file.name);
    const wanted = this.kind.missing(names);
    if (wanted.length) {
      outcome.replaceChildren(el("p", { class: "notice bad", role: "alert",
        text: `${this.kind.family} needs ${wanted.join(", ")}; the chosen folder does not have ${wanted.length > 1 ? "them" : "it"}.` }));
      return;
    }
    outcome.replaceChildren();
    const folder = files[0].webkitRelativePath.split("/")[0] || "Your model";
    const useful = files.filter((file) => /\.(json|safetensors|txt)$/.test(file.name));
    this.#bytes = useful.reduce((sum, file) => sum + file.size, 0);
    this.#describe(this.#bytes, undefined, undefined);
    this.#replace({ model: null, files: useful, name: folder });
  }

  /** @param {import("./link.js").Model} model */
  #replace(model) {
    this.onReplace();
    this.link.model = model;
    this.link.reset();
    byId("own-back", HTMLButtonElement).hidden = model.model !== null;
    byId("model-name", HTMLHeadingElement).textContent = model.name;
    byId("model-note", HTMLParagraphElement).textContent = model.model ? this.kind.about : "Your own files, read on this device.";
    this.show();
  }

  #choose() {
    settings.set("executor", this.#executor.value);
    settings.set("threads", this.#threads.value);
    const wasUp = this.link.state !== "idle" && this.link.state !== "failed";
    this.onReplace();
    this.link.choice = savedChoice();
    this.link.reset();
    if (wasUp) void this.link.ready().catch(() => {});
  }

  /** Bring the card in step with the link. */
  show() {
    const { state, info, progress, error } = this.link;
    const loading = state === "loading";
    const { words, part } = loadWords(progress);
    byId("load-meter", HTMLDivElement).hidden = !loading;
    if (loading) {
      showPart(byId("load-bar", HTMLProgressElement), part);
      byId("load-doing", HTMLSpanElement).textContent = words;
      byId("load-left", HTMLSpanElement).textContent = progress?.total ? this.#pace.left(progress.stage, progress.done, progress.total) : "";
    }
    this.#load.hidden = !(state === "idle" || state === "failed");
    this.#load.textContent = state === "failed" ? "Load again" : this.#bytes ? `Load the model (${formatBytes(this.#bytes)})` : "Load the model";
    this.#stop.hidden = !loading;
    this.#threads.disabled = this.#executor.value === "numpy";
    const outcome = byId("load-outcome", HTMLDivElement);
    if (error && !outcome.hasChildNodes()) outcome.replaceChildren(errorNotice(error, (button) => this.onDiagnostics(button)));
    if (!error) outcome.replaceChildren();
    setFacts(this.#facts, this.#before);
    byId("run-why", HTMLParagraphElement).textContent = this.#why();
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
    const threads = info && info.executor !== "numpy" ? `${info.threads} of ${info.threads_asked} asked for` : null;
    setFacts(byId("run-facts", HTMLDListElement), [
      ["Executor", info ? executorName(info.executor) : null],
      ["Threads", threads],
      ["SIMD", info?.executor === "wasm" ? (info.relaxed_simd ? "relaxed" : "128 bit") : null],
      ...times,
      ["Weights in memory", info?.memory?.weights ? formatBytes(info.memory.weights) : null],
      ["Memory in use", info?.memory?.total ? formatBytes(info.memory.total) : null],
    ]);
  }
}

/** A progress bar at `part`, or moving while it is not known. @param {HTMLProgressElement} bar @param {number | null} part */
export function showPart(bar, part) {
  if (part === null) bar.removeAttribute("value");
  else bar.value = part;
}
