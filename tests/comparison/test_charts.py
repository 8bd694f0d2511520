from __future__ import annotations

import itertools

import pytest

from chainrule.comparison.charts import budget_chart, learning_curves, speed_chart
from chainrule.comparison.report import render_curve
from chainrule.comparison.results import BudgetCurve, ComparisonResults, MetricColumn
from chainrule.reports.charts import FONT, NARROW, WIDE, ChartFrame, Styles, series_styles
from chainrule.reports.labels import text_box

FRAMES = pytest.mark.parametrize("frame", [WIDE, NARROW], ids=["wide", "narrow"])


def styles_of(results: ComparisonResults) -> Styles:
    return series_styles({row.name: row.name for row in results.rows})


@FRAMES
def test_every_model_in_the_speed_chart_has_a_label_without_overlap(
    results: ComparisonResults, frame: ChartFrame
) -> None:
    chart = speed_chart(results.rows, styles_of(results), frame)
    boxes = [text_box(label.text, label.x, label.y, font=FONT) for label in chart.labels]
    assert len(boxes) == len(results.rows)
    assert sum(one.overlap(two) for one, two in itertools.combinations(boxes, 2)) == 0
    assert all(box.inside(chart.area) for box in boxes)


@FRAMES
@pytest.mark.parametrize("log", [False, True])
def test_learning_curves_show_every_model_and_end_at_its_score(
    results: ComparisonResults, frame: ChartFrame, log: bool
) -> None:
    chart = learning_curves(results.rows, styles_of(results), frame, log=log)
    assert {line.name for line in chart.lines} == {row.name for row in results.rows}
    assert {line.name for line in chart.lines if line.level} == {"mixture", "ngram"}
    assert {mark.name for mark in chart.marks} == {row.name for row in results.rows} - {"mixture"}
    heights = {mark.name: mark.y for mark in chart.marks}
    assert heights["gpt"] > heights["recurrent"] > heights["finite_memory"]  # fewer bits are lower in the chart
    assert len(chart.x_ticks) >= 2


@FRAMES
def test_bands_name_the_best_model_of_each_range_of_budgets(budget_curve: BudgetCurve, frame: ChartFrame) -> None:
    chart = budget_chart(budget_curve, series_styles({name: name for name in budget_curve.bits_per_byte}), frame)
    assert [band.name for band in chart.bands] == ["ngram", "recurrent", "gpt"]
    assert (chart.bands[0].left, chart.bands[-1].right) == (chart.area.left, chart.area.right)
    assert all(one.right == two.left for one, two in itertools.pairwise(chart.bands))
    assert sum(mark.name == "self_regressive" for mark in chart.marks) == 5  # failed at one budget


def test_the_budget_curve_of_labels_shows_their_metric(budget_curve: BudgetCurve) -> None:
    accuracy = MetricColumn(key="accuracy", name="accuracy", digits=2)
    values: dict[str, list[float | None]] = {"words": [0.5, 0.75], "attentive_conv": [None, 0.91]}
    curve = budget_curve.model_copy(
        update={"minutes": [1.0, 2.0], "metric": accuracy, "metric_values": values, "leaders": list(values)}
    )
    page = render_curve(curve)
    assert "accuracy, higher is better" in page
    assert "<b>0.91</b>" in page
    assert "bits per" not in page.lower()
