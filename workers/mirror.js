/** Another server for the models' files: which addresses will do, and what to say when it fails. */

import { EngineError } from "./protocol.js";

/**
 * A mirror's address -> the same with a slash at its end. Throws EngineError "bad_input" in words.
 * @param {string} text
 * @returns {string}
 */
export function checkMirror(text) {
  let url;
  try {
    url = new URL(text.trim());
  } catch {
    throw new EngineError("bad_input", `mirror: wanted a whole address such as https://example.org/models/, got "${text.trim().slice(0, 80)}"`);
  }
  if (url.protocol !== "https:" && url.protocol !== "http:")
    throw new EngineError("bad_input", `mirror: wanted an address that begins with https:// or http://, got ${url.protocol}`);
  if (url.username || url.password)
    throw new EngineError("bad_input", "mirror: wanted an address without a name and a password in it");
  if (url.search || url.hash)
    throw new EngineError("bad_input", "mirror: wanted the address of a folder, without ? and # in it");
  return url.href.endsWith("/") ? url.href : `${url.href}/`;
}

/**
 * What went wrong with a mirror, with what to do about it.
 * @param {unknown} error @param {URL} from
 */
export function ofMirror(error, from) {
  const failure = EngineError.from(error, "network");
  if (failure.code !== "network") return failure;
  const elsewhere = from.origin === globalThis.location.origin ? "" : ` It must allow pages of other sites (CORS), and this site must allow it: serve.py --mirror ${from.origin}.`;
  return new EngineError(
    "network",
    `the mirror failed: ${failure.message}.${elsewhere} The address is set under "Stored models"; without it the files come from this site`,
    failure.data,
  );
}
