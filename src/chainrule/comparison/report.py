"""`report.html`: one file that shows all that a comparison found, and needs nothing else to be read.

Everything is there without JavaScript; with it, the reader can choose which model colours the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from chainrule.comparison.charts import budget_lines, frontier, learning_curves
from chainrule.comparison.results import Analysis, BudgetCurve, Excerpt, Results, Row
from chainrule.comparison.tables import HeatTable, heat_table, leaderboard
from chainrule.reports import figures
from chainrule.reports.charts import NARROW, WIDE, Looks, Variant, both, looks
from chainrule.reports.page import KeyFigure, facts, page

PACKAGE = "chainrule.comparison"
SURPRISE = (1, 2, 3, 5, 8, 12)
"""Bits at which the colour of a token changes; the same steps as `chainrule score --per-token`."""
ADVANTAGE = (0.5, 1.5, 4)
"""Bits between two models at which the colour of their difference changes, either way."""


def render(results: Results) -> str:
    """The whole page."""
    rows, analysis = results.rows, results.analysis
    look = looks({row.name: row.name for row in rows})
    return page(
        PACKAGE,
        "report.html.j2",
        filters={"heat": heat},
        surprise=SURPRISE,
        advantage=ADVANTAGE,
        results=results,
        look=look,
        headline=_headline(rows, "these images" if results.unit == "dim" else "this text"),
        key_figures=_key_figures(rows, f"bits/{results.unit}"),
        leaderboard=leaderboard(rows),
        learning=_learning(rows, look, results.unit),
        frontier=_frontier(rows, look, results.unit),
        mixtures=[row for row in rows if row.parts],
        heat_tables=_heat_tables(analysis, rows, results.unit) if analysis else [],
        passages=_passages(analysis.excerpts) if analysis else [],
        protocol=facts(results.protocol),
    )


def render_curve(curve: BudgetCurve) -> str:
    """The page of a comparison at several budgets."""
    look = looks({name: name for name in curve.bits_per_byte})
    wide, narrow = replace(WIDE, height=480), replace(NARROW, height=380)
    charts = both(partial(budget_lines, curve, look), wide, narrow)
    return page(PACKAGE, "curve.html.j2", curve=curve, look=look, charts=charts)


def _learning(rows: Sequence[Row], look: Looks, unit: str) -> list[Variant]:
    if not any(row.kind == "family" and row.seconds > 0 for row in rows):
        return []
    return [
        variant
        for log, extra in ((True, "log"), (False, "linear"))
        for variant in both(partial(learning_curves, rows, look, log=log, unit=unit), WIDE, NARROW, extra)
    ]


def _frontier(rows: Sequence[Row], look: Looks, unit: str) -> list[Variant]:
    if not any(row.decode_tokens_per_second > 0 for row in rows):
        return []
    wide = replace(WIDE, right=NARROW.right)  # the names stand beside the marks, not in the margin
    return both(partial(frontier, rows, look, unit=unit), wide, NARROW)


def _heat_tables(analysis: Analysis, rows: Sequence[Row], unit: str) -> list[HeatTable]:
    kinds = (
        ("position", f"Early and late in the {'image' if unit == 'dim' else 'text'}", analysis.by_position),
        ("frequency", "Rare and frequent words", analysis.by_frequency),
    )
    return [heat_table(key, title, buckets, rows) for key, title, buckets in kinds if buckets]


def _headline(rows: Sequence[Row], what: str) -> str:
    if not rows:
        return "No model could be compared"
    if len(rows) == 1:
        return f"How well {rows[0].name} predicts {what}"
    return f"{'A mixture of models' if rows[0].kind == 'mixture' else rows[0].name} predicts {what} best"


def _key_figures(rows: Sequence[Row], unit: str) -> list[KeyFigure]:
    """The best model, the best that is one family, the fastest to decode: a reader chooses among these."""
    if not rows:
        return []
    best = rows[0]
    low, high = best.interval
    found = [KeyFigure("Best", f"{best.bits_per_byte:.3f}", unit, f"95 %: {low:.3f} to {high:.3f}", best.name)]
    families = [row for row in rows if row.kind == "family"]
    if best.kind == "mixture" and families:
        single = families[0]
        more = f"{single.bits_per_byte - best.bits_per_byte:.3f} more than the best"
        found.append(KeyFigure("Best family alone", f"{single.bits_per_byte:.3f}", unit, more, single.name))
    quick = max(rows, key=lambda row: row.decode_tokens_per_second)
    if quick.decode_tokens_per_second > 0:
        note = f"at {quick.bits_per_byte:.3f} {unit}"
        speed = figures.count(quick.decode_tokens_per_second)
        found.append(KeyFigure("Fastest to decode", speed, "tokens/s", note, quick.name))
    small = min(rows, key=lambda row: row.parameters)
    note = f"at {small.bits_per_byte:.3f} {unit}"
    found.append(KeyFigure("Smallest", figures.count(small.parameters), "parameters", note, small.name))
    return found


class Passage(NamedTuple):
    """An excerpt as the page shows it."""

    title: str
    tokens: list[str]
    bits: dict[str, list[float]]
    means: dict[str, float]  # row name -> bits per token


def _passages(excerpts: Sequence[Excerpt]) -> list[Passage]:
    """Line ends are made visible: they are predicted like any other token."""
    return [
        Passage(
            excerpt.title,
            [token.replace("\n", "↵\n") for token in excerpt.tokens],
            excerpt.bits,
            {name: sum(bits) / max(1, len(bits)) for name, bits in excerpt.bits.items()},
        )
        for excerpt in excerpts
    ]


def heat(bits: float) -> int:
    """The step of the colour scale that so much surprise has."""
    return sum(bits >= edge for edge in SURPRISE)
