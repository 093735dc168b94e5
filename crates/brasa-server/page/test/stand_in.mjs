// A scripted server: serves the page under the policy that it must live with, and answers by what the last message says.

import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { extname, join, normalize } from "node:path";

const TYPES = { ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml" };

const LONG = `A language model writes **one token at a time**. At each step it reads everything so far and gives every token of its vocabulary a probability; one of them is drawn, appended, and the step begins anew.

## What happens in a step

1. The text becomes *token ids*.
2. Each layer lets every position look at earlier ones.
3. The last position yields a score for each token.

| part | grows with |
|:--|--:|
| keys and values | 131,072 tokens |
| weights | nothing |

\`\`\`rust
/// The index of the largest score.
fn greedy(logits: &[f32]) -> usize {
    // Ties go to the first, so that runs repeat.
    let mut best = 0;
    for (id, score) in logits.iter().enumerate() {
        if *score > logits[best] {
            best = id;
        }
    }
    best
}
\`\`\`

Drawing the likeliest token each time is called *greedy*; a \`temperature\` above 0 lets others through. More in [the paper](https://example.org/paper).
`;

const HOSTILE = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>

![a picture](http://pictures.invalid/spy.png) and [a trap](javascript:document.title='owned') and ![inline](data:image/svg+xml;base64,AAAA)

<style>body{display:none}</style>

| a | b |
|--:|:-:|
| <b>1</b> | 2 |

\`\`\`html
<script>document.title='owned'</script>
\`\`\`
`;

/** What the server does with a request; `seen` holds bodies of chats, the last one last. */
export async function standIn(folder, { slow = 12 } = {}) {
  const state = { seen: [], heard: [], key: "", down: false, busy: 0, open: 0, slow, loaded: new Set(["ember-1.7b"]) };
  const policy = readFileSync(join(folder, "policy.txt"), "utf8").trim();
  const server = createServer(async (request, response) => {
    const path = new URL(request.url, "http://x").pathname;
    if (request.method === "GET" && (path === "/" || path.startsWith("/assets/"))) return serveFile(folder, policy, path, response);
    if (state.down) return request.socket.destroy();
    if (state.key && request.headers.authorization !== `Bearer ${state.key}`) {
      return sendJson(response, 401, { error: { message: "invalid API key", type: "authentication_error", param: null, code: "invalid_api_key" } });
    }
    if (path === "/v1/models") return sendJson(response, 200, { object: "list", data: MODELS.map((model) => ({ ...model, status: { value: state.loaded.has(model.id) ? "loaded" : "unloaded" } })) });
    if (path === "/props") return sendJson(response, 200, { default_generation_settings: { n_ctx: 4096, params: { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05 } } });
    if (path === "/v1/audio/transcriptions") return transcribe(state, request, response);
    if (path !== "/v1/chat/completions") return sendJson(response, 404, { error: { message: `no such path ${path}`, type: "not_found_error", param: null, code: "not_found" } });
    const body = JSON.parse(await text(request));
    state.seen.push(body);
    state.loaded.add(body.model);
    state.open += 1;
    response.on("close", () => (state.open -= 1));
    return chat(state, body, response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { state, url: `http://127.0.0.1:${server.address().port}/`, close };
}

const FORMULAS = [
  "The roots of $ax^2 + bx + c$ are",
  "\\[\nx = \\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a}\n\\]",
  "and with \\(a = 1\\) it is a monic one; it costs $5 to $6. A matrix:",
  "$$\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix} \\label{prompt}$$",
  "A wrong one, $\\frac{1$, and a hostile one: $\\href{javascript:alert(1)}{x}$.",
].join("\n\n");

const MODELS = [
  { id: "cinder", object: "model", kind: "encoder", meta: { size: 1.3e8 } },
  { id: "ember-1.7b", object: "model", meta: { n_params: 1.7e9, size: 1.1e9, n_ctx_train: 32768 } },
  { id: "tinder", object: "model", kind: "speech", meta: { n_params: 7.4e7, size: 1.5e8 } },
  { id: "coal-8b", object: "model", meta: { n_params: 8.2e9, size: 4.9e9, n_ctx_train: 131072 } },
];

function serveFile(folder, policy, path, response) {
  const name = normalize(path === "/" ? "index.html" : path.slice(1));
  try {
    const body = readFileSync(join(folder, name));
    response.writeHead(200, { "content-type": TYPES[extname(name)] ?? "text/plain; charset=utf-8", "content-security-policy": policy, "x-content-type-options": "nosniff" });
    response.end(body);
  } catch {
    response.writeHead(404).end();
  }
}

/** Tells how long the sound of a form is. Sounds without samples are refused. */
async function transcribe(state, request, response) {
  const parts = [];
  for await (const part of request) parts.push(part);
  const body = Buffer.concat(parts);
  const at = body.indexOf("RIFF");
  const bytes = at < 0 ? 0 : body.readUInt32LE(at + 40);
  state.heard.push({ model: /name="model"\r\n\r\n(.*)\r\n/.exec(body.toString("latin1"))?.[1], bytes, rate: at < 0 ? 0 : body.readUInt32LE(at + 24) });
  if (!bytes) return sendJson(response, 400, { error: { message: "speech.wav: no sound in it", type: "invalid_request_error", param: "file", code: "invalid_audio" } });
  return sendJson(response, 200, { text: " Somebody speaks. ", usage: { type: "duration", seconds: bytes / 32000 } });
}

async function text(request) {
  let whole = "";
  for await (const part of request) whole += part;
  return whole;
}

function sendJson(response, status, value, headers = {}) {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(JSON.stringify(value));
}

async function chat(state, body, response) {
  const last = body.messages.at(-1);
  const said = String(last.content ?? "");
  if (said.includes("too long") || (said.includes("outgrow") && body.messages.length > 2)) {
    return sendJson(response, 400, { error: { message: "prompt is too long: 9000 tokens > 4096 maximum", type: "invalid_request_error", param: "messages", code: "context_length_exceeded" } });
  }
  if (state.busy > 0) {
    state.busy -= 1;
    return sendJson(response, 429, { error: { message: "the queue is full", type: "rate_limit_error", param: null, code: "queue_full" } }, { "retry-after": "1" });
  }
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
  const out = new Stream(response, body, state);
  await out.begin();
  if (last.role === "tool") await out.write(`The tool said \`${said.slice(0, 60)}\`, so: 21 °C and clear.`);
  else if (said.includes("weather") && body.tools) return out.call("get_weather", '{"city": "Lisboa", "days": 3}');
  else if (said.includes("think")) {
    await out.write("The user wants a number. Six times seven is forty-two; I shall say so plainly.", "reasoning_content");
    await out.write("Six times seven is **42**.");
  } else if (said.includes("hostile")) await out.write(HOSTILE);
  else if (said.includes("formula")) await out.write(FORMULAS);
  else if (said.includes("forever")) await out.write("on and on and ".repeat(2000));
  else if (said.includes("break")) {
    await out.write("This will not ");
    response.write(`data: ${JSON.stringify({ error: { message: "the device was lost", type: "server_error", param: null, code: "device_lost" } })}\n\n`);
    return response.end();
  } else if (said.includes("cut")) {
    await out.write("The line is ");
    return response.destroy();
  } else if (body.response_format && said.includes("half")) await out.write('{"path": "C:\\\\new", "list": [1, ');
  else if (body.response_format) await out.write('{"name": "ember", "hot": true, "degrees": [620, 740.5], "note": null}');
  else if (/language model/.test(said)) await out.write(LONG);
  else await out.write(`You said: ${said.slice(0, 200)}. Answer ${state.seen.length}.`);
  return out.end("stop");
}

/** Writes chunks as a server does: role first, text, one last delta, usage, [DONE]. */
class Stream {
  constructor(response, body, state) {
    this.response = response;
    this.body = body;
    this.state = state;
    this.count = 0;
    this.started = Date.now();
    this.alive = true;
    response.on("close", () => (this.alive = false));
  }

  async begin() {
    this.response.write(": ping\r\n\r\n");
    await pause(this.state.slow * 6);
    this.chunk({ role: "assistant", content: null });
  }

  async write(words, field = "content") {
    for (const piece of words.match(/\s*\S+\s*?|\s+/g) ?? []) {
      if (!this.alive) return;
      this.count += 1;
      this.chunk({ [field]: piece }, null, this.body.logprobs ? { content: [token(piece, this.count)] } : null);
      await pause(this.state.slow);
    }
  }

  async call(name, values) {
    this.chunk({ tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name, arguments: "" } }] });
    for (const piece of values.match(/.{1,5}/g)) {
      this.count += 1;
      this.chunk({ tool_calls: [{ index: 0, function: { arguments: piece } }] });
      await pause(this.state.slow);
    }
    this.end("tool_calls");
  }

  end(reason) {
    this.chunk({}, reason);
    if (this.body.stream_options?.include_usage) {
      const usage = { prompt_tokens: 812, completion_tokens: this.count, total_tokens: 812 + this.count, prompt_tokens_details: { cached_tokens: 640 } };
      this.response.write(`data: ${JSON.stringify({ choices: [], usage })}\n\n`);
    }
    this.response.end("data: [DONE]\n\n");
  }

  chunk(delta, finish = null, logprobs = null) {
    const spent = Math.max(1, Date.now() - this.started);
    const timings = this.body.timings_per_token || finish ? { cache_n: 640, prompt_n: 172, prompt_per_second: 912.4, predicted_n: this.count, predicted_ms: spent, predicted_per_second: (this.count / spent) * 1000 } : undefined;
    const line = JSON.stringify({ id: "x", object: "chat.completion.chunk", model: this.body.model, choices: [{ index: 0, delta, logprobs, finish_reason: finish }], timings });
    this.response.write(`data: ${line}\n\n`);
  }
}

/** A token with rivals; how sure the model was follows a fixed pattern. */
function token(text, index) {
  const share = [0.97, 0.82, 0.44, 0.95, 0.18, 0.99, 0.06, 0.71][index % 8];
  const rivals = [" the", " a", " some", " every", "\n"].filter((one) => one !== text).slice(0, 4);
  const others = rivals.map((one, place) => ({ token: one, logprob: Math.log(((1 - share) * 0.5) / 2 ** place), bytes: [...Buffer.from(one)] }));
  const own = { token: text, logprob: Math.log(share), bytes: [...Buffer.from(text)] };
  return { ...own, top_logprobs: [own, ...others].sort((a, b) => b.logprob - a.logprob) };
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
