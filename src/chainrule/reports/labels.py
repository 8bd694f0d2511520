"""Label placement: positions for the labels of a chart such that none covers another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

CHARACTER = 0.59  # width of a character relative to the font size; an upper bound for names in sans serif
LINE_HEIGHT = 1.25


class Box(NamedTuple):
    """A rectangle of a chart."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> float:
        """The vertical centre."""
        return (self.top + self.bottom) / 2

    def overlap(self, other: Box) -> float:
        """The area of the intersection."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, width) * max(0.0, height)

    def distance(self, point: tuple[float, float]) -> float:
        """Distance from a point to the box; 0 inside."""
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
    """The bounding box of a line of text that starts at `x`."""
    half = font * LINE_HEIGHT / 2
    return Box(x, middle - half, x + len(text) * CHARACTER * font, middle + half)


def place_labels(
    names: Sequence[str],
    points: Sequence[tuple[float, float]],
    area: Box,
    *,
    font: float,
    obstacles: Sequence[Box] = (),
) -> list[Box]:
    """A box for the label of each point: inside the area, near the point, clear of points, obstacles and other labels.

    Greedy: each label takes the best candidate around its point. Criteria in order: no overlap with points or other
    labels; nearer to its own point than to any other; near its point and off the obstacles. That is enough for a
    handful of labels.
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
    """Candidate boxes on wider and wider rings around a point, the right-hand one first."""
    width = len(name) * CHARACTER * font
    for ring in range(8):
        radius = font * (0.8 + 0.9 * ring)
        for angle in (0, 180, -45, 45, -135, 135, -90, 90):
            across, down = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            x = point[0] + across * radius - width * (1 - across) / 2
            yield text_box(name, x, point[1] + down * radius * 1.2, font=font)


def spread(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Positions on a line as near as possible to the wanted ones, in the same order, at least `gap` apart.

    Neighbours that are too close form a group around their mean; a group that then overlaps the next is merged with it.
    """
    groups: list[tuple[float, int]] = []  # mean position, size
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
    positions = [mean + (member - (size - 1) / 2) * gap for mean, size in groups for member in range(size)]
    return [position for _, position in sorted(zip(order, positions, strict=True))]
