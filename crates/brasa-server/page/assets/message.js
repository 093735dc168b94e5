// One message of the conversation: what it says, and what can be done with it.

import { fill, h, icon, iconButton, sends } from "./dom.js";
import { codeBlock, MarkdownView } from "./markdown.js";
import { longStats, seconds, shortStats } from "./speed.js";
import { tokenView } from "./tokens.js";
import { callCard, isJson, pretty, resultCard } from "./toolcalls.js";

/**
 * @typedef {object} Actions  what a message asks its conversation to do
 * @property {(node, by: number) => void} walk
 * @property {(node) => void} copy
 * @property {(node, text: string) => void} edit
 * @property {(node) => void} regenerate
 * @property {(node) => void} remove
 * @property {(node) => void} remedy
 * @property {() => void} wantAlternatives
 * @property {() => boolean} enterSends  whether Enter alone sends
 */

/** Shows a message; `update` follows its growth. */
export class MessageView {
  /**
   * @param {import("./tree.js").Message} node
   * @param {Actions} actions
   */
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.markdown = new MarkdownView();
    this.editing = false;
    this.tokensShown = false;
    this.settled = false;
    this.parts = null;
    this.thoughts = null;
    this.body = h("div", { class: "body" });
    this.foot = h("div", { class: "foot" });
    const name = { user: "You", assistant: "Answer", tool: "Tool result" }[node.role];
    this.element = h("article", { class: `message ${node.role}`, "aria-label": name, "data-id": node.id }, this.body, this.foot);
  }

  /**
   * Shows the message as it is now.
   *
   * @param {{writing: boolean, meter?: import("./speed.js").Meter, place: {index: number, count: number}}} state
   */
  update(state) {
    this.state = state;
    if (this.editing) return;
    this.element.classList.toggle("writing", state.writing);
    this.element.setAttribute("aria-busy", String(state.writing));
    if (!this.settled) this.#showBody();
    this.#showFoot();
    // A message that is complete is shown once: what the user unfolded or selected in it stays so.
    this.settled = !state.writing;
  }

  #showBody() {
    if (this.node.role === "user") this.#showUser();
    else if (this.node.role === "tool") fill(this.body, resultCard(this.node));
    else this.#showAnswer();
  }

  /** Opens the editor of this message. */
  edit() {
    if (this.state?.writing || this.node.role === "tool") return;
    this.editing = true;
    const asks = this.node.role === "user";
    const field = h("textarea", { class: "field editor", rows: "3", "aria-label": asks ? "Edit your message" : "Edit the answer" });
    field.value = this.node.content;
    const close = () => {
      this.editing = false;
      this.update(this.state);
      this.element.querySelector("[data-action=edit]")?.focus();
    };
    const save = (event) => {
      event.preventDefault();
      this.editing = false;
      this.actions.edit(this.node, field.value);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      }
      if (sends(event, this.actions.enterSends())) save(event);
    });
    fill(
      this.body,
      h(
        "form",
        { class: "edit-form", onsubmit: save },
        field,
        h("div", { class: "row end" }, h("button", { type: "button", class: "quiet", onclick: close }, "Cancel"), h("button", { type: "submit", class: "primary" }, asks ? "Send as a new branch" : "Save as a new branch")),
      ),
    );
    fill(this.foot);
    // The editor took the place of what was shown: it is made anew afterwards.
    this.parts = this.thoughts = this.shownCalls = this.footKey = null;
    this.settled = false;
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  #showUser() {
    const files = (this.node.attachments ?? []).map(({ name, text }) =>
      h("details", { class: "file" }, h("summary", {}, icon("file"), h("span", {}, name), h("span", { class: "size" }, size(text))), codeBlock(text, name.split(".").pop())),
    );
    fill(this.body, files, this.node.content ? h("div", { class: "bubble" }, this.node.content) : null);
  }

  /** Elements are made once and then only grow, so that what the user unfolded or selected stays so. */
  #showAnswer() {
    if (!this.parts) {
      this.parts = { thoughts: h("div"), content: h("div", { class: "content" }), calls: h("div"), tokens: h("div"), wait: h("div"), error: h("div") };
      fill(this.body, Object.values(this.parts));
    }
    const { node, state, parts } = this;
    this.#showThoughts();
    if (this.tokensShown && !state.writing) {
      if (!parts.tokens.hasChildNodes()) fill(parts.tokens, this.#tokens());
    } else fill(parts.tokens);
    const covered = this.tokensShown && !state.writing && node.tokens?.length;
    parts.content.hidden = Boolean(covered);
    // An answer that was asked for as JSON is code from its first character, also if it was cut off.
    if (node.json ? node.content : !state.writing && isJson(node.content)) fill(parts.content, codeBlock(pretty(node.content), "json"));
    else {
      if (this.markdown.element.parentNode !== parts.content) fill(parts.content, this.markdown.element);
      this.markdown.show(node.content, !state.writing);
    }
    const calls = JSON.stringify(node.toolCalls ?? []);
    if (calls !== this.shownCalls) fill(parts.calls, (node.toolCalls ?? []).map(callCard));
    this.shownCalls = calls;
    fill(parts.wait, this.#waiting());
    fill(parts.error, node.error ? this.#error(node.error) : null);
  }

  #showThoughts() {
    const { node, state, parts } = this;
    if (!node.reasoning) return;
    if (!this.thoughts) {
      this.thoughts = { text: new MarkdownView(), label: h("span", {}) };
      fill(parts.thoughts, h("details", { class: "thinking" }, h("summary", {}, icon("chevron"), this.thoughts.label), this.thoughts.text.element));
    }
    const open = state.writing && !node.content && !node.toolCalls;
    const time = node.reasoningMs ?? (state.meter?.first != null ? state.meter.now() - state.meter.first : 0);
    this.thoughts.label.textContent = open ? `Thinking, ${seconds(time)}` : time >= 100 ? `Thought for ${seconds(time)}` : "Thoughts";
    this.thoughts.text.show(node.reasoning, !state.writing);
    parts.thoughts.firstChild.classList.toggle("live", open);
  }

  /** Before the first token: a pulse, and the time that has passed. */
  #waiting() {
    const { node, state } = this;
    if (!state.writing || node.content || node.reasoning || node.toolCalls) return null;
    const waited = state.meter?.waited ?? 0;
    const time = waited < 1000 ? "" : `, ${seconds(waited)}`;
    return h("p", { class: "waiting" }, h("span", { class: "pulse", "aria-hidden": "true" }), `Waiting for the first token${time}`);
  }

  #error(error) {
    const names = { settings: "Open settings", retry: "Try again", new: "New chat", shorten: "Go on without the oldest messages" };
    return h(
      "div",
      { class: "error", role: "alert" },
      icon("alert"),
      h("div", {}, h("p", { class: "error-message" }, error.message), error.remedy ? h("p", { class: "error-remedy" }, error.remedy) : null),
      names[error.action] ? h("button", { type: "button", class: "quiet", onclick: () => this.actions.remedy(this.node) }, names[error.action]) : null,
    );
  }

  #tokens() {
    if (this.node.tokens?.length) return tokenView(this.node.tokens);
    return h(
      "div",
      { class: "note-box" },
      h("p", {}, "Alternatives were not recorded for this answer."),
      h("button", { type: "button", class: "quiet", onclick: this.actions.wantAlternatives }, "Record them from now on"),
    );
  }

  #showFoot() {
    const { node, state, actions } = this;
    const { index, count } = state.place;
    const branches =
      count > 1
        ? h(
            "div",
            { class: "branches", role: "group", "aria-label": `Branch ${index + 1} of ${count}` },
            iconButton("left", "Previous branch", () => actions.walk(node, -1), { disabled: index === 0, "data-action": "previous" }),
            h("span", { "aria-hidden": "true" }, `${index + 1} / ${count}`),
            iconButton("right", "Next branch", () => actions.walk(node, 1), { disabled: index === count - 1, "data-action": "next" }),
          )
        : null;
    const ended = { length: "cut at the token limit", stopped: "stopped" }[node.finish];
    const stats = state.writing ? state.meter?.stats : node.stats;
    const line = [shortStats(stats), ended].filter(Boolean).join(" · ");
    const key = `${state.writing} ${index} ${count} ${this.tokensShown}`;
    // While an answer is written only its numbers change: buttons keep their focus.
    if (key !== this.footKey || !this.statsLine) {
      this.footKey = key;
      const focused = this.foot.contains(document.activeElement) ? document.activeElement.dataset.action : null;
      this.statsLine = h("span", { class: "stats" });
      fill(this.foot, branches, this.statsLine, state.writing ? null : this.#buttons());
      if (focused) this.foot.querySelector(`[data-action=${focused}]:enabled`)?.focus();
    }
    this.statsLine.textContent = line;
    this.statsLine.title = longStats(stats);
  }

  #buttons() {
    const { node, actions } = this;
    if (node.role === "tool") return h("div", { class: "actions" }, iconButton("trash", "Delete from here", () => actions.remove(node)));
    const answer = node.role === "assistant";
    const toggle = () => {
      this.tokensShown = !this.tokensShown;
      this.settled = false;
      this.update(this.state);
    };
    return h(
      "div",
      { class: "actions" },
      iconButton("copy", answer ? "Copy answer as Markdown" : "Copy message", () => actions.copy(node), { "data-action": "copy" }),
      iconButton("edit", answer ? "Edit answer" : "Edit message", () => this.edit(), { "data-action": "edit" }),
      answer ? iconButton("again", "Regenerate", () => actions.regenerate(node), { "data-action": "again" }) : null,
      answer ? iconButton("tokens", "Token alternatives", toggle, { "data-action": "tokens", "aria-pressed": String(this.tokensShown) }) : null,
      iconButton("trash", "Delete from here", () => actions.remove(node), { "data-action": "remove" }),
    );
  }
}

function size(text) {
  const bytes = new Blob([text]).size;
  return bytes < 1024 ? `${bytes} bytes` : `${(bytes / 1024).toFixed(1)} KiB`;
}
