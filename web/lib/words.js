/**
 * What the engine does and what went wrong, in words for a person.
 */
import { el, formatBytes, formatLeft } from "./ui.js";

const STAGES = /** @type {Record<string, string>} */ ({
  runtime: "Starting Python", download: "Downloading the model", weights: "Reading the weights", prepare: "Preparing the model",
  mel: "Making the spectrogram", shaders: "Compiling shaders for this GPU",
});

/**
 * Time left from steady progress, told only when it can be known.
 */
export class Pace {
  #began = 0;
  #from = 0;
  #stage = "";

  /** @param {string} stage @param {number} done @param {number} total @returns {string} words, or "" */
  left(stage, done, total) {
    const now = performance.now();
    if (stage !== this.#stage || done < this.#from) [this.#stage, this.#began, this.#from] = [stage, now, done];
    const spent = (now - this.#began) / 1000, gained = done - this.#from;
    if (spent < 1 || gained <= 0 || done >= total) return "";
    return formatLeft((spent / gained) * (total - done));
  }
}

/**
 * One line for what loading is doing now, and how far it is (null = not known).
 * @param {{stage: string, done?: number, total?: number, unit?: string} | null} progress
 * @returns {{words: string, part: number | null}}
 */
export function loadWords(progress) {
  if (!progress) return { words: "Starting the engine", part: null };
  const { stage, done = 0, total = 0, unit } = progress;
  const name = STAGES[stage] ?? stage;
  const counted = stage === "shaders" && total > 0 ? `: ${done} of ${total}` : "";
  const amount = unit === "bytes" && total > 0 ? `: ${formatBytes(done)} of ${formatBytes(total)}` : counted;
  return { words: name + amount, part: total > 0 ? Math.min(1, done / total) : null };
}

const ADVICE = /** @type {Record<string, [string, string]>} */ ({
  bad_input: ["This cannot be used", ""],
  bad_weights: ["The model's files are not as they should be", "Load it again; if it is your own folder, compare it with the message."],
  out_of_memory: ["Not enough memory", "Close other tabs, or choose a smaller model or a shorter file, then try again."],
  worker_died: ["The engine stopped unexpectedly", "It has been replaced. Try again."],
  network: ["The model could not be downloaded", "Look at your connection, then load it again: what came already is kept."],
  storage: ["The browser's storage refused", "Free some space or leave private browsing, then try again."],
  no_gpu: ["No GPU to be had", "Choose WASM SIMD in \"How it runs\", or try again."],
  device_lost: ["The GPU went away", "Try again; if it stays, choose WASM SIMD in \"How it runs\"."],
  gpu_error: ["The GPU cannot do this", "Choose WASM SIMD in \"How it runs\", and copy the diagnostics into a report."],
  internal: ["Something went wrong inside", "Try again. If it stays, copy the diagnostics into a report."],
});

/**
 * @param {any} error an EngineError, an AudioError, a PictureError or anything thrown
 * @param {string} [cannot] title for input that the model cannot work on
 * @returns {{title: string, message: string, advice: string}}
 */
export function errorWords(error, cannot) {
  const message = error?.message ? String(error.message) : String(error);
  if (error?.name === "AudioError") {
    const titles = /** @type {Record<string, string>} */ ({ mic_short: "Too short", sample: "The sample did not come" });
    const title = titles[error.code] ?? (String(error.code).startsWith("mic") ? "No microphone" : "This file cannot be used");
    return { title, message, advice: "" };
  }
  if (error?.name === "PictureError") return { title: String(error.title), message, advice: "" };
  const [title, advice] = ADVICE[error?.code] ?? ADVICE.internal;
  return { title: error?.code === "bad_input" && cannot ? cannot : title, message, advice };
}

/**
 * An error as a person should meet it: what happened, what to do, and the way to report it.
 * @param {unknown} error
 * @param {(button: HTMLButtonElement) => void} onDiagnostics
 * @param {string} [cannot]
 */
export function errorNotice(error, onDiagnostics, cannot) {
  const { title, message, advice } = errorWords(error, cannot);
  const button = el("button", { class: "button compact", type: "button", text: "Copy diagnostics" });
  button.addEventListener("click", () => onDiagnostics(button));
  return el("div", { class: "notice bad", role: "alert" },
    el("h3", { text: title }), el("p", { text: message }), ...(advice ? [el("p", { text: advice })] : []), el("div", { class: "row" }, button));
}

const EXECUTORS = /** @type {Record<string, string>} */ ({ wasm: "WASM SIMD", numpy: "NumPy", webgpu: "WebGPU" });

/** A name for people: WASM SIMD. @param {string} name */
export function executorName(name) {
  return EXECUTORS[name] ?? name;
}
