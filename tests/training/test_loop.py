from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import chainrule
from chainrule.errors import ConfigError, RunError, TrainingError
from chainrule.models.gpt import GPT
from chainrule.tasks.text import TextData
from chainrule.training.loss_scale import GROWTH_STEPS, LOWEST, LossScale
from chainrule.training.progress import Record, Reporter

TINY = {"layers": 1, "width": 16, "heads": 2, "context": 32}


def train(text: Path, out: Path, *, family: str = "gpt", model: dict[str, Any] | None = None, **words: Any) -> Any:
    settings = {"model": TINY if model is None else model, "train": {"batch_tokens": 128, **words.pop("train", {})}}
    return chainrule.train(family, data=str(text), out=out, settings=settings, **words)


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_training_lowers_the_loss_and_records_it(text_file: Path, tmp_path: Path) -> None:
    run = train(text_file, tmp_path / "run", steps=150)
    losses = [line["loss"] for line in metrics(run.path) if "loss" in line]
    assert sum(losses[-10:]) / 10 < 0.7 * losses[0]
    assert run.outcome.step == 150
    assert run.outcome.tokens == 150 * 128


def test_the_seed_determines_the_model(text_file: Path, tmp_path: Path) -> None:
    runs = [train(text_file, tmp_path / f"{n}", steps=5, seed=seed) for n, seed in enumerate((1, 1, 2))]
    first, same, other = (run.score("the cat sat").nats_per_token for run in runs)
    assert first == same
    assert first != other


