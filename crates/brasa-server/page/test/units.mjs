// Parts that need no browser: events cut at every byte, the tree of messages, imports, search, colours, speed.

import assert from "node:assert/strict";
import { isSound, readFiles } from "../assets/attachments.js";
import { seen, shorter } from "../assets/forgetting.js";
import { pieces } from "../assets/highlight.js";
import MarkdownIt from "../assets/markdown-it.js";
import { chatMarkdown } from "../assets/markdown_out.js";
import { findMath } from "../assets/math.js";
import { RATE, wav } from "../assets/microphone.js";
import { bodyOf, mistakeOf, textOf } from "../assets/request.js";
import { search } from "../assets/search.js";
import { Meter, seconds, shortStats } from "../assets/speed.js";
import { events } from "../assets/sse.js";
import { exported, imported } from "../assets/transfer.js";
import { add, path, place, prune, restore, reveal, walk } from "../assets/tree.js";

/** Runs them all; the first mistake throws. */
export async function units() {
  await eventsCutAnywhere();
  trees();
  imports();
  terminalChats();
  forgetting();
  formulas();
  await refusals();
  searches();
  colours();
  speeds();
  requests();
  await sounds();
  console.log("ok    parts without a browser");
}

async function sounds() {
  const bytes = Buffer.from(await wav(Float32Array.of(0, 1, -1, 2, -0.5)).arrayBuffer());
  assert.equal(bytes.length, 44 + 10);
  assert.equal(bytes.toString("latin1", 0, 4) + bytes.toString("latin1", 8, 16) + bytes.toString("latin1", 36, 40), "RIFFWAVEfmt data");
  assert.deepEqual([4, 24, 28, 40].map((at) => bytes.readUInt32LE(at)), [46, RATE, 2 * RATE, 10]);
  assert.deepEqual([20, 22, 32, 34].map((at) => bytes.readUInt16LE(at)), [1, 1, 2, 16]);
  assert.deepEqual([0, 1, 2, 3, 4].map((n) => bytes.readInt16LE(44 + 2 * n)), [0, 32767, -32767, 32767, -16383]);
  const named = (name, type = "") => isSound({ name, type });
  assert.ok(named("a.MP3") && named("b", "audio/webm") && named("c.m4a") && !named("wav.txt") && !named("d.md", "text/markdown"));
}

async function eventsCutAnywhere() {
  const text = ': ping\r\n\r\ndata: {"a": "é"}\n\ndata: one\r\ndata: two\r\n\r\nevent: x\rdata:three\r\rdata: [DONE]\n\n';
  const bytes = new TextEncoder().encode(text);
  const wanted = ['{"a": "é"}', "one\ntwo", "three", "[DONE]"];
  for (let cut = 0; cut <= bytes.length; cut += 1) {
    const found = [];
    for await (const data of events(streamOf(bytes.slice(0, cut), bytes.slice(cut)))) found.push(data);
    assert.deepEqual(found, wanted, `cut at byte ${cut}`);
  }
  const single = [];
  for await (const data of events(streamOf(...Array.from(bytes, (byte) => Uint8Array.of(byte))))) single.push(data);
  assert.deepEqual(single, wanted, "byte by byte");
}

function streamOf(...parts) {
  return new ReadableStream({
    start(controller) {
      for (const part of parts) controller.enqueue(part);
      controller.close();
    },
  });
}

/** A chat of messages given as `id: parent`, made in this order. */
function chatOf(parents) {
  const chat = { id: "c", title: "A chat", created: 1, updated: 2, system: "", nodes: new Map(), chosen: new Map() };
  for (const [id, parent] of Object.entries(parents)) add(chat, { id, parent, role: "user", content: `text of ${id}`, created: chat.nodes.size });
  return chat;
}

const ids = (nodes) => nodes.map((node) => node.id).join(" ");

function trees() {
  const chat = chatOf({ a: "", b: "a", c: "b", d: "a", e: "d" });
  assert.equal(ids(path(chat)), "a d e");
  assert.deepEqual(place(chat, chat.nodes.get("d")), { index: 1, count: 2 });
  assert.equal(walk(chat, chat.nodes.get("d"), -1), true);
  assert.equal(ids(path(chat)), "a b c");
  assert.equal(walk(chat, chat.nodes.get("b"), -1), false);
  const removed = prune(chat, "b");
  assert.equal(ids(path(chat)), "a d e");
  assert.equal(chat.nodes.size, 3);
  restore(chat, removed);
  assert.equal(ids(path(chat)), "a b c");
  reveal(chat, "e");
  assert.equal(ids(path(chat)), "a d e");
}

