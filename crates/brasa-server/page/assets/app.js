// Brasa's page: wires the parts together. Each part is a file of its own and knows nothing of the others' elements.

import { addressed, followAddress, showAddress } from "./address.js";
import { Api } from "./api.js";
import { Chats } from "./chats.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { Dictation } from "./dictation.js";
import { byId, newId } from "./dom.js";
import { Drafts } from "./drafts.js";
import { shorter } from "./forgetting.js";
import { Generator } from "./generate.js";
import { answerMarkdown, chatMarkdown } from "./markdown_out.js";
import { Models } from "./models.js";
import { announce, banner, notify } from "./notice.js";
import { mistakeOf } from "./request.js";
import { Settings } from "./settings.js";
import { SettingsPanel } from "./settings_panel.js";
import { listen, toggleHelp } from "./shortcuts.js";
import { Sidebar } from "./sidebar.js";
import { shortStats } from "./speed.js";
import { Store } from "./store.js";
import { download, exported, fileName, imported } from "./transfer.js";
import { add, path, pathTo, place, prune, restore, reveal, walk } from "./tree.js";

const settings = new Settings();
const store = new Store();
const chats = new Chats(store);
const drafts = new Drafts(store);
const api = new Api(() => settings.get("apiKey"));
const generator = new Generator(api, settings, chats);
chats.busy = (id) => Boolean(generator.running(chats.get(id)));

/** The system prompt of a chat that was not begun yet. */
let draftSystem = settings.get("system");

/** True while the field changes from one chat's draft to another's. */
let switching = true;

const panel = new SettingsPanel(settings, {
  system: () => chats.current?.system ?? draftSystem,
  setSystem(text) {
    if (!chats.current) draftSystem = text;
    else {
      chats.current.system = text;
      chats.save(chats.current);
      conversation.show();
    }
  },
  keyChanged: () => models.refresh(),
  ask: (title, value, save) => askName(title, value, save),
});
const models = new Models(api, settings, { props: showProps, settings: () => panel.open("set-key"), speech: offerSpeech });
const conversation = new Conversation(chats, generator, {
  walk: step,
  copy: (node) => copy(node.role === "assistant" ? answerMarkdown(node) : node.content),
  edit: editMessage,
  regenerate: (node) => ask(node.parent),
  remove: removeMessage,
  remedy: followRemedy,
  wantAlternatives() {
    settings.set("alternatives", true);
    notify("Alternatives are recorded from the next answer on. Regenerate to see them.");
  },
  enterSends: () => settings.get("enterSends"),
  results: sendResults,
  seeAll() {
    delete chats.current.from;
    chats.changed(chats.current);
    models.showContext(chats.current);
  },
});
const sidebar = new Sidebar(chats, generator, settings, {
  open: openChat,
  rename: renameChat,
  remove: removeChat,
  copyOne: (chat) => copy(chatMarkdown(chat)),
  exportOne: (chat) => download(fileName(chat.title), exported([chat])),
});
const hear = (sound, name, signal) => api.transcribe(sound, name, models.speech, signal);
const composer = new Composer(settings, { send, stop: () => generator.stop(chats.current), editLast, hear, changed: keepDraft });
const dictation = new Dictation({ hear, write: (text) => composer.insert(text) });

/** Sends what was written; false leaves it in the field. */
function send(text, files) {
  if (refused()) return false;
  drafts.forget(chats.current?.id ?? "");
  const chat = chats.current ?? chats.create(titleOf(text, files), draftSystem);
  const parent = path(chat).at(-1)?.id ?? "";
  const node = { id: newId(), parent, role: "user", content: text, created: Date.now() };
  if (files.length) node.attachments = files;
  add(chat, node);
  conversation.toEnd();
  generator.answer(chat, node.id);
  return true;
}

/** Answers the message `parent` of the current chat, in a new branch if it has an answer. */
function ask(parent) {
  if (refused() || generator.running(chats.current)) return;
  conversation.toEnd();
  generator.answer(chats.current, parent);
}

/** Says what is wrong with the settings; true if a request would be senseless. */
function refused() {
  const mistake = mistakeOf(settings);
  if (mistake) {
    notify(mistake, { label: "Open settings", run: () => panel.open() });
    announce(mistake);
  }
  return Boolean(mistake);
}

function editMessage(node, text) {
  const chat = chats.current;
  const copyOfNode = { id: newId(), parent: node.parent, role: node.role, content: text, created: Date.now() };
  if (node.attachments) copyOfNode.attachments = node.attachments;
  if (node.toolCalls) copyOfNode.toolCalls = node.toolCalls;
  if (node.role === "assistant") Object.assign(copyOfNode, { finish: "stop", model: node.model });
  add(chat, copyOfNode);
  chats.changed(chat);
  if (node.role === "user") ask(copyOfNode.id);
}

