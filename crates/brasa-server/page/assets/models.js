// Which model answers: the list of the server, the choice of the user, and how full the context is.

import { byId, fill, h } from "./dom.js";
import { banner } from "./notice.js";
import { remedyOf } from "./api.js";
import { path } from "./tree.js";

/** The choice in the head of the page. */
export class Models {
  /** Models that chat. @type {{id: string, status: string, meta: any}[]} */
  list = [];
  /** The model that hears, if there is one. @type {string | null} */
  speech = null;
  props = {};

  /**
   * @param {import("./api.js").Api} api
   * @param {import("./settings.js").Settings} settings
   * @param {{props: (props: any) => void, settings: () => void, speech: (hears: boolean) => void}} actions  `props` gets the server's own values for the chosen model, `speech` whether a model hears
   */
  constructor(api, settings, actions) {
    this.api = api;
    this.settings = settings;
    this.actions = actions;
    this.select = byId("model");
    this.select.addEventListener("change", () => {
      settings.set("model", this.select.value);
      this.#ask();
    });
  }

  /** Asks the server, and says so if it does not answer. */
  async refresh() {
    try {
      const all = await this.api.models();
      this.list = all.filter(({ kind }) => kind === "text");
      this.speech = all.find(({ kind }) => kind === "speech")?.id ?? null;
      banner("server", null);
      document.body.dataset.server = "up";
    } catch (error) {
      document.body.dataset.server = "down";
      const remedy = remedyOf(error);
      const actions = [{ label: "Try again", run: () => this.refresh() }];
      if (remedy.action === "settings") actions.unshift({ label: "Open settings", run: this.actions.settings });
      banner("server", { text: error.message, remedy: remedy.text, actions });
      return;
    }
    this.#show();
    this.actions.speech(this.speech !== null);
    await this.#ask();
  }

  /** Asks anew after an answer of a model that was not loaded before. */
  async answered() {
    const chosen = this.list.find(({ id }) => id === this.settings.get("model"));
    if (chosen?.status && chosen.status !== "loaded") await this.refresh();
  }

  /** Shows how much of the model's context the current chat takes. */
  showContext(chat) {
    const place = byId("context");
    const length = this.props.default_generation_settings?.n_ctx ?? this.props.n_ctx;
    const last = chat && path(chat).findLast((node) => node.stats?.promptTokens);
    place.hidden = !(last && length > 0);
    if (place.hidden) return;
    const used = last.stats.promptTokens + last.stats.tokens;
    byId("context-meter").value = Math.min(1, used / length);
    byId("context-text").textContent = `${used.toLocaleString("en")} of ${length.toLocaleString("en")} tokens`;
    place.classList.toggle("full", used / length > 0.9);
  }

  async #ask() {
    const model = this.settings.get("model");
    const props = await this.api.props(model);
    if (model !== this.settings.get("model")) return;
    this.props = props;
    this.actions.props(props);
  }

  #show() {
    const chosen = this.settings.get("model");
    const known = this.list.some(({ id }) => id === chosen);
    if (!known && this.list.length) this.settings.set("model", this.list[0].id);
    fill(
      this.select,
      this.list.map(({ id, status, meta }) => h("option", { value: id, title: describe(meta) }, status && status !== "loaded" ? `${id} (${status})` : id)),
      this.list.length ? null : h("option", { value: "" }, "no model that chats"),
    );
    this.select.value = this.settings.get("model");
    this.select.disabled = !this.list.length;
  }
}

function describe({ n_params: params, size, n_ctx_train: context }) {
  const parts = [];
  if (params > 0) parts.push(params >= 1e9 ? `${(params / 1e9).toFixed(1)} billion parameters` : `${(params / 1e6).toFixed(1)} million parameters`);
  if (size > 0) parts.push(`${(size / 2 ** 30).toFixed(2)} GiB`);
  if (context > 0) parts.push(`trained on ${context.toLocaleString("en")} tokens`);
  return parts.join(", ");
}
