"""Measure the quality and speed of all decoding methods of a workload; store everything as it is measured.

The folder of a frontier:

measurements.json    quality of each method and the timings of each round; the same command resumes from it
results.json         medians, speed-ups and failures so far
report.html          the same, as charts and a table
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError

from chainrule.errors import ChainruleError, ConfigError, RunError
from chainrule.files import write_whole
from chainrule.frontier.report import render
from chainrule.frontier.results import ROUNDS, FailedMeasurement, FrontierResults, Measurements, Timing, summarise
from chainrule.frontier.workload import DecodedItem, DecodingMethod, Workload

BATCHES = (1, 16)
SECONDS = 10.0
RECOVERABLE = (ChainruleError, MemoryError, RuntimeError)  # torch reports lack of memory as RuntimeError

FrontierProgress = Callable[[str, float], None]
"""Called with what is being measured, and the fraction of all measurements done."""


def require_time(seconds: float) -> None:
    """Raise ConfigError unless there is time to measure."""
    if seconds <= 0:
        raise ConfigError(f"--seconds must be positive (got {seconds:g}); give at least 1")


def measure_frontier(
    workload: Workload,
    *,
    out: str | Path,
    batches: Sequence[int] = BATCHES,
    seconds: float = SECONDS,
    command: str = "",
    progress: FrontierProgress | None = None,
) -> FrontierResults:
    """Measure quality and speed of every decoding method of a workload, at every batch size.

    `out` is the folder of the results. An interrupted measurement resumes if it is called again with the same
    arguments. `seconds` is the average time per method and batch size.
    """
    if not batches or min(batches) < 1:
        raise ConfigError(f"--batches must be at least 1 {workload.item} each (got {list(batches)}); for example 1,16")
    require_time(seconds)
    return _Measurement(workload, FrontierFolder(Path(out)), list(batches), seconds, command, progress).run()


class _Measurement:
    def __init__(
        self,
        workload: Workload,
        folder: FrontierFolder,
        batches: list[int],
        seconds: float,
        command: str,
        progress: FrontierProgress | None,
    ) -> None:
        self.workload, self.folder, self.batches, self.seconds = workload, folder, batches, seconds
        self.command, self.progress = command, progress
        request = {
            **workload.identity(),
            "choice of batches": batches,
            "number of seconds": seconds,
            "number of threads": torch.get_num_threads(),
            "device": str(workload.runs[0].model.device),
        }
        self.measured = folder.begin(request).for_resuming()

    def run(self) -> FrontierResults:
        methods = self.workload.methods
        for index, method in enumerate(methods):
            if method.name not in self.measured.quality:
                self._report(f"quality of {method.name}", index)
                self._measure_quality(method)
        for index, batch in enumerate(self.batches):
            self._measure_speed(batch, len(methods) * (1 + index * ROUNDS))
        return self._save()

    def _measure_quality(self, method: DecodingMethod) -> None:
        try:
            quality = method.measure_quality()
        except RECOVERABLE as error:
            self._record_failures({method.name: first_line(error)}, None)
        else:
            self.measured = self.measured.with_quality(method.name, quality)
        self._save()

    def _measure_speed(self, batch: int, before: int) -> None:
        """Run the remaining rounds at a batch size."""
        methods = [method for method in self.workload.methods if not self.measured.failed(method.name, batch)]
        done = len(self.measured.rounds.get(batch, []))
        if done >= ROUNDS or not methods:
            return
        self._report(f"batch {batch}, warming up", before + done * len(self.workload.methods))
        warm = warm_up(methods, self.workload.size, batch)
        self._record_failures(warm.failed, batch)
        methods = [method for method in methods if method.name in warm.timings]
        if methods and batch not in self.measured.items_per_round:
            costs = [timing.seconds for timing in warm.timings.values()]
            count = items_per_round(costs, self.workload.size, batch, self.seconds)
            self.measured = self.measured.with_items_per_round(batch, count)
        while methods and done < ROUNDS:
            self._report(f"batch {batch}, round {done + 1} of {ROUNDS}", before + done * len(self.workload.methods))
            items = evenly_spaced(self.workload.size, self.measured.items_per_round[batch])
            found = run_round(methods, items, batch)
            self._record_failures(found.failed, batch)
            methods = [method for method in methods if method.name in found.timings]
            self.measured = self.measured.with_round(batch, found.timings)
            done += 1
            self._save()

    def _record_failures(self, reasons: Mapping[str, str], batch: int | None) -> None:
        for name, reason in reasons.items():
            self.measured = self.measured.with_failure(FailedMeasurement(name=name, batch=batch, reason=reason))

    def _save(self) -> FrontierResults:
        results = summarise(self.workload, self.measured, self.batches, self.command)
        self.folder.write(self.measured, results)
        return results

    def _report(self, what: str, done: int) -> None:
        if self.progress is not None:
            self.progress(what, done / (len(self.workload.methods) * (1 + len(self.batches) * ROUNDS)))


class RoundTimings(NamedTuple):
    """One round: the timings of the methods that finished, and why others failed, by name."""

    timings: dict[str, Timing]
    failed: dict[str, str]


def run_round(methods: Sequence[DecodingMethod], items: Sequence[int], batch: int) -> RoundTimings:
    """Let each method decode all items once, timed, and compare outputs with those of the reference methods.

    The methods take turns on the same items, so that other load on the machine affects all of them alike.
    """
    found = RoundTimings({}, {})
    outputs: dict[str, list[DecodedItem]] = {}
    for method in methods:
        began = time.perf_counter()
        try:
            decoded = outputs[method.name] = method.decode(items, batch)
        except RECOVERABLE as error:
            found.failed[method.name] = first_line(error)
            continue
        seconds = time.perf_counter() - began
        found.timings[method.name] = Timing(seconds=seconds, tokens=sum(item.tokens for item in decoded))
    for method in methods:
        if method.name in outputs and method.reference_name in outputs:
            pairs = zip(outputs[method.name], outputs[method.reference_name], strict=True)
            different = sum(one.content != other.content for one, other in pairs)
            timing = found.timings[method.name]
            found.timings[method.name] = timing.model_copy(update={"compared": timing.tokens, "different": different})
    return found


def warm_up(methods: Sequence[DecodingMethod], size: int, batch: int) -> RoundTimings:
    """Decode one batch per method to warm up, then another for a rough timing."""
    items = evenly_spaced(size, batch)
    first = run_round(methods, items, batch)
    second = run_round([method for method in methods if method.name in first.timings], items, batch)
    return RoundTimings(second.timings, first.failed | second.failed)


def items_per_round(seconds: Collection[float], size: int, batch: int, budget: float) -> int:
    """Number of items for each method to decode in a round, in whole batches.

    `seconds` is the time of each method for one batch. With this number, the methods take `budget` seconds on average
    over all rounds.
    """
    batches = round(budget * len(seconds) / max(sum(seconds), 1e-9) / ROUNDS)
    return min(max(1, batches) * batch, size)


def evenly_spaced(size: int, count: int) -> list[int]:
    """`count` evenly spaced indices below `size`, or all of them."""
    count = min(count, size)
    return [index * size // count for index in range(count)]


def first_line(error: BaseException) -> str:
    """The first line of an error message, or the type of the error."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


