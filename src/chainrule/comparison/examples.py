"""Comparisons of models that label or translate: ranked by a metric of the task, with the likelihood beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from chainrule.comparison.analysis import interval as bits_interval
from chainrule.comparison.folder import TEST, VALIDATION, ComparisonFolder
from chainrule.comparison.measuring import chosen_model_settings, common_prefix, learning_curve
from chainrule.comparison.plan import ComparisonPlan
from chainrule.comparison.results import ComparisonResults, ComparisonRow, FailedFamily, MetricColumn, MetricEstimate
from chainrule.comparison.runner import JobRunner
from chainrule.comparison.running import RunningComparison
from chainrule.comparison.schedule import example_schedule
from chainrule.deadline import Deadline
from chainrule.evaluation.bootstrap import Values, interval, resampled
from chainrule.evaluation.likelihood import Surprisals, summarise
from chainrule.interface.conditional import ParallelModel
from chainrule.reports.formatting import listed
from chainrule.reports.page import provenance
from chainrule.tasks import Run, load
from chainrule.tasks.comparing import ExampleComparison, TaskMetric

DISTILLATION_FRACTION = 0.3  # of the time of the models that learn from a teacher, for its translations
DISTILLATION_MARGIN = 0.8  # of the sentences that it is expected to translate in that time
MIN_EXAMPLES, MIN_FRACTION = 50, 0.1  # of the test examples that the others have predicted, for a model to be shown


class Measured(NamedTuple):
    """A metric of one model on the common examples, and on resamples of them."""

    value: float
    resampled: Values  # (R,)


def measure(metric: TaskMetric) -> Measured:
    """The metric of all examples, and of resamples."""
    [value] = metric.value(metric.statistics.sum(0)[None])
    return Measured(float(value), resampled(metric.statistics, metric.value))


class ComparisonOfExamples(RunningComparison):
    """A comparison of models of labels or pairs."""

    task: ExampleComparison

    def schedule(self, runner: JobRunner) -> ComparisonPlan:
        phases = [[job.name for job in self.plan.jobs if job.taught == taught] for taught in (False, True)]
        schedule = example_schedule(
            max(1.0, self.deadline.remaining),
            phases,
            workers=self.plan.workers,
            scoring_fraction=self.task.scoring_fraction,
            reading=self.reading,
        )
        return self.plan.model_copy(update={"schedule": schedule})

    def run_jobs(self, runner: JobRunner) -> list[FailedFamily]:
        """Run the models that need no teacher, then those that learn from the best of them."""
        taught = [job for job in self.plan.jobs if job.taught]
        if not taught:
            return runner.run()
        schedule, later = self.plan.schedule, 0.0
        if schedule is not None:
            each = schedule.training + max(schedule.scoring[job.name] for job in taught)
            later = each * math.ceil(len(taught) / self.plan.workers)
        failures = runner.run(later=later)
        waiting = [job.name for job in taught if self.folder.job_result(job.name) is None]
        lesson = ""
        if waiting and not any(job.data for job in taught):
            lesson = self._teach(runner, waiting, later)
        failures += runner.run(taught=True)
        learned = [name for name in waiting if self.folder.job_result(name) is not None]
        if lesson and learned:  # a model that was not finished in time has learned nothing that is shown
            self.notes.append(f"{listed(learned)} learned from {lesson}")
        return failures

    def _teach(self, runner: JobRunner, names: Sequence[str], later: float) -> str:
        """Let the best model so far translate the training data for these models, in a part of their time.

        Returns what they learn from.
        """
        teacher = self._teacher()
        if teacher is None:
            return "the references, because no other model was compared"
        result = self.folder.job_result(teacher)
        assert result is not None
        pairs, part = None, Deadline()
        if self.plan.schedule is not None:
            part = self.deadline.within(DISTILLATION_FRACTION * later)
            affordable = int(DISTILLATION_MARGIN * result.texts_per_second * part.remaining)
            assert self.task.train.offsets is not None
            pairs = affordable if affordable < len(self.task.train.offsets) - 1 else None
            if affordable < 1:
                return "the references, because there was no time for a teacher"
        settings = {"distil_from": str(self.folder.run(teacher)), **({} if pairs is None else {"distil_pairs": pairs})}
        self._use_data(runner, names, settings)
        began = time.monotonic()
        self.listener.stage(f"translating by {teacher}", 0.0)
        limit = Deadline() if pairs is None and self.plan.schedule is None else part.after(2 * part.remaining)
        if not runner.distil(names[0], limit):
            self._use_data(runner, names, {})
            return f"the references, because {teacher} was too slow as a teacher"
        which = "all training pairs" if pairs is None else f"the first {pairs:,} training pairs"
        took = f"{time.monotonic() - began:.0f} s of their time"
        return f"the translations of {teacher}: {which}, for which it took {took}"

    def _use_data(self, runner: JobRunner, names: Sequence[str], settings: dict[str, Any]) -> None:
        jobs = [job.model_copy(update={"data": settings}) if job.name in names else job for job in self.plan.jobs]
        self.plan = runner.plan = self.plan.model_copy(update={"jobs": jobs})
        self.folder.write_plan(self.plan)

    def _teacher(self) -> str | None:
        """The finished autoregressive model with the best likelihood of the validation data."""
        names = [job.name for job in self.plan.jobs if not job.taught and self.folder.job_result(job.name) is not None]
        if not names:
            return None
        nats = {name: self.folder.surprisals(name, VALIDATION).nats for name in names}
        count = min(map(len, nats.values()))
        return min(names, key=lambda name: float(nats[name][:count].mean()))

    def measure(self) -> ComparisonResults:
        """A row per model, the best first, all on the same test examples."""
        self.listener.stage("measuring", 0.0)
        names = self.finished()
        predicted = {name: self.folder.predictions(name) for name in names}
        most = max(map(len, predicted.values()))
        short = [name for name in names if len(predicted[name]) < min(MIN_EXAMPLES, MIN_FRACTION * most)]
        if short:
            self.notes.append(f"left out: {listed(short)}; too few test texts were predicted in time")
        names = [name for name in names if name not in short]
        count = min(len(predicted[name]) for name in names)
        if count < self.examples:
            columns = listed(list(self.task.metric_names))
            self.notes.append(
                f"{columns} are measured on the first {count:,} of {self.examples:,} test texts: there was no time for "
                "more"
            )
        metrics = {name: self.task.metrics(predicted[name][:count]) for name in names}
        measured = {name: {one.key: measure(one) for one in found} for name, found in metrics.items()}
        key = metrics[names[0]][0].key
        names.sort(key=lambda name: -measured[name][key].value)
        rows = self._rows(names, measured)
        plan, task, first = self.plan, self.task, metrics[names[0]][0]
        return ComparisonResults(
            data=plan.data.train,
            tokenizer=plan.tokenizer,
            command=plan.command,
            **provenance(),
            budget=plan.budget,
            total_seconds=round(self.used + time.monotonic() - self.started, 1),
            threads=plan.threads,
            unit=task.unit,
            activity=task.activity,
            metrics=[MetricColumn(key=one.key, name=one.name, digits=one.digits) for one in metrics[names[0]]],
            train_tokens=len(task.train),
            held_out_bytes=count,
            rows=rows,
            failures=self.failures,
            notes=self.notes,
            best=rows[0].name,
            recommendation=recommend_by(
                rows, {name: measured[name][key].resampled for name in names}, first.name, first.digits
            ),
            protocol=self._protocol(count),
        )

    @property
    def examples(self) -> int:
        """Number of test examples."""
        assert self.task.test.offsets is not None
        return len(self.task.test.offsets) - 1

    def _rows(self, names: Sequence[str], measured: Mapping[str, Mapping[str, Measured]]) -> list[ComparisonRow]:
        scored = {name: self.folder.surprisals(name, TEST) for name in names}
        tokens = common_prefix(scored)[0]
        rows = []
        for done, name in enumerate(names):
            self.listener.stage("measuring", done / len(names))
            metrics = {
                key: MetricEstimate(value=one.value, interval=interval(one.resampled))
                for key, one in measured[name].items()
            }
            rows.append(example_row(self.folder, self.plan, self.task, name, scored[name], tokens, metrics))
        return rows

    def _protocol(self, count: int) -> dict[str, object]:
        plan, task = self.plan, self.task
        return {
            "training_data": plan.data.train,
            "test_data": task.names[TEST],
            "validation_data": f"{task.names[VALIDATION]}, for early stopping",
            "test_texts": count if count == self.examples else f"the first {count:,} of {self.examples:,}",
            **task.described(),
            "interval": "95 %, bootstrap over the test texts; models are compared by the same resamples",
            "random_seed": plan.seed,
        }


def example_row(
    folder: ComparisonFolder,
    plan: ComparisonPlan,
    task: ExampleComparison,
    name: str,
    found: Surprisals,
    tokens: int,
    metrics: dict[str, MetricEstimate],
) -> ComparisonRow:
    """The row of one model, with the likelihood of the first test tokens."""
    run: Run = load(folder.run(name), device="cpu")
    result, job = folder.job_result(name), plan.job(name)
    assert result is not None
    test = task.test.first(tokens)
    finite = np.isfinite(found.nats[: len(test)])
    kept = Surprisals(found.nats[: len(test)][finite], found.hits[: len(test)][finite], found.protocol)
    score = summarise(kept, test)
    metrics_of_bits = score.model_dump(include={"nats_per_token", "bits_per_byte", "perplexity", "word_perplexity"})
    return ComparisonRow(
        name=name,
        accuracy=None if isinstance(run.model, ParallelModel) else score.accuracy,
        summary=job.summary or type(run.model).summary(),
        run=str(folder.run(name).relative_to(folder.path)),
        settings=chosen_model_settings(run),
        parameters=result.parameters,
        metrics=metrics,
        interval=bits_interval(kept.nats, max(1, round(test.bytes * float(finite.mean())))),
        train_tokens=result.tokens,
        train_tokens_per_second=result.tokens / max(result.seconds, 1e-9),
        texts_per_second=result.texts_per_second,
        seconds=result.seconds,
        memory_bytes=result.memory_bytes,
        curve=learning_curve(run, task.unit),
        **metrics_of_bits,
    )


def recommend_by(rows: Sequence[ComparisonRow], values: Mapping[str, Values], metric: str, digits: int) -> str:
    """A sentence that names the model to pick: the best, or the fastest of those that are not significantly worse.

    `rows` are ordered best first; `values` are the metric of each on the same resamples of the test examples.
    """

    def tied(one: ComparisonRow, other: ComparisonRow) -> bool:
        low, high = interval(values[one.name] - values[other.name])
        return low <= 0 <= high

    def shown(row: ComparisonRow) -> str:
        return f"{next(iter(row.metrics.values())).value:.{digits}f}"

    leader = rows[0]
    ties = [row for row in rows[1:] if tied(leader, row)]
    pick = max([leader, *ties], key=lambda row: row.texts_per_second)
    low, high = next(iter(pick.metrics.values())).interval
    sentence = f"Pick {pick.name}: {metric} {shown(pick)} (95 % {low:.{digits}f}–{high:.{digits}f})"
    if ties:
        rivals = [f"{row.name} ({shown(row)})" for row in [leader, *ties] if row is not pick]
        sentence += f", not significantly different from {listed(rivals)} and the fastest of them"
    others = [row for row in rows if row not in (leader, *ties)]
    if others:
        sentence += f"; significantly better than {others[0].name} ({shown(others[0])}), the next best"
    return sentence + "."
