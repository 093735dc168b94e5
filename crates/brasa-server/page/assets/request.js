// Makes the body of a request of the shown messages and the user's settings.

import { NUMBERS, readJson } from "./settings.js";

/** How many alternatives of each token are asked for. */
export const ALTERNATIVES = 5;

/**
 * The body of POST /v1/chat/completions for the messages `shown`.
 *
 * @param {import("./tree.js").Message[]} shown
 * @param {string} system
 * @param {import("./settings.js").Settings} settings
 * @param {string} model
 */
export function bodyOf(shown, system, settings, model) {
  const body = {
    model,
    messages: messagesOf(shown, system),
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
  };
  const numbers = settings.get("numbers");
  for (const { name } of NUMBERS) if (typeof numbers[name] === "number") body[name] = numbers[name];
  const stop = settings.get("stop").split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  if (settings.get("thinking") !== "model") body.chat_template_kwargs = { enable_thinking: settings.get("thinking") === "on" };
  if (settings.get("alternatives")) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
  Object.assign(body, formatOf(settings), toolsOf(settings));
  return body;
}

/** What is wrong with the settings' JSON fields, as a sentence; "" if nothing is. */
export function mistakeOf(settings) {
  const tools = readJson(settings.get("tools"), "tools");
  if (tools.error) return `Tools: ${tools.error}`;
  if (settings.get("format") !== "json_schema") return "";
  const schema = readJson(settings.get("schema"), "schema");
  if (schema.error) return `Schema: ${schema.error}`;
  return schema.value === null ? "Schema: answers should follow a schema, and none is given." : "";
}

function formatOf(settings) {
  const format = settings.get("format");
  if (format === "json_object") return { response_format: { type: "json_object" } };
  if (format !== "json_schema") return {};
  const { value } = readJson(settings.get("schema"), "schema");
  return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: value } } };
}

function toolsOf(settings) {
  const { value } = readJson(settings.get("tools"), "tools");
  return value?.length ? { tools: value, tool_choice: settings.get("toolChoice") } : {};
}

/** Thoughts go back to the model only within the current turn: after the user's last message, where calls of tools need them. */
function messagesOf(shown, system) {
  const lastUser = shown.findLastIndex((node) => node.role === "user");
  const messages = shown.map((node, index) => messageOf(node, index > lastUser));
  return system.trim() ? [{ role: "system", content: system }, ...messages] : messages;
}

function messageOf(node, thisTurn) {
  if (node.role === "user") return { role: "user", content: textOf(node) };
  if (node.role === "tool") return { role: "tool", tool_call_id: node.toolCallId, content: node.content };
  const message = { role: "assistant", content: node.content };
  if (thisTurn && node.reasoning) message.reasoning_content = node.reasoning;
  if (node.toolCalls?.length) {
    message.content = node.content || null;
    message.tool_calls = node.toolCalls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return message;
}

/** A user's text with the attached files in front of it, each in a fence longer than any within it. */
export function textOf(node) {
  const files = (node.attachments ?? []).map(({ name, text }) => `File ${name}:\n${fenced(text)}`);
  return [...files, node.content].filter(Boolean).join("\n\n");
}

/** A text as a block of code, in a fence longer than any within it. */
export function fenced(text, language = "") {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`{3,}/g), (match) => match[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}
