"""`report.html`: the results of a comparison as one self-contained page.

All content is visible without JavaScript; with it, the reader can choose which model colours the text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from chainrule.comparison.charts import budget_chart, learning_curves, metric_chart, speed_chart
from chainrule.comparison.results import (
    Analysis,
    BudgetCurve,
    ComparisonResults,
    ComparisonRow,
    Excerpt,
    TokenBucket,
)
from chainrule.reports import formatting
from chainrule.reports.charts import NARROW, WIDE, ChartVariant, Styles, responsive, series_styles
from chainrule.reports.page import KeyMetric, protocol_lines, render_page
from chainrule.reports.scales import Scale, around

PACKAGE = "chainrule.comparison"
SURPRISAL_STEPS = (1, 2, 3, 5, 8, 12)
"""Bits at which the colour of a token changes; the same as in `chainrule score --per-token`."""
DIFFERENCE_STEPS = (0.5, 1.5, 4)
"""Bits between two models at which the colour of their difference changes, in either direction."""
EXCESS_STEPS = (0.01, 0.03, 0.06, 0.12, 0.25)
"""Excess over the best model, as a fraction, at which the colour of a heat table's cell changes."""
MIN_COLUMN_TOKENS = 1000  # in a heat table's column, for its leader to be mentioned


def render(results: ComparisonResults) -> str:
    """The report of a comparison, as HTML."""
    rows, analysis = results.rows, results.analysis
    styles = series_styles({row.name: row.name for row in rows})
    return render_page(
        PACKAGE,
        "report.html.j2",
        filters={"heat": heat},
        surprisal_steps=SURPRISAL_STEPS,
        difference_steps=DIFFERENCE_STEPS,
        results=results,
        styles=styles,
        headline=_headline(
            rows, results.activity or f"predicts {'these images' if results.unit == 'dim' else 'this text'}"
        ),
        failures=[(failure.name, failure.reason) for failure in results.failures],
        key_metrics=_key_metrics(rows, results),
        leaderboard=leaderboard(rows),
        adaptive=any(row.evaluation == "adaptive" for row in rows),
        learning=_learning(rows, styles, results.unit),
        speed=_speed(rows, styles, results),
        mixtures=[row for row in rows if row.parts],
        heat_tables=_heat_tables(analysis, rows, results.unit) if analysis else [],
        excerpts=_displayed(analysis.excerpts) if analysis else [],
        protocol=protocol_lines(results.protocol),
    )


def render_curve(curve: BudgetCurve) -> str:
    """The report of a comparison at several budgets, as HTML."""
    styles = series_styles({name: name for name in curve.values})
    wide, narrow = replace(WIDE, height=480), replace(NARROW, height=380)
    charts = responsive(partial(budget_chart, curve, styles), wide, narrow)
    return render_page(PACKAGE, "curve.html.j2", curve=curve, styles=styles, charts=charts)


def _learning(rows: Sequence[ComparisonRow], styles: Styles, unit: str) -> list[ChartVariant]:
    if not any(row.kind == "family" and row.seconds > 0 for row in rows):
        return []
    return [
        variant
        for log, extra in ((True, "log"), (False, "linear"))
        for variant in responsive(partial(learning_curves, rows, styles, log=log, unit=unit), WIDE, NARROW, extra)
    ]


def _speed(rows: Sequence[ComparisonRow], styles: Styles, results: ComparisonResults) -> list[ChartVariant]:
    if not any(row.speed > 0 for row in rows):
        return []
    wide = replace(WIDE, right=NARROW.right)  # labels are next to the marks, not in the margin
    if results.metrics:
        return responsive(partial(metric_chart, rows, styles, metric=results.metrics[0]), wide, NARROW)
    return responsive(partial(speed_chart, rows, styles, unit=results.unit), wide, NARROW)


def _headline(rows: Sequence[ComparisonRow], does: str) -> str:
    if not rows:
        return "No model could be compared"
    if len(rows) == 1:
        return f"How well {rows[0].name} {does}"
    return f"{'A mixture of models' if rows[0].kind == 'mixture' else rows[0].name} {does} best"


def _key_metrics(rows: Sequence[ComparisonRow], results: ComparisonResults) -> list[KeyMetric]:
    """The best model, the best single family, the fastest to decode and the smallest."""
    if not rows:
        return []
    best = rows[0]
    quality = _quality(results)
    shown, (low, high), unit = quality(best)
    found = [KeyMetric("Best", shown, unit, f"95 % interval {low}–{high}", best.name)]
    families = [row for row in rows if row.kind == "family"]
    if best.kind == "mixture" and families:
        single = families[0]
        more = f"{single.bits_per_byte - best.bits_per_byte:.3f} more than the best"
        found.append(KeyMetric("Best single family", f"{single.bits_per_byte:.3f}", unit, more, single.name))
    fastest = max(rows, key=lambda row: row.speed)
    if fastest.speed > 0:
        speed = formatting.count(fastest.speed)
        note = f"at {quality(fastest).value} {unit}"
        found.append(KeyMetric("Fastest to decode", speed, f"{results.speed_unit}/s", note, fastest.name))
    smallest = min(rows, key=lambda row: row.parameters)
    note = f"at {quality(smallest).value} {unit}"
    found.append(KeyMetric("Smallest", formatting.count(smallest.parameters), "parameters", note, smallest.name))
    return found


