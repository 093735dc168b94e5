// OpenAI's JavaScript client against a server: chat, tools, completions, responses, embeddings, models, errors.
//
// usage: node openai_javascript.cjs URL
const assert = require("node:assert");
const OpenAI = require("openai");

const client = new OpenAI.OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: 'What does "ember" mean?' }];

async function main() {
  const model = (await client.models.list()).data[0].id;
  const request = { model, messages, temperature: 0, max_tokens: 24 };
  const whole = await client.chat.completions.create(request);
  const text = whole.choices[0].message.content;
  assert(text.includes("ember"), text);
  let streamed = "";
  let usage = null;
  const stream = await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    streamed += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(streamed, text);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);

  const raw = await client.completions.create({ model, prompt: "a", max_tokens: 3, temperature: 0 });
  let parts = "";
  for await (const part of await client.completions.create({ model, prompt: "a", max_tokens: 3, temperature: 0, stream: true })) {
    parts += part.choices[0].text;
  }
  assert.equal(parts, raw.choices[0].text);

  const question = { model, input: messages[0].content, temperature: 0, max_output_tokens: 24 };
  assert.equal((await client.responses.create(question)).output_text, text);
  let deltas = "";
  for await (const event of await client.responses.create({ ...question, stream: true })) {
    if (event.type === "response.output_text.delta") deltas += event.delta;
  }
  assert.equal(deltas, text);

  const parameters = { type: "object", properties: { word: { type: "string", maxLength: 8 } }, required: ["word"], additionalProperties: false };
  const tools = [{ type: "function", function: { name: "look_up", parameters, strict: true } }];
  const asked = { ...request, tools, tool_choice: "required", max_tokens: 60 };
  const call = (await client.chat.completions.create(asked)).choices[0].message.tool_calls[0];
  assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ["word"]);
  const grown = await client.chat.completions.stream(asked).finalMessage();
  assert.equal(grown.tool_calls[0].function.arguments, call.function.arguments);

  const vectors = await client.embeddings.create({ model, input: ["ember", "coal"] });
  assert.equal(vectors.data.length, 2);
  assert(Math.abs(vectors.data[0].embedding.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-4);

  const counted = await client.responses.inputTokens.count({ model, input: question.input });
  assert.equal(counted.input_tokens, whole.usage.prompt_tokens);
  assert.equal((await client.models.retrieve(model)).id, model);

  // A client that breaks off ends its own request.
  const broken = await client.chat.completions.create({ ...request, max_tokens: 500, stream: true });
  for await (const _ of broken) break;

  await assert.rejects(client.chat.completions.create({ ...request, temperature: -1 }), (error) => {
    return error.status === 400 && error.param === "temperature" && error.code === "invalid_value";
  });
  await assert.rejects(client.embeddings.create({ model, input: "x", dimensions: 7 }), (error) => {
    return error.status === 400 && error.type === "invalid_request_error" && error.param === "dimensions" && error.message !== "";
  });
  await assert.rejects(client.files.list(), (error) => error.status === 404 && error.code === "unknown_path");

  // Node keeps connections. An answer that comes before the body was read costs the next request nothing.
  const post = (path, body) => fetch(process.argv[2] + path, { method: "POST", body, headers: { "content-type": "application/json" } });
  const large = JSON.stringify({ text: "x".repeat(300000) });
  for (let round = 0; round < 30; round++) {
    for (const [path, status] of [["/v1/nothing", 404], ["/health", 405], ["/tokenize", 200]]) {
      const answer = await post(path, path === "/tokenize" ? '{"content": "ember"}' : large);
      assert.equal(answer.status, status, path);
      await answer.text();
    }
  }
  console.log("openai for JavaScript: content");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