function sendResults(node, texts) {
  const chat = chats.current;
  let parent = node.id;
  node.toolCalls.forEach((call, index) => {
    const result = { id: newId(), parent, role: "tool", content: texts[index], toolCallId: call.id, toolName: call.name, created: Date.now() };
    parent = add(chat, result).id;
  });
  chats.changed(chat);
  ask(parent);
}

function step(node, by) {
  const chat = chats.current;
  if (!walk(chat, node, by)) return;
  chats.save(chat);
  conversation.show();
  models.showContext(chat);
  const shown = path(chat).find((one) => one.parent === node.parent);
  const { index, count } = place(chat, shown);
  const button = conversation.view(shown.id)?.element.querySelector(`[data-action=${by < 0 ? "previous" : "next"}]`);
  (button?.disabled ? button.parentElement.querySelector("button:enabled") : button)?.focus();
  announce(`Branch ${index + 1} of ${count}`);
}

function removeMessage(node) {
  const chat = chats.current;
  if (generator.running(chat)) generator.stop(chat);
  const removed = prune(chat, node.id);
  chats.changed(chat);
  composer.field.focus();
  const undo = () => {
    restore(chat, removed);
    chats.changed(chat);
  };
  notify(removed.removed.length > 1 ? `${removed.removed.length} messages deleted.` : "Message deleted.", { label: "Undo", run: undo });
}

function followRemedy(node) {
  const { action } = node.error;
  if (action === "settings") panel.open(node.error.status === 401 || node.error.status === 403 ? "set-key" : null);
  else if (action === "new") newChat();
  else {
    const chat = chats.current;
    if (action === "shorten") {
      const from = shorter(chat, pathTo(chat, node.parent));
      if (!from) return notify("Your last message alone is too long for the model. Edit it, or attach less.", { label: "Edit it", run: editLast });
      chat.from = from;
    }
    prune(chat, node.id);
    models.refresh();
    ask(node.parent);
  }
  return undefined;
}

function openChat(id, node = null) {
  const chat = chats.get(id);
  if (!chat) return;
  if (node) reveal(chat, node);
  chats.open(id);
  sidebar.close();
  if (node) {
    const view = conversation.view(node);
    view?.element.scrollIntoView({ block: "center" });
    view?.element.classList.add("found");
  } else composer.field.focus();
}

function newChat() {
  draftSystem = settings.get("system");
  chats.open(null);
  sidebar.close();
  composer.field.focus();
}

function renameChat(chat) {
  askName("Rename chat", chat.title, (title) => chats.rename(chat, title));
}

/** Asks for a name; `save` gets one that is not empty. */
function askName(title, value, save) {
  const dialog = byId("naming");
  const field = byId("naming-field");
  byId("naming-title").textContent = title;
  field.value = value;
  dialog.returnValue = "";
  dialog.onclose = () => {
    const name = field.value.trim();
    if (dialog.returnValue === "save" && name) save(name);
  };
  dialog.showModal();
  field.select();
}

/** Keeps what is in the field as the draft of the shown chat. */
function keepDraft(text, files) {
  if (!switching) drafts.put(chats.current?.id ?? "", text, files);
}

/** Shows the draft of the chat that is shown now. */
async function showDraft() {
  const id = chats.current?.id ?? "";
  switching = true;
  composer.show({ text: "", files: [] });
  const draft = await drafts.get(id);
  if ((chats.current?.id ?? "") !== id) return;
  // What was typed meanwhile stays, behind the draft.
  const typed = composer.field.value;
  composer.show({ text: draft.text + typed, files: draft.files });
  switching = false;
  if (typed) keepDraft(draft.text + typed, draft.files);
}

async function removeChat(chat) {
  generator.stop(chat);
  const wasOpen = chats.current === chat;
  const undo = await chats.remove(chat.id);
  composer.field.focus();
  notify("Chat deleted.", {
    label: "Undo",
    async run() {
      await undo();
      if (wasOpen) chats.open(chat.id);
    },
  });
}

async function importFile(file) {
  try {
    const found = imported(await file.text(), (id) => Boolean(chats.get(id)));
    await chats.insert(found);
    notify(`${found.length} ${found.length === 1 ? "chat" : "chats"} imported.`);
    announce(`${found.length} chats imported`);
  } catch (error) {
    banner("import", { text: `${file.name} was not imported:`, remedy: error.message });
  }
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages that come by plain HTTP from another machine have no clipboard: select the text the old way.
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "visually-hidden";
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  notify("Copied.");
  announce("Copied");
}

function editLast() {
  const last = chats.current && path(chats.current).findLast((node) => node.role === "user");
  if (last) conversation.view(last.id)?.edit();
}

