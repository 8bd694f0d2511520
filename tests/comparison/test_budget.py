"""`--minutes` is the time of all of it: one deadline, and what does not fit before it is cut short and said."""

from __future__ import annotations

import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from chainrule.cli.compare import show
from chainrule.comparison.compare import compare
from chainrule.comparison.folder import ComparisonFolder, JobResult
from chainrule.comparison.job import tokens_to_score
from chainrule.comparison.measuring import common_prefix
from chainrule.comparison.mixture import score_variants
from chainrule.comparison.plan import Job
from chainrule.comparison.runner import JobRunner, Process
from chainrule.comparison.running import time_left
from chainrule.comparison.schedule import Schedule, Trial, feasible, make_schedule, schedule_scoring, scoring_share
from chainrule.compose.ensemble import Ensemble
from chainrule.compose.fit import collect, fit_to
from chainrule.compose.neural_cache import NeuralCache, fit_neural_cache
from chainrule.compose.variants import Variants
from chainrule.data.corpus import Corpus
from chainrule.deadline import Deadline
from chainrule.errors import ConfigError
from chainrule.evaluation.likelihood import Surprisals, surprisals
from chainrule.evaluation.protocol import Protocol
from chainrule.families import build

TRIALS = {
    "recurrent": Trial(speed=40_000.0, startup=0.2),
    "gpt": Trial(speed=60_000.0, startup=0.2),
    "causal_conv": Trial(speed=50_000.0, startup=0.2),
}
DATA = {"vocabulary": 65, "train_tokens": 10**6, "valid_tokens": 50_000, "test_tokens": 100_000, "cached_parts": 2}


class Clock:
    """A clock that advances by a second each time it is read."""

    def __init__(self) -> None:
        self.ticks = itertools.count()

    def __call__(self) -> float:
        return float(next(self.ticks))


def schedule(seconds, trials=TRIALS, **changed) -> Schedule:
    return make_schedule(seconds, trials, families=4, workers=2, **{**DATA, **changed})


def slower(factor: float) -> dict[str, Trial]:
    """The same trials on a machine that gives each process less of its time."""
    return {
        name: Trial(speed=trial.speed / factor, startup=trial.startup * factor, processor=1 / factor)
        for name, trial in TRIALS.items()
    }


# Deadlines


def test_a_deadline_divides_the_time_that_remains():
    now = [100.0]
    deadline = Deadline(160.0, lambda: now[0])
    assert deadline.remaining == 60
    assert deadline.share(0.25).end == 115
    assert deadline.after(100).end == 200
    assert deadline.within(10).end == 110
    assert deadline.within(100).end == 160
    assert deadline.earlier(20).end == 140
    now[0] = 161.0
    assert deadline.passed
    assert Deadline().share(0.5).end == math.inf


@pytest.mark.parametrize("seconds", [50, 110, 290, 590])
@pytest.mark.parametrize("slowness", [1, 4, 8])
def test_the_parts_of_a_schedule_add_up_to_the_time(seconds, slowness):
    found = schedule(seconds, slower(slowness))
    rounds = 2  # of three neural families, two at a time
    job = found.training + sum(found.scoring.values()) / len(found.scoring)
    assert 0.9 * seconds <= job * rounds + found.after <= 1.001 * seconds
    assert found.training > 0


def scoring(seconds, speeds, parts=(), **changed) -> Schedule:
    data = {"vocabulary": 65, "valid_tokens": 50_000, "test_tokens": 100_000, "cached_parts": ["gpt"], **changed}
    return schedule_scoring(Schedule(training=8), seconds, speeds, parts, workers=2, **data)


SPEEDS = {"ngram": 400_000.0, "recurrent": 40_000.0, "gpt": 60_000.0}


def test_slower_models_are_scored_on_fewer_tokens_and_nothing_is_cut_without_need():
    parts = ["ngram", "recurrent", "gpt"]
    assert scoring(100, SPEEDS, parts).test_tokens == 100_000
    slow = scoring(20, {name: speed / 10 for name, speed in SPEEDS.items()}, parts)
    assert 0 < slow.test_tokens < scoring(20, SPEEDS, parts).test_tokens
    assert scoring(20, SPEEDS, parts, test_tokens=3000).test_tokens == 3000
    assert scoring(1, SPEEDS, parts).test_tokens >= 1000  # at least so many, however little time is left


def test_what_training_left_of_the_time_goes_to_the_test_data():
    speeds = {name: speed / 20 for name, speed in SPEEDS.items()}
    tokens = [scoring(seconds, speeds, list(SPEEDS)).test_tokens for seconds in (15, 30, 60, 120, 300)]
    assert tokens == sorted(tokens)
    assert tokens[-1] == 100_000 > tokens[0]


def test_families_may_be_scored_for_as_long_as_nothing_else_needs_the_time():
    plan = scoring(300, SPEEDS, ["ngram", "gpt"])
    assert 0 < plan.mixing < plan.after < 60  # although scoring is expected to take less than ten seconds


