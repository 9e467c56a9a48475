/**
 * The part of Markdown that models write, as DOM nodes: paragraphs, headings, lists, quotes, code, emphasis. Nothing becomes
 * a link, a picture or markup of its own: all of the text ends in text nodes.
 *
 * Every run of text knows where in the source it stands, so that the caller can make its nodes (`leaf`), for one with a
 * span for each token.
 *
 * @typedef {{text: string, starts: Array<[number, number]>}} Slice lines taken from the source; starts: where each begins in
 *   `text` and in the source
 * @typedef {{kind: "p" | "quote" | "rule" | "h", slice: Slice, start: number, end: number}} Plain
 * @typedef {{kind: "code", slice: Slice, language: string, start: number, end: number}} Code
 * @typedef {{blocks: Block[], number: number | null}} Item
 * @typedef {{kind: "list", ordered: boolean, items: Item[], start: number, end: number}} List
 * @typedef {Plain | Code | List} Block start, end: places in the source
 *
 * @typedef {(start: number, end: number) => Node[]} Leaf nodes for the source's text from start to end
 */
import { el } from "../lib/ui.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)/;
const HEADING = /^ {0,3}#{1,6}[ \t]+/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const BULLET = /^( *)([-*+]|\d{1,9}[.)])[ \t]+(?=\S)/;
const QUOTE = /^ {0,3}>[ \t]?/;

/** @typedef {{text: string, at: number}} Line at: place of its first letter in the source */

/** @param {string} source @returns {Block[]} */
export function parse(source) {
  let at = 0;
  const lines = source.split("\n").map((text) => {
    const line = { text, at };
    at += text.length + 1;
    return line;
  });
  return blocksOf(lines, 0);
}

