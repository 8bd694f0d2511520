"""One job: a family is trained and scored until its deadline. It runs in a process of its own (see `server`)."""

from __future__ import annotations

import os
import signal
import time
from typing import NamedTuple

import torch

from chainrule.api import train
from chainrule.comparison.folder import TEST, VALIDATION, ComparisonFolder, JobResult, last_record
from chainrule.comparison.plan import ComparisonPlan, is_neural
from chainrule.comparison.schedule import MIN_TRAINING, Schedule, Trial
from chainrule.config import DataConfig, RunConfig, TrainConfig
from chainrule.data.corpus import Corpus
from chainrule.deadline import Deadline
from chainrule.evaluation.likelihood import Surprisals, parallel_surprisals, surprisals
from chainrule.evaluation.protocol import protocol_for
from chainrule.families import build
from chainrule.files import write_whole
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.conditional import ParallelModel
from chainrule.tasks import COMPARISONS, Run, load, open_data
from chainrule.tasks.base import parameters, require
from chainrule.tasks.comparing import ComparisonData, ExampleComparison
from chainrule.tasks.sequences import SequenceComparison, SequenceRun
from chainrule.training.progress import Record, Reporter

STOPPED = 3  # exit status of a job that was asked to stop and has saved a checkpoint
TRIAL_SECONDS = 0.15  # of scoring, to measure its speed
TRIAL_TOKENS = 256
VALIDATION_FRACTION, TEST_FRACTION = 0.15, 0.3  # of the time then left, for the likelihood of examples
LATE_SCORING_FRACTION = 0.15  # of the time kept for what follows the jobs: for scoring if a job is late


def run_trial(folder: ComparisonFolder, name: str) -> None:
    """Build a family at its planned size and write how fast it scores, and what a process takes besides."""
    began, computed = time.monotonic(), time.process_time()
    plan = folder.plan()
    torch.set_num_threads(plan.threads)
    job = plan.job(name)
    task = open_task(plan)
    assert isinstance(task, SequenceComparison)
    model = build(job.family, {**task.model_settings(job.family), **job.model}).eval()
    assert isinstance(model, AutoregressiveModel)
    ready = time.monotonic()
    speed = scoring_speed(model, task.test)
    share = (time.process_time() - computed) / (time.monotonic() - began)
    trial = Trial(speed=speed, startup=ready - began, processor=min(1.0, share / plan.threads))
    write_whole(folder.trial_file(name), trial.model_dump_json())


def open_task(plan: ComparisonPlan) -> ComparisonData:
    """The data of a comparison."""
    return COMPARISONS[plan.task](plan.data, plan.tokenizer, lambda stage, done, total: None)


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
    """Train one model, or resume its training, then score it: a model of sequences on the validation data."""
    plan = folder.plan()
    job = plan.job(name)
    began = time.monotonic()
    watch = _StopInTime(deadline.earlier(_scoring_seconds(plan, name)))
    run = train(
        job.family,
        tokenizer=plan.tokenizer,
        seed=plan.seed,
        threads=plan.threads,
        out=folder.run(name),
        settings={
            "data": {**plan.data.model_dump(exclude_none=True), **job.data},
            "model": job.model,
            "train": {**_validation(plan), **job.train, **_budget(folder, plan, name, deadline)},
        },
        resume=True,
        scored=False,
        reporter=watch,
    )
    seconds = time.monotonic() - began
    if run.outcome is not None and run.outcome.reason == "stopped" and not watch.stopped:
        raise SystemExit(STOPPED)
    if plan.schedule is not None:  # counting has no budget and may take too long
        late = deadline.after(LATE_SCORING_FRACTION * plan.schedule.after)
        deadline = max(deadline, late, key=lambda one: one.end)
    score_model = validate_sequences if issubclass(COMPARISONS[plan.task], SequenceComparison) else score_examples
    scored = score_model(folder, name, run, plan, deadline)
    result = JobResult(
        seconds=run.outcome.seconds if run.outcome else seconds,
        tokens=run.outcome.tokens if run.outcome else scored.train_tokens,
        parameters=parameters(run.model),
        texts_per_second=scored.texts_per_second,
        tokens_per_second=scored.tokens_per_second,
    )
    write_whole(folder.job_file(name), result.model_dump_json(indent=2))