def test_a_mixture_gets_fewer_parts_before_the_test_data_is_cut_to_little():
    parts = ["ngram", "gpt", "recurrent"]
    assert scoring(100, SPEEDS, parts).parts == parts
    slow = {"ngram": 400_000.0, "recurrent": 1500.0, "gpt": 60_000.0}
    assert scoring(40, slow, parts).parts == ["ngram", "gpt"]
    assert scoring(1, slow, parts).parts == ["ngram", "gpt"]  # never fewer than two


def test_the_time_left_after_training_is_divided_without_a_rest():
    found = scoring(60, SPEEDS, list(SPEEDS))
    assert found.after == pytest.approx(found.mixing + found.measuring + found.analysis)
    assert 0 < found.after < 60


def test_the_slowest_families_are_left_out_if_there_is_no_time_for_all():
    def at(seconds, trials):
        return feasible(trials, lambda kept: schedule(seconds, kept))

    assert at(60, TRIALS) == list(TRIALS)
    assert at(60, slower(20)) == ["gpt"]
    assert at(600, slower(20)) == list(TRIALS)


def test_a_resumed_comparison_gets_the_time_left_or_enough_to_finish():
    assert time_left(600, 0) == 600
    assert time_left(600, 200) == 400
    assert time_left(600, 599) == 60
    assert time_left(60, 300) == 30


def test_families_share_what_is_left_and_are_left_out_when_nothing_is(tmp_path):
    now = [0.0]
    names = ["ngram", "recurrent", "gpt", "causal_conv"]
    plan = SimpleNamespace(
        jobs=[Job(name=name, family=name) for name in names], workers=1, schedule=Schedule(training=8, after=20)
    )
    deadline = Deadline(50.0, lambda: now[0])
    runner = JobRunner(ComparisonFolder(tmp_path), plan, None, lambda *_: None, deadline)
    runner.waiting = list(names)
    assert runner.job_deadline("ngram").end == 30
    now[0] = 6.0  # counting took long
    assert runner.job_deadline("recurrent").end == pytest.approx(14)  # a third of the 24 s that are left
    now[0] = 14.0
    assert runner.job_deadline("gpt").end == pytest.approx(22)
    now[0] = 29.8
    assert runner.job_deadline("causal_conv") is None


class ScoringServer:
    """Models score as fast as they are, on one worker, until their deadline or the end of the text."""

    def __init__(self, now: list[float], speeds: dict[str, float], tokens: int) -> None:
        self.now, self.speeds, self.tokens = now, speeds, tokens
        self.scored: dict[str, float] = {}

    def start(self, job: str, action: str, deadline: Deadline) -> Process:
        time = max(0.0, min(deadline.remaining, self.tokens / self.speeds[job]))
        self.now[0] += time
        self.scored[job] = time * self.speeds[job]
        process = Process()
        process.ended.set()
        return process


@pytest.mark.parametrize("faster", [0.5, 1.0, 1.7, 3.0])
def test_test_data_are_scored_to_their_end_if_models_are_faster_than_expected(tmp_path, faster):
    now, expected = [0.0], {"ngram": 50_000.0, "gpt": 2000.0, "recurrent": 1000.0}
    server = ScoringServer(now, {name: speed * faster for name, speed in expected.items()}, 100_000)
    plan = SimpleNamespace(jobs=[], workers=1, schedule=None)
    runner = JobRunner(ComparisonFolder(tmp_path), plan, server, lambda *_: None)
    runner.score(expected, Deadline(100.0, lambda: now[0]), lambda done: None)
    possible = min(1.0, 100 * faster / (50 + 100 + 2))  # all of the text takes 152 seconds as expected
    assert min(server.scored.values()) == pytest.approx(100_000 * possible, rel=0.1)
    assert now[0] <= 100


def test_the_time_for_scoring_is_shared_so_that_all_models_get_equally_far():
    assert scoring_share([1e-3] * 3, [], 60, workers=2) == pytest.approx(30, abs=0.5)  # one worker scores two of them
    assert scoring_share([1e-3] * 2, [], 60, workers=2) == pytest.approx(60, abs=0.5)
    assert scoring_share([2e-3, 1e-3], [], 60, workers=1) == pytest.approx(40, abs=1.5)
    assert scoring_share([1e-3], [10.0], 60, workers=2) == pytest.approx(60, abs=0.5)
    assert scoring_share([1e-6], [60.1], 60, workers=2) == pytest.approx(
        60, abs=0.5
    )  # the last one has all that is left
    assert scoring_share([1e-3] * 2, [30.0], 60, workers=2) == pytest.approx(30, abs=0.5)  # the other has the rest
    assert scoring_share([1e-3], [], 0, workers=1) == 0


def test_what_is_planned_is_scored_where_the_deadline_is_close_and_else_all():
    plan = Schedule(training=8, test_tokens=5000, test_limit=90_000)
    result = JobResult(seconds=1, tokens=1, parameters=1, tokens_per_second=1000)
    assert tokens_to_score(plan, result, Deadline(10.0, lambda: 0.0)) == 90_000
    assert tokens_to_score(plan, result, Deadline(2.0, lambda: 0.0)) == 5000


