// The paths of the server that this page speaks to: /v1/models, /props, /v1/chat/completions, /v1/audio/transcriptions.
// Addresses are relative to the page, so that a reverse proxy may serve it below any path.

import { events } from "./sse.js";

const CUT = "The connection ended before the answer did.";

/** An answer that is an error. `remedyOf` says what helps. */
export class ApiError extends Error {
  /** @param {{status?: number, type?: string, param?: string | null, code?: string | null, retryAfter?: string | null}} facts */
  constructor(message, facts = {}) {
    super(message);
    this.name = "ApiError";
    this.status = facts.status ?? 0;
    this.type = facts.type ?? "";
    this.param = facts.param ?? null;
    this.code = facts.code ?? null;
    this.retryAfter = facts.retryAfter ?? null;
  }
}

/** What helps against an error, and the action that leads there: "settings", "retry", "shorten" or "". */
export function remedyOf({ status = 0, message = "", param = null, code = null, retryAfter = null }) {
  const text = `${code ?? ""} ${message}`.toLowerCase();
  if (status === 0) return { text: "Is `brasa serve` still running, and can this machine reach it?", action: "retry" };
  if (status === 401 || status === 403) return { text: "This server wants an API key. Enter it in the settings.", action: "settings" };
  if (status === 404) return { text: "Choose another model above, then try again.", action: "retry" };
  if (status === 429 || (status === 503 && retryAfter)) {
    return { text: `The server is busy.${retryAfter ? ` It asks to wait ${retryAfter} s.` : ""}`, action: "retry" };
  }
  if (status === 503) return { text: "The model may still be loading. Try again in a moment.", action: "retry" };
  if (/context|too long|too many tokens|n_ctx/.test(text)) {
    return { text: "The chat has outgrown the model's context. Go on without its oldest messages, begin a new chat, or start the server with a larger context (-c).", action: "shorten" };
  }
  if (status === 413) return { text: "The request is too large. Attach less, or raise the server's limit.", action: "" };
  if (status === 400) return { text: param ? `Change “${param}” in the settings, then try again.` : "Look at the settings, then try again.", action: "settings" };
  return { text: "The server's log says more.", action: "retry" };
}

/** A server that speaks OpenAI's API. */
export class Api {
  /** @param {() => string} key  gives the API key, or "" */
  constructor(key) {
    this.key = key;
  }

  /** Models that the server knows: `[{ id, kind, status, meta }]`. A server that tells no kinds has models of text. */
  async models() {
    const { data } = await this.#json("v1/models");
    if (!Array.isArray(data)) throw new ApiError("/v1/models gave no list of models", { status: 500 });
    return data.map((model) => ({ id: String(model.id), kind: model.kind ?? "text", status: model.status?.value ?? "", meta: model.meta ?? {} }));
  }

  /** The server's own settings for a model. A server that does not tell them gives `{}`. */
  async props(model) {
    try {
      return await this.#json(`props?model=${encodeURIComponent(model)}`);
    } catch {
      return {};
    }
  }

  /** Sends a chat and yields chunks as they come; throws an `ApiError`, also in mid-stream. */
  async *chat(body, signal) {
    const response = await this.#fetch("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
    if (!response.body) throw new ApiError("the server's answer has no body", { status: response.status });
    let ended = false;
    for await (const data of whole(events(response.body))) {
      if (data === "[DONE]") {
        ended = true;
        break;
      }
      const chunk = parse(data);
      if (chunk.error) throw errorOf(chunk.error, response.status === 200 ? 500 : response.status);
      yield chunk;
    }
    if (!ended) throw new ApiError(CUT, { code: "cut" });
  }

  /** What is said in a sound, as one text; throws an `ApiError`. */
  async transcribe(sound, name, model, signal) {
    const form = new FormData();
    form.append("model", model);
    form.append("file", sound, name);
    const response = await this.#fetch("v1/audio/transcriptions", { method: "POST", body: form, signal });
    return String(parse(await response.text()).text ?? "").trim();
  }

  async #json(path) {
    const response = await this.#fetch(path, {});
    return parse(await response.text());
  }

  async #fetch(path, options) {
    const key = this.key();
    const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
    let response;
    try {
      response = await fetch(new URL(path, document.baseURI), { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server cannot be reached.", { status: 0 });
    }
    if (response.ok) return response;
    const text = await response.text().catch(() => "");
    let error = null;
    try {
      error = JSON.parse(text).error;
    } catch {
      // Not JSON: a proxy's page, perhaps.
    }
    throw errorOf(error ?? { message: `${response.status} ${response.statusText}` }, response.status, response.headers.get("retry-after"));
  }
}

/** Passes events on; a connection that breaks becomes an `ApiError`. */
async function* whole(source) {
  try {
    yield* source;
  } catch (error) {
    throw error.name === "AbortError" ? error : new ApiError(CUT, { code: "cut" });
  }
}

function errorOf(error, status, retryAfter = null) {
  const known = typeof error === "object" && error !== null ? error : { message: String(error) };
  return new ApiError(String(known.message ?? "unknown error"), { status, type: known.type, param: known.param, code: known.code, retryAfter });
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError(`the server sent what is not JSON: ${text.slice(0, 120)}`, { status: 500 });
  }
}
