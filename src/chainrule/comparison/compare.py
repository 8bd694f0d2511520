"""From data and a budget to a recommendation: plan, train, mix, measure, report, all within the time of the budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import groupby
from pathlib import Path
from typing import Any

from chainrule.comparison.cluster import ClusterServer
from chainrule.comparison.examples import ComparisonOfExamples
from chainrule.comparison.folder import ComparisonFolder
from chainrule.comparison.plan import (
    ComparisonPlan,
    chosen_entries,
    chosen_settings,
    comparable_task,
    data_settings,
    make_plan,
    split_config,
)
from chainrule.comparison.progress import ComparisonListener, shows_progress
from chainrule.comparison.report import render, render_curve
from chainrule.comparison.results import BudgetCurve, ComparisonResults
from chainrule.comparison.runner import JobServer
from chainrule.comparison.running import RunningComparison
from chainrule.comparison.sequences import ComparisonOfSequences
from chainrule.data.workers import parallel_jobs, working_on
from chainrule.errors import ConfigError, nearest
from chainrule.files import write_whole
from chainrule.tasks import COMPARISONS
from chainrule.tasks.comparing import ComparisonData, ExampleComparison
from chainrule.tasks.sequences import SequenceComparison

DEFAULT_MINUTES = 10.0
BUDGET_FRACTIONS = (0.125, 0.25, 0.5, 1.0)  # of the largest budget of a budget curve


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
    executor: Executor | None = None,
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
    standard error unless `progress` is false; a `listener` receives it instead. An `executor`, such as Dask's
    `client.get_executor()`, runs the jobs on a cluster that shares the file system.
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
    tokenizer = tokenizer or kind.default_tokenizer(config)
    starter = JobServer(folder.path, threads) if executor is None else ClusterServer(folder.path, threads, executor)
    with starter as server:  # it gets ready while the data is read
        began = time.monotonic()
        with working_on(executor):
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
            cores=None if executor is None else parallel_jobs(executor) * threads,
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
    metric = found[-1].metrics[0] if found[-1].metrics else None
    curve = BudgetCurve(
        data=data,
        command=settings.get("command", ""),
        unit=found[-1].unit,
        minutes=budgets,
        bits_per_byte={name: [_bits(results, name) for results in found] for name in names},
        metric=metric,
        metric_values={name: [_value(one, name, metric.key) for one in found] for name in names if metric},
        leaders=[results.best for results in found],
        recommendation=_best_families(budgets, found),
    )
    write_whole(Path(out) / "curve.json", curve.model_dump_json(indent=2))
    write_whole(Path(out) / "report.html", render_curve(curve))
    return curve


def _bits(results: ComparisonResults, name: str) -> float | None:
    return next((row.bits_per_byte for row in results.rows if row.name == name), None)


def _value(results: ComparisonResults, name: str, key: str) -> float | None:
    return next((row.metrics[key].value for row in results.rows if row.name == name), None)


def _best_families(budgets: Sequence[float], found: Sequence[ComparisonResults]) -> str:
    """The best single family at each budget, as a sentence; a mixture of all leads at almost any budget."""
    leaders = [next(row.name for row in results.rows if row.kind == "family") for results in found]
    spans = []
    for name, group in groupby(zip(budgets, leaders, strict=True), key=lambda pair: pair[1]):
        minutes = [budget for budget, _ in group]
        spans.append(f"{name} at {minutes[0]:g}" + (f" to {minutes[-1]:g}" if len(minutes) > 1 else "") + " min")
    return f"Best single family by total budget: {', '.join(spans)}."
