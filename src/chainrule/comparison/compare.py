"""From data and a budget to a recommendation: plan, train, mix, measure, report, all within the time of the budget."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from chainrule.comparison.analysis import analyse, by_position, count_words, recommend
from chainrule.comparison.folder import TEST, ComparisonFolder
from chainrule.comparison.measuring import common_prefix, fit_notes, measure_rows, prepare_decoding, scoring_protocol
from chainrule.comparison.mixture import MIXTURE, fit_mixtures
from chainrule.comparison.plan import ComparisonPlan, Job, chosen_families, chosen_settings, make_plan, split_config
from chainrule.comparison.progress import ComparisonListener, shows_progress
from chainrule.comparison.report import render, render_curve
from chainrule.comparison.results import Analysis, BudgetCurve, ComparisonResults, FailedFamily
from chainrule.comparison.runner import NO_TIME, JobRunner, JobServer
from chainrule.comparison.schedule import Schedule, Trial, feasible, make_schedule
from chainrule.comparison.server import COMPILER
from chainrule.compose.neural_cache import supports_neural_cache
from chainrule.data.corpus import Corpus
from chainrule.deadline import NO_DEADLINE, Deadline
from chainrule.errors import ConfigError, TrainingError
from chainrule.evaluation.likelihood import Surprisals
from chainrule.files import write_whole
from chainrule.interface.base import AutoregressiveModel
from chainrule.reports.formatting import listed
from chainrule.reports.page import provenance
from chainrule.tasks import load, task_of_data
from chainrule.tasks.sequences import ComparisonData, SequenceRun
from chainrule.training.progress import Reporter
from chainrule.training.shapes import build_shapes

DEFAULT_MINUTES = 10.0
BUDGET_FRACTIONS = (0.125, 0.25, 0.5, 1.0)  # of the largest budget of a budget curve
MIN_RESUMED_SECONDS, MIN_RESUMED_FRACTION = 30.0, 0.1  # of its budget: the least that a resumed comparison gets
MIN_MIXING = 0.25  # of the time planned for the mixtures; with less, they are left out


@shows_progress
def compare(
    data: str,
    *,
    out: str | Path,
    families: Sequence[str] | None = None,
    minutes: float | None = None,
    tokens: int | None = None,
    valid: str | None = None,
    test: str | None = None,
    held_out: float | None = None,
    tokenizer: str = "chars",
    seed: int = 0,
    threads: int = 1,
    overrides: Sequence[str] = (),
    command: str = "",
    resume: bool = False,
    progress: bool = True,
    listener: ComparisonListener | None = None,
    started: float | None = None,
) -> ComparisonResults:
    """Train every family on the same data with the same budget, score all on the same held-out data, recommend one.

    `minutes` is the time of the whole comparison, from `started` (a value of time.monotonic()) or the call; `tokens`,
    instead, is the number of training tokens per family. Metrics are computed on `test`, or else on the test split of
    the data set, or else on `valid`, or else on the last `held_out` fraction of the data. Early stopping and the gates
    of mixtures use other data: `valid` if there is test data as well, or the validation split of the data set, else the
    start of the training data. With "data.valid_from=spread" all that is taken from the training data is spread evenly
    over it. `overrides` are `--set` values: ["gpt.model.width=192", "data.unit=documents"]. Progress is shown on
    standard error unless `progress` is false; a `listener` receives it instead.
    """
    started = time.monotonic() if started is None else started
    listener = listener or ComparisonListener()
    folder = ComparisonFolder(Path(out))
    folder.require_usable(resume=resume)  # before the data is read, which may take long
    if minutes is not None and minutes <= 0:
        raise ConfigError(f"--minutes must be positive (got {minutes:g}): no time to train; give at least 1")
    kind = task_of_data(data, default="text").comparison
    if kind is None:
        raise ConfigError(f"{data!r} is data of a task whose families cannot be compared; give text or images")
    names = chosen_families(families, kind)
    chosen = chosen_settings(overrides, names)
    config = split_config(data, valid, test, held_out, chosen.get("data", {}), kind.own_test)
    with JobServer(folder.path, threads) as server:  # it gets ready while the data is read
        task = kind(config, tokenizer, lambda stage, done, total: listener.stage(stage, done / max(1, total)))
        for warning in task.warnings:
            listener.note(warning)
        plan = make_plan(
            names,
            task=task,
            minutes=None if tokens is not None else minutes or DEFAULT_MINUTES,
            tokens=tokens,
            threads=threads,
            chosen=chosen,
            listed=families is not None,
            overrides=list(overrides),
            command=command,
            data=task.data_config(config),
            tokenizer=tokenizer,
            seed=seed,
        )
        plan = folder.begin(plan, resume=resume)
        comparison = Comparison(folder, plan, task, listener, started)
        comparison.train(server)
    results = comparison.measure()
    write_whole(folder.results_file, results.model_dump_json(indent=2))
    write_whole(folder.report_file, render(results))
    comparison.keep_time()
    return results


class Comparison:
    """A comparison at work: what has been finished is in its folder, and all of it ends at one deadline."""

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
        self.word_counts: Future[Counter[str]] | None = None
        background = ThreadPoolExecutor(1)  # while the families are trained in other processes
        if task.tokenizer is not None:
            self.word_counts = background.submit(count_words, task.train.tokens, task.tokenizer)
        background.submit(importlib.import_module, COMPILER)
        background.submit(prepare_decoding)
        background.shutdown(wait=False)

    def keep_time(self) -> None:
        """Store the time used so far, from which a resumed comparison goes on."""
        self.kept = time.monotonic()
        write_whole(self.folder.seconds_file, f"{self.used + self.kept - self.started:.1f}\n")

    def train(self, server: JobServer) -> None:
        """Train and score all families; a family that fails or for which no time is left is noted."""
        runner = JobRunner(self.folder, self.plan, server, self._job_progress, self.deadline)
        if self.plan.schedule is not None and self.plan.schedule.test_tokens is None:
            self.listener.stage("trying the models", 0.0)
            self.plan = runner.plan = self._scheduled(runner.run_trials())
            self.folder.write_plan(self.plan)
        self.listener.planned(self.plan)
        self.keep_time()
        self.failures = runner.run()
        self.keep_time()
        for failure in self.failures:
            self.listener.failed(failure)
        if left_out := [*self.plan.left_out, *runner.left_out]:
            self.notes.append(f"left out: {listed(left_out)}; {NO_TIME}")

    def _job_progress(self, name: str, fraction: float, record: Mapping[str, Any]) -> None:
        if time.monotonic() - self.kept > 1.0:
            self.keep_time()
        self.listener.job(name, fraction, record)

    def _scheduled(self, trials: Mapping[str, Trial]) -> ComparisonPlan:
        """The plan with the time divided, and without families for which there is none if the user listed none."""
        task, plan = self.task, self.plan
        seconds = max(1.0, self.deadline.remaining)
        cached = {job.family for job in plan.jobs if job.family in trials and self._caches(job)}

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
                "jobs": [job for job in plan.jobs if job.family not in left_out],
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
        finished = [job.family for job in plan.jobs if self.folder.job_result(job.family) is not None]
        if not finished:
            reason = f"{self.failures[0].name}: {self.failures[0].reason}" if self.failures else NO_TIME
            raise TrainingError(f"no family could be trained; {reason}")
        scored = {name: self.folder.surprisals(name, TEST) for name in finished}
        count, short = common_prefix(scored)
        if short:
            self.notes.append(f"left out: {listed(short)}; too little of the test data was scored in time")
        runs = {name: self._open(name) for name in finished if name not in short}
        if len(runs) > 1:
            runs |= self._mixtures(list(runs), task.test.first(count))
        scored |= {name: self.folder.surprisals(name, TEST) for name in runs if name not in finished}
        count = min(len(scored[name].nats) for name in runs)
        test = task.test.first(count, task.tokenizer)
        scored = {name: _cut(scored[name], len(test)) for name in runs}
        schedule = plan.schedule
        until = (
            self.deadline
            if schedule is None
            else self.deadline.earlier(schedule.after - schedule.mixing - schedule.measuring)
        )
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
        """The mixtures of these families, unless no time is left for them."""
        schedule = self.plan.schedule
        deadline = self.deadline
        if schedule is not None:
            deadline = self.deadline.earlier(schedule.after - schedule.mixing)
            if deadline.remaining < MIN_MIXING * schedule.mixing and self.folder.job_result(MIXTURE) is None:
                self.notes.append("no mixture was fitted: no time was left; the same command with --resume adds it")
                return {}
        found = fit_mixtures(
            self.folder,
            names,
            test=test,
            gate_tokens=None if schedule is None else schedule.gate_tokens,
            neural_cache=self.task.neural_cache,
            seed=self.plan.seed,
            deadline=deadline,
            reporter=_Relay(self),
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


def time_left(budget: float, used: float) -> float:
    """Seconds that a comparison gets: what is left of its budget, or enough to finish if it is resumed."""
    return budget if used <= 0 else max(budget - used, MIN_RESUMED_SECONDS, MIN_RESUMED_FRACTION * budget)


def _cut(found: Surprisals, count: int) -> Surprisals:
    """The first surprisals."""
    if count == len(found.nats):
        return found
    protocol = found.protocol.model_copy(update={"tokens": count})
    return Surprisals(found.nats[:count], found.hits[:count], protocol)


class _Relay(Reporter):
    """Forwards the progress of a fit to the listener of a comparison."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.label = ""

    def begin(self, label: str) -> None:
        self.label = label
        self.comparison.keep_time()
        self.comparison.listener.stage(label, 0.0)

    def update(self, progress: float | None, record: Mapping[str, Any]) -> None:
        self.comparison.listener.stage(self.label, progress or 0.0)


