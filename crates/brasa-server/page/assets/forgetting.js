// A chat that has outgrown its model's context goes on without its oldest messages: `chat.from` is the first message that is sent.

/** The messages of a path that are sent: those from `chat.from` on, if the path holds that message. */
export function seen(chat, shown) {
  const from = shown.findIndex((node) => node.id === chat.from);
  return from > 0 ? shown.slice(from) : shown;
}

/**
 * The message from which a shorter chat may begin: a question of the user, in front of which about half of the sent characters lie.
 * Null if only one question is left.
 */
export function shorter(chat, shown) {
  const sent = seen(chat, shown);
  const questions = sent.filter((node, index) => index > 0 && node.role === "user");
  if (!questions.length) return null;
  const size = (node) => node.content.length + (node.attachments ?? []).reduce((sum, { text }) => sum + text.length, 0);
  const half = sent.reduce((sum, node) => sum + size(node), 0) / 2;
  let before = 0;
  for (const node of sent) {
    if (before >= half && questions.includes(node)) return node.id;
    before += size(node);
  }
  return questions.at(-1).id;
}
