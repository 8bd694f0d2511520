"""From data and a budget to a recommendation: plan, race, mix, measure, report."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from chainrule.comparison.analysis import interval
from chainrule.comparison.folder import TEST, VALIDATION, ComparisonFolder, Finish
from chainrule.comparison.measure import decoding_speed
from chainrule.comparison.plan import Plan, make_plan
from chainrule.comparison.race import Race
from chainrule.comparison.recommend import recommend
from chainrule.comparison.report import render
from chainrule.comparison.results import Failure, Point, Results, Row
from chainrule.comparison.subject import Subject, subject_of
from chainrule.config import DataConfig, apply_overrides
from chainrule.errors import ConfigError, TrainingError, nearest
from chainrule.evaluation.likelihood import Surprisals, summarise, surprisals
from chainrule.files import write_whole
from chainrule.mixing import mix
from chainrule.runs import SequenceRun, load, parameters
from chainrule.training.progress import Reporter

DEFAULT_MINUTES = 10.0
HELD_OUT = 0.1  # share of the data that the figures are taken on, where no other text is given for them
GATE_SHARE = 0.05  # share of the training text kept back for stopping early and for fitting gates
MIXTURE = "mixture"
LEAST_WEIGHT = 0.02  # of a part in a plain mixture; one that gets less is left out


class Watcher:
    """Someone who is told how a comparison is going. This one does not listen; a subclass hears what it overrides."""

    def planned(self, plan: Plan) -> None:
        """The sizes are chosen."""

    def leg(self, name: str, share: float, record: Mapping[str, Any]) -> None:
        """A family has come so far."""

    def failed(self, failure: Failure) -> None:
        """A family has given up; the others go on."""

    def stage(self, label: str, share: float) -> None:
        """What is being done after the training, and how much of it is done."""


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
    watcher: Watcher | None = None,
) -> Results:
    """Train every family on the same text with the same budget, score all on the same bytes, and say which to pick.

    `minutes` is for the whole comparison; `tokens`, instead, is what each family may read. The figures are taken on
    `test`, or else on `valid`, or else on the last `held_out` of the data. Early stopping and the gates of mixtures
    use other text: `valid` where `test` is given as well, else the start of the training text. `overrides` set what has
    no word of its own: ["gpt.model.width=192", "data.unit=documents"].
    """
    watcher = watcher or Watcher()
    folder = ComparisonFolder(Path(out))
    if minutes is not None and minutes <= 0:
        raise ConfigError(f"a comparison of {minutes:g} minutes has no time to train; give it at least 1")
    kind = subject_of(data)
    names = chosen_families(families, kind)
    chosen = chosen_settings(overrides, names)
    config = splits(data, valid, test, held_out, chosen.get("data", {}))
    subject = kind(config, tokenizer, lambda stage, done, total: watcher.stage(stage, done / max(1, total)))
    plan = make_plan(
        names,
        subject=subject,
        minutes=None if tokens is not None else minutes or DEFAULT_MINUTES,
        tokens=tokens,
        threads=threads,
        chosen=chosen,
        overrides=list(overrides),
        command=command,
        data=subject.settings(config),
        tokenizer=tokenizer,
        seed=seed,
    )
    plan = folder.begin(plan, resume=resume)
    watcher.planned(plan)
    failures = Race(folder, plan, watcher.leg).run()
    for failure in failures:
        watcher.failed(failure)
    finished = [name for name in names if folder.finish(name) is not None]
    if not finished:
        raise TrainingError(f"no family could be trained; {failures[0].name}: {failures[0].reason}")
    torch.set_num_threads(plan.threads * plan.jobs)  # nothing else is running now
    results = findings(folder, plan, finished, failures, subject, watcher)
    write_whole(folder.results_file, results.model_dump_json(indent=2))
    write_whole(folder.report_file, render(results))
    return results


def splits(
    data: str, valid: str | None, test: str | None, held_out: float | None, settings: Mapping[str, Any]
) -> DataConfig:
    """Which text is for what; see `compare`."""
    if "-" in (data, valid, test):
        raise ConfigError(
            "a comparison reads its data in several processes, standard input only once; save it to a file"
        )
    # From the start: the text just before the held-out one is most like it, and all models should have read it.
    values: dict[str, Any] = {"train": data, "valid_fraction": GATE_SHARE, "valid_at": "start", **settings}
    if test is not None:
        values |= {"test": test, **({} if valid is None else {"valid": valid})}
    elif valid is not None:
        values["test"] = valid
    else:
        values["test_fraction"] = held_out or HELD_OUT
    return DataConfig.parse(values, where="data")


def chosen_settings(overrides: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the user has set, by family and for the data."""
    values = apply_overrides({}, overrides)
    for name, table in values.items():
        if name not in (*names, "data"):
            raise ConfigError(
                f"--set {name}.…: {nearest(name, (*names, 'data'))}; for example --set gpt.model.width=192"
            )
        if not isinstance(table, dict) or (name != "data" and not set(table) <= {"model", "train"}):
            raise ConfigError(f"--set {name}.… takes {name}.model.KEY=VALUE or {name}.train.KEY=VALUE")
    return values


