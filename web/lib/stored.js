/**
 * What this browser keeps of models: a list with sizes and last uses, each can be deleted, a person's own can be kept on purpose
 * and opened again; and the mirror, another server that the models' files are fetched from.
 */
import { checkMirror, keepOwn, keptFiles, removeStored, stored } from "../../workers/client.js";
import { announce } from "./page.js";
import { byId, el, formatBytes, settings } from "./ui.js";

const USED = "used.";

/** A model was used: told in the list. @param {string} name */
export const noteUse = (name) => settings.set(USED + name, String(Date.now()));

/** "today", "yesterday", "12 days ago". @param {number} time @param {number} [now] */
export function ago(time, now = Date.now()) {
  const days = Math.round((new Date(now).setHours(0, 0, 0, 0) - new Date(time).setHours(0, 0, 0, 0)) / 86_400_000);
  return days <= 0 ? "today" : days === 1 ? "yesterday" : `${days} days ago`;
}

/** The address that the person set, or "". */
export const mirror = () => settings.get("mirror");

export class Stored {
  #list = byId("stored-list", HTMLUListElement);
  #total = byId("stored-total", HTMLParagraphElement);
  #all = byId("stored-all", HTMLButtonElement);
  #outcome = byId("stored-outcome", HTMLDivElement);
  #keep = byId("own-keep", HTMLButtonElement);
  #sure = false;
  /** What is being kept. @type {AbortController | null} */
  #keeping = null;

  /** A kept model is to be opened. @type {(files: File[], name: string) => void} */
  onOpen = () => {};
  /** The mirror was changed. @type {() => void} */
  onMirror = () => {};

