/**
 * What a person takes away: the words copied, a file in one of the formats, all files of the queue as one archive.
 */
import { formats, inLines } from "../lib/formats.js";
import { copied, fileName } from "../lib/page.js";
import { byId, saveFile, settings } from "../lib/ui.js";
import { zip } from "../lib/zip.js";

/** @typedef {import("./job.js").Job} Job */

const line = byId("line-length", HTMLSelectElement);
line.value = settings.get("line");
if (line.selectedIndex < 0) line.value = "";
line.addEventListener("change", () => settings.set("line", line.value));

/** @param {Job} job @param {string} format */
function written(job, format) {
  const cut = line.value && (format === "srt" || format === "vtt") ? inLines(job.result, Number(line.value)) : job.result;
  return formats[format].write(cut);
}

/** @param {Job} job @param {string} format */
const named = (job, format) => `${fileName(job.name, "transcript")}.${format}`;

/** @param {Job | null} job @param {HTMLButtonElement} on */
export function copyWords(job, on) {
  if (job?.result) void copied(on, formats.txt.write(job.result).trimEnd());
}

/**
 * Listen to the buttons that save.
 * @param {() => Job | null} shown
 * @param {() => Job[]} all
 */
export function listenToSave(shown, all) {
  for (const button of document.querySelectorAll("button[data-format]")) {
    button.addEventListener("click", () => {
      const job = shown(), format = /** @type {HTMLElement} */ (button).dataset.format ?? "txt";
      if (job?.result) saveFile(named(job, format), new Blob([written(job, format)], { type: `${formats[format].type};charset=utf-8` }));
    });
  }
  for (const button of document.querySelectorAll("button[data-all]")) {
    button.addEventListener("click", () => {
      const format = /** @type {HTMLElement} */ (button).dataset.all ?? "txt";
      const files = all().filter((job) => job.result?.segments.length).map((job) => ({ name: named(job, format), text: written(job, format) }));
      saveFile(`transcripts-${format}.zip`, zip(files));
    });
  }
  byId("save-recording", HTMLButtonElement).addEventListener("click", () => {
    const job = shown();
    if (job?.source.blob) saveFile(`${fileName(job.name, "recording")}.wav`, job.source.blob);
  });
}

/** Which of the buttons there are for this job. @param {Job} job */
export function showSave(job) {
  const some = !!job.result?.segments.length, away = byId("take-away", HTMLDivElement);
  away.hidden = !job.ended || (!some && !job.source.recorded);
  for (const button of away.querySelectorAll("button")) button.hidden = !some;
  byId("save-recording", HTMLButtonElement).hidden = !job.source.recorded;
  byId("by-words", HTMLDivElement).hidden = !job.segments.some((segment) => segment.words?.length);
}
