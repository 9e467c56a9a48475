/**
 * A small hold on IndexedDB. A browser that forbids storage gives null, and its pages forget.
 */

/**
 * @param {string} name
 * @param {(database: IDBDatabase) => void} create makes the stores, the first time
 * @returns {() => Promise<IDBDatabase | null>} opens it once, when it is first wanted
 */
export function database(name, create) {
  /** @type {Promise<IDBDatabase | null> | null} */
  let opening = null;
  return () => opening ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open(name, 1);
      request.onupgradeneeded = () => create(request.result);
      request.onsuccess = () => resolve(request.result);
      request.onerror = request.onblocked = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
}

/** The answer to a request. @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
export const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
