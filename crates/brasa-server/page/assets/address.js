// The address of a chat: the page's own with `#chat=ID`. The browser's arrows walk through the chats that were opened, and a
// reload shows the same chat. What stands behind `#` is never sent to a server.

const NAME = /^#chat=([0-9a-zA-Z-]{1,64})$/;

/** The id of the chat that the address names, or null. */
export function addressed() {
  return NAME.exec(location.hash)?.[1] ?? null;
}

/** Makes the address that of a chat; null is the page's own. */
export function showAddress(id) {
  if (addressed() === id) return;
  history.pushState(null, "", id === null ? location.pathname + location.search : `#chat=${id}`);
}

/** Calls `open` with the id that the address names whenever the user walks to another one. */
export function followAddress(open) {
  addEventListener("popstate", () => open(addressed()));
}