class Quality(NamedTuple):
    """What models are ranked by, as displayed."""

    value: str
    interval: tuple[str, str]
    unit: str


def _quality(results: ComparisonResults) -> Callable[[ComparisonRow], Quality]:
    """The first metric of the task, or bits."""

    def bits(row: ComparisonRow) -> Quality:
        low, high = row.interval
        return Quality(f"{row.bits_per_byte:.3f}", (f"{low:.3f}", f"{high:.3f}"), f"bits/{results.unit}")

    def metric(row: ComparisonRow) -> Quality:
        column = results.metrics[0]
        value, (low, high) = row.metrics[column.key].value, row.metrics[column.key].interval
        digits = column.digits
        return Quality(f"{value:.{digits}f}", (f"{low:.{digits}f}", f"{high:.{digits}f}"), column.name)

    return metric if results.metrics else bits


class LeaderboardRow(NamedTuple):
    """A row of the main table, with its interval in percent of the column width."""

    row: ComparisonRow
    low: float
    at: float
    high: float
    behind: float  # bits per byte more than the best


def leaderboard(rows: Sequence[ComparisonRow]) -> list[LeaderboardRow]:
    """The rows with their intervals on a common scale."""
    if not rows:
        return []
    low, high = around([edge for row in rows for edge in row.interval], margin=0.04)
    scale = Scale(low=low, high=high, start=0, end=100)
    return [
        LeaderboardRow(
            row,
            scale(row.interval[0]),
            scale(row.bits_per_byte),
            scale(row.interval[1]),
            row.bits_per_byte - rows[0].bits_per_byte,
        )
        for row in rows
    ]


class HeatCell(NamedTuple):
    """The mean surprisal of one model on one bucket of tokens."""

    bits: float
    excess: float  # over the best model
    level: int  # 0: the best; then from slightly to much worse


class HeatTable(NamedTuple):
    """Token buckets as columns, models as rows."""

    key: str
    title: str
    finding: str
    columns: list[TokenBucket]
    fractions: list[float]  # of all tokens, per column
    rows: list[tuple[str, list[HeatCell]]]


def _heat_tables(analysis: Analysis, rows: Sequence[ComparisonRow], unit: str) -> list[HeatTable]:
    kinds = (
        ("position", f"By position in the {'image' if unit == 'dim' else 'text'}", analysis.by_position),
        ("frequency", "By word frequency", analysis.by_frequency),
    )
    return [heat_table(key, title, buckets, rows) for key, title, buckets in kinds if buckets]


def heat_table(key: str, title: str, buckets: Sequence[TokenBucket], rows: Sequence[ComparisonRow]) -> HeatTable:
    """Every model compared with the best one of each column."""
    names = [row.name for row in rows if all(row.name in bucket.bits_per_token for bucket in buckets)]
    total = sum(bucket.tokens for bucket in buckets)
    best = [min(bucket.bits_per_token.values()) for bucket in buckets]
    return HeatTable(
        key,
        title,
        _finding(buckets, [row.name for row in rows if row.kind == "family" and row.name in names]),
        list(buckets),
        [bucket.tokens / total for bucket in buckets],
        [
            (name, [_cell(bucket.bits_per_token[name], low) for bucket, low in zip(buckets, best, strict=True)])
            for name in names
        ],
    )


def _cell(bits: float, best: float) -> HeatCell:
    excess = bits - best
    level = 0 if excess <= 0 else 1 + sum(excess >= edge * best for edge in EXCESS_STEPS)
    return HeatCell(bits, excess, level)


def _finding(buckets: Sequence[TokenBucket], families: Sequence[str]) -> str:
    """The best single family of each column, as a sentence; a mixture is best in nearly all."""
    buckets = [bucket for bucket in buckets if bucket.tokens >= MIN_COLUMN_TOKENS]
    if len(families) < 2 or not buckets:
        return ""
    leaders = [(min(families, key=bucket.bits_per_token.__getitem__), bucket.label) for bucket in buckets]
    if len({name for name, _ in leaders}) == 1:
        return f"Best single family: {leaders[0][0]} in every column."
    parts = []
    for name, group in itertools.groupby(leaders, key=lambda leader: leader[0]):
        labels = [label for _, label in group]
        parts.append(f"{name} at {labels[0]}" + (f" to {labels[-1]}" if len(labels) > 1 else ""))
    return "Best single family: " + ", ".join(parts) + "."


class DisplayedExcerpt(NamedTuple):
    """An excerpt with visible line ends and mean surprisals."""

    title: str
    tokens: list[str]
    bits: dict[str, list[float]]
    means: dict[str, float]  # row name -> bits per token


def _displayed(excerpts: Sequence[Excerpt]) -> list[DisplayedExcerpt]:
    """Line ends become visible, since they are predicted like any other token."""
    return [
        DisplayedExcerpt(
            excerpt.title,
            [token.replace("\n", "↵\n") for token in excerpt.tokens],
            excerpt.bits,
            {name: sum(bits) / max(1, len(bits)) for name, bits in excerpt.bits.items()},
        )
        for excerpt in excerpts
    ]


def heat(bits: float) -> int:
    """The step of the colour scale for a surprisal in bits."""
    return sum(bits >= edge for edge in SURPRISAL_STEPS)
