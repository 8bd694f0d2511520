"""Chart geometry: the position of every mark, line and label. The templates turn it into SVG.

Colours are numbers here; the style sheet defines them for the light and the dark theme. Every model has one
`SeriesStyle` in all charts of a report, and the shape of its marker carries the same information as its colour.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeAlias

from chainrule.families import composites, single_families
from chainrule.reports import formatting
from chainrule.reports.labels import Box, place_labels
from chainrule.reports.scales import Scale, Tick, around, round_numbers, round_powers

FONT = 12.5
SHAPES = (
    "M-5-5H5V5H-5Z",  # square
    "M0-5.6A5.6 5.6 0 1 1 0 5.6A5.6 5.6 0 1 1 0-5.6Z",  # circle
    "M0-6.8L6.2 4.6H-6.2Z",  # triangle
    "M0-7L6.4 0L0 7L-6.4 0Z",  # diamond
    "M0 6.8L-6.2-4.6H6.2Z",  # inverted triangle
    "M-2-6.4H2V-2H6.4V2H2V6.4H-2V2H-6.4V-2H-2Z",  # plus
    "M0-6.6L6.3-2L3.9 5.4H-3.9L-6.3-2Z",  # pentagon
    "M-3.2-5.6H3.2L6.4 0L3.2 5.6H-3.2L-6.4 0Z",  # hexagon
    "M-6.4-4H6.4V4H-6.4Z",  # wide rectangle
)


class SeriesStyle(NamedTuple):
    """Colour and marker of a model."""

    hue: int  # number of a colour in the style sheet
    shape: str  # SVG path of the marker around the origin


Styles: TypeAlias = Mapping[str, SeriesStyle]


@cache
def family_hues() -> Mapping[str, int]:
    """The colour of each family, the same in every report: composites have 0, the families of a task 1, 2, …

    A family's number is its rank in the registry among those of its task, which is all that one chart shows.
    """
    hues = dict.fromkeys(composites(), 0)
    ranks: Counter[str] = Counter()
    for name, kind in single_families().items():
        ranks[kind.task] += 1
        hues[name] = ranks[kind.task]
    return hues


def series_styles(families: Mapping[str, str]) -> dict[str, SeriesStyle]:
    """A style for each series, given its family.

    The first series of a family has the family's colour. Other series take a free colour; when none is left, the last.
    """
    hues: dict[str, int] = {}
    for name, family in families.items():
        hue = family_hues().get(family, len(SHAPES))
        if hue < len(SHAPES) and hue not in hues.values():
            hues[name] = hue
    free = [hue for hue in range(len(SHAPES)) if hue not in hues.values()]
    for name in families:
        if name not in hues:
            hues[name] = free.pop(0) if free else len(SHAPES) - 1
    return {name: SeriesStyle(hues[name], SHAPES[hues[name]]) for name in families}


@dataclass(frozen=True, kw_only=True)
class ChartFrame:
    """Size of a chart and of the margins that hold its labels."""

    width: int
    height: int
    left: int = 46
    right: int = 24
    top: int = 30
    bottom: int = 44
    ticks: int = 7  # maximum number of ticks on the x axis

    @property
    def area(self) -> Box:
        return Box(self.left, self.top, self.width - self.right, self.height - self.bottom)


WIDE = ChartFrame(width=920, height=430, right=150)
NARROW = ChartFrame(width=360, height=320, right=14, ticks=4)


class Mark(NamedTuple):
    """A data point."""

    name: str
    style: SeriesStyle
    x: float
    y: float
    tip: str


class Line(NamedTuple):
    """A data series; `level` if it is a constant."""

    name: str
    style: SeriesStyle
    path: str
    level: bool = False


class Label(NamedTuple):
    """A text label, with a thin leader line if it is not next to what it names."""

    name: str  # of the series
    text: str
    style: SeriesStyle
    x: float
    y: float
    leader: str = ""


class Band(NamedTuple):
    """A section of the x axis that belongs to one model."""

    name: str
    style: SeriesStyle
    left: float
    right: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The geometry of one chart."""

    frame: ChartFrame
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


