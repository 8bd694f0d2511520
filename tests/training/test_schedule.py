from __future__ import annotations

import pytest

from chainrule.config import TrainConfig
from chainrule.errors import ConfigError
from chainrule.training.schedule import Budget, Spent, rate


def test_rate_rises_in_the_warmup_and_falls_to_the_floor() -> None:
    for schedule in ("cosine", "linear", "wsd"):
        config = TrainConfig(schedule=schedule, warmup=0.1, floor=0.05)
        assert rate(config, 0.05) == pytest.approx(0.5)
        assert rate(config, 0.1) == pytest.approx(1.0)
        assert rate(config, 1.0) == pytest.approx(0.05)
        falling = [rate(config, 0.1 + 0.09 * step) for step in range(11)]
        assert falling == sorted(falling, reverse=True)


def test_wsd_stays_at_its_peak_until_the_decay() -> None:
    config = TrainConfig(schedule="wsd", warmup=0.0, decay=0.25)
    assert rate(config, 0.74) == 1.0
    assert rate(config, 0.875) == pytest.approx(0.5)


def test_step_multiplies_the_rate_at_each_part_of_the_budget_as_steplr_does_at_each_epoch() -> None:
    config = TrainConfig(schedule="step", warmup=0.0, step_size=0.1, step_gamma=0.9, epochs=10)
    budget = Budget.of(config)
    for epoch in range(10):
        for part in (0.0, 0.5, 0.99):
            assert rate(config, budget.progress(Spent(epochs=epoch + part))) == pytest.approx(0.9**epoch)
    assert rate(TrainConfig(schedule="step", step_gamma=0.1, floor=0.05), 0.9) == 0.05


def test_constant_never_falls() -> None:
    assert rate(TrainConfig(schedule="constant", warmup=0.0), 1.0) == 1.0


@pytest.mark.parametrize("kind", ["steps", "tokens", "epochs", "minutes"])
def test_progress_is_the_used_fraction_of_the_budget(kind: str) -> None:
    budget = Budget.of(TrainConfig(**{kind: 8}))
    assert budget.progress(Spent(**{kind: 2})) == 0.25
    assert budget.progress(Spent(**{kind: 80})) == 1.0


def test_a_run_has_one_budget() -> None:
    with pytest.raises(ConfigError, match="steps and minutes are both given"):
        TrainConfig.parse({"steps": 5, "minutes": 2})
