"""Progress of a comparison, and how its results are shown from Python."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import chainrule as package
from chainrule.comparison.progress import ComparisonLines, comparison_progress
from chainrule.comparison.results import ComparisonResults
from tests.conftest import LINES


def test_a_comparison_from_python_shows_progress_unless_it_is_silenced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("".join(LINES) * 40)
    options = {"out": tmp_path / "out", "families": ["ngram"], "tokens": 1000}
    package.compare(str(tmp_path / "text.txt"), **options)
    lines = capfd.readouterr().err.splitlines()
    assert all(line.strip() for line in lines)
    assert any(line.startswith("1 models") for line in lines)
    assert "ngram: trained and scored" in lines
    package.compare(str(tmp_path / "text.txt"), **options, resume=True, progress=False)
    assert capfd.readouterr().err == ""


def test_off_a_terminal_families_that_are_at_work_are_named_with_what_they_have_done() -> None:
    stream, now = io.StringIO(), [0.0]
    listener = ComparisonLines(Console(file=stream, width=200))
    listener.lines.clock = lambda: now[0]
    listener.fractions = {"ngram": 0.0, "gpt": 0.0}
    listener.lines.begin("training")
    listener.job("ngram", 1.0, {})
    now[0] = 31.0
    listener.job("gpt", 0.25, {"loss": 2.0})
    listener.stage("fitting", 0.5)
    now[0] = 62.0
    listener.stage("fitting", 0.75)
    listener.lines.end()
    assert stream.getvalue().splitlines() == [
        "training",
        "ngram: trained and scored",
        "training: 62%, 31 s · gpt 25%",
        "training: ended at 62%, 31 s · gpt 25%",
        "fitting",
        "fitting: 75%, 31 s",
        "fitting: ended at 75%, 31 s",
    ]


def test_in_a_terminal_there_are_bars() -> None:
    stream = io.StringIO()
    with comparison_progress(Console(file=stream, force_terminal=True, width=100)) as listener:
        listener.stage("tokenizing", 0.5)
    assert "tokenizing" in stream.getvalue()


def test_results_print_as_a_table_and_show_intervals_in_a_notebook(results: ComparisonResults) -> None:
    text = repr(results)
    assert str(results) == text
    assert len(text.splitlines()) == 1 + len(results.rows) + len(results.failures) + 1
    assert "2.0210 bits/byte" in text
    html = results._repr_html_()
    assert html.count("<tr") == 1 + len(results.rows)
    assert "<b>mixture</b>" in html
    assert "width 130 is not divisible" in html
    assert results.recommendation.split(":")[0] in html
