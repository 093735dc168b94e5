// The steps of the walk. `scripted` steps need the stand-in: they ask for answers that only a script gives.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { contrast, names, noSidewaysScroll } from "./audit.mjs";

const LAST = ".message.assistant:last-of-type";
const IDLE = "document.querySelector('#stop').hidden";

function ensure(truth, sentence) {
  if (!truth) throw new Error(sentence);
}

function equal(found, expected, what) {
  ensure(JSON.stringify(found) === JSON.stringify(expected), `${what}: found ${JSON.stringify(found)}, expected ${JSON.stringify(expected)}`);
}

const text = (page, selector) => page.evaluate(`[...document.querySelectorAll(${JSON.stringify(selector)})].at(-1)?.innerText ?? null`);
const count = (page, selector) => page.evaluate(`document.querySelectorAll(${JSON.stringify(selector)}).length`);
const focused = (page) => page.evaluate("document.activeElement.id || document.activeElement.className || document.activeElement.tagName");

/** Sends a message and waits for the end of its answer. */
async function say(page, words) {
  await begin(page, words);
  await page.until(IDLE, `the answer to “${words}”`, 120_000);
}

/** Sends a message and does not wait. */
async function begin(page, words) {
  const before = await count(page, ".message");
  await page.click("#prompt");
  await page.type(words);
  await page.press("Enter", "Enter");
  await page.until(`document.querySelectorAll(".message").length > ${before}`, "the message to appear");
}

async function newChat(page) {
  await page.press("KeyN", "n", { alt: true });
  await page.until("!document.querySelector('#welcome').hidden", "a new chat");
}

/** Opens the settings, sets fields, closes them. */
async function choose(page, fields) {
  await page.press("KeyS", "s", { alt: true });
  await page.until("document.querySelector('#settings').open");
  for (const [selector, value] of Object.entries(fields)) {
    if (typeof value !== "boolean") await page.set(selector, value);
    else if ((await page.evaluate(`document.querySelector(${JSON.stringify(selector)}).checked`)) !== value) await page.click(selector);
  }
  await page.press("Escape", "Escape");
  await page.until("!document.querySelector('#settings').open");
}

/** Loads the page again, at the address that it has. */
async function reload(page) {
  await page.evaluate("delete document.body.dataset.ready");
  await page.send("Page.reload");
  await page.until("document.body?.dataset.ready === 'yes'", "the page to be ready again");
}

async function audit(page) {
  await names(page);
  await contrast(page);
  await noSidewaysScroll(page);
}