def budget_curve(
    data: str,
    *,
    out: str | Path,
    minutes: float | None = None,
    listener: ComparisonListener | None = None,
    **settings: Any,
) -> BudgetCurve:
    """Repeat a comparison at several budgets, each in its own subfolder: the leading family depends on the budget."""
    budgets = [(minutes or DEFAULT_MINUTES) * fraction for fraction in BUDGET_FRACTIONS]
    settings.pop("started", None)  # each comparison has its own time
    found = [
        compare(data, out=Path(out) / f"minutes-{budget:g}", minutes=budget, listener=listener, **settings)
        for budget in budgets
    ]
    names = list(dict.fromkeys(row.name for results in reversed(found) for row in results.rows))
    curve = BudgetCurve(
        data=data,
        command=settings.get("command", ""),
        unit=found[-1].unit,
        minutes=budgets,
        bits_per_byte={name: [_bits(results, name) for results in found] for name in names},
        leaders=[results.best for results in found],
        recommendation=_best_families(budgets, found),
    )
    write_whole(Path(out) / "curve.json", curve.model_dump_json(indent=2))
    write_whole(Path(out) / "report.html", render_curve(curve))
    return curve


def _bits(results: ComparisonResults, name: str) -> float | None:
    return next((row.bits_per_byte for row in results.rows if row.name == name), None)


def _best_families(budgets: Sequence[float], found: Sequence[ComparisonResults]) -> str:
    """The best single family at each budget, as a sentence; a mixture of all leads at almost any budget."""
    leaders = [next(row.name for row in results.rows if row.kind == "family") for results in found]
    spans = []
    for name, group in groupby(zip(budgets, leaders, strict=True), key=lambda pair: pair[1]):
        minutes = [budget for budget, _ in group]
        spans.append(f"{name} at {minutes[0]:g}" + (f" to {minutes[-1]:g}" if len(minutes) > 1 else "") + " min")
    return f"Best single family by total budget: {', '.join(spans)}."