def run_distillation(folder: ComparisonFolder, name: str) -> None:
    """Translate the training data by the teacher of a model; its job finds the translations in the cache."""
    plan = folder.plan()
    torch.set_num_threads(plan.threads)
    job = plan.job(name)
    data = DataConfig.parse({**plan.data.model_dump(exclude_none=True), **job.data}, where="data")
    open_data(RunConfig(family=job.family, tokenizer=plan.tokenizer, data=data), Reporter())
    write_whole(folder.distilled_file(name), "")


class ScoredModel(NamedTuple):
    """What is known of a model besides its scores."""

    train_tokens: int
    texts_per_second: float = 0.0
    tokens_per_second: float = 0.0


def validate_sequences(
    folder: ComparisonFolder, name: str, run: Run, plan: ComparisonPlan, deadline: Deadline
) -> ScoredModel:
    """Write the surprisals of the validation data; the test data is scored when all models are trained."""
    sequences = require(run, SequenceRun)  # type: ignore[type-abstract]  # only an isinstance check
    splits = sequences.splits(run.config.data)
    text = _first(splits.valid, None if plan.schedule is None else plan.schedule.part_tokens)
    surprisals(sequences.autoregressive, text.first(min(TRIAL_TOKENS, len(text))))  # warms up
    began = time.monotonic()
    found = _score_sequences(sequences, text, splits.valid, deadline)
    folder.write_surprisals(name, VALIDATION, found)
    return ScoredModel(len(splits.train), tokens_per_second=len(found.nats) / (time.monotonic() - began))


def score_test(folder: ComparisonFolder, name: str, deadline: Deadline) -> None:
    """Write the surprisals of the test data: to its end or until the deadline, and if that is close, as planned."""
    plan = folder.plan()
    torch.set_num_threads(plan.threads)
    run = load(folder.run(name), SequenceRun, device="cpu")  # type: ignore[type-abstract]  # only an isinstance check
    test = run.splits(run.config.data).test
    assert test is not None
    text = _first(test, tokens_to_score(plan.schedule, folder.job_result(name), deadline))
    folder.write_surprisals(name, TEST, _score_sequences(run, text, test, deadline))


def tokens_to_score(schedule: Schedule | None, result: JobResult | None, deadline: Deadline) -> int | None:
    """All tokens that others are scored on if there seems to be time for those planned; the deadline may cut them."""
    if schedule is None or schedule.test_tokens is None or result is None:
        return None
    in_time = deadline.remaining * result.tokens_per_second >= schedule.test_tokens
    return schedule.test_limit if in_time else schedule.test_tokens


def _first(corpus: Corpus, count: int | None) -> Corpus:
    return corpus if count is None else corpus.first(count)


def _score_sequences(run: SequenceRun, text: Corpus, corpus: Corpus, deadline: Deadline) -> Surprisals:
    """Surprisals of the first part of a corpus."""
    protocol = protocol_for(run.autoregressive, text, tokens=None if text is corpus else len(text))
    return surprisals(run.autoregressive, text, protocol, deadline=deadline)


def score_examples(
    folder: ComparisonFolder, name: str, run: Run, plan: ComparisonPlan, deadline: Deadline
) -> ScoredModel:
    """Write the surprisals of the validation and test targets, and the predictions for the test examples."""
    task = COMPARISONS[plan.task]
    assert issubclass(task, ExampleComparison)
    data = open_data(run.config, Reporter(), stored=run.folder)
    for split, fraction in ((VALIDATION, VALIDATION_FRACTION), (TEST, TEST_FRACTION)):
        corpus, source, _ = data.held_out[split]
        assert source is not None
        until = deadline.share(fraction)
        if isinstance(run.model, ParallelModel):
            found = parallel_surprisals(run.model, corpus, source, deadline=until)
        else:
            assert isinstance(run.model, AutoregressiveModel)
            found = surprisals(run.model, corpus, source=source, deadline=until)
        folder.write_surprisals(name, split, found)
    began = time.monotonic()
    predicted = task.predict(run, data, deadline)
    folder.write_predictions(name, predicted)
    return ScoredModel(len(data.corpus), len(predicted) / (time.monotonic() - began))


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
    if not is_neural(plan.job(name).family):
        return {}
    if plan.schedule is None:
        return {"tokens": plan.tokens}
    record = last_record(folder.run(name) / "metrics.jsonl")
    trained = 0.0 if record is None else float(record["seconds"])
    available = trained + max(0.0, deadline.remaining - _scoring_seconds(plan, name))
    return {"minutes": max(MIN_TRAINING, min(plan.schedule.training, available)) / 60}
