"""`report.html`: quality against speed, one chart per batch size, and all values in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from chainrule.frontier.results import (
    FrontierResults,
    FrontierRow,
    Speed,
    failures_by_reason,
    format_quality,
    measured_points,
    output_check,
    row_quality,
)
from chainrule.reports import formatting
from chainrule.reports.charts import (
    NARROW,
    WIDE,
    Chart,
    ChartFrame,
    ChartVariant,
    QualitySpeedPoint,
    Styles,
    quality_speed_chart,
    responsive,
    series_styles,
)
from chainrule.reports.page import KeyMetric, protocol_lines, render_page

NEARLY_BEST = 0.05  # relative loss of quality that counts as small
WIDE_PANEL = replace(WIDE, right=NARROW.right)  # labels are next to the marks, not in the margin
NARROW_PANEL = replace(NARROW, height=360)


class Panel(NamedTuple):
    """The chart of one batch size."""

    batch: int
    charts: list[ChartVariant]


def render(results: FrontierResults) -> str:
    """The report, as HTML."""
    styles = series_styles({row.run: row.family for row in results.rows})
    checks = {row.name: output_check(row, results.item) for row in results.rows}
    return render_page(
        "chainrule.frontier",
        "frontier.html.j2",
        filters={"quality": format_quality},
        results=results,
        styles=styles,
        headline=_headline(results),
        key_metrics=_key_metrics(results),
        panels=_panels(results, styles),
        metrics=list(dict.fromkeys(name for row in results.rows for name in row.quality)),
        checks=checks,
        checked=any(checks.values()),
        failures=failures_by_reason(results.failures),
        protocol=protocol_lines(results.protocol),
    )


def _panels(results: FrontierResults, styles: Styles) -> list[Panel]:
    points = {batch: measured_points(results, batch) for batch in results.batches}
    return [
        Panel(batch, responsive(partial(_chart, found, results, styles), WIDE_PANEL, NARROW_PANEL))
        for batch, found in points.items()
        if found
    ]


def _chart(
    points: Sequence[tuple[FrontierRow, Speed]], results: FrontierResults, styles: Styles, frame: ChartFrame
) -> Chart:
    """Labels include the run if there are several and the chart is wide enough."""
    short = len(styles) == 1 or frame.width < WIDE.width
    return quality_speed_chart(
        [
            QualitySpeedPoint(
                row.run,
                row.method if short else row.name,
                styles[row.run],
                speed.per_second(results.throughput),
                row.quality[results.metric],
                _tip(row, speed, results),
            )
            for row, speed in points
        ],
        frame,
        quality=results.metric,
        speed=f"{results.throughput} per second",
        higher_is_better=results.higher_is_better,
    )


def _tip(row: FrontierRow, speed: Speed, results: FrontierResults) -> str:
    quality = ", ".join(f"{name} {format_quality(value, name)}" for name, value in row.quality.items())
    throughput = f"{formatting.digits(speed.per_second(results.throughput))} {results.throughput}/s"
    speedup = "" if speed.speedup is None else f", {formatting.digits(speed.speedup)} × {results.baseline}"
    return f"{row.name}: {quality} at {throughput}{speedup}"


def _headline(results: FrontierResults) -> str:
    """The fastest of the methods whose quality is the best or nearly so."""
    points = measured_points(results, results.batches[0])
    if not points:
        return "Quality against speed"
    best, slow = max(points, key=lambda point: results.merit(point[0]))
    least = results.merit(best) - NEARLY_BEST * abs(results.merit(best))
    row, speed = max(
        (point for point in points if results.merit(point[0]) >= least), key=lambda point: point[1].items_per_second
    )
    if row.name == best.name:
        return f"{best.name} is best, and nothing nearly as good is faster"
    speedup = formatting.digits(speed.items_per_second / slow.items_per_second)
    alike = "as good" if results.merit(row) == results.merit(best) else "nearly as good"
    return f"{row.name} is {alike} as {best.name} and {speedup} times as fast"


def _key_metrics(results: FrontierResults) -> list[KeyMetric]:
    """The best method, and the fastest at each batch size."""
    assessed = [row for row in results.rows if results.metric in row.quality]
    if not assessed:
        return []
    best = max(assessed, key=results.merit)
    found = [KeyMetric("Best quality", row_quality(results, best), results.metric, best.method, best.run)]
    for batch in results.batches:
        if points := measured_points(results, batch):
            row, speed = max(points, key=lambda point: point[1].items_per_second)
            note = f"{row.method}, {results.metric} {row_quality(results, row)}"
            value = formatting.digits(speed.per_second(results.throughput))
            title = f"Fastest at batch size {batch}"
            found.append(KeyMetric(title, value, f"{results.throughput}/s", note, row.run))
    return found
