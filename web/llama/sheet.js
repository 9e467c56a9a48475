/**
 * The cards beside the conversation: a sheet over it where there is no room beside it.
 */
import { byId } from "../lib/ui.js";

export class Sheet {
  #side = byId("side", HTMLDivElement);
  #button = byId("settings", HTMLButtonElement);
  #behind = byId("chat", HTMLElement);

  constructor() {
    const close = byId("settings-close", HTMLButtonElement);
    this.#button.addEventListener("click", () => {
      this.#set(true);
      close.focus();
    });
    close.addEventListener("click", () => this.close());
  }

  get open() {
    return this.#side.classList.contains("open");
  }

  close() {
    if (!this.open) return;
    this.#set(false);
    this.#button.focus();
  }

  /** @param {boolean} open */
  #set(open) {
    this.#side.classList.toggle("open", open);
    this.#button.setAttribute("aria-expanded", String(open));
    this.#behind.inert = open;
  }
}
