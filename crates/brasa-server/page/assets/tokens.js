// The answer as tokens: each coloured by its probability, with the model's alternatives on hover and on focus.
// One token at a time is in the tab order; arrow keys move on, as in a toolbar.

import { fill, h } from "./dom.js";

/** Longer answers show their first tokens only: each token is an element. */
const MOST = 4000;

/** The element that shows tokens, and the alternatives of the one that is pointed at. */
export function tokenView(tokens) {
  const shown = tokens.slice(0, MOST);
  const table = h("div", { class: "alternatives", role: "status", "aria-live": "polite" });
  const list = h("div", { class: "tokens", role: "group", "aria-label": "Tokens of the answer; arrow keys walk along them" });
  shown.forEach(([text, logprob], index) => {
    const attributes = { class: `token level-${level(logprob)}`, role: "button", tabindex: index === 0 ? "0" : "-1", "data-index": index, "aria-label": spoken(text, logprob) };
    list.append(h("span", attributes, visible(text).replaceAll("⏎", "⏎\n")));
  });

  let chosen = null;
  const choose = (element) => {
    if (!element || element === chosen) return;
    chosen?.classList.remove("chosen");
    chosen?.setAttribute("tabindex", "-1");
    chosen = element;
    chosen.classList.add("chosen");
    chosen.setAttribute("tabindex", "0");
    fill(table, alternatives(shown[Number(chosen.dataset.index)]));
  };
  list.addEventListener("pointerover", (event) => choose(event.target.closest(".token")));
  list.addEventListener("focusin", (event) => choose(event.target.closest(".token")));
  list.addEventListener("keydown", (event) => {
    const next = neighbour(list, chosen, event.key);
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  choose(list.querySelector(".token"));

  const note = tokens.length > MOST ? h("p", { class: "note" }, `The first ${MOST} of ${tokens.length} tokens are shown.`) : null;
  return h("section", { class: "token-panel", "aria-label": "Token alternatives" }, legend(), list, note, table);
}

function neighbour(list, chosen, key) {
  const all = [...list.querySelectorAll(".token")];
  const at = all.indexOf(chosen);
  const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[key];
  return next === undefined ? null : all[Math.min(all.length - 1, Math.max(0, next))];
}

/** The token's probability and its rivals as bars; a token outside the list of the likeliest has a row of its own. */
function alternatives([text, logprob, others]) {
  const rows = others.some(([other]) => other === text) ? others : [[text, logprob], ...others];
  const sorted = [...rows].sort((a, b) => b[1] - a[1]);
  return [
    h("div", { class: "alternatives-title" }, "Here the model expected"),
    sorted.map(([other, value]) =>
      h(
        "div",
        { class: other === text ? "alternative taken" : "alternative" },
        h("code", {}, visible(other)),
        h("meter", { min: "0", max: "1", value: String(Math.exp(value)), "aria-label": `Probability of ${visible(other)}` }),
        h("span", { class: "percent" }, percent(value)),
        h("span", { class: "took" }, other === text ? "taken" : ""),
      ),
    ),
  ];
}

function legend() {
  const names = ["sure", "likely", "open", "unlikely", "surprising"];
  return h("p", { class: "token-legend" }, "Probability: ", names.map((name, index) => h("span", { class: `token level-${index}` }, name)));
}

/** 0 for what the model was sure of, 4 for a surprise. */
function level(logprob) {
  const bounds = [0.9, 0.6, 0.3, 0.1];
  const at = bounds.findIndex((bound) => Math.exp(logprob) >= bound);
  return at < 0 ? 4 : at;
}

function percent(logprob) {
  const share = Math.exp(logprob) * 100;
  if (!Number.isFinite(share)) return "0 %";
  return share >= 99.95 ? "100 %" : share >= 0.1 ? `${share.toFixed(1)} %` : "< 0.1 %";
}

/** Spaces stay as they are, line ends and tabs get a sign, an empty token a name. */
function visible(text) {
  if (text === "") return "∅";
  return text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ +$/, (spaces) => "␣".repeat(spaces.length));
}

function spoken(text, logprob) {
  return `${visible(text).trim()}, ${percent(logprob)}`;
}
