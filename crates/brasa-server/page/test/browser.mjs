// A headless Chromium, driven over a pipe by the DevTools protocol. No package is needed.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Longest wait for the answer to a command, in milliseconds. */
const SLOWEST = 20_000;

/** Starts the browser; `close` ends it and removes its profile. */
export async function launch(program) {
  const profile = mkdtempSync(join(tmpdir(), "brasa-page-"));
  const child = spawn(
    program,
    ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--disable-background-networking",
      "--hide-scrollbars", "--force-color-profile=srgb", "--lang=en-GB",
      // A microphone that beeps, and whose use nobody is asked for.
      "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", "--autoplay-policy=no-user-gesture-required",
      // A mouse, as on a desk: without one headless Chromium says that nothing can hover.
      "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4", `--user-data-dir=${profile}`, "--remote-debugging-pipe", "about:blank"],
    { stdio: ["ignore", "ignore", "pipe", "pipe", "pipe"] },
  );
  let said = "";
  child.stderr.on("data", (text) => (said = (said + text).slice(-4000)));
  const connection = new Connection(child.stdio[3], child.stdio[4]);
  child.on("exit", (code) => connection.fail(new Error(`the browser ended (${code}): ${said}`)));
  const close = async () => {
    const ended = new Promise((resolve) => child.once("exit", resolve));
    connection.closing = true;
    connection.send("Browser.close").catch(() => {});
    const late = setTimeout(() => child.kill("SIGKILL"), 5000);
    await ended;
    clearTimeout(late);
    // Processes of the browser may write for a moment after their parent has gone.
    for (let tries = 0; tries < 20; tries += 1) {
      try {
        return rmSync(profile, { recursive: true, force: true });
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
    return console.error(`could not remove ${profile}`);
  };
  return { newPage: () => Page.open(connection), close };
}

/** Commands and events as JSON, each ended by a zero byte. */
class Connection {
  #next = 1;
  #waiting = new Map();
  #listeners = new Map();
  #rest = "";
  closing = false;

  constructor(input, output) {
    this.input = input;
    output.setEncoding("utf8");
    output.on("data", (text) => this.#take(text));
  }

  send(method, params = {}, sessionId = undefined) {
    const id = this.#next++;
    this.input.write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => {
      // A command to a page in the background may never be answered.
      const late = setTimeout(() => this.#waiting.delete(id) && reject(new Error(`${method} was not answered`)), SLOWEST);
      const settle = (act) => (value) => {
        clearTimeout(late);
        act(value);
      };
      this.#waiting.set(id, { resolve: settle(resolve), reject: settle(reject), method });
    });
  }

  on(sessionId, listener) {
    this.#listeners.set(sessionId, listener);
  }

  fail(error) {
    if (this.closing) return;
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }

  #take(text) {
    const parts = (this.#rest + text).split("\0");
    this.#rest = parts.pop();
    for (const part of parts) {
      const { id, result, error, method, params, sessionId } = JSON.parse(part);
      if (id === undefined) this.#listeners.get(sessionId)?.(method, params);
      else {
        const waiting = this.#waiting.get(id);
        this.#waiting.delete(id);
        if (error) waiting?.reject(new Error(`${waiting.method}: ${error.message}`));
        else waiting?.resolve(result);
      }
    }
  }
}

/** One page. `problems` collects console errors, exceptions, CSP violations and failed loads. */
export class Page {
  problems = [];
  /** Console messages that a step expects, as substrings. */
  expected = [];

  static async open(connection) {
    const { targetId } = await connection.send("Target.createTarget", { url: "about:blank", newWindow: true });
    const { sessionId } = await connection.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(connection, sessionId, targetId);
    for (const domain of ["Page", "Runtime", "Log", "Network", "Accessibility"]) await page.send(`${domain}.enable`);
    await page.send("Network.setCacheDisabled", { cacheDisabled: true });
    await page.send("Emulation.setFocusEmulationEnabled", { enabled: true });
    return page;
  }

  constructor(connection, sessionId, targetId) {
    this.connection = connection;
    this.sessionId = sessionId;
    this.targetId = targetId;
    this.requests = [];
    connection.on(sessionId, (method, params) => this.#event(method, params));
  }

  send(method, params) {
    return this.connection.send(method, params, this.sessionId);
  }

  #event(method, params) {
    if (method === "Runtime.exceptionThrown") this.#problem(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === "Runtime.consoleAPICalled" && ["error", "warning", "assert"].includes(params.type)) {
      this.#problem(params.args.map((argument) => argument.value ?? argument.description).join(" "));
    }
    if (method === "Log.entryAdded" && ["error", "warning"].includes(params.entry.level)) this.#problem(`${params.entry.text} ${params.entry.url ?? ""}`);
    if (method === "Network.requestWillBeSent") this.requests.push(params.request.url);
    if (method === "Page.javascriptDialogOpening") this.#problem(`a dialog of the browser: ${params.message}`);
  }

  #problem(text) {
    if (!this.expected.some((part) => text.includes(part))) this.problems.push(text);
  }

  async goto(url) {
    await this.send("Page.navigate", { url });
    await this.until("document.body?.dataset.ready === 'yes'", "the page to be ready");
  }

  /** Closes this page; others go on. */
  async close() {
    await this.connection.send("Target.closeTarget", { targetId: this.targetId });
  }

  /** The value of an expression in the page, which may be a promise. */
  async evaluate(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true, userGesture: true });
    if (exceptionDetails) throw new Error(`${exceptionDetails.exception?.description ?? exceptionDetails.text}\nin: ${expression}`);
    return result.value;
  }

  /** Waits until an expression is true. */
  async until(expression, what = expression, milliseconds = 15_000) {
    const end = Date.now() + milliseconds;
    for (;;) {
      // While a page loads there may be no context to ask.
      const value = await this.evaluate(expression).catch(() => undefined);
      if (value) return value;
      if (Date.now() > end) throw new Error(`waited ${milliseconds / 1000} s in vain for ${what}`);
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
  }

  /** Clicks where the element is, as a hand would: what is covered, hidden or disabled fails. */
  async click(selector) {
    const at = await this.until(`(() => { const e = document.querySelector(${JSON.stringify(selector)}); if (!e || e.disabled) return null;
      e.scrollIntoView({ block: "nearest" }); const r = e.getBoundingClientRect(); if (!r.width) return null;
      const x = r.x + r.width / 2, y = r.y + r.height / 2, top = document.elementFromPoint(x, y);
      return top && (e.contains(top) || top.contains(e)) ? { x, y } : null; })()`, `${selector} to be clickable`);
    for (const type of ["mouseMoved", "mousePressed", "mouseReleased"]) {
      await this.send("Input.dispatchMouseEvent", { type, ...at, button: type === "mouseMoved" ? "none" : "left", clickCount: type === "mouseMoved" ? 0 : 1 });
    }
  }

  /** Moves the pointer over an element. */
  async hover(selector) {
    const at = await this.until(`(() => { const e = document.querySelector(${JSON.stringify(selector)}); e?.scrollIntoView({ block: "nearest" }); const r = e?.getBoundingClientRect(); return r?.width ? { x: r.x + r.width / 2, y: r.y + r.height / 2 } : null; })()`, selector);
    await this.send("Input.dispatchMouseEvent", { type: "mouseMoved", ...at });
  }

  /** Types into the focused element. */
  async type(text) {
    await this.send("Input.insertText", { text });
  }

  /** Presses a key with modifiers, as `press("KeyK", "k", { ctrl: true })`. */
  async press(code, key, { alt = false, ctrl = false, shift = false } = {}) {
    const modifiers = (alt ? 1 : 0) + (ctrl ? 2 : 0) + (shift ? 8 : 0);
    const known = { Enter: 13, Escape: 27, Tab: 9, ArrowUp: 38, ArrowDown: 40, ArrowLeft: 37, ArrowRight: 39, End: 35, Home: 36, Slash: 191 };
    const windowsVirtualKeyCode = known[code] ?? key.toUpperCase().charCodeAt(0);
    const text = key === "Enter" ? "\r" : key.length === 1 && !alt && !ctrl ? key : undefined;
    await this.send("Input.dispatchKeyEvent", { type: text ? "keyDown" : "rawKeyDown", code, key, modifiers, windowsVirtualKeyCode, text });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", code, key, modifiers, windowsVirtualKeyCode });
  }

  /** Chooses an option of a `<select>`, or sets a field, as a user's input would. */
  async set(selector, value) {
    await this.evaluate(`(() => { const e = document.querySelector(${JSON.stringify(selector)}); e.focus(); e.value = ${JSON.stringify(value)};
      e.dispatchEvent(new Event("input", { bubbles: true })); e.dispatchEvent(new Event("change", { bubbles: true })); })()`);
  }

  /** Gives files to a file field. */
  async chooseFiles(selector, files) {
    const { root } = await this.send("DOM.getDocument");
    const { nodeId } = await this.send("DOM.querySelector", { nodeId: root.nodeId, selector });
    await this.send("DOM.setFileInputFiles", { nodeId, files });
  }

  /** Sets the size of the window, and whether fingers touch it. */
  async size(width, height, touch = false) {
    await this.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: touch });
    await this.send("Emulation.setTouchEmulationEnabled", { enabled: touch });
  }

  /** Tells the page what the system prefers, e.g. `{ "prefers-color-scheme": "dark" }`. */
  async prefer(features) {
    await this.send("Emulation.setEmulatedMedia", { features: Object.entries(features).map(([name, value]) => ({ name, value })) });
  }

  /** Writes a picture of the window. */
  async screenshot(file) {
    await this.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 350)))");
    const { data } = await this.send("Page.captureScreenshot", { format: "png", optimizeForSpeed: false });
    writeFileSync(file, Buffer.from(data, "base64"));
  }
}
