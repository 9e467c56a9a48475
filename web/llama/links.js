/**
 * Links that make an answer again: everything that it was made of, in the part of the address that no server sees.
 *
 * @typedef {import("./conversation.js").Chat} Chat
 * @typedef {import("./conversation.js").Message} Message
 */
import { message } from "./conversation.js";
import { linkName } from "./model.js";
import { linkOf } from "./options.js";

/** @param {Chat} chat @param {number} index of the answer @param {import("../lib/link.js").Model} model @returns {string} "" where that is not known */
export function linkTo(chat, index, model) {
  const { outcome } = chat.messages[index];
  if (!outcome) return "";
  const to = linkOf(outcome.options, outcome.seed, outcome.system), name = linkName(model);
  if (name) to.set("model", name);
  else to.set("own", model.name);
  to.set("mode", chat.mode);
  const before = chat.messages.slice(outcome.from ?? chat.from, index);
  to.set("messages", JSON.stringify(chat.mode === "text" ? [["user", before.map(({ text }) => text).join("")]] : before.map(({ role, text }) => [role, text])));
  return `${location.href.split("#")[0]}#${to}`;
}

/**
 * @param {URLSearchParams} from
 * @returns {{mode: Chat["mode"], messages: Message[], question: string}} what was said before, and the last question
 */
export function read(from) {
  /** @type {any} */
  let given = [];
  try {
    given = JSON.parse(from.get("messages") ?? "[]");
  } catch {
    // not one of ours
  }
  const sound = Array.isArray(given) ? given.filter((each) => Array.isArray(each) && ["user", "assistant"].includes(each[0]) && typeof each[1] === "string") : [];
  const messages = sound.map(([role, text]) => message(role, text));
  const question = messages.at(-1)?.role === "user" ? messages.pop()?.text ?? "" : "";
  return { mode: from.get("mode") === "text" ? "text" : "chat", messages, question };
}