def path(points: Sequence[tuple[float, float]]) -> str:
    """SVG path of straight lines through the points."""
    return "M" + "L".join(f"{x} {y}" for x, y in points)


class QualitySpeedPoint(NamedTuple):
    """A point of a quality-against-speed chart."""

    name: str  # of the series
    text: str  # label
    style: SeriesStyle
    speed: float
    quality: float
    tip: str


def quality_speed_chart(
    points: Sequence[QualitySpeedPoint], frame: ChartFrame, *, quality: str, speed: str, higher_is_better: bool
) -> Chart:
    """Quality against speed, with the Pareto frontier; `quality` and `speed` are the titles of the axes."""
    area = frame.area
    low, high = around([point.speed for point in points], log=True, margin=0.12)
    bottom, top = around([point.quality for point in points], margin=0.12)
    x = Scale(low=low, high=high, start=area.left, end=area.right, log=True)
    y = Scale(low=bottom, high=top, start=area.bottom, end=area.top)
    positions = [(x(point.speed), y(point.quality)) for point in points]
    best = pareto([(point.speed, -point.quality if higher_is_better else point.quality) for point in points])
    stairs = _stairs([positions[index] for index in best], area, end=area.bottom if higher_is_better else area.top)
    boxes = place_labels([point.text for point in points], positions, area, font=FONT, obstacles=_line_boxes(stairs))
    return Chart(
        frame=frame,
        x_ticks=x.ticks(round_powers(low, high, most=frame.ticks), formatting.count),
        y_ticks=y.ticks(round_numbers(bottom, top), formatting.plain),
        x_title=f"{speed} (log scale)",
        y_title=f"{quality}, {'higher' if higher_is_better else 'lower'} is better",
        marks=[
            Mark(point.name, point.style, *position, point.tip)
            for point, position in zip(points, positions, strict=True)
        ],
        labels=[
            Label(
                point.name,
                point.text,
                point.style,
                round(box.left, 1),
                round(box.middle, 1),
                _leader_line(position, box),
            )
            for point, position, box in zip(points, positions, boxes, strict=True)
        ],
        frontier=path(stairs),
    )


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the Pareto-optimal (speed, cost) points, from the slowest to the fastest."""
    kept: list[int] = []
    least = math.inf
    for index in sorted(range(len(points)), key=lambda index: (-points[index][0], points[index][1])):
        if points[index][1] < least:
            least = points[index][1]
            kept.append(index)
    return kept[::-1]


def _stairs(points: Sequence[tuple[float, float]], area: Box, *, end: float) -> list[tuple[float, float]]:
    """Corners of the Pareto frontier, a step line that ends at height `end`."""
    corners = [(area.left, points[0][1]), points[0]]
    for x, y in points[1:]:
        corners += [(corners[-1][0], y), (x, y)]
    return [*corners, (corners[-1][0], end)]


def _line_boxes(corners: Sequence[tuple[float, float]]) -> list[Box]:
    """The space that the segments of an axis-parallel line take up."""
    return [
        Box(min(one[0], two[0]) - 1, min(one[1], two[1]) - 1, max(one[0], two[0]) + 1, max(one[1], two[1]) + 1)
        for one, two in itertools.pairwise(corners)
    ]


def _leader_line(point: tuple[float, float], box: Box) -> str:
    """Path from a point to its label, if the two are far apart."""
    if box.distance(point) < FONT * 1.2:
        return ""
    x, y = box.nearest(point)
    return f"M{x:.1f} {y:.1f}L{point[0]} {point[1]}"


Draw: TypeAlias = Callable[[ChartFrame], Chart]


class ChartVariant(NamedTuple):
    """A chart, and the CSS classes that decide when it is shown."""

    chart: Chart
    shown: str


def responsive(draw: Draw, wide: ChartFrame, narrow: ChartFrame, extra: str = "") -> list[ChartVariant]:
    """A chart for wide and one for narrow screens, since text in an SVG shrinks with it."""
    return [ChartVariant(draw(wide), f"wide {extra}".strip()), ChartVariant(draw(narrow), f"narrow {extra}".strip())]
