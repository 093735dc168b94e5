// What the user chose: kept in localStorage, read once, written at every change.

const KEY = "brasa.settings";

/**
 * Numbers that a request may carry. An empty field leaves the choice to the server and the model.
 *
 * `prop` is the name under which /props tells the server's own value.
 */
export const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 5, step: 0.05, hint: "0 always takes the likeliest token." },
  { name: "top_p", label: "Top-p", min: 0, max: 1, step: 0.01, hint: "Keeps the likeliest tokens that make up this share." },
  { name: "top_k", label: "Top-k", min: 0, max: 1000, step: 1, hint: "Keeps this many tokens; 0 keeps all." },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01, hint: "Drops tokens below this share of the likeliest." },
  { name: "repeat_penalty", label: "Repeat penalty", min: 0.1, max: 3, step: 0.01, hint: "Above 1 makes repetition unlikely." },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, hint: "For tokens that have occurred." },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, hint: "For each time a token has occurred." },
  { name: "max_tokens", label: "Longest answer", min: 1, max: 1000000, step: 1, hint: "In tokens; empty means until the model ends." },
  { name: "seed", label: "Seed", min: 0, max: 4294967295, step: 1, hint: "The same seed gives the same answer." },
];

const DEFAULTS = {
  apiKey: "",
  model: "",
  system: "",
  presets: {},
  numbers: {},
  stop: "",
  thinking: "model",
  alternatives: false,
  format: "text",
  schema: "",
  tools: "",
  toolChoice: "auto",
  theme: "system",
  sidebar: true,
  enterSends: true,
};

/** The user's choices, as properties; `set` keeps them and tells listeners of "change". */
export class Settings extends EventTarget {
  /** @type {Record<string, any>} */
  values = structuredClone(DEFAULTS);

  constructor() {
    super();
    try {
      const kept = JSON.parse(localStorage.getItem(KEY) ?? "{}");
      for (const name of Object.keys(DEFAULTS)) {
        if (typeof kept?.[name] === typeof DEFAULTS[name] && kept[name] !== null) this.values[name] = kept[name];
      }
    } catch {
      // What was kept cannot be read: begin with the defaults.
    }
  }

  /** One choice. */
  get(name) {
    return this.values[name];
  }

  /** Changes a choice and keeps it. */
  set(name, value) {
    this.values[name] = value;
    try {
      localStorage.setItem(KEY, JSON.stringify(this.values));
      if (name === "theme") localStorage.setItem("brasa.theme", value);
    } catch {
      // Storage is full or switched off: the choice lasts until the page closes.
    }
    this.dispatchEvent(new CustomEvent("change", { detail: { name } }));
  }

  /** Empties every field of sampling. */
  resetSampling() {
    this.set("numbers", {});
    this.set("stop", "");
  }

  /** Shows light, dark, or the system's choice. */
  applyTheme() {
    const theme = this.get("theme");
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }
}

/** Reads a JSON field of the settings: `{ value }`, or `{ error }` with a sentence for the user. Empty text has the value null. */
export function readJson(text, kind) {
  if (!text.trim()) return { value: null };
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { error: `This is not JSON: ${error.message}` };
  }
  if (kind === "tools") {
    if (!Array.isArray(value)) return { error: "Tools are a JSON array of function definitions." };
    const wrong = value.findIndex((tool) => typeof tool?.function?.name !== "string" || tool.type !== "function");
    if (wrong >= 0) return { error: `Tool ${wrong + 1} needs "type": "function" and "function": {"name": …}.` };
  } else if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return { error: "A schema is a JSON object." };
  }
  return { value };
}