/** @param {Line[]} lines @param {number} depth of lists and quotes @returns {Block[]} */
function blocksOf(lines, depth) {
  /** @type {Block[]} */
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    const { text } = lines[i], fence = FENCE.exec(text);
    const from = i;
    if (!text.trim()) { i++; continue; }
    if (fence) {
      for (i++; i < lines.length && !closes(lines[i].text, fence[1]); i++);
      blocks.push({ kind: "code", language: fence[2], slice: sliceOf(lines.slice(from + 1, i)), ...span(lines, from, Math.min(i + 1, lines.length)) });
      if (i < lines.length) {                             // small models go on writing behind the closing mark
        const behind = cut(lines[i], /^[\s`~]*/);
        if (behind.text) lines = [...lines.slice(0, i), behind, ...lines.slice(i + 1)];
        else i++;
      }
    } else if (RULE.test(text)) {
      blocks.push({ kind: "rule", slice: sliceOf([]), ...span(lines, i, ++i) });
    } else if (HEADING.test(text)) {
      blocks.push({ kind: "h", slice: sliceOf([cut(lines[i], HEADING)]), ...span(lines, i, ++i) });
    } else if (BULLET.test(text) && depth < 8) {
      const [list, next] = listOf(lines, i, depth);
      blocks.push(list);
      i = next;
    } else if (QUOTE.test(text)) {
      while (i < lines.length && QUOTE.test(lines[i].text)) i++;
      blocks.push({ kind: "quote", slice: sliceOf(lines.slice(from, i).map((line) => cut(line, QUOTE))), ...span(lines, from, i) });
    } else {
      for (i++; i < lines.length && lines[i].text.trim() && ![FENCE, HEADING, RULE, QUOTE].some((mark) => mark.test(lines[i].text))
        && !(BULLET.test(lines[i].text) && depth < 8); i++);
      blocks.push({ kind: "p", slice: sliceOf(lines.slice(from, i)), ...span(lines, from, i) });
    }
  }
  return blocks;
}

/** Whether a line ends a block of code: its mark alone, or a sentence behind it. @param {string} text @param {string} fence */
const closes = (text, fence) => new RegExp(`^ {0,3}${fence[0]}{${fence.length},}([ \\t]*$|[^\`~]*\\S[ \\t]+\\S)`).test(text);

/**
 * The list that begins at line i -> it, and the line after it.
 * @param {Line[]} lines @param {number} i @param {number} depth
 * @returns {[List, number]}
 */
function listOf(lines, i, depth) {
  const first = /** @type {RegExpExecArray} */ (BULLET.exec(lines[i].text));
  const indent = first[1].length, ordered = /\d/.test(first[2]), from = i;
  /** @type {Item[]} */
  const items = [];
  while (i < lines.length) {
    const mark = BULLET.exec(lines[i].text);
    if (!mark || mark[1].length > indent + 1 || mark[1].length < indent || /\d/.test(mark[2]) !== ordered || RULE.test(lines[i].text)) break;
    const inside = [cut(lines[i], BULLET)], width = mark[0].length;
    for (i++; i < lines.length; i++) {
      const { text } = lines[i], room = text.length - text.trimStart().length;
      if (!text.trim()) {                               // an empty line belongs to the item if what follows does
        const next = lines.slice(i + 1).find((line) => line.text.trim());
        if (!next || next.text.length - next.text.trimStart().length < Math.min(width, indent + 2)) break;
        inside.push(lines[i]);
        continue;
      }
      const own = BULLET.exec(text);
      if (room <= indent + 1 && (own || FENCE.test(text) || HEADING.test(text) || !lines[i - 1].text.trim())) break;
      const off = Math.min(room, width);
      inside.push({ text: text.slice(off), at: lines[i].at + off });
    }
    items.push({ blocks: blocksOf(inside, depth + 1), number: ordered ? Number.parseInt(mark[2], 10) : null });
    // one empty line may stand between two items
    if (i + 1 < lines.length && !lines[i].text.trim()) {
      const next = BULLET.exec(lines[i + 1].text);
      if (next && Math.abs(next[1].length - indent) <= 1 && /\d/.test(next[2]) === ordered) i++;
    }
  }
  return [{ kind: "list", ordered, items, ...span(lines, from, i) }, i];
}

/** @param {Line} line @param {RegExp} mark @returns {Line} without it */
function cut(line, mark) {
  const n = mark.exec(line.text)?.[0].length ?? 0;
  return { text: line.text.slice(n), at: line.at + n };
}

/** @param {Line[]} lines @returns {Slice} */
function sliceOf(lines) {
  let n = 0;
  const starts = lines.map(({ text, at }) => {
    const start = /** @type {[number, number]} */ ([n, at]);
    n += text.length + 1;
    return start;
  });
  return { text: lines.map(({ text }) => text).join("\n"), starts };
}

/** @param {Line[]} lines @param {number} from @param {number} to */
function span(lines, from, to) {
  const last = lines[to - 1];
  return { start: lines[from].at, end: last.at + last.text.length };
}

// ---- nodes --------------------------------------------------------------------------------------------------------

/**
 * @param {Block} block
 * @param {Leaf} leaf
 * @param {(button: HTMLButtonElement, code: string) => void} onCopy of a block of code
 * @returns {HTMLElement}
 */
export function nodeOf(block, leaf, onCopy) {
  switch (block.kind) {
    case "rule": return el("hr");
    case "p": return el("p", {}, ...inline(block.slice, leaf));
    case "h": return el("p", { class: "heading" }, ...inline(block.slice, leaf));
    case "quote": return el("blockquote", {}, ...inline(block.slice, leaf));
    case "code": {
      const { text } = block.slice;
      const copy = el("button", { type: "button", class: "plain", text: "Copy code" });
      copy.addEventListener("click", () => onCopy(copy, text));
      return el("figure", { class: "code" }, el("figcaption", {}, el("span", { text: block.language || "code" }), copy),
        el("pre", { tabindex: 0 }, el("code", {}, ...leaves(block.slice, 0, text.length, leaf))));
    }
    case "list": {
      const [{ number }] = block.items;
      const list = block.ordered ? el("ol", number === null || number === 1 ? {} : { start: number }) : el("ul");
      for (const { blocks } of block.items) {
        const item = el("li");
        blocks.forEach((inner, i) => {                  // the usual item is one paragraph: its words alone
          if (i === 0 && inner.kind === "p") item.append(...inline(inner.slice, leaf));
          else item.append(nodeOf(inner, leaf, onCopy));
        });
        list.append(item);
      }
      return list;
    }
  }
}

/** Text from a to b of a slice, by its places in the source. @param {Slice} slice @param {number} a @param {number} b @param {Leaf} leaf @returns {Node[]} */
function leaves({ starts }, a, b, leaf) {
  /** @type {Node[]} */
  const nodes = [];
  starts.forEach(([start, at], i) => {
    const end = i + 1 < starts.length ? starts[i + 1][0] : Infinity;   // with its line's end
    const from = Math.max(a, start), to = Math.min(b, end);
    if (from < to) nodes.push(...leaf(at + from - start, at + to - start));
  });
  return nodes;
}

const WORD = /[\p{L}\p{N}]/u;

/** Emphasis and code in a run of text. @param {Slice} slice @param {Leaf} leaf @returns {Node[]} */
function inline(slice, leaf) {
  const { text } = slice;
  /** Marks without an end: they need not be looked for again. @type {Set<string>} */
  const hopeless = new Set();

  /** @param {number} a @param {number} b @returns {Node[]} */
  const within = (a, b) => {
    /** @type {Node[]} */
    const nodes = [];
    let done = a;
    for (let i = a; i < b;) {
      const mark = /^(?:`+|\*{1,3}|_{1,3})/.exec(text.slice(i, Math.min(b, i + 12)))?.[0];
      if (!mark) { i++; continue; }
      const end = hopeless.has(mark) ? -1 : closing(mark, i, b);
      if (end < 0) {
        i += mark.length;
        continue;
      }
      nodes.push(...leaves(slice, done, i, leaf));
      const [from, to] = [i + mark.length, end];
      if (mark[0] === "`") nodes.push(el("code", {}, ...leaves(slice, from, to, leaf)));
      else if (mark.length === 1) nodes.push(el("em", {}, ...within(from, to)));
      else if (mark.length === 2) nodes.push(el("strong", {}, ...within(from, to)));
      else nodes.push(el("strong", {}, el("em", {}, ...within(from, to))));
      i = done = end + mark.length;
    }
    nodes.push(...leaves(slice, done, b, leaf));
    return nodes;
  };

  /** Where the mark at i ends, or -1. @param {string} mark @param {number} i @param {number} b */
  const closing = (mark, i, b) => {
    const after = i + mark.length, code = mark[0] === "`";
    if (!code && (/\s/.test(text[after] ?? " ") || ((mark[0] === "_" || mark === "*") && WORD.test(text[i - 1] ?? "")))) return -1;   // snake_case, 2*3
    for (let at = text.indexOf(mark, after); at >= 0 && at + mark.length <= b; at = text.indexOf(mark, at + 1)) {
      if (at === after || text[at - 1] === mark[0] || text[at + mark.length] === mark[0]) continue;
      if (code || (!/\s/.test(text[at - 1]) && !(mark[0] === "_" && WORD.test(text[at + mark.length] ?? "")))) return at;
    }
    if (b === text.length) hopeless.add(mark);
    return -1;
  };
  return within(0, text.length);
}
