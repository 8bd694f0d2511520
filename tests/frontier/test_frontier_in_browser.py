"""The page of a frontier as a reader meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chainrule.frontier.report import render
from chainrule.frontier.results import Results
from tests.browser import CONTRAST, OVERLAPS, Open


@pytest.fixture
def opened(open_file: Open, results: Results, text_results: Results, tmp_path: Path) -> Open:
    """Open the frontier of translators, or that of a model of text."""
    (tmp_path / "translation.html").write_text(render(results), encoding="utf-8")
    (tmp_path / "text.html").write_text(render(text_results), encoding="utf-8")
    return lambda name="translation", **how: open_file(tmp_path / f"{name}.html", **how)


@pytest.mark.parametrize("name", ["translation", "text"])
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_panels_fill_the_page_and_nothing_sticks_out_or_covers_other_writing(
    opened: Open, name: str, scheme: str, width: int
) -> None:
    page = opened(name, scheme=scheme, width=width)
    shown = page.locator("svg.chart:visible")
    assert shown.count() == 2  # one a batch size
    for index in range(2):
        box = shown.nth(index).bounding_box()
        assert box["width"] > 0.8 * min(width, 1000)
        assert box["height"] > 250
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(OVERLAPS) == []
    contrast, where = page.evaluate(CONTRAST)
    assert contrast >= 4.5, where


def test_the_run_under_the_pointer_stands_out_and_tells_its_figures(opened: Open) -> None:
    page = opened()
    page.hover("#batch-1 svg.wide .mark[data-tip^='hybrid speculative']")
    assert "BLEU 36.90" in page.inner_text("#tip")
    assert "2.76 × base greedy" in page.inner_text("#tip")
    assert page.locator("#batch-1 svg.wide .mark.chosen").count() == 3  # the ways of this run
    assert page.locator("#batch-1 svg.wide .mark:not(.chosen)").count() == 7


def test_without_scripts_the_page_shows_the_same(opened: Open) -> None:
    page = opened(scripts=False)
    assert page.locator("svg.chart:visible").count() == 2
    assert page.locator("#copy").is_hidden()
    assert page.locator("#batch-16 svg.wide text", has_text="masked 10 passes").is_visible()
