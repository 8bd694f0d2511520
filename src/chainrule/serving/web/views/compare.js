// Compare: reports of comparisons and frontiers, and the curves of trainings, live.

import { download, get, hasKey } from "../api.js";
import { fill, h, s } from "../dom.js";
import { number, t } from "../i18n.js";
import { button, statusLine } from "../controls.js";

const WIDEST = 860;
const HEIGHT = 300;
const EDGE = { left: 52, right: 16, top: 12, bottom: 40 };
const SECONDS_BETWEEN_POLLS = 2;
const SECONDS_BETWEEN_LISTS = 10;

export function show(root, { state, save }) {
  const status = statusLine();
  const lists = h("div", { class: "columns" });
  const place = h("div", { class: "result" });
  let timer = 0;
  let refresh = 0;
  let stopped = false;

  async function list(first) {
    if (stopped) return;
    refresh = setTimeout(() => list(false), SECONDS_BETWEEN_LISTS * 1000);
    try {
      const [reports, trainings] = await Promise.all([get("/api/inspect/reports"), get("/api/inspect/trainings")]);
      if (lists.contains(document.activeElement)) return; // the focus would be lost
      const scrolled = [...lists.querySelectorAll(".entries")].map((one) => one.scrollTop);
      fill(lists,
        h("div", {}, h("h2", {}, t("reports")), reports.length ? h("ul", { class: "entries" }, reports.map((one) => h("li", {}, entry("report", one.name,
          [h("b", {}, one.title), h("small", {}, `${t(`kind_${one.kind}`)} · ${new Date(one.written * 1000).toLocaleString()}`)])))) : h("p", { class: "hint" }, t("no_reports"))),
        h("div", {}, h("h2", {}, t("trainings")), trainings.length ? h("ul", { class: "entries" }, trainings.map((one) => h("li", {}, entry("training", one.name,
          [h("b", {}, one.name), h("span", { class: `badge ${one.state}` }, t(`state_${one.state}`)), h("small", {}, `${one.family} · ${number(one.value, 3)} ${one.unit}`)])))) : h("p", { class: "hint" }, t("no_trainings"))));
      lists.querySelectorAll(".entries").forEach((one, index) => { one.scrollTop = scrolled[index] ?? 0; });
      if (!first) return;
      const running = trainings.find((one) => one.state === "running");
      if (state.report) open("report", state.report, false);
      else if (state.training || running) open("training", state.training || running.name, false);
      else if (reports.length) open("report", reports[0].name, false);
      else if (trainings.length) open("training", trainings[0].name, false);
    } catch (error) {
      status.error(error);
    }
  }

  const entry = (kind, name, content) => h("button", { type: "button", "data-kind": kind, "data-entry": name, "aria-pressed": String(state[kind] === name), onclick: () => open(kind, name, true) }, content);

  function open(kind, name, chosen) {
    clearTimeout(timer);
    save({ report: kind === "report" ? name : "", training: kind === "training" ? name : "" });
    for (const one of lists.querySelectorAll("[data-entry]")) {
      const pressed = one.dataset.kind === kind && one.dataset.entry === name;
      one.setAttribute("aria-pressed", String(pressed));
      if (pressed && !chosen) one.closest(".entries").scrollTop = one.offsetTop - 60; // in view, after what comes before it
    }
    if (kind === "report") report(name);
    else poll(name, true);
    if (chosen) place.scrollIntoView({ behavior: "smooth", block: "nearest" });
  }

  function report(name) {
    const address = `/api/inspect/reports/${encodeURIComponent(name)}`;
    if (hasKey()) { // a frame cannot send the key
      fill(place, h("h2", {}, name), button(t("download_report"), () => download(address, `${name}.html`).catch(status.error), { class: "primary" }));
      return;
    }
    fill(place, h("h2", {}, name), h("p", {}, h("a", { href: address, target: "_blank", rel: "noopener" }, t("open_report"))),
      h("iframe", { src: address, sandbox: "allow-scripts", title: t("report_of", { name }) }));
  }

  async function poll(name, first) {
    if (stopped) return;
    if (first) { fill(place); status.loading(); }
    try {
      const found = await get(`/api/inspect/trainings/${encodeURIComponent(name)}`);
      if (stopped || state.training !== name) return;
      status.say();
      curve(found);
      if (found.state === "running") timer = setTimeout(() => poll(name, false), SECONDS_BETWEEN_POLLS * 1000);
    } catch (error) {
      if (!stopped) status.error(error);
    }
  }

  function curve(found) {
    const width = Math.max(300, Math.min(WIDEST, place.clientWidth)); // so that text has its own size on a phone, too
    const late = found.training.slice(Math.floor(found.training.length / 10));
    const values = [...found.validation, ...late].map((one) => one.value).filter(Number.isFinite);
    const times = [...found.validation, ...found.training].map((one) => one.seconds);
    const low = Math.min(...values);
    const high = Math.max(...values);
    const pad = (high - low || Math.abs(high) || 1) * 0.06;
    const x = (seconds) => EDGE.left + ((width - EDGE.left - EDGE.right) * seconds) / Math.max(...times, 1e-9);
    const y = (value) => EDGE.top + ((HEIGHT - EDGE.top - EDGE.bottom) * (high + pad - Math.min(value, high + pad))) / (high - low + 2 * pad);
    const line = (points) => points.filter((one) => Number.isFinite(one.value) && one.value <= high + pad).map((one, index) => `${index ? "L" : "M"}${x(one.seconds).toFixed(1)},${y(one.value).toFixed(1)}`).join("");
    const ticks = (least, most, count) => Array.from({ length: count }, (_, index) => least + ((most - least) * index) / (count - 1));
    const picture = s("svg", { class: "curve", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": t("curve_label", { name: found.name, value: number(found.value, 3), unit: found.unit }) },
      ticks(low, high, 5).map((value) => [s("path", { class: "grid", d: `M${EDGE.left},${y(value)}H${width - EDGE.right}` }), s("text", { x: EDGE.left - 8, y: y(value) + 4, "text-anchor": "end" }, number(value, 2))]),
      ticks(0, Math.max(...times), 5).map((value) => s("text", { x: x(value), y: HEIGHT - 20, "text-anchor": "middle" }, `${number(value, 0)} s`)),
      s("text", { x: (width + EDGE.left) / 2, y: HEIGHT - 4, "text-anchor": "middle", class: "axis" }, t("training_time")),
      s("path", { class: "line training", d: line(found.training) }), s("path", { class: "line validation", d: line(found.validation) }),
      found.validation.map((one) => s("circle", { class: "mark", cx: x(one.seconds), cy: y(one.value), r: 4 }, s("title", {}, `${number(one.value, 4)} ${found.unit}`))));
    fill(place, h("h2", {}, found.name, " ", h("span", { class: `badge ${found.state}` }, t(`state_${found.state}`))),
      h("p", { class: "live-value", role: "status" }, h("b", {}, number(found.value, 3)), ` ${found.unit}`, found.step === null ? "" : ` · ${t("at_step", { step: number(found.step) })}`),
      h("figure", {}, picture), h("p", { class: "key small" }, h("span", { class: "swatch training" }, t("on_training")), h("span", { class: "swatch validation" }, t("on_validation"))));
  }

  root.append(status.root, lists, place);
  list(true);
  return () => { stopped = true; clearTimeout(timer); clearTimeout(refresh); };
}
