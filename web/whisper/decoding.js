/**
 * How the words are searched for -> fields of TranscribeOptions that differ from its defaults.
 */
import { byId } from "../lib/ui.js";

const beam = byId("beam", HTMLSelectElement);
const best = byId("best-of", HTMLSelectElement);
const patience = byId("patience", HTMLInputElement);
const penalty = byId("length-penalty", HTMLInputElement);
const fast = byId("fast", HTMLInputElement);
const before = byId("before", HTMLTextAreaElement);

const temperature = byId("temperature", HTMLSelectElement);

/** Beams are followed at temperature 0, tries are drawn above it: what the temperature rules out cannot be chosen. */
function showUsable() {
  beam.disabled = Number(temperature.value) > 0;
  best.disabled = temperature.value === "0";
  patience.disabled = penalty.disabled = beam.disabled || beam.value === "1";
}
for (const each of [beam, temperature]) each.addEventListener("change", showUsable);
showUsable();

/** A number in the field's range, or null where there is none. @param {HTMLInputElement} field */
function numberOf(field) {
  return field.value === "" || !field.checkValidity() ? null : Number(field.value);
}

/** @returns {Record<string, unknown>} */
export function decoding() {
  const beams = beam.disabled ? 1 : Number(beam.value), samples = best.disabled ? 1 : Number(best.value);
  const waits = numberOf(patience), longer = numberOf(penalty);
  return {
    ...(beams > 1 && { beam_size: beams }),
    ...(samples > 1 && { best_of: samples }),
    ...(beams > 1 && waits !== null && waits !== 1 && { patience: waits }),
    ...(beams > 1 && longer !== null && { length_penalty: longer }),
    ...(before.value.trim() && { initial_prompt: before.value.trim() }),
    ...(fast.checked && { context: "short" }),
  };
}
