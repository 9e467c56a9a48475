/**
 * What the pages of all models do alike: speak to those who do not see them, answer on a button, report themselves, listen to
 * single keys, and tell in the corner how the model is.
 */
import { diagnostics, graphics } from "./device.js";
import { byId, copyText, settings } from "./ui.js";
import { loadWords } from "./words.js";

/** Say it to those who do not see the page. @param {string} words */
export function announce(words) {
  const live = byId("live", HTMLParagraphElement);
  live.textContent = "";
  setTimeout(() => { live.textContent = words; }, 30);
}

/** @type {WeakMap<HTMLButtonElement, {words: string, timer: ReturnType<typeof setTimeout>}>} */
const saying = new WeakMap();

/** A word on a button for a moment. @param {HTMLButtonElement} on @param {string} words */
export function say(on, words) {
  const before = saying.get(on);
  clearTimeout(before?.timer);
  const usual = before?.words ?? on.textContent ?? "";
  on.textContent = words;
  const timer = setTimeout(() => {
    on.textContent = usual;
    saying.delete(on);
  }, 1600);
  saying.set(on, { words: usual, timer });
}

/** Copy, and say on the button whether that went well. @param {HTMLButtonElement} on @param {string} text */
export async function copied(on, text) {
  try {
    await copyText(text);
    say(on, "Copied");
    announce("Copied");
  } catch (error) {
    say(on, "Not copied");
    announce(error instanceof Error ? error.message : String(error));
  }
}

/** A file's name without its ending and without what file systems refuse. @param {string} name @param {string} fallback */
export function fileName(name, fallback) {
  return name.replace(/\.[a-z0-9]{1,5}$/i, "").replace(/[\\/:*?"<>|\u0000-\u001f]/g, "_").slice(0, 120) || fallback;
}

/**
 * What a person can paste into a bug report. `more` must hold nothing they said, wrote or opened.
 * @param {HTMLButtonElement} on where it was asked for
 * @param {import("./link.js").Link} link
 * @param {any} error the last one, or null
 * @param {Record<string, unknown>} more
 */
export async function copyDiagnostics(on, link, error, more) {
  const engine = await link.describe().catch((/** @type {any} */ why) => String(why?.message ?? why));
  await copied(on, diagnostics({
    engine: { state: link.state, choice: link.choice, own_model: link.model.model === null, info: link.info, describe: engine },
    graphics: await graphics(), ...more,
    error: error && { name: error.name, code: error.code, message: error.message, data: error.data ?? null, stack: error.stack ?? null },
  }));
}

/** Whether letters go into what has the focus. @param {EventTarget | null} target */
export function isTyping(target) {
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement
    || (target instanceof HTMLInputElement && !["range", "checkbox", "radio"].includes(target.type));
}

/**
 * Single keys do something while nobody types, unless the person has switched them off; Escape always does.
 * @param {Record<string, () => void>} keys by the key in lower case
 * @param {() => void} onEscape
 */
export function listenForKeys(keys, onEscape) {
  const on = byId("keys-on", HTMLInputElement), shortcuts = byId("shortcuts", HTMLDetailsElement);
  on.checked = settings.get("keys", "on") === "on";
  on.addEventListener("change", () => settings.set("keys", on.checked ? "on" : "off"));
  const all = /** @type {Record<string, () => void>} */ ({ ...keys, "?": () => {
    shortcuts.open = !shortcuts.open;
    if (shortcuts.open) shortcuts.scrollIntoView({ block: "nearest" });
  } });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape") return onEscape();
    const act = all[event.key.toLowerCase()];
    if (isTyping(event.target) || event.repeat || !on.checked || !act) return;
    act();
    event.preventDefault();
  });
}

/** The model's state in the corner. @param {import("./link.js").Link} link @param {string | null} doing a word while it works, null while what it does shall not show */
export function showChip(link, doing) {
  const chip = byId("chip", HTMLParagraphElement), { state, progress } = link;
  const { part } = progress?.stage === "download" ? loadWords(progress) : { part: null };   // the other stages are short
  const word = link.verifying ? "Verifying" : doing;
  chip.dataset.state = state === "busy" && !word ? "ready" : state;
  chip.textContent = {
    idle: "Not loaded", loading: part === null ? "Loading" : `Loading ${Math.floor(part * 100)}%`,
    ready: "Ready", busy: word ?? "Ready", failed: "Not loaded",
  }[state];
}
