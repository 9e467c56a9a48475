/**
 * A transcription result -> the text formats people take away. The same words, to the byte, as
 * py/candlewick/models/whisper/subtitles.py writes (tests/browser/test_page_formats.py holds the two together).
 *
 * @typedef {{word: string, start: number, end: number}} Word
 * @typedef {{start: number, end: number, text: string, words?: Word[]}} Segment seconds
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

/**
 * The result with segments of at most `length` characters, cut between words that have times; 1 gives one word each. A
 * segment without words stays whole, and so does a word that is longer.
 * @template {Result} R
 * @param {R} result @param {number} length
 * @returns {R}
 */
export function inLines(result, length) {
  /** @type {Segment[]} */
  const lines = [];
  for (const segment of result.segments) {
    /** @type {Word[]} */
    let row = [];
    const end = () => lines.push({ ...segment, start: row[0].start, end: row[row.length - 1].end, text: said(row), words: row });
    for (const word of segment.words ?? []) {
      if (row.length && [...said([...row, word]).trim()].length > length) {
        end();
        row = [];
      }
      row.push(word);
    }
    if (row.length) end();
    else lines.push({ ...segment });
  }
  return { ...result, segments: lines.map((line, id) => ({ ...line, id })) };
}

/** @param {Word[]} words */
const said = (words) => words.map(({ word }) => word).join("");

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
