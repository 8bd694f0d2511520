"""The rows of a comparison: metrics, decoding speed and a sample of every model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from chainrule.comparison.analysis import interval
from chainrule.comparison.folder import TEST, ComparisonFolder
from chainrule.comparison.mixture import CACHED_MIXTURE, MIXTURE
from chainrule.comparison.plan import ComparisonPlan
from chainrule.comparison.results import ComparisonRow, LearningPoint
from chainrule.data.corpus import Corpus
from chainrule.deadline import NO_DEADLINE, Deadline
from chainrule.decoding import Sampling, stream_tokens
from chainrule.evaluation.likelihood import Surprisals, summarise
from chainrule.families import build
from chainrule.interface.base import AutoregressiveModel
from chainrule.tasks import Run
from chainrule.tasks.sequences import SequenceComparison, SequenceRun, SpeedPrompt

FROM_DATA = ("vocabulary", "shape", "source_vocabulary", "labels", "embedder")  # settings of a model
WARM_UP_TOKENS = 128  # generated before the timing starts: by then a call generates as many tokens as it can
TIMED_SECONDS = 2.0  # of decoding, at most
TIMED_FRACTION = 0.6  # of the time for one model; the rest is for its sample
MIN_FRACTION, MIN_TOKENS = 0.25, 4096  # of the test tokens that the others have scored, for a model to be shown


def common_prefix(scored: Mapping[str, Surprisals]) -> tuple[int, list[str]]:
    """How many tokens from the start all models have scored, and the models left out because they scored far fewer."""
    most = max(len(found.nats) for found in scored.values())
    short = [name for name, found in scored.items() if len(found.nats) < min(MIN_TOKENS, MIN_FRACTION * most)]
    return min(len(found.nats) for name, found in scored.items() if name not in short), short


def measure_rows(
    folder: ComparisonFolder,
    runs: Mapping[str, SequenceRun],
    scored: Mapping[str, Surprisals],
    test: Corpus,
    task: SequenceComparison,
    plan: ComparisonPlan,
    deadline: Deadline = NO_DEADLINE,
    progress: Callable[[float], None] = lambda done: None,
) -> list[ComparisonRow]:
    """A row per model, best first. The time until the deadline is divided evenly among them."""
    rows = []
    for done, (name, run) in enumerate(runs.items()):
        progress(done / len(runs))
        share = deadline.share(1 / (len(runs) - done))
        rows.append(_row(folder, name, run, scored[name], test, task, plan, share))
    return sorted(rows, key=lambda row: row.bits_per_byte)


def _row(
    folder: ComparisonFolder,
    name: str,
    run: SequenceRun,
    found: Surprisals,
    test: Corpus,
    task: SequenceComparison,
    plan: ComparisonPlan,
    deadline: Deadline,
) -> ComparisonRow:
    score = summarise(found, test)
    run.keep_score(score, test, run.config.data.named(TEST), split=TEST)
    job = folder.job_result(name)
    assert job is not None
    composed = name in (MIXTURE, CACHED_MIXTURE)
    timed = min(TIMED_SECONDS, TIMED_FRACTION * max(0.0, deadline.remaining))
    speed = decoding_speed(run.autoregressive, task.speed_prompt(), threads=plan.threads, seconds=timed)
    longest = None if deadline.end == math.inf else max(0, int(speed * deadline.remaining))
    return ComparisonRow(
        name=name,
        kind="mixture" if composed else "family",
        evaluation="adaptive" if name == CACHED_MIXTURE else "static",
        summary=type(run.model).summary(),
        run=str(folder.run(name).relative_to(folder.path)),
        settings={} if composed else chosen_model_settings(run),
        parts=part_weights(run) if composed else {},
        parameters=job.parameters,
        interval=interval(found.nats, test.bytes),
        train_tokens=job.tokens,
        train_tokens_per_second=job.tokens / job.seconds,
        decode_tokens_per_second=speed,
        seconds=job.seconds,
        memory_bytes=job.memory_bytes,
        curve=learning_curve(run, task.unit),
        **task.sample(run, plan.seed, longest),
        **score.model_dump(include={"nats_per_token", "bits_per_byte", "perplexity", "word_perplexity", "accuracy"}),
    )


def decoding_speed(
    model: AutoregressiveModel, start: SpeedPrompt, *, threads: int, seconds: float = TIMED_SECONDS
) -> float:
    """Tokens per second when sampling one sequence after a prompt, timed for about so many seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generated, began, warm_up = 0, 0.0, min(WARM_UP_TOKENS, start.length // 2)
        timed_from: int | None = None  # tokens
        for tokens in stream_tokens(model, [start.prompt], length=start.length, sampling=Sampling(), seeds=[0]):
            generated += len(tokens)
            now = time.perf_counter()
            if timed_from is None:
                if generated >= warm_up:
                    timed_from, began = generated, now
            elif now - began > seconds:
                break
        return (generated - (timed_from or 0)) / (time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)


def prepare_decoding() -> None:
    """Load what decoding needs, and compile it if this machine has not done so yet."""
    model = build("finite_memory", {"vocabulary": 4, "width": 8, "layers": 1}).eval()
    assert isinstance(model, AutoregressiveModel)
    for _ in stream_tokens(model, [[]], length=2, sampling=Sampling(), seeds=[0]):
        pass


def part_weights(run: SequenceRun) -> dict[str, float]:
    """The mean weight of each part of a fitted mixture; they sum to 1."""
    [fit] = [record for record in run.folder.records("metrics.jsonl") if "gate" in record]
    weights = [max(0.0, weight) for weight in fit["weights"]]
    total = sum(weights) or 1.0
    return {Path(path).name: weight / total for path, weight in zip(fit["runs"], weights, strict=True)}


def fit_notes(runs: Mapping[str, SequenceRun]) -> list[str]:
    """The mixtures whose fit ended because time was up."""
    return [
        f"the fit of the {name} ended when its time was up, after {record['predictions']:,} predictions and up to "
        f"{record['step']} passes; with more --minutes it may become better"
        for name in (MIXTURE, CACHED_MIXTURE)
        if name in runs
        for record in runs[name].folder.records("metrics.jsonl")
        if record.get("cut_short")
    ]


def learning_curve(run: Run, unit: str) -> list[LearningPoint]:
    """The validation metric during training, as recorded in the run's metrics.jsonl."""
    key, nats = (f"valid_bits_per_{unit}", 1.0) if unit != "label" else ("valid_nats_per_token", math.log(2))
    return [
        LearningPoint(seconds=record["seconds"], tokens=record["tokens"], bits_per_byte=record[key] / nats)
        for record in run.folder.records("metrics.jsonl")
        if key in record
    ]


def chosen_model_settings(run: Run) -> dict[str, Any]:
    """The settings of a model, without those that follow from the data."""
    return {name: value for name, value in run.config.model.items() if name not in FROM_DATA}


def scoring_protocol(
    plan: ComparisonPlan, task: SequenceComparison, test: Corpus, scored: Mapping[str, Surprisals], rows: Sequence[str]
) -> dict[str, Any]:
    """How the metrics were computed: the data, common to all models, and the scoring protocol of each model."""
    tokens: object = len(test)
    if len(test) < len(task.test):
        tokens = f"the first {len(test):,} of {len(task.test):,}, the same for every model, for lack of time"
    schedule = plan.schedule
    fitted = "" if schedule is None or schedule.gate_tokens is None else f" (first {schedule.gate_tokens:,} tokens)"
    static = "a fixed function of the text before each token; nothing is adapted to the test data"
    adaptive = "a neural cache copies from the test text read so far, so the model adapts to it while it is scored"
    return {
        "training_data": plan.data.train,
        "test_data": plan.data.named(TEST),
        "validation_data": f"{plan.data.named('validation')}, for early stopping and mixture gates{fitted}",
        "test_tokens": tokens,
        f"test_{task.unit}s": test.bytes,
        "evaluation": {
            name: f"adaptive: {adaptive}" if name == CACHED_MIXTURE else f"static: {static}"
            for name in ("all other models", *rows)
            if name in ("all other models", CACHED_MIXTURE)
        },
        "interval": f"95 %, circular block bootstrap over the test {'images' if task.tokens_per_image else 'text'}",
        "decoding": f"batch size 1, sampled, after a prompt of {len(task.speed_prompt().prompt)} tokens",
        "random_seed": plan.seed,
        "scoring": {name: scored[name].protocol.model_dump(exclude_none=True) for name in rows},
    }