def test_models_are_compared_on_the_tokens_that_all_have_scored():
    protocol = Protocol(method="carried", carry_over=True, eos=False)

    def scored(count: int) -> Surprisals:
        return Surprisals(np.ones(count, np.float32), np.ones(count, np.bool_), protocol)

    assert common_prefix({"a": scored(1000), "b": scored(600)}) == (600, [])
    assert common_prefix({"a": scored(1000), "b": scored(600), "c": scored(20)}) == (600, ["c"])
    assert common_prefix({"a": scored(100_000), "b": scored(4096)}) == (4096, [])


# Work that ends at a deadline


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.of_tokens(np.random.default_rng(0).integers(3, 11, size=3000), 11)


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    recurrent = build("recurrent", {"vocabulary": 11, "width": 8, "layers": 1}).eval()
    gpt = build("gpt", {"vocabulary": 11, "width": 8, "layers": 1, "heads": 2, "context": 16}).eval()
    return [recurrent, gpt]


@pytest.mark.parametrize("number", [0, 1])
def test_scoring_that_ends_at_a_deadline_returns_the_first_tokens(models, corpus, number, monkeypatch):
    monkeypatch.setattr("chainrule.evaluation.predictions.MAX_BATCH_TOKENS", 256)
    whole = surprisals(models[number], corpus)
    cut = surprisals(models[number], corpus, deadline=Deadline(3.0, Clock()))
    assert 0 < len(cut.nats) < len(corpus)
    assert cut.protocol.tokens == len(cut.nats)
    assert np.allclose(cut.nats, whole.nats[: len(cut.nats)], atol=1e-5)


@pytest.mark.parametrize("documents", [False, True])
def test_mixtures_read_together_score_as_each_by_itself(models, corpus, documents):
    if documents:
        corpus = Corpus.of_rows([corpus.tokens[i : i + 40] for i in range(0, 400, 40)], 11)
    static = Ensemble.of(models)
    cached = Ensemble.of([NeuralCache.of(models[0], size=50), models[1]])
    together = score_variants(Variants(static, cached), corpus)
    for found, model in zip(together, (static, cached), strict=True):
        assert np.allclose(found.nats, surprisals(model, corpus).nats, atol=1e-4)
    assert not np.allclose(together[0].nats, together[1].nats, atol=1e-4)


def test_mixtures_of_other_parts_cannot_be_read_together(models):
    other = build("recurrent", {"vocabulary": 11, "width": 8, "layers": 1}).eval()
    with pytest.raises(ConfigError, match="different parts"):
        Variants(Ensemble.of(models), Ensemble.of([NeuralCache.of(other, size=50), models[1]]))


def test_a_fit_that_ends_at_its_deadline_says_so_and_leaves_a_usable_gate(models, corpus):
    model = Ensemble.of(models)
    [evidence] = collect(Variants(model), corpus)
    found = fit_to(model, evidence, deadline=Deadline(6.0, Clock()))
    assert found.cut_short
    assert found.after <= found.before
    assert not fit_to(Ensemble.of(models), evidence).cut_short


def test_a_neural_cache_is_fitted_to_less_if_time_is_short(models, corpus):
    short = fit_neural_cache(NeuralCache.of(models[0], size=10), corpus, deadline=Deadline(0.0, Clock()))
    assert 0 < short.predictions < len(corpus) - 1


# The whole


def prose(lines: int) -> str:
    words = ["the", "chain", "rule", "gives", "every", "word", "its", "share", "of", "what", "was", "left"]
    random = np.random.default_rng(0)
    return "".join(" ".join(random.choice(words, size=9)) + "\n" for _ in range(lines))


def test_a_comparison_in_too_little_time_ends_and_says_what_was_cut_short_and_a_resumed_one_goes_on(tmp_path, capsys):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(prose(3000))
    options = {"out": out, "families": ["ngram", "finite_memory", "recurrent"], "minutes": 0.02}
    results = compare(str(text), **options)
    plan = ComparisonFolder(out).plan()
    assert {row.name for row in results.rows} >= {"ngram"}
    assert plan.schedule.test_tokens < 10_000  # of 14,000
    assert results.protocol["test_tokens"].startswith("the first ")
    assert any("test tokens" in note for note in results.notes)
    page = (out / "report.html").read_text()
    show(results, out)
    shown = capsys.readouterr().out
    for note in results.notes:
        assert note.split(":")[0] in page
        assert note.split(":")[0] in " ".join(shown.split())
    again = compare(str(text), **options, resume=True)
    assert {row.name for row in again.rows} > {"ngram"}
    assert {"mixture", "mixture+cache"} <= {row.name for row in again.rows}
    saved = json.loads((out / "results.json").read_text())
    assert saved["total_seconds"] > results.total_seconds
    report = (out / "report.html").read_text()
    assert "mixture+cache" in report
    assert ">adaptive<" in report