@pytest.mark.parametrize(("words", "steps"), [({"steps": 7}, 7), ({"tokens": 1000}, 8), ({"epochs": 1}, None)])
def test_training_stops_at_its_budget_of_steps_tokens_or_epochs(
    text_file: Path, tmp_path: Path, words: dict[str, Any], steps: int | None
) -> None:
    run = train(text_file, tmp_path / "run", **words)
    if steps is None:
        steps = -(-len(text_file.read_text()) * 9 // 10 // 32) // 4  # windows, four to a batch
        assert abs(run.outcome.step - steps) <= 1
    else:
        assert run.outcome.step == steps


def test_validation_takes_a_bounded_fraction_of_a_budget_in_minutes(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validations: list[float] = []

    def slow(*_: object) -> float:
        time.sleep(0.3)
        validations.append(time.monotonic())
        return 1.0

    monkeypatch.setattr(TextData, "validate", slow)
    train(text_file, tmp_path / "run", minutes=0.05)
    assert 1 <= len(validations) <= 3  # ten would take all of the three seconds


def test_a_budget_in_minutes_follows_the_clock(text_file: Path, tmp_path: Path) -> None:
    run = train(text_file, tmp_path / "run", minutes=0.03)
    lines = [line for line in metrics(run.path) if "rate" in line]
    assert run.outcome.reason == "budget"
    assert 1.8 <= run.outcome.seconds < 10
    assert lines[-1]["rate"] < 0.1 < max(line["rate"] for line in lines)


def test_gradient_accumulation_does_not_change_the_model(text_file: Path, tmp_path: Path) -> None:
    scores = [
        train(text_file, tmp_path / f"{pieces}", steps=10, train={"accumulate": pieces, "learning_rate": 1e-3})
        .score("the cat sat on the mat")
        .nats_per_token
        for pieces in (1, 2, 4)
    ]
    assert scores == pytest.approx([scores[0]] * 3, rel=1e-4)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_gradient_accumulation_does_not_change_a_model_that_carries_its_state(
    text_file: Path, tmp_path: Path, optimizer: str
) -> None:
    model = {"width": 16, "layers": 1, "segment": 16, "dropout": 0.0}
    scores = []
    for pieces in (1, 3):
        settings = {"accumulate": pieces, "optimizer": optimizer}
        run = train(text_file, tmp_path / f"{pieces}", family="recurrent", model=model, steps=10, train=settings)
        scores.append(run.score("the cat sat on the mat").nats_per_token)
    assert scores == pytest.approx([scores[0]] * 2, rel=1e-4)


def test_training_stops_early_when_validation_does_not_improve(text_file: Path, tmp_path: Path) -> None:
    settings = {"patience": 2, "validate_every": 1, "learning_rate": 1e-12, "muon_learning_rate": 1e-12}
    run = train(text_file, tmp_path / "run", steps=500, train=settings)
    assert run.outcome.reason == "patience"
    assert run.outcome.step < 100
    assert run.outcome.best_step < run.outcome.step


def test_the_best_weights_are_those_of_the_step_that_validated_best(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = {"validate_every": 5, "schedule": "constant", "warmup": 0}
    losses = iter([3.0, 1.0, 2.0, 1.5])
    monkeypatch.setattr(TextData, "validate", lambda *_: next(losses))
    run = train(text_file, tmp_path / "run", steps=20, train=steady)
    assert (run.outcome.best, run.outcome.best_step, run.outcome.step) == (1.0, 10, 20)
    monkeypatch.undo()
    shorter = train(text_file, tmp_path / "shorter", steps=10, train=steady)
    expected, best, last = (
        chainrule.load(folder, checkpoint=which).model.state_dict()
        for folder, which in ((shorter.path, "last"), (run.path, "best"), (run.path, "last"))
    )
    assert all(torch.equal(best[name], expected[name]) for name in expected)
    assert not any(torch.equal(last[name], expected[name]) for name in expected)


def test_a_loss_of_nan_stops_the_run_and_keeps_the_last_checkpoint(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readout = GPT.readout
    steps = iter(range(10**6))

    def breaking(self: GPT, hidden: torch.Tensor) -> torch.Tensor:
        return readout(self, hidden) * (float("nan") if self.training and next(steps) >= 12 else 1.0)

    monkeypatch.setattr(GPT, "readout", breaking)
    with pytest.raises(
        TrainingError, match=r"diverged at step 13: .*not finite.*the checkpoint of step 10 is kept; lower train"
    ):
        train(text_file, tmp_path / "run", steps=50, train={"save_every": 5, "validate_every": 5})
    monkeypatch.setattr(GPT, "readout", readout)
    assert chainrule.load(tmp_path / "run", checkpoint="last").score("the cat").nats_per_token < 5


def test_a_validation_loss_that_rises_while_the_training_loss_falls_is_overfitting_and_the_best_weights_are_kept(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rising = iter([3.5, 3.4, 50.0, 60.0])
    monkeypatch.setattr(TextData, "validate", lambda *_: next(rising))
    run = train(text_file, tmp_path / "run", steps=40, train={"validate_every": 10})
    assert (run.outcome.best, run.outcome.best_step, run.outcome.last) == (3.4, 20, 60.0)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains(text_file: Path, tmp_path: Path, precision: str) -> None:
    full, half = (
        train(text_file, tmp_path / precision, steps=40, train={"precision": precision})
        for precision in ("float32", precision)
    )
    exact, rough = (run.score("the cat sat on the mat").nats_per_token for run in (full, half))
    assert exact != rough
    assert rough == pytest.approx(exact, rel=0.05)


def test_a_step_that_overflows_float16_is_left_out_and_the_loss_scale_halved(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chainrule.training.loss_scale.FIRST", 2.0**60)
    run = train(text_file, tmp_path / "run", steps=60, train={"precision": "float16"})
    assert run.score("the cat").nats_per_token < 5
    state = run.folder.last_state(None)
    assert state is not None
    left_out = 60 - math.log2(state.values["loss_scale"])  # a resumed run continues with this factor
    assert 10 < left_out < 50
    assert 0 < state.values["loss_scale_steps"] <= 60 - left_out


def test_a_loss_scale_grows_after_many_steps_and_gives_up_where_it_does_not_help() -> None:
    scale = LossScale(enabled=True)
    first = scale.factor
    for _ in range(GROWTH_STEPS):
        scale.succeeded()
    assert scale.factor == 2 * first
    while scale.overflowed():
        pass
    assert scale.factor == LOWEST
    assert LossScale(enabled=False).factor == 1.0
    assert not LossScale(enabled=False).overflowed()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "model"), [("gpt", None), ("recurrent", {"width": 16, "layers": 1, "dropout": 0})])
def test_a_compiled_model_trains_the_same(
    text_file: Path, tmp_path: Path, family: str, model: dict[str, Any] | None
) -> None:
    plain, compiled = (
        train(text_file, tmp_path / f"{on}", family=family, model=model, steps=10, train={"compile": on})
        for on in (False, True)
    )
    texts = "the cat sat on the mat"
    assert compiled.score(texts).nats_per_token == pytest.approx(plain.score(texts).nats_per_token, rel=1e-3)


def test_metrics_also_go_to_tensorboard(text_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(text_file, tmp_path / "run", steps=10, train={"tensorboard": True, "log_every": 1})
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    logged = [line["loss"] for line in metrics(run.path) if "loss" in line]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(logged)


def test_a_reporter_receives_progress_and_metrics(text_file: Path, tmp_path: Path) -> None:
    class Listener(Reporter):
        def __init__(self) -> None:
            self.shares: list[float] = []
            self.records: list[Record] = []

        def update(self, progress: float, record: Record) -> None:
            self.shares.append(progress)
            self.records.append(record)

    listener = Listener()
    train(text_file, tmp_path / "run", steps=20, reporter=listener)
    assert max(listener.shares) == 1.0
    assert any({"loss", "bits_per_byte", "tokens_per_second"} <= record.keys() for record in listener.records)


def test_documents_are_trained_and_scored_with_eos(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(["ab", "abab", "ab", "ababab"] * 50))
    fast = {"batch_tokens": 128, "learning_rate": 0.01, "muon_learning_rate": 0.03}
    for family, model in (("gpt", TINY), ("recurrent", {"width": 16, "layers": 1})):
        settings = {"model": model, "data": {"unit": "documents"}, "train": fast}
        run = chainrule.train(family, data=str(file), out=tmp_path / family, steps=150, settings=settings)
        protocol = run.info()["validation"]["protocol"]
        assert protocol["method"] == "documents"
        assert protocol["eos"]
        texts = {text.text for text in run.generate(num=8, length=20, temperature=0.3)}
        assert texts <= {"ab" * count for count in range(10)}


def test_a_folder_with_other_contents_is_never_overwritten(text_file: Path, tmp_path: Path) -> None:
    train(text_file, tmp_path / "run", steps=1)
    with pytest.raises(RunError, match="already contains a run"):
        train(text_file, tmp_path / "run", steps=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="is not a run"):
        train(text_file, tmp_path / "other", steps=1)


def test_a_segment_longer_than_the_context_is_refused_before_anything_is_written(
    text_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"longer than model\.context"):
        train(text_file, tmp_path / "run", steps=1, train={"segment": 64})
    assert not (tmp_path / "run").exists()


def test_a_budget_of_cpu_time_does_not_count_waiting(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object) -> float:
        time.sleep(1.0)
        return 1.0

    monkeypatch.setattr(TextData, "validate", slow)
    began = time.monotonic()
    run = train(text_file, tmp_path / "run", minutes=0.02, train={"clock": "cpu"})
    assert 1.2 <= run.outcome.seconds < time.monotonic() - began - 1.0