def chosen_families(asked: Sequence[str] | None, subject: type[Subject]) -> list[str]:
    known = subject.families()
    for name in asked or ():
        if name not in known:
            raise ConfigError(f"unknown family {name!r}; {nearest(name, known)}")
    wanted = subject.usual() if asked is None else asked
    return [name for name in known if name in wanted]


def findings(
    folder: ComparisonFolder,
    plan: Plan,
    finished: Sequence[str],
    failures: Sequence[Failure],
    subject: Subject,
    watcher: Watcher,
) -> Results:
    """All that is to be said about the runs."""
    runs = {name: opened(folder, name) for name in finished}
    if len(finished) > 1:
        runs[MIXTURE] = mixture(folder, finished, subject, watcher)
    evidence = {name: folder.surprisals(name, TEST) for name in runs}
    rows = []
    for done, (name, run) in enumerate(runs.items()):
        watcher.stage("measuring", done / len(runs))
        rows.append(_row(folder, name, run, evidence[name], subject, plan))
    rows.sort(key=lambda row: row.bits_per_byte)
    watcher.stage("analysing", 0.0)
    nats = {row.name: evidence[row.name].nats for row in rows}
    return Results(
        data=plan.data.train,
        tokenizer=plan.tokenizer,
        command=plan.command,
        version=metadata.version("chainrule"),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=f"{platform.machine()}, {os.cpu_count()} processors",
        budget=plan.budget,
        threads=plan.threads,
        unit=subject.unit,
        values=subject.values,
        train_tokens=len(subject.train),
        held_out_bytes=subject.test.bytes,
        rows=rows,
        failures=list(failures),
        best=rows[0].name,
        recommendation=recommend(rows, nats, subject.test.bytes, unit=subject.unit),
        protocol=_protocol(plan, subject, evidence),
        analysis=subject.analyse(nats, [row.name for row in rows if row.kind == "family"][:3]),
    )


def opened(folder: ComparisonFolder, name: str) -> SequenceRun:
    """The run of a family, or of the mixture."""
    return load(folder.run(name), SequenceRun, device="cpu")  # type: ignore[type-abstract]  # nothing is made of it


def mixture(folder: ComparisonFolder, names: Sequence[str], subject: Subject, watcher: Watcher) -> SequenceRun:
    """The best mixture of the families, its gate fitted to the validation text; the one on disk if it is there."""
    if folder.finish(MIXTURE) is not None:
        return opened(folder, MIXTURE)
    shutil.rmtree(folder.run(MIXTURE), ignore_errors=True)  # of a comparison that was stopped while mixing
    parts = worthwhile({name: folder.surprisals(name, VALIDATION).nats for name in names})
    began = time.monotonic()
    run = mix(
        [folder.run(name) for name in parts],
        out=folder.run(MIXTURE),
        kind="ensemble",
        neural_cache=subject.neural_cache,
        device="cpu",
        scored=False,
        reporter=_Relay(watcher),
    )
    seconds = time.monotonic() - began
    found = surprisals(run.autoregressive, subject.test, progress=lambda share: watcher.stage("scoring mixture", share))
    folder.keep_surprisals(MIXTURE, TEST, found)
    finishes = [finish for name in parts if (finish := folder.finish(name)) is not None]
    finish = Finish(
        seconds=seconds + sum(finish.seconds for finish in finishes),
        tokens=sum(finish.tokens for finish in finishes),
        parameters=parameters(run.model),
        memory_bytes=max(finish.memory_bytes for finish in finishes),
    )
    write_whole(folder.finish_file(MIXTURE), finish.model_dump_json(indent=2))
    return run


