// A chat as one Markdown text: to be pasted into notes, an issue, a letter.

import { fenced, textOf } from "./request.js";
import { path } from "./tree.js";

/** The shown branch of a chat as Markdown: its title, and each message under a heading that says whose it is. */
export function chatMarkdown(chat) {
  const parts = [`# ${chat.title}`];
  if (chat.system.trim()) parts.push(`## System prompt\n\n${chat.system.trim()}`);
  for (const node of path(chat)) parts.push(`## ${titleOf(node)}\n\n${bodyOf(node)}`);
  return `${parts.join("\n\n")}\n`;
}

/** What an answer says, as Markdown: its text, and its calls of tools as blocks of JSON. */
export function answerMarkdown(node) {
  const calls = (node.toolCalls ?? []).map((call) => fenced(JSON.stringify({ name: call.name, arguments: parsed(call.arguments) }, null, 2), "json"));
  const text = node.json && node.content ? fenced(node.content, "json") : node.content;
  return [text, ...calls].filter(Boolean).join("\n\n");
}

function titleOf(node) {
  if (node.role === "user") return "You";
  return node.role === "tool" ? `Result of ${node.toolName || "a tool"}` : node.model || "Answer";
}

function bodyOf(node) {
  if (node.role === "user") return textOf(node);
  return node.role === "tool" ? fenced(node.content) : answerMarkdown(node);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
