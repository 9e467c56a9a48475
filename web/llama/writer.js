/**
 * An answer on its way: the engine is asked, its tokens are put into the conversation, and how it ended is written down. One
 * at a time. Whatever happens, what was written stays.
 *
 * @typedef {import("./conversation.js").Chat} Chat
 * @typedef {import("./conversation.js").Message} Message
 * @typedef {{sampling: import("./options.js").Sampling, system: string, seed: number}} How
 */
import { isCancelled } from "../lib/link.js";
import { message, request } from "./conversation.js";

export class Writer {
  /** What is being written; null between answers. @type {Answer | null} */
  now = null;
  /** Something to show: the phase, or more text. @type {(answer: Answer) => void} */
  onProgress = () => {};

  /** @param {import("../lib/link.js").Link} link */
  constructor(link) {
    this.link = link;
  }

  /**
   * Write the next answer of a conversation, or go on with its last one. Resolves when it has ended, in whichever way.
   * @param {Chat} chat @param {How} how @param {boolean} [goOn]
   * @returns {Promise<Answer>} ended, with `error` if that was not meant to be
   */
  async write(chat, how, goOn = false) {
    const params = request(chat, how.system);            // before the answer, still empty, is part of it
    const last = chat.messages[chat.messages.length - 1];
    const into = goOn && last?.role === "assistant" ? last : message("assistant", "");
    if (into !== last) chat.messages.push(into);
    const answer = this.now = new Answer(chat, into, how, into === last);
    answer.show = () => this.onProgress(answer);
    answer.show();
    try {
      await this.link.up(answer.stop.signal);
      answer.phase = "reading";
      answer.show();
      const result = await this.link.run("generate", { ...params, options: { ...how.sampling, seed: how.seed } },
        { signal: answer.stop.signal, onEvent: (event) => answer.hear(event) });
      answer.end(result, this.link.model.name);
    } catch (error) {
      const told = /** @type {any} */ (error)?.data?.result ?? null;
      if (isCancelled(error) || answer.stop.signal.aborted) {
        answer.end(told, this.link.model.name, "stopped");
      } else {
        answer.error = error;
        answer.end(null, this.link.model.name, "failed");
      }
    } finally {
      if (this.now === answer) this.now = null;
    }
    return answer;
  }

  stop() {
    this.now?.stop.abort();
  }
}

export class Answer {
  stop = new AbortController();
  /** @type {"waiting" | "reading" | "writing" | "ended"} */
  phase = "waiting";
  /** Tokens of the prompt that are read, and all of them. @type {{done: number, total: number} | null} */
  prompt = null;
  tokens = 0;
  /** When the first token came. */
  began = 0;
  /** The last notification of loading, where the engine had to load again. @type {any} */
  stage = null;
  /** @type {any} */
  error = null;
  show = () => {};

  /** @param {Chat} chat @param {Message} into @param {How} how @param {boolean} continued */
  constructor(chat, into, how, continued) {
    this.chat = chat;
    this.message = into;
    this.how = how;
    this.continued = continued;
    this.before = into.text;
    this.piecesBefore = into.pieces.length;
    into.outcome = null;
  }

  /** @param {any} event a notification of the engine */
  hear(event) {
    if (this.phase === "ended") return;
    if (event.event === "prefill") {
      if (this.phase === "writing") this.#startOver();
      this.prompt = { done: event.done, total: event.total };
      this.stage = null;
    } else if (event.event === "progress") {
      this.stage = event;
    } else if (event.event === "token") {
      const { text, token, logprob, top } = event;
      if (this.phase !== "writing") this.began = performance.now();
      this.phase = "writing";
      this.stage = null;
      if (token !== null) this.tokens++;
      this.message.pieces.push({ text, token, logprob, top });
      this.message.text += text;
    } else {
      return;
    }
    this.show();
  }

  /** The engine repeats the request, as where the GPU was lost: all of the answer comes once more. */
  #startOver() {
    this.phase = "reading";
    this.tokens = 0;
    this.message.text = this.before;
    this.message.pieces = this.message.pieces.slice(0, this.piecesBefore);
  }

  /**
   * @param {import("../../workers/protocol.js").Generated | null} result what the engine says of it, if it could
   * @param {string} model
   * @param {"stopped" | "failed"} [reason]
   */
  end(result, model, reason) {
    this.phase = "ended";
    const { message: into, how } = this;
    if (result && into.text !== this.before + result.text) {   // an event was lost: the result has all of it
      into.text = this.before + result.text;
      into.pieces = [{ text: into.text, token: null, logprob: null, top: [] }];
    }
    into.outcome = {
      reason: reason ?? result?.stop_reason ?? "end", stop: result?.stop ?? null, seed: result?.seed ?? how.seed, options: how.sampling, system: how.system, model,
      prompt_tokens: result?.prompt_tokens ?? null, reused_tokens: result?.reused_tokens ?? 0, context: result?.context ?? null, timings: result?.timings ?? null,
      continued: this.continued, from: this.chat.from,
    };
  }
}
