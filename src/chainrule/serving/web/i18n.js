// The language of the page. Each language has one table of strings with the same keys.

import en from "./strings/en.js";
import zh from "./strings/zh.js";

export const LANGUAGES = { en: "English", zh: "中文" };
const TABLES = { en, zh };

let chosen = localStorage.getItem("chainrule-language");
if (!(chosen in TABLES)) chosen = (navigator.language ?? "").toLowerCase().startsWith("zh") ? "zh" : "en";

export function language() {
  return chosen;
}

export function setLanguage(name) {
  chosen = name;
  localStorage.setItem("chainrule-language", name);
}

/** The string of a key in the chosen language, with {names} replaced by values. */
export function t(key, values = {}) {
  const text = TABLES[chosen][key] ?? en[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

export function number(value, digits = 2) {
  return new Intl.NumberFormat(chosen === "zh" ? "zh-CN" : "en", { maximumFractionDigits: digits }).format(value);
}

export function percent(value) {
  const digits = value > 0 && value < 0.001 ? 3 : value < 0.1 ? 1 : 0;
  const style = { style: "percent", maximumFractionDigits: digits };
  return new Intl.NumberFormat(chosen === "zh" ? "zh-CN" : "en", style).format(value);
}
