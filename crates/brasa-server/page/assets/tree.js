// A chat is a tree of messages: editing and regenerating add a sibling and never change what was there.
// `chosen` remembers, for each message, which of its children is shown, so walking back leads to the same place.

/**
 * @typedef {object} Message
 * @property {string} id
 * @property {string} parent  id of the message before, "" for the first
 * @property {"user" | "assistant" | "tool"} role
 * @property {string} content
 * @property {number} created  milliseconds since 1970
 * @property {string} [reasoning]  the model's thoughts
 * @property {number} [reasoningMs]  how long it thought
 * @property {{id: string, name: string, arguments: string}[]} [toolCalls]
 * @property {string} [toolCallId]  of a tool's result: the call that it answers
 * @property {string} [toolName]  of a tool's result
 * @property {{name: string, text: string}[]} [attachments]
 * @property {[string, number, [string, number][]][]} [tokens]  text, log probability, alternatives
 * @property {object} [stats]
 * @property {string} [finish]  "stop", "length", "tool_calls", "stopped" or "error"
 * @property {object} [error]
 * @property {string} [model]
 * @property {boolean} [json]  true if the answer was asked for as JSON
 *
 * @typedef {object} Chat
 * @property {string} id
 * @property {string} title
 * @property {number} created
 * @property {number} updated
 * @property {string} system
 * @property {Map<string, Message>} nodes
 * @property {Map<string, string>} chosen  parent's id to the id of the shown child
 * @property {string} [from]  id of the first message that the model still sees
 */

/** Children of a message in the order in which they were made; "" asks for the first messages. */
export function children(chat, parent) {
  return [...chat.nodes.values()].filter((node) => node.parent === parent);
}

/** The shown child of a message, or undefined. */
export function chosenChild(chat, parent) {
  const node = chat.nodes.get(chat.chosen.get(parent) ?? "");
  if (node && node.parent === parent) return node;
  return children(chat, parent).at(-1);
}

/** Shown messages from the first to the last. */
export function path(chat) {
  const shown = [];
  for (let node = chosenChild(chat, ""); node; node = chosenChild(chat, node.id)) shown.push(node);
  return shown;
}

/** Messages that lead to `id`, with it. */
export function pathTo(chat, id) {
  const up = [];
  for (let node = chat.nodes.get(id); node; node = chat.nodes.get(node.parent)) up.push(node);
  return up.reverse();
}

/** Adds a message and shows it. */
export function add(chat, node) {
  chat.nodes.set(node.id, node);
  chat.chosen.set(node.parent, node.id);
  return node;
}

/** Where a message stands among its siblings: `{ index, count }`, counted from 0. */
export function place(chat, node) {
  const all = children(chat, node.parent);
  return { index: all.findIndex((sibling) => sibling.id === node.id), count: all.length };
}

/** Shows the sibling `by` places further; false at either end. */
export function walk(chat, node, by) {
  const all = children(chat, node.parent);
  const next = all[all.findIndex((sibling) => sibling.id === node.id) + by];
  if (!next) return false;
  chat.chosen.set(node.parent, next.id);
  return true;
}

/** Removes a message and everything below it; returns what was removed, for `restore`. */
export function prune(chat, id) {
  const removed = [];
  const chosen = new Map(chat.chosen);
  const waiting = [id];
  while (waiting.length) {
    const next = waiting.pop();
    const node = chat.nodes.get(next);
    if (!node) continue;
    waiting.push(...children(chat, next).map((child) => child.id));
    removed.push(node);
    chat.nodes.delete(next);
    chat.chosen.delete(next);
  }
  return { removed, chosen };
}

/** Puts back what `prune` removed. */
export function restore(chat, { removed, chosen }) {
  const all = [...chat.nodes.values(), ...removed].sort((a, b) => a.created - b.created);
  chat.nodes = new Map(all.map((node) => [node.id, node]));
  chat.chosen = chosen;
}

/** Shows the branch that holds `id`, whatever was shown before. */
export function reveal(chat, id) {
  for (const node of pathTo(chat, id)) chat.chosen.set(node.parent, node.id);
}
