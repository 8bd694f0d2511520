"""How a comparison divides its time.

    start | training of all families, several in parallel | scoring | mixtures | measuring | analysis and report

`--minutes` is the time of all of it. Before training, the scoring speed of every planned model is measured on a few
tokens. From these speeds follows the time to keep for what comes after training; training gets the rest, in equal
parts. After training, when the scoring speeds of the trained models and the parts of the mixtures are known, the time
that is left decides how much of the test data is scored at least. That is an estimate from speeds beside other jobs,
so models score on while their share of the time lasts, to the end of the test data if they can.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence

from pydantic import Field

from chainrule.config import Settings

TRAINING_FRACTION = 0.6  # of the time, before the scoring speeds are known
SCORING_FRACTION = 0.12  # of the time of the comparison, at most, for scoring the families
MIXING_FRACTION = 0.15  # and for fitting and scoring the mixtures
MEASURING_FRACTION = 0.12  # and for decoding speeds and samples
VALIDATION_FRACTION = 0.1  # of the time of a job, at most, for validating the trained model
MARGIN = 1.1  # of the time expected for scoring
CONTENTION = 1.5  # of the time for scoring the families after training: several at a time, and all of them start anew
JOB_SECONDS = 0.4  # of processor time of a job besides training and scoring: it starts, validates, saves the model
SCORING_START, SCORING_START_FRACTION = 3.0, 0.1  # kept for starting to score a model: seconds, and of its time
STARTUPS = 1.0  # further time of a job, as a multiple of the time in which a trial starts
EXPECTED_PARTS = 2.5  # of the mixtures, of mean speed
CACHE_SECONDS = 60e-6  # per token and part that a neural cache takes
BLEND_SECONDS = 25e-9  # per token, part and entry of the vocabulary, that gates and weighting take
FITTING_SECONDS = 8.0  # of processor time for fitting caches and gates
FITTING_FRACTION = 0.08  # of the time of the comparison, at most, that is kept for it
MEASURING_SECONDS = 0.8  # of processor time for measuring one model
ANALYSIS_FRACTION = 0.12  # of the time, at most, for analysis and report
ANALYSIS_SECONDS = 0.7  # of processor time for them, besides ANALYSIS_TOKEN_SECONDS for each token of the test data
ANALYSIS_TOKEN_SECONDS = 8e-6
COUNTING_SECONDS = 1.5e-6  # per token of training data, of a count model
MIN_TOKENS = 1024  # of the test data, and of the validation data
MIN_TEST_TOKENS = 1 << 14  # of the test data, for which the mixtures get fewer parts
MAX_GATE_TOKENS = 1 << 16  # of the validation data, for fitting caches and gates
MAX_PART_TOKENS = 1 << 14  # of them, for choosing the parts of the mixture
READINGS = 2.5  # of the examples by each job: before training and before scoring, beside other jobs
REPORT_FRACTION, REPORT_SECONDS = 0.15, 12.0  # for bootstrap intervals and the report of labels and translations
VALIDATED_PER_SECOND, MIN_VALIDATED = 100, 256  # tokens of a validation, by the seconds of training
MIN_TRAINING = 1.0  # second
MIN_PROCESSOR_SECONDS = 1.5  # of training; with less for each, fewer families are trained


class Trial(Settings):
    """A family tried at its planned size before training."""

    speed: float = Field(description="tokens scored per second")
    startup: float = Field(0.0, description="seconds until the model was ready")
    processor: float = Field(1.0, description="fraction of the time in which the process had a processor")


class Schedule(Settings):
    """The division of the time of a comparison, in seconds."""

    training: float = Field(description="training time of each neural family")
    scoring: dict[str, float] = Field({}, description="further time of each of them: it starts and is validated")
    after: float = Field(0.0, description="time kept for what comes after training")
    mixing: float = Field(0.0, description="of that, for fitting and scoring the mixtures")
    measuring: float = Field(0.0, description="of that, for decoding speeds and samples")
    analysis: float = Field(0.0, description="of that, for analysis and report")
    part_tokens: int | None = Field(None, description="tokens of the validation data that the trained models score")
    gate_tokens: int | None = Field(None, description="tokens of the validation data that mixtures are fitted to")
    test_tokens: int | None = Field(None, description="tokens of the test data for which time is kept; none: all")
    test_limit: int | None = Field(None, description="tokens that are scored if there is more time; none: all")
    parts: list[str] | None = Field(None, description="parts of the mixtures; none: not chosen yet")

    @property
    def is_final(self) -> bool:
        """Whether the time has been divided, or training time is an expectation only."""
        return self.after > 0


def expected_training(seconds: float, neural: int, workers: int) -> float:
    """Training time of each neural family before anything has been measured; it decides the sizes of the models."""
    rounds = max(1, math.ceil(neural / workers))
    return max(MIN_TRAINING, seconds * TRAINING_FRACTION / rounds - JOB_SECONDS)


def make_schedule(
    seconds: float,
    trials: Mapping[str, Trial],
    *,
    families: int,
    workers: int,
    vocabulary: int,
    train_tokens: int,
    valid_tokens: int,
    test_tokens: int,
    cached_parts: int,
) -> Schedule:
    """Divide the seconds that remain before training, given trials of the neural families."""
    processor = sum(one.processor for one in trials.values()) / len(trials) if trials else 1.0
    measuring, analysis, fitting = _fixed_seconds(seconds, families, test_tokens, processor)
    per_token = sum(1 / trial.speed for trial in trials.values())
    scoring = min(SCORING_FRACTION * seconds, CONTENTION * per_token * test_tokens / workers)
    mixing = 0.0
    if families > 1:
        parts = min(EXPECTED_PARTS, families)
        blending = (
            parts * vocabulary * BLEND_SECONDS * (2 if cached_parts else 1) + min(1, cached_parts) * CACHE_SECONDS
        )
        reading = parts * per_token / families + blending
        gate_tokens = min(valid_tokens, MAX_GATE_TOKENS)
        mixing = min(MIXING_FRACTION * seconds, MARGIN * reading * (test_tokens + gate_tokens)) + fitting
    after = scoring + mixing + measuring + analysis
    counting = COUNTING_SECONDS * train_tokens / processor if len(trials) < families else 0.0
    free = len(trials) % workers != 0  # a count model fits next to the last neural family
    rounds = max(1, math.ceil(len(trials) / workers))
    job = max(0.0, seconds - after - (0.0 if free else min(counting, seconds / 4))) / rounds
    slowest = max((1 / trial.speed for trial in trials.values()), default=0.0)
    affordable = VALIDATION_FRACTION * job / MARGIN / slowest / 2 if slowest else math.inf
    part_tokens = int(min(valid_tokens, MAX_PART_TOKENS, max(MIN_TOKENS, affordable)))
    besides = {name: _job_seconds(trial, 2 * part_tokens) for name, trial in trials.items()}  # also during training
    mean = sum(besides.values()) / max(1, len(besides))
    return Schedule(
        training=max(MIN_TRAINING, job - (mean + max(besides.values(), default=0.0)) / 2),
        scoring=besides,
        after=after,
        mixing=mixing,
        measuring=measuring,
        analysis=analysis,
        part_tokens=part_tokens,
    )


def schedule_scoring(
    schedule: Schedule,
    seconds: float,
    speeds: Mapping[str, float],
    parts: Sequence[str],
    *,
    workers: int,
    vocabulary: int,
    valid_tokens: int,
    test_tokens: int,
    cached_parts: Sequence[str],
) -> Schedule:
    """Divide the seconds that remain after training: how much of the test data is scored, and by which mixtures.

    `speeds` are tokens scored per second by each trained model, `parts` those of them that improve a mixture, the
    most useful first.
    """
    measuring, analysis, fitting = _fixed_seconds(seconds, len(speeds), test_tokens, 1.0)
    starting = JOB_SECONDS * len(speeds) / workers
    times = [1 / speed for speed in speeds.values()]
    scoring = CONTENTION * max(sum(times) / workers, *times)
    left = max(0.0, seconds - measuring - analysis - starting)
    chosen = list(parts) if len(speeds) > 1 else []
    while True:
        reading = sum(1 / speeds[name] + vocabulary * BLEND_SECONDS for name in chosen)
        if cached := sum(name in cached_parts for name in chosen):
            reading += len(chosen) * vocabulary * BLEND_SECONDS + cached * CACHE_SECONDS
        gate_tokens, affordable = min(valid_tokens, MAX_GATE_TOKENS), left / scoring
        if chosen:
            gate_tokens = min(gate_tokens, max(MIN_TOKENS, int(left / 5 / reading)))
            affordable = (left - fitting - MARGIN * reading * gate_tokens) / (scoring + MARGIN * reading)
        if len(chosen) <= 2 or affordable >= min(test_tokens, MIN_TEST_TOKENS):
            break
        chosen.pop()
    scored = int(min(test_tokens, max(MIN_TOKENS, affordable)))
    mixing = fitting + MARGIN * reading * (gate_tokens + scored) if chosen else 0.0
    expected = min(left, starting + scoring * scored)
    families = max(expected, seconds - measuring - analysis - mixing)  # they may take what nothing else needs
    return schedule.model_copy(
        update={
            "after": max(0.0, seconds - families),
            "mixing": max(0.0, seconds - families - measuring - analysis) if chosen else 0.0,
            "measuring": measuring,
            "analysis": analysis,
            "gate_tokens": gate_tokens,
            "test_tokens": scored,
            "test_limit": test_tokens,
            "parts": chosen,
        }
    )


def scoring_share(times: Sequence[float], busy: Sequence[float], seconds: float, *, workers: int) -> float:
    """Seconds for the model that is scored next, of those that are left, so that all models get equally far.

    `times` are the seconds per token of this model and of those that follow, `busy` those until other workers are free.
    """
    starting = max(JOB_SECONDS, min(SCORING_START, SCORING_START_FRACTION * seconds / len(times)))

    def end(tokens: float) -> float:
        free, last = sorted([*busy, *[0.0] * (workers - len(busy))])[:workers], 0.0
        for time in times:
            last = max(last, free[0] + starting + tokens * time)
            heapq.heapreplace(free, free[0] + starting + tokens * time)
        return last

    low, high = 0.0, seconds / times[0]
    for _ in range(50):
        tokens = (low + high) / 2
        low, high = (tokens, high) if end(tokens) <= seconds else (low, tokens)
    return min(seconds, starting + low * times[0])


def _fixed_seconds(seconds: float, families: int, test_tokens: int, processor: float) -> tuple[float, float, float]:
    """What measuring, analysis and fitting of the mixtures take, besides reading the text."""
    measuring = min(MEASURING_FRACTION * seconds, MEASURING_SECONDS * (families + 2) / processor)
    analysing = (ANALYSIS_SECONDS + ANALYSIS_TOKEN_SECONDS * test_tokens) / processor
    analysis = min(ANALYSIS_FRACTION * seconds, analysing)
    return measuring, analysis, min(FITTING_SECONDS / processor, FITTING_FRACTION * seconds)


def _job_seconds(trial: Trial, tokens: int) -> float:
    """What a job takes besides training."""
    return MARGIN * tokens / trial.speed + STARTUPS * trial.startup + JOB_SECONDS / trial.processor


def example_schedule(
    seconds: float, phases: Sequence[Sequence[str]], *, workers: int, scoring_fraction: float, reading: float
) -> Schedule:
    """Divide the seconds that remain among models of labels or translations, trained in one or two phases.

    How long a model takes to predict the test data is known only when it is trained, so a fraction of its time is
    kept, and as much is predicted as fits. Every job reads the data twice, which takes `reading` seconds each time.
    """
    after = min(REPORT_FRACTION * seconds, REPORT_SECONDS)
    rounds = max(1, sum(math.ceil(len(names) / workers) for names in phases))
    job = (seconds - after) / rounds
    scoring = scoring_fraction * job + JOB_SECONDS + READINGS * reading
    return Schedule(
        training=max(MIN_TRAINING, job - scoring),
        scoring={name: scoring for names in phases for name in names},
        after=after,
        part_tokens=max(MIN_VALIDATED, int(VALIDATED_PER_SECOND * (job - scoring))),
    )


def feasible(trials: Mapping[str, Trial], make: Callable[[Mapping[str, Trial]], Schedule]) -> list[str]:
    """The families that can be trained for a useful time: all, or without the slowest."""
    kept = dict(sorted(trials.items(), key=lambda item: -item[1].speed))
    while len(kept) > 1:
        processor = sum(trial.processor for trial in kept.values()) / len(kept)
        if make(kept).training * processor >= MIN_PROCESSOR_SECONDS:
            break
        kept.popitem()
    return [name for name in trials if name in kept]
