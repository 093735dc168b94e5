// Walks through the whole page in a headless Chromium.
//
//   node walk.mjs                       against a scripted stand-in, with every feature
//   node walk.mjs --server URL          against a running server: the steps that need no script
//   node walk.mjs --pictures FOLDER     also writes pictures of the page there
//   node walk.mjs --browser PROGRAM     another Chromium than `chromium`
//
// Any console error or warning, exception, violation of the policy or request to another host fails the walk.

import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { launch } from "./browser.mjs";
import { steps } from "./steps.mjs";
import { standIn } from "./stand_in.mjs";
import { units } from "./units.mjs";

const folder = join(dirname(fileURLToPath(import.meta.url)), "..");
const options = readOptions(process.argv.slice(2));
const scratch = mkdtempSync(join(tmpdir(), "brasa-walk-"));
if (options.pictures) mkdirSync(options.pictures, { recursive: true });

await units();
const server = options.server ? null : await standIn(folder);
const browser = await launch(options.browser);
let failed = 0;
let skipped = 0;
try {
  const page = await browser.newPage();
  const url = options.server ?? server.url;
  const picture = async (name) => options.pictures && page.screenshot(join(options.pictures, `${name}.png`));
  const context = { page, url, state: server?.state, scratch, folder, picture, newPage: browser.newPage };
  for (const step of steps) {
    if (step.scripted && options.server) {
      skipped += 1;
      continue;
    }
    const started = Date.now();
    try {
      await step.run(context);
      const strangers = page.requests.filter((request) => !request.startsWith(url) && !/^(blob|data|about|chrome)/.test(request));
      if (strangers.length) throw new Error(`asked another host: ${strangers.join(", ")}`);
      if (page.problems.length) throw new Error(`the console says:\n    ${page.problems.join("\n    ")}`);
      console.log(`ok    ${step.name} (${Date.now() - started} ms)`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL  ${step.name}: ${error.message}`);
      await page.screenshot(join(tmpdir(), `brasa-page-failed-${failed}.png`)).catch(() => {});
    }
    page.problems = [];
    page.expected = [];
    page.requests = [];
  }
} finally {
  await browser.close();
  server?.close();
  rmSync(scratch, { recursive: true, force: true });
}
console.log(`${steps.length - failed - skipped} of ${steps.length} steps passed, ${skipped} need the scripted server`);
process.exit(failed ? 1 : 0);

function readOptions(words) {
  const found = { browser: "chromium", server: null, pictures: null };
  for (let index = 0; index < words.length; index += 2) {
    const name = words[index].replace(/^--/, "");
    if (!(name in found) || words[index + 1] === undefined) {
      console.error(`unknown option ${words[index]}; known: --server URL, --pictures FOLDER, --browser PROGRAM`);
      process.exit(2);
    }
    found[name] = words[index + 1];
  }
  if (found.server && !found.server.endsWith("/")) found.server += "/";
  return found;
}
