"""The report in a real browser without network access, opened from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from chainrule.comparison.report import render, render_curve
from chainrule.comparison.results import BudgetCurve, ComparisonResults
from tests.browser import CONTRAST, OVERLAPS, Open


@pytest.fixture
def opened(open_file: Open, results: ComparisonResults, budget_curve: BudgetCurve, tmp_path: Path) -> Open:
    """Open the report, or the budget report."""
    (tmp_path / "report.html").write_text(render(results), encoding="utf-8")
    (tmp_path / "curve.html").write_text(render_curve(budget_curve), encoding="utf-8")
    return lambda name="report", **how: open_file(tmp_path / f"{name}.html", **how)


SCREENS = pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 400), ("dark", 400)])


@SCREENS
@pytest.mark.parametrize(("name", "charts"), [("report", 2), ("curve", 1)])
def test_charts_fill_the_page_and_nothing_overflows(
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
def test_chart_text_is_legible_and_does_not_overlap(opened: Open, width: int) -> None:
    page = opened(width=width)
    sizes = page.eval_on_selector_all(
        "svg.chart text", "texts => texts.map((text) => text.getBoundingClientRect().height)"
    )
    assert min(size for size in sizes if size) > 10
    assert page.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(opened: Open, scheme: str) -> None:
    page = opened(scheme=scheme)
    contrast, where = page.evaluate(CONTRAST)
    assert contrast >= 4.5, where
    page.select_option("#other", "ngram")
    contrast, where = page.evaluate(CONTRAST)
    assert contrast >= 4.5, where


def test_the_theme_follows_the_system_until_the_reader_chooses(opened: Open) -> None:
    page = opened(scheme="dark")
    background = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(background)
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: light"
    assert page.evaluate(background) != dark
    page.click("#theme")
    assert page.evaluate(background) == dark


def test_the_reader_chooses_the_model_that_colours_the_text(opened: Open, results: ComparisonResults) -> None:
    page = opened()
    classes = "spans => spans.map((span) => span.className)"
    by_best = page.eval_on_selector_all("[data-excerpt='0'] > span", classes)
    page.select_option("#model", "finite_memory")
    by_worst = page.eval_on_selector_all("[data-excerpt='0'] > span", classes)
    assert by_best != by_worst
    assert {name.split("-")[0] for name in by_worst} == {"heat"}
    page.select_option("#other", "gpt")
    compared = page.eval_on_selector_all("[data-excerpt='0'] > span", classes)
    assert {name.split("-")[0] for name in compared} == {"even", "ahead", "behind"}
    assert results.analysis is not None
    bits = results.analysis.excerpts[0].bits
    for name, own, other in zip(compared, bits["finite_memory"], bits["gpt"], strict=True):
        assert name.startswith("ahead" if own <= other - 0.5 else "behind" if own >= other + 0.5 else "even")
    assert page.is_visible("#key-difference")
    assert not page.is_visible("#key-surprisal")


def test_the_tooltip_of_a_token_has_its_surprisal_under_every_model(opened: Open, results: ComparisonResults) -> None:
    page = opened()
    page.hover("[data-excerpt='0'] > span >> nth=3")
    tip = page.inner_text("#tip")
    assert all(row.name in tip for row in results.rows)


def test_the_time_axis_can_be_linear(opened: Open) -> None:
    page = opened()
    assert "log scale" in page.locator("#learning svg:visible").text_content()
    page.check("input[value=linear]", force=True)
    assert "log scale" not in page.locator("#learning svg:visible").text_content()


def test_without_javascript_the_page_has_charts_and_coloured_text(opened: Open) -> None:
    page = opened(scripts=False)
    assert page.locator("svg.chart:visible").count() == 2
    assert page.locator("[data-excerpt='0'] .heat-3").count() > 0
    assert page.locator(".controls").is_hidden()
    assert page.locator("#copy").is_hidden()


def test_the_command_can_be_copied(opened: Open, results: ComparisonResults) -> None:
    page = opened()
    page.click("#copy")
    page.wait_for_function("document.querySelector('#copy').textContent !== 'Copy'")
    assert page.inner_text("#copy") in ("Copied", "Selected")
