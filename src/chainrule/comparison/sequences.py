"""A comparison of models of text or images by likelihood: training, scoring, mixtures, measuring, analysis."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from chainrule.comparison.analysis import analyse, by_position, count_words, recommend
from chainrule.comparison.folder import TEST, VALIDATION, ComparisonFolder
from chainrule.comparison.measuring import common_prefix, fit_notes, measure_rows, prepare_decoding, scoring_protocol
from chainrule.comparison.mixture import MIXTURE, fit_mixtures, useful_parts
from chainrule.comparison.plan import (
    ComparisonPlan,
    Job,
)
from chainrule.comparison.progress import ComparisonListener
from chainrule.comparison.results import Analysis, ComparisonResults, FailedFamily
from chainrule.comparison.runner import NO_TIME, JobRunner
from chainrule.comparison.running import Relay, RunningComparison
from chainrule.comparison.schedule import Schedule, Trial, feasible, make_schedule, schedule_scoring
from chainrule.comparison.server import COMPILER
from chainrule.compose.neural_cache import supports_neural_cache
from chainrule.data.corpus import Corpus
from chainrule.deadline import NO_DEADLINE
from chainrule.errors import TrainingError
from chainrule.evaluation.likelihood import Surprisals
from chainrule.interface.base import AutoregressiveModel
from chainrule.reports.formatting import listed
from chainrule.reports.page import provenance
from chainrule.tasks import load
from chainrule.tasks.sequences import SequenceComparison, SequenceRun
from chainrule.training.shapes import build_shapes

SCORING = "scoring the test data"
MIN_MIXING = 0.25  # of the time planned for the mixtures; with less, they are left out


class ComparisonOfSequences(RunningComparison):
    """A comparison of models of text or images, and of their mixtures, by likelihood."""

    task: SequenceComparison

    def __init__(
        self,
        folder: ComparisonFolder,
        plan: ComparisonPlan,
        task: SequenceComparison,
        listener: ComparisonListener,
        started: float,
    ) -> None:
        super().__init__(folder, plan, task, listener, started)
        self.word_counts: Future[Counter[str]] | None = None

    def run_jobs(self, runner: JobRunner) -> list[FailedFamily]:
        """Run all jobs; while they run in other processes, this one gets ready for what follows them."""
        background = ThreadPoolExecutor(1)
        if self.task.tokenizer is not None:
            self.word_counts = background.submit(count_words, self.task.train.tokens, self.task.tokenizer)
        background.submit(importlib.import_module, COMPILER)
        background.submit(prepare_decoding)
        background.shutdown(wait=False)
        failures = super().run_jobs(runner)
        self.keep_time()
        self._score(runner)
        return failures

    def _score(self, runner: JobRunner) -> None:
        """Score the trained models on the test data: on as much of it as the time that is left allows."""
        folder, plan, task = self.folder, self.plan, self.task
        finished = {job.name: result for job in plan.jobs if (result := folder.job_result(job.name)) is not None}
        waiting = [name for name in finished if not folder.has_surprisals(name, TEST)]
        if not waiting:
            return
        deadline, speeds = NO_DEADLINE, {name: max(1.0, result.tokens_per_second) for name, result in finished.items()}
        if plan.schedule is not None:
            seconds = max(1.0, self.deadline.remaining)
            schedule = schedule_scoring(
                plan.schedule,
                seconds,
                speeds,
                self._useful_parts(list(finished)),
                workers=plan.workers,
                vocabulary=task.vocabulary,
                valid_tokens=len(task.valid),
                test_tokens=self._common_tokens(list(finished)),
                cached_parts=[job.name for job in plan.jobs if job.name in finished and self._caches(job)],
            )
            self.plan = runner.plan = plan.model_copy(update={"schedule": schedule})
            folder.write_plan(self.plan)
            deadline = self.deadline.earlier(schedule.after)
        self.listener.stage(SCORING, 0.0)
        runner.score(
            {name: speeds[name] for name in waiting}, deadline, lambda done: self.listener.stage(SCORING, done)
        )

    def _common_tokens(self, names: Sequence[str]) -> int:
        """The test tokens that are scored at most; in a resumed comparison, as many as models have been scored on."""
        scored = [name for name in names if self.folder.has_surprisals(name, TEST)]
        return min([len(self.task.test), *(len(self.folder.surprisals(name, TEST).nats) for name in scored)])

    def _useful_parts(self, names: Sequence[str]) -> list[str]:
        if len(names) < 2:
            return []
        return useful_parts({name: self.folder.surprisals(name, VALIDATION).nats for name in names})

    def schedule(self, runner: JobRunner) -> ComparisonPlan:
        self.listener.stage("trying the models", 0.0)
        return self._scheduled(runner.run_trials())

    def _scheduled(self, trials: Mapping[str, Trial]) -> ComparisonPlan:
        """The plan with the time divided, and without families for which there is none if the user listed none."""
        task, plan = self.task, self.plan
        seconds = max(1.0, self.deadline.remaining)
        cached = {job.name for job in plan.jobs if job.name in trials and self._caches(job)}

        def schedule(neural: Mapping[str, Trial]) -> Schedule:
            return make_schedule(
                seconds,
                neural,
                families=len(plan.jobs) - len(trials) + len(neural),
                workers=plan.workers,
                vocabulary=task.vocabulary,
                train_tokens=len(task.train),
                valid_tokens=len(task.valid),
                test_tokens=len(task.test),
                cached_parts=len(cached & set(neural)),
            )

        names = list(trials) if plan.listed else feasible(trials, schedule)
        left_out = [name for name in trials if name not in names]
        return plan.model_copy(
            update={
                "schedule": schedule({name: trials[name] for name in names}),
                "jobs": [job for job in plan.jobs if job.name not in left_out],
                "left_out": left_out,
            }
        )

    def _caches(self, job: Job) -> bool:
        """Whether a family gets a neural cache in the mixture."""
        if self.task.neural_cache is None:
            return False
        model = build_shapes(job.family, {**self.task.model_settings(job.family), **job.model})
        return isinstance(model, AutoregressiveModel) and supports_neural_cache(model)

    def measure(self) -> ComparisonResults:
        """Fit the mixtures, then measure and analyse all models."""
        plan, task = self.plan, self.task
        torch.set_num_threads(plan.threads)  # more would wait for each other whenever other work runs
        finished = self.finished()
        scored = {
            name: self.folder.surprisals(name, TEST) for name in finished if self.folder.has_surprisals(name, TEST)
        }
        if not scored:
            raise TrainingError(f"no model could be scored; {NO_TIME}")
        count, short = common_prefix(scored)
        if short := [name for name in finished if name in short or name not in scored]:
            self.notes.append(f"left out: {listed(short)}; too little of the test data was scored in time")
        runs = {name: self._open(name) for name in finished if name not in short}
        if len(runs) > 1:
            runs |= self._mixtures(list(runs), task.test.first(count))
        scored |= {name: self.folder.surprisals(name, TEST) for name in runs if name not in finished}
        count = min(len(scored[name].nats) for name in runs)
        test = task.test.first(count, task.tokenizer)
        scored = {name: _cut(scored[name], len(test)) for name in runs}
        schedule = plan.schedule
        until = self.deadline if schedule is None else self.deadline.earlier(schedule.analysis)
        rows = measure_rows(
            self.folder, runs, scored, test, task, plan, until, lambda done: self.listener.stage("measuring", done)
        )
        self.listener.stage("analysing", 0.0)
        nats = {row.name: scored[row.name].nats for row in rows}
        if len(test) < len(task.test):
            self.notes.insert(
                0,
                f"all models are scored on the first {len(test):,} of {len(task.test):,} test tokens: there was no "
                "time for more",
            )
        self.notes += fit_notes(runs)
        return ComparisonResults(
            data=plan.data.train,
            tokenizer=plan.tokenizer,
            command=plan.command,
            **provenance(),
            budget=plan.budget,
            total_seconds=round(self.used + time.monotonic() - self.started, 1),
            threads=plan.threads,
            unit=task.unit,
            tokens_per_image=task.tokens_per_image,
            train_tokens=len(task.train),
            held_out_bytes=test.bytes,
            rows=rows,
            failures=self.failures,
            notes=self.notes,
            best=rows[0].name,
            recommendation=recommend(rows, nats, test.bytes, unit=task.unit),
            protocol=scoring_protocol(plan, task, test, scored, [row.name for row in rows]),
            analysis=self._analysis(nats, test, [row.name for row in rows if row.kind == "family"][:3]),
        )

    def _open(self, name: str) -> SequenceRun:
        return load(self.folder.run(name), SequenceRun, device="cpu")  # type: ignore[type-abstract]  # only an isinstance check

    def _mixtures(self, names: Sequence[str], test: Corpus) -> dict[str, SequenceRun]:
        """The mixtures of the useful ones of these families, unless no time is left for them."""
        schedule = self.plan.schedule
        deadline, parts = self.deadline, self._useful_parts(names)
        if schedule is not None:
            deadline = self.deadline.earlier(schedule.measuring + schedule.analysis)
            if deadline.remaining < MIN_MIXING * schedule.mixing and self.folder.job_result(MIXTURE) is None:
                self.notes.append("no mixture was fitted: no time was left; the same command with --resume adds it")
                return {}
            if schedule.parts is not None and set(schedule.parts) <= set(names):
                parts = schedule.parts
        found = fit_mixtures(
            self.folder,
            [name for name in names if name in parts],
            test=test,
            gate_tokens=None if schedule is None else schedule.gate_tokens,
            neural_cache=self.task.neural_cache,
            seed=self.plan.seed,
            deadline=deadline,
            reporter=Relay(self),
        )
        if not found:
            self.notes.append("the mixture was not scored: time was up; the same command with --resume adds it")
        return found

    def _analysis(self, nats: Mapping[str, npt.NDArray[np.float32]], test: Corpus, leading: Sequence[str]) -> Analysis:
        """Where the models differ: by position, and in text also by word frequency and in excerpts."""
        tokenizer = self.task.tokenizer
        if tokenizer is None or self.word_counts is None:
            return Analysis(by_position=by_position(nats, len(test), test.offsets), by_frequency=[], excerpts=[])
        words = self.word_counts.result()
        return analyse(nats, test.tokens, tokenizer, words, offsets=test.offsets, leading=leading)


def _cut(found: Surprisals, count: int) -> Surprisals:
    """The first surprisals."""
    if count == len(found.nats):
        return found
    protocol = found.protocol.model_copy(update={"tokens": count})
    return Surprisals(found.nats[:count], found.hits[:count], protocol)