function lastAnswer() {
  return chats.current && path(chats.current).findLast((node) => node.role === "assistant");
}

function walkLast(by) {
  const chat = chats.current;
  const branching = chat && path(chat).findLast((node) => place(chat, node).count > 1);
  if (branching) step(branching, by);
}

function neighbourChat(by) {
  const list = chats.list;
  const next = list[list.indexOf(chats.current) + by];
  if (next) openChat(next.id);
}

function titleOf(text, files) {
  const line = (text || files[0]?.name || "Chat").replace(/\s+/g, " ").trim();
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

/** Opens the chat that the page's address names. */
function openAddressed(id) {
  const known = id === null || chats.get(id);
  chats.open(known ? id : null);
  if (!known) notify("There is no such chat in this browser.");
}

/** True for a click on what lies behind an open dialog. */
function isOutside({ target, clientX: x, clientY: y }) {
  const { left, right, top, bottom } = target.getBoundingClientRect();
  return x < left || x > right || y < top || y > bottom;
}

function offerSpeech(hears) {
  composer.offerSpeech(hears);
  dictation.offer(hears);
}

function showProps(props) {
  panel.show(props);
  models.showContext(chats.current);
}

function showCurrent() {
  const chat = chats.current;
  document.title = chat ? `${chat.title} – Brasa` : "Brasa";
  byId("title").textContent = chat?.title ?? "New chat";
  composer.busy(Boolean(generator.running(chat)));
  models.showContext(chat);
}

chats.addEventListener("open", () => {
  showAddress(chats.current?.id ?? null);
  // The field first: what is in it belongs to the chat that was shown before.
  showDraft();
  conversation.open();
  showCurrent();
});
chats.addEventListener("change", ({ detail }) => {
  if (detail.chat !== chats.current) return;
  conversation.show();
  showCurrent();
});
chats.addEventListener("list", showCurrent);
chats.addEventListener("storage", ({ detail: error }) => {
  if (!error) return banner("storage", null);
  const save = { label: "Export chats", run: () => download(fileName(), exported(chats.list)) };
  return banner("storage", { text: error.message, remedy: error.remedy, actions: [save] });
});
generator.addEventListener("begin", ({ detail }) => {
  if (detail.chat !== chats.current) return;
  conversation.show();
  showCurrent();
  announce("The answer begins");
});
generator.addEventListener("end", ({ detail: { chat, node } }) => {
  if (chat === chats.current) {
    conversation.show();
    showCurrent();
  }
  const what = { error: `The answer failed: ${node.error?.message}`, stopped: "The answer was stopped", tool_calls: "The model calls a tool" }[node.finish];
  announce(what ?? `The answer is complete. ${shortStats(node.stats)}`);
  if (node.error?.status === 401) models.refresh();
  else if (!node.error) models.answered();
});

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-copy=code]");
  if (button) copy(button.closest(".code").querySelector("code").textContent);
  if (event.target.matches?.("dialog") && isOutside(event)) event.target.close();
});
for (const button of document.querySelectorAll("[data-suggest]")) {
  button.addEventListener("click", () => composer.put(button.dataset.suggest));
}
for (const button of document.querySelectorAll("[data-close]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}
byId("new-chat").addEventListener("click", newChat);
byId("settings-open").addEventListener("click", () => panel.open());
byId("system-note").addEventListener("click", () => panel.open("set-system"));
byId("help-open").addEventListener("click", toggleHelp);
byId("export").addEventListener("click", () => download(fileName(), exported(chats.list)));
byId("import").addEventListener("click", () => byId("import-picker").click());
byId("import-picker").addEventListener("change", async ({ target }) => {
  for (const file of target.files) await importFile(file);
  target.value = "";
});
byId("clear").addEventListener("click", () => {
  byId("settings").close();
  byId("clear-all").showModal();
});
byId("clear-all").addEventListener("close", ({ target }) => {
  if (target.returnValue === "clear") chats.clear();
  target.returnValue = "";
});

listen({
  newChat,
  search: () => sidebar.search(),
  prompt: () => composer.field.focus(),
  regenerate: () => lastAnswer() && ask(lastAnswer().parent),
  copyLast: () => lastAnswer() && copy(answerMarkdown(lastAnswer())),
  previousBranch: () => walkLast(-1),
  nextBranch: () => walkLast(1),
  previousChat: () => neighbourChat(-1),
  nextChat: () => neighbourChat(1),
  sidebar: () => sidebar.toggle(),
  settings: () => panel.open(),
  help: toggleHelp,
  escape() {
    if (!dictation.cancel() && !sidebar.close()) generator.stop(chats.current);
  },
});

await chats.load();
openAddressed(addressed());
followAddress(openAddressed);
composer.field.focus();
models.refresh();
document.body.dataset.ready = "yes";
