"""From values to places on a chart, and the round numbers along its axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SECOND, MINUTE, HOUR, DAY = 1.0, 60.0, 3600.0, 86400.0
DURATIONS = (
    *(power * step for power in (1e-3, 1e-2, 0.1, 1.0) for step in (1, 2, 5)),
    *(10.0, 20.0, 30.0),
    *(MINUTE * step for step in (1, 2, 5, 10, 20, 30)),
    *(HOUR * step for step in (1, 2, 5, 12)),
    *(DAY * step for step in (1, 2, 5, 10, 20, 50)),
)
"""Seconds that people count in."""


class Tick(NamedTuple):
    """A round number and where it stands."""

    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Values from `low` to `high` on a line from `start` to `end` of the drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self, values: Iterable[float], label: Callable[[float], str]) -> list[Tick]:
        """Those of the values that are on the scale."""
        return [Tick(self(value), label(value)) for value in values if self.low <= value <= self.high]


def around(values: Sequence[float], *, log: bool = False, margin: float = 0.08) -> tuple[float, float]:
    """A low and a high with room on both sides, however close the values are; there must be one at least."""
    if log:
        low, high = around([math.log(value) for value in values], margin=margin)
        return math.exp(low), math.exp(high)
    low, high = min(values), max(values)
    room = margin * (high - low) or max(0.1, 0.05 * abs(high))
    return low - room, high + room


def round_numbers(low: float, high: float, *, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between the two, at most so many."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20):
        first, last = math.ceil(low / (factor * step)), math.floor(high / (factor * step))
        if last - first < most:
            return [round(index * factor * step, 12) for index in range(first, last + 1)]
    raise AssertionError("a step of twenty times the power of ten always leaves few enough")


def round_powers(low: float, high: float, *, most: int = 6) -> list[float]:
    """Round numbers for a logarithmic axis: 1, 2, 5 of each power of ten, or fewer of them.

    On an axis so short that it holds one of those at most, the numbers are as far apart as on any other.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(found) < 2:
            return round_numbers(low, high, most=most)
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]


def round_durations(low: float, high: float, *, log: bool, most: int = 6) -> list[float]:
    """Seconds, minutes or hours for an axis of time."""
    if log:
        found = [seconds for seconds in DURATIONS if low <= seconds <= high]
        return found[:: math.ceil(len(found) / most) or 1]
    step = next((step for step in DURATIONS if (high - low) / step <= most), DURATIONS[-1])
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]
