// Where messages are written: text, attached files, send and stop.

import { isSound, readFiles } from "./attachments.js";
import { byId, fill, h, icon, iconButton, sends } from "./dom.js";
import { announce, notify } from "./notice.js";

/** The field at the lower edge. */
export class Composer {
  #files = [];

  /**
   * @param {import("./settings.js").Settings} settings
   * @param {{send: (text: string, files: {name: string, text: string}[]) => boolean, stop: () => void, editLast: () => void, hear: (sound: File, name: string, signal: AbortSignal) => Promise<string>, changed: (text: string, files: {name: string, text: string}[]) => void}} actions
   *   `send` says whether it took the message, `hear` gives what is said in a sound, `changed` is told of every change
   */
  constructor(settings, actions) {
    this.settings = settings;
    this.actions = actions;
    this.form = byId("composer");
    this.field = byId("prompt");
    this.send = byId("send");
    this.stop = byId("stop");
    this.list = byId("attachments");
    this.picker = byId("file-picker");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.field.addEventListener("input", () => this.#changed());
    this.field.addEventListener("keydown", (event) => this.#key(event));
    this.field.addEventListener("paste", (event) => this.#take(event, event.clipboardData?.files));
    this.stop.addEventListener("click", () => actions.stop());
    byId("attach").addEventListener("click", () => this.picker.click());
    this.picker.addEventListener("change", async () => {
      await this.attach(this.picker.files);
      this.picker.value = "";
    });
    const area = byId("main");
    area.addEventListener("dragover", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      area.classList.add("dropping");
    });
    area.addEventListener("dragleave", (event) => {
      if (!area.contains(event.relatedTarget)) area.classList.remove("dropping");
    });
    area.addEventListener("drop", (event) => {
      area.classList.remove("dropping");
      this.#take(event, event.dataTransfer?.files);
    });
    this.busy(false);
  }

  /** Shows the stop button in place of the send button. */
  busy(running) {
    this.running = running;
    const focused = document.activeElement === this.send || document.activeElement === this.stop;
    this.send.hidden = running;
    this.stop.hidden = !running;
    if (focused) this.field.focus();
    this.#changed();
  }

  /** Takes files of sound too, if a model hears. */
  offerSpeech(hears) {
    this.hears = hears;
    const what = hears ? "text files or sound" : "text files";
    byId("attach").ariaLabel = `Attach ${what}`;
    byId("attach").title = `Attach ${what}`;
    byId("drop-hint").textContent = `Drop ${what} here`;
  }

  /** Writes a text where the cursor is, with space around it. */
  insert(text) {
    const { selectionStart: start, selectionEnd: end, value } = this.field;
    const before = /\S$/.test(value.slice(0, start)) ? " " : "";
    const behind = /^\S/.test(value.slice(end)) ? " " : "";
    this.field.setRangeText(before + text + behind, start, end, "end");
    this.#changed();
    this.field.focus();
  }

  /** Puts a text into the field and the cursor behind it. */
  put(text) {
    this.field.value = text;
    this.#changed();
    this.field.focus();
  }

  /** Shows a draft in place of what is in the field. */
  show({ text, files }) {
    for (const file of this.#files) file.cancel?.();
    this.#files = files;
    this.field.value = text;
    this.#showFiles();
  }

  /** Adds files, or says why not. Of a sound, what is said in it is attached. */
  async attach(chosen) {
    const all = [...chosen];
    for (const sound of this.hears ? all.filter(isSound) : []) this.#hear(sound);
    const { files, errors } = await readFiles(this.hears ? all.filter((file) => !isSound(file)) : all, this.#files.length);
    this.#files.push(...files);
    this.#showFiles();
    for (const error of errors) {
      notify(error);
      announce(error);
    }
  }

  /** Sends what was written, unless there is nothing or an answer is on its way. */
  submit() {
    const text = this.field.value.trim();
    if (this.running || this.send.disabled || (!text && !this.#files.length)) return;
    // A sound's attachment also knows how to cancel its transcription, which no storage can keep.
    if (!this.actions.send(text, this.#files.map(({ name, text: content }) => ({ name, text: content })))) return;
    this.#files = [];
    this.field.value = "";
    this.#showFiles();
  }

  async #hear(sound) {
    const work = new AbortController();
    const file = { name: sound.name, text: null, cancel: () => work.abort() };
    this.#files.push(file);
    this.#showFiles();
    try {
      file.text = await this.actions.hear(sound, sound.name, work.signal);
      file.name = `${sound.name}.txt`;
      if (!file.text) throw new Error("nothing is said in it");
    } catch (error) {
      this.#files = this.#files.filter((other) => other !== file);
      if (error.name !== "AbortError") notify(`${sound.name} was not transcribed: ${error.message}`);
    }
    this.#showFiles();
  }

  #key(event) {
    if (event.isComposing) return;
    if (sends(event, this.settings.get("enterSends"))) {
      event.preventDefault();
      this.submit();
    }
    if (event.key === "ArrowUp" && !this.field.value) {
      event.preventDefault();
      this.actions.editLast();
    }
  }

  #take(event, files) {
    if (!files?.length) return;
    event.preventDefault();
    this.attach(files);
  }

  #showFiles() {
    fill(
      this.list,
      this.#files.map((file) =>
        h("li", { class: "chip" }, file.text === null ? h("span", { class: "pulse", title: "Transcribing" }) : icon("file"), h("span", {}, file.name), iconButton("close", `Remove ${file.name}`, () => {
          file.cancel?.();
          this.#files = this.#files.filter((other) => other !== file);
          this.#showFiles();
          this.field.focus();
        })),
      ),
    );
    this.list.hidden = !this.#files.length;
    this.#changed();
  }

  #changed() {
    const waits = this.#files.some(({ text }) => text === null);
    this.send.disabled = waits || (!this.field.value.trim() && !this.#files.length);
    this.actions.changed(this.field.value, this.#files.filter((file) => file.text !== null));
    // Browsers without `field-sizing` grow the field by hand.
    if (CSS.supports("field-sizing", "content")) return;
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, 240)}px`;
  }
}
