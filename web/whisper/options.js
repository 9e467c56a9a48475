/**
 * The options panel -> the fields of TranscribeOptions that differ from the rules of the reference.
 */
import { byId, el } from "../lib/ui.js";
import { decoding } from "./decoding.js";

const language = byId("language", HTMLSelectElement);
const translate = byId("translate", HTMLInputElement);
const prompt = byId("prompt", HTMLTextAreaElement);
const temperature = byId("temperature", HTMLSelectElement);
const previous = byId("previous", HTMLInputElement);
const words = byId("words", HTMLInputElement);
let multilingual = false;
const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });
/** More languages than this get a field that narrows the list. */
const MANY = 12;
const search = el("input", { type: "search", id: "language-search", placeholder: "Search languages", "aria-label": "Search languages", "aria-controls": "language", autocomplete: "off", hidden: true });
language.before(search);
/** What can be chosen, apart from "Find out". @type {HTMLOptionElement[]} */
let offered = [];

search.addEventListener("input", () => {
  const wanted = search.value.trim().toLowerCase();
  const found = offered.filter((option) => !wanted || option.text.toLowerCase().includes(wanted) || option.value === wanted);
  const before = language.value, auto = /** @type {HTMLOptionElement} */ (language.options[0]);
  language.replaceChildren(auto, ...found);
  language.value = found.some((option) => option.value === before) ? before : wanted && found.length === 1 ? found[0].value : "";
});
/** The whole list again, with what is chosen in it. */
const widen = () => {
  const { value } = language;
  search.value = "";
  search.dispatchEvent(new Event("input"));
  language.value = value;
};
search.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" && event.key !== "Escape") return;
  event.preventDefault();
  event.stopPropagation();
  if (event.key === "Enter" && !language.value && language.options.length > 1) language.selectedIndex = 1;   // the first that was found
  widen();
  language.focus();
});

/**
 * Offer what this checkpoint knows.
 * @param {{multilingual?: boolean, languages?: string[]}} info
 */
export function applyLanguages(info) {
  const chosen = multilingual ? language.value : "";     // "English" of a model that knows nothing else is no choice
  multilingual = !!info.multilingual;
  const codes = multilingual ? info.languages ?? [] : ["en"];
  const known = codes.map((code) => ({ code, name: names.of(code) ?? code })).sort((a, b) => a.name.localeCompare(b.name));
  offered = known.map(({ code, name }) => el("option", { value: code, text: name }));
  language.replaceChildren(...(multilingual ? [el("option", { value: "", text: "Find out" })] : []), ...offered);
  search.hidden = offered.length <= MANY;
  search.value = "";
  if (multilingual && codes.includes(chosen)) language.value = chosen;
  language.disabled = !multilingual;
  byId("language-hint", HTMLSpanElement).textContent = multilingual ? "Found from the first 30 seconds unless you pick it." : "This model knows English only.";
  byId("translate-row", HTMLLabelElement).hidden = !multilingual;
}

/**
 * "German, found with 93 % certainty", "German, translated into English"; "" where the model knows one language only.
 * @param {{language?: string | null, language_probability?: number | null, task?: string} | null} result
 */
export function languageWords(result) {
  if (!multilingual || !result?.language) return "";
  const { language: code, language_probability: sure, task } = result;
  return [names.of(code) ?? code, ...(typeof sure === "number" ? [`found with ${Math.round(sure * 100)} % certainty`] : []),
    ...(task === "translate" ? ["translated into English"] : [])].join(", ");
}

/** @returns {Record<string, unknown>} */
export function options() {
  return {
    ...(multilingual && language.value && { language: language.value }),
    ...(multilingual && translate.checked && { task: "translate" }),
    ...(prompt.value.trim() && { hotwords: prompt.value.trim() }),
    ...(temperature.value !== "auto" && { temperatures: [Number(temperature.value)] }),
    ...(words.checked && { word_timestamps: true }),
    ...(!previous.checked && { condition_on_previous_text: false }),
    ...decoding(),
  };
}
