// The chats in memory and the one that is shown. Views listen to its events:
// "list" (chats came, went or changed their title), "open" (another chat is shown),
// "change" (messages of `detail.chat` came or went), "storage" (`detail` is a StorageError, or null once writing works again).

import { newId } from "./dom.js";

/** All chats, kept in a `Store`, and shared with other tabs of the same browser. */
export class Chats extends EventTarget {
  /** @type {Map<string, import("./tree.js").Chat>} */
  #chats = new Map();
  #current = null;
  #channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("brasa.chats") : null;
  #writing = new Map();
  #failed = false;
  /** Says whether a chat is being answered here: what another tab wrote of it is then not read. */
  busy = (_id) => false;

  /** @param {import("./store.js").Store} store */
  constructor(store) {
    super();
    this.store = store;
    this.#channel?.addEventListener("message", ({ data }) => this.#hear(data));
  }

  /** Reads what was kept. */
  async load() {
    try {
      for (const chat of await this.store.all()) this.#chats.set(chat.id, chat);
    } catch (error) {
      this.#tellStorage(error);
    }
    this.#tell("list");
  }

  /** Chats, the last used first. */
  get list() {
    return [...this.#chats.values()].sort((a, b) => b.updated - a.updated);
  }

  /** The chat that is shown, or null where a new one begins. */
  get current() {
    return this.#current;
  }

  /** The chat with this id, or undefined. */
  get(id) {
    return this.#chats.get(id);
  }

  /** Shows a chat; null shows the place where a new one begins. */
  open(id) {
    this.#current = id === null ? null : (this.#chats.get(id) ?? null);
    this.#tell("open");
  }

  /** Makes a chat and shows it. */
  create(title, system) {
    const now = Date.now();
    const chat = { id: newId(), title, created: now, updated: now, system, nodes: new Map(), chosen: new Map() };
    this.#chats.set(chat.id, chat);
    this.#current = chat;
    this.#tell("open");
    this.#tell("list");
    return chat;
  }

  /** Adds or replaces chats, as an import does. */
  async insert(chats) {
    for (const chat of chats) {
      this.#chats.set(chat.id, chat);
      await this.#write(chat);
    }
    this.#tell("list");
  }

  /** Says that messages changed, and keeps the chat. */
  changed(chat) {
    chat.updated = Date.now();
    this.save(chat);
    this.#tell("change", { chat });
    this.#tell("list");
  }

  /** Gives a chat another title. */
  rename(chat, title) {
    chat.title = title;
    this.save(chat);
    this.#tell("list");
  }

  /** Keeps a chat. Writes of one chat follow each other; those that would be overtaken are left out. */
  save(chat) {
    if (!this.#chats.has(chat.id)) return;
    const waiting = this.#writing.get(chat.id);
    if (waiting) {
      waiting.again = true;
      return;
    }
    const state = { again: false };
    this.#writing.set(chat.id, state);
    this.#write(chat).finally(() => {
      this.#writing.delete(chat.id);
      if (state.again) this.save(chat);
    });
  }

  /** Removes a chat; the returned function puts it back. */
  async remove(id) {
    const chat = this.#chats.get(id);
    if (!chat) return () => {};
    this.#chats.delete(id);
    if (this.#current?.id === id) this.open(null);
    this.#tell("list");
    await this.#attempt(() => this.store.remove(id));
    this.#channel?.postMessage({ removed: id });
    return () => this.insert([chat]);
  }

  /** Removes every chat, for good. */
  async clear() {
    this.#chats.clear();
    this.open(null);
    this.#tell("list");
    await this.#attempt(() => this.store.clear());
    this.#channel?.postMessage({ cleared: true });
  }

  async #write(chat) {
    await this.#attempt(() => this.store.put(chat));
    if (!this.#chats.has(chat.id)) await this.#attempt(() => this.store.remove(chat.id));
    else this.#channel?.postMessage({ changed: chat.id });
  }

  async #attempt(act) {
    try {
      await act();
      if (this.#failed) this.#tellStorage(null);
      this.#failed = false;
    } catch (error) {
      this.#failed = true;
      this.#tellStorage(error);
    }
  }

  /** Another tab wrote: this tab reads, unless it is writing to that chat itself. */
  async #hear({ changed, removed, cleared }) {
    if (cleared) this.#chats.clear();
    if (removed) this.#chats.delete(removed);
    if (changed && !this.#writing.has(changed) && !this.busy(changed)) {
      const chat = await this.store.get(changed).catch(() => undefined);
      if (chat) this.#chats.set(changed, chat);
    }
    if (this.#current && this.#current !== this.#chats.get(this.#current.id)) {
      const scroll = changed === this.#current.id;
      this.#current = this.#chats.get(this.#current.id) ?? null;
      this.#tell(scroll ? "change" : "open", { chat: this.#current });
    }
    this.#tell("list");
  }

  #tellStorage(error) {
    this.#tell("storage", error);
  }

  #tell(type, detail = null) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
