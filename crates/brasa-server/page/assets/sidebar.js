// The list of chats, their search, and the drawer that holds it on a narrow screen.

import { byId, debounce, fill, h, iconButton } from "./dom.js";
import { search } from "./search.js";

const DAY = 86_400_000;

/** The left side of the page. */
export class Sidebar {
  #narrow = matchMedia("(max-width: 52rem)");
  #open = false;

  /**
   * @param {import("./chats.js").Chats} chats
   * @param {import("./generate.js").Generator} generator
   * @param {import("./settings.js").Settings} settings
   * @param {{open: (id: string, node: string | null) => void, rename: (chat) => void, remove: (chat) => void, copyOne: (chat) => void, exportOne: (chat) => void}} actions
   */
  constructor(chats, generator, settings, actions) {
    this.chats = chats;
    this.generator = generator;
    this.settings = settings;
    this.actions = actions;
    this.element = byId("sidebar");
    this.list = byId("chats");
    this.field = byId("search");
    this.toggleButton = byId("sidebar-toggle");
    this.field.addEventListener("input", debounce(() => this.show(), 120));
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.field.value) {
        event.stopPropagation();
        this.field.value = "";
        this.show();
      }
      if (event.key === "ArrowDown") {
        event.preventDefault();
        this.list.querySelector(".chat-open")?.focus();
      }
    });
    this.list.addEventListener("keydown", (event) => this.#walk(event));
    this.toggleButton.addEventListener("click", () => this.toggle());
    byId("scrim").addEventListener("click", () => this.close());
    this.#narrow.addEventListener("change", () => this.#apply());
    chats.addEventListener("list", () => this.show());
    chats.addEventListener("open", () => this.show());
    generator.addEventListener("begin", () => this.show());
    generator.addEventListener("end", () => this.show());
    this.#apply();
  }

  /** Opens or closes the side: a drawer on a narrow screen, a column else. */
  toggle() {
    if (this.#narrow.matches) this.#open = !this.#open;
    else this.settings.set("sidebar", !this.settings.get("sidebar"));
    this.#apply();
    if (this.#narrow.matches && this.#open) this.field.focus();
  }

  /** Closes the drawer of a narrow screen; true if it was open. */
  close() {
    if (!this.#narrow.matches || !this.#open) return false;
    this.#open = false;
    this.#apply();
    this.toggleButton.focus();
    return true;
  }

  /** Puts the cursor into the search field. */
  search() {
    if (!this.#visible) this.toggle();
    this.field.focus();
    this.field.select();
  }

  /** Shows the chats that the search finds. */
  show() {
    const query = this.field.value.trim();
    const found = search(this.chats.list, query);
    const focused = this.list.contains(document.activeElement) ? document.activeElement.closest("li")?.dataset.id : null;
    const rows = [];
    let group = "";
    for (const hit of found) {
      const name = groupOf(hit.chat.updated);
      if (name !== group && !query) rows.push(h("li", { class: "chat-group", role: "presentation" }, name));
      group = name;
      rows.push(this.#row(hit));
    }
    if (!found.length) rows.push(h("li", { class: "chat-none" }, query ? "No chat has these words." : "Chats will be listed here. They stay in this browser."));
    fill(this.list, rows);
    byId("search-count").textContent = query ? `${found.length} ${found.length === 1 ? "chat" : "chats"} found` : "";
    if (focused) this.list.querySelector(`li[data-id="${focused}"] .chat-open`)?.focus();
  }

  get #visible() {
    return this.#narrow.matches ? this.#open : this.settings.get("sidebar");
  }

  #apply() {
    const visible = this.#visible;
    document.body.classList.toggle("sidebar-closed", !visible);
    document.body.classList.toggle("drawer-open", this.#narrow.matches && this.#open);
    this.element.inert = !visible;
    byId("main").inert = this.#narrow.matches && this.#open;
    this.toggleButton.setAttribute("aria-expanded", String(visible));
  }

  #row({ chat, snippet, node }) {
    const current = chat === this.chats.current;
    const open = h(
      "button",
      { type: "button", class: "chat-open", "aria-current": current ? "page" : null, title: chat.title, onclick: () => this.actions.open(chat.id, node) },
      h("span", { class: "chat-title" }, chat.title),
      snippet ? h("span", { class: "chat-snippet" }, snippet[0], h("mark", {}, snippet[1]), snippet[2]) : null,
    );
    return h(
      "li",
      { class: current ? "chat current" : "chat", "data-id": chat.id },
      open,
      this.generator.running(chat) ? h("span", { class: "pulse", role: "img", "aria-label": "is being answered" }) : null,
      h(
        "span",
        { class: "chat-actions" },
        iconButton("edit", `Rename ${chat.title}`, () => this.actions.rename(chat)),
        iconButton("copy", `Copy ${chat.title} as Markdown`, () => this.actions.copyOne(chat)),
        iconButton("download", `Export ${chat.title}`, () => this.actions.exportOne(chat)),
        iconButton("trash", `Delete ${chat.title}`, () => this.actions.remove(chat)),
      ),
    );
  }

  #walk(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    const all = [...this.list.querySelectorAll(".chat-open")];
    const at = all.indexOf(document.activeElement.closest("li")?.querySelector(".chat-open"));
    event.preventDefault();
    if (at + by < 0) this.field.focus();
    else all[at + by]?.focus();
  }
}

function groupOf(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  if (time >= today - 7 * DAY) return "Last seven days";
  return new Date(time).toLocaleDateString("en", { month: "long", year: "numeric" });
}
