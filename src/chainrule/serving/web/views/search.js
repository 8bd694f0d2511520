// Search: the hypotheses of a beam search step by step, and draft tokens accepted and rejected.

import { isAbort, post } from "../api.js";
import { debounced, fill, h, s } from "../dom.js";
import { number, percent, t } from "../i18n.js";
import { button, field, modelSelect, quoted, select, slider, statusLine, textarea, visible } from "../controls.js";

const COLUMN = 92;
const ROW = 46;

const oneLine = (text) => text.replaceAll("\n", "⏎");

export function show(root, { models, all, state, save }) {
  const names = models.map((one) => one.name);
  const current = {
    mode: state.mode === "drafts" ? "drafts" : "beam", model: names.includes(state.model) ? state.model : names[0],
    width: Number(state.width ?? 4), length: Number(state.length ?? 12), penalty: Number(state.penalty ?? 1), draft: state.draft ?? "",
    block: Number(state.block ?? 4), temperature: Number(state.temperature ?? 0.7),
  };
  const kind = () => models.find((one) => one.name === current.model).kind;
  const sample = () => t(kind() === "text" ? "sample_prompt" : "sample_source");
  current.text = state.text ?? sample();
  const status = statusLine();
  const result = h("div", { class: "result" });
  const options = h("div", { class: "controls" });
  let running = null;
  let timer = 0;

  async function run() {
    running?.abort();
    running = new AbortController();
    clearInterval(timer);
    status.loading();
    try {
      if (current.mode === "beam") {
        const body = { model: current.model, text: current.text, width: current.width, length: current.length, length_penalty: current.penalty };
        tree(await post("/api/inspect/search", body, running.signal));
      } else {
        const body = { model: current.model, text: current.text, draft: current.draft || null, block: current.block, length: 60, temperature: current.temperature };
        blocks(await post("/api/inspect/draft", body, running.signal));
      }
      status.say();
    } catch (error) {
      if (isAbort(error)) return;
      fill(result);
      status.error(error);
    }
  }

  // Beam search

  function tree(answer) {
    const { nodes, steps, found } = answer;
    const last = steps.length;
    const row = new Map();
    steps.forEach((live) => live.forEach((node, at) => row.set(node, at)));
    const best = new Set();
    for (let node = found[0]?.node ?? null; node !== null; node = nodes[node].parent) best.add(node);
    const path = (node) => { const texts = []; for (let at = node; at !== null; at = nodes[at].parent) texts.unshift(nodes[at].special === "eos" ? "" : nodes[at].text); return texts.join(""); };
    const alive = (step) => {
      const kept = new Set();
      const add = (node) => { for (let at = node; at !== null; at = nodes[at].parent) kept.add(at); };
      steps[step - 1].forEach(add);
      nodes.forEach((one, index) => { if (one.finished && one.step <= step) add(index); });
      return kept;
    };
    const x = (node) => nodes[node].step * COLUMN - COLUMN + 64;
    const y = (node) => row.get(node) * ROW + 8;
    const width = last * COLUMN + 70;
    const height = Math.max(...steps.map((one) => one.length)) * ROW + 14;
    const parts = nodes.map((one, index) => {
      const from = one.parent === null ? [54, 8 + 15] : [x(one.parent) + COLUMN - 18, y(one.parent) + 15];
      const middle = (from[0] + x(index)) / 2;
      const edge = s("path", { class: "edge", d: `M${from} C${middle},${from[1]} ${middle},${y(index) + 15} ${x(index)},${y(index) + 15}` });
      const text = visible(one);
      const node = s("g", { class: "node", transform: `translate(${x(index)} ${y(index)})` }, s("rect", { width: COLUMN - 18, height: 30, rx: 5 }),
        s("text", { x: 8, y: 13, class: "node-token" }, text.length > 9 ? `${text.slice(0, 8)}…` : text), s("text", { x: 8, y: 25, class: "node-score" }, number(one.log_prob)),
        s("title", {}, `${path(index)}: log P ${number(one.log_prob)}`));
      return { edge, node };
    });
    const picture = s("svg", { class: "tree", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("tree_label", { nodes: nodes.length, steps: last }) },
      s("text", { x: 4, y: 27, class: "node-token" }, t("start")), parts.map((one) => one.edge), parts.map((one) => one.node));
    const caption = h("h2", {});
    const table = h("tbody", {});
    const stage = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": t("tree_scroll") }, picture);
    function display(step) {
      current.step = step;
      const kept = alive(step);
      nodes.forEach((one, index) => {
        const hidden = one.step > step;
        const final = step === last && best.has(index);
        const name = `${hidden ? "later" : kept.has(index) ? "live" : "dropped"}${one.finished ? " finished" : ""}${final ? " best" : ""}`;
        parts[index].node.setAttribute("class", `node ${name}`);
        parts[index].edge.setAttribute("class", `edge ${name}`);
      });
      caption.textContent = t("beam_after", { step, steps: last });
      const shown = [...steps[step - 1]];
      fill(table, shown.map((node, at) => h("tr", {}, h("td", {}, number(at + 1)), h("td", { class: "hypothesis" }, oneLine(path(node)), nodes[node].finished ? h("small", {}, ` ${t("finished")}`) : null), h("td", { class: "number" }, number(nodes[node].log_prob)))));
      stage.scrollTo({ left: Math.max(0, step * COLUMN + 90 - stage.clientWidth), behavior: "smooth" });
    }
    const control = slider(t("step"), { min: 1, max: last, step: 1, value: last, name: "step", shown: (value) => `${value} / ${last}`, oninput: (value) => { clearInterval(timer); display(value); } });
    const play = button(t("play"), () => {
      clearInterval(timer);
      let step = 1;
      control.set(step); display(step);
      timer = setInterval(() => { if (step >= last) { clearInterval(timer); return; } step += 1; control.set(step); display(step); }, 700);
    });
    fill(result, h("div", { class: "row" }, control, play), stage,
      h("p", { class: "key small" }, h("span", { class: "swatch live" }, t("in_beam")), h("span", { class: "swatch dropped" }, t("dropped")), h("span", { class: "swatch best" }, t("best_path"))),
      h("div", { class: "columns" },
        h("div", {}, caption, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, h("th", {}, "#"), h("th", {}, t("hypothesis")), h("th", { class: "number" }, "log P"))), table)),
        h("div", {}, h("h2", {}, t("results")), h("table", { class: "plain" }, h("thead", {}, h("tr", {}, h("th", {}, "#"), h("th", {}, t("text")), h("th", { class: "number" }, t("score")))),
          h("tbody", {}, found.map((one, at) => h("tr", {}, h("td", {}, number(at + 1)), h("td", { class: "hypothesis" }, oneLine(one.text)), h("td", { class: "number" }, number(one.score, 3)))))))));
    display(last);
  }

  // Drafts

  function blocks(answer) {
    const rows = answer.blocks.map((block, index) => {
      const tokens = block.drafted.map((token, at) => {
        const accepted = at < block.accepted;
        const judged = at <= block.accepted;
        const name = accepted ? "accepted" : judged ? "rejected" : "unread";
        return h("span", { class: `draft ${name}`, title: t(name) }, h("span", { "aria-hidden": "true" }, accepted ? "✓" : judged ? "✕" : ""), visible(token), h("span", { class: "unseen" }, ` (${t(name)}) `));
      });
      const own = block.chosen.slice(block.accepted).map((token) => h("span", { class: "draft own", title: t("own_token") }, visible(token), h("span", { class: "unseen" }, ` (${t("own_token")}) `)));
      return h("li", {}, h("span", { class: "pass" }, number(index + 1)), tokens, tokens.length ? h("span", { class: "arrow", "aria-hidden": "true" }, "→") : null, own);
    });
    const text = answer.blocks.flatMap((block) => block.chosen.map((token, at) => h("span", { class: at < block.accepted ? "drafted-text" : "own-text" }, token.special === "eos" ? "" : token.text)));
    fill(result,
      h("dl", { class: "metrics" }, [
        [t("acceptance"), answer.drafted ? percent(answer.accepted / answer.drafted) : "–", t("acceptance_note", { accepted: number(answer.accepted), drafted: number(answer.drafted) })],
        [t("per_pass"), number(answer.tokens / Math.max(1, answer.passes)), t("per_pass_note", { tokens: number(answer.tokens), passes: number(answer.passes) })],
      ].map(([name, value, note]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value), h("small", {}, note))))),
      h("h2", {}, t("text")), h("p", { class: "text sample" }, h("span", { class: "prompt" }, current.text), text),
      h("p", { class: "key small" }, h("span", { class: "draft accepted" }, "✓ ", t("accepted")), h("span", { class: "draft rejected" }, "✕ ", t("rejected")), h("span", { class: "draft unread" }, t("unread")), h("span", { class: "draft own" }, t("own_token"))),
      h("h2", {}, t("passes")), h("ol", { class: "passes" }, rows));
  }

  const later = debounced(run, 500);
  const area = textarea(current.text, (value) => { current.text = value; save({ text: value }); later(); }, { rows: 2 });
  const change = (name) => (value) => { current[name] = value; save({ [name]: value }); later(); };
  function showOptions() {
    const beam = current.mode === "beam";
    const usable = models.filter((one) => beam || one.kind === "text");
    if (!usable.some((one) => one.name === current.model)) { current.model = usable[0]?.name ?? current.model; area.value = current.text = sample(); }
    const drafts = all.filter((one) => one.kind === "text" && one.name !== current.model);
    fill(options,
      field(t("model"), modelSelect(usable, current.model, (value) => {
        const before = kind();
        current.model = value;
        if (kind() !== before) { area.value = current.text = sample(); }
        save({ model: value, text: current.text });
        showOptions();
        run();
      })),
      beam ? [
        slider(t("beam_width"), { min: 1, max: 8, step: 1, value: current.width, name: "width", oninput: change("width") }),
        slider(t("length"), { min: 1, max: 40, step: 1, value: current.length, name: "length", oninput: change("length") }),
        slider(t("length_penalty"), { min: 0, max: 2, step: 0.1, value: current.penalty, name: "penalty", oninput: change("penalty") }),
      ] : [
        field(t("draft_model"), select([["", t("draft_self")], ...drafts.map((one) => [one.name, one.name])], current.draft, (value) => { current.draft = value; save({ draft: value }); run(); })),
        slider(t("block"), { min: 1, max: 12, step: 1, value: current.block, name: "block", oninput: change("block") }),
        slider(t("temperature"), { min: 0, max: 1.5, step: 0.1, value: current.temperature, name: "temperature", shown: (value) => (value === 0 ? t("greedy") : number(value)), oninput: change("temperature") }),
      ]);
  }
  const modes = h("fieldset", { class: "switch" }, h("legend", {}, t("method")), ["beam", "drafts"].map((mode) => h("label", {}, h("input", { type: "radio", name: "mode", value: mode, checked: current.mode === mode, onchange: () => {
    current.mode = mode;
    save({ mode });
    clearInterval(timer);
    if (mode === "drafts" && !current.draft) current.draft = all.find((one) => one.kind === "text" && one.family === "ngram" && one.name !== current.model)?.name ?? "";
    fill(result);
    showOptions();
    run();
  } }), t(`mode_${mode}`))));
  root.append(modes, options, field(t("text_or_source"), area), status.root, result);
  showOptions();
  run();
  return () => { later.cancel(); running?.abort(); clearInterval(timer); };
}
