// Server-sent events over fetch: EventSource can neither POST nor carry a key.

/**
 * Yields the data of each event of a response's body, as text.
 *
 * Comments (pings) are skipped; an event may have several `data:` lines and any kind of line ends, cut at any place.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<string>}
 */
export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      // A "\r" at the very end may be the first half of "\r\n": it waits for what follows.
      const ready = done ? rest.length : rest.endsWith("\r") ? rest.length - 1 : rest.length;
      const lines = rest.slice(0, ready).split(/\r\n|\r|\n/);
      rest = lines.pop() + rest.slice(ready);
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
      if (done) {
        if (rest.startsWith("data:")) data.push(rest.slice(5).trimStart());
        if (data.length) yield data.join("\n");
        return;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
