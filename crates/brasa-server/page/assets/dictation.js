// The microphone button: what is spoken becomes text in the field.

import { byId } from "./dom.js";
import { canHear, Microphone } from "./microphone.js";
import { announce, notify } from "./notice.js";

/** Longest recording in milliseconds; a server takes 25 MiB without change, which are 13 minutes. */
const LONGEST = 10 * 60_000;

const REFUSALS = {
  NotAllowedError: "The microphone is not allowed. The browser's settings for this page allow it.",
  NotFoundError: "There is no microphone.",
};

/** The button beside the paper clip. */
export class Dictation {
  #state = "idle";

  /** @param {{hear: (sound: Blob, name: string, signal: AbortSignal) => Promise<string>, write: (text: string) => void}} actions */
  constructor(actions) {
    this.actions = actions;
    this.button = byId("dictate");
    this.place = byId("dictating");
    this.button.addEventListener("click", () => (this.#state === "idle" ? this.#begin() : this.#state === "recording" ? this.#end() : this.cancel()));
  }

  /** Shows the button if a model hears and the browser lets it. */
  offer(hears) {
    this.button.hidden = !(hears && canHear());
  }

  /** Gives the recording or its transcription up; false if there is none. */
  cancel() {
    if (this.#state === "idle") return false;
    this.microphone?.cancel();
    this.work?.abort();
    this.#show("idle");
    return true;
  }

  async #begin() {
    this.#show("asking");
    const microphone = new Microphone();
    this.microphone = microphone;
    try {
      await microphone.begin();
    } catch (error) {
      if (this.microphone === microphone) this.#show("idle");
      return notify(REFUSALS[error.name] ?? `The microphone cannot be used: ${error.message}`);
    }
    if (this.#state !== "asking") return microphone.cancel();
    this.#show("recording");
    announce("Recording");
  }

  async #end() {
    this.#show("hearing");
    const work = new AbortController();
    this.work = work;
    try {
      const sound = await this.microphone.end();
      const text = sound ? await this.actions.hear(sound, "microphone.wav", work.signal) : "";
      if (work.signal.aborted) return;
      if (text) this.actions.write(text);
      else notify("Nothing was heard.");
      announce(text || "Nothing was heard");
    } catch (error) {
      if (error.name !== "AbortError") notify(`This was not transcribed: ${error.message}`);
    }
    if (this.work === work && !work.signal.aborted) this.#show("idle");
  }

  #show(state) {
    this.#state = state;
    clearInterval(this.timer);
    const label = { idle: "Dictate", asking: "Cancel", recording: "Write what was said", hearing: "Cancel the transcription" }[state];
    this.button.ariaLabel = label;
    this.button.title = label;
    this.button.setAttribute("aria-pressed", String(state !== "idle"));
    this.place.hidden = state === "idle" || state === "asking";
    const words = byId("dictating-text");
    words.textContent = state === "hearing" ? "Transcribing" : "0:00";
    if (state !== "recording") return;
    const started = Date.now();
    this.timer = setInterval(() => {
      const spent = Date.now() - started;
      words.textContent = `${Math.floor(spent / 60_000)}:${String(Math.floor(spent / 1000) % 60).padStart(2, "0")}`;
      if (spent >= LONGEST) this.#end();
    }, 250);
  }
}
