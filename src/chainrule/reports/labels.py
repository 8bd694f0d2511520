"""Where the names in a chart stand, so that none covers another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

CHARACTER = 0.59  # width of a character as a share of the font size; an upper estimate for names in sans serif
LINE = 1.25


class Box(NamedTuple):
    """A rectangle of the drawing."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> float:
        """Half-way between top and bottom."""
        return (self.top + self.bottom) / 2

    def overlap(self, other: Box) -> float:
        """The area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, width) * max(0.0, height)

    def distance(self, point: tuple[float, float]) -> float:
        """From a point to the nearest place inside."""
        return math.dist(point, self.nearest(point))

    def nearest(self, point: tuple[float, float]) -> tuple[float, float]:
        return min(max(point[0], self.left), self.right), min(max(point[1], self.top), self.bottom)

    def inside(self, other: Box) -> bool:
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )


def text_box(text: str, x: float, middle: float, *, font: float) -> Box:
    """The room that a line of text takes when it starts at `x`."""
    half = font * LINE / 2
    return Box(x, middle - half, x + len(text) * CHARACTER * font, middle + half)


def place(
    names: Sequence[str],
    points: Sequence[tuple[float, float]],
    area: Box,
    *,
    font: float,
    obstacles: Sequence[Box] = (),
) -> list[Box]:
    """A box for the name of each point: inside the area, near the point, clear of points, obstacles and other names.

    Greedy: each name takes the best place around its point. It must not cover points or other names; then it should
    be nearer to its own point than to any other; then near, and off the obstacles. A handful of names needs no more.
    """
    radius = font / 2
    taken = [Box(x - radius, y - radius, x + radius, y + radius) for x, y in points]
    boxes: list[Box] = []
    for name, point in zip(names, points, strict=True):

        def cost(box: Box, point: tuple[float, float] = point) -> tuple[float, int, float]:
            own = box.distance(point)
            return (
                sum(box.overlap(other) for other in taken),
                sum(box.distance(other) < own for other in points),
                sum(box.overlap(other) for other in obstacles) + 4 * own,
            )

        candidates = [box for box in _around(name, point, font) if box.inside(area)]
        best = min(candidates or _around(name, point, font), key=cost)
        boxes.append(best)
        taken.append(best)
    return boxes


def _around(name: str, point: tuple[float, float], font: float) -> Iterator[Box]:
    """Places on wider and wider rings around a point, the right-hand one first."""
    width = len(name) * CHARACTER * font
    for ring in range(8):
        reach = font * (0.8 + 0.9 * ring)
        for angle in (0, 180, -45, 45, -135, 135, -90, 90):
            across, down = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            x = point[0] + across * reach - width * (1 - across) / 2
            yield text_box(name, x, point[1] + down * reach * 1.2, font=font)


def spread(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Places on a line as near as possible to the wanted ones, in their order, at least `gap` apart.

    Neighbours that are too close become one group around their mean; a group that then meets the next one joins it.
    """
    groups: list[tuple[float, int]] = []  # mean of the places, how many
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    for index in order:
        mean, size = wanted[index], 1
        while True:
            half = (size - 1) * gap / 2
            mean = min(max(mean, low + half), max(high - half, low + half))
            if not groups or mean - half - gap >= groups[-1][0] + (groups[-1][1] - 1) * gap / 2 - 1e-9:
                break
            before, members = groups.pop()
            mean, size = (mean * size + before * members) / (size + members), size + members
        groups.append((mean, size))
    places = [mean + (member - (size - 1) / 2) * gap for mean, size in groups for member in range(size)]
    return [place for _, place in sorted(zip(order, places, strict=True))]
