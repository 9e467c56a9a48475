/**
 * Small DOM helpers and the words for numbers. No page knows about models through this file, and nothing here can turn
 * data into markup: text is only ever set as text.
 */

/**
 * The element with this id, as the class the caller wants.
 * @template {Element} T
 * @param {string} id
 * @param {{new (): T, name: string}} type
 * @returns {T}
 */
export function byId(id, type) {
  const found = document.getElementById(id);
  if (found instanceof type) return found;
  throw new Error(`page: wanted #${id} as ${type.name}, found ${found ? found.constructor.name : "nothing"}`);
}

/**
 * A new element. `props` are attributes; a property that starts with "on" is a listener; `text` is its text.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, string | number | boolean | EventListener | undefined>} [props]
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (key === "text") node.textContent = String(value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children);
  return node;
}

/** Words as a machine has them: the name of a file. @param {string} text */
export const code = (text) => el("code", { text });

/**
 * Fill a <dl class="facts"> with rows; a row whose value is null or "" is left out.
 * @param {HTMLElement} list
 * @param {Array<[string, string | null | undefined]>} rows
 */
export function setFacts(list, rows) {
  const nodes = [];
  for (const [name, value] of rows) {
    if (value) nodes.push(el("dt", { text: name }), el("dd", { text: value }));
  }
  list.replaceChildren(...nodes);
}

/**
 * Bytes for people, in powers of ten as file managers show them: 75.5 MB.
 * @param {number} bytes
 */
export function formatBytes(bytes) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  let value = bytes, unit = 0;
  while (value >= 999.5 && unit < units.length - 1) { value /= 1000; unit++; }
  const digits = unit === 0 || value >= 99.95 ? 0 : 1;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

/**
 * A length of work for people: 84 ms, 1.8 s, 2 min 5 s.
 * @param {number} ms
 */
export function formatMs(ms) {
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(ms < 9995 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/**
 * A place in a recording: 0:07, 12:31, 1:02:03. Rounds down, so a time never lies past its place.
 * @param {number} seconds
 * @param {boolean} [tenths] 0:07.4
 */
export function formatClock(seconds, tenths = false) {
  const whole = Math.max(0, Math.floor(seconds + 1e-6));
  const h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60, s = whole % 60;
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const tail = tenths ? `.${Math.floor((seconds + 1e-6 - whole) * 10)}` : "";
  return (h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`) + tail;
}

/**
 * How long is left, coarse enough not to jump about: "a few seconds left", "about 40 s left", "about 3 min left".
 * @param {number} seconds
 */
export function formatLeft(seconds) {
  if (seconds < 4) return "a few seconds left";
  if (seconds < 57) return `about ${seconds < 20 ? Math.ceil(seconds) : Math.ceil(seconds / 5) * 5} s left`;
  return `about ${Math.ceil(seconds / 60 - 0.05)} min left`;
}

/** A number with one decimal below ten and none above: 8.1, 23. @param {number} value */
export function formatFactor(value) {
  return value < 9.95 ? value.toFixed(1) : String(Math.round(value));
}

/** Words with a capital in front and a full stop behind. @param {string} words */
export function sentence(words) {
  const text = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

/**
 * Settings that outlive a visit. A browser that forbids storage simply forgets.
 */
export const settings = {
  /** @param {string} key @param {string} fallback */
  get(key, fallback = "") {
    try { return localStorage.getItem(`candlewick.${key}`) ?? fallback; } catch { return fallback; }
  },
  /** @param {string} key @param {string} value */
  set(key, value) {
    try { localStorage.setItem(`candlewick.${key}`, value); } catch { /* private mode: forget */ }
  },
};

/**
 * Text to the clipboard; also on insecure addresses, where browsers hide navigator.clipboard.
 * @param {string} text
 */
export async function copyText(text) {
  if (navigator.clipboard) {
    try { return await navigator.clipboard.writeText(text); } catch { /* refused: try the older way */ }
  }
  const box = el("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  box.value = text;
  const before = document.activeElement;
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  if (before instanceof HTMLElement) before.focus();
  if (!done) throw new Error("The browser did not allow copying. Select the text and copy it by hand.");
}

/**
 * Hand a file to the person.
 * @param {string} name
 * @param {Blob} blob
 */
export function saveFile(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** A colour token of style.css as the canvas wants it. @param {string} name for example "--wave" */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * Size a canvas to its box in device pixels and return its context, scaled so that one unit is one CSS pixel.
 * @param {HTMLCanvasElement} canvas
 * @returns {{pen: CanvasRenderingContext2D, width: number, height: number}}
 */
export function fitCanvas(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

/**
 * Upright bars with round ends, centred on the middle line: the look of both the live meter and the player.
 * @param {CanvasRenderingContext2D} pen
 * @param {number} width @param {number} height CSS pixels
 * @param {(bar: number, bars: number) => {size: number, colour: string}} look size 0..1 of the height
 */
export function drawBars(pen, width, height, look) {
  const step = 4, thick = 2.5;
  const bars = Math.max(1, Math.floor(width / step));
  for (let bar = 0; bar < bars; bar++) {
    const { size, colour: fill } = look(bar, bars);
    const tall = Math.max(thick, size * (height - 4));
    pen.fillStyle = fill;
    pen.beginPath();
    pen.roundRect(bar * step, (height - tall) / 2, thick, tall, thick / 2);
    pen.fill();
  }
}
