"use strict";
// Interaction only: without this script the page has the same content, coloured by the best model.

const find = (selector) => document.querySelector(selector);

// Light, dark or system theme. A page opened from a file may have no storage; then the choice lasts until it is closed.
const theme = find("#theme");
const themes = ["system", "light", "dark"];
const storedTheme = {
  get: () => { try { return localStorage.getItem("chainrule-theme"); } catch { return null; } },
  set: (value) => { try { localStorage.setItem("chainrule-theme", value); } catch { /* not stored */ } },
};
function setTheme(choice) {
  document.documentElement.dataset.theme = choice;
  theme.querySelector("span").textContent = choice;
}
theme.hidden = false;
setTheme(themes.includes(storedTheme.get()) ? storedTheme.get() : "system");
theme.addEventListener("click", () => {
  const next = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
  setTheme(next);
  storedTheme.set(next);
});

// Copy the command that reproduces the report.
const copy = find("#copy");
copy.hidden = false;
copy.addEventListener("click", async () => {
  const command = find("#command");
  try {
    await navigator.clipboard.writeText(command.textContent);
    copy.textContent = "Copied";
  } catch {  // no clipboard access: select the command, so that the keyboard can copy it
    getSelection().selectAllChildren(command);
    copy.textContent = "Selected";
  }
  setTimeout(() => { copy.textContent = "Copy"; }, 2000);
});

// Tooltip.
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
  const token = event.target.closest("[data-excerpt] > span");
  if (target) show(target.dataset.tip, event);
  else if (token) show(surprisalsOf(token), event);
  else tip.hidden = true;
});
document.addEventListener("pointerleave", () => { tip.hidden = true; });

// In a chart, highlight the model under the pointer.
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

// The text, coloured by the surprisal of one model or by the difference between two.
const stored = find("#surprisals");
const { bits, surprisalSteps, differenceSteps } = stored ? JSON.parse(stored.textContent) : { bits: [] };
const steps = (value, edges) => edges.filter((edge) => value >= edge).length;
const position = (token) => [token.parentElement.dataset.excerpt, [...token.parentElement.children].indexOf(token)];

function surprisalsOf(token) {
  const [excerpt, index] = position(token);
  const lines = Object.entries(bits[excerpt]).map(([model, values]) => [values[index], model]);
  lines.sort((one, two) => one[0] - two[0]);
  const text = JSON.stringify(token.textContent.replace("↵\n", "\n"));
  return [text, ...lines.map(([value, model]) => `${value.toFixed(2)} bits  ${model}`)].join("\n");
}

function colourClass(model, other, index) {
  if (!other) return `heat-${steps(model[index], surprisalSteps)}`;
  const gain = other[index] - model[index];
  const level = steps(Math.abs(gain), differenceSteps);
  return level === 0 ? "even" : `${gain > 0 ? "ahead" : "behind"}-${level}`;
}

function colourText() {
  const model = find("#model").value;
  const other = find("#other").value;
  for (const text of document.querySelectorAll("[data-excerpt]")) {
    const values = bits[text.dataset.excerpt];
    [...text.children].forEach((token, index) => {
      token.className = colourClass(values[model], other && values[other], index);
    });
  }
  for (const mean of document.querySelectorAll("[data-model]")) {
    mean.classList.toggle("chosen", [model, other].includes(mean.dataset.model));
  }
  find("#key-surprisal").hidden = other !== "";
  find("#key-difference").hidden = other === "";
  find("#key-difference .first").textContent = model;
  find("#key-difference .second").textContent = other;
}

if (stored) {
  find(".controls").hidden = false;
  find(".controls").addEventListener("change", colourText);
  colourText();
}
