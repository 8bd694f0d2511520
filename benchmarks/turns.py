"""How the benchmarks measure: all ways in turns, so that a busy moment of the machine touches neighbours alike.

A figure is a median over the turns, and a ratio the median of the ratios within a turn. The first turn does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Work = Callable[[], object]
Clock = Callable[[], float]

CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
"""cpu: on a machine that has other work to do."""


def seconds(work: Work, clock: Clock = time.perf_counter) -> float:
    begin = clock()
    work()
    return clock() - begin


def turns(works: Sequence[Work], repeats: int, clock: Clock = time.perf_counter) -> list[list[float]]:
    """Seconds of each way in each turn."""
    return [[seconds(work, clock) for work in works] for _ in range(repeats + 1)][1:]


def medians(measured: Sequence[Sequence[float]]) -> list[float]:
    """Of each way over the turns."""
    return [statistics.median(column) for column in zip(*measured, strict=True)]


def against(
    ours: Work, theirs: Work, amount: float, repeats: int, clock: Clock = time.perf_counter
) -> tuple[float, float, float]:
    """How much of an amount both do in a second, and how many times as fast the first is."""
    measured = turns([ours, theirs], repeats, clock)
    mine, peer = medians(measured)
    return amount / mine, amount / peer, statistics.median(b / a for a, b in measured)


def against_first(
    works: Mapping[str, Work], amount: float, repeats: int, clock: Clock = time.perf_counter
) -> dict[str, tuple[float, float]]:
    """How much of an amount each does in a second, and how many times as fast as the first of them it is."""
    measured = turns(list(works.values()), repeats, clock)
    return {
        name: (amount / typical, statistics.median(turn[0] / turn[place] for turn in measured))
        for place, (name, typical) in enumerate(zip(works, medians(measured), strict=True))
    }
