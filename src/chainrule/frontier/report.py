"""`report.html`: quality against speed, a panel for each batch size, and all figures in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from chainrule.frontier.results import Results, Row, Speed
from chainrule.frontier.words import gathered, known, measured, quality, verdict
from chainrule.reports import figures
from chainrule.reports.charts import NARROW, WIDE, Chart, Frame, Looks, Spot, Variant, against_speed, both, looks
from chainrule.reports.page import KeyFigure, facts, page

PANEL = replace(WIDE, right=NARROW.right)  # the names stand beside the marks, not in the margin
NEARLY = 0.05  # less quality than that of the best, as a share of it, is hardly noticed
SMALL_PANEL = replace(NARROW, height=360)


class Panel(NamedTuple):
    """What is drawn of one batch size."""

    batch: int
    charts: list[Variant]


def render(results: Results) -> str:
    """The whole page."""
    look = looks({row.run: row.family for row in results.rows})
    verdicts = {row.name: verdict(row, results.item) for row in results.rows}
    return page(
        "chainrule.frontier",
        "frontier.html.j2",
        filters={"quality": quality},
        results=results,
        look=look,
        headline=_headline(results),
        key_figures=_key_figures(results),
        panels=_panels(results, look),
        measures=list(dict.fromkeys(name for row in results.rows for name in row.quality)),
        verdicts=verdicts,
        checked=any(verdicts.values()),
        failures=gathered(results.failures),
        protocol=facts(results.protocol),
    )


def _panels(results: Results, look: Looks) -> list[Panel]:
    points = {batch: known(results, batch) for batch in results.batches}
    return [
        Panel(batch, both(partial(_chart, found, results, look), PANEL, SMALL_PANEL))
        for batch, found in points.items()
        if found
    ]


def _chart(points: Sequence[tuple[Row, Speed]], results: Results, look: Looks, frame: Frame) -> Chart:
    """A way is named by its run too where there are several and the drawing has room for it."""
    alone = len(look) == 1 or frame.width < WIDE.width
    spots = [
        Spot(
            row.run,
            row.way if alone else row.name,
            look[row.run],
            speed.rate(results.rate),
            row.quality[results.measure],
            _tip(row, speed, results),
        )
        for row, speed in points
    ]
    return against_speed(
        spots,
        frame,
        quality=results.measure,
        speed=f"{results.rate} a second",
        more_is_better=results.more_is_better,
    )


def _tip(row: Row, speed: Speed, results: Results) -> str:
    said = ", ".join(f"{name} {quality(figure, name)}" for name, figure in row.quality.items())
    times = "" if speed.times is None else f", {figures.digits(speed.times)} × {results.baseline}"
    return f"{row.name}: {said} at {figures.digits(speed.rate(results.rate))} {results.rate}/s{times}"


def _headline(results: Results) -> str:
    """The fastest of the ways that are as good as the best one, or nearly: speed without quality is no news."""
    points = known(results, results.batches[0])
    if not points:
        return "Quality against speed"
    best, slow = max(points, key=lambda point: results.merit(point[0]))
    least = results.merit(best) - NEARLY * abs(results.merit(best))
    row, speed = max(
        (point for point in points if results.merit(point[0]) >= least), key=lambda point: point[1].items_per_second
    )
    if row.name == best.name:
        return f"{best.name} is best, and nothing that is nearly as good is faster"
    times = figures.digits(speed.items_per_second / slow.items_per_second)
    alike = "as good" if results.merit(row) == results.merit(best) else "nearly as good"
    return f"{row.name} is {alike} as {best.name} and {times} times as fast"


def _key_figures(results: Results) -> list[KeyFigure]:
    """The best way, and the fastest at each batch size."""
    assessed = [row for row in results.rows if results.measure in row.quality]
    if not assessed:
        return []
    best = max(assessed, key=results.merit)
    found = [KeyFigure("Best", measured(results, best), results.measure, best.way, best.run)]
    for batch in results.batches:
        if points := known(results, batch):
            row, speed = max(points, key=lambda point: point[1].items_per_second)
            note = f"{row.way}, {results.measure} {measured(results, row)}"
            value = figures.digits(speed.rate(results.rate))
            found.append(KeyFigure(f"Fastest at batch {batch}", value, f"{results.rate}/s", note, row.run))
    return found
