"""The report of a frontier in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from chainrule.frontier.report import render
from chainrule.frontier.results import FrontierResults
from tests.browser import CONTRAST, OVERLAPS, Open


@pytest.fixture
def opened(open_file: Open, results: FrontierResults, text_results: FrontierResults, tmp_path: Path) -> Open:
    """Open the report of translation runs, or of a text run."""
    (tmp_path / "translation.html").write_text(render(results), encoding="utf-8")
    (tmp_path / "text.html").write_text(render(text_results), encoding="utf-8")
    return lambda name="translation", **how: open_file(tmp_path / f"{name}.html", **how)


@pytest.mark.parametrize("name", ["translation", "text"])
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_charts_fill_the_page_and_nothing_overflows_or_overlaps(
    opened: Open, name: str, scheme: str, width: int
) -> None:
    page = opened(name, scheme=scheme, width=width)
    shown = page.locator("svg.chart:visible")
    assert shown.count() == 2  # one per batch size
    for index in range(2):
        box = shown.nth(index).bounding_box()
        assert box["width"] > 0.8 * min(width, 1000)
        assert box["height"] > 250
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(OVERLAPS) == []
    contrast, where = page.evaluate(CONTRAST)
    assert contrast >= 4.5, where


def test_the_run_under_the_pointer_is_highlighted_and_has_a_tooltip(opened: Open) -> None:
    page = opened()
    page.hover("#batch-1 svg.wide .mark[data-tip^='hybrid speculative']")
    assert "BLEU 36.90" in page.inner_text("#tip")
    assert "2.76 × base greedy" in page.inner_text("#tip")
    assert page.locator("#batch-1 svg.wide .mark.chosen").count() == 3  # the methods of this run
    assert page.locator("#batch-1 svg.wide .mark:not(.chosen)").count() == 7


def test_without_javascript_the_page_has_the_same_content(opened: Open) -> None:
    page = opened(scripts=False)
    assert page.locator("svg.chart:visible").count() == 2
    assert page.locator("#copy").is_hidden()
    assert page.locator("#batch-16 svg.wide text", has_text="masked 10 passes").is_visible()
