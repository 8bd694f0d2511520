"""The geometry of the report's charts: what is drawn where. The templates turn it into SVG.

Colours are named, not chosen, here: every model has a `Look`, the same in all charts, and the style sheet says what it
is in light and in dark. A marker's shape repeats what the colour says.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from chainrule.comparison import figures
from chainrule.comparison.labels import CHARACTER, Box, place, spread
from chainrule.comparison.results import BudgetCurve, Row
from chainrule.comparison.scales import (
    Scale,
    Tick,
    around,
    round_durations,
    round_numbers,
    round_powers,
)

FONT = 12.5
ROOM_FOR_NAMES = 100  # a right-hand margin of so much holds the names of lines
BAND = 34  # height of the band that names the leaders
LOOKS = {
    "mixture": 0,
    "gpt": 1,
    "recurrent": 2,
    "causal_conv": 3,
    "attentive_conv": 4,
    "self_regressive": 5,
    "finite_memory": 6,
    "ngram": 7,
}
"""The number of a family's colour in the style sheet, so that reports of different data look alike."""

SHAPES = (
    "M-5-5H5V5H-5Z",  # square
    "M0-5.6A5.6 5.6 0 1 1 0 5.6A5.6 5.6 0 1 1 0-5.6Z",  # circle
    "M0-6.8L6.2 4.6H-6.2Z",  # triangle
    "M0-7L6.4 0L0 7L-6.4 0Z",  # diamond
    "M0 6.8L-6.2-4.6H6.2Z",  # triangle on its tip
    "M-2-6.4H2V-2H6.4V2H2V6.4H-2V2H-6.4V-2H-2Z",  # plus
    "M0-6.6L6.3-2L3.9 5.4H-3.9L-6.3-2Z",  # pentagon
    "M-3.2-5.6H3.2L6.4 0L3.2 5.6H-3.2L-6.4 0Z",  # hexagon
    "M-6.4-4H6.4V4H-6.4Z",  # brick
)


class Look(NamedTuple):
    """How a model is drawn everywhere."""

    hue: int  # the number of a colour in the style sheet
    shape: str  # path of its marker around the origin


Looks: TypeAlias = Mapping[str, Look]


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The usual look of the known families; others take what is left over."""
    names = list(names)
    spare = [number for number in range(len(SHAPES)) if number not in {LOOKS.get(name) for name in names}]
    strangers = [name for name in names if name not in LOOKS]
    numbers = LOOKS | {name: spare[index % len(spare)] if spare else 8 for index, name in enumerate(strangers)}
    return {name: Look(numbers[name], SHAPES[numbers[name]]) for name in names}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The size of a drawing, and of the margins that hold its labels."""

    width: int
    height: int
    left: int = 46
    right: int = 24
    top: int = 30
    bottom: int = 44
    ticks: int = 7  # at most, along the bottom

    @property
    def area(self) -> Box:
        return Box(self.left, self.top, self.width - self.right, self.height - self.bottom)


WIDE = Frame(width=920, height=430, right=150)
NARROW = Frame(width=360, height=320, right=14, ticks=4)


class Mark(NamedTuple):
    """A model's point."""

    name: str
    look: Look
    x: float
    y: float
    tip: str


class Line(NamedTuple):
    """A model's line; `level` if it only marks a height."""

    name: str
    look: Look
    path: str
    level: bool = False


class Label(NamedTuple):
    """A model's name, with a thin line to what it names if that is not beside it."""

    name: str
    look: Look
    x: float
    y: float
    leader: str = ""


class Band(NamedTuple):
    """A stretch of the bottom axis that belongs to one model."""

    name: str
    look: Look
    left: float
    right: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Everything of one drawing."""

    frame: Frame
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    x_title: str
    y_title: str
    lines: list[Line] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    frontier: str = ""

    @property
    def area(self) -> Box:
        return self.frame.area


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
    return Line(row.name, look, _path(points))


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
        Label(name, look[name], edge + 30, round(height, 1), f"M{edge + 4} {end}L{edge + 14} {height:.1f}h4")
        for (name, end), height in zip(ends, heights, strict=True)
    ]


def frontier(rows: Sequence[Row], look: Looks, frame: Frame, *, unit: str = "byte") -> Chart:
    """Bits per byte against tokens decoded a second; no model beats one on the line in both."""
    rows = [row for row in rows if row.decode_tokens_per_second > 0]
    area = frame.area
    low, high = around([row.decode_tokens_per_second for row in rows], log=True, margin=0.12)
    bottom, top = around([row.bits_per_byte for row in rows], margin=0.12)
    x = Scale(low=low, high=high, start=area.left, end=area.right, log=True)
    y = Scale(low=bottom, high=top, start=area.bottom, end=area.top)
    points = [(x(row.decode_tokens_per_second), y(row.bits_per_byte)) for row in rows]
    best = pareto([(row.decode_tokens_per_second, row.bits_per_byte) for row in rows])
    stairs = _stairs([points[index] for index in best], area)
    boxes = place([row.name for row in rows], points, area, font=FONT, obstacles=_thick(stairs))
    marks = [
        Mark(
            row.name,
            look[row.name],
            *point,
            f"{row.name}: {row.bits_per_byte:.3f} bits/{unit}, {figures.count(row.decode_tokens_per_second)} tokens/s",
        )
        for row, point in zip(rows, points, strict=True)
    ]
    labels = [
        Label(row.name, look[row.name], round(box.left, 1), round((box.top + box.bottom) / 2, 1), _leader(point, box))
        for row, point, box in zip(rows, points, boxes, strict=True)
    ]
    return Chart(
        frame=frame,
        x_ticks=x.ticks(round_powers(low, high, most=frame.ticks), figures.count),
        y_ticks=y.ticks(round_numbers(bottom, top), figures.plain),
        x_title="tokens decoded a second, logarithmic",
        y_title=f"bits per {unit}, lower is better",
        marks=marks,
        labels=labels,
        frontier=_path(stairs),
    )


def _leader(point: tuple[float, float], box: Box) -> str:
    """A line from a point to the nearest edge of its name, if that is far."""
    if box.distance(point) < FONT * 1.2:
        return ""
    x, y = box.nearest(point)
    return f"M{x:.1f} {y:.1f}L{point[0]} {point[1]}"


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which (speed, bits) no other point beats in both, from the slowest to the fastest."""
    kept: list[int] = []
    fewest = math.inf
    for index in sorted(range(len(points)), key=lambda index: (-points[index][0], points[index][1])):
        if points[index][1] < fewest:
            fewest = points[index][1]
            kept.append(index)
    return kept[::-1]


def _stairs(points: Sequence[tuple[float, float]], area: Box) -> list[tuple[float, float]]:
    """Corners of the line that no model has crossed: right of it is faster, below it better."""
    corners = [(area.left, points[0][1]), points[0]]
    for x, y in points[1:]:
        corners += [(corners[-1][0], y), (x, y)]
    return [*corners, (corners[-1][0], area.top)]


def _thick(corners: Sequence[tuple[float, float]]) -> list[Box]:
    """The room that a line along the axes takes."""
    return [
        Box(min(one[0], two[0]) - 1, min(one[1], two[1]) - 1, max(one[0], two[0]) + 1, max(one[1], two[1]) + 1)
        for one, two in itertools.pairwise(corners)
    ]


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
            Line(name, look[name], _path([(x(minutes), y(bits)) for minutes, bits in series]))
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


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Straight lines through the points."""
    return "M" + "L".join(f"{x} {y}" for x, y in points)
