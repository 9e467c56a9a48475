/**
 * The model of the Segment page, and where the time went.
 */
import { formatMs } from "../lib/ui.js";

/** @type {import("../lib/card.js").Kind} */
export const sam = {
  served: { model: new URL("../../models/mobilesam/", import.meta.url).href, name: "MobileSAM" },
  about: "Finds the object under a click.",
  family: "A Segment Anything folder",
  missing(names) {
    const wanted = names.includes("config.json") ? [] : ["config.json"];
    if (!names.some((name) => name.endsWith(".safetensors"))) wanted.push("model.safetensors");
    return wanted;
  },
};

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
