/**
 * The model of the Whisper page, and where the time of a run went.
 */
import { code, formatMs } from "../lib/ui.js";

/** @type {import("../lib/card.js").Kind} */
export const whisper = {
  served: [{ model: new URL("../../models/whisper-tiny.en/", import.meta.url).href, name: "Whisper tiny.en", about: "English speech to text." }],
  task: "whisper",
  family: "A Whisper model",
  own: {
    summary: "Use another Whisper model",
    about: ["A whisper.cpp ", code(".bin"), " file, or a folder or files in Hugging Face form: ", code("config.json"), ", ",
      code("tokenizer.json"), " and ", code("model.safetensors"), " (or its parts with their ", code(".index.json"), "). It is read on this device, not sent anywhere."],
    accept: ".bin,.json,.safetensors",
  },
  missing(names) {
    if (alone(names)) return [];
    const wanted = ["config.json", "tokenizer.json"].filter((name) => !names.includes(name));
    if (!names.some((name) => WEIGHTS.test(name))) wanted.push("model.safetensors");
    return wanted;
  },
  useful: (files) => files.filter(({ name }) => (alone(files.map((file) => file.name)) ? ALONE.test(name) : WEIGHTS.test(name) || /\.(json|txt)$/i.test(name))),
};

const WEIGHTS = /\.(safetensors|bin|pt|pth|npz)$/i;
/** Files that are a whole model: whisper.cpp's; a GGUF, which belongs to another page and is told so. */
const ALONE = /\.(bin|gguf)$/i;
/** @param {string[]} names */
const alone = (names) => !names.includes("config.json") && names.filter((name) => ALONE.test(name)).length === 1;

/** Whether files that were dropped are a model, not sound. @param {string[]} names */
export const isModel = (names) => names.some((name) => /\.(safetensors|gguf|pth?|npz|bin)$/i.test(name)) || names.includes("config.json");

/**
 * @param {any} info what load() told
 * @param {Record<string, number> | null} timings of the last run
 * @param {number} seconds of sound
 * @returns {Array<[string, string | null]>}
 */
export function runTimes(info, timings, seconds) {
  const ms = (/** @type {string} */ name, /** @type {any} */ from = timings) => (from?.[name] > 0 ? formatMs(from[name]) : null);
  const tokens = timings?.tokens ?? 0;
  return [
    ["Load", ms("load_ms", info?.timings)],
    ["Read", ms("read_ms")],
    ["Spectrogram", ms("mel_ms")],
    ["Encode", ms("encode_ms")],
    ["Decode", timings && tokens ? `${formatMs(timings.decode_ms)}, ${tokens} tokens` : ms("decode_ms")],
    ["Per token", timings && tokens ? formatMs1(timings.decode_ms / tokens) : null],
    ["Total", ms("total_ms")],
    ["Speed", timings?.total_ms ? `${(seconds * 1000 / timings.total_ms).toFixed(1)}× real time` : null],
  ];
}

/** @param {number} ms */
const formatMs1 = (ms) => `${ms < 100 ? ms.toFixed(1) : Math.round(ms)} ms`;
