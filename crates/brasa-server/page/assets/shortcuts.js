// Keyboard shortcuts: one table, which the help dialog shows and the listener follows.

import { byId, fill, h } from "./dom.js";

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);

/** Shortcuts by the place of the key (`code`), so that layouts and Option on a Mac do not change them. */
export const SHORTCUTS = [
  { action: "newChat", keys: ["Alt", "N"], code: "KeyN", alt: true, text: "New chat" },
  { action: "search", keys: ["Ctrl", "K"], code: "KeyK", ctrl: true, text: "Search in chats" },
  { action: "prompt", keys: ["Alt", "M"], code: "KeyM", alt: true, text: "To the message field" },
  { action: "regenerate", keys: ["Alt", "R"], code: "KeyR", alt: true, text: "Regenerate the last answer" },
  { action: "copyLast", keys: ["Alt", "C"], code: "KeyC", alt: true, text: "Copy the last answer" },
  { action: "previousBranch", keys: ["Alt", "["], code: "BracketLeft", alt: true, text: "Previous branch" },
  { action: "nextBranch", keys: ["Alt", "]"], code: "BracketRight", alt: true, text: "Next branch" },
  { action: "previousChat", keys: ["Alt", "↑"], code: "ArrowUp", alt: true, text: "Chat above" },
  { action: "nextChat", keys: ["Alt", "↓"], code: "ArrowDown", alt: true, text: "Chat below" },
  { action: "sidebar", keys: ["Alt", "B"], code: "KeyB", alt: true, text: "Show or hide chats" },
  { action: "settings", keys: ["Alt", "S"], code: "KeyS", alt: true, text: "Settings" },
  { action: "help", keys: ["Ctrl", "/"], code: "Slash", ctrl: true, text: "This help" },
];

/** What fields do with keys, for the help only. */
const FIELDS = [
  { keys: ["Enter"], text: "Send" },
  { keys: ["Shift", "Enter"], text: "New line" },
  { keys: ["↑"], text: "In an empty field: edit your last message" },
  { keys: ["Esc"], text: "Stop the answer or a recording; close what is open" },
];

/**
 * Follows the shortcuts.
 *
 * @param {Record<string, () => void>} actions  by the names in `SHORTCUTS`, and `escape`
 */
export function listen(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.defaultPrevented) return;
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) actions.escape();
    const control = MAC ? event.metaKey : event.ctrlKey;
    const shortcut = SHORTCUTS.find(
      (one) => one.code === event.code && Boolean(one.alt) === event.altKey && Boolean(one.ctrl) === control && !event.shiftKey,
    );
    if (!shortcut || (document.querySelector("dialog[open]") && shortcut.action !== "help")) return;
    event.preventDefault();
    actions[shortcut.action]();
  });
}

/** Opens the help, or closes it. */
export function toggleHelp() {
  const dialog = byId("help");
  if (dialog.open) return dialog.close();
  if (document.querySelector("dialog[open]")) return undefined;
  const rows = [...FIELDS, ...SHORTCUTS].map(({ keys, text }) =>
    h("div", { class: "shortcut" }, h("dt", {}, keys.map((key) => h("kbd", {}, named(key)))), h("dd", {}, text)),
  );
  fill(byId("help-list"), rows);
  dialog.showModal();
  return undefined;
}

function named(key) {
  if (!MAC) return key;
  return { Ctrl: "⌘", Alt: "⌥", Shift: "⇧" }[key] ?? key;
}
