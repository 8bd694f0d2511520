"""The charts of a comparison: what is drawn where (see `reports.charts`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from chainrule.comparison.results import BudgetCurve, Row
from chainrule.reports import figures
from chainrule.reports.charts import FONT, Band, Chart, Frame, Label, Line, Look, Looks, Mark, Spot, against_speed, path
from chainrule.reports.labels import CHARACTER, spread
from chainrule.reports.scales import Scale, around, round_durations, round_numbers

ROOM_FOR_NAMES = 100  # a right-hand margin of so much holds the names of lines
BAND = 34  # height of the band that names the leaders


def learning_curves(rows: Sequence[Row], look: Looks, frame: Frame, *, log: bool, unit: str = "byte") -> Chart:
    """Bits per byte, or per another unit, of the held-out text against seconds of training.

    A model that was not trained step by step is a point; a mixture, which is made of trained models, a level.
    """
    rows = [row for row in rows if row.kind == "mixture" or row.seconds > 0]
    trained = [row for row in rows if row.kind == "family"]
    times = [row.seconds for row in trained]
    times += [point.seconds for row in trained for point in row.curve if point.seconds > 0]
    area = frame.area
    low, high = around(times, log=True, margin=0.02) if log else (0.0, max(times) * 1.02)
    x = Scale(low=low, high=high, start=area.left, end=area.right, log=log)
    bottom, top = _heights(rows)
    y = Scale(low=bottom, high=top, start=area.bottom, end=area.top)
    return Chart(
        frame=frame,
        x_ticks=x.ticks(round_durations(low, high, log=log, most=frame.ticks), figures.duration),
        y_ticks=y.ticks(round_numbers(bottom, top), figures.plain),
        x_title="time spent training" + (", logarithmic" if log else ""),
        y_title=f"bits per {unit}, lower is better",
        lines=[_course(row, look[row.name], x, y) for row in rows],
        marks=[
            Mark(
                row.name,
                look[row.name],
                x(row.seconds),
                y(row.bits_per_byte),
                f"{row.name}: {row.bits_per_byte:.3f} bits/{unit} after {figures.duration(row.seconds)}",
            )
            for row in trained
        ],
        labels=_end_labels([(row.name, y(row.bits_per_byte)) for row in rows], look, frame, area.bottom),
    )


def _course(row: Row, look: Look, x: Scale, y: Scale) -> Line:
    """How a model came to its score, or the level of the score if it has no history."""
    level = y(row.bits_per_byte)
    if row.kind == "mixture":
        return Line(row.name, look, f"M{x.start} {level}H{x.end}", True)
    if not row.curve:
        return Line(row.name, look, f"M{x(row.seconds)} {level}H{x.end}", True)
    points = [(x(point.seconds), y(point.bits_per_byte)) for point in row.curve if point.seconds >= x.low]
    return Line(row.name, look, path(points))


def _heights(rows: Sequence[Row]) -> tuple[float, float]:
    """From the best score to somewhat above the worst: the first steps of training may leave the drawing."""
    final = [row.bits_per_byte for row in rows]
    reached = [point.bits_per_byte for row in rows for point in row.curve]
    best, worst = min([*final, *reached]), max(final)
    top = min(max([*final, *reached]), worst + max(worst - best, 0.15 * worst))
    return around([best, top], margin=0.05)


def _end_labels(ends: Sequence[tuple[str, float]], look: Looks, frame: Frame, bottom: float) -> list[Label]:
    """Names in the right-hand margin, moved apart; none in a narrow frame, which has a legend instead."""
    if frame.right < ROOM_FOR_NAMES:
        return []
    edge = frame.area.right
    heights = spread([height for _, height in ends], gap=FONT * 1.35, low=frame.area.top, high=bottom)
    return [
        Label(name, name, look[name], edge + 30, round(height, 1), f"M{edge + 4} {end}L{edge + 14} {height:.1f}h4")
        for (name, end), height in zip(ends, heights, strict=True)
    ]


def frontier(rows: Sequence[Row], look: Looks, frame: Frame, *, unit: str = "byte") -> Chart:
    """Bits per byte against tokens decoded a second; no model beats one on the line in both."""
    spots = [
        Spot(
            row.name,
            row.name,
            look[row.name],
            row.decode_tokens_per_second,
            row.bits_per_byte,
            f"{row.name}: {row.bits_per_byte:.3f} bits/{unit}, {figures.count(row.decode_tokens_per_second)} tokens/s",
        )
        for row in rows
        if row.decode_tokens_per_second > 0
    ]
    return against_speed(
        spots, frame, quality=f"bits per {unit}", speed="tokens decoded a second", more_is_better=False
    )


def budget_lines(curve: BudgetCurve, look: Looks, frame: Frame) -> Chart:
    """Bits per byte against the minutes that each family was given, over a band that names the leader."""
    area = frame.area
    known = {
        name: [(minutes, bits) for minutes, bits in zip(curve.minutes, series, strict=True) if bits is not None]
        for name, series in curve.bits_per_byte.items()
    }
    known = {name: series for name, series in known.items() if series}
    low, high = around(curve.minutes, log=True, margin=0.06)
    bottom, top = around([bits for series in known.values() for _, bits in series])
    x = Scale(low=low, high=high, start=area.left, end=area.right, log=True)
    y = Scale(low=bottom, high=top, start=area.bottom - BAND, end=area.top)
    return Chart(
        frame=frame,
        x_ticks=x.ticks(curve.minutes, lambda minutes: figures.duration(minutes * 60)),
        y_ticks=y.ticks(round_numbers(bottom, top), figures.plain),
        x_title="time given to each family, logarithmic",
        y_title=f"bits per {curve.unit}, lower is better",
        lines=[
            Line(name, look[name], path([(x(minutes), y(bits)) for minutes, bits in series]))
            for name, series in known.items()
        ],
        marks=[
            Mark(name, look[name], x(minutes), y(bits), f"{name}: {bits:.3f} bits/{curve.unit} in {minutes:g} min")
            for name, series in known.items()
            for minutes, bits in series
        ],
        labels=_end_labels(
            [(name, y(series[-1][1])) for name, series in known.items()], look, frame, area.bottom - BAND
        ),
        bands=_leaders(curve, x, look),
    )


def _leaders(curve: BudgetCurve, x: Scale, look: Looks) -> list[Band]:
    """One band for each run of budgets with the same leader, parted half-way between budgets."""
    bands: list[Band] = []
    middles = [math.sqrt(one * two) for one, two in itertools.pairwise(curve.minutes)]
    edges = [x.start, *map(x, middles), x.end]
    for name, (begin, right) in zip(curve.leaders, itertools.pairwise(edges), strict=True):
        left = bands.pop().left if bands and bands[-1].name == name else begin
        text = name if right - left > (len(name) + 3) * CHARACTER * FONT else ""
        bands.append(Band(name, look[name], left, right, text))
    return bands
