// Label: classes, tags and answers with their probabilities, over the text.

import { get, isAbort, post } from "../api.js";
import { debounced, fill, h } from "../dom.js";
import { percent, t } from "../i18n.js";
import { bars, button, field, modelSelect, statusLine, textarea } from "../controls.js";
import { boardHint, editor } from "../canvas.js";

const HUES = 8;

export function show(root, { models, state, save }) {
  const names = models.map((one) => one.name);
  const current = { model: names.includes(state.model) ? state.model : names[0], text: state.text ?? t("sample_label"), other: state.other ?? "" };
  const kind = () => models.find((one) => one.name === current.model).kind;
  const status = statusLine();
  const inputs = h("div", {});
  const result = h("div", { class: "result" });
  let running = null;

  async function run() {
    running?.abort();
    running = new AbortController();
    if (!current.text.trim() || (kind() === "span" && !current.other.trim())) { fill(result); status.say(t("label_empty")); return; }
    status.loading();
    try {
      const answer = await post("/api/inspect/label", { model: current.model, text: current.text, other: current.other }, running.signal);
      status.say();
      display(answer);
    } catch (error) {
      if (isAbort(error)) return;
      fill(result);
      status.error(error);
    }
  }

  function display(answer) {
    const rows = answer.choices.slice(0, 12).map((one, index) => ({ text: one.text || t("no_answer"), value: one.probability, chosen: index === 0 }));
    const shows = { label: labelled, tags: tagged, span: spanned, answer: () => null }[answer.kind];
    const heading = { label: "classes", tags: "whole_sequence", span: "answer", answer: "answer" }[answer.kind];
    fill(result, shows(answer), h("h2", {}, t(heading)), bars(rows, { label: t(heading), most: 1, kind: answer.kind === "tags" ? "sequence" : "" }));
  }

  function labelled({ parts }) {
    if (!parts.length) return null;
    const most = Math.max(...parts.map((one) => one.weight ?? 0), 1e-9);
    return h("figure", {}, h("figcaption", {}, t("attention_of_label")), h("p", { class: "text" }, parts.map((one) =>
      h("span", { class: "attended-token", style: { "--share": String((one.weight ?? 0) / most) }, title: percent(one.weight ?? 0) }, one.text))));
  }

  function tagged({ parts }) {
    const labels = [...new Set(parts.flatMap((one) => one.chosen))].sort();
    return h("figure", {}, h("figcaption", {}, t("tags")), h("ul", { class: "tags", "aria-label": t("tags") }, parts.map((one) => h("li", { class: `hue-${1 + (labels.indexOf(one.chosen) % HUES)}`, tabindex: "0",
      "aria-label": `${one.text}: ${one.choices.map((choice) => `${choice.text} ${percent(choice.probability)}`).join(", ")}` },
    h("b", {}, one.text), h("span", { class: "tag" }, one.chosen), h("small", {}, one.choices.map((choice) => h("span", {}, `${choice.text} ${percent(choice.probability)}`)))))));
  }

  function spanned({ parts }) {
    return h("figure", {}, h("figcaption", {}, t("answer_in_text")), h("p", { class: "text" }, parts.map((one) =>
      (one.chosen ? h("mark", { class: "span", title: percent(one.choices[0].probability) }, one.text) : one.text))));
  }

  async function showImage() {
    status.loading();
    try {
      const form = await get("/api/inspect/canvas", { model: current.model });
      status.say();
      const tool = { now: "ink" };
      const board = editor(form, { label: t("board"), tool: () => (tool.now === "ink" ? form.levels - 1 : 0), onchange: label });
      const tools = h("fieldset", { class: "switch" }, h("legend", {}, t("tool")), ["ink", "paper"].map((one) => h("label", {}, h("input", { type: "radio", name: "tool", value: one, checked: tool.now === one, onchange: () => { tool.now = one; } }), t(`tool_${one}`))));
      async function label() {
        try {
          const found = await post("/api/inspect/label-image", { model: current.model, image: board.levels });
          fill(result, h("h2", {}, t("classes")), bars(found.map((one, index) => ({ text: one.text, value: one.probability, chosen: index === 0 })), { label: t("classes"), most: 1 }));
        } catch (error) {
          status.error(error);
        }
      }
      board.set(new Array(form.width * form.height * form.channels).fill(0));
      fill(inputs, tools, h("p", { class: "hint" }, boardHint()), board.element,
        h("div", { class: "row" }, button(t("blank"), () => { board.set(new Array(board.levels.length).fill(0)); label(); })));
      label();
    } catch (error) {
      status.error(error);
    }
  }

  const later = debounced(run, 350);
  function showInputs() {
    fill(result);
    if (kind() === "image_label") { showImage(); return; }
    const other = { span: "question", pair: "second_text" }[kind()];
    fill(inputs,
      other === "question" ? field(t(other), textarea(current.other, (value) => { current.other = value; save({ other: value }); later(); }, { rows: 1 })) : null,
      field(t(kind() === "answer" ? "question" : "text"), textarea(current.text, (value) => { current.text = value; save({ text: value }); later(); }, { rows: kind() === "span" ? 6 : 3 })),
      other === "second_text" ? field(t(other), textarea(current.other, (value) => { current.other = value; save({ other: value }); later(); }, { rows: 2 })) : null);
    run();
  }
  root.append(h("div", { class: "controls" }, field(t("model"), modelSelect(models, current.model, (value) => { current.model = value; save({ model: value }); showInputs(); }))),
    h("div", { class: "columns" }, h("div", {}, inputs, status.root), result));
  showInputs();
  return () => { later.cancel(); running?.abort(); };
}
