// A grid of pixels that can be drawn on with a pointer or with keys.

import { h } from "./dom.js";
import { t } from "./i18n.js";

/** The picture of levels in raster order on a canvas element; null is unknown. */
export function paint(element, form, levels, { cursor = null, known = Infinity } = {}) {
  const { width, height, channels, brightness } = form;
  const cell = Math.max(1, Math.floor(element.width / width));
  const pen = element.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
    const at = (y * width + x) * channels;
    const values = Array.from({ length: channels }, (_, channel) => levels[at + channel]);
    if (values.some((one) => one === null) || at >= known) {
      pen.fillStyle = style.getPropertyValue("--unknown").trim();
      pen.fillRect(x * cell, y * cell, cell, cell);
      pen.fillStyle = style.getPropertyValue("--unknown-mark").trim();
      const dot = Math.max(1, cell / 6);
      pen.fillRect(x * cell + cell / 2 - dot / 2, y * cell + cell / 2 - dot / 2, dot, dot);
      continue;
    }
    const shades = values.map((one) => brightness[one]);
    pen.fillStyle = channels === 3 ? `rgb(${shades.join(" ")})` : `rgb(${shades[0]} ${shades[0]} ${shades[0]})`;
    pen.fillRect(x * cell, y * cell, cell, cell);
  }
  if (cursor !== null) {
    pen.strokeStyle = style.getPropertyValue("--accent").trim();
    pen.lineWidth = 3;
    pen.strokeRect((cursor % width) * cell + 1.5, Math.floor(cursor / width) * cell + 1.5, cell - 3, cell - 3);
  }
}

/** An editor of one image. `tool()` says what a stroke leaves: a level, or null for unknown. */
export function editor(form, { tool, onchange, label }) {
  const size = Math.floor(336 / form.width) * form.width;
  const element = h("canvas", { class: "board", width: size, height: (size / form.width) * form.height, tabindex: "0", role: "application", "aria-label": label });
  const count = form.width * form.height * form.channels;
  const board = { element, levels: new Array(count).fill(null), cursor: 0 };
  let drawing = false;
  let known = Infinity;
  const redraw = () => paint(element, form, board.levels, { cursor: document.activeElement === element ? board.cursor : null, known });
  function put(pixel, wide) {
    const value = tool();
    const x = pixel % form.width;
    const y = Math.floor(pixel / form.width);
    const reach = wide && form.width >= 16 ? 1 : 0; // a brush of a few pixels on larger images
    for (let dy = 0; dy <= reach; dy++) for (let dx = 0; dx <= reach; dx++) {
      if (x + dx >= form.width || y + dy >= form.height) continue;
      for (let channel = 0; channel < form.channels; channel++) board.levels[((y + dy) * form.width + x + dx) * form.channels + channel] = value;
    }
    known = Infinity;
    redraw();
  }
  const pixelAt = (event) => {
    const box = element.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * form.width);
    const y = Math.floor(((event.clientY - box.top) / box.height) * form.height);
    return x >= 0 && y >= 0 && x < form.width && y < form.height ? y * form.width + x : null;
  };
  element.addEventListener("pointerdown", (event) => { drawing = true; element.setPointerCapture(event.pointerId); const at = pixelAt(event); if (at !== null) { board.cursor = at; put(at, true); } });
  element.addEventListener("pointermove", (event) => { if (!drawing) return; const at = pixelAt(event); if (at !== null) put(at, true); });
  const end = () => { if (drawing) { drawing = false; onchange?.(); } };
  element.addEventListener("pointerup", end);
  element.addEventListener("pointercancel", end);
  element.addEventListener("focus", redraw);
  element.addEventListener("blur", redraw);
  element.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -form.width, ArrowDown: form.width };
    if (event.key in moves) {
      const next = board.cursor + moves[event.key];
      if (next >= 0 && next < form.width * form.height) board.cursor = next;
      if (event.shiftKey) { put(board.cursor, false); onchange?.(); }
      redraw();
    } else if (event.key === " " || event.key === "Enter") { put(board.cursor, false); onchange?.(); } else return;
    event.preventDefault();
  });
  board.set = (levels, upTo = Infinity) => { board.levels = [...levels]; known = upTo; redraw(); };
  board.redraw = redraw;
  redraw();
  return board;
}

export const boardHint = () => t("board_keys");
