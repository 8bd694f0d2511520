"""The geometry of charts: what is drawn where. The templates turn it into SVG.

Colours are named, not chosen, here: every model has a `Look`, the same in all charts, and the style sheet says what it
is in light and in dark. A marker's shape repeats what the colour says.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from chainrule.reports import figures
from chainrule.reports.labels import Box, place
from chainrule.reports.scales import Scale, Tick, around, round_numbers, round_powers

FONT = 12.5
LOOKS = {
    "mixture": 0,
    "ensemble": 0,
    "gpt": 1,
    "recurrent": 2,
    "causal_conv": 3,
    "attentive_conv": 4,
    "self_regressive": 5,
    "finite_memory": 6,
    "ngram": 7,
    "hybrid_language": 8,
    # These translate, and are never drawn beside those above.
    "transformer": 1,
    "seq2seq": 2,
    "nonautoregressive": 3,
    "autoregressive_transformer": 4,
    "hybrid": 5,
    "hybrid_regressive": 6,
    "fat": 7,
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


def looks(families: Mapping[str, str]) -> dict[str, Look]:
    """A look for each name, from the families that they are of.

    The first of a family has its usual look. The others, and families that have none, take what is left over, and the
    last look of all when nothing is.
    """
    numbers: dict[str, int] = {}
    for name, family in families.items():
        if family in LOOKS and LOOKS[family] not in numbers.values():
            numbers[name] = LOOKS[family]
    spare = [number for number in range(len(SHAPES)) if number not in numbers.values()]
    for name in families:
        if name not in numbers:
            numbers[name] = spare.pop(0) if spare else len(SHAPES) - 1
    return {name: Look(numbers[name], SHAPES[numbers[name]]) for name in families}


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
    """What is written of a model, with a thin line to what it names if that is not beside it."""

    name: str  # of the model
    text: str
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


def path(points: Sequence[tuple[float, float]]) -> str:
    """Straight lines through the points."""
    return "M" + "L".join(f"{x} {y}" for x, y in points)


class Spot(NamedTuple):
    """Something with a quality and a speed."""

    name: str  # of the model
    text: str  # to write beside it
    look: Look
    speed: float
    quality: float
    tip: str


def against_speed(spots: Sequence[Spot], frame: Frame, *, quality: str, speed: str, more_is_better: bool) -> Chart:
    """Quality against speed; nothing beats in both what is on the line. The two words are titles of the axes."""
    area = frame.area
    low, high = around([spot.speed for spot in spots], log=True, margin=0.12)
    bottom, top = around([spot.quality for spot in spots], margin=0.12)
    x = Scale(low=low, high=high, start=area.left, end=area.right, log=True)
    y = Scale(low=bottom, high=top, start=area.bottom, end=area.top)
    points = [(x(spot.speed), y(spot.quality)) for spot in spots]
    best = pareto([(spot.speed, -spot.quality if more_is_better else spot.quality) for spot in spots])
    stairs = _stairs([points[index] for index in best], area, end=area.bottom if more_is_better else area.top)
    boxes = place([spot.text for spot in spots], points, area, font=FONT, obstacles=_thick(stairs))
    return Chart(
        frame=frame,
        x_ticks=x.ticks(round_powers(low, high, most=frame.ticks), figures.count),
        y_ticks=y.ticks(round_numbers(bottom, top), figures.plain),
        x_title=f"{speed}, logarithmic",
        y_title=f"{quality}, {'higher' if more_is_better else 'lower'} is better",
        marks=[Mark(spot.name, spot.look, *point, spot.tip) for spot, point in zip(spots, points, strict=True)],
        labels=[
            Label(spot.name, spot.text, spot.look, round(box.left, 1), round(box.middle, 1), _leader(point, box))
            for spot, point, box in zip(spots, points, boxes, strict=True)
        ],
        frontier=path(stairs),
    )


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which (speed, cost) no other point beats in both, from the slowest to the fastest."""
    kept: list[int] = []
    least = math.inf
    for index in sorted(range(len(points)), key=lambda index: (-points[index][0], points[index][1])):
        if points[index][1] < least:
            least = points[index][1]
            kept.append(index)
    return kept[::-1]


def _stairs(points: Sequence[tuple[float, float]], area: Box, *, end: float) -> list[tuple[float, float]]:
    """Corners of the line that nothing has crossed: right of it is faster, away from its `end` better."""
    corners = [(area.left, points[0][1]), points[0]]
    for x, y in points[1:]:
        corners += [(corners[-1][0], y), (x, y)]
    return [*corners, (corners[-1][0], end)]


def _thick(corners: Sequence[tuple[float, float]]) -> list[Box]:
    """The room that a line along the axes takes."""
    return [
        Box(min(one[0], two[0]) - 1, min(one[1], two[1]) - 1, max(one[0], two[0]) + 1, max(one[1], two[1]) + 1)
        for one, two in itertools.pairwise(corners)
    ]


def _leader(point: tuple[float, float], box: Box) -> str:
    """A line from a point to the nearest edge of its name, if that is far."""
    if box.distance(point) < FONT * 1.2:
        return ""
    x, y = box.nearest(point)
    return f"M{x:.1f} {y:.1f}L{point[0]} {point[1]}"


Draw: TypeAlias = Callable[[Frame], Chart]


class Variant(NamedTuple):
    """A chart, and the class by which the style sheet shows it or not."""

    chart: Chart
    shown: str


def both(draw: Draw, wide: Frame, narrow: Frame, extra: str = "") -> list[Variant]:
    """Text in a drawing shrinks with it, so small screens get a drawing of their own."""
    return [Variant(draw(wide), f"wide {extra}".strip()), Variant(draw(narrow), f"narrow {extra}".strip())]
