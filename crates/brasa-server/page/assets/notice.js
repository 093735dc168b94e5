// Short notices at the lower edge, words for screen readers, and the one banner above the conversation.

import { byId, fill, h, iconButton } from "./dom.js";

/** How long a notice stays, in milliseconds; one with an action stays longer. */
const STAY = { plain: 3500, action: 9000 };

/** Says something to screen readers only. */
export function announce(text) {
  const region = byId("announcer");
  // The same words twice are announced twice only if the region was empty in between.
  region.textContent = "";
  requestAnimationFrame(() => (region.textContent = text));
}

/** Shows a notice; `action` is `{ label, run }`, as "Undo". */
export function notify(text, action = null) {
  const element = h("div", { class: "notice" }, h("span", {}, text));
  const close = () => element.remove();
  if (action) {
    const run = () => {
      close();
      action.run();
    };
    element.append(h("button", { type: "button", class: "quiet", onclick: run }, action.label));
  }
  byId("notices").append(element);
  setTimeout(close, action ? STAY.action : STAY.plain);
}

/**
 * Shows the banner until it is closed or replaced; null takes it away.
 *
 * `kind` says what the banner is about, so that only the same kind takes it away.
 *
 * @param {string} kind
 * @param {{text: string, remedy?: string, actions?: {label: string, run: () => void}[]} | null} content
 */
export function banner(kind, content) {
  const place = byId("banner");
  if (content === null) {
    if (place.dataset.kind === kind) {
      place.hidden = true;
      fill(place);
    }
    return;
  }
  place.dataset.kind = kind;
  place.hidden = false;
  const buttons = (content.actions ?? []).map(({ label, run }) => h("button", { type: "button", class: "quiet", onclick: run }, label));
  const close = iconButton("close", "Close this message", () => banner(kind, null));
  fill(place, h("p", {}, h("strong", {}, content.text), " ", content.remedy ?? ""), h("div", { class: "row" }, buttons, close));
}
