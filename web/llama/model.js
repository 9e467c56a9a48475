/**
 * The models of the Llama page, a person's own, and where the time of an answer went.
 */
import { code, formatBytes, formatMs } from "../lib/ui.js";

const folder = (/** @type {string} */ name) => new URL(`../../models/${name}/`, import.meta.url).href;

/** @type {import("../lib/card.js").Kind} */
export const llama = {
  served: [{ model: folder("smollm2-135m-instruct"), name: "SmolLM2 135M Instruct", about: "A small English chat model." }],
  task: "llama",
  family: "A language model",
  own: {
    summary: "Use another language model",
    about: ["A ", code(".gguf"), " file; a llama2.c ", code(".bin"), " with its ", code("tokenizer.bin"), "; or a folder with ", code("config.json"), ", ",
      code("tokenizer.json"), " and ", code(".safetensors"), ". Llama, Mistral and Qwen2 architectures. It is read on this device, not sent anywhere."],
    accept: ".gguf,.bin,.json,.jinja,.safetensors,.npz,.pt,.pth",
  },
  missing(names) {
    if (names.some((name) => ending(name) === "gguf")) return [];
    if (names.includes("config.json")) {
      const wanted = names.includes("tokenizer.json") ? [] : ["tokenizer.json"];
      if (!names.some((name) => WEIGHTS.includes(ending(name)))) wanted.push("model.safetensors");
      return wanted;
    }
    const bins = names.filter((name) => ending(name) === "bin");
    if (bins.length === 0) return names.some((name) => WEIGHTS.includes(ending(name))) ? ["config.json", "tokenizer.json"] : ["a .gguf file, or config.json with its weights"];
    return bins.length > 1 ? [] : [bins.every(isTokenizer) ? "the model's own .bin" : "tokenizer.bin"];
  },
  useful(files) {
    const [gguf] = files.filter(({ name }) => ending(name) === "gguf").sort((a, b) => b.size - a.size);
    if (gguf) return [gguf];
    if (files.some(({ name }) => name === "config.json")) return files.filter(({ name }) => [...WEIGHTS, "json", "jinja", "model"].includes(ending(name)));
    const bins = files.filter(({ name }) => ending(name) === "bin").sort((a, b) => b.size - a.size);
    const tokenizer = bins.find(({ name }) => isTokenizer(name)) ?? bins[bins.length - 1];
    const model = /** @type {File} */ (bins.find((each) => each !== tokenizer));
    return [model, new File([tokenizer], "tokenizer.bin")];   // the engine knows it by this name
  },
};

const WEIGHTS = ["safetensors", "npz", "bin", "pt", "pth"];
const ending = (/** @type {string} */ name) => name.slice(name.lastIndexOf(".") + 1).toLowerCase();
const isTokenizer = (/** @type {string} */ name) => /^tok/i.test(name);

/**
 * The model that a link names, or the first. A folder of this site that is not in the list is put into it.
 * @param {string | null} name
 */
export function modelNamed(name) {
  const { served } = llama;
  if (!name || !/^[\w][\w.-]*$/.test(name)) return served[0];
  const model = folder(name);
  const found = served.find((each) => each.model === model);
  if (found) return found;
  served.push({ model, name, about: "A model of this site." });
  return served[served.length - 1];
}

/** How a link names a model; null for a person's own. @param {import("../lib/link.js").Model} model */
export function linkName({ model }) {
  return model && decodeURIComponent(new URL(model).pathname.split("/").at(-2) ?? "");
}

/** Tokens a second, or null where there is nothing to divide. @param {number} tokens @param {number} ms */
export const rate = (tokens, ms) => (tokens > 0 && ms > 0 ? tokens * 1000 / ms : null);

/** @param {number} value tokens a second */
export const formatRate = (value) => `${value < 99.5 ? value.toFixed(1) : Math.round(value)} tokens/s`;

/**
 * @param {any} info what load() told
 * @param {import("./conversation.js").Outcome | null} last the last answer
 * @returns {Array<[string, string | null]>}
 */
export function runTimes(info, last) {
  const timings = last?.timings;
  const read = timings && last.prompt_tokens !== null ? rate(last.prompt_tokens - last.reused_tokens, timings.prefill_ms) : null;
  const wrote = timings ? rate(timings.tokens - 1, timings.decode_ms) : null;
  return [
    ["Weights", info?.dtype ? `${String(info.dtype).toUpperCase()}, ${formatCount(info.parameters)} parameters` : null],
    ["Context", info?.capacity ? `${info.capacity.toLocaleString("en")} of ${info.context.toLocaleString("en")} tokens` : null],
    ["Context in memory", info?.kv_bytes_per_token ? formatBytes(info.kv_bytes_per_token * info.capacity) : null],
    ["Load", info?.timings?.load_ms ? formatMs(info.timings.load_ms) : null],
    ["First token", timings?.first_token_ms ? formatMs(timings.first_token_ms) : null],
    ["Read", read ? `${formatRate(read)} (${(last?.prompt_tokens ?? 0) - (last?.reused_tokens ?? 0)} of ${last?.prompt_tokens} tokens)` : null],
    ["Write", wrote ? formatRate(wrote) : null],
  ];
}

/** 135 M, 1.1 B @param {number} n */
const formatCount = (n) => (n >= 1e9 ? `${(n / 1e9).toFixed(1)} B` : n >= 1e6 ? `${Math.round(n / 1e6)} M` : n.toLocaleString("en"));
