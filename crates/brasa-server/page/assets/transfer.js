// Chats as a JSON file and back. An imported file is checked field by field: it may come from anywhere.

import { newId } from "./dom.js";

const FORMAT = "brasa-chats";
const VERSION = 1;
const ROLES = ["user", "assistant", "tool"];

/** Chats as the text of a file. */
export function exported(chats) {
  const plain = chats.map((chat) => ({ ...chat, nodes: [...chat.nodes.values()], chosen: Object.fromEntries(chat.chosen) }));
  return JSON.stringify({ format: FORMAT, version: VERSION, exported: new Date().toISOString(), chats: plain }, null, 1);
}

/** Offers a text as a download. */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** A name for a file of chats. */
export function fileName(title = "chats") {
  const plain = title.normalize("NFD").replace(/[^\w ]+/g, "").trim().replace(/ +/g, "-").slice(0, 40).toLowerCase();
  return `brasa-${plain || "chat"}-${new Date().toISOString().slice(0, 10)}.json`;
}

/**
 * Chats of a file; throws an `Error` whose message names what is wrong and where.
 *
 * A chat whose id is `taken` gets another one: an import never replaces anything.
 *
 * @param {string} text
 * @param {(id: string) => boolean} taken
 * @returns {import("./tree.js").Chat[]}
 */
export function imported(text, taken) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`this is not JSON: ${error.message}`);
  }
  if (file?.format !== FORMAT) throw new Error(`"format" is not "${FORMAT}": this file was not exported by this page`);
  if (file.version !== VERSION) throw new Error(`version ${file.version} is unknown; this page reads version ${VERSION}`);
  if (!Array.isArray(file.chats)) throw new Error('"chats" is not a list');
  return file.chats.map((chat, index) => chatOf(chat, `chat ${index + 1}`, taken));
}

function chatOf(chat, where, taken) {
  const id = string(chat?.id, `${where}: id`);
  if (!Array.isArray(chat.nodes)) throw new Error(`${where}: "nodes" is not a list`);
  const nodes = new Map();
  for (const [index, node] of chat.nodes.entries()) {
    const message = messageOf(node, `${where}, message ${index + 1}`);
    if (nodes.has(message.id)) throw new Error(`${where}: two messages have the id ${message.id}`);
    // Parents stand before their children, so nothing can run in a circle.
    if (message.parent && !nodes.has(message.parent)) throw new Error(`${where}, message ${index + 1}: its parent ${message.parent} does not stand before it`);
    nodes.set(message.id, message);
  }
  const chosen = new Map();
  for (const [parent, child] of Object.entries(chat.chosen ?? {})) {
    if (nodes.get(child)?.parent === parent) chosen.set(parent, child);
  }
  return {
    id: taken(id) ? newId() : id,
    title: string(chat.title, `${where}: title`).slice(0, 200) || "Chat",
    created: number(chat.created, `${where}: created`),
    updated: number(chat.updated, `${where}: updated`),
    system: string(chat.system ?? "", `${where}: system`),
    nodes,
    chosen,
  };
}

function messageOf(node, where) {
  if (!ROLES.includes(node?.role)) throw new Error(`${where}: role ${JSON.stringify(node?.role)} is not one of ${ROLES.join(", ")}`);
  const message = {
    id: string(node.id, `${where}: id`),
    parent: string(node.parent, `${where}: parent`),
    role: node.role,
    content: string(node.content, `${where}: content`),
    created: number(node.created, `${where}: created`),
  };
  for (const name of ["reasoning", "toolCallId", "toolName", "finish", "model"]) {
    if (node[name] !== undefined) message[name] = string(node[name], `${where}: ${name}`);
  }
  if (node.reasoningMs !== undefined) message.reasoningMs = number(node.reasoningMs, `${where}: reasoningMs`);
  if (node.attachments) message.attachments = records(node.attachments, ["name", "text"], `${where}: attachments`);
  if (node.toolCalls) message.toolCalls = records(node.toolCalls, ["id", "name", "arguments"], `${where}: toolCalls`);
  if (node.tokens) message.tokens = tokensOf(node.tokens, `${where}: tokens`);
  if (node.stats) message.stats = numbers(node.stats);
  if (node.error) message.error = { message: string(node.error.message, `${where}: error`), remedy: "", action: "retry" };
  return message;
}

function records(list, names, where) {
  if (!Array.isArray(list)) throw new Error(`${where} is not a list`);
  return list.map((one) => Object.fromEntries(names.map((name) => [name, string(one?.[name], `${where}: ${name}`)])));
}

function tokensOf(list, where) {
  if (!Array.isArray(list)) throw new Error(`${where} is not a list`);
  // A probability of zero has the logarithm minus infinity, which JSON writes as null.
  const pair = (one) => [string(one?.[0], where), one?.[1] === null ? -Infinity : number(one?.[1], where)];
  return list.map((token) => {
    if (!Array.isArray(token?.[2])) throw new Error(`${where}: a token has no list of alternatives`);
    return [...pair(token), token[2].map(pair)];
  });
}

function numbers(record) {
  return Object.fromEntries(Object.entries(record).filter(([, value]) => Number.isFinite(value)));
}

function string(value, where) {
  if (typeof value !== "string") throw new Error(`${where} is ${JSON.stringify(value) ?? "missing"}, expected a text`);
  return value;
}

function number(value, where) {
  if (!Number.isFinite(value)) throw new Error(`${where} is ${JSON.stringify(value) ?? "missing"}, expected a number`);
  return value;
}
