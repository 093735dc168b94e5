// Text files that go with a message. They are read here, in the browser, and become part of the message's text.

/** Largest file, in bytes. A larger one would hardly fit into a model's context. */
const MOST_BYTES = 1 << 20;

/** Most files of one message. */
const MOST_FILES = 16;

/**
 * Reads text files: `{ files, errors }`, where each error is a sentence that names the file and a remedy.
 *
 * @param {Iterable<File>} chosen
 * @param {number} present  files that the message has already
 */
export async function readFiles(chosen, present = 0) {
  const files = [];
  const errors = [];
  for (const file of chosen) {
    if (present + files.length >= MOST_FILES) {
      errors.push(`${file.name}: a message takes ${MOST_FILES} files at most. Send the rest with the next one.`);
      break;
    }
    if (file.size > MOST_BYTES) {
      errors.push(`${file.name} has ${(file.size / MOST_BYTES).toFixed(1)} MiB; at most 1 MiB is possible. Attach the part that matters.`);
      continue;
    }
    const text = decode(await file.arrayBuffer());
    if (text === null) errors.push(`${file.name} is not a text file (UTF-8). Save it as plain text first.`);
    else files.push({ name: file.name, text });
  }
  return { files, errors };
}

/** True for files of sound, by their type or their name. */
export function isSound({ name, type }) {
  return /^(audio|video)\//.test(type) || /\.(wav|mp3|flac|ogg|oga|m4a|mp4|aac|aiff?|caf|mka)$/i.test(name);
}

/** UTF-8 without NUL, or null. */
function decode(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}
