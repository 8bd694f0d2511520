"""Scoring of large data as independent jobs on the workers of `data.workers`.

A job opens the run and scores as one of several processes would: every so many batches of the data. It sends the
surprisals of these tokens; when all are there, they are put together and the metrics computed as without jobs, so that
the result is the same bit for bit. Not divided is the pass of a model with unlimited context over one long text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chainrule.data.workers import results, worker_count
from chainrule.errors import ConfigError
from chainrule.tasks import load
from chainrule.tasks.base import Run
from chainrule.tasks.gamma import with_gamma
from chainrule.tasks.images import ImageRun
from chainrule.tasks.scoring import ScoreReport, ScoreRequest
from chainrule.tasks.sequences import TokenRun
from chainrule.training.distributed import Collected, Job, PartDone, acting_as

JOBS_PER_WORKER = 4  # so that fast workers do more, and little is lost with a worker


class OpenedRun(NamedTuple):
    """How a worker opens a run."""

    path: Path
    device: str = "auto"
    checkpoint: str = "best"
    gamma: float | None = None

    def open(self) -> Run:
        return with_gamma(load(self.path, device=self.device, checkpoint=self.checkpoint), self.gamma)


class Part(NamedTuple):
    """The values of some arrays where one of them is not zero."""

    where: npt.NDArray[np.uint8]  # as packed bits
    values: list[npt.NDArray[Any]]

    @classmethod
    def of(cls, arrays: Sequence[npt.NDArray[Any]]) -> Part:
        mask = np.logical_or.reduce([array != 0 for array in arrays])
        return cls(np.packbits(mask), [array[mask] for array in arrays])

    def add_to(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        mask = np.unpackbits(self.where, count=len(arrays[0])).view(np.bool_)
        for array, values in zip(arrays, self.values, strict=True):
            array[mask] += values


def evaluate_in_jobs(
    run: Run, how: OpenedRun, request: ScoreRequest, progress: Callable[[float], None] | None = None
) -> ScoreReport:
    """As `run.evaluate`, computed by the workers."""
    if request.data in (None, "-") or request.per_token or request.references is not None:
        raise ConfigError("--on divides the likelihood of large data; give a file with --data, without --per-token")
    assert request.data is not None
    if isinstance(run, TokenRun):
        run.scored_corpus(None, request.data, request.source)  # encoded once, before all of them read it
    elif not isinstance(run, ImageRun):
        raise ConfigError(
            f"--on divides the likelihood of texts, translations and images, and {str(run.path)!r} {run.does}; "
            "leave it out"
        )
    jobs = JOBS_PER_WORKER * worker_count()
    parts: list[Part] = []
    for _, part in results(score_part, [(how, request, rank, jobs) for rank in range(jobs)]):
        parts.append(part)
        if progress is not None:
            progress(len(parts) / jobs)

    def add_parts(arrays: Sequence[npt.NDArray[Any]]) -> None:
        for part in parts:
            part.add_to(arrays)

    with acting_as(Collected(add_parts)):
        return run.evaluate(request)


def score_part(how: OpenedRun, request: ScoreRequest, rank: int, jobs: int) -> Part:
    """What one job computes."""
    try:
        with acting_as(Job(rank, jobs)):
            _opened(how).evaluate(request, lambda _: None)
    except PartDone as done:
        return Part.of(done.arrays)
    raise AssertionError("a score was not divided")


@lru_cache(1)
def _opened(how: OpenedRun) -> Run:
    return how.open()
