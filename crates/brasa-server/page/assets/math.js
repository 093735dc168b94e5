// LaTeX in answers. markdown-it learns four pairs of marks, before it reads backslashes as escapes:
// `$…$` and `\(…\)` within a line, `$$…$$` and `\[…\]` as a display. Temml makes MathML of the source, which browsers draw by themselves.

import temml from "./temml.js";
import { h } from "./dom.js";

/** Longest formula in characters: a longer one is shown as its source, since an answer may be made to stall a browser. */
const LONGEST = 20_000;

/** Temml's bounds: sizes in em, expansions of macros; nothing that could load, link or name an element. */
const BOUNDS = { trust: false, throwOnError: true, maxSize: [8, 8], maxExpand: 500, annotate: true };

/** Attributes by which a formula could pretend to be another element of the page. */
const STRANGE = ["id", "href", "name", "src"];

const PAIRS = [
  { open: "\\(", close: "\\)", display: false },
  { open: "\\[", close: "\\]", display: true },
  { open: "$$", close: "$$", display: true },
  { open: "$", close: "$", display: false },
];

/** Teaches a markdown-it parser to find formulas: tokens of the type `math`, whose `block` says that it is a display. */
export function findMath(parser) {
  parser.inline.ruler.before("escape", "math", inline);
  parser.block.ruler.before("paragraph", "math", block, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

/** A formula as MathML, or its source as code where it is wrong, too long or not finished. */
export function mathElement(source, display) {
  const place = h(display ? "div" : "span", { class: display ? "math display" : "math" });
  if (display) {
    place.setAttribute("tabindex", "0");
    place.setAttribute("role", "region");
    place.setAttribute("aria-label", "Formula");
  }
  try {
    if (source.length > LONGEST) throw new Error("too long");
    temml.render(source, place, { ...BOUNDS, displayMode: display });
    for (const element of place.querySelectorAll("*")) for (const name of STRANGE) element.removeAttribute(name);
  } catch {
    place.replaceChildren(h("code", { title: "This formula cannot be drawn" }, source));
  }
  return place;
}

/** A formula within a line. Dollars are marks only where they hug what they hold and no digit follows, so that prices stay prices. */
function inline(state, silent) {
  const { src, pos, posMax } = state;
  const pair = PAIRS.find(({ open }) => src.startsWith(open, pos));
  if (!pair) return false;
  const from = pos + pair.open.length;
  const to = closing(src, from, posMax, pair);
  if (to < 0) return keepBackslash(state, pair, silent);
  const source = src.slice(from, to);
  if (!source.trim() || (pair.open === "$" && (/^\s|\s$/.test(source) || /\d/.test(src[to + 1] ?? "")))) return keepBackslash(state, pair, silent);
  if (!silent) push(state, source, pair.display);
  state.pos = to + pair.close.length;
  return true;
}

/** A mark without its other half is text, with its backslash: markdown would take that away. */
function keepBackslash(state, { open }, silent) {
  if (!open.startsWith("\\")) return false;
  if (!silent) state.pending += open;
  state.pos += open.length;
  return true;
}

/** A display that has lines of its own, with blank lines in it perhaps. */
function block(state, first, last, silent) {
  const begin = state.bMarks[first] + state.tShift[first];
  const line = state.src.slice(begin, state.eMarks[first]);
  const pair = PAIRS.find(({ open, display }) => display && line.startsWith(open));
  if (!pair || state.sCount[first] - state.blkIndent >= 4) return false;
  const parts = [];
  for (let number = first; number < last; number += 1) {
    if (number > first && state.sCount[number] < state.blkIndent && !state.isEmpty(number)) return false;
    const whole = number === first ? line.slice(pair.open.length) : state.src.slice(state.bMarks[number] + state.tShift[number], state.eMarks[number]);
    const to = closing(whole, 0, whole.length, pair);
    if (to < 0) {
      parts.push(whole);
      continue;
    }
    // Words behind the formula make it a part of a paragraph.
    if (whole.slice(to + pair.close.length).trim()) return false;
    parts.push(whole.slice(0, to));
    if (silent) return true;
    const token = push(state, parts.join("\n"), true);
    token.map = [first, number + 1];
    state.line = number + 1;
    return true;
  }
  return false;
}

function push(state, source, display) {
  const token = state.push("math", "", 0);
  token.content = source;
  token.block = display;
  return token;
}

/** Where the closing mark stands, or -1. A backslash takes the character behind it along, unless both are the mark. */
function closing(text, from, end, { close }) {
  for (let at = from; at + close.length <= end; at += 1) {
    if (text.startsWith(close, at)) return at;
    if (text[at] === "\\") at += 1;
  }
  return -1;
}
