// What holds for every state of the page: names of controls, contrast of text, no sideways scrolling.

/** Fails unless every control that can be reached has a name, and no id occurs twice. */
export async function names(page) {
  const { nodes } = await page.send("Accessibility.getFullAXTree");
  const roles = new Set(["button", "textbox", "searchbox", "combobox", "checkbox", "switch", "spinbutton", "link", "dialog", "meter", "option", "listbox"]);
  const nameless = nodes.filter((node) => !node.ignored && roles.has(node.role?.value) && !node.name?.value?.trim());
  if (nameless.length) {
    const places = [];
    for (const node of nameless.slice(0, 5)) {
      const { object } = await page.send("DOM.resolveNode", { backendNodeId: node.backendDOMNodeId });
      const { result } = await page.send("Runtime.callFunctionOn", { objectId: object.objectId, functionDeclaration: "function () { return this.outerHTML?.slice(0, 120); }", returnByValue: true });
      places.push(`${node.role.value} ${result.value}`);
    }
    throw new Error(`controls without a name: ${places.join("; ")}`);
  }
  const twice = await page.evaluate(`(() => { const ids = [...document.querySelectorAll("[id]")].map((e) => e.id); return ids.filter((id, at) => ids.indexOf(id) !== at); })()`);
  if (twice.length) throw new Error(`ids that occur twice: ${twice.join(", ")}`);
}

/** Fails if a visible text has less contrast than 4.5 to 1 (WCAG AA), disabled controls apart. */
export async function contrast(page) {
  const weak = await page.evaluate(`(${measure})()`);
  if (weak.length) throw new Error(`too little contrast: ${weak.slice(0, 6).join("; ")}`);
}

/** Fails if the page can be scrolled sideways, or something sticks out of the window. */
export async function noSidewaysScroll(page) {
  const wide = await page.evaluate(`(() => {
    const found = [];
    if (document.documentElement.scrollWidth > innerWidth) found.push("the page: " + document.documentElement.scrollWidth);
    for (const e of document.querySelectorAll("#scroller, .drawer-inner, dialog[open]")) if (e.scrollWidth > e.clientWidth + 1) found.push(e.id || e.className);
    for (const e of document.querySelectorAll("button, input, textarea, select")) {
      const r = e.getBoundingClientRect();
      if (r.width > 1 && r.height > 1 && e.checkVisibility({ visibilityProperty: true }) && !e.closest("[inert], pre, .table") && (r.right > innerWidth + 1 || r.left < -1)) found.push(e.id || e.className || e.textContent);
    }
    return found; })()`);
  if (wide.length) throw new Error(`wider than the window: ${wide.join(", ")}`);
}

/** Runs in the page: texts whose colour is too near to what lies behind them. */
function measure() {
  const channel = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parse = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return { r, g, b, a: a / 255 };
  };
  const over = (top, under) => ({ r: top.r * top.a + under.r * (1 - top.a), g: top.g * top.a + under.g * (1 - top.a), b: top.b * top.a + under.b * (1 - top.a), a: 1 });
  const light = ({ r, g, b }) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.a > 0) layers.push(colour);
      if (colour.a === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), { r: 255, g: 255, b: 255, a: 1 });
  };
  const weak = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || element.closest("option, noscript, .visually-hidden, .skip, :disabled, [inert], .thinking.live summary")) continue;
    if (!element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const ground = behind(element);
    const text = over(parse(getComputedStyle(element).color), ground);
    const [low, high] = [light(text), light(ground)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) weak.push(`“${node.textContent.trim().slice(0, 30)}” ${ratio.toFixed(2)} (${element.className})`);
  }
  return weak;
}
