// Chats and drafts are kept in this browser's IndexedDB, one record each. Nothing is sent anywhere.

const DATABASE = "brasa";
const CHATS = "chats";
const DRAFTS = "drafts";

/** A database of chats and drafts. Without IndexedDB (a strict private window) every call fails with a `StorageError`. */
export class Store {
  #opening = null;

  /** All chats, in no order. */
  async all() {
    return this.#run(CHATS, "readonly", (chats) => chats.getAll());
  }

  /** One chat, or undefined. */
  async get(id) {
    return this.#run(CHATS, "readonly", (chats) => chats.get(id));
  }

  /** Writes a chat over the record with its id. */
  async put(chat) {
    await this.#run(CHATS, "readwrite", (chats) => chats.put(chat));
  }

  /** Removes a chat. */
  async remove(id) {
    await this.#run(CHATS, "readwrite", (chats) => chats.delete(id));
  }

  /** Removes every chat, and every draft. */
  async clear() {
    await this.#run(CHATS, "readwrite", (chats) => chats.clear());
    await this.#run(DRAFTS, "readwrite", (drafts) => drafts.clear());
  }

  /** The draft of a chat, `{ id, text, files }`, or undefined. */
  async draft(id) {
    return this.#run(DRAFTS, "readonly", (drafts) => drafts.get(id));
  }

  /** Writes a draft over the one of the same chat. */
  async putDraft(draft) {
    await this.#run(DRAFTS, "readwrite", (drafts) => drafts.put(draft));
  }

  /** Removes the draft of a chat. */
  async removeDraft(id) {
    await this.#run(DRAFTS, "readwrite", (drafts) => drafts.delete(id));
  }

  #open() {
    this.#opening ??= new Promise((resolve, reject) => {
      const request = indexedDB.open(DATABASE, 2);
      // Version 1 had no drafts.
      request.onupgradeneeded = () => {
        for (const name of [CHATS, DRAFTS]) {
          if (!request.result.objectStoreNames.contains(name)) request.result.createObjectStore(name, { keyPath: "id" });
        }
      };
      request.onsuccess = () => {
        request.result.onversionchange = () => request.result.close();
        resolve(request.result);
      };
      request.onerror = () => reject(request.error);
    });
    return this.#opening;
  }

  async #run(name, mode, act) {
    try {
      const database = await this.#open();
      return await new Promise((resolve, reject) => {
        const transaction = database.transaction(name, mode);
        const request = act(transaction.objectStore(name));
        transaction.oncomplete = () => resolve(request.result);
        transaction.onabort = () => reject(transaction.error ?? request.error);
        transaction.onerror = () => reject(transaction.error ?? request.error);
      });
    } catch (cause) {
      throw new StorageError(cause);
    }
  }
}

/** Storage that refuses: full, or switched off. `remedy` says what helps. */
export class StorageError extends Error {
  constructor(cause) {
    const full = cause?.name === "QuotaExceededError";
    super(full ? "The browser's storage for this page is full." : `The browser refuses to keep chats: ${cause?.message ?? cause}`);
    this.name = "StorageError";
    this.full = full;
    this.remedy = full
      ? "What you write now is lost when the page closes. Export your chats, then delete some of them."
      : "Chats last until the page closes. A private window or a setting of the browser may forbid storage.";
  }
}
