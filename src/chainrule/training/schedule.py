"""Budgets and learning-rate schedules.

A budget is a number of steps, tokens, epochs or minutes. Its used fraction in [0, 1] is the progress of a run, and
everything that depends on time (learning rate, validations, log lines) is a function of it; a budget in minutes
therefore makes the schedule follow the clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chainrule.config import BUDGETS, TrainConfig

DEFAULT_MINUTES = 5.0


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a run has used so far."""

    steps: int = 0
    tokens: int = 0
    epochs: float = 0.0
    minutes: float = 0.0


@dataclass(frozen=True)
class Budget:
    """The limit of a run."""

    kind: str  # one of BUDGETS
    amount: float

    @classmethod
    def of(cls, config: TrainConfig) -> Budget:
        for kind in BUDGETS:
            amount = getattr(config, kind)
            if amount is not None:
                return cls(kind, amount)
        return cls("minutes", DEFAULT_MINUTES)

    def progress(self, spent: Spent) -> float:
        """Return the fraction of the budget that has been used, at most 1."""
        return min(1.0, float(getattr(spent, self.kind)) / self.amount)

    def __str__(self) -> str:
        return f"{self.amount:g} {self.kind}"


def rate(config: TrainConfig, progress: float) -> float:
    """Return the learning rate as a fraction of its peak."""
    if progress < config.warmup:
        # At least half a percent of the peak: a rate of zero would waste the first step.
        return max(0.005, progress / config.warmup)
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "step":  # StepLR; the tolerance is for progress just below a multiple, such as 0.3 / 0.1
        return max(config.floor, config.step_gamma ** math.floor(progress / config.step_size + 1e-9))
    if config.schedule == "noam":  # min(p / w, √(w / p)) of Vaswani et al. 2017, scaled to a peak of 1
        remaining = math.sqrt(config.warmup / progress)
    elif config.schedule == "wsd":
        remaining = min(1.0, (1.0 - progress) / config.decay)
    else:
        remaining = (1.0 - progress) / (1.0 - config.warmup)
    if config.schedule == "cosine":
        remaining = 0.5 * (1.0 + math.cos(math.pi * (1.0 - remaining)))
    return config.floor + (1.0 - config.floor) * remaining
