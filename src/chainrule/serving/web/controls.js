// Labelled controls, tokens and bars that the views share.

import { fill, h } from "./dom.js";
import { number, percent, t } from "./i18n.js";

let counter = 0;
const nextId = () => `control-${++counter}`;

export function field(label, control, hint) {
  control.id ||= nextId();
  const described = hint ? `${control.id}-hint` : null;
  if (described) control.setAttribute("aria-describedby", described);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, hint && h("small", { id: described }, hint));
}

export function select(options, value, onchange) {
  const control = h("select", { onchange: () => onchange(control.value) },
    options.map(([key, text]) => h("option", { value: key, ...(key === value ? { selected: true } : {}) }, text)));
  return control;
}

/** A choice among the runs that a view can show. */
export function modelSelect(models, value, onchange) {
  return select(models.map((one) => [one.name, `${one.name} · ${one.family}`]), value, onchange);
}

/** A slider with its value beside it; `shown` formats the value. */
export function slider(label, { min, max, step, value, shown = (one) => number(one), oninput, name }) {
  const output = h("output", {}, shown(value));
  const control = h("input", { type: "range", id: nextId(), min, max, step, value: String(value), "data-name": name,
    "aria-valuetext": shown(value),
    oninput: () => {
      const now = Number(control.value);
      output.textContent = shown(now);
      control.setAttribute("aria-valuetext", shown(now));
      oninput(now);
    } });
  const root = h("div", { class: "field slider" }, h("label", { for: control.id }, label), output, control);
  root.set = (now) => {
    control.value = String(now);
    output.textContent = shown(Number(control.value));
    control.setAttribute("aria-valuetext", shown(Number(control.value)));
  };
  root.limit = (most) => { control.max = String(most); };
  return root;
}

export function textarea(value, oninput, properties = {}) {
  const control = h("textarea", { rows: 4, maxlength: 4000, spellcheck: "false", oninput: () => oninput(control.value), ...properties });
  control.value = value;
  return control;
}

export function button(label, onclick, properties = {}) {
  return h("button", { type: "button", onclick, ...properties }, label);
}

/** A place for what happens: loading, an error, or nothing yet. */
export function statusLine() {
  const root = h("p", { class: "status", role: "status" });
  return {
    root,
    loading: () => { root.className = "status loading"; root.textContent = t("loading"); },
    error: (error) => { root.className = "status error"; root.textContent = `${t("error")}: ${error.message}`; },
    say: (text = "") => { root.className = "status"; root.textContent = text; },
  };
}

/** A token as it is shown: white space and special tokens are made visible. */
export function visible(token) {
  if (token.special === "bos") return t("bos");
  if (token.special === "eos") return t("eos");
  if (token.special === "unknown" && !/[^\ufffd]/.test(token.text)) return t("unknown");
  if (token.special === "bytes") return token.text || "·";
  if (token.text === "") return "·";
  return token.text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "␣").replace(/^ +$/, (all) => "␣".repeat(all.length));
}

export function quoted(token) {
  return ["bos", "eos"].includes(token.special) ? visible(token) : `“${visible(token)}”`;
}

/** Bars of probabilities: [{ text, value }], as a list. The longest is as wide as there is room, or `most` is. */
export function bars(rows, { label, empty, most = Math.max(...rows.map((one) => one.value), 1e-9), kind = "" }) {
  if (!rows.length) return h("p", { class: "hint" }, empty ?? "");
  return h("ul", { class: `bars ${kind}`, "aria-label": label },
    rows.map((one) => h("li", { class: one.chosen ? "chosen" : null },
      h("span", { class: "bar-text" }, one.text),
      h("span", { class: "bar", "aria-hidden": "true" }, h("i", { style: { width: `${(100 * one.value) / most}%` } })),
      h("span", { class: "bar-value" }, percent(one.value)))));
}

/** A list of tokens in which arrow keys move the focus; `onshow` is called for the token under the pointer or focus. */
export function tokenList(items, { label, onshow, itemClass, describe }) {
  const root = h("div", { class: "text", role: "listbox", "aria-label": label, "aria-orientation": "horizontal" });
  const spans = items.map((item, index) => h("span", {
    role: "option", tabindex: index === 0 ? "0" : "-1", class: itemClass(item, index), "aria-label": describe(item, index),
    "aria-selected": "false", "data-index": index,
  }, tokenText(item)));
  const show = (index, focus) => {
    for (const span of root.querySelectorAll("[aria-selected=true]")) span.setAttribute("aria-selected", "false");
    spans[index].setAttribute("aria-selected", "true");
    if (focus) {
      for (const span of spans) span.tabIndex = -1;
      spans[index].tabIndex = 0;
      spans[index].focus();
    }
    onshow(index);
  };
  const at = (event) => { const span = event.target.closest("[data-index]"); return span ? Number(span.dataset.index) : null; };
  root.addEventListener("pointerover", (event) => { const index = at(event); if (index !== null) show(index, false); });
  root.addEventListener("click", (event) => { const index = at(event); if (index !== null) show(index, true); });
  root.addEventListener("focusin", (event) => { const index = at(event); if (index !== null) show(index, false); });
  root.addEventListener("keydown", (event) => {
    const index = at(event);
    if (index === null) return;
    const last = items.length - 1;
    const next = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1, Home: 0, End: last,
      PageDown: index + 10, PageUp: index - 10 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    show(Math.max(0, Math.min(last, next)), true);
  });
  root.spans = spans;
  root.mark = (index) => spans.forEach((span, one) => span.classList.toggle("marked", one === index));
  return fill(root, spans);
}

function tokenText(item) {
  if (item.special && item.special !== "bytes") return h("i", { class: "special" }, visible(item));
  if (item.text.includes("\n")) return item.text.split(/(\n)/).map((part) => part === "\n" ? [h("i", { class: "special" }, "⏎"), "\n"] : part);
  return item.text || "·";
}

/** Where surprisal changes colour, in bits, as in the reports of comparisons. */
export const STEPS = [1, 2, 3, 5, 8, 12];

export function heat(bits) {
  const index = STEPS.findIndex((edge) => bits < edge);
  return index < 0 ? STEPS.length : index;
}

export function legend() {
  return h("p", { class: "key", "aria-label": t("legend") }, h("span", {}, t("legend_bits")),
    [...STEPS, Infinity].map((edge, index) => h("span", { class: `heat-${index}` },
      index === 0 ? `< ${edge}` : edge === Infinity ? `≥ ${STEPS.at(-1)}` : `${STEPS[index - 1]}–${edge}`)));
}
