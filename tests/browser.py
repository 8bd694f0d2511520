"""Scripts that the tests of reports run in a browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

Open: TypeAlias = Callable[..., Any]
"""Opens a file with a colour scheme, a width, and JavaScript on or off."""

CONTRAST = """
() => {
  const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const over = (colour, below) => {
    pixel.fillStyle = below; pixel.fillRect(0, 0, 1, 1);
    pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1);
    return `rgb(${[...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3)})`;
  };
  const ground = (element) => element
    ? over(getComputedStyle(element).backgroundColor, ground(element.parentElement)) : "white";
  const light = (colour) => {
    const [red, green, blue] = colour.match(/\\d+/g).map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
  };
  const texts = [...document.querySelectorAll("main *, .top *, footer *")].filter((element) =>
    element.checkVisibility({ visibilityProperty: true }) && !element.closest("svg, option, .unseen, noscript")
    && [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  return texts.map((element) => {
    const below = ground(element);
    const [one, two] = [light(over(getComputedStyle(element).color, below)), light(below)];
    return [Math.max(one, two) / Math.min(one, two), element.outerHTML.slice(0, 120)];
  }).sort((one, two) => one[0] - two[0])[0];
}
"""
"""The lowest contrast of any text with its background, and where."""

OVERLAPS = """
() => [...document.querySelectorAll("svg.chart")].filter((chart) => chart.checkVisibility()).flatMap((chart) => {
  const texts = [...chart.querySelectorAll("text")];
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], index) => boxes.slice(index + 1).filter(([, b]) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4
  ).map(([two]) => one + " / " + two));
})
"""
"""Overlapping texts in charts."""
