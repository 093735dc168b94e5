// Calls of tools: shown with their arguments, answered by the user, whose browser runs nothing by itself.

import { h, icon } from "./dom.js";
import { codeBlock } from "./markdown.js";

/** JSON indented by two; text that is not JSON (yet) stays as it is. */
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** True for a text that is one JSON object or array. */
export function isJson(text) {
  const trimmed = text.trim();
  if (!/^[[{][\s\S]*[\]}]$/.test(trimmed)) return false;
  try {
    JSON.parse(trimmed);
    return true;
  } catch {
    return false;
  }
}

/** One call as a card: the tool's name and its arguments. */
export function callCard(call) {
  return h(
    "section",
    { class: "call", "aria-label": `Call of ${call.name || "a tool"}` },
    h("div", { class: "call-head" }, icon("tool"), h("span", { class: "call-name" }, call.name || "…"), h("span", { class: "call-kind" }, "tool call")),
    codeBlock(pretty(call.arguments || "{}"), "json"),
  );
}

/** The result that a tool gave. */
export function resultCard(node) {
  return h(
    "details",
    { class: "call result" },
    h("summary", { class: "call-head" }, icon("chevron"), h("span", { class: "call-name" }, node.toolName || "tool"), h("span", { class: "call-kind" }, "result")),
    codeBlock(pretty(node.content), isJson(node.content) ? "json" : "text"),
  );
}

/**
 * A form with a field for the result of each call.
 *
 * @param {{id: string, name: string}[]} calls
 * @param {(results: string[]) => void} send
 */
export function resultForm(calls, send) {
  const fields = calls.map((call, index) =>
    h("textarea", { class: "field code-field", rows: "3", "aria-label": `Result of ${call.name}${calls.length > 1 ? `, call ${index + 1}` : ""}`, placeholder: `What does ${call.name} give back? Text or JSON.` }),
  );
  const submit = (event) => {
    event.preventDefault();
    send(fields.map((field) => field.value));
  };
  return h(
    "form",
    { class: "results", onsubmit: submit },
    h("p", { class: "note" }, calls.length > 1 ? "The model waits for the results of these calls. This page runs no tools: enter them here." : "The model waits for the result of this call. This page runs no tools: enter it here."),
    fields.map((field, index) => [calls.length > 1 ? h("label", { class: "field-label" }, calls[index].name) : null, field]),
    h("div", { class: "row end" }, h("button", { type: "submit", class: "primary" }, calls.length > 1 ? "Send results" : "Send result")),
  );
}
