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

/** What a beam does and greedy decoding does not. */
const showBeam = () => { patience.disabled = penalty.disabled = beam.value === "1"; };
beam.addEventListener("change", showBeam);
showBeam();

/** A number in the field's range, or null where there is none. @param {HTMLInputElement} field */
function numberOf(field) {
  return field.value === "" || !field.checkValidity() ? null : Number(field.value);
}

/** @returns {Record<string, unknown>} */
export function decoding() {
  const beams = Number(beam.value), samples = Number(best.value);
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