export const steps = [
  {
    name: "the page loads with nothing but its own files, under its policy",
    async run({ page, url }) {
      await page.size(1280, 800);
      await page.prefer({ "prefers-color-scheme": "light" });
      await page.goto(url);
      const policy = await page.evaluate(`fetch(".").then((answer) => answer.headers.get("content-security-policy"))`);
      for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"]) {
        ensure(policy?.includes(part), `the policy lacks ${part}: ${policy}`);
      }
      ensure(!/unsafe|https?:/.test(policy), `the policy is loose: ${policy}`);
      equal(await focused(page), "prompt", "focus");
      await page.until("document.querySelector('#model').value !== ''", "models");
    },
  },
  {
    name: "the first view has names, contrast and no sideways scrolling",
    async run({ page, picture }) {
      await audit(page);
      await picture("welcome");
    },
  },
  {
    name: "a message is answered, with its speed",
    async run({ page }) {
      await say(page, "What does ember mean?");
      equal(await count(page, ".message"), 2, "messages");
      const stats = await text(page, `${LAST} .stats`);
      ensure(/\d tokens?\b/.test(stats) && /first after/.test(stats), `no speed below the answer: ${stats}`);
      ensure((await text(page, `${LAST} .content`)).length > 0, "the answer is empty");
      equal(await text(page, "#title"), "What does ember mean?", "title");
      // A frame later, so that the same words are announced twice.
      await page.until("document.querySelector('#announcer').textContent.includes('complete')", "the announcement of the end");
    },
  },
  {
    name: "speed is shown while the answer grows, and its place is marked busy",
    scripted: true,
    async run({ page }) {
      await begin(page, "How does a language model write?");
      await page.until(`document.querySelector('${LAST} .waiting')?.textContent.startsWith("Waiting")`, "the waiting line");
      await page.until(`/tokens\\/s/.test(document.querySelector('${LAST}.writing .stats')?.textContent)`, "live speed");
      equal(await page.evaluate(`document.querySelector('${LAST}').getAttribute("aria-busy")`), "true", "aria-busy");
      await page.until(IDLE);
      equal(await page.evaluate(`document.querySelector('${LAST}').getAttribute("aria-busy")`), "false", "aria-busy");
      ensure(/cached/.test(await page.evaluate(`document.querySelector('${LAST} .stats').title`)), "the tooltip does not tell of cached tokens");
      ensure(/of 4,096 tokens/.test(await text(page, "#context-text")), "the context is not shown");
    },
  },
  {
    name: "markdown: headings, table, code with colours and a copy button",
    scripted: true,
    async run({ page, picture }) {
      equal(await text(page, `${LAST} .heading-2`), "What happens in a step", "heading");
      equal(await count(page, `${LAST} td.align-right`), 2, "aligned cells");
      ensure((await count(page, `${LAST} .hl-keyword`)) > 3, "the code has no colours");
      equal(await page.evaluate(`document.querySelector('${LAST} .prose a').rel`), "noopener noreferrer nofollow", "link");
      await page.evaluate(`navigator.clipboard.writeText = async (text) => { globalThis.copied = text; }`);
      await page.click(`${LAST} .copy-code`);
      ensure((await page.until("globalThis.copied")).startsWith("/// The index of the largest score.\nfn greedy"), "another text was copied");
      await audit(page);
      await page.evaluate("document.querySelector('.notice')?.remove(); document.activeElement.blur()");
      await picture("answer");
    },
  },
  {
    name: "formulas are drawn, wrong ones shown as they are, and none takes a place of the page",
    scripted: true,
    async run({ page, picture }) {
      await newChat(page);
      await say(page, "Show me a formula");
      equal(await count(page, `${LAST} math`), 4, "formulas");
      equal(await count(page, `${LAST} .math.display mfrac`), 1, "fractions in a display");
      equal(await count(page, `${LAST} mtr`), 2, "rows of the matrix");
      ensure((await text(page, `${LAST} .content`)).includes("it costs $5 to $6"), "prices are not formulas");
      ensure((await text(page, `${LAST} .content`)).includes("\\frac{1"), "a wrong formula is not shown");
      equal(await page.evaluate("document.querySelectorAll('#prompt').length"), 1, "elements with the id of the field");
      equal(await count(page, `${LAST} [href^="javascript"]`), 0, "dangerous links");
      await audit(page);
      await page.evaluate("document.activeElement.blur()");
      await picture("formulas");
    },
  },
  {
    name: "each chat has an address, and drafts survive a reload",
    async run({ page, url }) {
      const address = await page.evaluate("location.href");
      ensure(/#chat=[0-9a-f]+$/.test(address), `the address names no chat: ${address}`);
      const shown = await text(page, "#title");
      await page.click("#prompt");
      await page.type("half a thought");
      await new Promise((resolve) => setTimeout(resolve, 400));
      await newChat(page);
      equal(await page.evaluate("document.querySelector('#prompt').value"), "", "the field of a new chat");
      equal(await page.evaluate("location.hash"), "", "the address of a new chat");
      await page.evaluate("history.back()");
      await page.until(`document.querySelector('#title').innerText === ${JSON.stringify(shown)}`, "the chat behind the back arrow");
      await page.until("document.querySelector('#prompt').value === 'half a thought'", "its draft");
      await reload(page);
      equal(await page.evaluate("location.href"), address, "the address after a reload");
      await page.until(`document.querySelector('#title').innerText === ${JSON.stringify(shown)}`, "the chat of the address");
      await page.until("document.querySelector('#prompt').value === 'half a thought'", "the draft after a reload");
      await page.set("#prompt", "");
      await page.evaluate("location.hash = '#chat=nobody'");
      await page.until("[...document.querySelectorAll('.notice')].some((e) => e.innerText.includes('no such chat'))", "the notice");
      await page.goto(url);
    },
  },
  {
    name: "a hostile answer neither runs nor loads anything",
    scripted: true,
    async run({ page }) {
      await newChat(page);
      await say(page, "Be hostile");
      await new Promise((resolve) => setTimeout(resolve, 200));
      ensure(!(await page.evaluate("document.title")).includes("owned"), "a script ran");
      equal(await count(page, `${LAST} :is(img, script, style:not(svg style), iframe)`), 0, "foreign elements");
      equal(await count(page, `${LAST} a[href^="javascript"], ${LAST} a[href^="data"]`), 0, "dangerous links");
      equal(await count(page, `${LAST} a[href="http://pictures.invalid/spy.png"]`), 1, "the image as a link");
      ensure(!page.requests.some((request) => request.includes("invalid")), "the image was fetched");
      ensure((await text(page, `${LAST} .content`)).includes("<script>document.title"), "the text is not shown as it is");
    },
  },
  {
    name: "thoughts are folded, timed and unfold by keyboard",
    scripted: true,
    async run({ page }) {
      await newChat(page);
      await begin(page, "Please think: six times seven");
      await page.until(`/^Thinking, /.test(document.querySelector('${LAST} .thinking summary')?.textContent)`, "live thoughts");
      await page.until(IDLE);
      ensure(/^Thought for /.test(await text(page, `${LAST} .thinking summary`)), "the time of thought is missing");
      equal(await page.evaluate(`document.querySelector('${LAST} .thinking').open`), false, "folded");
      await page.evaluate(`document.querySelector('${LAST} .thinking summary').focus()`);
      await page.press("Enter", "Enter");
      equal(await page.evaluate(`document.querySelector('${LAST} .thinking').open`), true, "unfolded");
      equal(await text(page, `${LAST} .content`), "Six times seven is 42.", "answer");
    },
  },
  {
    name: "stop ends the request and keeps what has come",
    scripted: true,
    async run({ page, state }) {
      await newChat(page);
      await begin(page, "Go on forever");
      await page.until(`document.querySelector('${LAST} .content')?.innerText.length > 60`);
      await page.press("Escape", "Escape");
      await page.until(IDLE);
      ensure((await text(page, `${LAST} .stats`)).endsWith("stopped"), "not marked as stopped");
      ensure((await text(page, `${LAST} .content`)).startsWith("on and on"), "the text was lost");
      const end = Date.now() + 5000;
      while (state.open && Date.now() < end) await new Promise((resolve) => setTimeout(resolve, 20));
      equal(state.open, 0, "requests that still run");
    },
  },
  {
    name: "stop works on a real answer",
    async run({ page }) {
      await newChat(page);
      await begin(page, "Count from one to five hundred in words, one number on each line.");
      await page.until(`document.querySelector('${LAST} .content')?.innerText.length > 0 || ${IDLE}`, "the first token", 60_000);
      if (!(await page.evaluate(IDLE))) await page.click("#stop");
      await page.until(IDLE);
      ensure((await text(page, `${LAST} .content`)).length > 0, "the text was lost");
    },
  },
  {
    name: "regenerate and edit make branches, and arrows walk them",
    async run({ page }) {
      await newChat(page);
      await say(page, "First words");
      await page.press("KeyR", "r", { alt: true });
      await page.until(`document.querySelector('${LAST} .branches')?.innerText.includes("2 / 2")`, "the second branch");
      await page.until(IDLE, "the second answer", 120_000);
      await say(page, "Second words");
      equal(await count(page, ".message"), 4, "messages");
      // Back to the first answer: what follows belongs to the second.
      await page.click(".message.assistant [data-action=previous]");
      equal(await count(page, ".message"), 2, "messages of the first branch");
      await page.press("BracketRight", "]", { alt: true });
      equal(await count(page, ".message"), 4, "messages of the second branch");
      await page.hover(".message.user");
      await page.click(".message.user [data-action=edit]");
      await page.until("document.activeElement.classList.contains('editor')", "the editor");
      await page.evaluate("document.activeElement.select()");
      await page.type("Other words");
      await page.press("Enter", "Enter");
      await page.until(`document.querySelector(".message.user .branches")?.innerText.includes("2 / 2")`);
      await page.until(IDLE, "the answer of the edited message", 120_000);
      equal(await text(page, ".message.user .bubble"), "Other words", "the edited message");
      await page.click(".message.user [data-action=previous]");
      equal(await count(page, ".message"), 4, "the first branch, as deep as it was");
      await names(page);
    },
  },
  {
    name: "an answer can be edited without a new request; Escape leaves the editor",
    async run({ page, state }) {
      const before = state?.seen.length;
      await page.hover(LAST);
      await page.click(`${LAST} [data-action=edit]`);
      await page.until("document.activeElement.classList.contains('editor')");
      await page.press("Escape", "Escape");
      equal(await count(page, ".editor"), 0, "editors");
      await page.click(`${LAST} [data-action=edit]`);
      await page.evaluate("document.activeElement.select()");
      await page.type("Improved *by hand*.");
      await page.click(`${LAST} .edit-form [type=submit]`);
      equal(await text(page, `${LAST} .content`), "Improved by hand.", "the edited answer");
      equal(state?.seen.length, before, "requests");
    },
  },
  {
    name: "deleting a message can be undone",
    async run({ page }) {
      const before = await count(page, ".message");
      await page.hover(".message.user");
      await page.click(".message.user [data-action=remove]");
      await page.until(`document.querySelectorAll(".message").length < ${before}`);
      await page.click(".notice button");
      await page.until(`document.querySelectorAll(".message").length === ${before}`, "the messages to come back");
    },
  },
  {
    name: "settings reach the request",
    scripted: true,
    async run({ page, state, picture }) {
      await page.press("KeyS", "s", { alt: true });
      equal(await page.evaluate(`document.querySelector("#set-top_k").placeholder`), "40", "the server's own top-k");
      await audit(page);
      await picture("settings");
      await page.press("Escape", "Escape");
      await newChat(page);
      await choose(page, { "#set-temperature": "0.33", "#set-top_k": "12", "#set-seed": "7", "#set-max_tokens": "99", "#set-stop": "END\nHALT", "#set-thinking": "off", "#set-system": "You are terse." });
      await say(page, "With settings");
      const body = state.seen.at(-1);
      equal([body.temperature, body.top_k, body.seed, body.max_tokens, body.stop], [0.33, 12, 7, 99, ["END", "HALT"]], "sampling");
      equal(body.chat_template_kwargs, { enable_thinking: false }, "thinking");
      equal(body.messages[0], { role: "system", content: "You are terse." }, "system prompt");
      equal([body.stream, body.stream_options, body.timings_per_token], [true, { include_usage: true }, true], "stream");
      equal("top_p" in body, false, "a field that was left empty");
      ensure(await page.evaluate("!document.querySelector('#system-note').hidden"), "the system prompt is not shown");
      await page.press("KeyS", "s", { alt: true });
      await page.set("#set-temperature", "9");
      equal(await page.evaluate(`document.querySelector("#set-temperature").getAttribute("aria-invalid")`), "true", "a temperature of 9");
      await page.click("#sampling-reset");
      await page.press("Escape", "Escape");
      await choose(page, { "#set-thinking": "model" });
      await say(page, "Without");
      equal("temperature" in state.seen.at(-1), false, "temperature after a reset");
    },
  },
  {
    name: "the server takes every field that the settings have",
    async run({ page }) {
      await newChat(page);
      const numbers = { temperature: 0.7, top_p: 0.9, top_k: 20, min_p: 0.02, repeat_penalty: 1.05, presence_penalty: 0.1, frequency_penalty: 0.1, max_tokens: 8, seed: 4294967295 };
      const fields = Object.fromEntries(Object.entries(numbers).map(([name, value]) => [`#set-${name}`, String(value)]));
      await choose(page, { ...fields, "#set-stop": "NEVER SAID", "#set-thinking": "off", "#set-system": "Answer briefly." });
      await say(page, "What does coal mean?");
      equal(await text(page, ".error-message"), null, "the server's answer");
      ensure(/cut at the token limit|\d tokens/.test(await text(page, `${LAST} .stats`)), "no answer");
      await page.press("KeyS", "s", { alt: true });
      await page.click("#sampling-reset");
      await page.press("Escape", "Escape");
      await choose(page, { "#set-thinking": "model" });
    },
  },
  {
    name: "token alternatives appear on hover and by arrow keys",
    async run({ page, state, picture }) {
      await newChat(page);
      await choose(page, { "#set-alternatives": true });
      await say(page, state ? "How does a language model write?" : "What does spark mean?");
      if (state) equal([state.seen.at(-1).logprobs, state.seen.at(-1).top_logprobs], [true, 5], "logprobs");
      await page.click(`${LAST} [data-action=tokens]`);
      await page.until("document.querySelectorAll('.tokens .token').length > 1", "tokens");
      if (state) {
        // Signs stand for line ends; apart from those the tokens are the answer, with nothing in between.
        const whole = await page.evaluate("document.querySelector('.tokens').textContent");
        ensure(whole.startsWith("A language model writes **one token at a time**. At each step it reads"), `the tokens are not the answer: ${whole.slice(0, 80)}`);
      }
      await page.hover(".tokens .token:nth-of-type(2)");
      await page.until("document.querySelector('.tokens .token:nth-of-type(2)').classList.contains('chosen')", "the pointed token");
      ensure((await count(page, ".alternative")) >= 2, "there are no alternatives");
      equal(await count(page, ".alternative.taken"), 1, "taken alternatives");
      await page.evaluate("document.querySelector('.tokens .token.chosen').focus()");
      await page.press("ArrowRight", "ArrowRight");
      equal(await page.evaluate("document.activeElement.dataset.index"), "2", "the token that is reached by an arrow");
      equal(await count(page, ".tokens .token[tabindex='0']"), 1, "tokens in the tab order");
      await page.evaluate("document.querySelectorAll('.tokens .token')[Math.min(6, document.querySelectorAll('.tokens .token').length - 1)].focus()");
      await page.evaluate("document.querySelector('.token-panel').scrollIntoView({ block: 'center' })");
      await audit(page);
      await picture("tokens");
      await page.click(`${LAST} [data-action=tokens]`);
      await choose(page, { "#set-alternatives": false });
    },
  },
  {
    name: "JSON answers are set out and coloured; a bad schema is told",
    scripted: true,
    async run({ page, state }) {
      await newChat(page);
      await choose(page, { "#set-format": "json_schema", "#set-schema": '{"type": ' });
      await page.click("#prompt");
      await page.type("As JSON");
      await page.press("Enter", "Enter");
      await page.until("[...document.querySelectorAll('.notice')].some((e) => e.innerText.includes('not JSON'))", "a notice about the schema");
      equal(await count(page, ".message"), 0, "messages sent with a bad schema");
      await choose(page, { "#set-schema": '{"type": "object"}' });
      await page.evaluate("document.querySelector('#prompt').value = ''");
      await say(page, "As JSON");
      equal(state.seen.at(-1).response_format, { type: "json_schema", json_schema: { name: "answer", schema: { type: "object" } } }, "response_format");
      equal(await count(page, `${LAST} .hl-key`), 4, "keys");
      ensure((await text(page, `${LAST} code`)).includes('\n  "degrees": [\n'), "the JSON is not set out");
      await say(page, "Only half of it");
      equal(await text(page, `${LAST} .content code`), '{"path": "C:\\\\new", "list": [1, ', "JSON that was cut, as code");
      await choose(page, { "#set-format": "text", "#set-schema": "" });
    },
  },
  {
    name: "a tool call is shown, its result goes back, the chat goes on",
    scripted: true,
    async run({ page, state, picture }) {
      await newChat(page);
      await choose(page, { "#set-tools": '[{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]' });
      await say(page, "What is the weather like?");
      equal(state.seen.at(-1).tool_choice, "auto", "tool_choice");
      equal(await text(page, ".call .call-name"), "get_weather", "the call's name");
      ensure((await text(page, ".call code")).includes('"city": "Lisboa"'), "the arguments are not set out");
      await names(page);
      await page.click(".results textarea");
      await page.type('{"celsius": 21}');
      await page.click(".results [type=submit]");
      await page.until(`${IDLE} && document.querySelectorAll(".message.assistant").length === 2`, "the answer after the result");
      const sent = state.seen.at(-1).messages.slice(-2);
      equal(sent[0].tool_calls, [{ id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city": "Lisboa", "days": 3}' } }], "the call in the history");
      equal(sent[1], { role: "tool", tool_call_id: "call_1", content: '{"celsius": 21}' }, "the result");
      await audit(page);
      await picture("tools");
      await choose(page, { "#set-tools": "" });
    },
  },
  {
    name: "text files are attached, others refused with a reason",
    async run({ page, state, scratch }) {
      await newChat(page);
      const good = join(scratch, "notes.md");
      const bad = join(scratch, "picture.bin");
      writeFileSync(good, "# Notes\n```js\n1 < 2\n```\n");
      writeFileSync(bad, Buffer.from([0xff, 0xd8, 0x00, 0x01]));
      await page.chooseFiles("#file-picker", [good, bad]);
      await page.until("document.querySelectorAll('.chip').length === 1 && [...document.querySelectorAll('.notice')].some((e) => e.innerText.includes('not a text file'))", "one file and one refusal");
      await names(page);
      await say(page, "Look at this");
      equal(await count(page, ".chip"), 0, "files left in the field");
      equal(await count(page, ".message .file"), 1, "files of the message");
      if (state) equal(state.seen.at(-1).messages.at(-1).content, "File notes.md:\n````\n# Notes\n```js\n1 < 2\n```\n\n````\n\nLook at this", "the text that was sent");
    },
  },
  {
    name: "speech is dictated into the field, and sounds are attached as their text",
    scripted: true,
    async run({ page, state, scratch, picture }) {
      await newChat(page);
      await page.set("#prompt", "Note:");
      await page.evaluate("document.querySelector('#prompt').setSelectionRange(5, 5)");
      await page.click("#dictate");
      await page.until("document.querySelector('#dictating-text').textContent === '0:01'", "a second of recording");
      await picture("dictation");
      await audit(page);
      await page.click("#dictate");
      await page.until("document.querySelector('#prompt').value === 'Note: Somebody speaks.'", "the dictated text");
      const { model, bytes, rate } = state.heard.at(-1);
      equal([model, rate], ["tinder", 16000], "the model and the rate of the recording");
      ensure(bytes > 16000 && bytes < 640000, `a recording of ${bytes} bytes`);
      ensure(await page.evaluate("document.querySelector('#dictating').hidden"), "the recording still shows");

      await page.click("#dictate");
      await page.until("!document.querySelector('#dictating').hidden", "a recording");
      await page.press("Escape", "Escape");
      await page.until("document.querySelector('#dictating').hidden", "the recording to be given up");

      const [good, bad] = [join(scratch, "talk.wav"), join(scratch, "empty.mp3")];
      const sound = Buffer.alloc(3244);
      sound.write("RIFF");
      sound.writeUInt32LE(3200, 40);
      writeFileSync(good, sound);
      writeFileSync(bad, "no sound");
      page.expected = ["400"];
      await page.chooseFiles("#file-picker", [good, bad]);
      await page.until("document.querySelector('.chip')?.innerText.includes('talk.wav.txt') && [...document.querySelectorAll('.notice')].some((e) => e.innerText.includes('empty.mp3 was not transcribed'))", "one transcript and one refusal");
      await say(page, "");
      equal(state.seen.at(-1).messages.at(-1).content, "File talk.wav.txt:\n```\nSomebody speaks.\n```\n\nNote: Somebody speaks.", "the text that was sent");
      equal(await page.evaluate("[...document.querySelectorAll('#model option')].map((one) => one.value)"), ["ember-1.7b", "coal-8b"], "the models that chat");
      await reload(page);
      await page.until("document.querySelector('.message .file')?.innerText.includes('talk.wav.txt')", "the sound's text after a reload");
      await page.until("document.querySelector('#model').value", "models");
    },
  },
  {
    name: "errors are told with a remedy, and trying again works",
    scripted: true,
    async run({ page, state }) {
      await newChat(page);
      page.expected = ["400", "429", "ERR_", "net::"];
      await say(page, "This is too long");
      ensure((await text(page, ".error-message")).includes("9000 tokens"), "the server's message is missing");
      ensure((await text(page, ".error-remedy")).includes("outgrown"), "the remedy is missing");
      await contrast(page);
      await newChat(page);
      state.busy = 1;
      await say(page, "Are you busy?");
      ensure((await text(page, ".error-remedy")).includes("wait 1 s"), "Retry-After is not told");
      await page.click(".error .quiet");
      await page.until(`${IDLE} && document.querySelector('${LAST} .content')?.innerText.startsWith("You said")`, "the second try");
      equal(await count(page, ".message.assistant"), 1, "answers after the second try");
      for (const [words, sentence] of [["Please break", "device was lost"], ["Be cut", "connection ended"]]) {
        await newChat(page);
        await say(page, words);
        ensure((await text(page, ".error-message")).includes(sentence), `after “${words}”: ${await text(page, ".error-message")}`);
        ensure((await text(page, `${LAST} .content`)).length > 5, "what had come was lost");
      }
    },
  },
  {
    name: "a chat that has outgrown its context goes on without its oldest messages",
    scripted: true,
    async run({ page, state, picture }) {
      await newChat(page);
      page.expected = ["400"];
      await say(page, "First question");
      await say(page, "Let it outgrow");
      await page.until("document.querySelector('.error .quiet')?.innerText === 'Go on without the oldest messages'", "the remedy");
      await page.click(".error .quiet");
      await page.until(`${IDLE} && document.querySelector('${LAST} .content')?.innerText.startsWith("You said: Let it outgrow")`, "the answer");
      equal(state.seen.at(-1).messages.map(({ content }) => content), ["Let it outgrow"], "the messages that were sent");
      equal(await count(page, ".forgotten"), 1, "the line between what is seen and what is not");
      await audit(page);
      await picture("forgotten");
      await reload(page);
      await page.until("document.querySelector('.forgotten')", "the line after a reload");
      await page.click(".forgotten button");
      await page.until("!document.querySelector('.forgotten')", "the line to go");
    },
  },
  {
    name: "presets keep a system prompt with its sampling",
    scripted: true,
    async run({ page, state }) {
      await newChat(page);
      await page.press("KeyS", "s", { alt: true });
      await page.set("#set-system", "You are a poet.");
      await page.set("#set-temperature", "1.2");
      await page.click("#preset-save");
      await page.until("document.querySelector('#naming').open", "the question for a name");
      await page.type("Poet");
      await page.press("Enter", "Enter");
      await page.until("document.querySelector('#preset').value === 'Poet'", "the preset");
      await page.click("#sampling-reset");
      await page.set("#set-system", "");
      await audit(page);
      await page.press("Escape", "Escape");
      await newChat(page);
      await choose(page, { "#preset": "Poet" });
      await say(page, "A line");
      const body = state.seen.at(-1);
      equal([body.temperature, body.messages[0]], [1.2, { role: "system", content: "You are a poet." }], "what the preset sent");
      await page.press("KeyS", "s", { alt: true });
      await page.set("#preset", "Poet");
      await page.click("#preset-remove");
      equal(await count(page, "#preset option"), 1, "presets after the deletion");
      await page.click("#sampling-reset");
      await page.press("Escape", "Escape");
    },
  },
  {
    name: "chats and answers are copied as Markdown, and a terminal's chats are read",
    scripted: true,
    async run({ page, scratch }) {
      await newChat(page);
      const file = join(scratch, "saved.json");
      writeFileSync(file, JSON.stringify([{ role: "system", content: "Be brief." }, { role: "user", content: "From a terminal" }, { role: "assistant", content: "Yes, *indeed*." }]));
      await page.chooseFiles("#import-picker", [file]);
      await page.until("document.querySelector('.chat-title')?.textContent === 'From a terminal'", "the chat of the terminal");
      await page.click(".chat .chat-open");
      await page.evaluate(`navigator.clipboard.writeText = async (text) => { globalThis.copied = text; }`);
      await page.hover(".chat.current");
      await page.click(".chat.current .chat-actions button:nth-child(2)");
      equal(await page.until("globalThis.copied"), "# From a terminal\n\n## System prompt\n\nBe brief.\n\n## You\n\nFrom a terminal\n\n## Answer\n\nYes, *indeed*.\n", "the chat as Markdown");
      await page.press("KeyC", "c", { alt: true });
      await page.until("globalThis.copied === 'Yes, *indeed*.'", "the answer as Markdown");
    },
  },
  {
    name: "a server that is away is told, and found again",
    scripted: true,
    async run({ page, state, url }) {
      page.expected = ["ERR_", "net::", "Failed to load"];
      state.down = true;
      await page.goto(url);
      await page.until("document.querySelector('#banner:not([hidden])')?.innerText.includes('cannot be reached')", "the banner");
      await names(page);
      state.down = false;
      await page.click("#banner .quiet");
      await page.until("document.querySelector('#banner').hidden && document.querySelector('#model').value", "models");
    },
  },
  {
    name: "an API key is asked for, kept and sent",
    scripted: true,
    async run({ page, state, url }) {
      page.expected = ["401"];
      state.key = "secret-7";
      await page.goto(url);
      await page.until("document.querySelector('#banner:not([hidden])')?.innerText.includes('API key')", "the banner");
      await page.click("#banner .quiet");
      equal(await focused(page), "set-key", "focus");
      await page.type("secret-7");
      await page.until("document.querySelector('#banner').hidden", "the key to work");
      await page.press("Escape", "Escape");
      await page.goto(url);
      await page.until("document.querySelector('#model').value", "models with the kept key");
      state.key = "";
      await choose(page, { "#set-key": "" });
    },
  },
  {
    name: "the model can be switched, and an unloaded one says so",
    scripted: true,
    async run({ page, state, url }) {
      await page.set("#model", "coal-8b");
      ensure((await text(page, "#model")).includes("coal-8b (unloaded)"), "the state of the model is not shown");
      await say(page, "Who are you?");
      equal(state.seen.at(-1).model, "coal-8b", "model");
      await page.until("document.querySelector('#model').selectedOptions[0].text === 'coal-8b'", "the model to be shown as loaded");
      await page.goto(url);
      await page.until("document.querySelector('#model').value === 'coal-8b'", "the kept choice");
      await page.set("#model", "ember-1.7b");
    },
  },
  {
    name: "chats survive a reload",
    async run({ page, url }) {
      const before = await count(page, ".chat");
      ensure(before >= 3, `only ${before} chats`);
      await page.goto(url);
      await page.until(`document.querySelectorAll(".chat").length === ${before}`, "the chats");
      await page.click(".chat:nth-of-type(3) .chat-open");
      await page.until("document.querySelectorAll('.message').length > 1", "messages");
    },
  },
  {
    name: "search finds words in messages and shows where",
    async run({ page }) {
      await page.press("KeyK", "k", { ctrl: true });
      equal(await focused(page), "search", "focus");
      await page.type("OTHER wörds");
      await page.until("document.querySelectorAll('.chat').length === 1", "one chat");
      ensure((await text(page, ".chat-snippet mark")).toLowerCase() === "other", "the place is not marked");
      ensure((await text(page, "#search-count")) === "1 chat found", "the count is not told");
      await page.press("ArrowDown", "ArrowDown");
      await page.press("Enter", "Enter");
      await page.until("[...document.querySelectorAll('.bubble')].some((e) => e.innerText === 'Other words')", "the branch with the words");
      await page.press("KeyK", "k", { ctrl: true });
      await page.press("Escape", "Escape");
      await page.until("document.querySelectorAll('.chat').length > 1", "all chats");
    },
  },
  {
    name: "a chat can be renamed, deleted and brought back",
    async run({ page }) {
      const before = await count(page, ".chat");
      await page.hover(".chat.current");
      await page.click(".chat.current .chat-actions button:nth-child(1)");
      await page.until("document.querySelector('#naming').open");
      await names(page);
      await page.evaluate("document.querySelector('#naming-field').select()");
      await page.type("A better title");
      await page.press("Enter", "Enter");
      await page.until("document.querySelector('#title').innerText === 'A better title'");
      await page.hover(".chat.current");
      await page.click(".chat.current .chat-actions button:nth-child(4)");
      await page.until(`document.querySelectorAll(".chat").length === ${before - 1}`);
      await page.until("document.querySelector('.notice button')");
      await page.click(".notice:last-child button");
      await page.until(`document.querySelectorAll(".chat").length === ${before} && document.querySelector('#title').innerText === 'A better title'`, "the chat to come back");
    },
  },
  {
    name: "export and import bring all chats back; a broken file is refused with its place",
    async run({ page, scratch }) {
      await page.evaluate(`URL.createObjectURL = ((make) => (blob) => { blob.text().then((text) => (globalThis.exportedText = text)); return make.call(URL, blob); })(URL.createObjectURL)`);
      await page.send("Page.setDownloadBehavior", { behavior: "deny" });
      const before = await count(page, ".chat");
      await page.click("#export");
      const file = JSON.parse(await page.until("globalThis.exportedText", "the export"));
      equal([file.format, file.version, file.chats.length], ["brasa-chats", 1, before], "the file");
      const good = join(scratch, "chats.json");
      writeFileSync(good, JSON.stringify(file));
      await page.click("#settings-open");
      await page.click("#clear");
      await page.until("document.querySelector('#clear-all').open");
      await page.click("#clear-all [value=clear]");
      await page.until("document.querySelectorAll('.chat').length === 0", "no chats");
      await page.chooseFiles("#import-picker", [good]);
      await page.until(`document.querySelectorAll(".chat").length === ${before}`, "the imported chats");
      const broken = structuredClone(file);
      broken.chats[0].nodes.at(-1).parent = "nobody";
      const bad = join(scratch, "broken.json");
      writeFileSync(bad, JSON.stringify(broken));
      await page.chooseFiles("#import-picker", [bad]);
      await page.until("document.querySelector('#banner:not([hidden])')?.innerText.includes('its parent nobody does not stand before it')", "the refusal");
      equal(await count(page, ".chat"), before, "chats after the refusal");
      await page.click("#banner .icon-button");
    },
  },
  {
    name: "a full storage is told, and the chat goes on",
    async run({ page }) {
      await newChat(page);
      await page.evaluate(`globalThis.put = IDBObjectStore.prototype.put; IDBObjectStore.prototype.put = () => { throw new DOMException("full", "QuotaExceededError"); }; 0`);
      await say(page, "Is there room?");
      await page.until("document.querySelector('#banner:not([hidden])')?.innerText.includes('storage for this page is full')", "the banner");
      equal(await count(page, ".message"), 2, "messages");
      await contrast(page);
      await page.evaluate(`IDBObjectStore.prototype.put = globalThis.put; 0`);
      await say(page, "And now?");
      await page.until("document.querySelector('#banner').hidden", "the banner to go");
    },
  },
  {
    name: "every shortcut is in the help, and the help opens and closes by keyboard",
    async run({ page }) {
      await page.press("Slash", "/", { ctrl: true });
      await page.until("document.querySelector('#help').open");
      ensure((await count(page, ".shortcut")) >= 16, "shortcuts are missing");
      await audit(page);
      await page.press("Escape", "Escape");
      await page.until("!document.querySelector('#help').open");
      await page.press("KeyB", "b", { alt: true });
      equal(await page.evaluate("document.querySelector('#sidebar').inert"), true, "the side is closed");
      await page.press("KeyB", "b", { alt: true });
      equal(await page.evaluate("document.querySelector('#sidebar').inert"), false, "the side is open");
    },
  },
  {
    name: "Tab reaches every part, and focus is visible",
    async run({ page }) {
      await page.evaluate("document.querySelector('#search').focus()");
      const wanted = ["import", "export", "help-open", "sidebar-toggle", "model", "settings-open", "attach", "prompt"];
      const seen = new Set();
      for (let index = 0; index < 400 && !wanted.every((id) => seen.has(id)); index += 1) {
        await page.press("Tab", "Tab");
        const [id, outlined] = await page.evaluate(`(() => { const e = document.activeElement; return [e.id || e.className || e.tagName, e.id === "prompt" || getComputedStyle(e).outlineStyle !== "none"]; })()`);
        seen.add(id);
        ensure(outlined || id === "BODY", `no focus ring on ${id}`);
      }
      for (const id of wanted) ensure(seen.has(id), `Tab does not reach #${id}`);
    },
  },
  {
    name: "dark by the system and by choice",
    async run({ page, url, picture, state }) {
      const paper = "getComputedStyle(document.body).backgroundColor";
      const light = await page.evaluate(paper);
      await page.prefer({ "prefers-color-scheme": "dark" });
      ensure((await page.evaluate(paper)) !== light, "the system's choice changes nothing");
      await choose(page, { "#set-theme": "light" });
      equal(await page.evaluate(paper), light, "light by choice");
      await choose(page, { "#set-theme": "dark" });
      await page.prefer({ "prefers-color-scheme": "light" });
      await page.goto(url);
      ensure((await page.evaluate(paper)) !== light, "the choice was not kept");
      await audit(page);
      if (state) {
        await newChat(page);
        await say(page, "Please think: six times seven");
        await say(page, "How does a language model write?");
        await audit(page);
        await page.evaluate("document.activeElement.blur(); document.querySelector('#scroller').scrollTop = 0");
        await picture("dark");
        await page.evaluate(`document.querySelector('${LAST} [data-action=tokens]').click()`);
        await contrast(page);
      }
      await page.press("KeyS", "s", { alt: true });
      await audit(page);
      await picture("dark-settings");
      await page.press("Escape", "Escape");
      await choose(page, { "#set-theme": "system" });
    },
  },
  {
    name: "a phone: a drawer for chats, nothing sticks out, fingers find every button",
    async run({ page, url, picture }) {
      await page.size(360, 740, true);
      await page.goto(url);
      equal(await page.evaluate("document.querySelector('#sidebar').inert"), true, "the drawer is closed");
      await audit(page);
      await picture("phone-welcome");
      await page.click("#sidebar-toggle");
      await page.until("document.body.classList.contains('drawer-open')");
      await new Promise((resolve) => setTimeout(resolve, 300));
      await audit(page);
      await picture("phone-chats");
      await page.click(".chat .chat-open");
      await page.until("!document.body.classList.contains('drawer-open') && document.querySelectorAll('.message').length > 1");
      await say(page, "How does a language model write?");
      await audit(page);
      await picture("phone");
      const small = await page.evaluate(`[...document.querySelectorAll("button")].filter((e) => e.checkVisibility({ visibilityProperty: true }) && !e.closest("[inert]")).map((e) => [e.id || e.getAttribute("aria-label") || e.innerText, e.getBoundingClientRect()]).filter(([, r]) => r.width < 24 || r.height < 24).map(([name]) => name)`);
      equal(small, [], "buttons below 24 pixels");
      await page.press("KeyS", "s", { alt: true });
      await audit(page);
      await picture("phone-settings");
      await page.press("Escape", "Escape");
      await page.size(320, 640, true);
      await noSidewaysScroll(page);
      await page.size(1280, 800);
    },
  },
  {
    name: "an answer that a closed page left unfinished is kept",
    scripted: true,
    async run({ page, url }) {
      await page.goto(url);
      await begin(page, "Go on forever, and be left");
      await page.until(`document.querySelector('${LAST} .content')?.innerText.length > 400`, "enough text to be kept", 30_000);
      await new Promise((resolve) => setTimeout(resolve, 1600));
      await page.goto(url);
      await page.click(".chat .chat-open");
      await page.until(`document.querySelector('${LAST} .content')?.innerText.startsWith("on and on")`, "the kept part");
      equal(await page.evaluate(`document.querySelector('${LAST}').getAttribute("aria-busy")`), "false", "aria-busy");
    },
  },
  {
    name: "two tabs show the same chats",
    async run({ page, url, newPage }) {
      await page.goto(url);
      const other = await newPage();
      await other.size(1280, 800);
      await other.goto(url);
      await newChat(page);
      await say(page, "Seen in both tabs?");
      await other.until("document.querySelector('.chat-title')?.textContent === 'Seen in both tabs?'", "the chat in the other tab");
      await other.click(".chat .chat-open");
      await other.until("document.querySelectorAll('.message').length === 2");
      await page.press("KeyR", "r", { alt: true });
      await other.until(`document.querySelector('${LAST} .branches')?.innerText.includes("2 / 2")`, "the second branch in the other tab", 60_000);
      page.problems.push(...other.problems);
      await other.close();
    },
  },
  {
    name: "who wants less motion gets none",
    async run({ page }) {
      const probe = `(() => { const e = document.createElement("span"); e.className = "pulse"; document.body.append(e); const { animationDuration: d } = getComputedStyle(e); e.remove(); return parseFloat(d); })()`;
      ensure((await page.evaluate(probe)) > 1, "the pulse does not move at all");
      await page.prefer({ "prefers-reduced-motion": "reduce" });
      ensure((await page.evaluate(probe)) < 0.01, "the pulse still moves");
      await page.prefer({});
    },
  },
  {
    name: "the licences of vendored files lie beside them, and no file asks for another host",
    async run({ page, folder }) {
      ensure((await page.evaluate("[...document.querySelectorAll('script:not([src]), [style], style')].length")) === 0, "there is an inline script or style");
      ensure(readFileSync(join(folder, "assets/markdown-it.LICENSE"), "utf8").includes("Vitaly Puzrin, Alex Kocharin"), "the licence of markdown-it is missing");
      ensure(readFileSync(join(folder, "assets/temml.LICENSE"), "utf8").includes("Ron Kok"), "the licence of Temml is missing");
    },
  },
];
