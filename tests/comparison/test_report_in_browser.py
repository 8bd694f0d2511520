"""The report as a reader meets it: opened from a file in a real browser that has no network."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chainrule.comparison.report import render, render_curve
from chainrule.comparison.results import BudgetCurve, Results

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
Open = Callable[..., Any]

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
    element.checkVisibility() && !element.closest("svg, option, .unseen, noscript")
    && [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  return texts.map((element) => {
    const below = ground(element);
    const [one, two] = [light(over(getComputedStyle(element).color, below)), light(below)];
    return [Math.max(one, two) / Math.min(one, two), element.outerHTML.slice(0, 120)];
  }).sort((one, two) => one[0] - two[0])[0];
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        path = next(filter(None, map(shutil.which, BROWSERS)), started.chromium.executable_path)
        if not Path(path).exists():
            pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path, and playwright has none of its own")
        launched = started.chromium.launch(executable_path=path)
        yield launched
        launched.close()


@pytest.fixture
def opened(browser: Any, results: Results, budget_curve: BudgetCurve, tmp_path: Path) -> Iterator[Open]:
    """Open the report; at the end nothing may have been asked of the network, and no error logged."""
    contexts: list[Any] = []
    requests: list[str] = []
    complaints: list[str] = []
    (tmp_path / "report.html").write_text(render(results), encoding="utf-8")
    (tmp_path / "curve.html").write_text(render_curve(budget_curve), encoding="utf-8")

    def open_page(name: str = "report", *, scheme: str = "light", width: int = 1280, scripts: bool = True) -> Any:
        context = browser.new_context(
            offline=True, color_scheme=scheme, viewport={"width": width, "height": 900}, java_script_enabled=scripts
        )
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((tmp_path / f"{name}.html").as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert complaints == []


LOOKS = pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 400), ("dark", 400)])


@LOOKS
@pytest.mark.parametrize(("name", "charts"), [("report", 2), ("curve", 1)])
def test_charts_fill_the_page_and_nothing_sticks_out(
    opened: Open, scheme: str, width: int, name: str, charts: int
) -> None:
    page = opened(name, scheme=scheme, width=width)
    shown = page.locator("svg.chart:visible")
    assert shown.count() == charts
    for index in range(charts):
        box = shown.nth(index).bounding_box()
        assert box["width"] > 0.8 * min(width, 1000)
        assert box["height"] > 250
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("width", [1280, 400])
def test_the_writing_in_charts_is_large_enough_to_read_and_covers_no_other(opened: Open, width: int) -> None:
    page = opened(width=width)
    sizes = page.eval_on_selector_all(
        "svg.chart text", "texts => texts.map((text) => text.getBoundingClientRect().height)"
    )
    assert min(size for size in sizes if size) > 10
    overlaps = page.eval_on_selector_all(
        "svg.chart",
        """charts => charts.filter((chart) => chart.checkVisibility()).flatMap((chart) => {
          const texts = [...chart.querySelectorAll("text")];
          const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
          return boxes.flatMap(([one, a], index) => boxes.slice(index + 1).filter(([, b]) =>
            a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4
          ).map(([two]) => one + " / " + two));
        })""",
    )
    assert overlaps == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_writing_has_enough_contrast(opened: Open, scheme: str) -> None:
    page = opened(scheme=scheme)
    contrast, where = page.evaluate(CONTRAST)
    assert contrast >= 4.5, where
    page.select_option("#rival", "ngram")
    contrast, where = page.evaluate(CONTRAST)
    assert contrast >= 4.5, where


def test_the_scheme_follows_the_system_until_the_reader_chooses(opened: Open) -> None:
    page = opened(scheme="dark")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: light"
    assert page.evaluate(ground) != dark
    page.click("#theme")
    assert page.evaluate(ground) == dark


def test_the_reader_chooses_the_model_that_colours_the_text(opened: Open, results: Results) -> None:
    page = opened()
    classes = "spans => spans.map((span) => span.className)"
    by_best = page.eval_on_selector_all("[data-passage='0'] > span", classes)
    page.select_option("#model", "finite_memory")
    by_worst = page.eval_on_selector_all("[data-passage='0'] > span", classes)
    assert by_best != by_worst
    assert {name.split("-")[0] for name in by_worst} == {"heat"}
    page.select_option("#rival", "gpt")
    compared = page.eval_on_selector_all("[data-passage='0'] > span", classes)
    assert {name.split("-")[0] for name in compared} == {"even", "ahead", "behind"}
    assert results.analysis is not None
    bits = results.analysis.excerpts[0].bits
    for name, own, rival in zip(compared, bits["finite_memory"], bits["gpt"], strict=True):
        assert name.startswith("ahead" if own <= rival - 0.5 else "behind" if own >= rival + 0.5 else "even")
    assert page.is_visible("#key-difference")
    assert not page.is_visible("#key-surprise")


def test_a_token_under_the_pointer_tells_what_every_model_paid(opened: Open, results: Results) -> None:
    page = opened()
    page.hover("[data-passage='0'] > span >> nth=3")
    tip = page.inner_text("#tip")
    assert all(row.name in tip for row in results.rows)


def test_the_time_axis_can_be_linear(opened: Open) -> None:
    page = opened()
    assert "logarithmic" in page.locator("#learning svg:visible").text_content()
    page.check("input[value=linear]", force=True)
    assert "logarithmic" not in page.locator("#learning svg:visible").text_content()


def test_without_scripts_the_page_still_shows_charts_and_coloured_text(opened: Open) -> None:
    page = opened(scripts=False)
    assert page.locator("svg.chart:visible").count() == 2
    assert page.locator("[data-passage='0'] .heat-3").count() > 0
    assert page.locator(".controls").is_hidden()
    assert page.locator("#copy").is_hidden()


def test_the_command_can_be_copied(opened: Open, results: Results) -> None:
    page = opened()
    page.click("#copy")
    page.wait_for_function("document.querySelector('#copy').textContent !== 'Copy'")
    assert page.inner_text("#copy") in ("Copied", "Selected")
