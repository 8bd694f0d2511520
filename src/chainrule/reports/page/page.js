"use strict";
// Interaction only: without this script the page shows the same, coloured by the best model.

const find = (selector) => document.querySelector(selector);

// Light, dark, or as the system says. A page from a file may have no storage; then the choice lasts for the visit.
const theme = find("#theme");
const themes = ["system", "light", "dark"];
const remember = {
  get: () => { try { return localStorage.getItem("chainrule-theme"); } catch { return null; } },
  set: (value) => { try { localStorage.setItem("chainrule-theme", value); } catch { /* not kept */ } },
};
function wear(choice) {
  document.documentElement.dataset.theme = choice;
  theme.querySelector("span").textContent = choice;
}
theme.hidden = false;
wear(themes.includes(remember.get()) ? remember.get() : "system");
theme.addEventListener("click", () => {
  const next = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
  wear(next);
  remember.set(next);
});

// The command that repeats the comparison.
const copy = find("#copy");
copy.hidden = false;
copy.addEventListener("click", async () => {
  const command = find("#command");
  try {
    await navigator.clipboard.writeText(command.textContent);
    copy.textContent = "Copied";
  } catch {  // no clipboard here: select it, so that the keyboard can copy it
    getSelection().selectAllChildren(command);
    copy.textContent = "Selected";
  }
  setTimeout(() => { copy.textContent = "Copy"; }, 2000);
});

// What is under the pointer.
const tip = find("#tip");
function show(text, event) {
  tip.textContent = text;
  tip.hidden = false;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  const below = event.clientY + 18;
  const above = event.clientY - tip.offsetHeight - 12;
  tip.style.left = `${Math.max(8, Math.min(room, event.clientX + 12))}px`;
  tip.style.top = `${below + tip.offsetHeight > innerHeight ? above : below}px`;
}
document.addEventListener("pointermove", (event) => {
  const target = event.target.closest("[data-tip]");
  const token = event.target.closest("[data-passage] > span");
  if (target) show(target.dataset.tip, event);
  else if (token) show(paid(token), event);
  else tip.hidden = true;
});
document.addEventListener("pointerleave", () => { tip.hidden = true; });

// In a chart, the model under the pointer stands out.
for (const figure of document.querySelectorAll("figure:has(.chart)")) {
  figure.addEventListener("pointerover", (event) => {
    const chosen = event.target.closest("[data-name]")?.dataset.name;
    figure.classList.toggle("focused", chosen !== undefined);
    for (const part of figure.querySelectorAll("[data-name]")) {
      part.classList.toggle("chosen", part.dataset.name === chosen);
    }
  });
  figure.addEventListener("pointerleave", () => figure.classList.remove("focused"));
}

// The text, coloured by one model's surprise or by the difference of two.
const stored = find("#surprisals");
const { bits, surprise, advantage } = stored ? JSON.parse(stored.textContent) : { bits: [] };
const steps = (value, edges) => edges.filter((edge) => value >= edge).length;
const place = (token) => [token.parentElement.dataset.passage, [...token.parentElement.children].indexOf(token)];

function paid(token) {
  const [passage, index] = place(token);
  const lines = Object.entries(bits[passage]).map(([model, values]) => [values[index], model]);
  lines.sort((one, two) => one[0] - two[0]);
  const said = JSON.stringify(token.textContent.replace("↵\n", "\n"));
  return [said, ...lines.map(([value, model]) => `${value.toFixed(2)} bits  ${model}`)].join("\n");
}

function shade(model, rival, index) {
  if (!rival) return `heat-${steps(model[index], surprise)}`;
  const gain = rival[index] - model[index];
  const level = steps(Math.abs(gain), advantage);
  return level === 0 ? "even" : `${gain > 0 ? "ahead" : "behind"}-${level}`;
}

function colour() {
  const model = find("#model").value;
  const rival = find("#rival").value;
  for (const text of document.querySelectorAll("[data-passage]")) {
    const values = bits[text.dataset.passage];
    [...text.children].forEach((token, index) => {
      token.className = shade(values[model], rival && values[rival], index);
    });
  }
  for (const mean of document.querySelectorAll("[data-model]")) {
    mean.classList.toggle("chosen", [model, rival].includes(mean.dataset.model));
  }
  find("#key-surprise").hidden = rival !== "";
  find("#key-difference").hidden = rival === "";
  find("#key-difference .first").textContent = model;
  find("#key-difference .second").textContent = rival;
}

if (stored) {
  find(".controls").hidden = false;
  find(".controls").addEventListener("change", colour);
  colour();
}
