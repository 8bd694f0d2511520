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
from chainrule.comparison.examples import ComparisonOfExamples
from chainrule.comparison.folder import TEST, ComparisonFolder
from chainrule.comparison.measuring import common_prefix, fit_notes, measure_rows, prepare_decoding, scoring_protocol
from chainrule.comparison.mixture import MIXTURE, fit_mixtures
from chainrule.comparison.plan import (
    ComparisonPlan,
    Job,
    chosen_entries,
    chosen_settings,
    comparable_task,
    data_settings,
    make_plan,
    split_config,
)
from chainrule.comparison.progress import ComparisonListener, shows_progress
from chainrule.comparison.report import render, render_curve
from chainrule.comparison.results import Analysis, BudgetCurve, ComparisonResults
from chainrule.comparison.runner import JobRunner, JobServer
from chainrule.comparison.running import Relay, RunningComparison
from chainrule.comparison.schedule import Schedule, Trial, feasible, make_schedule
from chainrule.comparison.server import COMPILER
from chainrule.compose.neural_cache import supports_neural_cache
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError, nearest
from chainrule.evaluation.likelihood import Surprisals
from chainrule.files import write_whole
from chainrule.interface.base import AutoregressiveModel
from chainrule.reports.formatting import listed
from chainrule.reports.page import provenance
from chainrule.tasks import COMPARISONS, load
from chainrule.tasks.comparing import ComparisonData, ExampleComparison
from chainrule.tasks.sequences import SequenceComparison, SequenceRun
from chainrule.training.shapes import build_shapes

DEFAULT_MINUTES = 10.0
BUDGET_FRACTIONS = (0.125, 0.25, 0.5, 1.0)  # of the largest budget of a budget curve
MIN_MIXING = 0.25  # of the time planned for the mixtures; with less, they are left out


@shows_progress
def compare(
    data: str,
    *,
    out: str | Path,
    families: Sequence[str] | None = None,
    task: str | None = None,
    encoders: Sequence[str] = (),
    source: str | None = None,
    minutes: float | None = None,
    tokens: int | None = None,
    valid: str | None = None,
    test: str | None = None,
    held_out: float | None = None,
    tokenizer: str | None = None,
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

    The data are text, images, labelled texts or pairs with the translation of each `source`; `task` says which if the
    data do not show it. `encoders` are runs or folders of pretrained models that classifiers of labels are built on.
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
    chosen_source = {} if source is None else {"source": source}
    name = task or comparable_task(data, chosen_source | data_settings(overrides), families)
    if name not in COMPARISONS:
        raise ConfigError(f"unknown task {name!r}; {nearest(name, COMPARISONS)}")
    kind = COMPARISONS[name]
    entries = chosen_entries(families, kind, encoders)
    chosen = chosen_settings(overrides, list(entries))
    config = split_config(data, valid, test, held_out, chosen_source | chosen.get("data", {}), kind.own_test)
    tokenizer = tokenizer or kind.default_tokenizer
    with JobServer(folder.path, threads) as server:  # it gets ready while the data is read
        began = time.monotonic()
        opened = kind(config, tokenizer, lambda stage, done, total: listener.stage(stage, done / max(1, total)))
        reading = time.monotonic() - began
        for warning in opened.warnings:
            listener.note(warning)
        plan = make_plan(
            entries,
            task=opened,
            minutes=None if tokens is not None else minutes or DEFAULT_MINUTES,
            tokens=tokens,
            threads=threads,
            chosen=chosen,
            listed=families is not None,
            overrides=list(overrides),
            command=command,
            data=opened.data_config(config),
            tokenizer=tokenizer,
            seed=seed,
        )
        plan = folder.begin(plan, resume=resume)
        comparison = comparison_of(folder, plan, opened, listener, started)
        comparison.reading = reading
        comparison.train(server)
    results = comparison.measure()
    write_whole(folder.results_file, results.model_dump_json(indent=2))
    write_whole(folder.report_file, render(results))
    comparison.keep_time()
    return results


def comparison_of(
    folder: ComparisonFolder, plan: ComparisonPlan, task: ComparisonData, listener: ComparisonListener, started: float
) -> RunningComparison:
    """The comparison of a plan, for the kind of its data."""
    if isinstance(task, ExampleComparison):
        return ComparisonOfExamples(folder, plan, task, listener, started)
    assert isinstance(task, SequenceComparison)
    return ComparisonOfSequences(folder, plan, task, listener, started)


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
        background = ThreadPoolExecutor(1)  # while the families are trained in other processes
        if task.tokenizer is not None:
            self.word_counts = background.submit(count_words, task.train.tokens, task.tokenizer)
        background.submit(importlib.import_module, COMPILER)
        background.submit(prepare_decoding)
        background.shutdown(wait=False)

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
