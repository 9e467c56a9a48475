/**
 * Whether the executor in use computes what it should, told on the page: a button that compares every kernel and a step of the
 * model with the reference in this browser, how far it is, and a verdict. Drivers are often wrong in silence: a device that was
 * found wrong is never gone on with unsaid.
 */
import { fasterWords, keepTrial, trialOf } from "./device.js";
import { announce } from "./page.js";
import { byId, el, formatBytes, formatMs, setFacts, settings } from "./ui.js";

/**
 * @typedef {import("../../workers/protocol.js").Checked} Checked
 * @typedef {import("../../workers/protocol.js").Verified} Verified
 */

/** What is known of a GPU, browser and version together. @param {any} gpu @returns {string} key of a setting */
const keyOf = (gpu) => `wrong ${gpu.vendor} ${gpu.architecture} ${gpu.name} ${navigator.userAgent}`;

/** @param {any} info what load() told */
const onGpu = (info) => info?.executor === "webgpu";

export class Verify {
  /** @type {AbortController | null} */
  #stop = null;
  /** Ops that were wrong so far. @type {string[]} */
  #seen = [];
  /** The load that the outcome belongs to. @type {any} */
  #of = null;
  #timer = 0;

  /** @param {import("./link.js").Link} link @param {() => void} toWasm chooses WASM, as a person would */
  constructor(link, toWasm) {
    this.link = link;
    this.toWasm = toWasm;
  }

  /** What stands in "How it runs". @returns {HTMLElement} */
  static panel() {
    return el("div", { class: "stack", id: "verify", hidden: true },
      el("details", { id: "gpu" }, el("summary", { class: "small", text: "The GPU" }), el("dl", { class: "facts", id: "gpu-facts" })),
      el("div", { class: "row" },
        el("button", { type: "button", class: "button compact", id: "verify-go" }),
        el("button", { type: "button", class: "button compact", id: "verify-stop", text: "Stop", hidden: true })),
      el("div", { class: "meter", id: "verify-meter", hidden: true },
        el("progress", { id: "verify-bar", max: 1, "aria-label": "Verification" }),
        el("p", { class: "spread muted" }, el("span", { id: "verify-doing" }), el("span", { id: "verify-left" }))),
      el("div", { class: "stack", id: "verify-outcome" }));
  }