function imports() {
  const chat = chatOf({ a: "", b: "a" });
  chat.nodes.get("b").tokens = [["x", -Infinity, [["y", -0.5]]]];
  const text = exported([chat]);
  assert.deepEqual(imported(text, () => false)[0], chat);
  assert.notEqual(imported(text, () => true)[0].id, chat.id);
  const refused = [
    ["{", /not JSON/],
    ["[]", /no message/],
    ['{"a": 1}', /"format"/],
    ['[{"role": "user", "content": 5}]', /message 1: content is 5/],
    ['[{"role": "god", "content": "x"}]', /message 1: role "god"/],
    ['[{"role": "user", "content": [{"type": "image_url"}]}]', /message 1: content, part 1: text is missing/],
    [JSON.stringify({ format: "brasa-chats", version: 9 }), /version 9/],
    [text.replace('"role": "user"', '"role": "god"'), /chat 1, message 1: role "god"/],
    [text.replace('"content": "text of b"', '"content": 5'), /chat 1, message 2: content is 5/],
    [text.replace('"parent": "a"', '"parent": "b"'), /parent b does not stand before it/],
    [text.replace('"id": "b"', '"id": "a"'), /two messages have the id a/],
    [text.replace('"updated": 2', '"updated": "soon"'), /updated is "soon"/],
  ];
  for (const [bad, message] of refused) {
    assert.notEqual(bad, text);
    assert.throws(() => imported(bad, () => false), message);
  }
}

/** What `/save` writes in a terminal becomes a chat. */
function terminalChats() {
  const call = { id: "c1", type: "function", function: { name: "f", arguments: { x: 1 } } };
  const list = [
    { role: "system", content: "Be brief." },
    { role: "user", content: [{ type: "text", text: "one" }, { type: "text", text: "two" }] },
    { role: "assistant", content: null, reasoning_content: "hm", tool_calls: [call] },
    { role: "tool", content: "5", tool_call_id: "c1" },
    { role: "assistant", content: "five" },
  ];
  for (const file of [list, { model: "m", messages: list }]) {
    const [chat] = imported(JSON.stringify(file), () => false);
    assert.deepEqual([chat.title, chat.system], ["one two", "Be brief."]);
    const shown = path(chat);
    assert.deepEqual(shown.map(({ role, content }) => [role, content]), [["user", "one\ntwo"], ["assistant", ""], ["tool", "5"], ["assistant", "five"]]);
    assert.deepEqual([shown[1].reasoning, shown[1].toolCalls, shown[2].toolName], ["hm", [{ id: "c1", name: "f", arguments: '{"x":1}' }], "f"]);
    assert.deepEqual(imported(exported([chat]), () => false)[0], chat);
    assert.equal(
      chatMarkdown(chat),
      '# one two\n\n## System prompt\n\nBe brief.\n\n## You\n\none\ntwo\n\n## Answer\n\n```json\n{\n  "name": "f",\n  "arguments": {\n    "x": 1\n  }\n}\n```\n\n## Result of f\n\n```\n5\n```\n\n## Answer\n\nfive\n',
    );
  }
}

/** A chat that outgrew its context goes on from a question near its middle. */
function forgetting() {
  const chat = chatOf({ a: "", b: "a", c: "b", d: "c", e: "d" });
  for (const id of "bd") chat.nodes.get(id).role = "assistant";
  const shown = path(chat);
  assert.equal(ids(seen(chat, shown)), "a b c d e");
  chat.from = shorter(chat, shown);
  assert.equal(ids(seen(chat, shown)), "e");
  assert.equal(shorter(chat, shown), null);
  chat.from = "nobody";
  assert.equal(ids(seen(chat, shown)), "a b c d e");
  chat.nodes.get("a").attachments = [{ name: "f", text: "long ".repeat(100) }];
  assert.equal(shorter(chat, shown), "c");
}

/** The bodies of formulas that markdown finds, and the text around them. */
function formulas() {
  const parser = new MarkdownIt("default");
  findMath(parser);
  const found = (text) => {
    const all = [];
    const walkAll = (tokens) => tokens.forEach((token) => (token.type === "math" ? all.push([token.content.trim(), token.block]) : walkAll(token.children ?? [])));
    walkAll(parser.parse(text, {}));
    return all;
  };
  const cases = [
    ["so $x_1 < 2$ holds", [["x_1 < 2", false]]],
    ["\\(a \\le b\\) and \\[c\\]", [["a \\le b", false], ["c", true]]],
    ["$$\na\n\n\\\\ b\n$$", [["a\n\n\\\\ b", true]]],
    ["\\[\n\\begin{bmatrix} 1 & 2 \\end{bmatrix}\n\\]\ntext", [["\\begin{bmatrix} 1 & 2 \\end{bmatrix}", true]]],
    ["- item\n  $$\n  y\n  $$", [["y", true]]],
    ["$$z$$", [["z", true]]],
    ["costs $5 and $6, or $7-$8", []],
    ["`$a$` and\n\n    $b$\n\n```\n$$c$$\n```", []],
    ["\\$a$ is no formula, $a\\$b$ is one", [["a\\$b", false]]],
    ["an open \\( mark, and $", []],
  ];
  for (const [text, wanted] of cases) assert.deepEqual(found(text), wanted, text);
  assert.ok(parser.render("an open \\( mark").includes("\\( mark"), "the backslash of an open mark");
}

