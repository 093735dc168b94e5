// Search in chats: every word must occur, in the title or in one message; case and accents do not matter.

const AROUND = 32;

/** Text as it is compared: lower case, without accents. Its length may differ from the text's. */
function folded(text) {
  return text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
}

/**
 * Chats that contain all words of `query`, each with a snippet and, where a message matched, its id.
 *
 * @param {import("./tree.js").Chat[]} chats
 * @param {string} query
 * @returns {{chat: import("./tree.js").Chat, snippet: [string, string, string] | null, node: string | null}[]}
 */
export function search(chats, query) {
  const words = folded(query).split(/\s+/).filter(Boolean);
  if (!words.length) return chats.map((chat) => ({ chat, snippet: null, node: null }));
  const found = [];
  for (const chat of chats) {
    const node = [...chat.nodes.values()].find((one) => holds(one.content, words) || holds(one.reasoning ?? "", words));
    if (node) found.push({ chat, snippet: snippetOf(holds(node.content, words) ? node.content : node.reasoning, words[0]), node: node.id });
    else if (holds(chat.title, words)) found.push({ chat, snippet: null, node: null });
  }
  return found;
}

function holds(text, words) {
  const plain = folded(text);
  return words.every((word) => plain.includes(word));
}

/** The place of `word` as text before, the word, and text behind. */
function snippetOf(text, word) {
  const flat = text.normalize("NFC").replace(/\s+/g, " ");
  // Folding may change lengths: walk the text until its folded beginning is long enough.
  const target = folded(flat).indexOf(word);
  let at = 0;
  for (let length = 0; length < target && at < flat.length; at += 1) length += folded(flat[at]).length;
  const end = at + word.length;
  const before = flat.slice(Math.max(0, at - AROUND), at);
  const behind = flat.slice(end, end + AROUND * 2);
  return [`${at > AROUND ? "…" : ""}${before}`, flat.slice(at, end), `${behind}${end + AROUND * 2 < flat.length ? "…" : ""}`];
}
