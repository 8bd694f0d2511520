"""Comparisons of models that label or translate: ranked by a metric of the task, with the likelihood beside it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from chainrule.comparison.analysis import interval as bits_interval
from chainrule.comparison.folder import TEST, ComparisonFolder
from chainrule.comparison.measuring import chosen_model_settings, common_prefix, learning_curve
from chainrule.comparison.plan import ComparisonPlan
from chainrule.comparison.results import ComparisonResults, ComparisonRow, MetricColumn, MetricEstimate
from chainrule.comparison.runner import JobRunner
from chainrule.comparison.running import RunningComparison
from chainrule.comparison.schedule import example_schedule
from chainrule.evaluation.bootstrap import Values, interval, resampled
from chainrule.evaluation.likelihood import Surprisals, summarise
from chainrule.reports.formatting import listed
from chainrule.reports.page import provenance
from chainrule.tasks import Run, load
from chainrule.tasks.comparing import ExampleComparison, TaskMetric

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
            "test_data": plan.data.named(TEST),
            "validation_data": f"{plan.data.named('validation')}, for early stopping",
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
    return ComparisonRow(
        name=name,
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
        **score.model_dump(include={"nats_per_token", "bits_per_byte", "perplexity", "word_perplexity", "accuracy"}),
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
