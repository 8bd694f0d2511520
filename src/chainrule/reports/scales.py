"""Axes: the mapping from values to chart coordinates, and round tick values."""

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
"""Round durations, in seconds."""


class Tick(NamedTuple):
    """An axis tick: its coordinate and its label."""

    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps values from [low, high] to coordinates from `start` to `end`, linearly or logarithmically."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self, values: Iterable[float], label: Callable[[float], str]) -> list[Tick]:
        """Ticks at those of the values that are within the scale."""
        return [Tick(self(value), label(value)) for value in values if self.low <= value <= self.high]


def around(values: Sequence[float], *, log: bool = False, margin: float = 0.08) -> tuple[float, float]:
    """A range around one or more values, with a margin on both sides; never empty."""
    if log:
        low, high = around([math.log(value) for value in values], margin=margin)
        return math.exp(low), math.exp(high)
    low, high = min(values), max(values)
    padding = margin * (high - low)
    if padding <= 1e-9 * max(abs(low), abs(high)):  # equal values, up to rounding
        padding = max(0.1, 0.05 * abs(high))
    return low - padding, high + padding


def round_numbers(low: float, high: float, *, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten in [low, high]; `most` of them at most."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20):
        first, last = math.ceil(low / (factor * step)), math.floor(high / (factor * step))
        if last - first < most:
            return [round(index * factor * step, 12) for index in range(first, last + 1)]
    raise AssertionError("twenty times the power of ten always gives few enough multiples")


def round_powers(low: float, high: float, *, most: int = 6) -> list[float]:
    """Round numbers for a logarithmic axis: 1, 2, 5 times each power of ten, or fewer.

    An axis too short to contain two of those has linearly spaced ticks.
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
    """Round durations for a time axis, in seconds."""
    if log:
        found = [seconds for seconds in DURATIONS if low <= seconds <= high]
        return found[:: math.ceil(len(found) / most) or 1]
    step = next((step for step in DURATIONS if (high - low) / step <= most), DURATIONS[-1])
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]