  /** @param {string} family of this page's models */
  constructor(family) {
    this.family = family;
    byId("stored", HTMLDetailsElement).addEventListener("toggle", () => void this.show());
    this.#all.addEventListener("click", () => {
      if (!this.#sure) return this.#ask(true);
      this.#ask(false);
      void this.#remove(null, "Everything that was stored");
    });
    this.#all.addEventListener("blur", () => this.#ask(false));
    this.#listenToMirror();
  }

  /** @param {boolean} sure */
  #ask(sure) {
    this.#sure = sure;
    this.#all.textContent = sure ? "Delete all of it: sure?" : "Delete all";
  }

  /** Bring the list in step with what is there; nothing is read while it is shut. */
  async show() {
    if (!byId("stored", HTMLDetailsElement).open) return;
    const { available, models, used, allowed } = await stored();
    this.#total.textContent = !available ? "This browser keeps no files for this page: each visit fetches models anew."
      : allowed ? `${formatBytes(used)} of ${formatBytes(allowed)} that this browser allows are used, the pages themselves included.`
        : "This browser does not tell how much room there is.";
    this.#list.replaceChildren(...models.map((model) => this.#row(model)));
    if (available && !models.length) this.#list.append(el("li", { class: "muted", text: "Nothing is stored yet." }));
    this.#all.hidden = models.length < 2;
  }

  /** @param {import("../../workers/stored.js").StoredModel} model */
  #row(model) {
    const name = model.kind === "python" ? "Python, started" : model.name;
    const used = Number(settings.get(USED + model.name));
    const facts = [formatBytes(model.bytes),
      !model.complete ? "not complete" : model.kind === "python" ? "lets pages start faster" : used ? `used ${ago(used)}` : `stored ${ago(model.kept)}`,
      ...(model.kind === "own" ? ["yours"] : [])];
    const drop = el("button", { type: "button", class: "button compact", text: "Delete", "aria-label": `Delete ${name}` });
    drop.addEventListener("click", () => void this.#remove(model.id, name));
    const open = model.kind === "own" && model.complete && model.family === this.family
      ? [el("button", { type: "button", class: "button compact", text: "Use", "aria-label": `Use ${name}` })] : [];
    open[0]?.addEventListener("click", () => void this.#open(model.id, name));
    return el("li", {}, el("span", { class: "name", text: name }), el("span", { class: "small muted number", text: facts.join(" · ") }),
      el("span", { class: "row" }, ...open, drop));
  }

  /** @param {string} id @param {string} name */
  async #open(id, name) {
    const kept = await keptFiles(id);
    if (!kept) this.#say(`${name} is not wholly there any more; delete it, and choose its files again.`, true);
    else this.onOpen(kept.files, kept.name);
    await this.show();
  }

  /** @param {string | null} id @param {string} name */
  async #remove(id, name) {
    try {
      await removeStored(id);
      this.#say(`${name}: deleted. A model that is loaded goes on working until the page is closed.`, false);
    } catch (error) {
      this.#say(/** @type {Error} */ (error).message, true);
    }
    await this.show();
    const next = this.#list.querySelector("button");
    if (document.activeElement === document.body) (next ?? byId("stored", HTMLDetailsElement).querySelector("summary"))?.focus();
  }

  /** @param {string} words @param {boolean} bad */
  #say(words, bad) {
    this.#outcome.replaceChildren(el("p", { class: bad ? "notice bad" : "notice", ...(bad && { role: "alert" }), text: words }));
    if (!bad) announce(words);
  }

  /** Offer to keep a person's own model, or stop offering. @param {{name: string, files: File[]} | null} own */
  offer(own) {
    this.#keeping?.abort();
    this.#keeping = null;
    this.#keep.hidden = !own;
    this.#keep.disabled = false;
    this.#keep.textContent = "Keep this model in this browser";
    this.#keep.onclick = own && (() => void this.#keepThis(own));
  }

  /** @param {{name: string, files: File[]}} own */
  async #keepThis(own) {
    if (this.#keeping) return this.#keeping.abort();
    const stop = this.#keeping = new AbortController();
    const outcome = byId("own-outcome", HTMLDivElement);
    const current = () => this.#keeping === stop;
    try {
      const { name } = await keepOwn({ ...own, family: this.family }, { signal: stop.signal, onBytes: (done, total) => {
        if (current()) this.#keep.textContent = `Stop keeping: ${formatBytes(done)} of ${formatBytes(total)}`;
      } });
      noteUse(name);
      if (!current()) return;
      this.#keep.textContent = "Kept in this browser";
      this.#keep.disabled = true;
      outcome.replaceChildren(el("p", { class: "notice", text: `It is in the list of stored models from now on${name === own.name ? "" : `, as ${name} beside what was kept before`}, also after the page is closed.` }));
      announce("Kept in this browser");
    } catch (error) {
      const { code, message } = /** @type {any} */ (error);
      if (!current()) return;
      this.#keep.textContent = "Keep this model in this browser";
      outcome.replaceChildren(code === "cancelled" ? el("p", { class: "notice", text: "Stopped; nothing of it was kept." })
        : el("p", { class: "notice bad", role: "alert", text: message }));
    } finally {
      if (current()) this.#keeping = null;
      await this.show();
    }
  }

  #listenToMirror() {
    const field = byId("mirror", HTMLInputElement), hint = byId("mirror-hint", HTMLSpanElement), reset = byId("mirror-reset", HTMLButtonElement);
    const usual = hint.textContent;
    const show = () => {
      field.value = mirror();
      reset.hidden = !mirror();
    };
    const set = (/** @type {string} */ address) => {
      field.removeAttribute("aria-invalid");
      hint.textContent = address ? `Models are fetched from ${new URL(address).host} from now on: that server sees which ones, and your address. What comes is checked as before.` : usual;
      if (address === mirror()) return;
      settings.set("mirror", address);
      show();
      this.onMirror();
    };
    show();
    if (mirror()) set(mirror());
    field.addEventListener("change", () => {
      try {
        set(field.value.trim() ? checkMirror(field.value) : "");
      } catch (error) {
        field.setAttribute("aria-invalid", "true");
        hint.textContent = /** @type {Error} */ (error).message;
      }
    });
    reset.addEventListener("click", () => {
      set("");
      show();
      field.focus();
    });
  }
}

/** The panel, below a model's card. */
export function storedPanel() {
  return el("details", { id: "stored" },
    el("summary", { class: "small", text: "Stored models" }),
    el("div", { class: "stack small" },
      el("p", { id: "stored-total" }),
      el("ul", { class: "stored", id: "stored-list", "aria-label": "Stored models" }),
      el("div", { id: "stored-outcome" }),
      el("div", { class: "row" }, el("button", { type: "button", class: "button compact", id: "stored-all", text: "Delete all", hidden: true })),
      el("div", { class: "field" },
        el("label", { for: "mirror", text: "Fetch models from a mirror" }),
        el("input", { type: "text", id: "mirror", inputmode: "url", autocomplete: "off", spellcheck: "false", placeholder: "https://", "aria-describedby": "mirror-hint" }),
        el("span", { class: "hint", id: "mirror-hint", text: "An address below which each model has a folder of its name. Leave it empty to fetch from this site." })),
      el("div", { class: "row" }, el("button", { type: "button", class: "button compact", id: "mirror-reset", text: "Fetch from this site again", hidden: true }))));
}
