/**
 * The list of conversations that are kept in this browser.
 */
import { byId, el } from "../lib/ui.js";
import { titleOf } from "./conversation.js";

/** @typedef {import("./conversation.js").Chat} Chat */

export class History {
  #card = byId("history-card", HTMLElement);
  #list = byId("history", HTMLUListElement);
  #all = byId("delete-all", HTMLButtonElement);
  #sure = 0;

  /** @type {(chat: Chat) => void} */
  onOpen = () => {};
  /** @type {(chat: Chat) => void} */
  onDelete = () => {};
  /** @type {() => void} */
  onDeleteAll = () => {};

  constructor() {
    this.#all.addEventListener("click", () => {
      if (performance.now() > this.#sure) {              // asked twice: this cannot be taken back
        this.#sure = performance.now() + 4000;
        this.#all.textContent = "Really delete all?";
        setTimeout(() => { this.#all.textContent = "Delete all"; }, 4000);
      } else {
        this.#sure = 0;
        this.onDeleteAll();
      }
    });
  }

  /** @param {Chat[]} chats @param {string} current id of the one that is open */
  show(chats, current) {
    const when = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
    this.#card.hidden = chats.length === 0 || (chats.length === 1 && chats[0].id === current);
    this.#list.replaceChildren(...chats.map((chat) => {
      const title = titleOf(chat);
      const open = el("button", { type: "button", class: "open" }, el("span", { text: title }),
        el("span", { class: "muted", text: `${when.format(chat.changed)}${chat.mode === "text" ? ", a text" : ""}` }));
      open.addEventListener("click", () => this.onOpen(chat));
      const remove = el("button", { type: "button", class: "plain", text: "Delete", "aria-label": `Delete: ${title}` });
      remove.addEventListener("click", () => this.onDelete(chat));
      return el("li", { "aria-current": chat.id === current ? "true" : undefined }, open, remove);
    }));
  }
}
