// Draw: images that grow pixel by pixel, and the completion of one that was half erased or drawn.

import { get, isAbort, post, postLines } from "../api.js";
import { fill, h } from "../dom.js";
import { number, t } from "../i18n.js";
import { bars, button, field, modelSelect, select, slider, statusLine } from "../controls.js";
import { boardHint, editor, paint } from "../canvas.js";

export function show(root, { models, all, state, save }) {
  const names = models.map((one) => one.name);
  const current = { model: names.includes(state.model) ? state.model : names[0], temperature: Number(state.temperature ?? 1), seed: Number(state.seed ?? 0),
    label: state.label ?? "", tool: "erase", example: 0 };
  const status = statusLine();
  const body = h("div", {});
  const classes = h("div", { hidden: true });
  const progress = h("progress", { max: 1, value: 0, "aria-label": t("progress"), hidden: true });
  let running = null;
  let redraw = null;

  async function start() {
    status.loading();
    try {
      const form = await get("/api/inspect/canvas", { model: current.model });
      status.say();
      build(form);
    } catch (error) {
      fill(body);
      status.error(error);
    }
  }

  function build(form) {
    const size = form.width * form.height * form.channels;
    const board = editor(form, { label: t("board"), tool: () => (current.tool === "erase" ? null : current.tool === "ink" ? form.levels - 1 : 0), onchange: () => classify() });
    const gallery = h("div", { class: "gallery", role: "group", "aria-label": t("samples") });
    const guesses = h("div", { class: "guesses", "aria-live": "polite" });
    const classifier = all.find((one) => one.kind === "image_label");
    if (form.classes.length && !form.classes.includes(current.label)) current.label = form.classes[0];
    const common = () => ({ model: current.model, seed: current.seed, temperature: current.temperature, ...(form.classes.length ? { label: current.label } : {}) });

    async function frames(request, onframe) {
      running?.abort();
      running = new AbortController();
      progress.hidden = false;
      try {
        for await (const frame of postLines("/api/inspect/draw", request, running.signal)) {
          progress.value = frame.known / size;
          status.say(t("pixels", { known: number(frame.known), size: number(size) }));
          onframe(frame);
        }
        status.say(t("drawn"));
      } catch (error) {
        if (!isAbort(error)) status.error(error);
      } finally {
        progress.hidden = true;
      }
    }

    function drawNew() {
      current.seed += 1;
      save({ seed: current.seed });
      frames({ ...common(), num: 9, ...(form.classes.length ? { label: null } : {}) }, ({ images, known }) => {
        if (gallery.children.length !== images.length) fill(gallery, images.map((_, index) => h("button", { type: "button", class: "thumb", "aria-label": t("use_sample", { number: index + 1 }) },
          h("canvas", { width: form.width * Math.max(1, Math.floor(96 / form.width)), height: form.height * Math.max(1, Math.floor(96 / form.width)) }))));
        images.forEach((levels, index) => {
          const thumb = gallery.children[index];
          paint(thumb.firstChild, form, levels, { known });
          thumb.onclick = () => { if (known >= size) { board.set(levels); classify(); } };
        });
      });
    }

    function complete() {
      current.seed += 1;
      save({ seed: current.seed });
      const given = board.levels.slice();
      if (!given.includes(null)) { status.say(t("nothing_erased")); return; }
      frames({ ...common(), given }, ({ images: [levels], known }) => {
        board.set(levels.map((value, index) => (index < known || given[index] !== null ? value : null)));
        if (known >= size) classify();
      });
    }

    async function example() {
      try {
        board.set(await get("/api/inspect/example", { model: current.model, number: current.example++ }));
        status.say();
        classify();
      } catch (error) {
        status.error(error);
      }
    }

    async function classify() {
      if (!classifier) return;
      if (board.levels.includes(null)) { fill(guesses); return; }
      try {
        const found = await post("/api/inspect/label-image", { model: classifier.name, image: board.levels });
        fill(guesses, h("h3", {}, t("guess", { model: classifier.name })), bars(found.slice(0, 4).map((one) => ({ text: one.text, value: one.probability })), { label: t("classes"), most: 1 }));
      } catch {
        fill(guesses); // a classifier of images of another size
      }
    }

    const half = () => { const rows = Math.ceil(form.height / 2); board.set(board.levels.map((value, index) => (index >= rows * form.width * form.channels ? null : value))); classify(); };
    const tools = h("fieldset", { class: "switch" }, h("legend", {}, t("tool")), ["erase", "ink", "paper"].map((tool) => h("label", {}, h("input", { type: "radio", name: "tool", value: tool, checked: current.tool === tool, onchange: () => { current.tool = tool; } }), t(`tool_${tool}`))));
    fill(body, h("div", { class: "with-details wide" },
      h("div", {}, tools, h("p", { class: "hint" }, boardHint()), board.element, progress,
        h("div", { class: "row" }, button(t("complete"), complete, { class: "primary" }), button(t("example"), example), button(t("half"), half),
          button(t("blank"), () => { board.set(new Array(size).fill(0)); classify(); }), button(t("erase_all"), () => { board.set(new Array(size).fill(null)); fill(guesses); })),
        h("p", { class: "hint" }, t("inpainting")), guesses),
      h("aside", { class: "details", "aria-label": t("samples") }, h("h2", {}, t("samples")), h("p", { class: "hint" }, t("samples_hint")),
        h("div", { class: "row" }, button(t("draw_new"), drawNew, { class: "primary" }), button(t("stop"), () => running?.abort())), gallery)));
    classes.hidden = !form.classes.length;
    fill(classes, field(t("class"), select(form.classes.map((one) => [one, one]), current.label, (value) => { current.label = value; save({ label: value }); })));
    redraw = () => board.redraw();
    example().then(drawNew);
  }

  root.append(h("div", { class: "controls" },
    field(t("model"), modelSelect(models, current.model, (value) => { current.model = value; save({ model: value }); running?.abort(); start(); })),
    classes,
    slider(t("temperature"), { min: 0.1, max: 1.5, step: 0.1, value: current.temperature, name: "temperature", oninput: (value) => { current.temperature = value; save({ temperature: value }); } })),
  status.root, body);
  const onTheme = () => redraw?.();
  window.addEventListener("themechange", onTheme);
  start();
  return () => { running?.abort(); window.removeEventListener("themechange", onTheme); };
}
