"""How a comparison divides its time.

    start | training and scoring of all families, several in parallel | mixtures | measuring | analysis and report

`--minutes` is the time of all of it. Before training, the scoring speed of every planned model is measured on a few
tokens. From these speeds follow the time to keep for scoring, mixtures and measuring, and how much of the held-out
data can be scored; training gets the rest, in equal parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from pydantic import Field

from chainrule.config import Settings

TRAINING_FRACTION = 0.6  # of the time, before the scoring speeds are known
SCORING_FRACTION = 0.25  # of the time of a job, at most, for scoring
MIXING_FRACTION = 0.25  # of the time of the comparison, at most, for fitting and scoring the mixtures
MEASURING_FRACTION = 0.12  # and for decoding speeds and samples
MARGIN = 1.15  # of the time expected for scoring
JOB_SECONDS = 0.4  # of processor time of a job besides training and scoring: it starts, validates, saves the model
STARTUPS = 1.0  # further time of a job, as a multiple of the time in which a trial starts
PARTS_FRACTION = 0.6  # of the families that are expected to be parts of the mixtures
CACHE_SECONDS = 60e-6  # per token and part that a neural cache takes
BLEND_SECONDS = 25e-9  # per token, part and entry of the vocabulary, that gates and weighting take
FITTING_SECONDS = 24.0  # of fitting caches and gates, at most, that is planned for
MEASURING_SECONDS = 3.5  # of measuring one model
ANALYSIS_FRACTION = 0.12  # of the time, at most, for analysis and report
ANALYSIS_SECONDS = 1.5  # of processor time for them, besides ANALYSIS_TOKEN_SECONDS for each token of the test data
ANALYSIS_TOKEN_SECONDS = 8e-6
COUNTING_SECONDS = 1.5e-6  # per token of training data, of a count model
MIN_TOKENS = 1024  # of the test data, and of the validation data
MAX_GATE_TOKENS = 1 << 16  # of the validation data, for fitting caches and gates
MAX_PART_TOKENS = 1 << 14  # of them, for choosing the parts of the mixture
READINGS = 2.5  # of the examples by each job: before training and before scoring, beside other jobs
REPORT_FRACTION, REPORT_SECONDS = 0.15, 12.0  # for bootstrap intervals and the report of labels and translations
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
    scoring: dict[str, float] = Field({}, description="further time of each of them, for scoring")
    after: float = Field(0.0, description="time kept for what comes after the families: mixtures, measuring, report")
    mixing: float = Field(0.0, description="of that, for fitting and scoring the mixtures")
    measuring: float = Field(0.0, description="of that, for decoding speeds and samples")
    test_tokens: int | None = Field(None, description="tokens of the test data that are scored; none: all")
    gate_tokens: int | None = Field(None, description="tokens of the validation data that mixtures are fitted to")
    part_tokens: int | None = Field(None, description="of those, for choosing the parts of the mixture")

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
    """Divide the seconds that remain, given trials of the neural families."""
    slowest = max((1 / trial.speed for trial in trials.values()), default=0.0)
    per_token = sum(1 / trial.speed for trial in trials.values())
    per_token += families * vocabulary * BLEND_SECONDS * (2 if cached_parts else 1) + cached_parts * CACHE_SECONDS
    per_token *= PARTS_FRACTION if families > 2 else 1.0  # of the mixtures
    mixing = MIXING_FRACTION * seconds if families > 1 else 0.0
    gate_tokens = min(valid_tokens, MAX_GATE_TOKENS, max(MIN_TOKENS, int(mixing / 4 / per_token)))
    rounds = max(1, math.ceil(len(trials) / workers))
    job = seconds * (1 - MIXING_FRACTION - MEASURING_FRACTION) / rounds
    affordable = SCORING_FRACTION * job / MARGIN / slowest if slowest else math.inf  # tokens, by the slowest model
    part_tokens = int(min(gate_tokens, MAX_PART_TOKENS, max(MIN_TOKENS, affordable / 5)))
    affordable -= 2 * part_tokens  # validated at the end of training, then scored
    if families > 1:
        affordable = min(affordable, mixing / 2 / MARGIN / per_token)
    scored = int(min(test_tokens, max(MIN_TOKENS, affordable)))
    if families > 1:
        reading = MARGIN * per_token * (scored + gate_tokens)
        mixing = min(mixing, reading + min(FITTING_SECONDS, reading + mixing / 3))
    measuring = min(MEASURING_FRACTION * seconds, MEASURING_SECONDS * (families + 2))
    processor = min((one.processor for one in trials.values()), default=1.0)
    analysis = min(ANALYSIS_FRACTION * seconds, (ANALYSIS_SECONDS + ANALYSIS_TOKEN_SECONDS * scored) / processor)
    after = mixing + measuring + analysis
    counting = COUNTING_SECONDS * train_tokens / processor if len(trials) < families else 0.0
    free = len(trials) % workers != 0  # a count model fits next to the last neural family
    job = max(0.0, seconds - after - (0.0 if free else min(counting, seconds / 4))) / rounds
    scoring = {name: _scoring_seconds(trial, scored + 2 * part_tokens) for name, trial in trials.items()}
    mean = sum(scoring.values()) / max(1, len(scoring))
    return Schedule(
        training=max(MIN_TRAINING, job - (mean + max(scoring.values(), default=0.0)) / 2),
        scoring=scoring,
        after=after,
        mixing=mixing,
        measuring=measuring,
        test_tokens=scored,
        gate_tokens=gate_tokens,
        part_tokens=part_tokens,
    )


def _scoring_seconds(trial: Trial, tokens: int) -> float:
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
