/**
 * A transcription result -> the text formats people take away. The same words, to the byte, as
 * py/candlewick/models/whisper/subtitles.py writes (tests/browser/test_page_formats.py holds the two together).
 *
 * @typedef {{start: number, end: number, text: string}} Segment seconds
 * @typedef {{text: string, segments: Segment[]}} Result
 */

/** What Python's str.split() takes for space. */
const SPACE = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/;

/** Plain text, a line a segment. @param {Result} result */
export function toTxt(result) {
  return result.segments.map(({ text }) => `${oneLine(text)}\n`).join("");
}

/** SubRip: numbered, times with a comma. @param {Result} result */
export function toSrt(result) {
  return result.segments.map(({ start, end, text }, i) =>
    `${i + 1}\n${clock(start, ",")} --> ${clock(end, ",")}\n${oneLine(text).replaceAll("-->", "->")}\n\n`).join("");
}

/** WebVTT: what has a meaning in its text is escaped. @param {Result} result */
export function toVtt(result) {
  return "WEBVTT\n\n" + result.segments.map(({ start, end, text }) =>
    `${clock(start, ".")} --> ${clock(end, ".")}\n${escaped(oneLine(text))}\n\n`).join("");
}

/** Everything that is known; the same values as Python writes (which has 2.0 where JavaScript has 2). @param {object} result */
export function toJson(result) {
  return `${JSON.stringify(result, null, 2)}\n`;
}

/** An empty line would end a cue. @param {string} text */
function oneLine(text) {
  return text.split(SPACE).filter(Boolean).join(" ");
}

/** @param {string} text */
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** 3671.5 -> 01:01:11.500 @param {number} seconds @param {string} point */
function clock(seconds, point) {
  const ms = Math.floor(seconds * 1000 + 0.5);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  return `${two(Math.floor(ms / 3_600_000))}:${two(Math.floor(ms / 60_000) % 60)}:${two(Math.floor(ms / 1000) % 60)}${point}`
    + String(ms % 1000).padStart(3, "0");
}

/** @type {Record<string, {write: (result: any) => string, type: string}>} */
export const formats = {
  txt: { write: toTxt, type: "text/plain" },
  srt: { write: toSrt, type: "application/x-subrip" },
  vtt: { write: toVtt, type: "text/vtt" },
  json: { write: toJson, type: "application/json" },
};
