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
    if (text === null) errors.push(refusal(file));
    else files.push({ name: file.name, text });
  }
  return { files, errors };
}

/** Kinds of files that people try to attach: by type or name, what they are and what helps. */
const KINDS = [
  [/^image\/|\.(png|jpe?g|gif|webp|heic|bmp|tiff?|avif)$/i, "a picture. The model reads text alone: describe it, or copy the text in it"],
  [/^application\/pdf$|\.pdf$/i, "a PDF. Copy the text out of it, or save it as plain text"],
  [/\.(docx?|odt|rtf|pages|pptx?|odp|key)$/i, "a document of a word processor. Save it as plain text"],
  [/\.(xlsx?|ods|numbers)$/i, "a spreadsheet. Save it as CSV"],
  [/\.(zip|gz|tgz|xz|bz2|7z|rar|tar|zst)$/i, "an archive. Unpack it, and attach the text files in it"],
  [/\.(gguf|safetensors|pt|onnx)$/i, "a model or its data. Start the server with it: `brasa serve FILE`"],
];

/** One sentence: why a file cannot be attached, and what helps. */
function refusal(file) {
  if (isSound(file)) return `${file.name} is sound, and this server has no model that hears. Start it with a Whisper model too.`;
  const kind = KINDS.find(([pattern]) => pattern.test(file.type) || pattern.test(file.name))?.[1];
  return kind ? `${file.name} is ${kind}.` : `${file.name} is not a text file (UTF-8). Save it as plain text first.`;
}

/** True for files of sound, by their type or their name. */
export function isSound({ name, type }) {
  return /^(audio|video)\//.test(type) || /\.(wav|mp3|flac|ogg|oga|m4a|mp4|aac|aiff?|caf|mka|opus|webm)$/i.test(name);
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
