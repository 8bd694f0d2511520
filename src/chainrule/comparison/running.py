"""A comparison at work, whatever its task: training in the time of the budget, failures and notes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from chainrule.comparison.folder import ComparisonFolder
from chainrule.comparison.plan import ComparisonPlan
from chainrule.comparison.progress import ComparisonListener
from chainrule.comparison.results import ComparisonResults, FailedFamily
from chainrule.comparison.runner import NO_TIME, JobRunner, StartsJobs
from chainrule.deadline import NO_DEADLINE, Deadline
from chainrule.errors import TrainingError
from chainrule.files import write_whole
from chainrule.reports.formatting import listed
from chainrule.tasks.comparing import ComparisonData
from chainrule.training.progress import Reporter

MIN_RESUMED_SECONDS, MIN_RESUMED_FRACTION = 30.0, 0.1  # of its budget: the least that a resumed comparison gets


class RunningComparison(ABC):
    """What has been finished is in the folder of the comparison, and all of it ends at one deadline."""

    def __init__(
        self,
        folder: ComparisonFolder,
        plan: ComparisonPlan,
        task: ComparisonData,
        listener: ComparisonListener,
        started: float,
    ) -> None:
        self.folder, self.plan, self.task, self.listener = folder, plan, task, listener
        self.started, self.used = started, folder.seconds_used()
        self.kept = started
        self.deadline = NO_DEADLINE
        if plan.minutes is not None:
            self.deadline = Deadline(started + time_left(60 * plan.minutes, self.used))
        self.failures: list[FailedFamily] = []
        self.notes: list[str] = []
        self.reading = 0.0  # seconds in which the data were read

    def keep_time(self) -> None:
        """Store the time used so far, from which a resumed comparison goes on."""
        self.kept = time.monotonic()
        write_whole(self.folder.seconds_file, f"{self.used + self.kept - self.started:.1f}\n")

    def train(self, server: StartsJobs) -> None:
        """Train and score all models; one that fails or for which no time is left is noted."""
        runner = JobRunner(self.folder, self.plan, server, self._job_progress, self.deadline)
        if self.plan.schedule is not None and not self.plan.schedule.is_final:
            self.plan = runner.plan = self.schedule(runner)
            self.folder.write_plan(self.plan)
        self.listener.planned(self.plan)
        self.keep_time()
        self.failures = self.run_jobs(runner)
        self.keep_time()
        for failure in self.failures:
            self.listener.failed(failure)
        if left_out := [*self.plan.left_out, *runner.left_out]:
            self.notes.append(f"left out: {listed(left_out)}; {NO_TIME}")

    def run_jobs(self, runner: JobRunner) -> list[FailedFamily]:
        """Run all jobs and return those that failed."""
        return runner.run()

    @abstractmethod
    def schedule(self, runner: JobRunner) -> ComparisonPlan:
        """The plan with the time divided."""

    @abstractmethod
    def measure(self) -> ComparisonResults:
        """Measure and compare the trained models."""

    def finished(self) -> list[str]:
        """Names of the models that have been trained and scored. Raises TrainingError if there is none."""
        names = [job.name for job in self.plan.jobs if self.folder.job_result(job.name) is not None]
        if not names:
            reason = f"{self.failures[0].name}: {self.failures[0].reason}" if self.failures else NO_TIME
            raise TrainingError(f"no family could be trained; {reason}")
        return names

    def _job_progress(self, name: str, fraction: float, record: Mapping[str, Any]) -> None:
        if time.monotonic() - self.kept > 1.0:
            self.keep_time()
        self.listener.job(name, fraction, record)


def time_left(budget: float, used: float) -> float:
    """Seconds that a comparison gets: what is left of its budget, or enough to finish if it is resumed."""
    return budget if used <= 0 else max(budget - used, MIN_RESUMED_SECONDS, MIN_RESUMED_FRACTION * budget)


class Relay(Reporter):
    """Forwards the progress of a fit to the listener of a comparison."""

    def __init__(self, comparison: RunningComparison) -> None:
        self.comparison = comparison
        self.label = ""

    def begin(self, label: str) -> None:
        self.label = label
        self.comparison.keep_time()
        self.comparison.listener.stage(label, 0.0)

    def update(self, progress: float | None, record: Mapping[str, Any]) -> None:
        self.comparison.listener.stage(self.label, progress or 0.0)
