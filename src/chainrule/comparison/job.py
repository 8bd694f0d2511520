"""One job: a family is trained and scored until its deadline. It runs in a process of its own (see `server`)."""

from __future__ import annotations

import os
import signal
import time

import torch

from chainrule.api import train
from chainrule.comparison.folder import TEST, VALIDATION, ComparisonFolder, JobResult, last_record
from chainrule.comparison.plan import ComparisonPlan, is_neural
from chainrule.comparison.schedule import MIN_TRAINING, Trial
from chainrule.config import TrainConfig
from chainrule.data.corpus import Corpus
from chainrule.deadline import Deadline
from chainrule.evaluation.likelihood import protocol_for, surprisals
from chainrule.families import build
from chainrule.files import write_whole
from chainrule.interface.base import AutoregressiveModel
from chainrule.tasks import task_of_data
from chainrule.tasks.base import parameters, require
from chainrule.tasks.sequences import SequenceRun
from chainrule.training.progress import Record, Reporter

STOPPED = 3  # exit status of a job that was asked to stop and has saved a checkpoint
TRIAL_SECONDS = 0.15  # of scoring, to measure its speed
TRIAL_TOKENS = 256
LATE_SCORING_FRACTION = 0.15  # of the time kept for what follows the jobs: for scoring if a job is late


def run_trial(folder: ComparisonFolder, name: str) -> None:
    """Build a family at its planned size and write how fast it scores, and what a process takes besides."""
    began, computed = time.monotonic(), time.process_time()
    plan = folder.plan()
    torch.set_num_threads(plan.threads)
    job = next(job for job in plan.jobs if job.family == name)
    kind = task_of_data(plan.data.train, default="text").comparison
    assert kind is not None
    task = kind(plan.data, plan.tokenizer, lambda stage, done, total: None)
    model = build(name, {**task.model_settings(name), **job.model}).eval()
    assert isinstance(model, AutoregressiveModel)
    ready = time.monotonic()
    speed = scoring_speed(model, task.test)
    share = (time.process_time() - computed) / (time.monotonic() - began)
    trial = Trial(speed=speed, startup=ready - began, processor=min(1.0, share / plan.threads))
    write_whole(folder.trial_file(name), trial.model_dump_json())


def scoring_speed(model: AutoregressiveModel, corpus: Corpus) -> float:
    """Tokens scored per second, measured on the first few tokens of a corpus."""
    count = min(TRIAL_TOKENS, len(corpus))
    surprisals(model, corpus.first(count))  # warms up
    while True:
        began = time.monotonic()
        trial = corpus.first(count)
        surprisals(model, trial)
        seconds = time.monotonic() - began
        if seconds >= TRIAL_SECONDS / 2 or len(trial) == len(corpus):
            return len(trial) / max(seconds, 1e-6)
        count *= max(2, min(8, int(TRIAL_SECONDS / max(seconds, 1e-3))))


def run_job(folder: ComparisonFolder, name: str, deadline: Deadline) -> None:
    """Train one family, or resume its training, then score it on the validation and test data."""
    plan = folder.plan()
    job = next(job for job in plan.jobs if job.family == name)
    began = time.monotonic()
    watch = _StopInTime(deadline.earlier(_scoring_seconds(plan, name)))
    run = require(
        train(
            name,
            tokenizer=plan.tokenizer,
            seed=plan.seed,
            threads=plan.threads,
            out=folder.run(name),
            settings={
                "data": plan.data.model_dump(exclude_none=True),
                "model": job.model,
                "train": {**_validation(plan), **job.train, **_budget(folder, plan, name, deadline)},
            },
            resume=True,
            scored=False,
            reporter=watch,
        ),
        SequenceRun,  # type: ignore[type-abstract]  # only an isinstance check
    )
    seconds = time.monotonic() - began
    if run.outcome is not None and run.outcome.reason == "stopped" and not watch.stopped:
        raise SystemExit(STOPPED)
    splits = run.splits(run.config.data)
    assert splits.test is not None
    schedule = plan.schedule
    limits = (None, None) if schedule is None else (schedule.part_tokens, schedule.test_tokens)
    if schedule is not None:  # counting has no budget and may take too long
        deadline = max(deadline, deadline.after(LATE_SCORING_FRACTION * schedule.after), key=lambda one: one.end)
    for split, corpus, limit in zip((VALIDATION, TEST), (splits.valid, splits.test), limits, strict=True):
        text = corpus if limit is None else corpus.first(limit)
        protocol = protocol_for(run.autoregressive, text, tokens=None if text is corpus else len(text))
        folder.write_surprisals(name, split, surprisals(run.autoregressive, text, protocol, deadline=deadline))
    result = JobResult(
        seconds=run.outcome.seconds if run.outcome else seconds,
        tokens=run.outcome.tokens if run.outcome else len(splits.train),
        parameters=parameters(run.model),
    )
    write_whole(folder.job_file(name), result.model_dump_json(indent=2))


def _validation(plan: ComparisonPlan) -> dict[str, int]:
    """Validations during training take as many tokens as are scored afterwards, or fewer."""
    tokens = None if plan.schedule is None else plan.schedule.part_tokens
    return {} if tokens is None else {"validate_tokens": min(tokens, TrainConfig().validate_tokens)}


def _scoring_seconds(plan: ComparisonPlan, name: str) -> float:
    """The time of a job that is not for training."""
    return 0.0 if plan.schedule is None else plan.schedule.scoring.get(name, 0.0)


class _StopInTime(Reporter):
    """Stops training, as a signal would, if it began late or is slow, so that time is left to score the model."""

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.stopped = False

    def update(self, progress: float | None, record: Record) -> None:
        if self.deadline.passed and not self.stopped and "step" in record and record["seconds"] >= MIN_TRAINING:
            self.stopped = True
            os.kill(os.getpid(), signal.SIGTERM)


def _budget(folder: ComparisonFolder, plan: ComparisonPlan, name: str, deadline: Deadline) -> dict[str, float | None]:
    """The training budget: that of all families, or less if the deadline leaves less besides scoring."""
    if not is_neural(name):
        return {}
    if plan.schedule is None:
        return {"tokens": plan.tokens}
    record = last_record(folder.run(name) / "metrics.jsonl")
    trained = 0.0 if record is None else float(record["seconds"])
    available = trained + max(0.0, deadline.remaining - _scoring_seconds(plan, name))
    return {"minutes": max(MIN_TRAINING, min(plan.schedule.training, available)) / 60}
