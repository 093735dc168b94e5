// The settings dialog: every field writes through at once, so there is nothing to save and nothing to lose.

import { byId, fill, h } from "./dom.js";
import { LONGEST_NAME, presetNames, removePreset, savePreset, usePreset } from "./presets.js";
import { NUMBERS, readJson } from "./settings.js";

/** The dialog that opens at the right edge. */
export class SettingsPanel {
  /**
   * @param {import("./settings.js").Settings} settings
   * @param {{system: () => string, setSystem: (text: string) => void, keyChanged: () => void, ask: (title: string, value: string, save: (name: string) => void) => void}} chat
   *   the system prompt belongs to the chat; `ask` asks for a name
   */
  constructor(settings, chat) {
    this.settings = settings;
    this.chat = chat;
    this.dialog = byId("settings");
    this.bound = [];
    this.#numbers();
    this.#presets();
    this.#bind("stop", "set-stop");
    this.#bind("thinking", "set-thinking");
    this.#bind("format", "set-format", () => this.#showSchema());
    this.#bind("schema", "set-schema", () => this.#check("set-schema", "schema-error", "schema"));
    this.#bind("tools", "set-tools", () => this.#check("set-tools", "tools-error", "tools"));
    this.#bind("toolChoice", "set-tool-choice");
    this.#bind("apiKey", "set-key", () => chat.keyChanged());
    this.#bind("theme", "set-theme", () => settings.applyTheme());
    this.#bind("alternatives", "set-alternatives");
    this.#bind("enterSends", "set-enter");
    byId("set-system").addEventListener("input", ({ target }) => chat.setSystem(target.value));
    byId("system-default").addEventListener("click", () => {
      settings.set("system", byId("set-system").value);
      byId("system-kept").textContent = settings.get("system").trim() ? "New chats begin with it." : "New chats begin without one.";
    });
    byId("sampling-reset").addEventListener("click", () => {
      settings.resetSampling();
      this.#fillFields();
    });
  }

  /** What /props tells of the server's own values, shown in empty fields. */
  show(props) {
    const own = props.default_generation_settings?.params ?? props.default_generation_settings ?? {};
    for (const { name } of NUMBERS) {
      const value = own[name];
      byId(`set-${name}`).placeholder = Number.isFinite(value) && value >= 0 && name !== "seed" ? String(Number(value.toFixed(3))) : "default";
    }
  }

  /** Opens the dialog, with the cursor in the field `focus`. */
  open(focus = null) {
    this.#fillFields();
    if (!this.dialog.open) this.dialog.showModal();
    if (focus) byId(focus).focus();
  }

  #numbers() {
    fill(
      byId("numbers"),
      NUMBERS.map(({ name, label, min, max, step, hint }) => {
        const input = h("input", { id: `set-${name}`, class: "field", type: "number", min, max, step, inputmode: "decimal", placeholder: "default", "aria-describedby": `hint-${name}` });
        input.addEventListener("input", () => this.#number(name, input, step));
        return h("div", { class: "setting" }, h("label", { for: `set-${name}` }, label), input, h("p", { class: "hint", id: `hint-${name}` }, hint));
      }),
    );
  }

  #presets() {
    const select = byId("preset");
    select.addEventListener("change", () => {
      const system = usePreset(this.settings, select.value);
      if (system === null) return;
      this.chat.setSystem(system);
      this.#fillFields(select.value);
      byId("preset-said").textContent = `${select.value} is in use.`;
    });
    byId("preset-save").addEventListener("click", () => {
      this.chat.ask("Save as a preset", select.value, (given) => {
        const name = given.slice(0, LONGEST_NAME);
        savePreset(this.settings, name, byId("set-system").value);
        this.#showPresets(name);
        byId("preset-said").textContent = `${name} is saved.`;
      });
    });
    byId("preset-remove").addEventListener("click", () => {
      const name = select.value;
      removePreset(this.settings, name);
      this.#showPresets("");
      byId("preset-said").textContent = `${name} is deleted.`;
      select.focus();
    });
  }

  #showPresets(chosen) {
    const names = presetNames(this.settings);
    const select = byId("preset");
    fill(select, h("option", { value: "" }, names.length ? "Choose one" : "None is saved"), names.map((name) => h("option", { value: name }, name)));
    select.value = chosen;
    byId("preset-remove").disabled = !chosen;
  }

  #number(name, input, step) {
    const numbers = { ...this.settings.get("numbers") };
    // `step` is for the arrows: a temperature of 0.33 is as good as one of 0.35.
    const { badInput, rangeUnderflow, rangeOverflow } = input.validity;
    const bad = badInput || rangeUnderflow || rangeOverflow || (step >= 1 && input.value.includes("."));
    input.setAttribute("aria-invalid", String(bad));
    if (bad) return;
    if (input.value === "") delete numbers[name];
    else numbers[name] = Number(input.value);
    this.settings.set("numbers", numbers);
  }

  #bind(name, id, after = () => {}) {
    const input = byId(id);
    const box = input.type === "checkbox";
    input.addEventListener("input", () => {
      this.settings.set(name, box ? input.checked : input.value);
      after();
    });
    this.bound.push({ name, input, box });
  }

  #fillFields(preset = "") {
    this.#showPresets(preset);
    byId("preset-said").textContent = "";
    for (const { name, input, box } of this.bound) {
      if (box) input.checked = this.settings.get(name);
      else input.value = this.settings.get(name);
    }
    const numbers = this.settings.get("numbers");
    for (const { name } of NUMBERS) {
      byId(`set-${name}`).value = numbers[name] ?? "";
      byId(`set-${name}`).setAttribute("aria-invalid", "false");
    }
    byId("set-system").value = this.chat.system();
    byId("system-kept").textContent = "";
    this.#showSchema();
    this.#check("set-schema", "schema-error", "schema");
    this.#check("set-tools", "tools-error", "tools");
  }

  #showSchema() {
    byId("schema-row").hidden = this.settings.get("format") !== "json_schema";
  }

  #check(field, place, kind) {
    const { error = "" } = readJson(byId(field).value, kind);
    byId(place).textContent = error;
    byId(field).setAttribute("aria-invalid", String(Boolean(error)));
  }
}