  /** The panel is in the page. */
  listen() {
    byId("verify-go", HTMLButtonElement).addEventListener("click", () => void this.run());
    byId("verify-stop", HTMLButtonElement).addEventListener("click", () => this.#stop?.abort());
    byId("gpu", HTMLDetailsElement).addEventListener("toggle", () => this.showGpu());
  }

  get running() {
    return this.#stop !== null;
  }

  /** Bring the panel in step with the link. */
  show() {
    const { info, state } = this.link;
    const possible = (info?.executor === "webgpu" || info?.executor === "wasm") && (state === "ready" || state === "busy");
    byId("verify", HTMLDivElement).hidden = !possible;
    if (info !== this.#of) {                              // another load: what was said is not about it
      this.#of = info;
      this.#stop?.abort();
      byId("verify-outcome", HTMLDivElement).replaceChildren();
      if (onGpu(info) && info.gpu && settings.get(keyOf(info.gpu))) this.#warn(settings.get(keyOf(info.gpu)));
      this.showGpu();
      const { gpu } = info ?? {};
      const before = trialOf(this.link.family), known = before && gpu && before.key === keyOf(gpu) && before.version === info.version;
      if (onGpu(info) && gpu && !gpu.software && this.link.choice.executor === "auto" && !known) this.link.trial = this.#try(info);
      else if (onGpu(info) && known && before?.failed) this.#offerTrial(info, before.failed);
    }
    byId("gpu", HTMLDetailsElement).hidden = !onGpu(info) || !info.gpu;
    const go = byId("verify-go", HTMLButtonElement);
    go.textContent = onGpu(info) ? "Verify on this GPU" : "Verify the kernels";
    go.hidden = this.running;
    byId("verify-stop", HTMLButtonElement).hidden = byId("verify-meter", HTMLDivElement).hidden = !this.running;
  }

  /** Every kernel, and a step of the model. */
  async run() {
    if (this.running) return;
    const stop = this.#stop = new AbortController();
    const outcome = byId("verify-outcome", HTMLDivElement), began = performance.now();
    outcome.replaceChildren();
    this.#tell({ stage: "", done: 0, total: 0 });
    this.show();
    byId("verify-stop", HTMLButtonElement).focus();
    announce("Verifying");
    /** @type {Node[]} */
    let said;
    try {
      const found = await this.link.run("verify", {}, {
        signal: stop.signal, onEvent: (event) => { if (event.event === "progress" && this.#stop === stop) this.#tell(event); },
      });
      said = this.#verdict(found, performance.now() - began);
    } catch (error) {
      said = this.#unfinished(/** @type {any} */ (error));
    }
    if (this.#stop !== stop) return;
    this.#stop = null;
    if (stop.signal.aborted && this.link.info !== this.#of) return this.show();
    outcome.replaceChildren(...said);
    announce(outcome.querySelector("h3")?.textContent ?? "");
    this.show();
    byId("verify-go", HTMLButtonElement).focus({ preventScroll: true });
  }

  /** @param {{stage: string, done: number, total: number, file?: string, wrong?: string[]}} event */
  #tell({ stage, done, total, file = "", wrong = [] }) {
    this.#seen = wrong;
    const bar = byId("verify-bar", HTMLProgressElement);
    if (total > 0) bar.value = done / total;
    else bar.removeAttribute("value");
    const words = stage === "verify" ? `Kernels: ${file}` : stage === "verify model" ? `The model: ${file}` : "Opening the files";
    byId("verify-doing", HTMLSpanElement).textContent = words;
    byId("verify-left", HTMLSpanElement).textContent = total > 0 ? `${done} of ${total}` : "";
  }

  /** @param {Verified} found @param {number} ms @returns {Node[]} */
  #verdict(found, ms) {
    const where = placeOf(found.executor), lost = !found.ok && !wrongOps(found).length;
    if (lost) return [this.#wrong("The GPU went away", el("p", { text: "What was compared until then agreed. Verify again, or use WASM." })), errorsOf(found.rows)];
    this.#remember(found.ok ? "" : wrongWords(found, found.executor));
    const facts = `${found.checks} comparisons with NumPy, of kernels alone and in one step of ${this.link.model.name}, in ${formatMs(ms)}.`;
    if (found.ok) {
      return [el("div", { class: "notice good" }, el("h3", { text: `All ${found.kernels} kernels agree with the reference ${where}` }),
        el("p", { text: facts })), errorsOf(found.rows)];
    }
    return [this.#wrong(wrongWords(found, found.executor), el("p", { text: `${facts} What it writes, hears or sees may be wrong without a sign.` })), errorsOf(found.rows)];
  }

  /** For later visits with this GPU and browser. @param {string} words what is wrong with it, or "" */
  #remember(words) {
    const { info } = this.link;
    if (!onGpu(info) || !info.gpu) return;
    settings.set(keyOf(info.gpu), words);
    settings.set("wrong-gpu", words && navigator.userAgent);   // then "Automatic" is WASM
  }

  /**
   * A GPU that was chosen by itself is tried before it is first used, for a second or two, ahead of all requests: some kernels, and
   * whether it is faster than WASM. What it gave is remembered, also that it failed.
   * @param {any} info
   */
  async #try(info) {
    /** @type {Verified | null} */
    let found = null, failed = "";
    try {
      found = /** @type {Verified} */ (await this.link.run("verify", { model: false, quick: true, speed: true }));
      if (!found.ok && !wrongOps(found).length) failed = found.rows.find((row) => row.lost)?.error ?? "the GPU went away";
    } catch (/** @type {any} */ error) {
      failed = `${error?.message ?? error}`;
    }
    if (this.link.info !== info) return;                  // another load has taken its place
    const { gpu, version } = info, raced = { gpu: gpu.name, key: keyOf(gpu), version }, byHand = this.link.choice.executor !== "auto";
    if (failed || !found) {
      keepTrial(this.link.family, { ...raced, times: 0, failed });
      return byHand ? this.#offerTrial(info, failed) : this.#again("The trial of the GPU failed");
    }
    const words = found.ok ? "" : wrongWords(found, found.executor);
    this.#remember(words);
    if (words) return byHand ? this.#warn(words) : this.#again(words);
    const { speed } = found;
    if (speed) {
      const told = { ...raced, times: speed.times };
      keepTrial(this.link.family, told);
      if (speed.times < 1 && !byHand) return this.#again("WASM is faster here than the GPU");
      info.reason += speed.times < 1 ? ", slower than WASM in a short trial" : fasterWords(told, info);
      this.link.onChange();
    }
    const outcome = byId("verify-outcome", HTMLDivElement);
    if (byHand || !outcome.hasChildNodes()) {
      outcome.replaceChildren(el("p", { class: "small muted",
        text: `${byHand ? "In a trial of" : "Before its first use on"} this GPU, ${found.checks} checks of kernels agreed with the reference.` }));
    }
  }

  /** Of a GPU that a person chose although its trial failed: another one. @param {any} info @param {string} why */
  #offerTrial(info, why) {
    const outcome = byId("verify-outcome", HTMLDivElement);
    const again = el("button", { type: "button", class: "button compact", id: "verify-again", text: "Try again" });
    again.addEventListener("click", () => {
      outcome.replaceChildren(el("p", { class: "small muted", text: "The GPU is tried." }));
      announce("The GPU is tried");
      this.link.trial = this.#try(info);
    });
    outcome.replaceChildren(el("div", { class: "notice" }, el("h3", { text: "A trial of this GPU failed" }),
      el("p", { text: `${why}. Automatic takes WASM until a trial is passed.` }), el("div", { class: "row" }, again)));
  }

  /** Found at an earlier visit. @param {string} words */
  #warn(words) {
    byId("verify-outcome", HTMLDivElement).replaceChildren(
      this.#wrong(words, el("p", { text: "That was found at an earlier verification with this browser. Verify again, or use WASM." })));
  }

  /** @param {string} words @param {HTMLElement} more */
  #wrong(words, more) {
    const gpu = onGpu(this.link.info);
    const change = el("button", { type: "button", class: "button compact primary", id: "verify-wasm", text: "Use WASM" });
    change.addEventListener("click", () => this.toWasm());
    return el("div", { class: "notice bad", role: "alert" }, el("h3", { text: words }), more, ...(gpu ? [el("div", { class: "row" }, change)] : []));
  }

  /** Stopped, or it could not be done at all. @param {any} error @returns {Node[]} */
  #unfinished(error) {
    /** @type {Verified | undefined} */
    const part = error?.data?.result;
    const wrong = part && !part.ok && wrongOps(part).length > 0;
    if (error?.code === "cancelled" && !wrong && !this.#seen.length) {
      const words = part?.rows.length ? `The ${part.checks} comparisons up to there found nothing wrong.` : "Nothing is known yet.";
      return [el("div", { class: "notice" }, el("h3", { text: "Stopped" }), el("p", { text: words })), ...(part?.rows.length ? [errorsOf(part.rows)] : [])];
    }
    if (wrong || this.#seen.length) this.#remember(part && wrong ? wrongWords(part, this.link.info?.executor) : `Wrong ${placeOf(this.link.info?.executor)}: ${listed(this.#seen)}`);
    if (error?.code === "cancelled" && this.#seen.length && !part) {   // the engine was in the middle of something, and is a new one now
      return [this.#wrong(`Wrong ${placeOf(this.link.info?.executor)}: ${listed(this.#seen)}`, el("p", { text: "Stopped there." }))];
    }
    if (part && wrong) return [this.#wrong(wrongWords(part, this.link.info?.executor), el("p", { text: "Stopped there." })), errorsOf(part.rows)];
    return [this.#wrong("The verification failed", el("p", { text: `${error?.message ?? error}` }))];
  }

  /** The same choice is WASM now. @param {string} words why */
  #again(words) {
    this.link.reset();
    void this.link.ready().catch(() => {});
    announce(words);
  }

  /** What the GPU is, holds and took, while somebody looks. */
  showGpu() {
    clearTimeout(this.#timer);
    const { info } = this.link;
    if (!onGpu(info) || !info.gpu || !byId("gpu", HTMLDetailsElement).open) return;
    setFacts(byId("gpu-facts", HTMLDListElement), gpuFacts(info.gpu));
    const ask = async () => {
      const now = await this.link.describe().catch(() => null);
      if (now?.gpu && this.link.info === info) setFacts(byId("gpu-facts", HTMLDListElement), gpuFacts(now.gpu));
      else if (!now && this.link.info === info && byId("gpu", HTMLDetailsElement).open) this.#timer = window.setTimeout(ask, 1000);
    };
    this.#timer = window.setTimeout(ask, 200);            // after what is under way
  }
}

/** What a device computed wrongly, op and dtype; not what it was at when it went away. @param {Verified} found */
function wrongOps({ rows }) {
  const wrong = rows.filter((row) => !row.ok && !row.lost);
  return [...new Map(wrong.map((row) => [`${row.op} ${row.dtype}`, row])).values()];
}

/** @param {Verified} found @param {string} executor */
function wrongWords(found, executor) {
  const wrong = wrongOps(found), names = [...new Set(wrong.map(({ op }) => op))];
  return `${wrong.length === 1 ? "1 kernel is" : `${wrong.length} kernels are`} wrong ${placeOf(executor)}: ${listed(names)}`;
}

/** @param {string} executor */
const placeOf = (executor) => (executor === "webgpu" ? "on this GPU" : "in this browser");
/** @param {string[]} names */
const listed = (names) => `${names.slice(0, 4).join(", ")}${names.length > 4 ? " and more" : ""}`;

/** @param {any} gpu Adapter & GpuFacts @returns {Array<[string, string | null]>} */
function gpuFacts({ name, vendor, architecture, software, features = [], limits = {}, bytes, buffers, peak, times }) {
  const size = (/** @type {string} */ limit) => (limits[limit] ? formatBytes(limits[limit]) : null);
  return [
    ["Adapter", software ? `${name} (an emulator on the processor)` : name],
    ["Vendor, architecture", [vendor, architecture].filter(Boolean).join(", ")],
    ["Features used", features.length ? features.join(", ") : "none of those that kernels know"],
    ["Largest buffer", size("maxBufferSize")],
    ["Largest binding", size("maxStorageBufferBindingSize")],
    ["Workgroup", limits.maxComputeInvocationsPerWorkgroup ? `${limits.maxComputeInvocationsPerWorkgroup} threads, ${size("maxComputeWorkgroupStorageSize")}` : null],
    ["Subgroup", limits.subgroupMaxSize ? `${limits.subgroupMinSize === limits.subgroupMaxSize ? "" : `${limits.subgroupMinSize} to `}${limits.subgroupMaxSize} threads` : null],
    ["GPU memory", bytes ? `${formatBytes(bytes)} in ${buffers} buffers` : null],
    ["At most so far", peak ? formatBytes(peak) : null],
    ...Object.entries(times ?? {}).filter(([, each]) => each.runs).map(([entry, { runs, gpu_ms: ms }]) => /** @type {[string, string]} */ (
      [`Time of ${entry}`, `${(ms / runs).toFixed(ms / runs < 10 ? 2 : 0)} ms${runs > 1 ? `, ${runs} runs` : ""}`])),
    ["Times", times ? null : "this GPU tells none"],
  ];
}

/** The largest error of each op, the worst first. @param {Checked[]} rows */
function errorsOf(rows) {
  /** @type {Map<string, Checked & {checks: number}>} */
  const worst = new Map();
  const badness = (/** @type {Checked} */ row) => (row.max_rel_error === null ? Infinity : row.max_rel_error / (row.tolerance || 1e-30));
  for (const row of rows) {
    const before = worst.get(row.op), checks = (before?.checks ?? 0) + (row.checks ?? 1);
    worst.set(row.op, { ...(!before || badness(row) > badness(before) ? row : before), checks });
  }
  const sorted = [...worst.values()].sort((a, b) => Number(a.ok) - Number(b.ok) || (b.max_rel_error ?? 1) - (a.max_rel_error ?? 1));
  const number = (/** @type {number | null} */ value) => (value === null ? "none" : value === 0 ? "0" : value.toExponential(1));
  const line = (/** @type {Checked & {checks: number}} */ row) => el("tr", row.ok ? {} : { class: "wrong" },
    el("th", { scope: "row", text: row.op }),
    el("td", { class: "number", text: number(row.max_rel_error) }), el("td", { class: "number", text: number(row.tolerance) }),
    el("td", { class: "number", text: row.checks }));
  const wrong = [...new Map(rows.filter((row) => !row.ok).map((row) => [`${row.op} ${row.dtype} ${row.entry}`, row])).values()];
  return el("details", { id: "verify-errors", open: wrong.length > 0 },
    el("summary", { class: "small", text: "Largest error of each kernel" }),
    el("div", { class: "errors" },
      ...(wrong.length ? [el("ul", { class: "small wrong-list" }, ...wrong.slice(0, 12).map((row) => el("li", {
        text: `${row.op} (${row.dtype}${row.entry ? `, in ${row.entry}` : ""}; ${row.shape}): ${row.error ?? `off by ${number(row.max_rel_error)} of the largest value`}` })))] : []),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Largest errors" }, el("table", {},
        el("thead", {}, el("tr", {}, ...["Kernel", "Error", "Allowed", "Checks"].map((text) => el("th", { scope: "col", text })))),
        el("tbody", {}, ...sorted.map(line)))),
      el("p", { class: "small muted", text: "Errors are shares of the largest value that was wanted." })));
}
