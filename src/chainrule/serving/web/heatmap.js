// Attention weights as a grid of cells, darker for larger weights.

import { h } from "./dom.js";

function paint(canvas, weights, cell) {
  const rows = weights.length;
  const columns = weights[0].length;
  const ratio = cell > 2 ? window.devicePixelRatio || 1 : 1;
  canvas.width = columns * cell * ratio;
  canvas.height = rows * cell * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  pen.fillStyle = style.getPropertyValue("--map-low").trim() || "#f3f2ed";
  pen.fillRect(0, 0, columns * cell, rows * cell);
  pen.fillStyle = style.getPropertyValue("--map-high").trim() || "#2630a0";
  const gap = cell > 6 ? 1 : 0;
  weights.forEach((row, y) => row.forEach((value, x) => {
    if (value < 0.003) return;
    pen.globalAlpha = Math.sqrt(value); // small weights stay visible
    pen.fillRect(x * cell, y * cell, cell - gap, cell - gap);
  }));
  pen.globalAlpha = 1;
}

/** A small picture of a map, for choosing one. */
export function miniature(weights) {
  const canvas = h("canvas", { class: "miniature", "aria-hidden": "true" });
  paint(canvas, weights, Math.max(1, Math.floor(56 / Math.max(weights.length, weights[0].length))));
  return canvas;
}

/** A map with its tokens; `onhover` is called with the row under the pointer. */
export function heatmap(weights, { rows, columns, label, onhover }) {
  const cell = Math.max(5, Math.min(26, Math.floor(620 / Math.max(rows.length, columns.length))));
  const canvas = h("canvas", { role: "img", "aria-label": label, style: { width: `${columns.length * cell}px`, height: `${rows.length * cell}px` } });
  paint(canvas, weights, cell);
  const band = h("i", { class: "band-row", "aria-hidden": "true" });
  const legible = cell >= 11;
  const sizes = { "--cell": `${cell}px`, "--columns": String(columns.length) };
  const root = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, h("div", { class: `heatmap ${legible ? "" : "tight"}`, style: sizes },
    h("div", { class: "heatmap-columns", "aria-hidden": "true" }, legible ? columns.map((one) => h("span", {}, one)) : null),
    h("div", { class: "heatmap-rows", "aria-hidden": "true" }, legible ? rows.map((one) => h("span", {}, one)) : null),
    h("div", { class: "heatmap-cells" }, canvas, band)));
  canvas.addEventListener("pointermove", (event) => {
    const at = Math.floor(((event.clientY - canvas.getBoundingClientRect().top) / canvas.getBoundingClientRect().height) * rows.length);
    if (at >= 0 && at < rows.length) onhover(at);
  });
  return { root, select: (row) => { band.style.top = `${row * cell}px`; band.style.height = `${cell}px`; } };
}
