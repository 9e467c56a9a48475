// Times a transcription (`candlewick bench transcribe --browser`, measure.js).
import { readSound } from '../lib/audio.js';
import { engine, measure, median, now, settingsOf } from './measure.js';

/**
 * @typedef {object} Run
 * @property {number} total_ms from the request to the result, as the page sees it
 * @property {number} first_partial_ms from the request to the first piece of text
 * @property {any} result what the engine answered
 * @property {number} first_partial_at
 * @property {number} first_segment_at
 * @property {number} done_at
 */

/** Of the transcriptions that follow. @type {Record<string, any>} */
let options = {};

/** @param {any} audio @returns {Promise<Run>} */
async function once(audio) {
  const from = now();
  let partial = 0;
  let segment = 0;
  const result = await engine.transcribe({ audio, options }, {
    onEvent: (/** @type {any} */ event) => {
      if (event.event === 'segment') segment ||= now();
      if (event.event === 'segment' || (event.event === 'token' && event.text?.trim())) partial ||= now();
    },
  });
  const done = now();
  return {
    total_ms: done - from, first_partial_ms: (partial || done) - from, result,
    first_partial_at: partial || done, first_segment_at: segment || done, done_at: done,
  };
}

measure({
  settings: settingsOf({ model: '../../models/whisper-tiny.en/', executor: 'auto', runs: 5 }),
  ask: 'Choose a recording.',
  read: async (blob) => (await readSound(blob)).sound,
  once,
  more: { use: (/** @type {Record<string, any>} */ wanted) => { options = wanted; } },
  lines(_loaded, run, all) {
    const part = (/** @type {string} */ name) => median(all.map((one) => one.result.timings[name]));
    return {
      first_text_ms: Math.round(run.first_segment_at), mel_ms: part('mel_ms'), encode_ms: part('encode_ms'),
      decode_ms: part('decode_ms'), total_ms: median(all.map((one) => one.total_ms)), text: run.result.text,
    };
  },
});
