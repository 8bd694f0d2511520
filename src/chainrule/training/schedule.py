"""How far a run has come, and the learning rate that belongs to that point.

A budget is steps, tokens, passes or minutes. All of them become a share of the run in [0, 1], and everything that
depends on time (the rate, validations, log lines) is a function of that share; a budget in minutes therefore makes
the schedule follow the clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chainrule.config import BUDGETS, TrainConfig

DEFAULT_MINUTES = 5.0


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a run has used up so far."""

    steps: int = 0
    tokens: int = 0
    epochs: float = 0.0
    minutes: float = 0.0


@dataclass(frozen=True)
class Budget:
    """One limit on a run."""

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
        """The share of the budget that is used up, at most 1."""
        return min(1.0, float(getattr(spent, self.kind)) / self.amount)

    def __str__(self) -> str:
        return f"{self.amount:g} {self.kind}"


def rate(config: TrainConfig, progress: float) -> float:
    """The learning rate as a share of its peak."""
    if progress < config.warmup:
        # Half a percent of the peak at the very start: a rate of zero would waste the first step.
        return max(0.005, progress / config.warmup)
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "noam":  # min(p / w, √(w / p)): that of Vaswani et al. 2017, with its peak at 1
        remaining = math.sqrt(config.warmup / progress)
    elif config.schedule == "wsd":
        remaining = min(1.0, (1.0 - progress) / config.decay)
    else:
        remaining = (1.0 - progress) / (1.0 - config.warmup)
    if config.schedule == "cosine":
        remaining = 0.5 * (1.0 + math.cos(math.pi * (1.0 - remaining)))
    return config.floor + (1.0 - config.floor) * remaining
