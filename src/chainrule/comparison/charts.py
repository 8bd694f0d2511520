"""The charts of a comparison: learning curves, quality against speed, and results at several budgets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from chainrule.comparison.results import BudgetCurve, ComparisonRow, MetricColumn
from chainrule.reports import formatting
from chainrule.reports.charts import (
    FONT,
    Band,
    Chart,
    ChartFrame,
    Label,
    Line,
    Mark,
    QualitySpeedPoint,
    SeriesStyle,
    Styles,
    path,
    quality_speed_chart,
)
from chainrule.reports.labels import CHARACTER, spread
from chainrule.reports.scales import Scale, around, round_durations, round_numbers

LABEL_MARGIN = 100  # minimum right-hand margin that holds the labels of lines
BAND_HEIGHT = 34  # space for the band that names the leaders


def learning_curves(
    rows: Sequence[ComparisonRow], styles: Styles, frame: ChartFrame, *, log: bool, unit: str = "byte"
) -> Chart:
    """Bits per byte (or per `unit`) on the validation data against seconds of training.

    A model that is not trained iteratively is a single point; a mixture of trained models is a horizontal line.
    """
    rows = [row for row in rows if row.kind == "mixture" or row.seconds > 0]
    trained = [row for row in rows if row.kind == "family"]
    times = [row.seconds for row in trained]
    times += [point.seconds for row in trained for point in row.curve if point.seconds > 0]
    area = frame.area
    low, high = around(times, log=True, margin=0.02) if log else (0.0, max(times) * 1.02)
    x = Scale(low=low, high=high, start=area.left, end=area.right, log=log)
    bottom, top = _y_range(rows)
    y = Scale(low=bottom, high=top, start=area.bottom, end=area.top)
    return Chart(
        frame=frame,
        x_ticks=x.ticks(round_durations(low, high, log=log, most=frame.ticks), formatting.duration),
        y_ticks=y.ticks(round_numbers(bottom, top), formatting.plain),
        x_title="training time" + (" (log scale)" if log else ""),
        y_title=f"bits per {unit}, lower is better",
        lines=[_learning_line(row, styles[row.name], x, y) for row in rows],
        marks=[
            Mark(
                row.name,
                styles[row.name],
                x(row.seconds),
                y(row.bits_per_byte),
                f"{row.name}: {row.bits_per_byte:.3f} bits/{unit} after {formatting.duration(row.seconds)}",
            )
            for row in trained
        ],
        labels=_end_labels([(row.name, y(row.bits_per_byte)) for row in rows], styles, frame, area.bottom),
    )


def _learning_line(row: ComparisonRow, style: SeriesStyle, x: Scale, y: Scale) -> Line:
    """The learning curve of a model, or a horizontal line at its score if it has none."""
    level = y(row.bits_per_byte)
    if row.kind == "mixture":
        return Line(row.name, style, f"M{x.start} {level}H{x.end}", True)
    if not row.curve:
        return Line(row.name, style, f"M{x(row.seconds)} {level}H{x.end}", True)
    points = [(x(point.seconds), y(point.bits_per_byte)) for point in row.curve if point.seconds >= x.low]
    return Line(row.name, style, path(points))


def _y_range(rows: Sequence[ComparisonRow]) -> tuple[float, float]:
    """From the best score to somewhat above the worst; the first training steps may lie outside."""
    final = [row.bits_per_byte for row in rows]
    reached = [point.bits_per_byte for row in rows for point in row.curve]
    best, worst = min([*final, *reached]), max(final)
    top = min(max([*final, *reached]), worst + max(worst - best, 0.15 * worst))
    return around([best, top], margin=0.05)


def _end_labels(ends: Sequence[tuple[str, float]], styles: Styles, frame: ChartFrame, bottom: float) -> list[Label]:
    """Labels in the right-hand margin, spread apart; none in a narrow frame, which has a legend instead."""
    if frame.right < LABEL_MARGIN:
        return []
    edge = frame.area.right
    heights = spread([height for _, height in ends], gap=FONT * 1.35, low=frame.area.top, high=bottom)
    return [
        Label(name, name, styles[name], edge + 30, round(height, 1), f"M{edge + 4} {end}L{edge + 14} {height:.1f}h4")
        for (name, end), height in zip(ends, heights, strict=True)
    ]


def speed_chart(rows: Sequence[ComparisonRow], styles: Styles, frame: ChartFrame, *, unit: str = "byte") -> Chart:
    """Bits per byte against decoding speed, with the Pareto frontier."""
    return _quality_chart(
        rows, styles, frame, {row.name: row.bits_per_byte for row in rows}, f"bits per {unit}", f"bits/{unit}", 3
    )


def metric_chart(rows: Sequence[ComparisonRow], styles: Styles, frame: ChartFrame, *, metric: MetricColumn) -> Chart:
    """A metric of the task against the speed of labelling or translating, with the Pareto frontier."""
    values = {row.name: row.metrics[metric.key].value for row in rows}
    return _quality_chart(rows, styles, frame, values, metric.name, metric.name, metric.digits, texts=True)


def _quality_chart(
    rows: Sequence[ComparisonRow],
    styles: Styles,
    frame: ChartFrame,
    values: Mapping[str, float],
    quality: str,
    short: str,
    digits: int,
    *,
    texts: bool = False,
) -> Chart:
    decoded = "texts" if texts else "tokens"
    points = [
        QualitySpeedPoint(
            row.name,
            row.name,
            styles[row.name],
            row.speed,
            values[row.name],
            f"{row.name}: {values[row.name]:.{digits}f} {short}, {formatting.count(row.speed)} {decoded}/s",
        )
        for row in rows
        if row.speed > 0
    ]
    return quality_speed_chart(
        points, frame, quality=quality, speed=f"decoded {decoded} per second", higher_is_better=texts
    )


def budget_chart(curve: BudgetCurve, styles: Styles, frame: ChartFrame) -> Chart:
    """Bits per byte, or the metric of the task, against the budget; a band names the best model at each budget."""
    area = frame.area
    known = {
        name: [(minutes, bits) for minutes, bits in zip(curve.minutes, series, strict=True) if bits is not None]
        for name, series in curve.values.items()
    }
    known = {name: series for name, series in known.items() if series}
    low, high = around(curve.minutes, log=True, margin=0.06)
    bottom, top = around([bits for series in known.values() for _, bits in series])
    x = Scale(low=low, high=high, start=area.left, end=area.right, log=True)
    y = Scale(low=bottom, high=top, start=area.bottom - BAND_HEIGHT, end=area.top)
    return Chart(
        frame=frame,
        x_ticks=x.ticks(curve.minutes, lambda minutes: formatting.duration(minutes * 60)),
        y_ticks=y.ticks(round_numbers(bottom, top), formatting.plain),
        x_title="budget of the whole comparison (log scale)",
        y_title=f"{curve.quantity}, {'lower' if curve.metric is None else 'higher'} is better",
        lines=[
            Line(name, styles[name], path([(x(minutes), y(bits)) for minutes, bits in series]))
            for name, series in known.items()
        ],
        marks=[
            Mark(
                name,
                styles[name],
                x(minutes),
                y(bits),
                f"{name}: {curve.quantity} {curve.shown(bits)} in {minutes:g} min",
            )
            for name, series in known.items()
            for minutes, bits in series
        ],
        labels=_end_labels(
            [(name, y(series[-1][1])) for name, series in known.items()], styles, frame, area.bottom - BAND_HEIGHT
        ),
        bands=_leader_bands(curve, x, styles),
    )


def _worded(curve: BudgetCurve, value: float) -> str:
    unit = f"{curve.shown(value)} bits/{curve.unit}"
    return unit if curve.metric is None else f"{curve.quantity} {curve.shown(value)}"


def _leader_bands(curve: BudgetCurve, x: Scale, styles: Styles) -> list[Band]:
    """A band for each range of budgets with the same leader; they meet half-way between budgets."""
    bands: list[Band] = []
    middles = [math.sqrt(one * two) for one, two in itertools.pairwise(curve.minutes)]
    edges = [x.start, *map(x, middles), x.end]
    for name, (begin, right) in zip(curve.leaders, itertools.pairwise(edges), strict=True):
        left = bands.pop().left if bands and bands[-1].name == name else begin
        text = name if right - left > (len(name) + 3) * CHARACTER * FONT else ""
        bands.append(Band(name, styles[name], left, right, text))
    return bands
