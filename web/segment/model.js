/**
 * The model of the Segment page, and where the time went.
 */
import { code, formatMs } from "../lib/ui.js";

/** @type {import("../lib/card.js").Kind} */
export const sam = {
  served: [{ model: new URL("../../models/mobilesam/", import.meta.url).href, name: "MobileSAM", about: "Finds the object under a click." }],
  task: "sam",
  family: "A Segment Anything model",
  own: {
    summary: "Use another Segment Anything model",
    about: ["A ", code(".pt"), " or ", code(".pth"), " file of MobileSAM or SAM ViT-B as its makers give it, or a folder with ", code("config.json"),
      " and ", code("model.safetensors"), ". It is read on this device, not sent anywhere."],
    accept: ".pt,.pth,.safetensors,.json",
  },
  missing(names) {
    if (loneTorch(names)) return [];
    const wanted = names.includes("config.json") ? [] : ["config.json"];
    if (!names.some((name) => name.endsWith(".safetensors"))) wanted.push("model.safetensors");
    return wanted;
  },
  useful: (files) => files.filter(({ name }) => (loneTorch(files.map((each) => each.name)) ? isTorch(name) : /\.(json|safetensors)$/.test(name))),
};

const isTorch = (/** @type {string} */ name) => /\.pth?$/i.test(name);
/** A checkpoint as its makers give it: one file that needs no other. @param {string[]} names */
const loneTorch = (names) => !names.includes("config.json") && names.filter(isTorch).length === 1;

/** Whether a file that was dropped is a model, not a picture. @param {string} name */
export const isModelFile = (name) => /\.(pth?|safetensors)$/i.test(name);

/**
 * @param {any} info what load() told
 * @param {Record<string, number>} timings of the picture and of the last answer
 * @returns {Array<[string, string | null]>}
 */
export function runTimes(info, timings) {
  const ms = (/** @type {number | undefined} */ value) => (value && value > 0 ? formatMs(value) : null);
  return [
    ["Load", ms(info?.timings?.load_ms)],
    ["Prepare the picture", ms(timings.preprocess_ms)],
    ["Encode", timings.restore_ms !== undefined ? `kept, read back in ${formatMs(timings.restore_ms)}` : ms(timings.encode_ms)],
    ["Decode", ms(timings.decode_ms)],
    ["Click to mask", ms(timings.click_ms)],
    ["Everything", ms(timings.everything_ms)],
  ];
}
