"""Measurements and the results computed from them: the contents of measurements.json and results.json."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field

from chainrule.config import Settings
from chainrule.frontier.workload import DecodingMethod, Quality, Workload
from chainrule.reports import formatting
from chainrule.reports.page import provenance

ROUNDS = 5


class FailedMeasurement(Settings):
    """A measurement that failed."""

    name: str = Field(description="of the decoding method")
    batch: int | None = Field(None, description="batch size; None: the quality could not be measured")
    reason: str


class Timing(Settings):
    """One decoding method in one round."""

    seconds: float
    tokens: int
    compared: int = Field(0, description="tokens compared with the output of the reference method")
    different: int = Field(0, description="items whose output differs from that of the reference method")


class Measurements(Settings):
    """The content of measurements.json, from which the same command resumes."""

    request: dict[str, Any] = Field(description="workload and options; a command with others must not resume")
    quality: dict[str, Quality] = Field({}, description="by the name of the decoding method")
    items_per_round: dict[int, int] = Field({}, description="batch size -> items that each method decodes in a round")
    rounds: dict[int, list[dict[str, Timing]]] = Field({}, description="batch size -> timings of each round, by method")
    failures: list[FailedMeasurement] = Field([], description="with their reasons")

    def with_quality(self, name: str, quality: Quality) -> Measurements:
        return self.model_copy(update={"quality": {**self.quality, name: quality}})

    def with_items_per_round(self, batch: int, count: int) -> Measurements:
        return self.model_copy(update={"items_per_round": {**self.items_per_round, batch: count}})

    def with_round(self, batch: int, timings: dict[str, Timing]) -> Measurements:
        return self.model_copy(update={"rounds": {**self.rounds, batch: [*self.rounds.get(batch, []), timings]}})

    def with_failure(self, failure: FailedMeasurement) -> Measurements:
        return self.model_copy(update={"failures": [*self.failures, failure]})

    def for_resuming(self) -> Measurements:
        """Without failed measurements of quality, which are tried again."""
        return self.model_copy(update={"failures": [one for one in self.failures if one.batch is not None]})

    def failed(self, name: str, batch: int | None) -> bool:
        return any((one.name, one.batch) == (name, batch) for one in self.failures)


class Speed(Settings):
    """Speed of a decoding method at one batch size: medians over the rounds."""

    batch: int
    items_per_second: float
    interval: tuple[float, float] = Field(description="interquartile range over the rounds")
    tokens_per_second: float
    speedup: float | None = Field(description="over the baseline, median of the ratios per round; None: it failed")
    rounds: int
    compared: int = Field(0, description="tokens compared with those of `same_output_as`, in all rounds")
    different: int = Field(0, description="items that differ, maximum over the rounds")

    def per_second(self, throughput: str) -> float:
        """Tokens or items per second."""
        return self.tokens_per_second if throughput == "tokens" else self.items_per_second


class FrontierRow(Settings):
    """One decoding method."""

    name: str
    run: str
    family: str
    method: str
    same_output_as: str | None = Field(None, description="the method of the same run that must have the same output")
    quality: dict[str, float] = Field({}, description="metrics by name")
    speeds: list[Speed] = Field([], description="one per batch size")

    def speed(self, batch: int) -> Speed | None:
        return next((speed for speed in self.speeds if speed.batch == batch), None)


class FrontierResults(Settings):
    """The content of results.json."""

    item: str = Field(description="name of an item: sentence or text")
    throughput: str = Field(description="what charts count per second")
    metric: str = Field(description="the quality metric in the charts")
    higher_is_better: bool
    baseline: str = Field(description="the method that speed-ups are relative to")
    batches: list[int]
    rows: list[FrontierRow]
    failures: list[FailedMeasurement] = Field([], description="with their reasons")
    findings: list[str] = Field([], description="a sentence for each batch size")
    complete: bool = Field(description="whether everything has been measured")
    threads: int
    machine: str
    version: str
    created: str = Field(description="ISO 8601")
    command: str = Field(description="command that reproduces the results")
    protocol: dict[str, Any]

    def merit(self, row: FrontierRow) -> float:
        """The quality of a method that has one; higher is better."""
        return row.quality[self.metric] if self.higher_is_better else -row.quality[self.metric]


def summarise(workload: Workload, measured: Measurements, batches: Sequence[int], command: str) -> FrontierResults:
    """The results of the measurements made so far."""
    baseline = workload.methods[0].name
    signatures = next((quality.signatures for quality in measured.quality.values()), {})
    results = FrontierResults(
        item=workload.item,
        throughput=workload.throughput,
        metric=workload.metric,
        higher_is_better=workload.higher_is_better,
        baseline=baseline,
        batches=list(batches),
        rows=[_row(method, measured, batches, baseline) for method in workload.methods],
        failures=measured.failures,
        complete=all(_is_complete(method, measured, batches) for method in workload.methods),
        threads=torch.get_num_threads(),
        **provenance(),
        command=command,
        protocol={
            **workload.protocol(),
            **{f"{name} signature": text for name, text in signatures.items()},
            "timing": f"{ROUNDS} rounds; in each, every method decodes the same {workload.item}s; medians",
            "spread": "interquartile range over the rounds",
            "speed-up": f"over {baseline}; the median of the ratios per round",
            f"{workload.item}s per round": {
                f"batch {batch}": count for batch, count in measured.items_per_round.items()
            },
            "threads": torch.get_num_threads(),
            "device": str(workload.runs[0].model.device),
        },
    )
    found = [sentence for batch in batches if (sentence := finding(results, batch))]
    return results.model_copy(update={"findings": found})


def _is_complete(method: DecodingMethod, measured: Measurements, batches: Sequence[int]) -> bool:
    """Whether all measurements of a method were made or have failed."""
    return (method.name in measured.quality or measured.failed(method.name, None)) and all(
        len(measured.rounds.get(batch, [])) >= ROUNDS or measured.failed(method.name, batch) for batch in batches
    )


def _row(method: DecodingMethod, measured: Measurements, batches: Sequence[int], baseline: str) -> FrontierRow:
    known = measured.quality.get(method.name)
    speeds = [_speed(method.name, measured, batch, baseline) for batch in batches]
    return FrontierRow(
        name=method.name,
        run=method.run,
        family=method.family,
        method=method.label,
        same_output_as=method.reference,
        quality={} if known is None else known.metrics,
        speeds=[speed for speed in speeds if speed is not None],
    )


def _speed(name: str, measured: Measurements, batch: int, baseline: str) -> Speed | None:
    rounds = [timings for timings in measured.rounds.get(batch, []) if name in timings]
    if not rounds or measured.failed(name, batch):
        return None
    count = measured.items_per_round[batch]
    own = [timings[name] for timings in rounds]
    ratios = [timings[baseline].seconds / timings[name].seconds for timings in rounds if baseline in timings]
    return Speed(
        batch=batch,
        items_per_second=statistics.median(count / one.seconds for one in own),
        interval=_interquartile_range([count / one.seconds for one in own]),
        tokens_per_second=statistics.median(one.tokens / one.seconds for one in own),
        speedup=statistics.median(ratios) if ratios and not measured.failed(baseline, batch) else None,
        rounds=len(own),
        compared=sum(one.compared for one in own),
        different=max(one.different for one in own),
    )


def _interquartile_range(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def format_quality(value: float, metric: str) -> str:
    """Two decimals, as is customary for BLEU and chrF; three for bits per byte."""
    return f"{value:.3f}" if metric == "bits/byte" else f"{value:.2f}"


def row_quality(results: FrontierResults, row: FrontierRow) -> str:
    """The charted metric of a row, for display."""
    return format_quality(row.quality[results.metric], results.metric)


def measured_points(results: FrontierResults, batch: int) -> list[tuple[FrontierRow, Speed]]:
    """The rows with both quality and speed at a batch size."""
    found = ((row, row.speed(batch)) for row in results.rows if results.metric in row.quality)
    return [(row, speed) for row, speed in found if speed is not None]


def finding(results: FrontierResults, batch: int) -> str:
    """A sentence: the best method at a batch size, and what the fastest one costs in quality."""
    points = measured_points(results, batch)
    if not points:
        return ""
    best, speed = max(points, key=lambda point: (results.merit(point[0]), point[1].items_per_second))
    sentence = f"At batch size {batch}, {best.name} is best: {results.metric} {row_quality(results, best)}"
    sentence += f" at {formatting.digits(speed.per_second(results.throughput))} {results.throughput}/s"
    if speed.speedup is not None and speed.speedup > 1:
        sentence += f", {formatting.digits(speed.speedup)} times as fast as {results.baseline}"
    fastest, top = max(points, key=lambda point: point[1].items_per_second)
    if fastest is not best:
        speedup = top.items_per_second / speed.items_per_second
        change = format_quality(results.merit(best) - results.merit(fastest), results.metric)
        cost = f"{change} {results.metric} {'lower' if results.higher_is_better else 'higher'}"
        sentence += f"; {fastest.name} is {formatting.digits(speedup)} times as fast, but {cost}"
    return sentence + "."


def output_check(row: FrontierRow, item: str) -> str:
    """Whether a method has the same output as its reference; empty if it has no reference."""
    compared = sum(speed.compared for speed in row.speeds)
    if row.same_output_as is None or not compared:
        return ""
    different = sum(speed.different for speed in row.speeds)
    if different:
        return f"no, {different:,} {item}{'s differ' if different > 1 else ' differs'}"
    return f"yes, {compared:,} tokens"


def failures_by_reason(failures: Sequence[FailedMeasurement]) -> list[tuple[str, str]]:
    """Pairs of the measurements that failed for the same reason, and the reason."""
    names: dict[str, list[str]] = {}
    for failure in failures:
        what = "quality" if failure.batch is None else f"batch {failure.batch}"
        names.setdefault(failure.reason, []).append(f"{failure.name} ({what})")
    return [(", ".join(failed), reason) for reason, failed in names.items()]
