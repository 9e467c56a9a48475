/**
 * What an earlier visit left unfinished: offered above the page, gone on with by a click, and kept while it runs.
 *
 * @typedef {import("./resume.js").Kept} Kept
 */
import { byId, el, formatClock } from "../lib/ui.js";
import { Job } from "./job.js";
import { forget, identity, Keeper, keptPlaces, placeOf } from "./resume.js";

export class Unfinished {
  #list = byId("kept", HTMLDivElement);
  /** The file that a person was asked to choose again. @type {Kept | null} */
  #wanted = null;

  /** Go on with this. @type {(source: import("./input.js").Source, place: import("./job.js").Place) => void} */
  onGoOn = () => {};
  /** Show this as it is. @type {(job: Job) => void} */
  onShow = () => {};
  /** A person is to choose this file once more. @type {(name: string) => void} */
  onAsk = () => {};
  /** @type {(words: string) => void} */
  onNotice = () => {};

  /** Offer what there is. */
  async show() {
    for (const kept of await keptPlaces()) this.#offer(kept);
  }

  /** @param {Kept} kept */
  #offer(kept) {
    const { name, place } = kept;
    const button = (/** @type {string} */ text, /** @type {() => void} */ act) => el("button", { class: "button compact", type: "button", text, onclick: act });
    const card = el("section", { class: "notice", "data-key": kept.key, "aria-label": `Unfinished: ${name}` },
      el("h3", { text: `Go on with ${name} from ${formatClock(place.at)}?` }),
      el("p", { text: `${formatClock(place.at)} of ${formatClock(place.total)} were transcribed on ${new Date(kept.when).toLocaleDateString("en", { day: "numeric", month: "long" })}, and kept in this browser.` }),
      el("div", { class: "row" },
        button("Go on", () => void this.#goOn(kept, card)),
        button("Show what there is", () => {
          const job = new Job({ name, blob: kept.recording, recorded: !!kept.recording });
          job.restore(place);
          this.onShow(job);
        }),
        button("Forget it", () => {
          card.remove();
          void forget(kept.key);
        })));
    this.#list.append(card);
  }

  /** @param {Kept} kept @param {HTMLElement} card */
  async #goOn(kept, card) {
    const { key, name, place, recording, handle } = kept;
    const blob = recording ?? await opened(handle);
    if (blob && await identity(blob, name) === key) {
      card.remove();
      return this.onGoOn({ name, blob, recorded: !!recording, handle: Promise.resolve(handle) }, place);
    }
    this.#wanted = kept;
    this.onNotice(`Choose ${name} once more: a page may not open files by itself.`);
    this.onAsk(name);
  }

  /**
   * A job begins: where its file was left with this model, it goes on from there.
   * @param {Job} job @param {string} model
   * @returns {Promise<Keeper | null>} writes down how far it is; null for what cannot be found again
   */
  async begin(job, model) {
    const { source } = job, wanted = this.#wanted;
    const key = source.blob ? await identity(source.blob, source.name).catch(() => null) : null;
    const kept = key && !job.fresh ? await placeOf(key) : null;
    if (kept && !job.place && kept.place.model === model) {
      job.restore(kept.place);
      job.again(true);
      job.asked = wanted?.key === key;
    }
    if (wanted?.name === source.name) {
      this.#wanted = null;
      if (wanted.key !== key) this.onNotice(`This ${source.name} is another file than before (its size, date or content differ): it is transcribed from its beginning.`);
    }
    if (kept) this.#list.querySelector(`[data-key="${CSS.escape(kept.key)}"]`)?.remove();
    return key ? new Keeper(key, source) : null;
  }
}

/** The file behind a handle that was kept, if the person allows it. @param {FileSystemFileHandle | null} handle */
async function opened(handle) {
  try {
    const { requestPermission } = /** @type {any} */ (handle);
    if (await requestPermission?.call(handle, { mode: "read" }) !== "granted") return null;
    return await /** @type {FileSystemFileHandle} */ (handle).getFile();
  } catch {
    return null;                                          // none, or it is not where it was
  }
}
