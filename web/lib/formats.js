/**
 * A transcription result -> the text formats people take away. The same words, to the byte, as
 * py/candlewick/models/whisper/subtitles.py (tests/browser/test_page_formats.py holds the two together).
 *
 * @typedef {{start: number, end: number, text: string}} Segment seconds
 * @typedef {{text: string, segments: Segment[]}} Result
 */

/** Plain text, a line a segment. @param {Result} result */
export function toTxt(result) {
  return result.segments.map(({ text }) => `${text.trim()}\n`).join("");
}

/** SubRip subtitles. @param {Result} result */
export function toSrt(result) {
  return result.segments.map(({ start, end, text }, i) => `${i + 1}\n${stamp(start, ",")} --> ${stamp(end, ",")}\n${cue(text)}\n\n`).join("");
}

/** WebVTT subtitles. @param {Result} result */
export function toVtt(result) {
  return "WEBVTT\n\n" + result.segments.map(({ start, end, text }) => `${stamp(start, ".")} --> ${stamp(end, ".")}\n${cue(text)}\n\n`).join("");
}

/** Everything that is known. @param {object} result */
export function toJson(result) {
  return `${JSON.stringify(result, null, 2)}\n`;
}

/** An arrow inside the words would read as a time line. @param {string} text */
function cue(text) {
  return text.trim().replaceAll("-->", "->");
}

/** 00:01:02.500 @param {number} seconds @param {string} point */
function stamp(seconds, point) {
  const ms = Math.round(seconds * 1000);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  return `${two(Math.floor(ms / 3_600_000))}:${two(Math.floor(ms / 60_000) % 60)}:${two(Math.floor(ms / 1000) % 60)}${point}${String(ms % 1000).padStart(3, "0")}`;
}

/** @type {Record<string, {write: (result: any) => string, type: string}>} */
export const formats = {
  txt: { write: toTxt, type: "text/plain" },
  srt: { write: toSrt, type: "application/x-subrip" },
  vtt: { write: toVtt, type: "text/vtt" },
  json: { write: toJson, type: "application/json" },
};
