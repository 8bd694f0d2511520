"""From data and a budget to a recommendation: plan, train, mix, measure, report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from chainrule.comparison.analysis import analyse, by_position, count_words, interval, recommend
from chainrule.comparison.folder import TEST, VALIDATION, ComparisonFolder, JobResult
from chainrule.comparison.plan import ComparisonPlan, chosen_families, chosen_settings, make_plan, split_config
from chainrule.comparison.progress import ComparisonListener, shows_progress
from chainrule.comparison.report import render, render_curve
from chainrule.comparison.results import (
    Analysis,
    BudgetCurve,
    ComparisonResults,
    ComparisonRow,
    FailedFamily,
    LearningPoint,
)
from chainrule.comparison.runner import JobRunner
from chainrule.decoding import Sampling, stream_tokens
from chainrule.errors import ConfigError, TrainingError
from chainrule.evaluation.likelihood import Surprisals, summarise, surprisals
from chainrule.files import write_whole
from chainrule.interface.base import AutoregressiveModel
from chainrule.mixing import mix
from chainrule.reports.page import provenance
from chainrule.tasks import load, task_of_data
from chainrule.tasks.base import parameters
from chainrule.tasks.sequences import ComparisonData, SequenceRun, SpeedPrompt
from chainrule.training.progress import Reporter

DEFAULT_MINUTES = 10.0
BUDGET_FRACTIONS = (0.125, 0.25, 0.5, 1.0)  # of the largest budget of a budget curve
MIXTURE = "mixture"
MIN_WEIGHT = 0.02  # of a part in a fixed-weight mixture; parts with less are left out
WARM_UP_TOKENS = 8  # generated before the timing starts
TIMED_SECONDS = 2.0  # of decoding, at most


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
) -> ComparisonResults:
    """Train every family on the same data with the same budget, score all on the same held-out data, recommend one.

    `minutes` is the budget of the whole comparison; `tokens`, instead, is the number of training tokens per family.
    Metrics are computed on `test`, or else on the test split of the data set, or else on `valid`, or else on the last
    `held_out` fraction of the data. Early stopping and the gates of mixtures use other data: `valid` if there is test
    data as well, or the validation split of the data set, else the start of the training data. With
    "data.valid_from=spread" all that is taken from the training data is spread evenly over it. `overrides` are `--set`
    values: ["gpt.model.width=192", "data.unit=documents"].
    Progress is shown on standard error unless `progress` is false; a `listener` receives it instead.
    """
    listener = listener or ComparisonListener()
    folder = ComparisonFolder(Path(out))
    if minutes is not None and minutes <= 0:
        raise ConfigError(f"--minutes must be positive (got {minutes:g}): no time to train; give at least 1")
    kind = task_of_data(data, default="text").comparison
    if kind is None:
        raise ConfigError(f"{data!r} is data of a task whose families cannot be compared; give text or images")
    names = chosen_families(families, kind)
    chosen = chosen_settings(overrides, names)
    config = split_config(data, valid, test, held_out, chosen.get("data", {}), kind.own_test)
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
        overrides=list(overrides),
        command=command,
        data=task.data_config(config),
        tokenizer=tokenizer,
        seed=seed,
    )
    plan = folder.begin(plan, resume=resume)
    listener.planned(plan)
    failures = JobRunner(folder, plan, listener.job).run()
    for failure in failures:
        listener.failed(failure)
    finished = [name for name in names if folder.job_result(name) is not None]
    if not finished:
        raise TrainingError(f"no family could be trained; {failures[0].name}: {failures[0].reason}")
    torch.set_num_threads(plan.threads * plan.workers)  # all jobs are done
    results = measure(folder, plan, finished, failures, task, listener)
    write_whole(folder.results_file, results.model_dump_json(indent=2))
    write_whole(folder.report_file, render(results))
    return results


def measure(
    folder: ComparisonFolder,
    plan: ComparisonPlan,
    finished: Sequence[str],
    failures: Sequence[FailedFamily],
    task: ComparisonData,
    listener: ComparisonListener,
) -> ComparisonResults:
    """Fit the mixture, then measure and analyse all models."""
    runs = {name: open_run(folder, name) for name in finished}
    if len(finished) > 1:
        runs[MIXTURE] = fit_mixture(folder, finished, task, listener)
    scored = {name: folder.surprisals(name, TEST) for name in runs}
    rows = []
    for done, (name, run) in enumerate(runs.items()):
        listener.stage("measuring", done / len(runs))
        rows.append(_row(folder, name, run, scored[name], task, plan))
    rows.sort(key=lambda row: row.bits_per_byte)
    listener.stage("analysing", 0.0)
    nats = {row.name: scored[row.name].nats for row in rows}
    return ComparisonResults(
        data=plan.data.train,
        tokenizer=plan.tokenizer,
        command=plan.command,
        **provenance(),
        budget=plan.budget,
        threads=plan.threads,
        unit=task.unit,
        tokens_per_image=task.tokens_per_image,
        train_tokens=len(task.train),
        held_out_bytes=task.test.bytes,
        rows=rows,
        failures=list(failures),
        best=rows[0].name,
        recommendation=recommend(rows, nats, task.test.bytes, unit=task.unit),
        protocol=_protocol(plan, task, scored),
        analysis=_analysis(task, nats, [row.name for row in rows if row.kind == "family"][:3]),
    )


def open_run(folder: ComparisonFolder, name: str) -> SequenceRun:
    """The run of a family, or of the mixture."""
    return load(folder.run(name), SequenceRun, device="cpu")  # type: ignore[type-abstract]  # only an isinstance check


def fit_mixture(
    folder: ComparisonFolder, names: Sequence[str], task: ComparisonData, listener: ComparisonListener
) -> SequenceRun:
    """The best mixture of the families, its gate fitted on the validation data; a finished one is loaded."""
    if folder.job_result(MIXTURE) is not None:
        return open_run(folder, MIXTURE)
    shutil.rmtree(folder.run(MIXTURE), ignore_errors=True)  # left by a comparison that was stopped here
    parts = useful_parts({name: folder.surprisals(name, VALIDATION).nats for name in names})
    began = time.monotonic()
    run = mix(
        [folder.run(name) for name in parts],
        out=folder.run(MIXTURE),
        kind="ensemble",
        neural_cache=task.neural_cache,
        device="cpu",
        scored=False,
        reporter=_Relay(listener),
    )
    seconds = time.monotonic() - began
    found = surprisals(run.autoregressive, task.test, progress=lambda done: listener.stage("scoring mixture", done))
    folder.write_surprisals(MIXTURE, TEST, found)
    jobs = [result for name in parts if (result := folder.job_result(name)) is not None]
    result = JobResult(
        seconds=seconds + sum(job.seconds for job in jobs),
        tokens=sum(job.tokens for job in jobs),
        parameters=parameters(run.model),
        memory_bytes=max(job.memory_bytes for job in jobs),
    )
    write_whole(folder.job_file(MIXTURE), result.model_dump_json(indent=2))
    return run


def useful_parts(nats: Mapping[str, npt.NDArray[np.float32]]) -> list[str]:
    """At least two models: those with a weight above MIN_WEIGHT in a fixed-weight mixture of all, fitted by EM."""
    names = list(nats)
    probabilities = np.exp(-np.stack([nats[name].astype(np.float64) for name in names], axis=1))  # (N, P)
    weights = np.full(len(names), 1 / len(names))
    for _ in range(100):
        joint = weights * probabilities
        weights = (joint / joint.sum(1, keepdims=True)).mean(0)
    largest = np.argsort(-weights, kind="stable")[:2]  # a mixture has at least two parts
    return [name for index, name in enumerate(names) if weights[index] >= MIN_WEIGHT or index in largest]


class _Relay(Reporter):
    """Forwards the progress of a fit to a listener."""

    def __init__(self, listener: ComparisonListener) -> None:
        self.listener = listener
        self.label = ""

    def begin(self, label: str) -> None:
        self.label = label

    def update(self, progress: float | None, record: Mapping[str, Any]) -> None:
        self.listener.stage(self.label, progress or 0.0)


def _row(
    folder: ComparisonFolder,
    name: str,
    run: SequenceRun,
    found: Surprisals,
    task: ComparisonData,
    plan: ComparisonPlan,
) -> ComparisonRow:
    score = summarise(found, task.test)
    run.keep_score(score, task.test, run.config.data.named(TEST), split=TEST)
    job = folder.job_result(name)
    assert job is not None
    composed = name == MIXTURE
    return ComparisonRow(
        name=name,
        kind="mixture" if composed else "family",
        summary=type(run.model).summary(),
        run=str(folder.run(name).relative_to(folder.path)),
        settings={} if composed else chosen_model_settings(run),
        parts=part_weights(run) if composed else {},
        parameters=job.parameters,
        interval=interval(found.nats, task.test.bytes),
        train_tokens=job.tokens,
        train_tokens_per_second=job.tokens / job.seconds,
        decode_tokens_per_second=decoding_speed(run.autoregressive, task.speed_prompt(), threads=plan.threads),
        seconds=job.seconds,
        memory_bytes=job.memory_bytes,
        curve=learning_curve(run, task.unit),
        **task.sample(run, plan.seed),
        **score.model_dump(include={"nats_per_token", "bits_per_byte", "perplexity", "word_perplexity", "accuracy"}),
    )


def decoding_speed(model: AutoregressiveModel, start: SpeedPrompt, *, threads: int) -> float:
    """Tokens per second when sampling one sequence after a prompt."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generated, began = 0, 0.0
        warm_up = min(WARM_UP_TOKENS, start.length // 2)
        for _ in stream_tokens(model, [start.prompt], length=start.length, sampling=Sampling(), seeds=[0]):
            generated += 1
            now = time.perf_counter()
            if generated == warm_up:
                began = now
            elif generated > warm_up and now - began > TIMED_SECONDS:
                break
        return (generated - warm_up) / (time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)


def part_weights(run: SequenceRun) -> dict[str, float]:
    """The mean weight of each part of a fitted mixture; they sum to 1."""
    [fit] = [record for record in run.folder.records("metrics.jsonl") if "gate" in record]
    weights = [max(0.0, weight) for weight in fit["weights"]]
    total = sum(weights) or 1.0
    return {Path(path).name: weight / total for path, weight in zip(fit["runs"], weights, strict=True)}


def learning_curve(run: SequenceRun, unit: str) -> list[LearningPoint]:
    """The validation metric during training, as recorded in the run's metrics.jsonl."""
    bits = f"valid_bits_per_{unit}"
    return [
        LearningPoint(seconds=record["seconds"], tokens=record["tokens"], bits_per_byte=record[bits])
        for record in run.folder.records("metrics.jsonl")
        if bits in record
    ]


def chosen_model_settings(run: SequenceRun) -> dict[str, Any]:
    """The settings of a model, without those that follow from the data."""
    return {name: value for name, value in run.config.model.items() if name not in ("vocabulary", "shape")}


def _analysis(task: ComparisonData, nats: Mapping[str, npt.NDArray[np.float32]], leading: Sequence[str]) -> Analysis:
    """Where the models differ: by position, and in text also by word frequency and in excerpts."""
    if task.tokenizer is None:
        return Analysis(by_position=by_position(nats, len(task.test), task.test.offsets), by_frequency=[], excerpts=[])
    words = count_words(task.train.tokens, task.tokenizer)
    return analyse(nats, task.test.tokens, task.tokenizer, words, offsets=task.test.offsets, leading=leading)


def _protocol(plan: ComparisonPlan, task: ComparisonData, scored: Mapping[str, Surprisals]) -> dict[str, Any]:
    """How the metrics were computed: the data, common to all models, and the scoring protocol of each model."""
    return {
        "training_data": plan.data.train,
        "test_data": plan.data.named(TEST),
        "validation_data": f"{plan.data.named(VALIDATION)}, for early stopping and mixture gates",
        "test_tokens": len(task.test),
        f"test_{task.unit}s": task.test.bytes,
        "interval": f"95 %, circular block bootstrap over the test {'images' if task.tokens_per_image else 'text'}",
        "decoding": f"batch size 1, sampled, after a prompt of {len(task.speed_prompt().prompt)} tokens",
        "random_seed": plan.seed,
        "scoring": {name: found.protocol.model_dump(exclude_none=True) for name, found in scored.items()},
    }


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
