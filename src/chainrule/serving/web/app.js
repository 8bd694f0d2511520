// The frame of the page: navigation, language, colours, and the view that the address names.

import { get, setKey } from "./api.js";
import { announce, fill, h } from "./dom.js";
import { language, LANGUAGES, setLanguage, t } from "./i18n.js";
import { hashOf, readHash, writeHash } from "./state.js";
import * as attend from "./views/attend.js";
import * as compare from "./views/compare.js";
import * as draw from "./views/draw.js";
import * as label from "./views/label.js";
import * as read from "./views/read.js";
import * as search from "./views/search.js";
import * as write from "./views/write.js";

const VIEWS = { read, write, attend, search, draw, label, compare };
const THEMES = ["system", "light", "dark"];
const COMMANDS = {
  read: "chainrule train ngram --data my.txt", write: "chainrule train gpt --data my.txt --minutes 5",
  attend: "chainrule train gpt --data my.txt --minutes 5", search: "chainrule train gpt --data my.txt --minutes 5",
  draw: "chainrule train pixelcnn --data builtin:digits --minutes 2", label: "chainrule train classifier --data train.tsv --epochs 5",
  compare: "chainrule compare --data my.txt --minutes 10 --out comparison",
};

let models = [];
let reports = 0;
let failure = null;
let stop = null;
let shown = null;

const main = document.getElementById("main");
const top = document.getElementById("top");

function theme() {
  const stored = localStorage.getItem("chainrule-theme");
  return THEMES.includes(stored) ? stored : "system";
}

function applyTheme() {
  if (theme() === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme();
}

const able = (view) => view === "compare" ? reports > 0 : models.some((one) => one.views.includes(view));

function header(current) {
  const links = Object.keys(VIEWS).map((view) => h("li", {}, h("a", {
    href: hashOf(view, {}), "aria-current": view === current ? "page" : null,
    "aria-disabled": able(view) ? null : "true", title: able(view) ? null : t(`needs_${view}`),
  }, t(`view_${view}`))));
  const themes = h("button", { type: "button", id: "theme", onclick: () => {
    localStorage.setItem("chainrule-theme", THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
    applyTheme();
    themes.textContent = t(`theme_${theme()}`);
    announce(t(`theme_${theme()}`));
    window.dispatchEvent(new Event("themechange"));
  } }, t(`theme_${theme()}`));
  const languages = Object.entries(LANGUAGES).filter(([code]) => code !== language()).map(([code, name]) =>
    h("button", { type: "button", id: "language", lang: code, onclick: () => { setLanguage(code); show(); } }, name));
  fill(top,
    h("p", { class: "brand" }, h("b", {}, "chainrule"), h("span", {}, t("tagline"))),
    h("div", { class: "settings" }, languages, themes),
    h("nav", { "aria-label": t("views") }, h("ul", {}, links)));
}

function notice(view) {
  return h("div", { class: "notice" }, h("h1", {}, t(`view_${view}`)), h("p", {}, t(`needs_${view}`)),
    h("div", { class: "command" }, h("pre", {}, COMMANDS[view])));
}

function show() {
  const { view: wanted, values } = readHash();
  if (wanted === "main") return;
  const view = wanted in VIEWS ? wanted : Object.keys(VIEWS).find(able) ?? "read";
  if (stop) stop();
  stop = null;
  document.documentElement.lang = language() === "zh" ? "zh-CN" : "en";
  document.getElementById("skip").textContent = t("skip");
  document.title = `${t(`view_${view}`)} · chainrule`;
  header(view);
  if (failure) fill(main, failed());
  else if (!able(view)) fill(main, notice(view));
  else {
    const root = h("section", { class: `view view-${view}` }, h("h1", {}, t(`view_${view}`)), h("p", { class: "intro" }, t(`intro_${view}`)));
    fill(main, root);
    const state = { ...values };
    const save = (changes) => { Object.assign(state, changes); if (readHash().view === view || !readHash().view) writeHash(view, state); };
    stop = VIEWS[view].show(root, { models: models.filter((one) => one.views.includes(view)), all: models, state, save }) ?? null;
  }
  if (shown !== null && shown !== view) { window.scrollTo(0, 0); announce(t(`view_${view}`)); }
  shown = view;
}

function failed() {
  if (failure.status !== 401) return h("div", { class: "notice" }, h("h1", {}, t("error")), h("p", { role: "alert" }, failure.message),
    h("button", { type: "button", onclick: start }, t("again")));
  const input = h("input", { type: "password", id: "key", autocomplete: "off" });
  return h("form", { class: "notice", onsubmit: (event) => { event.preventDefault(); setKey(input.value); start(); } },
    h("h1", {}, t("key_title")), h("label", { for: "key" }, t("key_label")), input, h("button", {}, t("key_use")));
}

async function load() {
  failure = null;
  try {
    const [found, written, trained] = await Promise.all([
      get("/api/inspect/models"), get("/api/inspect/reports"), get("/api/inspect/trainings")]);
    models = found;
    reports = written.length + trained.length;
  } catch (error) {
    failure = error;
  }
}

async function start() {
  header(readHash().view);
  fill(main, h("p", { class: "status loading" }, t("loading")));
  await load();
  show();
}

document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
window.addEventListener("hashchange", async () => {
  if (readHash().view !== shown) await load(); // runs may have appeared since
  show();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => window.dispatchEvent(new Event("themechange")));
applyTheme();
start();
