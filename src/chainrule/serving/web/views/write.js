// Write: the model continues the text, its next tokens are branches, and the controls show what sampling cuts off.

import { isAbort, post, postEvents } from "../api.js";
import { debounced, fill, h } from "../dom.js";
import { number, percent, t } from "../i18n.js";
import { button, field, modelSelect, quoted, slider, statusLine, textarea, visible } from "../controls.js";

const TOKENS = 60; // of a continuation

export function show(root, { models, state, save }) {
  const names = models.map((one) => one.name);
  const current = {
    model: names.includes(state.model) ? state.model : names[0], text: state.text ?? t("sample_prompt"),
    temperature: Number(state.temperature ?? 0.8), top_k: Number(state.top_k ?? 0), top_p: Number(state.top_p ?? 1), min_p: Number(state.min_p ?? 0),
    seed: Number(state.seed ?? 0),
  };
  const status = statusLine();
  const ghost = h("span", { class: "ghost" });
  const before = h("span", { class: "before" });
  const behind = h("pre", { class: "behind", "aria-hidden": "true" }, before, ghost);
  const next = h("div", { class: "next" });
  const spoken = h("p", { class: "unseen", role: "status" });
  let streaming = null;
  let looking = null;

  const sampling = () => ({ temperature: current.temperature, ...(current.top_k ? { top_k: current.top_k } : {}),
    ...(current.top_p < 1 ? { top_p: current.top_p } : {}), ...(current.min_p > 0 ? { min_p: current.min_p } : {}) });

  function setText(text, focus) {
    current.text = text;
    area.value = text;
    before.textContent = text;
    ghost.textContent = "";
    save({ text });
    if (focus) { area.focus(); area.setSelectionRange(text.length, text.length); }
    lookSoon();
    continueSoon();
  }

  async function look() {
    looking?.abort();
    looking = new AbortController();
    try {
      const answer = await post("/api/inspect/next", { model: current.model, text: current.text, count: 12, ...sampling() }, looking.signal);
      status.say();
      branches(answer);
    } catch (error) {
      if (isAbort(error)) return;
      fill(next);
      status.error(error);
    }
  }

  function branches(answer) {
    const most = Math.max(...answer.tokens.flatMap((one) => [one.probability, one.sampled]), 1e-9);
    const rows = answer.tokens.map((one) => {
      const cut = one.sampled === 0;
      const usable = one.special === null || one.special === "bytes" && one.text;
      return h("li", {}, h("button", {
        type: "button", class: cut ? "branch cut" : "branch", disabled: !usable, onclick: () => { stop(); setText(current.text + one.text, true); },
        "aria-label": t(cut ? "branch_cut" : "branch_label", { token: quoted(one), probability: percent(one.probability), sampled: percent(one.sampled) }),
      },
      h("span", { class: "bar-text" }, visible(one)),
      h("span", { class: "bar two" }, h("i", { class: "model", style: { width: `${(100 * one.probability) / most}%` } }), h("i", { class: "sampled", style: { width: `${(100 * one.sampled) / most}%` } })),
      h("span", { class: "bar-value" }, cut ? t("cut") : percent(one.sampled), h("small", {}, percent(one.probability)))));
    });
    fill(next,
      h("p", { class: "kept" }, h("b", {}, t("kept", { kept: number(answer.kept), vocabulary: number(answer.vocabulary) })), " ",
        t("kept_probability", { value: percent(answer.kept_probability) }), " · ", t("entropy", { bits: number(answer.entropy) })),
      h("ol", { class: "bars branches", "aria-label": t("branches") }, rows),
      h("p", { class: "key small" }, h("span", { class: "swatch model" }, t("legend_model")), h("span", { class: "swatch sampled" }, t("legend_sampled"))));
  }

  async function stream() {
    streaming?.abort();
    streaming = new AbortController();
    const { signal } = streaming;
    ghost.textContent = "";
    root.classList.add("is-streaming");
    try {
      const body = { model: current.model, prompt: current.text, max_tokens: TOKENS, seed: current.seed, ...sampling() };
      for await (const event of postEvents("/v1/completions", body, signal)) {
        if (signal.aborted) return;
        ghost.textContent += event.choices?.[0]?.text ?? "";
      }
      if (!signal.aborted) spoken.textContent = t("continued", { text: ghost.textContent });
    } catch (error) {
      if (!isAbort(error)) status.error(error);
    } finally {
      if (streaming?.signal === signal) root.classList.remove("is-streaming");
    }
  }

  function stop() {
    continueSoon.cancel();
    streaming?.abort();
  }

  function accept(part) {
    const all = ghost.textContent;
    const taken = part ? (all.match(/^\s*\S+\s?/) ?? [all])[0] : all;
    if (!taken) return;
    stop();
    const rest = all.slice(taken.length);
    setText(current.text + taken, true);
    if (rest && part) { continueSoon.cancel(); ghost.textContent = rest; }
  }

  const lookSoon = debounced(look, 120);
  const continueSoon = debounced(stream, 450);
  const area = textarea(current.text, (value) => { stop(); setText(value, false); }, {
    onkeydown: (event) => {
      if (event.key === "Enter" && event.ctrlKey) { event.preventDefault(); accept(event.shiftKey); }
      if (event.key === "Escape") { stop(); ghost.textContent = ""; }
    }, rows: 7 });
  before.textContent = current.text;
  const change = (name) => (value) => { current[name] = value; save({ [name]: value }); stop(); lookSoon(); continueSoon(); };
  const off = (test) => (value) => (test(value) ? t("off") : number(value));
  root.append(
    h("div", { class: "controls" }, field(t("model"), modelSelect(models, current.model, (value) => { current.model = value; save({ model: value }); stop(); look(); stream(); }))),
    h("div", { class: "with-details wide" },
      h("div", {},
        h("div", { class: "editor" }, field(t("your_text"), area, t("write_keys")), behind),
        h("div", { class: "row" }, button(t("accept"), () => accept(false), { class: "primary" }), button(t("accept_word"), () => accept(true)),
          button(t("another"), () => { current.seed += 1; save({ seed: current.seed }); stop(); stream(); }),
          button(t("stop"), () => { stop(); })),
        status.root, spoken,
        h("fieldset", { class: "sampling" }, h("legend", {}, t("sampling")),
          slider(t("temperature"), { min: 0, max: 2, step: 0.05, value: current.temperature, name: "temperature", shown: (value) => (value === 0 ? t("greedy") : number(value)), oninput: change("temperature") }),
          slider(t("top_k"), { min: 0, max: 50, step: 1, value: current.top_k, name: "top_k", shown: off((value) => value === 0), oninput: change("top_k") }),
          slider(t("top_p"), { min: 0.05, max: 1, step: 0.05, value: current.top_p, name: "top_p", shown: off((value) => value >= 1), oninput: change("top_p") }),
          slider(t("min_p"), { min: 0, max: 0.5, step: 0.01, value: current.min_p, name: "min_p", shown: off((value) => value === 0), oninput: change("min_p") }))),
      h("aside", { class: "details", "aria-label": t("branches") }, h("h2", {}, t("branches")), h("p", { class: "hint" }, t("branches_hint")), next)));
  // The continuation lies behind the text area and has to move with it.
  const editor = root.querySelector(".editor .field");
  editor.append(behind);
  area.addEventListener("scroll", () => { behind.scrollTop = area.scrollTop; });
  look();
  stream();
  return () => { lookSoon.cancel(); stop(); looking?.abort(); };
}
