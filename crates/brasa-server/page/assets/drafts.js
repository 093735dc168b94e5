// What was written and not sent yet: a text and its files for each chat, kept so that a reload or a closed tab loses nothing.

/** How long typing has to pause before a draft is kept, in milliseconds. */
const PAUSE = 250;

/** Drafts by the ids of their chats; "" is the place where a new chat begins. */
export class Drafts {
  #timer = 0;
  #waiting = null;

  /** @param {import("./store.js").Store} store */
  constructor(store) {
    this.store = store;
    // A page that is closed or hidden may not come back.
    addEventListener("pagehide", () => this.flush());
    document.addEventListener("visibilitychange", () => document.hidden && this.flush());
  }

  /** The draft of a chat: `{ text, files }`. */
  async get(id) {
    if (this.#waiting?.id === id) return this.#waiting;
    const draft = await this.store.draft(id).catch(() => undefined);
    return { text: draft?.text ?? "", files: draft?.files ?? [] };
  }

  /** Keeps a draft once typing pauses; an empty one is removed. */
  put(id, text, files) {
    if (this.#waiting && this.#waiting.id !== id) this.flush();
    this.#waiting = { id, text, files: files.map(({ name, text: content }) => ({ name, text: content })) };
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.flush(), PAUSE);
  }

  /** Keeps at once what waits to be kept. */
  flush() {
    clearTimeout(this.#timer);
    const draft = this.#waiting;
    this.#waiting = null;
    if (!draft) return;
    const keep = draft.text || draft.files.length ? this.store.putDraft(draft) : this.store.removeDraft(draft.id);
    // A draft that cannot be kept is still in the field; chats tell of a storage that is full.
    keep.catch(() => {});
  }

  /** Forgets the draft of a chat. */
  forget(id) {
    if (this.#waiting?.id === id) this.#waiting = null;
    this.store.removeDraft(id).catch(() => {});
  }
}
