/**
 * The text field: sends, or stops what runs; takes back what was written for another try.
 */
import { byId } from "../lib/ui.js";

export class Composer {
  #form = byId("composer", HTMLFormElement);
  #say = byId("say", HTMLTextAreaElement);
  #send = byId("send", HTMLButtonElement);
  #stop = byId("stop", HTMLButtonElement);
  #editing = byId("editing", HTMLParagraphElement);
  /** What was in the field before an earlier message came into it. */
  #draft = "";
  #busy = false;
  #mayBeEmpty = false;

  /** @type {() => void} */
  onSend = () => {};
  /** @type {() => void} */
  onStop = () => {};
  /** The person wants the last message back. @type {() => void} */
  onRecall = () => {};
  /** Editing began or ended. @type {() => void} */
  onEditing = () => {};

  /** The message that is being written anew, or null. @type {number | null} */
  edits = null;

  constructor() {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!this.#send.disabled && !this.#busy) this.onSend();
    });
    this.#stop.addEventListener("click", () => this.onStop());
    byId("cancel-edit", HTMLButtonElement).addEventListener("click", () => this.keepAsItWas());
    this.#say.addEventListener("input", () => this.#show());
    this.#say.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {   // 229: an input method takes it
        event.preventDefault();
        this.#form.requestSubmit();
      } else if (event.key === "Escape" && this.edits !== null && !this.#busy) {
        event.preventDefault();
        this.keepAsItWas();
      } else if (event.key === "ArrowUp" && !this.#say.value && !event.shiftKey && !event.altKey && !event.ctrlKey && !event.metaKey && !this.#busy) {
        event.preventDefault();
        this.onRecall();
      }
    });
    addEventListener("resize", () => this.#grow());
    this.#show();
  }

  get text() {
    return this.#say.value;
  }

  set text(/** @type {string} */ text) {
    this.#say.value = text;
    this.#show();
  }

  focus() {
    this.#say.focus({ preventScroll: true });
  }

  /** @param {number} index @param {string} text */
  edit(index, text) {
    if (this.edits === null) this.#draft = this.text;
    this.edits = index;
    this.#editing.hidden = false;
    this.text = text;
    this.focus();
    this.#say.setSelectionRange(text.length, text.length);
    this.onEditing();
  }

  /** The text is taken: the field is empty again. @returns {string} */
  take() {
    const { text } = this;
    this.#endEdit();
    return text;
  }

  keepAsItWas() {
    this.#endEdit();
    this.focus();
    this.onEditing();
  }

  #endEdit() {
    this.edits = null;
    this.#editing.hidden = true;
    this.text = this.#draft;
    this.#draft = "";
  }

  /**
   * @param {{busy: boolean, mode: "chat" | "text", begun: boolean}} state begun: there is a text to go on with
   */
  state({ busy, mode, begun }) {
    const focused = document.activeElement === this.#send || document.activeElement === this.#stop;
    this.#busy = busy;
    this.#mayBeEmpty = mode === "text" && begun;
    this.#send.hidden = busy;
    this.#stop.hidden = !busy;
    if (focused) (busy ? this.#stop : this.#say).focus();
    this.#send.textContent = mode === "chat" ? "Send" : "Go on";
    this.#say.placeholder = mode === "chat" ? "Write to the model" : begun ? "Add some words, or let it go on" : "Begin a text";
    this.#say.setAttribute("aria-label", mode === "chat" ? "Your message" : "Your words");
    this.#show();
  }

  #show() {
    this.#send.disabled = !this.text.trim() && !(this.#mayBeEmpty && !this.text);
    this.#grow();
  }

  /** As high as its text, where the browser does not do that by itself. */
  #grow() {
    if (CSS.supports("field-sizing", "content")) return;
    this.#say.style.height = "auto";
    this.#say.style.height = `${this.#say.scrollHeight + 2}px`;
  }
}
