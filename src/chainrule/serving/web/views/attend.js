// Attend: what a model attends to when it predicts each token, by layer and head.

import { isAbort, post } from "../api.js";
import { debounced, fill, h } from "../dom.js";
import { percent, t } from "../i18n.js";
import { bars, field, modelSelect, quoted, statusLine, textarea, tokenList, visible } from "../controls.js";
import { heatmap, miniature } from "../heatmap.js";

export function show(root, { models, state, save }) {
  const names = models.map((one) => one.name);
  const current = { model: names.includes(state.model) ? state.model : names[0], map: Number(state.map ?? 0), target: state.target ?? "" };
  const kind = () => models.find((one) => one.name === current.model).kind;
  current.text = state.text ?? t(kind() === "text" ? "sample_attend" : "sample_source");
  const status = statusLine();
  const result = h("div", { class: "result" });
  let running = null;
  let redraw = null;

  async function run() {
    running?.abort();
    running = new AbortController();
    if (!current.text) { fill(result); status.say(t("read_empty")); return; }
    status.loading();
    try {
      const answer = await post("/api/inspect/attend", { model: current.model, text: current.text, target: current.target || null }, running.signal);
      status.say();
      display(answer);
    } catch (error) {
      if (isAbort(error)) return;
      fill(result);
      status.error(error);
    }
  }

  function display(answer) {
    const maps = answer.maps;
    if (current.map >= maps.length) current.map = 0;
    const name = (map) => (map.layer === null ? t("mean_map") : t("head_map", { layer: map.layer, head: map.head }));
    let row = Math.min(answer.predicted.length - 1, Math.floor(answer.predicted.length / 2));
    const details = h("aside", { class: "details", "aria-live": "polite", "aria-label": t("details") });
    const attended = h("div", { class: "text attended", "aria-label": t("attended") });
    const place = h("div", {});
    const title = h("figcaption", {});
    const predicted = tokenList(answer.predicted, { label: t("predicted"), itemClass: () => "plain",
      describe: (token) => t("predicting", { token: quoted(token) }), onshow: (index) => { row = index; tell(); } });
    function tell() {
      const weights = maps[current.map].weights[row];
      const most = Math.max(...weights, 1e-9);
      fill(attended, answer.attended.map((token, index) => h("span", { class: "attended-token", style: { "--share": String(weights[index] / most) }, title: `${visible(token)} ${percent(weights[index])}` }, token.special && token.special !== "bytes" ? h("i", { class: "special" }, visible(token)) : token.text || "·")));
      predicted.mark(row);
      map.select(row);
      const ranked = weights.map((value, index) => ({ text: quoted(answer.attended[index]), value })).sort((a, b) => b.value - a.value);
      fill(details, h("h2", {}, t("predicting", { token: quoted(answer.predicted[row]) })), h("p", { class: "hint" }, name(maps[current.map])),
        bars(ranked.slice(0, 6), { label: t("attended") }));
    }
    let map = null;
    function choose(index) {
      current.map = index;
      save({ map: index || "" });
      heads.querySelectorAll("button").forEach((one, at) => one.setAttribute("aria-pressed", String(at === index)));
      title.textContent = name(maps[index]);
      map = heatmap(maps[index].weights, { rows: answer.predicted.map(visible), columns: answer.attended.map(visible),
        label: t("heatmap_label", { rows: answer.predicted.length, columns: answer.attended.length }),
        onhover: (at) => { row = at; tell(); } });
      fill(place, map.root);
      tell();
    }
    const heads = h("div", { class: "heads", role: "group", "aria-label": t("heads") }, maps.map((one, index) =>
      h("button", { type: "button", "aria-pressed": "false", onclick: () => choose(index) }, miniature(one.weights), h("span", {}, name(one)))));
    fill(result, maps.length > 1 ? [h("h2", {}, t("heads")), heads] : null,
      h("div", { class: "with-details" }, h("figure", { class: "map" }, title, place,
        h("h3", {}, t("predicted")), predicted, h("h3", {}, t("attended")), attended), details));
    choose(current.map);
    redraw = () => choose(current.map);
  }

  const later = debounced(run, 400);
  const target = textarea(current.target, (value) => { current.target = value; save({ target: value }); later(); }, { rows: 2 });
  const targetField = field(t("target"), target, t("target_hint"));
  targetField.hidden = kind() === "text";
  const area = textarea(current.text, (value) => { current.text = value; save({ text: value }); later(); }, { rows: 3 });
  root.append(
    h("div", { class: "controls" }, field(t("model"), modelSelect(models, current.model, (value) => {
      const before = kind();
      current.model = value;
      targetField.hidden = kind() === "text";
      if (kind() !== before) { current.target = target.value = ""; area.value = current.text = t(kind() === "text" ? "sample_attend" : "sample_source"); }
      save({ model: value, text: current.text, target: current.target });
      run();
    }))),
    field(t("text_or_source"), area), targetField, status.root, result);
  const onTheme = () => redraw?.();
  window.addEventListener("themechange", onTheme);
  run();
  return () => { later.cancel(); running?.abort(); window.removeEventListener("themechange", onTheme); };
}