@dataclass(frozen=True)
class FrontierFolder:
    """The files of a frontier."""

    path: Path

    @property
    def measurements_file(self) -> Path:
        return self.path / "measurements.json"

    def begin(self, request: dict[str, Any]) -> Measurements:
        """The measurements to resume from; none in a new folder.

        Raises RunError if the folder holds anything else, or measurements with other options.
        """
        request = json.loads(json.dumps(request))  # as it is read from a file
        if self.measurements_file.is_file():
            kept = self._measurements()
            for name in request.keys() | kept.request.keys():
                if kept.request.get(name) != request.get(name):
                    raise RunError(
                        f"the frontier in {str(self.path)!r} was started with another {name}; "
                        "repeat its command, or choose another folder"
                    )
            return kept
        if self.path.is_file() or (self.path.is_dir() and any(self.path.iterdir())):
            raise RunError(f"{str(self.path)!r} exists and is not a frontier; choose a new or empty folder")
        return Measurements(request=request)

    def write(self, measured: Measurements, results: FrontierResults) -> None:
        """Write the measurements, results and report so far."""
        write_whole(self.measurements_file, measured.model_dump_json(indent=2))
        write_whole(self.path / "results.json", results.model_dump_json(indent=2))
        write_whole(self.path / "report.html", render(results))

    def _measurements(self) -> Measurements:
        try:
            return Measurements.model_validate_json(self.measurements_file.read_text(encoding="utf-8"))
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"the frontier in {str(self.path)!r} is damaged: {reason}; start a new one") from None
