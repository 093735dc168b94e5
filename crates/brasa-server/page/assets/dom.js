// Small helpers that make and find elements. No HTML text is ever parsed on this page.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Makes an element.
 *
 * `attributes`: a function under `on…` becomes a listener, `true` an empty attribute; `false`, `null` and `undefined` leave it out.
 * `children`: elements, texts, lists of them; `null`, `undefined` and `false` are left out.
 *
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children
 * @returns {any}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** Appends elements and texts, and lists of them. */
export function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child);
  }
  return parent;
}

/** Replaces everything in `parent`. */
export function fill(parent, ...children) {
  parent.replaceChildren();
  return append(parent, children);
}

/** The element of the page with this id; it must be there. */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`index.html has no element #${id}`);
  return /** @type {any} */ (element);
}

/** A picture of the sprite in index.html, hidden from screen readers. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** A button that shows only a picture; `label` is its name and its tooltip. */
export function iconButton(name, label, onclick, attributes = {}) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...attributes }, icon(name));
}

/** True for a key that sends what is written: Enter, or Ctrl Enter (⌘ Enter) where Enter alone makes a line. */
export function sends(event, enterSends) {
  if (event.key !== "Enter" || event.isComposing) return false;
  return event.ctrlKey || event.metaKey || (enterSends && !event.shiftKey);
}

/** Runs `call` once the calls have paused for `milliseconds`. */
export function debounce(call, milliseconds) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...args), milliseconds);
  };
}

/** An id that no other chat or message has. `crypto.randomUUID` is missing where a page comes by plain HTTP from another machine. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