def worthwhile(nats: Mapping[str, npt.NDArray[np.float32]]) -> list[str]:
    """The models that a plain mixture of all gives some weight: fitted by expectation–maximisation to held-out text."""
    names = list(nats)
    probabilities = np.exp(-np.stack([nats[name].astype(np.float64) for name in names], axis=1))  # (N, P)
    weights = np.full(len(names), 1 / len(names))
    for _ in range(100):
        shares = weights * probabilities
        weights = (shares / shares.sum(1, keepdims=True)).mean(0)
    kept = [name for name, weight in zip(names, weights, strict=True) if weight >= LEAST_WEIGHT]
    return kept if len(kept) > 1 else names


class _Relay(Reporter):
    """Tells a watcher what a reporter is told."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.label = ""

    def begin(self, label: str) -> None:
        self.label = label

    def update(self, progress: float, record: Mapping[str, Any]) -> None:
        self.watcher.stage(self.label, progress)


def _row(
    folder: ComparisonFolder,
    name: str,
    run: SequenceRun,
    found: Surprisals,
    subject: Subject,
    plan: Plan,
) -> Row:
    held_out = subject.test
    score = summarise(found, held_out)
    run.keep_score(score, held_out, run.config.data.named(TEST), split=TEST)
    finish = folder.finish(name)
    assert finish is not None
    composed = name == MIXTURE
    return Row(
        name=name,
        kind="mixture" if composed else "family",
        summary=type(run.model).summary(),
        run=str(folder.run(name).relative_to(folder.path)),
        settings={} if composed else own_settings(run),
        parts=part_weights(run) if composed else {},
        parameters=finish.parameters,
        interval=interval(found.nats, held_out.bytes),
        train_tokens=finish.tokens,
        train_tokens_per_second=finish.tokens / finish.seconds,
        decode_tokens_per_second=decoding_speed(run.autoregressive, *subject.beginning(), threads=plan.threads),
        seconds=finish.seconds,
        memory_bytes=finish.memory_bytes,
        curve=curve(run, subject.unit),
        **subject.sample(run, plan.seed),
        **score.model_dump(include={"nats_per_token", "bits_per_byte", "perplexity", "word_perplexity", "accuracy"}),
    )


def part_weights(run: SequenceRun) -> dict[str, float]:
    """The share of each part in the mean weights of a fitted gate."""
    [fit] = [record for record in run.folder.records("metrics.jsonl") if "gate" in record]
    weights = [max(0.0, weight) for weight in fit["weights"]]
    total = sum(weights) or 1.0
    return {Path(path).name: weight / total for path, weight in zip(fit["runs"], weights, strict=True)}


def curve(run: SequenceRun, unit: str) -> list[Point]:
    """Validation while training, as the run has recorded it."""
    bits = f"valid_bits_per_{unit}"
    return [
        Point(seconds=record["seconds"], tokens=record["tokens"], bits_per_byte=record[bits])
        for record in run.folder.records("metrics.jsonl")
        if bits in record
    ]


def own_settings(run: SequenceRun) -> dict[str, Any]:
    """The settings of a model without what follows from the data."""
    return {name: value for name, value in run.config.model.items() if name not in ("vocabulary", "shape")}


def _protocol(plan: Plan, subject: Subject, evidence: Mapping[str, Surprisals]) -> dict[str, Any]:
    """How the figures were taken: the same text for all, and how each model read it."""
    return {
        "trained_on": plan.data.train,
        "scored_on": plan.data.named(TEST),
        "gates_and_stopping": plan.data.named(VALIDATION),
        "tokens": len(subject.test),
        f"{subject.unit}s": subject.test.bytes,
        "interval": "95 %, circular block bootstrap over the text",
        "decoding": f"one sequence at a time, sampled, after a prompt of {len(subject.beginning().prompt)} tokens",
        "seed": plan.seed,
        "reading": {name: found.protocol.model_dump(exclude_none=True) for name, found in evidence.items()},
    }
