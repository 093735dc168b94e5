// The shown branch of the current chat: its messages, their growth, and following the end while an answer is written.

import { byId, fill, h } from "./dom.js";
import { seen } from "./forgetting.js";
import { MessageView } from "./message.js";
import { resultForm } from "./toolcalls.js";
import { path, place } from "./tree.js";

/** How far from the end the view still follows it, in pixels. */
const NEAR = 80;

/** Shows the current chat in `#messages`. */
export class Conversation {
  /** @type {Map<string, MessageView>} */
  #views = new Map();
  #chat = null;
  #frame = 0;
  #follow = true;

  /**
   * @param {import("./chats.js").Chats} chats
   * @param {import("./generate.js").Generator} generator
   * @param {import("./message.js").Actions & {results: (node, texts: string[]) => void, seeAll: () => void}} actions
   */
  constructor(chats, generator, actions) {
    this.chats = chats;
    this.generator = generator;
    this.actions = actions;
    this.scroller = byId("scroller");
    this.list = byId("messages");
    this.jump = byId("jump");
    this.scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.jump.addEventListener("click", () => this.toEnd());
    generator.addEventListener("token", ({ detail }) => this.#grow(detail));
    // Clocks run between tokens too.
    setInterval(() => {
      const running = generator.running(this.#chat);
      if (running) this.#grow({ chat: this.#chat, node: running.node, meter: running.meter });
    }, 250);
  }

  /** Shows the chat from its end, as after opening it. */
  open() {
    this.#views.clear();
    this.#follow = true;
    this.show();
    this.toEnd();
  }

  /** Shows the current branch. Views of messages that stay keep what was unfolded in them. */
  show() {
    const chat = this.chats.current;
    if (chat !== this.#chat) this.#views.clear();
    this.#chat = chat;
    byId("welcome").hidden = Boolean(chat);
    this.list.hidden = !chat;
    byId("system-note").hidden = !chat?.system.trim();
    if (!chat) return fill(this.list);
    const shown = path(chat);
    const views = shown.map((node) => this.#view(chat, node));
    const elements = views.map((view) => view.element);
    const forgotten = shown.length - seen(chat, shown).length;
    if (forgotten) elements.splice(forgotten, 0, this.#divider());
    const form = this.#form(chat, shown);
    if (form) elements.push(form);
    // Elements that are in their place already are not moved: moving would take the focus from them.
    elements.forEach((element, index) => {
      if (this.list.children[index] !== element) this.list.insertBefore(element, this.list.children[index] ?? null);
    });
    while (this.list.children.length > elements.length) this.list.lastChild.remove();
    if (this.#follow) this.toEnd();
    return undefined;
  }

  /** The view of a message that is shown, or undefined. */
  view(id) {
    return this.#views.get(id);
  }

  /** Scrolls to the end and follows it from now on. */
  toEnd() {
    this.#follow = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.jump.hidden = true;
  }

  #view(chat, node) {
    const known = this.#views.get(node.id);
    const view = known && known.node === node ? known : new MessageView(node, this.actions);
    this.#views.set(node.id, view);
    const running = this.generator.running(chat);
    view.update({ writing: running?.node === node, meter: running?.node === node ? running.meter : undefined, place: place(chat, node) });
    return view;
  }

  /** The line behind which the messages lie that the model sees. */
  #divider() {
    this.divider ??= h(
      "div",
      { class: "forgotten", role: "note" },
      h("span", {}, "The model no longer sees the messages above."),
      h("button", { type: "button", class: "quiet", onclick: () => this.actions.seeAll() }, "Send them again"),
    );
    return this.divider;
  }

  /** The form for results, where the last message calls tools. */
  #form(chat, shown) {
    const last = shown.at(-1);
    if (!last?.toolCalls?.length || last.role !== "assistant" || this.generator.running(chat) || last.finish === "error") {
      this.formFor = null;
      return null;
    }
    if (this.formFor !== last.id) {
      this.formFor = last.id;
      this.form = h("div", { class: "message" }, resultForm(last.toolCalls, (texts) => this.actions.results(last, texts)));
    }
    return this.form;
  }

  /** Tokens come faster than frames: one update a frame. */
  #grow({ chat, node, meter }) {
    if (chat !== this.#chat || this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      if (chat !== this.#chat || !this.generator.writes(chat, node)) return;
      this.#views.get(node.id)?.update({ writing: true, meter, place: place(chat, node) });
      if (this.#follow) this.toEnd();
    });
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.#follow = scrollHeight - scrollTop - clientHeight < NEAR;
    this.jump.hidden = this.#follow || !this.#chat;
  }
}
