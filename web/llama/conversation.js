/**
 * A conversation as data: who wrote what, what the model was asked with, and how each answer ended. In mode "text" there are
 * no turns: all parts are one text, and the model goes on with it.
 *
 * @typedef {import("../../workers/protocol.js").Likely} Likely
 * @typedef {{text: string, token: number | null, logprob: number | null, top: Likely[]}} Piece what one token added
 *
 * @typedef {object} Outcome how an answer ended, and with what it was asked
 * @property {"end" | "stop" | "length" | "context" | "stopped" | "failed" | "left"} reason left: the page was closed meanwhile
 * @property {string | null} stop the stop string that was met
 * @property {number} seed
 * @property {import("./options.js").Sampling} options
 * @property {string} system
 * @property {string} model
 * @property {number | null} prompt_tokens null where it ended before that was known
 * @property {number} reused_tokens
 * @property {{used: number, capacity: number} | null} context
 * @property {Record<string, number> | null} timings
 * @property {boolean} continued in more than one go, so that its seed alone does not make it again
 * @property {number} from the first message that the model was given
 *
 * @typedef {object} Message
 * @property {"user" | "assistant"} role
 * @property {string} text
 * @property {Piece[]} pieces of the model; empty for a person
 * @property {Outcome | null} outcome null for a person, and while it is being written
 *
 * @typedef {object} Chat
 * @property {string} id
 * @property {"chat" | "text"} mode
 * @property {number} changed milliseconds
 * @property {Message[]} messages
 * @property {number} from the first message that the model is still given
 */

/** @param {"chat" | "text"} mode @returns {Chat} */
export function newChat(mode) {
  return { id: `${Date.now().toString(36)}-${Math.floor(Math.random() * 1e9).toString(36)}`, mode, changed: Date.now(), messages: [], from: 0 };
}

/** @param {"user" | "assistant"} role @param {string} text @returns {Message} */
export function message(role, text) {
  return { role, text, pieces: role === "assistant" && text ? [{ text, token: null, logprob: null, top: [] }] : [], outcome: null };
}

/** A name for people: how it begins. @param {Chat} chat */
export function titleOf(chat) {
  const words = (chat.messages.find(({ text }) => text.trim())?.text ?? "").trim().split(/\s+/).join(" ");
  return words.length > 60 ? `${words.slice(0, 57).trimEnd()}…` : words || "Empty";
}

/**
 * What a person adds to a text, with the space that they would expect between two words.
 * @param {Chat} chat @param {string} text
 */
export function joined(chat, text) {
  const before = chat.messages.at(-1)?.text ?? "";
  return chat.mode === "text" && /[^\s]$/.test(before) && /^[\p{L}\p{N}"'(]/u.test(text) ? ` ${text}` : text;
}

/**
 * What the engine is to be asked for the next words.
 * @param {Chat} chat @param {string} system
 * @returns {{prompt: string} | {messages: import("../../workers/protocol.js").Message[]}}
 */
export function request(chat, system) {
  const given = chat.messages.slice(chat.from);
  if (chat.mode === "text") return { prompt: given.map(({ text }) => text).join("") };
  /** @type {Array<{role: string, content: string}>} */
  const messages = [];
  for (const { role, text } of given) {
    const last = messages[messages.length - 1];
    if (!text) continue;                                  // an answer that was stopped before its first word
    if (last?.role === role) last.content += `\n\n${text}`;   // templates want turns
    else messages.push({ role, content: text });
  }
  return { messages: /** @type {any[]} */ (system.trim() ? [{ role: "system", content: system.trim() }, ...messages] : messages) };
}

/** Whether leaving out what is oldest would make it shorter. @param {Chat} chat */
export function canForget(chat) {
  return chat.mode === "chat" && chat.messages.slice(chat.from).filter(({ role }) => role === "user").length > 1;
}

/** Leave out the oldest question and its answer. @param {Chat} chat */
export function forget(chat) {
  for (chat.from++; chat.messages[chat.from]?.role === "assistant";) chat.from++;
}

/**
 * What was being written when the page went away stays, and is marked.
 * @param {Chat} chat
 */
export function settle(chat) {
  chat.messages = chat.messages.filter(({ role, text, outcome }) => role === "user" || text || outcome);
  for (const each of chat.messages) {
    if (each.role === "assistant" && !each.outcome && each.pieces.some(({ token }) => token !== null)) {
      each.outcome = { reason: "left", stop: null, seed: 0, options: /** @type {any} */ (null), system: "", model: "", prompt_tokens: null, reused_tokens: 0, context: null, timings: null, continued: true, from: chat.from };
    }
  }
}

// ---- to take away ---------------------------------------------------------------------------------------------------

/** @param {Chat} chat @param {string} model its name */
export function toTxt(chat, model) {
  if (chat.mode === "text") return `${chat.messages.map(({ text }) => text).join("")}\n`;
  return chat.messages.map(({ role, text }) => `${role === "user" ? "You" : model}:\n${text.trim()}\n`).join("\n");
}

/** @param {Chat} chat @param {string} model its name */
export function toMarkdown(chat, model) {
  if (chat.mode === "text") return toTxt(chat, model);
  const turns = chat.messages.map(({ role, text, outcome }) =>
    `## ${role === "user" ? "You" : outcome?.model || model}\n\n${text.trim()}\n`);
  return `# ${titleOf(chat)}\n\n${turns.join("\n")}`;
}

/** Everything that is known of it. @param {Chat} chat @param {string} model @param {string} system */
export function toJson(chat, model, system) {
  const messages = chat.messages.map(({ role, text, pieces, outcome }) =>
    (role === "user" ? { role, content: text } : { role, content: text, ...outcome, tokens: pieces }));
  return `${JSON.stringify({ model, mode: chat.mode, system, left_out: chat.from, changed: new Date(chat.changed).toISOString(), messages }, null, 2)}\n`;
}