async function refusals() {
  const file = (name, type, bytes) => ({ name, type, size: bytes.length, arrayBuffer: async () => Uint8Array.from(bytes).buffer });
  const { files, errors } = await readFiles([file("a.png", "image/png", [0x89, 0]), file("b.pdf", "", [37, 0xff]), file("c.mp3", "audio/mpeg", [0xff]), file("d.dat", "", [0]), file("e.txt", "", [65])]);
  assert.deepEqual(files, [{ name: "e.txt", text: "A" }]);
  for (const [index, word] of ["a picture", "a PDF", "no model that hears", "not a text file"].entries()) assert.ok(errors[index].includes(word), errors[index]);
}

function searches() {
  const chat = chatOf({ a: "" });
  chat.nodes.get("a").content = "Über Glut und Asche in São Paulo";
  assert.deepEqual(search([chat], "SAO glut")[0].snippet, ["Über Glut und Asche in ", "São", " Paulo"]);
  assert.equal(search([chat], "asche feuer").length, 0);
  assert.equal(search([chat], "chat").length, 1);
  assert.equal(search([chat], " ").length, 1);
}

function colours() {
  const samples = ["let s = \"a\\\"b\"; // it's", "fn f<'a>(x: &'a str) {}", "'''long\ntext''' # x", '{"k": "v", "n": -1.5e3}', "don't \"open", "SELECT 'it''s' -- c"];
  for (const code of samples) {
    for (const language of ["rust", "python", "json", "sql", "html", "text", ""]) {
      assert.equal(pieces(code, language).map(([, text]) => text).join(""), code, `${language}: ${code}`);
    }
  }
  assert.deepEqual(pieces('{"k": 1}', "json").filter(([kind]) => kind), [["hl-key", '"k"'], ["hl-number", "1"]]);
}

function speeds() {
  let now = 0;
  const meter = new Meter(() => now);
  const chunk = (delta, more = {}) => meter.take({ choices: [{ delta }], ...more });
  chunk({ role: "assistant", content: null });
  assert.equal(meter.stats.firstMs, null);
  now = 200;
  for (; now <= 1200; now += 100) chunk({ content: "x" });
  assert.equal(meter.stats.speed, 10);
  assert.equal(meter.stats.firstMs, 200);
  assert.equal(shortStats(meter.stats), "10.0 tokens/s · 11 tokens · first after 0.20 s");
  chunk({}, { timings: { predicted_n: 50, predicted_per_second: 321.4 }, usage: { prompt_tokens: 7, completion_tokens: 50 } });
  assert.equal(shortStats(meter.stats), "321 tokens/s · 50 tokens · first after 0.20 s");
  assert.deepEqual([210, 12_400, 125_000].map(seconds), ["0.21 s", "12 s", "2 min 5 s"]);
}

function requests() {
  const settings = (values) => ({ get: (name) => ({ numbers: {}, stop: "", thinking: "model", format: "text", tools: "", schema: "", ...values })[name] });
  const shown = [
    { role: "user", content: "q" },
    { role: "assistant", content: "a", reasoning: "old thoughts" },
    { role: "user", content: "r" },
    { role: "assistant", content: "", reasoning: "new thoughts", toolCalls: [{ id: "1", name: "f", arguments: "{}" }] },
    { role: "tool", content: "5", toolCallId: "1" },
  ];
  const { messages } = bodyOf(shown, " ", settings({}), "m");
  assert.equal(messages.length, 5, "an empty system prompt is not sent");
  assert.equal(messages[1].reasoning_content, undefined);
  assert.equal(messages[3].reasoning_content, "new thoughts");
  assert.equal(messages[3].content, null);
  assert.equal(textOf({ content: "", attachments: [{ name: "a", text: "````" }] }), "File a:\n`````\n````\n`````");
  assert.match(mistakeOf(settings({ tools: '{"a": 1}' })), /^Tools: Tools are a JSON array/);
  assert.match(mistakeOf(settings({ tools: '[{"type": "function"}]' })), /Tool 1 needs/);
  assert.match(mistakeOf(settings({ format: "json_schema" })), /none is given/);
  assert.equal(mistakeOf(settings({ format: "json_schema", schema: "{}" })), "");
}
