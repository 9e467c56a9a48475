// Times text generation (`candlewick bench generate --browser`, measure.js). The prompt is a text file.
import { engine, measure, median, now, settingsOf } from './measure.js';

const settings = settingsOf({
  model: /** @type {string | null} */ ('../../models/smollm2-135m-instruct/'), executor: 'auto', runs: 5, max_tokens: 64,
});

/**
 * Always the likeliest token, and as many as are asked for.
 * @param {string} prompt @param {number} max_tokens @param {(event: any) => void} [onEvent]
 */
const generate = (prompt, max_tokens, onEvent) => engine.request('generate', {
  prompt, options: { max_tokens, greedy: true, repeat_penalty: 1, ignore_end: true },
}, onEvent ? { onEvent } : {});

/**
 * One greedy generation, counted as the page sees it: prefill up to the first token, decode from there to the last one.
 * Every run but the first begins by a word that the prompt does not begin with, so that nothing of the prompt lies in the
 * KV cache any more.
 * @param {string} prompt @param {boolean} first
 */
async function once(prompt, first) {
  if (!first) await generate(prompt.startsWith('0') ? '1' : '0', 1);
  const from = now();
  const at = /** @type {number[]} */ ([]);
  const result = await generate(prompt, settings.max_tokens, (event) => { if (event.event === 'token' && event.token !== null) at.push(now()); });
  const prefilled = result.prompt_tokens - (result.reused_tokens ?? 0);
  return {
    total_ms: now() - from, first_token_at: at[0], prefill_tokens: prefilled, reused_tokens: result.reused_tokens ?? 0,
    prefill_ms: at[0] - from, prefill_tok_s: prefilled * 1000 / (at[0] - from), tokens: result.token_ids.length,
    decode_ms: at[at.length - 1] - at[0],
    decode_tok_s: at.length > 1 ? (at.length - 1) * 1000 / (at[at.length - 1] - at[0]) : null,
    text: result.text, token_ids: result.token_ids, stop_reason: result.stop_reason, timings: result.timings,
  };
}

/** Text of the picked file, for what is measured beside the runs. */
let prompt = '';

/**
 * A decode step in the engine, whole and what of it passes in the kernels' loop with its barriers: a text behind a prompt that
 * is in the KV cache already, so that only decode steps run. Milliseconds; null where there are no kernels.
 */
async function steps() {
  await generate(prompt, 1);
  const { kernels: before } = await engine.describe();
  const { timings, token_ids } = await generate(prompt, settings.max_tokens);
  const { kernels: after } = await engine.describe();
  if (!before || !after || token_ids.length < 2) return null;
  const step_ms = timings.decode_ms / (token_ids.length - 1);
  const loop_ms = (after.ms - before.ms) / (after.runs - before.runs);
  return { step_ms, loop_ms, outside: 1 - loop_ms / step_ms };
}

measure({
  settings, ask: 'Choose a text file with the prompt.', once,
  read: async (file) => (prompt = await file.text()),
  lines: (_loaded, run, all) => ({
    first_token_ms: Math.round(run.first_token_at), prompt_tokens: run.prefill_tokens,
    prefill_tok_s: median(all.map((one) => one.prefill_tok_s)), decode_tok_s: median(all.map((one) => one.decode_tok_s ?? 0)),
    text: run.text,
  }),
  more: { steps },
});
