// Answers that are being made: one per chat at most. An answer is a message from its first moment,
// so that what has come is kept if the page closes, the user stops, or the server fails.

import { remedyOf } from "./api.js";
import { newId } from "./dom.js";
import { seen } from "./forgetting.js";
import { bodyOf } from "./request.js";
import { Meter } from "./speed.js";
import { add, pathTo } from "./tree.js";

/** How often an unfinished answer is kept, in milliseconds. */
const KEEP_EVERY = 1500;

/** Runs requests. Events: "begin", "token", "end", each with `detail: { chat, node, meter }`. */
export class Generator extends EventTarget {
  /** @type {Map<string, {controller: AbortController, node: import("./tree.js").Message, meter: Meter}>} */
  #running = new Map();

  constructor(api, settings, chats) {
    super();
    this.api = api;
    this.settings = settings;
    this.chats = chats;
  }

  /** The answer that is being made in this chat, or undefined. */
  running(chat) {
    return chat ? this.#running.get(chat.id) : undefined;
  }

  /** True while the message is being written. */
  writes(chat, node) {
    return this.running(chat)?.node === node;
  }

  /** Stops the answer of this chat; what has come stays. */
  stop(chat) {
    this.running(chat)?.controller.abort();
  }

  /** Answers the message `parent` of a chat with a new sibling of earlier answers. */
  async answer(chat, parent) {
    if (this.#running.has(chat.id)) return;
    const model = this.settings.get("model");
    const body = bodyOf(seen(chat, pathTo(chat, parent)), chat.system, this.settings, model);
    const node = add(chat, { id: newId(), parent, role: "assistant", content: "", created: Date.now(), model });
    if (body.response_format) node.json = true;
    const meter = new Meter();
    const controller = new AbortController();
    this.#running.set(chat.id, { controller, node, meter });
    this.chats.changed(chat);
    this.#tell("begin", { chat, node, meter });
    let kept = Date.now();
    try {
      for await (const chunk of this.api.chat(body, controller.signal)) {
        meter.take(chunk);
        take(node, chunk, meter);
        this.#tell("token", { chat, node, meter });
        if (Date.now() - kept > KEEP_EVERY) {
          kept = Date.now();
          this.chats.save(chat);
        }
      }
      node.finish ??= "stop";
    } catch (error) {
      if (controller.signal.aborted) node.finish = "stopped";
      else fail(node, error);
    }
    if (node.reasoning && node.reasoningMs === undefined) node.reasoningMs = thoughtFor(meter);
    node.stats = meter.first === null ? undefined : meter.stats;
    this.#running.delete(chat.id);
    this.chats.changed(chat);
    this.#tell("end", { chat, node, meter });
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/** Adds a chunk to the message. */
function take(node, chunk, meter) {
  if (typeof chunk.model === "string" && chunk.model) node.model = chunk.model;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  if (delta.reasoning_content) node.reasoning = (node.reasoning ?? "") + delta.reasoning_content;
  if (delta.content) {
    if (node.reasoning && node.reasoningMs === undefined) node.reasoningMs = thoughtFor(meter);
    node.content += delta.content;
  }
  for (const part of delta.tool_calls ?? []) takeCall(node, part);
  if (!delta.reasoning_content && Array.isArray(choice.logprobs?.content)) {
    node.tokens ??= [];
    for (const token of choice.logprobs.content) node.tokens.push(packed(token));
  }
  if (choice.finish_reason) node.finish = choice.finish_reason;
}

/** Adds a piece of a tool call; `index` says which call grows. */
function takeCall(node, part) {
  node.toolCalls ??= [];
  const index = part.index ?? Math.max(0, node.toolCalls.length - 1);
  if (!(index >= 0 && index <= node.toolCalls.length)) return;
  const call = (node.toolCalls[index] ??= { id: "", name: "", arguments: "" });
  if (part.id) call.id = part.id;
  if (part.function?.name) call.name += part.function.name;
  if (part.function?.arguments) call.arguments += part.function.arguments;
}

/** A token as it is kept: text, log probability, alternatives as pairs. */
function packed(token) {
  const others = (token.top_logprobs ?? []).map((other) => [shown(other), other.logprob]);
  return [shown(token), token.logprob, others];
}

/** Part of a character has no text of its own: its bytes are shown instead. */
function shown({ token, bytes }) {
  if (!token?.includes("\ufffd") || !Array.isArray(bytes)) return String(token ?? "");
  return bytes.map((byte) => `<${byte.toString(16).toUpperCase().padStart(2, "0")}>`).join("");
}

function thoughtFor(meter) {
  return meter.first === null ? 0 : meter.now() - meter.first;
}

function fail(node, error) {
  const facts = { message: error.message, status: error.status ?? 0, param: error.param ?? null, code: error.code ?? null };
  const remedy = remedyOf({ ...facts, retryAfter: error.retryAfter ?? null });
  node.finish = "error";
  node.error = { ...facts, remedy: remedy.text, action: remedy.action };
}
