"""The results of a comparison as text and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from chainrule.reports import formatting
from chainrule.reports.notebook import table_html
from chainrule.reports.scales import Scale, around

if TYPE_CHECKING:
    from chainrule.comparison.results import ComparisonResults, ComparisonRow, MetricColumn

BAR = "position:absolute;top:.45em;height:.5em;border-radius:.25em;background:#2f7de1;opacity:.4"
POINT = "position:absolute;top:.2em;width:3px;height:1em;border-radius:2px;background:#2f7de1"


def results_text(results: ComparisonResults) -> str:
    """A table of names, bits and intervals, best first, and the recommendation."""
    width = max(len(row.name) for row in results.rows)
    lines = [f"<comparison on {results.data}: {results.budget}"]
    for row in results.rows:
        low, high = row.interval
        task = "".join(
            f"  {one.name} {row.metrics[one.key].value:.{one.digits}f} ({shown_interval(row, one)})"
            for one in results.metrics
        )
        adaptive = "  adapts to the text it reads" if row.evaluation == "adaptive" else ""
        lines.append(
            f"  {row.name:{width}}{task}  {row.bits_per_byte:.4f} bits/{results.unit}  95 % {low:.3f}–{high:.3f}"
            f"{adaptive}"
        )
    lines += [f"  note: {note}" for note in results.notes]
    lines += [f"  {failure.name:{width}}  failed: {failure.reason}" for failure in results.failures]
    return "\n".join([*lines, f"  {results.recommendation}>"])


def results_html(results: ComparisonResults) -> str:
    """The table of a comparison, with the interval of each model on a common scale, and the recommendation."""
    low, high = around([edge for row in results.rows for edge in row.interval], margin=0.04)
    scale = Scale(low=low, high=high, start=0, end=100)
    names = [one.name for one in results.metrics]
    speed = f"decoding {results.speed_unit}/s"
    columns = ("model", *names, f"bits/{results.unit}", "95 %", "", "size", "training tokens/s", speed)
    table = table_html(
        columns,
        (_cells(row, scale, row.name == results.best, results.metrics) for row in results.rows),
        f"{results.data}: {results.budget}",
    )
    failures = "".join(
        f"<div>{escape(failure.name)} failed: {escape(failure.reason)}</div>" for failure in results.failures
    )
    notes = "".join(f"<div>note: {escape(note)}</div>" for note in results.notes)
    return f"{table}{notes}{failures}<div>{escape(results.recommendation)}</div>"


def shown_interval(row: ComparisonRow, metric: MetricColumn) -> str:
    """The interval of a metric of the task."""
    low, high = row.metrics[metric.key].interval
    return f"{low:.{metric.digits}f}–{high:.{metric.digits}f}"


def _cells(row: ComparisonRow, scale: Scale, best: bool, metrics: Sequence[MetricColumn]) -> list[str]:
    low, high = row.interval
    name = f"<b>{escape(row.name)}</b>" if best else escape(row.name)
    if row.evaluation == "adaptive":
        name += " (adapts to the text that it reads)"
    left, right = scale(low), scale(high)
    whisker = (
        '<span style="position:relative;display:inline-block;width:11em;height:1.4em;vertical-align:middle">'
        f'<span style="{BAR};left:{left}%;width:{max(right - left, 1):.1f}%"></span>'
        f'<span style="{POINT};left:calc({scale(row.bits_per_byte)}% - 1px)"></span></span>'
    )
    return [
        name,
        *(f"{row.metrics[one.key].value:.{one.digits}f} ({shown_interval(row, one)})" for one in metrics),
        f"{row.bits_per_byte:.4f}",
        f"{low:.3f}–{high:.3f}",
        whisker,
        formatting.count(row.parameters),
        f"{row.train_tokens_per_second:,.0f}",
        f"{row.speed:,.0f}",
    ]
