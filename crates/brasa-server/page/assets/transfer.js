// Chats as a JSON file and back. An imported file is checked field by field: it may come from anywhere.
// What `/save` of `brasa run` writes, a list of messages, is read too; `/load` there reads the files of this page.

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
export function download(name, text, type = "application/json") {
  const address = URL.createObjectURL(new Blob([text], { type }));
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
  const list = Array.isArray(file) ? file : file?.messages;
  if (Array.isArray(list) && file.format === undefined) return [chatOfList(list)];
  if (file?.format !== FORMAT) throw new Error(`"format" is not "${FORMAT}": this file was neither exported by this page nor saved in a terminal`);
  if (file.version !== VERSION) throw new Error(`version ${file.version} is unknown; this page reads version ${VERSION}`);
  if (!Array.isArray(file.chats)) throw new Error('"chats" is not a list');
  return file.chats.map((chat, index) => chatOf(chat, `chat ${index + 1}`, taken));
}

/** A chat of a list of messages in OpenAI's form. */
function chatOfList(list) {
  const now = Date.now();
  const chat = { id: newId(), title: "", created: now, updated: now, system: "", nodes: new Map(), chosen: new Map() };
  const names = new Map();
  let parent = "";
  for (const [index, message] of list.entries()) {
    const where = `message ${index + 1}`;
    const content = textOfContent(message?.content, `${where}: content`);
    if (["system", "developer"].includes(message?.role) && !chat.nodes.size) {
      chat.system = [chat.system, content].filter(Boolean).join("\n\n");
      continue;
    }
    const node = { id: newId(), parent, role: message?.role, content, created: now + index };
    const thoughts = message.reasoning_content ?? message.reasoning;
    if (thoughts) node.reasoning = thoughts;
    if (message.tool_calls?.length) node.toolCalls = callsOf(message.tool_calls, `${where}: tool_calls`);
    for (const call of node.toolCalls ?? []) names.set(call.id, call.name);
    if (node.role === "tool") Object.assign(node, { toolCallId: message.tool_call_id ?? "", toolName: message.name ?? names.get(message.tool_call_id) ?? "" });
    if (node.role === "assistant") node.finish = "stop";
    chat.nodes.set(node.id, messageOf(node, where));
    parent = node.id;
  }
  if (!chat.nodes.size) throw new Error("the list has no message of a user or a model");
  const first = [...chat.nodes.values()].find((node) => node.role === "user")?.content ?? "";
  chat.title = first.replace(/\s+/g, " ").trim().slice(0, 60) || "Chat";
  return chat;
}

/** A message's text, or that of its text parts; none where there is none. */
function textOfContent(content, where) {
  if (content === undefined || content === null) return "";
  if (!Array.isArray(content)) return string(content, where);
  return content.map((part, index) => (typeof part === "string" ? part : string(part?.text, `${where}, part ${index + 1}: text`))).join("\n");
}

function callsOf(list, where) {
  if (!Array.isArray(list)) throw new Error(`${where} is not a list`);
  return list.map((call) => {
    const values = call?.function?.arguments ?? {};
    return { id: String(call?.id ?? ""), name: string(call?.function?.name, `${where}: name`), arguments: typeof values === "string" ? values : JSON.stringify(values) };
  });
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
  const from = nodes.has(chat.from) ? { from: chat.from } : {};
  return {
    ...from,
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
  if (node.json === true) message.json = true;
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
