"""How the benchmarks measure time: interleaved rounds, so that other load on the machine affects all variants alike.

A speed is the median over the rounds, a ratio the median of the ratios within a round. The first round is a warm-up.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch

Work = Callable[[], object]
Clock = Callable[[], float]

CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
"""cpu: processor time, for a machine with other load."""


def set_threads(threads: int) -> None:
    """Set the threads of torch and of NumPy's BLAS; restarts the process, since NumPy reads the number when loaded."""
    if os.environ.get("OPENBLAS_NUM_THREADS") != str(threads):
        os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    torch.set_num_threads(threads)


def seconds(work: Work, clock: Clock = time.perf_counter) -> float:
    begin = clock()
    work()
    return clock() - begin


def time_rounds(works: Sequence[Work], repeats: int, clock: Clock = time.perf_counter) -> list[list[float]]:
    """Seconds of each work in each round."""
    return [[seconds(work, clock) for work in works] for _ in range(repeats + 1)][1:]


def medians(measured: Sequence[Sequence[float]]) -> list[float]:
    """The median over the rounds, for each work."""
    return [statistics.median(column) for column in zip(*measured, strict=True)]


def compare_speed(
    ours: Work, theirs: Work, amount: float, repeats: int, clock: Clock = time.perf_counter
) -> tuple[float, float, float]:
    """Amount per second of both, and the speed-up of the first over the second."""
    measured = time_rounds([ours, theirs], repeats, clock)
    mine, peer = medians(measured)
    return amount / mine, amount / peer, statistics.median(b / a for a, b in measured)


def compare_with_first(
    works: Mapping[str, Work], amount: float, repeats: int, clock: Clock = time.perf_counter
) -> dict[str, tuple[float, float]]:
    """Amount per second of each work, and its speed-up over the first one."""
    measured = time_rounds(list(works.values()), repeats, clock)
    return {
        name: (amount / typical, statistics.median(round_[0] / round_[index] for round_ in measured))
        for index, (name, typical) in enumerate(zip(works, medians(measured), strict=True))
    }
