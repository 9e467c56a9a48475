/**
 * Conversations kept in this browser, and nowhere else. Where storage is forbidden they last as long as the page.
 */
import { database, done } from "../lib/database.js";
import { settings } from "../lib/ui.js";
import { settle } from "./conversation.js";

/** @typedef {import("./conversation.js").Chat} Chat */

const open = database("candlewick-chats", (made) => {
  made.createObjectStore("chats", { keyPath: "id" }).createIndex("changed", "changed");
});

/** @param {IDBTransactionMode} mode */
const store = async (mode) => (await open())?.transaction("chats", mode).objectStore("chats") ?? null;

/** All that are kept, the newest first. @returns {Promise<Chat[]>} */
export async function all() {
  try {
    const from = await store("readonly");
    return from ? (await done(from.index("changed").getAll())).reverse() : [];
  } catch {
    return [];
  }
}

/** @param {string} id @returns {Promise<Chat | null>} */
export async function read(id) {
  try {
    const from = await store("readonly");
    const chat = from && await done(from.get(id));
    if (chat) settle(chat);
    return chat ?? null;
  } catch {
    return null;
  }
}

/** @param {Chat} chat */
export async function keep(chat) {
  try {
    const into = await store("readwrite");
    if (into) await done(into.put(chat));
  } catch {
    // no room, or a private window: it lasts as long as the page
  }
}

/** @param {string | null} id null: every one */
export async function remove(id) {
  try {
    const from = await store("readwrite");
    if (from) await done(id === null ? from.clear() : from.delete(id));
  } catch {
    // there is nothing
  }
}

const lockOf = (/** @type {string} */ id) => `candlewick chat ${id}`;
/** Lets go of the one that was open before. */
let release = () => {};

/** The conversation that this tab had open, or a tab before it; not one that another tab has now. @returns {Promise<Chat | null>} */
export async function last() {
  let id = "";
  try {
    id = sessionStorage.getItem("candlewick.chat") ?? "";
  } catch {
    // forbidden
  }
  if (!id) {
    id = settings.get("llama.chat");
    const { held } = await navigator.locks?.query() ?? {};
    if (held?.some(({ name }) => name === lockOf(id))) return null;
  }
  return id ? read(id) : null;
}

/** Remember which one is open, and let other tabs see that it is. @param {string} id */
export function isOpen(id) {
  settings.set("llama.chat", id);
  release();
  void navigator.locks?.request(lockOf(id), { mode: "shared" }, () => new Promise((resolve) => { release = () => resolve(undefined); }));
  try {
    sessionStorage.setItem("candlewick.chat", id);
  } catch {
    // forbidden
  }
}
