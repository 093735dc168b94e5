// Markdown to elements. markdown-it parses (raw HTML off); its tokens become elements one by one,
// so no text of a model is ever parsed as HTML, and the page forbids that altogether (Trusted Types).

import MarkdownIt from "./markdown-it.js";
import { fill, h, icon } from "./dom.js";
import { pieces } from "./highlight.js";
import { findMath, mathElement } from "./math.js";

const parser = new MarkdownIt("default", { html: false, linkify: true, breaks: false, typographer: false });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
findMath(parser);

/** Attributes that may reach the page; everything else is dropped. */
const KEPT = new Set(["start"]);

/**
 * Shows a text that grows. Blocks whose source did not change keep their elements,
 * so selections survive and a long answer costs no more per token than its last block.
 */
export class MarkdownView {
  constructor() {
    this.element = h("div", { class: "prose" });
    this.sources = [];
  }

  /** Shows `text`. A `final` text is rendered whole, since a late link definition may change an early block. */
  show(text, final = false) {
    const blocks = blocksOf(text);
    const sources = blocks.map(({ source }) => source);
    let same = 0;
    if (!final) while (same < sources.length && sources[same] === this.sources[same]) same += 1;
    else if (sources.join("") === this.sources.join("") && this.final) return;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    for (const block of blocks.slice(same)) this.element.append(build(block.tokens));
    this.sources = sources;
    this.final = final;
  }
}

/** A block of code with its language and a copy button. */
export function codeBlock(code, language = "") {
  const text = code.replace(/\n$/, "");
  const spans = pieces(text, language).map(([kind, piece]) => (kind ? h("span", { class: kind }, piece) : piece));
  const copy = h("button", { type: "button", class: "copy-code", "data-copy": "code" }, icon("copy"), h("span", {}, "Copy"));
  return h(
    "div",
    { class: "code" },
    h("div", { class: "code-bar" }, h("span", { class: "code-language" }, language || "text"), copy),
    h("pre", { tabindex: "0", role: "region", "aria-label": `Code, ${language || "text"}` }, h("code", {}, spans)),
  );
}

/** Top-level blocks: their tokens and the lines that they come from. */
function blocksOf(text) {
  const lines = text.split("\n");
  const blocks = [];
  let depth = 0;
  let tokens = [];
  for (const token of parser.parse(text, {})) {
    tokens.push(token);
    depth += token.nesting;
    if (depth > 0) continue;
    const [from, to] = tokens[0].map ?? [0, 0];
    // A block that ends with the text may still grow: its kind and its source are compared.
    blocks.push({ tokens, source: `${tokens[0].type}\n${lines.slice(from, to).join("\n")}\n` });
    tokens = [];
  }
  return blocks;
}

/** Elements of a balanced run of tokens. */
function build(tokens) {
  const root = document.createDocumentFragment();
  const open = [root];
  for (const token of tokens) {
    const here = open.at(-1);
    if (token.type === "inline") here.append(build(token.children ?? []));
    else if (token.nesting === 1) {
      const element = opened(token);
      if (element) here.append(outer(element));
      open.push(element ?? here);
    } else if (token.nesting === -1) open.pop();
    else here.append(leaf(token));
  }
  return root;
}

/** A table scrolls sideways in a box of its own. */
function outer(element) {
  return element.tagName === "TABLE" ? h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, element) : element;
}

function opened(token) {
  if (token.hidden) return null;
  if (token.type === "link_open") return link(token.attrGet("href"));
  // The page's own headings are of levels 1 and 2: an answer's begin at 3.
  const tag = token.type === "heading_open" ? `h${Math.min(6, Number(token.tag[1]) + 2)}` : token.tag;
  const element = document.createElement(tag);
  if (token.type === "heading_open") element.className = `heading-${token.tag[1]}`;
  for (const [name, value] of token.attrs ?? []) {
    const aligned = name === "style" && /^text-align:(left|right|center)$/.exec(value);
    if (aligned) element.className = `align-${aligned[1]}`;
    else if (KEPT.has(name)) element.setAttribute(name, value);
  }
  return element;
}

function leaf(token) {
  switch (token.type) {
    case "text":
    case "text_special":
      return token.content;
    case "softbreak":
      return "\n";
    case "hardbreak":
      return h("br");
    case "code_inline":
      return h("code", {}, token.content);
    case "fence":
      return codeBlock(token.content, token.info.trim().split(/\s+/)[0]);
    case "code_block":
      return codeBlock(token.content);
    case "hr":
      return h("hr");
    case "image":
      return image(token);
    case "math":
      return mathElement(token.content, token.block);
    default:
      return token.content;
  }
}

/** A link leaves the page in a tab of its own and does not say where it came from. */
function link(href) {
  const safe = /^(https?:|mailto:|#)/i.test(href ?? "");
  if (!safe) return h("span", { class: "dead-link" });
  return h("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" });
}

/** Images are never loaded: what an answer may fetch, it may also use to send. They become links. */
function image(token) {
  const address = token.attrGet("src") ?? "";
  const name = token.content || address;
  const element = link(address);
  return fill(element, icon("image"), ` ${name}`);
}
