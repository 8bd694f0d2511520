// Read: every token coloured by its surprisal; two models side by side, and their mixture.

import { isAbort, post } from "../api.js";
import { debounced, fill, h } from "../dom.js";
import { number, percent, t } from "../i18n.js";
import { bars, field, heat, legend, modelSelect, quoted, select, slider, statusLine, textarea, tokenList } from "../controls.js";

const SHOWN = 6; // expected tokens

/** Bits under the mixture (1 − w) P₁ + w P₂, from the bits under each. */
export function mixedBits([first, second], weight) {
  if (weight <= 0) return first;
  if (weight >= 1) return second;
  const best = Math.min(first, second); // relative to the better one, so that nothing underflows
  return best - Math.log2((1 - weight) * 2 ** (best - first) + weight * 2 ** (best - second));
}

export function show(root, { models, state, save }) {
  const names = models.map((one) => one.name);
  const model = names.includes(state.model) ? state.model : names[0];
  const other = names.includes(state.with) && state.with !== model ? state.with : "";
  const current = { model, other, text: state.text ?? t("sample_text"), weight: Number(state.weight ?? 0.5) };
  const status = statusLine();
  const result = h("div", { class: "result" });
  const details = h("aside", { class: "details", "aria-live": "polite", "aria-label": t("details") }, h("p", { class: "hint" }, t("read_hint")));
  let running = null;

  async function run() {
    running?.abort();
    running = new AbortController();
    if (!current.text) { fill(result); status.say(t("read_empty")); return; }
    status.loading();
    try {
      const chosen = current.other ? [current.model, current.other] : [current.model];
      const answer = await post("/api/inspect/read", { models: chosen, text: current.text }, running.signal);
      status.say();
      display(answer);
    } catch (error) {
      if (isAbort(error)) return;
      fill(result);
      status.error(error);
    }
  }

  function display(answer) {
    const panels = answer.readings.map((reading, column) => panel(reading, column, answer));
    const grid = h("div", { class: answer.readings.length > 1 ? "columns" : "one" }, panels.map((one) => one.root));
    const link = (column) => (begin, end) => panels.forEach((one, index) => { if (index !== column) one.markAt(begin, end); });
    panels.forEach((one, index) => { one.link = link(index); });
    const mixture = answer.readings.length > 1 ? mixturePanel(answer, (begin, end) => panels.forEach((one) => one.markAt(begin, end))) : null;
    fill(result, mixture, grid);
  }

  function explain(title, lines, expected) {
    fill(details, h("h2", {}, title), h("p", {}, lines.join(" · ")), h("h3", {}, t("expected")),
      bars(expected.slice(0, SHOWN), { label: t("expected"), empty: t("no_expected") }));
  }

  function panel(reading, column, answer) {
    const own = answer.same_tokens ? column : 0;
    const list = tokenList(reading.tokens, {
      label: t("tokens_of", { model: reading.model }),
      itemClass: (token) => `heat-${heat(token.bits)}`,
      describe: (token) => t("token_label", { token: quoted(token), bits: number(token.bits, 1), rank: number(token.rank) }),
      onshow: (index) => {
        const token = reading.tokens[index];
        const expected = token.expected.map((one) => ({ text: quoted(one), value: one.probabilities[own], chosen: one.text === token.text && one.special === token.special }));
        expected.sort((a, b) => b.value - a.value);
        explain(quoted(token), [reading.model, t("bits", { bits: number(token.bits) }), t("probability", { value: percent(2 ** -token.bits) }), t("rank", { rank: number(token.rank) })], expected);
        one.link?.(token.begin, token.end);
      },
    });
    const one = {
      root: h("figure", { class: "reading" }, h("figcaption", {}, h("b", {}, reading.model), " ", h("span", { class: "bpb" }, t("bits_per_byte", { value: number(reading.bits_per_byte, 3) }))), list),
      markAt: (begin, end) => list.spans.forEach((span, index) => {
        const token = reading.tokens[index];
        span.classList.toggle("marked", token.begin < end && token.end > begin);
      }),
    };
    return one;
  }

  function mixturePanel(answer, mark) {
    const { segments, readings, same_tokens: same } = answer;
    if (!segments.length) return h("p", { class: "notice small" }, t("no_mixture"));
    const characters = readings[0].tokens.map((token) => token.text).join("");
    const bytes = Math.max(1, new TextEncoder().encode(characters).length);
    const total = (weight) => segments.reduce((sum, one) => sum + mixedBits(one.bits, weight), 0) / bytes;
    const items = segments.map((one) => {
      const token = one.end === one.begin ? { text: "", special: "eos" } : { text: characters.slice(one.begin, one.end), special: null };
      return { ...token, segment: one };
    });
    const bpb = h("span", { class: "bpb" });
    let focused = null;
    const describe = (item) => t("token_label_short", { token: quoted(item), bits: number(mixedBits(item.segment.bits, current.weight), 1) });
    const list = tokenList(items, { label: t("tokens_of", { model: t("mixture") }), itemClass: () => "", describe, onshow: (index) => { focused = index; tell(index); mark(items[index].segment.begin, items[index].segment.end); } });
    function tell(index) {
      const { segment } = items[index];
      const expected = same ? readings[0].tokens[index].expected.map((one) => ({
        text: quoted(one), value: (1 - current.weight) * one.probabilities[0] + current.weight * one.probabilities[1],
        chosen: one.text === items[index].text })) : [];
      expected.sort((a, b) => b.value - a.value);
      const mixed = mixedBits(segment.bits, current.weight);
      explain(quoted(items[index]), [t("mixture"), t("bits", { bits: number(mixed) }), ...readings.map((one, column) => `${one.model} ${number(segment.bits[column])}`)], expected);
    }
    function colour(weight) {
      current.weight = weight;
      list.spans.forEach((span, index) => {
        span.className = `heat-${heat(mixedBits(segments[index].bits, weight))}${span.classList.contains("marked") ? " marked" : ""}`;
        span.setAttribute("aria-label", describe(items[index]));
      });
      bpb.textContent = t("bits_per_byte", { value: number(total(weight), 3) });
    }
    const weights = Array.from({ length: 101 }, (_, index) => index / 100);
    const best = weights.reduce((a, b) => (total(b) < total(a) ? b : a), 0);
    const shown = (weight) => `${readings[0].model} ${percent(1 - weight)} + ${readings[1].model} ${percent(weight)}`;
    const control = slider(t("weight"), { min: 0, max: 1, step: 0.01, value: current.weight, name: "weight", shown, oninput: (weight) => {
      colour(weight);
      if (focused !== null && list.contains(document.activeElement)) tell(focused);
      save({ weight });
    } });
    colour(current.weight);
    const use = h("button", { type: "button", class: "link", onclick: () => { control.set(best); colour(best); save({ weight: best }); } },
      t("best_weight", { weight: number(best), value: number(total(best), 3) }));
    return h("figure", { class: "reading mixture" }, h("figcaption", {}, h("b", {}, t("mixture")), " ", bpb), control,
      h("p", { class: "hint" }, same ? t("mixture_tokens") : t("mixture_segments"), " ", use), list);
  }

  const later = debounced(run, 350);
  const changeModels = () => { save({ model: current.model, with: current.other }); run(); };
  const others = () => select([["", t("none")], ...names.filter((one) => one !== current.model).map((one) => [one, one])], current.other, (value) => { current.other = value; changeModels(); });
  const otherField = h("div", {}, field(t("with"), others()));
  root.append(
    h("div", { class: "controls" },
      field(t("model"), modelSelect(models, current.model, (value) => {
        current.model = value;
        if (current.other === value) current.other = "";
        fill(otherField, field(t("with"), others()));
        changeModels();
      })), otherField),
    field(t("text"), textarea(current.text, (value) => { current.text = value; save({ text: value }); later(); }, { rows: 3 })),
    legend(), status.root, h("div", { class: "with-details" }, result, details));
  run();
  return () => { later.cancel(); running?.abort(); };
}
