"""From turns to figures: medians, spreads and ratios."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Sequence
from importlib import metadata

import torch

from chainrule.frontier.measure import TURNS
from chainrule.frontier.results import Measurements, Results, Row, Speed
from chainrule.frontier.task import Task, Way
from chainrule.frontier.words import finding


def summarise(task: Task, measured: Measurements, batches: Sequence[int], command: str) -> Results:
    """What has been measured so far, as results."""
    baseline = task.ways[0].name
    rows = [_row(way, measured, batches, baseline) for way in task.ways]
    signatures = next((quality.signatures for quality in measured.quality.values()), {})
    results = Results(
        item=task.item,
        rate=task.rate,
        measure=task.measure,
        more_is_better=task.more_is_better,
        baseline=baseline,
        batches=list(batches),
        rows=rows,
        failures=measured.failures,
        complete=all(_is_complete(way, measured, batches) for way in task.ways),
        threads=torch.get_num_threads(),
        machine=f"{platform.machine()}, {os.cpu_count()} processors",
        version=metadata.version("chainrule"),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=command,
        protocol={
            **task.facts(),
            **{f"{name} signature": text for name, text in signatures.items()},
            "timed": f"in {TURNS} turns, in each of which every way does the same {task.item}s; medians of the turns",
            "spread": "the middle half of the turns",
            "times": f"as fast as {baseline}; the median of the ratios within a turn",
            f"{task.item}s in a turn": {f"batch {batch}": count for batch, count in measured.counts.items()},
            "threads": torch.get_num_threads(),
            "device": str(task.runs[0].model.device),
        },
    )
    found = [sentence for batch in batches if (sentence := finding(results, batch))]
    return results.model_copy(update={"findings": found})


def _is_complete(way: Way, measured: Measurements, batches: Sequence[int]) -> bool:
    """Whether everything was tried."""
    return (way.name in measured.quality or measured.failed(way.name, None)) and all(
        len(measured.turns.get(batch, [])) >= TURNS or measured.failed(way.name, batch) for batch in batches
    )


def _row(way: Way, measured: Measurements, batches: Sequence[int], baseline: str) -> Row:
    known = measured.quality.get(way.name)
    speeds = [_speed(way.name, measured, batch, baseline) for batch in batches]
    return Row(
        name=way.name,
        run=way.run,
        family=way.family,
        way=way.label,
        same_as=way.twin,
        quality={} if known is None else known.figures,
        speeds=[speed for speed in speeds if speed is not None],
    )


def _speed(name: str, measured: Measurements, batch: int, baseline: str) -> Speed | None:
    turns = [turn for turn in measured.turns.get(batch, []) if name in turn]
    if not turns or measured.failed(name, batch):
        return None
    count = measured.counts[batch]
    own = [turn[name] for turn in turns]
    ratios = [turn[baseline].seconds / turn[name].seconds for turn in turns if baseline in turn]
    return Speed(
        batch=batch,
        items_per_second=statistics.median(count / one.seconds for one in own),
        interval=_middle_half([count / one.seconds for one in own]),
        tokens_per_second=statistics.median(one.tokens / one.seconds for one in own),
        times=statistics.median(ratios) if ratios and not measured.failed(baseline, batch) else None,
        turns=len(own),
        compared=sum(one.compared for one in own),
        different=max(one.different for one in own),
    )


def _middle_half(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
