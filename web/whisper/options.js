/**
 * The options panel -> the fields of TranscribeOptions that differ from the rules of the reference.
 */
import { byId, el } from "../lib/ui.js";

const language = byId("language", HTMLSelectElement);
const translate = byId("translate", HTMLInputElement);
const prompt = byId("prompt", HTMLTextAreaElement);
const temperature = byId("temperature", HTMLSelectElement);
const previous = byId("previous", HTMLInputElement);
const words = byId("words", HTMLInputElement);
let multilingual = false;

/**
 * Offer what this checkpoint knows.
 * @param {{multilingual?: boolean, languages?: string[]}} info
 */
export function applyLanguages(info) {
  multilingual = !!info.multilingual;
  const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });
  const codes = multilingual ? info.languages ?? [] : ["en"];
  const known = codes.map((code) => ({ code, name: names.of(code) ?? code })).sort((a, b) => a.name.localeCompare(b.name));
  const before = language.value;
  language.replaceChildren(...(multilingual ? [el("option", { value: "", text: "Find out" })] : []),
    ...known.map(({ code, name }) => el("option", { value: code, text: name })));
  if (codes.includes(before) && multilingual) language.value = before;
  language.disabled = !multilingual;
  byId("language-hint", HTMLSpanElement).textContent = multilingual ? "Found from the first 30 seconds unless you pick it." : "This model knows English only.";
  byId("translate-row", HTMLLabelElement).hidden = !multilingual;
}

/** @returns {Record<string, unknown>} */
export function options() {
  return {
    ...(multilingual && language.value && { language: language.value }),
    ...(multilingual && translate.checked && { task: "translate" }),
    ...(prompt.value.trim() && { initial_prompt: prompt.value.trim() }),
    ...(temperature.value !== "auto" && { temperatures: [Number(temperature.value)] }),
    ...(words.checked && { word_timestamps: true }),
    ...(!previous.checked && { condition_on_previous_text: false }),
  };
}
